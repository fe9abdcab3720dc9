//! Layers in front of a simulated disk: the same ones as in front of a real device, and a trace that tells all that happened.

use std::sync::Arc;

use flagstone_device::engine::EngineOptions;
use flagstone_platform::layers::{Layer, Layers, Operation, Outcome, PerOperation, Traced};
use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_sim::record::IoEvent;
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, DiskConfig, Fault, Injection, IoKind, SimDisk, SimPlatform,
    World, WorldConfig,
};

use crate::engine_support::{BLOCK, begin_on, named, write};

/// More than any of the runs has operations.
const TRACE: Layer = Layer::Trace {
    operations: 1 << 14,
};

fn disk() -> SimDisk {
    SimDisk::new(DiskConfig::new(256 << 20))
}

fn traced(layers: &Layers) -> Vec<Traced> {
    let kept = layers.trace().expect("one of them").read(0, usize::MAX);
    assert_eq!(kept.missed, 0);
    kept.operations
}

/// What was done to the disk by its own account, in order, and how it ended; nothing of what was under way at the end. Reads
/// are not in it.
fn recorded(disk: &SimDisk) -> Vec<(Operation, Option<bool>)> {
    let mut done: Vec<(u64, Operation, Option<bool>)> = Vec::new();
    for event in disk.take_recording() {
        let (id, operation) = match event {
            IoEvent::WriteSubmitted {
                id,
                offset_bytes,
                bytes,
            } => {
                let len_bytes = bytes.len() as u64;
                let write = Operation::Write {
                    offset_bytes,
                    len_bytes,
                };
                (id, write)
            }
            IoEvent::FlushSubmitted { id } => (id, Operation::Flush),
            IoEvent::DiscardSubmitted {
                id,
                offset_bytes,
                len_bytes,
            } => {
                let discard = Operation::Discard {
                    offset_bytes,
                    len_bytes,
                };
                (id, discard)
            }
            IoEvent::WriteCompleted { id, ok }
            | IoEvent::FlushCompleted { id, ok }
            | IoEvent::DiscardCompleted { id, ok } => {
                let of = done.iter_mut().find(|(other, ..)| *other == id);
                of.expect("it was submitted").2 = Some(ok);
                continue;
            }
            IoEvent::Mark { .. } => continue,
        };
        done.push((id, operation, None));
    }
    done.into_iter().map(|(_, what, ok)| (what, ok)).collect()
}

/// The same by the account of a trace.
fn changes(traced: &[Traced]) -> Vec<(Operation, Option<bool>)> {
    let changes = traced
        .iter()
        .filter(|traced| !matches!(traced.operation, Operation::Read { .. }));
    changes
        .map(|traced| {
            let ended = traced.ended.map(|ended| ended.outcome == Outcome::Done);
            (traced.operation, ended)
        })
        .collect()
}

/// What an engine does in its life: some is under way at any time.
async fn live(platform: SimPlatform, disk: SimDisk, layers: Arc<Layers>) {
    let device = platform.open(&disk).behind(layers);
    let engine = begin_on(&platform, device, EngineOptions::default()).await;
    let created = engine.create(named("v", 0)).await;
    let dvol = created.expect("creates");
    for round in 0..6 {
        let writes = (0..8).map(|at| write(&engine, dvol, (round + at * 3) * BLOCK, BLOCK));
        for written in flagstone_device::engine::join_all(writes).await {
            written.expect("writes");
        }
        engine.flush().await.expect("flushes");
        let pieces = engine.read(dvol, round * BLOCK, BLOCK).await;
        assert_eq!(pieces.expect("reads").len(), 1);
    }
    engine.checkpoint().await.expect("makes one");
    engine.stop().await.expect("stops");
}

#[test]
fn a_trace_tells_exactly_what_was_done_and_in_which_order() {
    for seed in 0..10 {
        let (disk, layers) = (disk(), Arc::new(Layers::new(&[TRACE])));
        let world = World::new(seed);
        disk.start_recording();
        let (platform, on) = (world.platform(0), disk.clone());
        world.block_on(0, live(platform, on, layers.clone()));
        let all = traced(&layers);
        assert_eq!(changes(&all), recorded(&disk), "seed {seed}");
        let counts = disk.counts();
        assert_eq!(all.len() as u64, counts.total());
        assert!(counts.reads > 6 && counts.flushes > 6 && counts.writes > 12);
        assert!(all.iter().all(|traced| traced.ended.is_some()));
        assert!(all.iter().map(|traced| traced.came).is_sorted());
        let now = world.now();
        for traced in &all {
            let took_ns = traced.ended.map_or(0, |ended| ended.took_ns);
            assert!(took_ns > 0 && traced.came.plus_ns(took_ns) <= now);
        }
    }
}

/// What was in flight when the node went down has no end, whatever the disk made of it; one of which nobody was told has.
#[test]
fn a_trace_of_a_crash_ends_with_what_was_in_flight() {
    let run = |seed: u64, point: CrashPoint| {
        let (disk, layers) = (disk(), Arc::new(Layers::new(&[TRACE])));
        let world = World::new(seed);
        disk.start_recording();
        world.crash_at(point);
        let (platform, on) = (world.platform(0), disk.clone());
        let over = world.run_task(0, live(platform, on, layers.clone()));
        assert!(over.is_none(), "it has crashed");
        let mut by_trace = changes(&traced(&layers));
        if point.moment == CrashMoment::Before {
            // It came to the trace, and no further.
            let last = by_trace.pop().expect("one");
            assert_eq!(last.1, None);
        }
        assert_eq!(by_trace, recorded(&disk), "seed {seed}, {point:?}");
        by_trace.iter().filter(|(_, ended)| ended.is_none()).count()
    };
    let mut in_flight = 0;
    for nth in [0, 1, 5, 17, 18, 19, 30, 31, 32, 33] {
        for moment in [
            CrashMoment::Before,
            CrashMoment::InFlight,
            CrashMoment::Completed,
        ] {
            let point = CrashPoint {
                nth,
                counting: Counting::Changes,
                moment,
            };
            in_flight += run(nth, point);
        }
    }
    assert!(in_flight >= 10, "{in_flight} were in flight");
}

/// Faults of the disk are failures of the operation; a layer lets one fail, and the disk never hears of it.
#[test]
fn failures_and_delays_are_traced_and_those_of_layers_never_reach_the_disk() {
    let each = |ns| PerOperation {
        reads: ns,
        writes: ns,
        flushes: ns,
        discards: ns,
    };
    let late = Layer::Latency {
        ns: each(5_000_000),
        jitter_percent: 0,
        seed: 0,
    };
    let no_discards = Layer::Errors {
        per_million: PerOperation {
            discards: 1_000_000,
            ..PerOperation::default()
        },
        seed: 0,
    };
    let layers = Arc::new(Layers::new(&[TRACE, late, no_discards]));
    let disk = disk();
    let world = World::with_config(WorldConfig::new(4).cores(2));
    let fault = Injection::next(Fault::ReadError).only(IoKind::Read);
    disk.inject(fault);
    for core in 0..2 {
        let platform = world.platform(core);
        let device = platform.open(&disk).behind(layers.clone());
        world.block_on(core, async move {
            let began = platform.now();
            let written = device.write(0, IoBuf::zeroed(4096)).await;
            written.1.expect("writes");
            let took_ns = platform.now().since(began);
            assert!(took_ns > 5_000_000, "{took_ns} ns");
            device.flush().await.expect("flushes");
            let read = device.read(0, IoBuf::zeroed(512)).await;
            assert_eq!(read.1.is_err(), core == 0);
            device.discard(0, 512).await.expect_err("is refused");
        });
    }
    assert_eq!(disk.counts().discards, 0);
    let all = traced(&layers);
    let ends: Vec<Outcome> = all
        .iter()
        .map(|traced| traced.ended.expect("it has ended").outcome)
        .collect();
    let (done, failed) = (Outcome::Done, Outcome::Failed);
    assert_eq!(ends, [done, done, failed, failed, done, done, done, failed]);
    let cores: Vec<u32> = all.iter().map(|traced| traced.core).collect();
    assert_eq!(cores, [0, 0, 0, 0, 1, 1, 1, 1]);
    let took = |traced: &Traced| traced.ended.map(|ended| ended.took_ns);
    for traced in &all {
        assert_eq!(traced.held_ns, 5_000_000);
        assert!(took(traced) >= Some(5_000_000));
    }
    assert_eq!(took(&all[3]), Some(5_000_000), "it never was begun");
}

/// Layers that change nothing change nothing: the same seed takes the same decisions.
#[test]
fn a_trace_disturbs_nothing() {
    let hash = |layers: Option<Layers>| {
        let (disk, world) = (disk(), World::new(11));
        let platform = world.platform(0);
        let device = platform.open(&disk);
        let device = match layers {
            Some(layers) => device.behind(Arc::new(layers)),
            None => device,
        };
        world.block_on(0, async move {
            for at in 0..20 {
                let written = device.write(at * 512, IoBuf::zeroed(512)).await;
                written.1.expect("writes");
            }
            device.flush().await.expect("flushes");
        });
        world.trace_hash()
    };
    assert_eq!(hash(None), hash(Some(Layers::new(&[TRACE]))));
}
