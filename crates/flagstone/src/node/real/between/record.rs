//! What the device holds of moves between nodes: a record of one block for each volume that comes, or has come and isn't confirmed, and for each that
//! goes, has gone, or may have.
//!
//! The bytes are described in `docs/formats/moves.md`. Encoding is canonical: what decodes is what would be encoded.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use flagstone_device::engine::Attributes;
use flagstone_fs::ATTRIBUTE_KIND_MOVES;
use flagstone_types::checksum::crc32c;
use flagstone_types::{DeviceId, DvolId, Epoch};
use flagstone_wire::proof::{KEY_BYTES, Key};

use crate::node::real::records::{Kept, RECORD_BYTES};

const MAGIC: [u8; 4] = *b"FSMV";
const VERSION: u8 = 1;

const VERSION_AT: usize = 4;
const KIND_AT: usize = 5;
const NAME_BYTES_AT: usize = 6;
const VOLUME_AT: usize = 8;
const DEVICE_AT: usize = 24;
const NUMBER_AT: usize = 40;
const EPOCH_AT: usize = 44;
const TIME_AT: usize = 48;
const CRC_AT: usize = 60;
const KEY_AT: usize = 64;
const FAMILY_AT: usize = 96;
const PORT_AT: usize = 98;
const ADDRESS_AT: usize = 100;
const NAME_AT: usize = 128;
const NAME_BYTES_MAX: usize = 128;
const ATTRIBUTES_AT: usize = 256;
const LIMIT_AT: usize = 320;
/// Behind this all is zero.
const END: usize = 328;
const _: () = assert!(ATTRIBUTES_AT + size_of::<Attributes>() == LIMIT_AT);
const _: () = assert!(LIMIT_AT + 8 == END);

/// What is known of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node::real) enum Kind {
    /// The volume has come here, once its dvol isn't marked any more; its origin has not confirmed that.
    Arrived,
    /// It may have gone there.
    Leaving,
    /// It has.
    Gone,
    /// It has, and there it is known that nobody will ask any more.
    Confirmed,
    /// It goes on here by somebody's word, whatever the other node has of it.
    Forced,
    /// It has come here, and may be deleted or moved on by somebody's word, though its origin has not confirmed.
    Settled,
    /// It comes here: what has come of it, if that has a point, waits for its origin.
    Coming,
    /// It is being copied there, once its dvol is marked so.
    Going,
}

const KINDS: [Kind; 8] = [
    Kind::Arrived,
    Kind::Leaving,
    Kind::Gone,
    Kind::Confirmed,
    Kind::Forced,
    Kind::Settled,
    Kind::Coming,
    Kind::Going,
];

impl Kind {
    /// Whether it is of a volume that comes here, or has come.
    pub(super) fn comes(self) -> bool {
        matches!(self, Kind::Arrived | Kind::Settled | Kind::Coming)
    }

    /// Whether it says where a volume is being copied to, or may have gone.
    fn goes(self) -> bool {
        matches!(self, Kind::Going | Kind::Leaving)
    }

    /// Whether it says that the volume is there, and not here.
    pub(super) fn is_gone(self) -> bool {
        matches!(self, Kind::Gone | Kind::Confirmed)
    }
}

/// What is written down of a move.
#[derive(Clone, Debug)]
pub(in crate::node::real) struct MoveRecord {
    pub(super) kind: Kind,
    pub(super) volume: DvolId,
    /// The device that it comes to.
    pub(super) device: DeviceId,
    /// The arrival.
    pub(super) number: u32,
    pub(super) key: Key,
    /// The epoch in which a volume goes on by somebody's word; otherwise 0.
    pub(super) epoch: Epoch,
    /// When this was written, in nanoseconds since 1970.
    pub(super) at_ns: u64,
    /// The core that it goes to. That of a volume which comes is not written down.
    pub(super) address: Option<SocketAddr>,
    /// By which clients may ask for it. Of a volume which has come this is empty.
    pub(super) name: String,
    /// What a volume that comes is to have, as it was announced; otherwise zeros.
    pub(super) attributes: Attributes,
    /// How many bytes a second are copied of one that goes, at most; 0: as many as others leave.
    pub(super) limit_bytes: u64,
}

impl MoveRecord {
    /// What the route of a volume goes by.
    pub(super) fn route_of(volume: DvolId) -> MoveKey {
        MoveKey {
            volume,
            way: Way::Goes,
        }
    }

    /// What the arrival of a volume goes by that is not confirmed.
    pub(super) fn arrival_of(volume: DvolId) -> MoveKey {
        MoveKey {
            volume,
            way: Way::Comes,
        }
    }

    /// What an arrival goes by that somebody has settled.
    pub(super) fn settled_of(volume: DvolId, number: u32) -> MoveKey {
        MoveKey {
            volume,
            way: Way::Came(number),
        }
    }
}

/// What a record goes by: a volume that came back has two, and one for each arrival that somebody has settled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::node::real) struct MoveKey {
    volume: DvolId,
    way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Way {
    Comes,
    Goes,
    /// By this arrival, which is over.
    Came(u32),
}

impl fmt::Display for MoveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let volume = self.volume;
        match self.way {
            Way::Comes => write!(f, "the arrival of volume {volume}"),
            Way::Goes => write!(f, "the route of volume {volume}"),
            Way::Came(number) => write!(f, "the settled arrival {number} of volume {volume}"),
        }
    }
}

/// Why a block is no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node::real) enum BadMove {
    /// There is something else.
    NoRecord,
    /// It is of a version that this program doesn't know.
    Version(u8),
    /// Its bytes don't match its checksum, or can't have been written like that.
    Damaged,
}

impl fmt::Display for BadMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadMove::NoRecord => f.write_str("expected a record of a move, found something else"),
            BadMove::Version(found) => write!(
                f,
                "expected a record of a move of version {VERSION}, found version {found}: it was written by a newer \
                 program"
            ),
            BadMove::Damaged => f.write_str(
                "expected a record of a move, found one that doesn't match its checksum or contradicts itself",
            ),
        }
    }
}

impl Kept for MoveRecord {
    const DVOL_NAME: &str = ".moves";
    const ATTRIBUTE_KIND: u8 = ATTRIBUTE_KIND_MOVES;
    type Key = MoveKey;
    type Bad = BadMove;

    fn key(&self) -> MoveKey {
        match self.kind {
            Kind::Arrived | Kind::Coming => MoveRecord::arrival_of(self.volume),
            Kind::Settled => MoveRecord::settled_of(self.volume, self.number),
            _ => MoveRecord::route_of(self.volume),
        }
    }

    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        let name = self.name.as_bytes();
        put(&mut out, 0, &MAGIC);
        out[VERSION_AT] = VERSION;
        out[KIND_AT] = kind.map_or(0, |kind| kind as u8 + 1);
        out[NAME_BYTES_AT] = name.len().min(NAME_BYTES_MAX) as u8;
        put(&mut out, VOLUME_AT, &self.volume.0.to_le_bytes());
        put(&mut out, DEVICE_AT, &self.device.0.to_le_bytes());
        put(&mut out, NUMBER_AT, &self.number.to_le_bytes());
        put(&mut out, EPOCH_AT, &self.epoch.0.to_le_bytes());
        put(&mut out, TIME_AT, &self.at_ns.to_le_bytes());
        put(&mut out, KEY_AT, &self.key.0);
        if let Some(address) = self.address {
            put(&mut out, PORT_AT, &address.port().to_le_bytes());
            match address.ip() {
                IpAddr::V4(ip) => {
                    out[FAMILY_AT] = 4;
                    put(&mut out, ADDRESS_AT, &ip.octets());
                }
                IpAddr::V6(ip) => {
                    out[FAMILY_AT] = 6;
                    put(&mut out, ADDRESS_AT, &ip.octets());
                }
            }
        }
        put(&mut out, NAME_AT, &name[..name.len().min(NAME_BYTES_MAX)]);
        put(&mut out, ATTRIBUTES_AT, &self.attributes);
        put(&mut out, LIMIT_AT, &self.limit_bytes.to_le_bytes());
        let crc = crc32c(&out);
        put(&mut out, CRC_AT, &crc.to_le_bytes());
        out
    }

    fn decode(block: &[u8]) -> Result<MoveRecord, BadMove> {
        let Ok(block) = <&[u8; RECORD_BYTES]>::try_from(block) else {
            return Err(BadMove::NoRecord);
        };
        if block[..4] != MAGIC {
            return Err(BadMove::NoRecord);
        }
        let mut unsealed = *block;
        put(&mut unsealed, CRC_AT, &[0; 4]);
        if crc32c(&unsealed) != u32::from_le_bytes(array(block, CRC_AT)) {
            return Err(BadMove::Damaged);
        }
        if block[VERSION_AT] != VERSION {
            return Err(BadMove::Version(block[VERSION_AT]));
        }
        let record = read(block).ok_or(BadMove::Damaged)?;
        // Whatever of it was not looked at, or was read as something else, is not what is written.
        match record.encode() == *block {
            true => Ok(record),
            false => Err(BadMove::Damaged),
        }
    }
}

fn read(block: &[u8; RECORD_BYTES]) -> Option<MoveRecord> {
    let kind = usize::from(block[KIND_AT]).checked_sub(1)?;
    let kind = *KINDS.get(kind)?;
    let name_bytes = usize::from(block[NAME_BYTES_AT]);
    let name = block.get(NAME_AT..NAME_AT + name_bytes.min(NAME_BYTES_MAX))?;
    let port = u16::from_le_bytes(array(block, PORT_AT));
    let ip = match block[FAMILY_AT] {
        0 => None,
        4 => Some(IpAddr::V4(Ipv4Addr::from(array::<4>(block, ADDRESS_AT)))),
        6 => Some(IpAddr::V6(Ipv6Addr::from(array::<16>(block, ADDRESS_AT)))),
        _ => return None,
    };
    let epoch = Epoch(u32::from_le_bytes(array(block, EPOCH_AT)));
    // Whoever goes goes somewhere, and whoever goes on does so in an epoch.
    if ip.is_some() == kind.comes() || (epoch == Epoch(0)) == (kind == Kind::Forced) {
        return None;
    }
    let attributes: Attributes = array(block, ATTRIBUTES_AT);
    let limit_bytes = u64::from_le_bytes(array(block, LIMIT_AT));
    let is_bare = attributes == [0; _] || kind == Kind::Coming;
    if !is_bare || limit_bytes > 0 && !kind.goes() {
        return None;
    }
    if epoch > Epoch::MAX {
        return None;
    }
    Some(MoveRecord {
        kind,
        volume: DvolId(u128::from_le_bytes(array(block, VOLUME_AT))),
        device: DeviceId(u128::from_le_bytes(array(block, DEVICE_AT))),
        number: u32::from_le_bytes(array(block, NUMBER_AT)),
        key: Key(array::<KEY_BYTES>(block, KEY_AT)),
        epoch,
        at_ns: u64::from_le_bytes(array(block, TIME_AT)),
        address: ip.map(|ip| SocketAddr::new(ip, port)),
        name: String::from_utf8(name.to_vec()).ok()?,
        attributes,
        limit_bytes,
    })
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn array<const N: usize>(block: &[u8; RECORD_BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[at..at + N]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(in super::super) fn record(kind: Kind) -> MoveRecord {
        let goes = !kind.comes();
        let is_named = goes || kind == Kind::Coming;
        MoveRecord {
            kind,
            volume: DvolId(0x0102 << 64 | 3),
            device: DeviceId(4),
            number: 0x0506,
            key: Key([7; 32]),
            epoch: Epoch(if kind == Kind::Forced { 0x0008_0009 } else { 0 }),
            at_ns: 8,
            address: goes.then(|| SocketAddr::new([9, 10, 11, 12].into(), 0x0d0e)),
            name: if is_named {
                "db".to_owned()
            } else {
                String::new()
            },
            attributes: [if kind == Kind::Coming { 11 } else { 0 }; _],
            limit_bytes: if kind.goes() { 0x0c0d } else { 0 },
        }
    }

    #[test]
    fn bytes_on_the_device_are_these() {
        let block = record(Kind::Gone).encode();
        let mut expected = [0; RECORD_BYTES];
        expected[..8].copy_from_slice(b"FSMV\x01\x03\x02\x00");
        (expected[8], expected[16], expected[17]) = (3, 2, 1);
        (expected[24], expected[40], expected[41], expected[48]) = (4, 6, 5, 8);
        expected[64..96].fill(7);
        expected[96..104].copy_from_slice(&[4, 0, 0x0e, 0x0d, 9, 10, 11, 12]);
        expected[128..130].copy_from_slice(b"db");
        let crc = crc32c(&expected).to_le_bytes();
        expected[60..64].copy_from_slice(&crc);
        assert_eq!(block, expected);
        let block = record(Kind::Forced).encode();
        expected[5] = 5;
        (expected[44], expected[46]) = (9, 8);
        expected[60..64].fill(0);
        let crc = crc32c(&expected).to_le_bytes();
        expected[60..64].copy_from_slice(&crc);
        assert_eq!(block, expected);
        let block = record(Kind::Going).encode();
        expected[5] = 8;
        (expected[44], expected[46]) = (0, 0);
        (expected[320], expected[321]) = (13, 12);
        expected[60..64].fill(0);
        let crc = crc32c(&expected).to_le_bytes();
        expected[60..64].copy_from_slice(&crc);
        assert_eq!(block, expected);
        let block = record(Kind::Coming).encode();
        expected[5] = 7;
        expected[96..104].fill(0);
        expected[256..320].fill(11);
        expected[320..322].fill(0);
        expected[60..64].fill(0);
        let crc = crc32c(&expected).to_le_bytes();
        expected[60..64].copy_from_slice(&crc);
        assert_eq!(block, expected);
    }

    #[test]
    fn a_volume_has_one_route_one_arrival_and_one_of_each_that_was_settled() {
        let keys = KINDS.map(|kind| record(kind).key());
        assert_eq!(keys[1..5], [keys[1]; 4], "one route");
        assert_eq!(keys[7], keys[1], "one route");
        assert_eq!(keys[6], keys[0], "one arrival");
        assert_ne!(keys[0], keys[1]);
        let mut later = record(Kind::Settled);
        later.number += 1;
        assert!(![keys[0], keys[1], keys[5]].contains(&later.key()));
        assert_ne!(keys[0], keys[5]);
    }

    #[test]
    fn records_are_read_as_they_were_written_and_nothing_else_is() {
        let mut other = record(Kind::Leaving);
        other.address = Some(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 1));
        other.name = "n".repeat(NAME_BYTES_MAX);
        for record in KINDS.map(record).into_iter().chain([other]) {
            let block = record.encode();
            let found = MoveRecord::decode(&block).expect("is a record");
            assert_eq!(found.encode(), block);
            assert_eq!(format!("{found:?}"), format!("{record:?}"));
            for at in (0..160).chain(256..END + 8).chain([RECORD_BYTES - 1]) {
                let mut changed = block;
                changed[at] ^= 0x10;
                assert!(MoveRecord::decode(&changed).is_err(), "byte {at}");
                // Also with a checksum that is right.
                changed[60..64].fill(0);
                let crc = crc32c(&changed).to_le_bytes();
                changed[60..64].copy_from_slice(&crc);
                if let Ok(found) = MoveRecord::decode(&changed) {
                    assert_eq!(found.encode(), changed, "byte {at}");
                }
            }
        }
        assert_eq!(MoveRecord::decode(&[0; 100]).err(), Some(BadMove::NoRecord));
        let mut nowhere = record(Kind::Gone);
        nowhere.address = None;
        let mut in_no_epoch = record(Kind::Forced);
        in_no_epoch.epoch = Epoch(0);
        let mut in_an_epoch = record(Kind::Gone);
        in_an_epoch.epoch = Epoch(7);
        let mut beyond = record(Kind::Forced);
        beyond.epoch = Epoch(Epoch::MAX.0 + 1);
        let mut with_attributes = record(Kind::Gone);
        with_attributes.attributes = [1; _];
        let mut with_limit = record(Kind::Coming);
        with_limit.limit_bytes = 1;
        let others = [with_attributes, with_limit];
        for bad in [nowhere, in_no_epoch, in_an_epoch, beyond]
            .into_iter()
            .chain(others)
        {
            assert_eq!(
                MoveRecord::decode(&bad.encode()).err(),
                Some(BadMove::Damaged),
                "{bad:?}"
            );
        }
    }
}
