//! Random runs against the oracle of `support`: what the simulated disk returns and what it keeps
//! is always something the platform's contract allows, under every fault within the contract; and
//! the crash images of a recorded history are exactly what the contract allows.

use crate::support;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_sim::record::{IoEvent, RecordReader};
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, DiscardMix, DiskConfig, DiskImage, FaultConfig, Fill,
    LogReplay, Rng, SECTOR_BYTES, SimDisk, World, WorldConfig,
};
use proptest::prelude::*;
use support::{Oracle, Tag, tagged, tagged_bytes, tags, tags_of};

const SECTORS: u64 = 40;

#[derive(Clone, Debug)]
enum Step {
    Write {
        first: u64,
        sectors: u64,
    },
    /// A write whose future is dropped at once.
    Abandon {
        first: u64,
        sectors: u64,
    },
    Read {
        first: u64,
        sectors: u64,
    },
    Discard {
        first: u64,
        sectors: u64,
    },
    Flush,
    Wait {
        us: u64,
    },
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    (0..SECTORS, 1..=20u64).prop_map(|(first, sectors)| (first, sectors.min(SECTORS - first)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => range().prop_map(|(first, sectors)| Step::Write { first, sectors }),
        1 => range().prop_map(|(first, sectors)| Step::Abandon { first, sectors }),
        4 => range().prop_map(|(first, sectors)| Step::Read { first, sectors }),
        1 => range().prop_map(|(first, sectors)| Step::Discard { first, sectors }),
        3 => Just(Step::Flush),
        2 => (0..3_000u64).prop_map(|us| Step::Wait { us }),
    ]
}

/// A read as the test saw it: the event it was called after, the first sector, the tags returned
/// and the event it had returned by.
struct ReadSeen {
    called_at: usize,
    first: u64,
    tags: Vec<Tag>,
    returned_at: usize,
}

/// The number of the next mark in the recording. A read puts one before and one after itself, which
/// tells its place in the history.
#[derive(Clone, Default)]
struct Marks {
    next: Rc<RefCell<u64>>,
}

impl Marks {
    fn put(&self, disk: &SimDisk) -> u64 {
        let mut next = self.next.borrow_mut();
        *next += 1;
        disk.mark(*next);
        *next
    }
}

fn faults(failing: bool) -> FaultConfig {
    let faults = match failing {
        false => FaultConfig::default(),
        true => FaultConfig {
            read_error: 0.05,
            write_error: 0.05,
            flush_error: 0.1,
            no_space: 0.02,
            discard_error: 0.1,
            ..FaultConfig::sluggish()
        },
    };
    // The oracle knows one content for a discarded sector.
    FaultConfig {
        discard: DiscardMix::ZEROS,
        ..faults
    }
}

type Seen = Rc<RefCell<Vec<(u64, u64, Vec<Tag>, u64)>>>;

async fn run_steps(
    platform: impl Platform,
    device: flagstone_sim::SimDevice,
    steps: Vec<Step>,
    first_tag: Tag,
    marks: Marks,
    seen: Seen,
) {
    let mut tag = first_tag;
    for step in steps {
        tag += 1;
        match step {
            Step::Write { first, sectors } => {
                let _ = device
                    .write(first * SECTOR_BYTES, tagged(tag, sectors))
                    .await;
            }
            Step::Abandon { first, sectors } => {
                drop(device.write(first * SECTOR_BYTES, tagged(tag, sectors)));
            }
            Step::Read { first, sectors } => {
                let called = marks.put(device.disk());
                let buf = IoBuf::zeroed((sectors * SECTOR_BYTES) as usize);
                let (buf, result) = device.read(first * SECTOR_BYTES, buf).await;
                if result.is_ok() {
                    let returned = marks.put(device.disk());
                    seen.borrow_mut()
                        .push((called, first, tags(&buf), returned));
                }
            }
            Step::Discard { first, sectors } => {
                let len_bytes = sectors * SECTOR_BYTES;
                let _ = device.discard(first * SECTOR_BYTES, len_bytes).await;
            }
            Step::Flush => {
                let _ = device.flush().await;
            }
            Step::Wait { us } => platform.sleep_ns(us * 1_000).await,
        }
    }
}

/// Runs the steps, one task for each list, and crashes at the chosen I/O if it comes to that.
fn run(
    seed: u64,
    tasks: Vec<Vec<Step>>,
    failing: bool,
    crash_at: Option<u64>,
) -> (SimDisk, Vec<IoEvent>, Vec<ReadSeen>, Rng) {
    let config = DiskConfig::new(SECTORS * SECTOR_BYTES).faults(faults(failing));
    let disk = SimDisk::new(config);
    disk.start_recording();
    let world = World::with_config(WorldConfig::new(seed).cores(2));
    if let Some(nth) = crash_at {
        let moments = [
            CrashMoment::Before,
            CrashMoment::InFlight,
            CrashMoment::Completed,
        ];
        world.crash_at(CrashPoint {
            nth,
            counting: Counting::EveryIo,
            moment: moments[(seed % 3) as usize],
        });
    }
    let (marks, seen) = (Marks::default(), Seen::default());
    for (index, steps) in tasks.into_iter().enumerate() {
        let platform = world.platform(index % 2);
        let device = platform.open(&disk);
        let first_tag = (index as u64 + 1) * 1_000_000;
        let (marks, seen) = (marks.clone(), seen.clone());
        let task = run_steps(platform.clone(), device, steps, first_tag, marks, seen);
        platform.spawn(task);
    }
    world.run_until_idle();
    let rng = world.crash();
    let events = disk.take_recording();
    let place_of = |mark: u64| {
        let place = events
            .iter()
            .position(|event| *event == IoEvent::mark(mark));
        place.expect("every mark is in the recording")
    };
    let reads = seen
        .take()
        .into_iter()
        .map(|(called, first, tags, returned)| ReadSeen {
            called_at: place_of(called),
            first,
            tags,
            returned_at: place_of(returned),
        })
        .collect();
    (disk, events, reads, rng)
}

fn check_reads(events: &[IoEvent], reads: &[ReadSeen]) {
    for read in reads {
        let oracle = Oracle::of(&events[..read.returned_at]);
        for (index, tag) in read.tags.iter().enumerate() {
            let sector = read.first + index as u64;
            let allowed = oracle.readable(sector, read.called_at);
            assert!(
                allowed.contains(tag),
                "a read of sector {sector} gave {tag}, allowed are {allowed:?}"
            );
        }
    }
}

fn tasks() -> impl Strategy<Value = Vec<Vec<Step>>> {
    prop::collection::vec(prop::collection::vec(step(), 1..25), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Reads, and what is left after a power loss, are allowed; also when everything fails.
    #[test]
    fn the_disk_does_what_the_contract_allows(
        seed in any::<u64>(),
        tasks in tasks(),
        failing in any::<bool>(),
        crash_at in prop::option::of(0..80u64),
    ) {
        let (disk, events, reads, mut rng) = run(seed, tasks, failing, crash_at);
        check_reads(&events, &reads);
        let oracle = Oracle::of(&events);
        let before = disk.snapshot();
        for _ in 0..20 {
            disk.restore(&before);
            disk.power_loss(&mut rng);
            oracle.check(&disk.stable_image(), SECTORS);
        }
        disk.restore(&before);
        disk.process_killed(&mut rng);
        for (sector, tag) in tags_of(&disk.visible_image(), SECTORS).into_iter().enumerate() {
            let allowed = oracle.readable(sector as u64, events.len());
            prop_assert!(allowed.contains(&tag), "sector {} holds {}", sector, tag);
        }
    }

    /// The crash images of what was recorded are allowed at every moment.
    #[test]
    fn crash_images_of_a_recorded_run_are_allowed(
        seed in any::<u64>(),
        tasks in tasks(),
        failing in any::<bool>(),
    ) {
        let (_, events, _, mut rng) = run(seed, tasks, failing, None);
        let mut file = Vec::new();
        for event in &events {
            event.as_recorded().encode(&mut file);
        }
        let mut replay = LogReplay::new(DiskImage::new(Fill::Zeros));
        for event in RecordReader::new(&file[..]) {
            replay.apply(&event.unwrap()).unwrap();
            let seen = usize::try_from(replay.position()).unwrap();
            Oracle::of(&events[..seen]).check(&replay.images().sample(&mut rng), SECTORS);
        }
    }

    /// Over all crash images each sector takes exactly the values the definition allows, each
    /// combination of sectors included.
    #[test]
    fn crash_images_are_complete(events in small_history()) {
        const SMALL: u64 = 4;
        let images = LogReplay::images_after(DiskImage::new(Fill::Zeros), &events).unwrap();
        let Ok(outcomes) = images.sector_subsets(12) else {
            return Ok(());
        };
        let outcomes: BTreeSet<Vec<Tag>> = outcomes.map(|image| tags_of(&image, SMALL)).collect();
        let oracle = Oracle::of(&events);
        let mut allowed: BTreeSet<Vec<Tag>> = BTreeSet::from([Vec::new()]);
        for sector in 0..SMALL {
            let here = oracle.after_power_loss(sector);
            let longer = allowed.iter().flat_map(|tags| {
                here.iter().map(move |tag| [&tags[..], &[*tag]].concat())
            });
            allowed = longer.collect();
        }
        prop_assert_eq!(outcomes, allowed);
    }
}

/// Histories on four sectors in which overlapping writes are never in flight together (there the
/// crash images are documented to be fewer than the definition allows).
fn small_history() -> impl Strategy<Value = Vec<IoEvent>> {
    #[derive(Clone, Debug)]
    enum Act {
        Submit(u64, u64),
        Complete(usize, bool),
        StartFlush,
        EndFlush(usize, bool),
    }
    let ok = prop::bool::weighted(0.9);
    let act = prop_oneof![
        4 => (0..4u64, 1..=3u64).prop_map(|(first, n)| Act::Submit(first, n.min(4 - first))),
        4 => (any::<usize>(), ok).prop_map(|(which, ok)| Act::Complete(which, ok)),
        2 => Just(Act::StartFlush),
        2 => (any::<usize>(), ok).prop_map(|(which, ok)| Act::EndFlush(which, ok)),
    ];
    prop::collection::vec(act, 0..30).prop_map(|acts| {
        let mut events = Vec::new();
        let mut writes: Vec<(u64, u64, u64)> = Vec::new();
        let mut flushes: Vec<u64> = Vec::new();
        for (index, act) in acts.into_iter().enumerate() {
            let id = index as u64 + 1;
            match act {
                Act::Submit(first, sectors) => {
                    let apart = |(_, other, n): &(u64, u64, u64)| {
                        first + sectors <= *other || other + n <= first
                    };
                    if writes.iter().all(apart) {
                        writes.push((id, first, sectors));
                        events.push(IoEvent::WriteSubmitted {
                            id,
                            offset_bytes: first * SECTOR_BYTES,
                            bytes: tagged_bytes(id, sectors).into(),
                        });
                    }
                }
                Act::Complete(which, ok) if !writes.is_empty() => {
                    let (id, ..) = writes.remove(which % writes.len());
                    events.push(IoEvent::WriteCompleted { id, ok });
                }
                Act::StartFlush => {
                    flushes.push(id);
                    events.push(IoEvent::FlushSubmitted { id });
                }
                Act::EndFlush(which, ok) if !flushes.is_empty() => {
                    let id = flushes.remove(which % flushes.len());
                    events.push(IoEvent::FlushCompleted { id, ok });
                }
                _ => {}
            }
        }
        events
    })
}
