//! A damaged copy of the superblock is rewritten from the other one when the device is opened, and only
//! then: never with what may not be this device's.

use crate::engine_support;

use engine_support::{BLOCK, begin, named, write};
use flagstone_device::engine::{Engine, EngineOptions, OpenError};
use flagstone_device::format::bytes::seal_block;
use flagstone_device::format::geometry::Geometry;
use flagstone_device::format::superblock::Superblock;
use flagstone_sim::{
    DiskConfig, Fault, Injection, IoKind, SimDisk, SimPlatform, World, WriteErrorLeaves,
};

const DEVICE_BYTES: u64 = 64 << 20;
const PLACES: [u64; 2] = [0, DEVICE_BYTES - BLOCK];

/// A device that was used and stopped in order.
fn used() -> SimDisk {
    let disk = SimDisk::new(DiskConfig::new(DEVICE_BYTES));
    let world = World::new(1);
    let (platform, formatted) = (world.platform(0), disk.clone());
    world.block_on(0, async move {
        let engine = begin(&platform, &formatted, EngineOptions::default()).await;
        let dvol = engine.create(named("dvol", 0)).await.expect("creates");
        write(&engine, dvol, 0, BLOCK).await.expect("writes");
        engine.stop().await.expect("stops");
    });
    disk
}

/// Opens it; the power fails once it is open, or can't be opened.
fn open(disk: &SimDisk) -> Result<(), OpenError> {
    let world = World::new(2);
    let (platform, used) = (world.platform(0), disk.clone());
    let opened = world.block_on(0, async move {
        let device = platform.open(&used);
        let prepared = Engine::<SimPlatform>::prepare(&platform, &device).await;
        let (superblock, shared) = prepared?;
        let options = EngineOptions::default();
        let opened = Engine::open(platform, device, shared, superblock, 0, options).await;
        opened.map(drop)
    });
    disk.power_loss(&mut world.crash());
    disk.clear_injections();
    opened
}

fn block(disk: &SimDisk, place: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    disk.stable_image().read(place, &mut bytes);
    bytes
}

fn copies(disk: &SimDisk) -> [Vec<u8>; 2] {
    PLACES.map(|place| block(disk, place))
}

fn unreadable(place: u64) -> Injection {
    let failing = Injection::next(Fault::ReadError).times(u64::MAX);
    failing.within(place..place + BLOCK)
}

/// It stayed damaged, and the next damage took the device.
#[test]
fn a_damaged_copy_is_rewritten_from_the_other_one() {
    type Damage = fn(&SimDisk, u64);
    let damages: [Damage; 3] = [
        |disk, place| disk.flip_stored_bit(place + 50, 3),
        |disk, place| disk.corrupt(place, &[0; BLOCK as usize]),
        |disk, place| disk.inject(unreadable(place)),
    ];
    for place in PLACES {
        for (number, damage) in damages.into_iter().enumerate() {
            let disk = used();
            let whole = copies(&disk);
            damage(&disk, place);
            open(&disk).expect("the other copy is there");
            assert_eq!(
                copies(&disk),
                whole,
                "damage {number} of the copy at {place}"
            );
        }
    }
    // Not both.
    let disk = used();
    for place in PLACES {
        disk.flip_stored_bit(place + 50, 3);
    }
    let damaged = copies(&disk);
    open(&disk).expect_err("nothing says what it is");
    assert_eq!(copies(&disk), damaged);
}

#[test]
fn a_copy_that_can_not_be_rewritten_keeps_no_device_from_being_opened() {
    for place in PLACES {
        let disk = used();
        disk.flip_stored_bit(place + 50, 3);
        let leaves = WriteErrorLeaves::Old;
        let failing = Injection::next(Fault::WriteError { leaves }).only(IoKind::Write);
        disk.inject(failing.within(place..place + BLOCK));
        open(&disk).expect("the other copy is there");
        open(&disk).expect("and still is");
        let [first, second] = copies(&disk);
        assert_eq!(first, second, "written the second time");
    }
}

/// Another release may have begun to change the format: that is no damage.
#[test]
fn a_copy_of_another_version_is_left_alone() {
    for place in PLACES {
        let disk = used();
        let mut other = block(&disk, place);
        other[8] = 2;
        seal_block(&mut other);
        disk.corrupt(place, &other);
        open(&disk).expect("the other copy is there");
        assert_eq!(block(&disk, place), other);
    }
}

/// What is at the end may be all that is left of what the device was before.
#[test]
fn nothing_is_rewritten_unless_the_journals_belong_to_it() {
    let disk = used();
    let superblock = Superblock::decode(&block(&disk, 0)).expect("ours");
    let geometry = Geometry::checked(&superblock).expect("as formatted");
    let mut other = superblock;
    other.device_id.0 ^= 1;
    disk.corrupt(PLACES[1], &other.encode());
    disk.flip_stored_bit(50, 3);
    let damaged = copies(&disk);
    open(&disk).expect_err("the journals are another device's");
    assert_eq!(copies(&disk), damaged);
    assert_eq!(geometry.data_end.offset_bytes(), PLACES[1]);
}
