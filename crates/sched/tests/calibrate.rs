//! Devices of known speed, in virtual time: what is found out about them.

use std::io;
use std::rc::Rc;

use flagstone_platform::layers::{Layer, Layers, Operation, PerOperation};
use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_sched::calibrate::{Ask, Fitted, Load, Measured, Region, fit};
use flagstone_sim::{SimPlatform, World, WorldConfig};

const SECOND_NS: u64 = 1_000_000_000;
const SIZE_BYTES: u64 = 1 << 30;
const KIB: u64 = 1 << 10;

/// Nothing but layers.
#[derive(Clone)]
struct Layered {
    platform: SimPlatform,
    layers: Rc<Layers>,
}

impl Layered {
    fn new(platform: &SimPlatform, layers: &[Layer]) -> Layered {
        Layered {
            platform: platform.clone(),
            layers: Rc::new(Layers::new(layers)),
        }
    }

    async fn pass(self, operation: Operation) -> io::Result<()> {
        let verdict = self.layers.begin(self.platform.now(), 0, operation);
        self.platform.sleep_until(verdict.until).await;
        match verdict.fails {
            false => Ok(()),
            true => Err(io::Error::other("a layer lets it fail")),
        }
    }
}

impl BlockDevice for Layered {
    fn size_bytes(&self) -> u64 {
        SIZE_BYTES
    }

    fn read(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let len_bytes = buf.len() as u64;
        assert!(offset_bytes + len_bytes <= SIZE_BYTES, "behind the end");
        let pass = self.clone().pass(Operation::Read {
            offset_bytes,
            len_bytes,
        });
        async move { (buf, pass.await) }
    }

    fn write(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let len_bytes = buf.len() as u64;
        assert!(offset_bytes + len_bytes <= SIZE_BYTES, "behind the end");
        let pass = self.clone().pass(Operation::Write {
            offset_bytes,
            len_bytes,
        });
        async move { (buf, pass.await) }
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static {
        self.clone().pass(Operation::Flush)
    }

    fn discard(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        self.clone().pass(Operation::Discard {
            offset_bytes,
            len_bytes,
        })
    }

    fn preallocate(&self, _: u64, _: u64) -> impl Future<Output = io::Result<()>> + 'static {
        std::future::ready(Ok(()))
    }

    fn is_allocated(&self, _: u64, _: u64) -> bool {
        true
    }
}

fn ceiling(reads: u64, writes: u64, flushes: u64, bytes_per_second: u64) -> Layer {
    Layer::Ceiling {
        per_second: PerOperation {
            reads,
            writes,
            flushes,
            discards: 0,
        },
        bytes_per_second,
    }
}

fn latency(ns: u64) -> Layer {
    Layer::Latency {
        ns: PerOperation {
            reads: ns,
            writes: ns,
            flushes: 0,
            discards: 0,
        },
        jitter_percent: 20,
        seed: 1,
    }
}

const WHOLE: Region = Region {
    first_bytes: 0,
    end_bytes: SIZE_BYTES,
};

fn load(ask: Ask, len_bytes: u64, depth: u32) -> Load {
    Load {
        ask,
        len_bytes,
        depth,
        run_ns: SECOND_NS / 2,
    }
}

/// All the loads, one after the other.
fn run(layers: Vec<Layer>, region: Region, loads: Vec<Load>) -> io::Result<Vec<Measured>> {
    let world = World::with_config(WorldConfig {
        poll_cost_ns: 100..=300,
        timer_late_ns: 0..=1_000,
        ..WorldConfig::new(5)
    });
    let platform = world.platform(0);
    world.block_on(0, async move {
        let device = Layered::new(&platform, &layers);
        let payload = IoBuf::zeroed((256 * KIB) as usize);
        let mut points = Vec::new();
        for load in loads {
            points.push(load.run(&platform, &device, region, &payload).await?);
        }
        Ok(points)
    })
}

fn all_loads() -> Vec<Load> {
    let mut loads = Vec::new();
    for ask in [Ask::Reads, Ask::Writes] {
        for len_bytes in [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB] {
            loads.extend([1, 4, 16, 64].map(|depth| load(ask, len_bytes, depth)));
        }
    }
    loads.push(load(Ask::WritesAndFlushes, 4 * KIB, 16));
    loads
}

fn fitted(layers: Vec<Layer>) -> Fitted {
    let points = run(layers, WHOLE, all_loads()).expect("nothing fails");
    fit(&points).expect("there are single blocks")
}

fn assert_near(found: u64, expected: u64, what: &str) {
    let off = found.abs_diff(expected) as f64 / expected as f64;
    assert!(off <= 0.1, "{what}: {found}, expected about {expected}");
}

#[test]
fn a_ceiling_is_found_within_a_tenth() {
    let layers = vec![ceiling(20_000, 10_000, 500, 200 << 20), latency(400_000)];
    let fitted = fitted(layers);
    let suggested = fitted.suggested().expect("reads and writes");
    assert_near(suggested.reads, 20_000, "reads");
    // Each is a write of its data and its part of one of the journal.
    assert_near(suggested.writes, 8_000, "writes");
    assert_near(suggested.flushes, 500, "flushes");
    assert_near(suggested.bytes, 200 << 20, "bytes");
    // 20,000 a second of which each takes 0.45 ms are nine at a time.
    assert_eq!(fitted.depth, 16);
}

#[test]
fn flushes_that_hold_up_nothing_cost_nothing() {
    let fitted = fitted(vec![ceiling(20_000, 10_000, 0, 0), latency(100_000)]);
    assert_eq!(fitted.flush_ns, Some(0));
    assert_eq!(fitted.suggested().expect("both").flushes, 0);
}

#[test]
fn latency_is_what_the_device_takes() {
    let points = run(
        vec![latency(1_000_000)],
        WHOLE,
        vec![load(Ask::Reads, 4 * KIB, 1), load(Ask::Reads, 4 * KIB, 10)],
    )
    .expect("nothing fails");
    for point in &points {
        // A fifth more or less by chance.
        assert!((950_000..1_050_000).contains(&point.p50_ns), "{point:?}");
        assert!((1_150_000..1_300_000).contains(&point.p99_ns), "{point:?}");
    }
    assert!(points[1].per_second > 9.5 * points[0].per_second);
}

#[test]
fn the_first_failure_ends_a_load() {
    let errors = Layer::Errors {
        per_million: PerOperation {
            reads: 1_000,
            ..PerOperation::default()
        },
        seed: 1,
    };
    let layers = vec![errors, latency(100_000)];
    let error = run(layers, WHOLE, vec![load(Ask::Reads, 4 * KIB, 8)]);
    assert_eq!(
        error.expect_err("fails").to_string(),
        "a layer lets it fail"
    );
}

#[test]
fn loads_that_make_no_sense_are_refused() {
    let small = Region {
        first_bytes: 4096,
        end_bytes: 12288,
    };
    let cases = [
        (WHOLE, load(Ask::Reads, 4 * KIB, 0), "at least one request"),
        (WHOLE, load(Ask::Reads, 0, 1), "whole blocks"),
        (WHOLE, load(Ask::Reads, 1000, 1), "whole blocks"),
        (
            small,
            load(Ask::Reads, 16 * KIB, 1),
            "smaller than one request",
        ),
        (WHOLE, load(Ask::Writes, 512 * KIB, 1), "less to write"),
    ];
    for (region, load, expected) in cases {
        let error = run(Vec::new(), region, vec![load]).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
    }
}
