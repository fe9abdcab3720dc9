//! Each rule of the simulated disk, seen through a device as code under test sees it.

use crate::support;

use std::collections::BTreeSet;
use std::io::ErrorKind;

use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, DiscardMix, DiskConfig, FaultConfig, Fill, Latency, RunEnd,
    SECTOR_BYTES, SimDevice, SimDisk, World,
};
use support::{Tag, tagged, tags, tags_of};

const DISK_BYTES: u64 = 1 << 20;

fn disk() -> SimDisk {
    SimDisk::new(DiskConfig::new(DISK_BYTES))
}

async fn write(device: &SimDevice, sector: u64, sectors: u64, tag: Tag) {
    let written = device.write(sector * SECTOR_BYTES, tagged(tag, sectors));
    written.await.1.expect("the write succeeds");
}

async fn read(device: &SimDevice, sector: u64, sectors: u64) -> Vec<Tag> {
    let buf = IoBuf::zeroed((sectors * SECTOR_BYTES) as usize);
    let (buf, result) = device.read(sector * SECTOR_BYTES, buf).await;
    result.expect("the read succeeds");
    tags(&buf)
}

/// Runs `act` in a world of each seed, loses power, and gives the first sectors' outcomes.
fn outcomes<F: Future<Output = ()> + 'static>(
    seeds: u64,
    sectors: u64,
    act: impl Fn(SimDevice) -> F,
) -> BTreeSet<Vec<Tag>> {
    let run = |seed| {
        let disk = disk();
        let world = World::new(seed);
        let device = world.platform(0).open(&disk);
        world.block_on(0, act(device));
        disk.power_loss(&mut world.crash());
        tags_of(&disk.stable_image(), sectors)
    };
    (0..seeds).map(run).collect()
}

fn set<const N: usize>(all: [&[Tag]; N]) -> BTreeSet<Vec<Tag>> {
    all.into_iter().map(<[Tag]>::to_vec).collect()
}

#[test]
fn unflushed_is_kept_lost_or_torn_and_flushed_is_kept() {
    let unflushed = outcomes(
        100,
        2,
        |device| async move { write(&device, 0, 2, 7).await },
    );
    assert_eq!(unflushed, set([&[0, 0], &[7, 0], &[0, 7], &[7, 7]]));
    let flushed = outcomes(100, 2, |device| async move {
        write(&device, 0, 2, 7).await;
        device.flush().await.unwrap();
    });
    assert_eq!(flushed, set([&[7, 7]]));
}

#[test]
fn a_flush_does_not_cover_what_completes_while_it_runs() {
    let seen = outcomes(200, 1, |device| async move {
        let flush = device.flush();
        write(&device, 0, 1, 7).await;
        flush.await.unwrap();
    });
    assert_eq!(seen, set([&[0], &[7]]));
}

#[test]
fn unflushed_writes_persist_in_any_order() {
    let seen = outcomes(200, 2, |device| async move {
        write(&device, 0, 1, 1).await;
        write(&device, 1, 1, 2).await;
    });
    assert!(seen.contains(&vec![0, 2]), "the later one alone: {seen:?}");
    assert_eq!(seen.len(), 4);
}

#[test]
fn an_overwrite_may_leave_either_or_nothing() {
    let seen = outcomes(200, 1, |device| async move {
        write(&device, 0, 1, 1).await;
        write(&device, 0, 1, 2).await;
    });
    assert_eq!(seen, set([&[0], &[1], &[2]]));
}

#[test]
fn writes_in_flight_together_complete_in_any_order() {
    let mut orders = BTreeSet::new();
    for seed in 0..50 {
        let disk = disk();
        disk.start_recording();
        let world = World::new(seed);
        let device = world.platform(0).open(&disk);
        let first = device.write(0, tagged(1, 1));
        let second = device.write(512, tagged(2, 1));
        world.block_on(0, async move {
            first.await.1.unwrap();
            second.await.1.unwrap();
        });
        let events = disk.take_recording();
        orders.insert(format!("{:?}", events[2]));
    }
    assert_eq!(orders.len(), 2);
}

#[test]
fn a_read_returns_the_newest_completed_write() {
    let world = World::new(1);
    let device = world.platform(0).open(&disk());
    let other = world.platform(0).open(device.disk());
    let seen = world.block_on(0, async move {
        write(&device, 0, 8, 1).await;
        device.flush().await.unwrap();
        write(&device, 2, 3, 2).await;
        write(&device, 3, 1, 3).await;
        read(&other, 0, 8).await
    });
    assert_eq!(seen, [1, 1, 2, 3, 2, 1, 1, 1]);
}

#[test]
fn a_read_beside_a_write_returns_either() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let world = World::new(seed);
        let device = world.platform(0).open(&disk());
        seen.insert(world.block_on(0, async move {
            let writing = device.write(0, tagged(1, 2));
            let tags = read(&device, 0, 2).await;
            writing.await.1.unwrap();
            assert_eq!(read(&device, 0, 2).await, [1, 1]);
            tags
        }));
    }
    assert!(seen.contains(&vec![0, 0]));
    assert!(seen.contains(&vec![1, 1]));
    assert!(seen.contains(&vec![0, 1]));
}

#[test]
fn a_read_around_a_write_returns_either() {
    let slow_reads = DiskConfig {
        latency: Latency {
            read_ns: 9_000_000..=9_000_000,
            ..Latency::default()
        },
        ..DiskConfig::new(DISK_BYTES)
    };
    let seen: BTreeSet<Vec<Tag>> = (0..30)
        .map(|seed| {
            let world = World::new(seed);
            let device = world.platform(0).open(&SimDisk::new(slow_reads.clone()));
            world.block_on(0, async move {
                let reading = device.read(0, IoBuf::zeroed(1024));
                // Begins and completes while the read is in flight.
                write(&device, 0, 2, 1).await;
                tags(&reading.await.0)
            })
        })
        .collect();
    assert_eq!(seen, set([&[0, 0], &[1, 1]]));
}

#[test]
fn an_operation_goes_on_when_its_future_is_dropped() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let world = World::new(seed);
        let platform = world.platform(0);
        let device = platform.open(&disk());
        seen.insert(world.block_on(0, async move {
            drop(device.write(0, tagged(1, 2)));
            drop(device.read(0, IoBuf::zeroed(512)));
            platform.sleep_ns(1_000_000).await;
            read(&device, 0, 2).await
        }));
    }
    // Cut short or complete; "complete" is by far the most likely.
    assert_eq!(seen, set([&[0, 0], &[1, 0], &[0, 1], &[1, 1]]));
}

#[test]
fn a_killed_process_loses_nothing_that_completed() {
    for seed in 0..50 {
        let disk = disk();
        let world = World::new(seed);
        let device = world.platform(0).open(&disk);
        world.block_on(0, async move {
            write(&device, 0, 2, 7).await;
            drop(device.write(SECTOR_BYTES, tagged(8, 1)));
        });
        disk.process_killed(&mut world.crash());
        let seen = tags_of(&disk.visible_image(), 2);
        assert!(seen == [7, 7] || seen == [7, 8], "{seen:?}");
    }
}

#[test]
fn crashes_come_at_the_chosen_operation_and_moment() {
    // Write, flush, write, flush: what must and what can't be there, crash by crash.
    let run = |nth, moment, seed| {
        let disk = disk();
        let world = World::new(seed);
        let device = world.platform(0).open(&disk);
        world.crash_at(CrashPoint {
            nth,
            counting: Counting::Changes,
            moment,
        });
        let ended = world.run_task(0, async move {
            read(&device, 0, 1).await;
            write(&device, 0, 1, 1).await;
            device.flush().await.unwrap();
            write(&device, 0, 1, 2).await;
            device.flush().await.unwrap();
        });
        assert_eq!(ended.is_none(), nth < 4);
        assert_eq!(world.changes_started(), nth.min(3) + 1);
        assert_eq!(world.ios_started(), nth.min(3) + 2);
        disk.power_loss(&mut world.crash());
        tags_of(&disk.stable_image(), 1)
    };
    let all = |nth, moment| -> BTreeSet<Vec<Tag>> {
        (0..40).map(|seed| run(nth, moment, seed)).collect()
    };
    use CrashMoment::{Before, Completed, InFlight};
    assert_eq!(all(0, Before), set([&[0]]));
    assert_eq!(all(0, InFlight), set([&[0], &[1]]));
    assert_eq!(all(0, Completed), set([&[0], &[1]]));
    assert_eq!(all(1, Before), set([&[0], &[1]]));
    assert_eq!(all(1, InFlight), set([&[0], &[1]]));
    assert_eq!(all(1, Completed), set([&[1]]));
    assert_eq!(all(2, Before), set([&[1]]));
    assert_eq!(all(2, InFlight), set([&[1], &[2]]));
    assert_eq!(all(3, Before), set([&[1], &[2]]));
    assert_eq!(all(3, Completed), set([&[2]]));
    assert_eq!(all(4, Before), set([&[2]]));
}

#[test]
fn after_a_crash_the_disk_hears_nothing_more() {
    let disk = disk();
    let world = World::new(1);
    let device = world.platform(0).open(&disk);
    world.crash_at(CrashPoint {
        nth: 0,
        counting: Counting::EveryIo,
        moment: CrashMoment::Before,
    });
    world.spawn(0, async move {
        // All in one poll: the first one crashes the node, the others must not get through.
        let all = [0, 1, 2].map(|sector| device.write(sector * SECTOR_BYTES, tagged(1, 1)));
        for one in all {
            one.await.1.unwrap();
        }
    });
    assert_eq!(world.run_until_idle(), RunEnd::Crashed);
    drop(world);
    assert_eq!(disk.counts().total(), 0);
    assert!(disk.volatile().is_empty());
}

#[test]
fn one_moment_can_be_tried_with_many_outcomes() {
    let disk = disk();
    let world = World::new(3);
    let device = world.platform(0).open(&disk);
    world.block_on(0, async move {
        write(&device, 0, 1, 1).await;
        write(&device, 1, 1, 2).await;
    });
    let mut rng = world.crash();
    let moment = disk.snapshot();
    let expected = set([&[0, 0], &[1, 0], &[0, 2], &[1, 2]]);
    let enumerated = moment.crash_images().subsets(2).unwrap();
    let enumerated: BTreeSet<_> = enumerated.map(|image| tags_of(&image, 2)).collect();
    assert_eq!(enumerated, expected);
    assert!(moment.crash_images().subsets(1).is_err());
    let mut drawn = BTreeSet::new();
    for _ in 0..100 {
        disk.restore(&moment);
        disk.power_loss(&mut rng);
        drawn.insert(tags_of(&disk.stable_image(), 2));
    }
    assert_eq!(drawn, expected);
    let images = moment.crash_images();
    assert_eq!(tags_of(&images.nothing_survives(), 2), [0, 0]);
    assert_eq!(tags_of(&images.everything_survives(), 2), [1, 2]);
}

#[test]
fn a_fork_goes_its_own_way() {
    let one = disk();
    let world = World::new(1);
    let device = world.platform(0).open(&one);
    world.block_on(0, async move { write(&device, 0, 1, 1).await });
    let two = one.fork();
    let device = world.platform(0).open(&two);
    world.block_on(0, async move { write(&device, 0, 1, 2).await });
    assert_eq!(tags_of(&one.visible_image(), 1), [1]);
    assert_eq!(tags_of(&two.visible_image(), 1), [2]);
}

#[test]
#[should_panic(expected = "in use")]
fn power_is_not_lost_under_a_running_world() {
    let disk = disk();
    let world = World::new(1);
    let _device = world.platform(0).open(&disk);
    disk.power_loss(&mut flagstone_sim::Rng::new(1));
}

#[test]
#[should_panic(expected = "power_loss or process_killed first")]
fn what_was_in_flight_has_to_be_settled() {
    let disk = disk();
    let world = World::new(1);
    let device = world.platform(0).open(&disk);
    drop(device.write(0, tagged(1, 1)));
    drop(world);
    World::new(2).platform(0).open(&disk);
}

#[test]
fn a_fresh_device_holds_noise_if_it_shall() {
    let noisy = SimDisk::new(DiskConfig::new(DISK_BYTES).fill(Fill::Noise(9)));
    let read_all = |seed| {
        let world = World::new(seed);
        let device = world.platform(0).open(&noisy);
        world.block_on(0, async move {
            let (buf, result) = device.read(0, IoBuf::zeroed(8192)).await;
            result.unwrap();
            buf.to_vec()
        })
    };
    assert_eq!(read_all(1), read_all(2), "it is the same noise each time");
    assert!(read_all(1)[4096..].iter().any(|&byte| byte != 0));
}

#[test]
fn huge_disks_cost_what_is_written() {
    let disk = SimDisk::new(DiskConfig::new(1 << 50));
    let world = World::new(1);
    let device = world.platform(0).open(&disk);
    assert_eq!(device.size_bytes(), 1 << 50);
    let last = (1 << 50) - 4096;
    let seen = world.block_on(0, async move {
        write(&device, last / SECTOR_BYTES, 8, 5).await;
        device.flush().await.unwrap();
        device.discard(0, 1 << 49).await.unwrap();
        read(&device, last / SECTOR_BYTES, 8).await
    });
    assert_eq!(seen, [5; 8]);
    assert_eq!(disk.stable_image().stored_pages(), 1);
}

#[test]
fn ranges_beyond_the_end_are_errors() {
    let disk = disk();
    let world = World::new(1);
    let device = world.platform(0).open(&disk);
    world.block_on(0, async move {
        for offset_bytes in [DISK_BYTES - 512, DISK_BYTES, u64::MAX - 511] {
            let (_, result) = device.read(offset_bytes, IoBuf::zeroed(1024)).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
            let (_, result) = device.write(offset_bytes, tagged(1, 2)).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
            let result = device.discard(offset_bytes, 1024).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    });
    assert!(disk.volatile().is_empty());
}

#[test]
#[should_panic(expected = "no multiple of 512")]
fn odd_offsets_panic() {
    let world = World::new(1);
    let device = world.platform(0).open(&disk());
    drop(device.write(100, tagged(1, 1)));
}

#[test]
#[should_panic(expected = "not aligned")]
fn memory_that_direct_io_refuses_panics() {
    let world = World::new(1);
    let device = world.platform(0).open(&disk());
    let buf = IoBuf::zeroed(4096).narrow(100..612);
    drop(device.write(0, buf));
}

#[test]
#[should_panic(expected = "buffer of its own")]
fn reading_into_shared_memory_panics() {
    let world = World::new(1);
    let device = world.platform(0).open(&disk());
    let buf = IoBuf::zeroed(512);
    let _other = buf.clone();
    drop(device.read(0, buf));
}

#[test]
fn discards_do_what_they_are_set_to() {
    let discard = |mix: DiscardMix, seed| {
        let faults = FaultConfig {
            discard: mix,
            ..FaultConfig::default()
        };
        let world = World::new(seed);
        let disk = SimDisk::new(DiskConfig::new(DISK_BYTES).faults(faults));
        let device = world.platform(0).open(&disk);
        world.block_on(0, async move {
            write(&device, 0, 16, 1).await;
            device.flush().await.unwrap();
            let result = device.discard(8 * SECTOR_BYTES, 4096).await;
            let (buf, read) = device.read(0, IoBuf::zeroed(8192)).await;
            read.unwrap();
            let kept = tags(&buf[..4096]);
            assert_eq!(kept, [1; 8], "only the range is touched");
            (result.map_err(|error| error.kind()), buf[4096..].to_vec())
        })
    };
    let ones = tagged(1, 8).to_vec();
    assert_eq!(discard(DiscardMix::ZEROS, 1), (Ok(()), vec![0; 4096]));
    assert_eq!(discard(DiscardMix::KEEP, 1), (Ok(()), ones.clone()));
    let (result, noise) = discard(DiscardMix::NOISE, 1);
    assert!(result.is_ok());
    assert!(noise != ones && noise != vec![0; 4096]);
    let (result, kept) = discard(DiscardMix::UNSUPPORTED, 1);
    assert_eq!((result, kept), (Err(ErrorKind::Unsupported), ones.clone()));
    let kinds: BTreeSet<u8> = (0..60)
        .map(|seed| match discard(DiscardMix::default(), seed).1 {
            bytes if bytes == ones => 0,
            bytes if bytes == vec![0; 4096] => 1,
            _ => 2,
        })
        .collect();
    assert_eq!(kinds.len(), 3, "by default all of them happen");
}

#[test]
fn a_discard_is_volatile_until_flushed() {
    let seen: BTreeSet<Vec<Tag>> = (0..100)
        .map(|seed| {
            let faults = FaultConfig {
                discard: DiscardMix::ZEROS,
                ..FaultConfig::default()
            };
            let disk = SimDisk::new(DiskConfig::new(DISK_BYTES).faults(faults));
            let world = World::new(seed);
            let device = world.platform(0).open(&disk);
            world.block_on(0, async move {
                write(&device, 0, 8, 1).await;
                device.flush().await.unwrap();
                device.discard(0, 4096).await.unwrap();
            });
            disk.power_loss(&mut world.crash());
            tags_of(&disk.stable_image(), 8)
        })
        .collect();
    assert!(seen.contains(&vec![0; 8]));
    assert!(seen.contains(&vec![1; 8]));
    assert!(seen.len() > 2, "torn as well");
}

#[test]
fn latencies_are_those_of_the_configuration() {
    let latency = Latency {
        read_ns: 100_000..=100_000,
        write_ns: 200_000..=200_000,
        flush_ns: 300_000..=300_000,
        discard_ns: 400_000..=400_000,
        per_kib_ns: 1_000,
    };
    let config = DiskConfig {
        latency,
        ..DiskConfig::new(DISK_BYTES)
    };
    let mut quiet = flagstone_sim::WorldConfig::new(1);
    quiet.poll_cost_ns = 0..=0;
    let world = World::with_config(quiet);
    let device = world.platform(0).open(&SimDisk::new(config));
    let start = world.now();
    world.block_on(0, async move {
        write(&device, 0, 8, 1).await;
        read(&device, 0, 8).await;
        device.flush().await.unwrap();
        device.discard(0, 4096).await.unwrap();
    });
    assert_eq!(world.now().since(start), 1_008_000);
}
