//! What a page of a store's accounts holds, and the blocks that it has: rooms, which transfers take, leave and seal.

use flagstone_pagestore::{BlockPtr, Claim, Commit, Geometry, PagePtr, PageSlot, PageWrite};
use flagstone_platform::IoBuf;
use flagstone_sim::{Rng, SimPlatform};

use crate::support::*;

const PAGE: usize = 4096;
/// Where the rooms are noted.
const ROOMS_AT: usize = 2048;
/// Bytes that note one: its pointer and the transfer that took it.
const ROOM_BYTES: usize = 40;
const ROOMS_MAX: usize = 2;

/// So few blocks that each is somebody else's again and again in one life of a store.
pub(super) fn shape() -> Geometry {
    Geometry::new(small().page_bytes(), small().block_bytes(), 10).expect("a shape")
}

/// A block that an account has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    pub(super) ptr: PagePtr,
    /// The transfer that took it, which its first page has.
    pub(super) name: u64,
}

/// What an account holds: its balance, the names of the transfers that changed it, and its rooms.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Account {
    pub(super) balance: u64,
    pub(super) names: Vec<u64>,
    pub(super) rooms: Vec<Room>,
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

impl Account {
    pub(super) fn encode(&self) -> IoBuf {
        let mut out = vec![0; PAGE];
        out[0..8].copy_from_slice(&self.balance.to_le_bytes());
        out[8..16].copy_from_slice(&(self.names.len() as u64).to_le_bytes());
        assert!(self.names.len() < 250, "the page is full");
        for (index, name) in self.names.iter().enumerate() {
            out[16 + 8 * index..24 + 8 * index].copy_from_slice(&name.to_le_bytes());
        }
        out[ROOMS_AT] = self.rooms.len() as u8;
        for (index, room) in self.rooms.iter().enumerate() {
            let at = ROOMS_AT + 8 + ROOM_BYTES * index;
            out[at..at + 32].copy_from_slice(&room.ptr.encode());
            out[at + 32..at + ROOM_BYTES].copy_from_slice(&room.name.to_le_bytes());
        }
        IoBuf::copy_of(&out)
    }

    pub(super) fn decode(bytes: &[u8]) -> Account {
        let room = |index: usize| {
            let at = ROOMS_AT + 8 + ROOM_BYTES * index;
            Room {
                ptr: PagePtr::decode(&bytes[at..]).expect("a pointer"),
                name: long(bytes, at + 32),
            }
        };
        Account {
            balance: long(bytes, 0),
            names: (0..long(bytes, 8) as usize)
                .map(|index| long(bytes, 16 + 8 * index))
                .collect(),
            rooms: (0..usize::from(bytes[ROOMS_AT])).map(room).collect(),
        }
    }

    /// Takes a block of the store, in the same commit as what notes it.
    pub(super) async fn take(
        &mut self,
        store: &TestStore,
        commit: &mut Commit,
        name: u64,
    ) -> Option<Claim<SimPlatform>> {
        let claim = store.claim(SMALL, ALICE).await.ok()?;
        let mut data = vec![0x5a; PAGE];
        data[..8].copy_from_slice(&name.to_le_bytes());
        commit.allocates.push(claim.ptr);
        commit.writes.push(PageWrite {
            ptr: claim.ptr.0,
            slot: PageSlot(0),
            data: IoBuf::copy_of(&data),
        });
        let ptr = claim.ptr.0;
        self.rooms.push(Room { ptr, name });
        Some(claim)
    }

    /// Gives one of its blocks back.
    pub(super) fn leave(&mut self, index: usize, commit: &mut Commit) {
        let room = self.rooms.remove(index);
        commit.frees.push(BlockPtr(room.ptr));
    }

    /// Seals one of its blocks, from when on its pointer is another one.
    pub(super) fn seal(&mut self, index: usize, commit: &mut Commit) {
        let room = &mut self.rooms[index];
        commit.seals.push(BlockPtr(room.ptr));
        room.ptr.read_only = true;
    }

    /// One of these, or nothing.
    pub(super) async fn change_rooms(
        &mut self,
        store: &TestStore,
        commit: &mut Commit,
        name: u64,
        rng: &mut Rng,
    ) -> Option<Claim<SimPlatform>> {
        let index = (!self.rooms.is_empty()).then(|| rng.index(self.rooms.len()));
        match (rng.below(4), index) {
            (0, _) if self.rooms.len() < ROOMS_MAX => return self.take(store, commit, name).await,
            (1, Some(index)) => self.leave(index, commit),
            (2, Some(index)) if !self.rooms[index].ptr.read_only => self.seal(index, commit),
            _ => {}
        }
        None
    }
}

/// Every room is the block that its account says, with what was written when it was taken, and no other block but
/// `more` is allocated.
pub(super) async fn check_rooms(what: &str, store: &TestStore, accounts: &[Account], more: u64) {
    let rooms: Vec<&Room> = accounts.iter().flat_map(|account| &account.rooms).collect();
    for room in &rooms {
        let block = shape().block_of(room.ptr.page);
        let found = store.block(SMALL, block).await.expect("readable");
        assert_eq!(found, Some(BlockPtr(room.ptr)), "{what}");
        let read = store.read(room.ptr).await.expect("readable");
        assert_eq!(long(&read.data, 0), room.name, "{what}: {room:?}");
    }
    let allocated = store.allocated_blocks(SMALL).await.expect("readable");
    assert_eq!(
        allocated,
        rooms.len() as u64 + more,
        "{what}: blocks that nobody has, or that are gone"
    );
}
