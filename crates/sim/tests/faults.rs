//! Each fault really happens, does what its description says, and no more than that.

use crate::support;

use std::collections::BTreeSet;
use std::io::ErrorKind;

use flagstone_platform::{BlockDevice, IoBuf};
use flagstone_sim::{
    BrokenFaults, DiskConfig, Fault, FaultConfig, Injection, Rng, SECTOR_BYTES, SimDevice, SimDisk,
    World, WriteErrorLeaves,
};
use support::{Tag, tagged, tags, tags_of};

const DISK_BYTES: u64 = 1 << 20;
const DISK_SECTORS: u64 = DISK_BYTES / SECTOR_BYTES;

struct Bench {
    world: World,
    disk: SimDisk,
    device: SimDevice,
}

/// A disk on which every sector holds 1, durably.
fn bench(seed: u64) -> Bench {
    let disk = SimDisk::new(DiskConfig::new(DISK_BYTES));
    let world = World::new(seed);
    let device = world.platform(0).open(&disk);
    let bench = Bench {
        world,
        disk,
        device,
    };
    assert!(bench.write(0, DISK_SECTORS, 1).is_ok());
    assert!(bench.flush().is_ok());
    bench
}

impl Bench {
    fn write(&self, sector: u64, sectors: u64, tag: Tag) -> Result<(), ErrorKind> {
        let writing = self
            .device
            .write(sector * SECTOR_BYTES, tagged(tag, sectors));
        let (_, result) = self.world.block_on(0, writing);
        result.map_err(|error| error.kind())
    }

    fn read_bytes(&self, sector: u64, sectors: u64) -> (Vec<u8>, Result<(), ErrorKind>) {
        let buf = IoBuf::zeroed((sectors * SECTOR_BYTES) as usize);
        let reading = self.device.read(sector * SECTOR_BYTES, buf);
        let (buf, result) = self.world.block_on(0, reading);
        (buf.to_vec(), result.map_err(|error| error.kind()))
    }

    fn read(&self, sector: u64, sectors: u64) -> Vec<Tag> {
        let (bytes, result) = self.read_bytes(sector, sectors);
        assert_eq!(result, Ok(()));
        tags(&bytes)
    }

    fn flush(&self) -> Result<(), ErrorKind> {
        let result = self.world.block_on(0, self.device.flush());
        result.map_err(|error| error.kind())
    }

    /// The whole disk after a power loss.
    fn after_power_loss(self) -> Vec<Tag> {
        self.disk.power_loss(&mut self.world.crash());
        tags_of(&self.disk.stable_image(), DISK_SECTORS)
    }
}

fn set<const N: usize>(all: [&[Tag]; N]) -> BTreeSet<Vec<Tag>> {
    all.into_iter().map(<[Tag]>::to_vec).collect()
}

#[test]
fn a_read_error_returns_no_data_and_passes() {
    let bench = bench(1);
    bench
        .disk
        .inject(Injection::next(Fault::ReadError).after(1));
    assert_eq!(bench.read(0, 2), [1, 1]);
    let (bytes, result) = bench.read_bytes(0, 2);
    assert!(result.is_err());
    assert!(bytes.iter().any(|&byte| byte != bytes[0]), "noise");
    assert_eq!(bench.read(0, 2), [1, 1]);
    assert_eq!(bench.disk.fault_log().len(), 1);
    assert!(!bench.disk.was_broken());
}

#[test]
fn a_range_can_be_unreadable() {
    let bench = bench(1);
    let bad = Injection::next(Fault::ReadError)
        .within(4096..4608)
        .times(u64::MAX);
    bench.disk.inject(bad);
    for _ in 0..3 {
        assert!(bench.read_bytes(0, 8).1.is_ok());
        assert!(bench.read_bytes(8, 1).1.is_err());
        assert!(bench.read_bytes(0, 16).1.is_err());
        assert!(bench.read_bytes(9, 1).1.is_ok());
    }
    bench.disk.clear_injections();
    assert!(bench.read_bytes(8, 1).1.is_ok());
}

#[test]
fn a_write_error_leaves_old_new_or_torn() {
    let run = |seed, leaves| {
        let bench = bench(seed);
        bench
            .disk
            .inject(Injection::next(Fault::WriteError { leaves }));
        assert!(bench.write(4, 2, 2).is_err());
        let seen = bench.read(3, 4);
        assert_eq!((seen[0], seen[3]), (1, 1), "its neighbours are untouched");
        assert_eq!(bench.read(3, 4), seen, "and it stays that way");
        seen[1..3].to_vec()
    };
    let all = |leaves| {
        (0..100)
            .map(|seed| run(seed, leaves))
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(all(WriteErrorLeaves::Old), set([&[1, 1]]));
    assert_eq!(all(WriteErrorLeaves::New), set([&[2, 2]]));
    let four = set([&[1, 1], &[1, 2], &[2, 1], &[2, 2]]);
    assert_eq!(all(WriteErrorLeaves::Torn), four);
    assert_eq!(all(WriteErrorLeaves::Any), four);
}

#[test]
fn no_flush_makes_a_failed_write_durable() {
    let outcomes: BTreeSet<Tag> = (0..60)
        .map(|seed| {
            let bench = bench(seed);
            let leaves = WriteErrorLeaves::New;
            bench
                .disk
                .inject(Injection::next(Fault::WriteError { leaves }));
            assert!(bench.write(0, 1, 2).is_err());
            assert!(bench.flush().is_ok());
            assert_eq!(bench.read(0, 1), [2]);
            bench.after_power_loss()[0]
        })
        .collect();
    assert_eq!(outcomes, BTreeSet::from([1, 2]));
}

#[test]
fn what_a_failed_flush_dropped_stays_dropped() {
    let mut outcomes = BTreeSet::new();
    let mut read_then_lost = false;
    for seed in 0..200 {
        let bench = bench(seed);
        assert!(bench.write(0, 1, 2).is_ok());
        bench.disk.inject(Injection::next(Fault::FlushError));
        assert!(bench.flush().is_err());
        // The next one succeeds, and is no proof of anything.
        assert!(bench.flush().is_ok());
        let read = bench.read(0, 1)[0];
        // What is written after the failure is covered again.
        assert!(bench.write(8, 1, 3).is_ok());
        assert!(bench.flush().is_ok());
        let after = bench.after_power_loss();
        assert_eq!(after[8], 3);
        outcomes.insert(after[0]);
        read_then_lost |= read == 2 && after[0] == 1;
    }
    assert_eq!(outcomes, BTreeSet::from([1, 2]));
    assert!(read_then_lost, "read back after a good flush, and yet lost");
}

#[test]
fn a_flush_beside_a_failed_one_proves_nothing() {
    let mut lost = 0;
    for seed in 0..100 {
        let bench = bench(seed);
        assert!(bench.write(0, 1, 2).is_ok());
        bench.disk.inject(Injection::next(Fault::FlushError));
        let (failing, passing) = (bench.device.flush(), bench.device.flush());
        let (failed, passed) = bench
            .world
            .block_on(0, async move { (failing.await, passing.await) });
        assert!(failed.is_err());
        assert!(passed.is_ok());
        lost += u32::from(bench.after_power_loss()[0] == 1);
    }
    assert!(lost > 5, "{lost}");
}

#[test]
fn a_failed_flush_does_not_touch_what_was_durable() {
    for seed in 0..50 {
        let bench = bench(seed);
        bench
            .disk
            .inject(Injection::next(Fault::FlushError).times(3));
        for _ in 0..3 {
            assert!(bench.flush().is_err());
        }
        assert_eq!(bench.after_power_loss(), [1; DISK_SECTORS as usize]);
    }
}

#[test]
fn delays_take_the_time_they_take() {
    let bench = bench(1);
    let year_ns = 365 * 24 * 3600 * 1_000_000_000;
    bench
        .disk
        .inject(Injection::next(Fault::Delay { ns: year_ns }));
    let start = bench.world.now();
    assert_eq!(bench.read(0, 1), [1]);
    assert!(bench.world.now().since(start) >= year_ns);
    let start = bench.world.now();
    assert_eq!(bench.read(0, 1), [1]);
    assert!(bench.world.now().since(start) < year_ns);
}

#[test]
fn slow_and_stuck_operations_happen_by_chance() {
    let bench = bench(1);
    bench.disk.set_faults(FaultConfig {
        slow: 0.3,
        slow_ns: 5_000_000..=5_000_000,
        stuck: 0.1,
        stuck_ns: 20_000_000_000..=20_000_000_000,
        ..FaultConfig::default()
    });
    let (mut slow, mut stuck) = (0, 0);
    for _ in 0..200 {
        let start = bench.world.now();
        bench.read(0, 1);
        match bench.world.now().since(start) {
            20_000_000_000.. => stuck += 1,
            5_000_000.. => slow += 1,
            _ => {}
        }
    }
    assert!((30..90).contains(&slow), "{slow}");
    assert!((5..40).contains(&stuck), "{stuck}");
    assert!(!bench.disk.was_broken());
}

#[test]
fn a_lost_write_is_acknowledged_flushed_and_gone() {
    let bench = bench(1);
    bench.disk.inject(Injection::next(Fault::LostWrite));
    assert!(bench.write(4, 2, 2).is_ok());
    assert!(bench.flush().is_ok());
    assert_eq!(bench.read(4, 2), [1, 1]);
    assert!(bench.disk.was_broken());
    assert_eq!(bench.after_power_loss(), [1; DISK_SECTORS as usize]);
}

#[test]
fn a_misdirected_write_lands_elsewhere() {
    for to_bytes in [None, Some(64 * SECTOR_BYTES)] {
        for seed in 0..20 {
            let bench = bench(seed);
            bench
                .disk
                .inject(Injection::next(Fault::MisdirectedWrite { to_bytes }));
            assert!(bench.write(4, 2, 2).is_ok());
            assert!(bench.flush().is_ok());
            let log = bench.disk.fault_log();
            let Fault::MisdirectedWrite { to_bytes: Some(to) } = log[0].fault else {
                panic!("{log:?}");
            };
            assert!(to_bytes.is_none_or(|chosen| chosen == to));
            assert_ne!(to, 4 * SECTOR_BYTES);
            let after = bench.after_power_loss();
            let twos = (0..DISK_SECTORS).filter(|sector| after[*sector as usize] == 2);
            let first = to / SECTOR_BYTES;
            assert_eq!(twos.collect::<Vec<_>>(), [first, first + 1]);
        }
    }
}

#[test]
fn a_misdirected_read_returns_another_place() {
    let bench = bench(1);
    assert!(bench.write(100, 1, 5).is_ok());
    let from_bytes = Some(100 * SECTOR_BYTES);
    bench
        .disk
        .inject(Injection::next(Fault::MisdirectedRead { from_bytes }));
    assert_eq!(bench.read(0, 1), [5]);
    assert_eq!(bench.read(0, 1), [1]);
    assert!(bench.disk.was_broken());
}

/// Bits in which the two differ.
fn distance(one: &[u8], two: &[u8]) -> u32 {
    let pairs = one.iter().zip(two);
    pairs.map(|(a, b)| (a ^ b).count_ones()).sum()
}

#[test]
fn a_bit_flips_on_the_way_from_the_disk() {
    let bench = bench(1);
    bench.disk.inject(Injection::next(Fault::FlipInRead));
    let sound = tagged(1, 8).to_vec();
    let (bytes, result) = bench.read_bytes(0, 8);
    assert_eq!(result, Ok(()));
    assert_eq!(distance(&bytes, &sound), 1);
    assert_eq!(bench.read_bytes(0, 8).0, sound, "the disk is sound");
}

#[test]
fn a_bit_flips_on_the_way_to_the_disk() {
    let bench = bench(1);
    bench.disk.inject(Injection::next(Fault::FlipInWrite));
    assert!(bench.write(0, 8, 2).is_ok());
    let sent = tagged(2, 8).to_vec();
    let first = bench.read_bytes(0, 8).0;
    assert_eq!(distance(&first, &sent), 1);
    assert_eq!(bench.read_bytes(0, 8).0, first, "it stays flipped");
}

#[test]
fn a_stored_bit_flips() {
    let bench = bench(1);
    bench.disk.inject(Injection::next(Fault::FlipStored));
    bench.read(0, 1);
    let log = bench.disk.fault_log();
    assert_eq!(log[0].fault, Fault::FlipStored);
    let all = bench.read_bytes(0, DISK_SECTORS).0;
    let sound = tagged(1, DISK_SECTORS).to_vec();
    assert_eq!(distance(&all, &sound), 1);
    let at = log[0].offset_bytes as usize;
    assert_ne!(all[at], sound[at], "the log names the byte");
    // And on demand.
    bench.disk.flip_stored_bit(at as u64 + 1, 0);
    let also = bench.disk.flip_random_stored_bit(&mut Rng::new(8)).unwrap();
    assert!(also < DISK_BYTES);
    let all = bench.read_bytes(0, DISK_SECTORS).0;
    assert_eq!(distance(&all, &sound), 3);
    bench.disk.corrupt(0, &[0xff; 512]);
    assert_eq!(bench.read_bytes(0, 1).0, [0xff; 512]);
}

#[test]
fn an_empty_disk_has_no_bits_to_flip() {
    let disk = SimDisk::new(DiskConfig::new(DISK_BYTES));
    assert_eq!(disk.flip_random_stored_bit(&mut Rng::new(1)), None);
}

#[test]
fn a_full_file_takes_overwrites_but_nothing_new() {
    let disk = SimDisk::new(DiskConfig {
        stored_max_bytes: Some(16 << 10),
        ..DiskConfig::new(DISK_BYTES)
    });
    let world = World::new(1);
    let device = world.platform(0).open(&disk);
    let bench = Bench {
        world,
        disk,
        device,
    };
    assert!(bench.write(0, 24, 1).is_ok());
    // Two pages, room for one: the first gets through, as with a short write.
    assert_eq!(bench.write(24, 16, 2), Err(ErrorKind::StorageFull));
    assert_eq!(bench.read(23, 10), [1, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
    assert_eq!(bench.write(800, 1, 3), Err(ErrorKind::StorageFull));
    assert!(bench.write(0, 24, 4).is_ok(), "overwriting works");
    assert!(bench.flush().is_ok());
    // Discards that read as zeros give space back.
    bench.disk.set_faults(FaultConfig {
        discard: flagstone_sim::DiscardMix::ZEROS,
        ..FaultConfig::default()
    });
    let freed = bench.device.discard(0, 4096);
    bench.world.block_on(0, freed).unwrap();
    assert!(bench.write(800, 1, 3).is_ok());
    assert_eq!(bench.write(0, 1, 5), Err(ErrorKind::StorageFull));
    bench.disk.set_stored_max_bytes(None);
    assert!(bench.write(0, 1, 5).is_ok());
}

#[test]
fn no_space_can_be_injected() {
    let bench = bench(1);
    bench.disk.inject(Injection::next(Fault::NoSpace));
    assert_eq!(bench.write(0, 4, 2), Err(ErrorKind::StorageFull));
    assert!(bench.write(0, 4, 2).is_ok());
}

/// With one kind of fault turned on, exactly that kind happens, at about the rate asked for.
#[test]
fn every_fault_happens_by_chance_and_only_where_it_is_on() {
    let broken = BrokenFaults::default;
    let with = |broken| FaultConfig {
        broken,
        ..FaultConfig::default()
    };
    let none = FaultConfig::default;
    type IsFault = fn(Fault) -> bool;
    #[rustfmt::skip]
    let cases: [(FaultConfig, IsFault); 11] = [
        (FaultConfig { read_error: 0.2, ..none() }, |f| f == Fault::ReadError),
        (FaultConfig { write_error: 0.2, ..none() }, |f| matches!(f, Fault::WriteError { .. })),
        (FaultConfig { flush_error: 0.2, ..none() }, |f| f == Fault::FlushError),
        (FaultConfig { discard_error: 0.2, ..none() }, |f| f == Fault::DiscardError),
        (FaultConfig { no_space: 0.2, ..none() }, |f| f == Fault::NoSpace),
        (with(BrokenFaults { lost_write: 0.2, ..broken() }), |f| f == Fault::LostWrite),
        (with(BrokenFaults { misdirected_write: 0.2, ..broken() }),
            |f| matches!(f, Fault::MisdirectedWrite { .. })),
        (with(BrokenFaults { misdirected_read: 0.2, ..broken() }),
            |f| matches!(f, Fault::MisdirectedRead { .. })),
        (with(BrokenFaults { flip_in_write: 0.2, ..broken() }), |f| f == Fault::FlipInWrite),
        (with(BrokenFaults { flip_in_read: 0.2, ..broken() }), |f| f == Fault::FlipInRead),
        (with(BrokenFaults { flip_stored: 0.05, ..broken() }), |f| f == Fault::FlipStored),
    ];
    for (faults, is_it) in cases {
        let bench = bench(4);
        bench.disk.set_faults(faults.clone());
        for _ in 0..100 {
            let _ = bench.write(0, 1, 1);
            let _ = bench.read_bytes(0, 1);
            let _ = bench.flush();
            let _ = bench.world.block_on(0, bench.device.discard(0, 512));
        }
        let log = bench.disk.fault_log();
        assert!((8..40).contains(&log.len()), "{} of {faults:?}", log.len());
        for record in &log {
            assert!(is_it(record.fault), "{record:?} of {faults:?}");
        }
        let breaks = faults.broken != BrokenFaults::default();
        assert_eq!(bench.disk.was_broken(), breaks, "{faults:?}");
    }
}
