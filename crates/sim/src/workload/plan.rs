//! What a seed means: the device, the node, the load and what goes wrong.
//!
//! Everything is drawn here, before anything runs, so that a plan can be printed beside a failure.

use std::ops::RangeInclusive;

use flagstone_device::engine::{EngineOptions, FormatOptions};
use flagstone_types::unit::SEGMENT_SIZE;

use super::scenes::Scene;
use crate::disk::{DiskConfig, Latency};
use crate::fault::{BrokenFaults, FaultConfig};
use crate::image::Fill;
use crate::rng::Rng;
use crate::world::WorldConfig;

const MIB: u64 = 1 << 20;

/// Which faults a run has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultClass {
    /// The disk does what it should.
    None,
    /// Some operations take long.
    Sluggish,
    /// Operations fail, within the contract.
    Failing,
    /// Only flushes fail.
    Fencing,
    /// The disk breaks its contract.
    Broken,
    /// Everything within the contract at once: operations take long or fail, flushes often.
    Mixed,
    /// Everything there is at once: the same, and the contract is broken.
    Hostile,
}

/// What the clients are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Everything there is, now and then.
    Mixed,
    /// The same in many short lives: what one crash leaves meets the next one.
    Short,
    /// Mostly unstable writes of whole blocks, many of them: the ring goes round.
    Burst,
    /// Mostly snapshots, clones, rollbacks, deletions, with writes between.
    Layers,
}

/// A run. See the module's page.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Everything else follows from it.
    pub seed: u64,
    /// The clients play this, instead of anything there is.
    pub scene: Option<Scene>,
    /// Cores of the node.
    pub cores: usize,
    /// Journals of the device.
    pub journals: u16,
    /// Blocks in each ring.
    pub ring_blocks: u32,
    /// Bytes of the device.
    pub device_bytes: u64,
    /// How to run the journals.
    pub options: EngineOptions,
    /// What goes wrong.
    pub faults: FaultClass,
    /// What the clients are like.
    pub style: Style,
    /// The disk.
    pub disk: DiskConfig,
    /// How often the node is started.
    pub lives: usize,
    /// Clients of each journal.
    pub clients: usize,
    /// Operations of each client in each life.
    pub operations: u64,
    /// Clients write so much that the device gets full.
    pub fills_up: bool,
    /// One of so many operations is given up before it is answered; zero: none.
    pub gives_up: u64,
    /// In the middle of each life a journal changes its core.
    pub hands_over: bool,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut rng = Rng::stream(seed, 100);
        let faults = match rng.below(20) {
            0..9 => FaultClass::None,
            9..12 => FaultClass::Sluggish,
            12..16 => FaultClass::Failing,
            16..18 => FaultClass::Fencing,
            _ => FaultClass::Broken,
        };
        Plan::with_faults(seed, faults)
    }

    /// The plan of a seed with all kinds of faults at once: two in three of them within the contract.
    /// The seed means the same run as in [`Plan::of`] but for the faults.
    pub fn of_all_faults(seed: u64) -> Plan {
        let mut rng = Rng::stream(seed, 107);
        let faults = match rng.below(3) {
            0..2 => FaultClass::Mixed,
            _ => FaultClass::Hostile,
        };
        Plan::with_faults(seed, faults)
    }

    /// The plan of a seed of a scene.
    pub fn of_scene(scene: Scene, seed: u64) -> Plan {
        scene.plan(seed)
    }

    /// The plan of a seed, with faults of this class.
    pub fn with_faults(seed: u64, faults: FaultClass) -> Plan {
        let mut rng = Rng::stream(seed, 101);
        let fills_up = rng.chance(0.06);
        let journals = match fills_up {
            true => 1,
            false => 1 + rng.below(3) as u16,
        };
        let style = match rng.below(20) {
            0..10 => Style::Mixed,
            10..14 => Style::Short,
            14..16 => Style::Burst,
            _ => Style::Layers,
        };
        let ring_blocks = if rng.chance(0.7) || style == Style::Burst {
            128
        } else {
            128 + 8 * rng.below(64) as u32
        };
        let device_bytes = match (fills_up, journals) {
            (true, _) => 16 * MIB + 4096 * rng.below(2048),
            (false, 1) => 32 * MIB + rng.below(3) * SEGMENT_SIZE,
            (false, n) => (u64::from(n) + rng.below(3)) * SEGMENT_SIZE - 4096 * rng.below(4096),
        };
        let mut disk = DiskConfig::new(device_bytes).faults(faults_of(faults, &mut rng));
        if rng.coin() {
            disk = disk.fill(Fill::Noise(seed));
        }
        disk.latency = draw_latency(style, &mut rng);
        let (lives, operations) = match style {
            Style::Mixed | Style::Layers => (2 + rng.index(4), 10 + rng.below(60)),
            Style::Short => (4 + rng.index(8), 2 + rng.below(14)),
            Style::Burst => (2 + rng.index(2), 100 + rng.below(300)),
        };
        Plan {
            seed,
            scene: None,
            cores: 1 + rng.index(2),
            journals,
            ring_blocks,
            device_bytes,
            options: EngineOptions {
                tombstones_max: draw_tombstones_max(seed),
                idle_ns: draw_idle_ns(seed),
                cache_bytes: cache_bytes(seed, faults),
                cache_all_reads: true,
                ..draw_options(&mut rng)
            },
            faults,
            style,
            disk,
            lives,
            clients: 1 + rng.index(6),
            operations,
            fills_up,
            gives_up: if rng.chance(0.3) {
                5 + rng.below(30)
            } else {
                0
            },
            // Not drawn, so that the other seeds mean what they meant before.
            hands_over: seed % 10 == 9,
        }
    }

    /// True if operations may fail because the disk does.
    pub fn may_fail(&self) -> bool {
        !matches!(self.faults, FaultClass::None | FaultClass::Sluggish)
    }

    /// True if the disk may break its contract.
    pub fn may_break(&self) -> bool {
        matches!(self.faults, FaultClass::Broken | FaultClass::Hostile)
    }

    /// True if volumes may forget their past without a rollback.
    pub fn forgets(&self) -> bool {
        self.options.tombstones_max < EngineOptions::default().tombstones_max
    }

    /// How the device is laid out.
    pub fn format(&self) -> FormatOptions {
        FormatOptions {
            size_bytes: self.device_bytes,
            journal_count: self.journals,
            ring_blocks: self.ring_blocks,
        }
    }

    /// The world of one life. `variant` tells apart lives that begin alike.
    pub fn world(&self, life: usize, variant: u64) -> WorldConfig {
        let seed = Rng::stream(self.seed, 1000 + life as u64 + (variant << 32)).next_u64();
        WorldConfig {
            polls_max: 30_000_000,
            trace_events_kept: 0,
            ..WorldConfig::new(seed).cores(self.cores)
        }
    }
}

fn faults_of(class: FaultClass, rng: &mut Rng) -> FaultConfig {
    // Rates are per operation; a life has some hundreds or thousands.
    let scale = [0.2, 1.0, 4.0][rng.index(3)];
    let base = FaultConfig::failing();
    match class {
        FaultClass::None => FaultConfig::default(),
        FaultClass::Sluggish => FaultConfig::sluggish(),
        FaultClass::Failing => FaultConfig {
            read_error: base.read_error * scale,
            write_error: base.write_error * scale,
            flush_error: base.flush_error * scale * 0.25,
            no_space: base.no_space * scale,
            ..base
        },
        FaultClass::Mixed => mixed(scale),
        FaultClass::Hostile => FaultConfig {
            broken: BrokenFaults::all(0.001 * scale),
            ..mixed(scale)
        },
        FaultClass::Fencing => FaultConfig {
            flush_error: 0.01 * scale,
            ..FaultConfig::sluggish()
        },
        FaultClass::Broken => FaultConfig {
            broken: BrokenFaults::all(0.001 * scale),
            ..FaultConfig::default()
        },
    }
}

/// Everything within the contract.
fn mixed(scale: f64) -> FaultConfig {
    let base = FaultConfig::failing();
    FaultConfig {
        read_error: base.read_error * scale,
        write_error: base.write_error * scale,
        flush_error: base.flush_error * scale,
        no_space: base.no_space * scale,
        ..base
    }
}

fn draw_options(rng: &mut Rng) -> EngineOptions {
    EngineOptions {
        map_cache_bytes: if rng.coin() {
            1 << 30
        } else {
            rng.below(64 << 10)
        },
        groups_in_flight_max: 1 + rng.index(4),
        dirty_nodes_max: if rng.coin() { 0 } else { 8 + rng.index(64) },
        quiet_ns: rng.within(&(100_000..=50_000_000)),
        reuse_soon: rng.chance(0.6),
        reap_step_entries: [1024, 1 + rng.index(40)][rng.index(2)],
        ..EngineOptions::default()
    }
}

/// Deallocations remembered. Drawn by itself, so that seeds mean what they meant before.
fn draw_tombstones_max(seed: u64) -> u64 {
    let mut rng = Rng::stream(seed, 102);
    match rng.chance(0.4) {
        true => 2 + rng.below(6),
        false => EngineOptions::default().tombstones_max,
    }
}

/// How soon a checkpoint is made because nothing happens; as above.
fn draw_idle_ns(seed: u64) -> u64 {
    let mut rng = Rng::stream(seed, 106);
    match rng.chance(0.3) {
        true => rng.within(&(100_000..=5_000_000)),
        false => EngineOptions::default().idle_ns,
    }
}

/// The cache of each core. Two of five runs have one: of three blocks, so that it is always full, or of
/// more than is ever read. On disks that break their contract all have one: what is wrong on the way must
/// not stay. Not drawn, so that seeds mean what they meant before.
fn cache_bytes(seed: u64, faults: FaultClass) -> u64 {
    let breaks = matches!(faults, FaultClass::Broken | FaultClass::Hostile);
    match seed % 5 {
        1 => 13 << 10,
        3 => 1 << 20,
        _ if breaks => 1 << 20,
        _ => 0,
    }
}

/// Disks of different tempers: which operation overtakes which depends on it.
fn draw_latency(style: Style, rng: &mut Rng) -> Latency {
    if style == Style::Burst {
        // A checkpoint takes as long as a round of the ring.
        return Latency {
            read_ns: 1_000..=20_000,
            write_ns: 1_000..=10_000,
            flush_ns: 2_000_000..=20_000_000,
            discard_ns: 20_000..=1_000_000,
            per_kib_ns: 100,
        };
    }
    let mut range = |fast: RangeInclusive<u64>, slow: RangeInclusive<u64>| match rng.below(3) {
        0 => fast,
        1 => slow,
        _ => *fast.start()..=*slow.end(),
    };
    Latency {
        read_ns: range(1_000..=20_000, 100_000..=2_000_000),
        write_ns: range(1_000..=20_000, 100_000..=3_000_000),
        flush_ns: range(1_000..=50_000, 500_000..=10_000_000),
        discard_ns: 20_000..=1_000_000,
        per_kib_ns: 100,
    }
}
