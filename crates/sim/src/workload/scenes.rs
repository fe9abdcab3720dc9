//! Scenes: small workloads that lead straight to one kind of trouble.
//!
//! A random run meets everything now and then. What needs several things at once, such as a block
//! that is freed, reused and then still needed because the power failed, it meets in one seed of
//! some hundreds, and another one after each change of the engine. A scene sets up the disk, the
//! node and the clients so that most of its seeds come to that point. What is drawn is when the node
//! ends and how everything falls together; the model judges as ever.

use std::pin::Pin;
use std::rc::Rc;

use flagstone_device::engine::{Condition, EngineOptions, Stability, join_all};
use flagstone_platform::Platform;
use flagstone_types::{BLOCK_SIZE, Lsn};

use super::client::{Client, Extent};
use super::described::Described;
use super::history::ObjectKey;
use super::model::Ended;
use super::node::Load;
use super::plan::{FaultClass, Plan, Style};
use crate::disk::{DiskConfig, Latency};
use crate::fault::FaultConfig;
use crate::image::Fill;
use crate::rng::Rng;
use crate::world::{Counting, CrashMoment, CrashPoint};

use Stability::{Stable, Unstable};

/// Which scene.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scene {
    /// Snapshots while unstable writes are in flight: what a snapshot that was answered keeps has
    /// to be durable.
    Barrier,
    /// Blocks are overwritten, freed and handed out again all the time, and nothing but the quiet
    /// journal's own flush makes anything durable.
    Reuse,
    /// The same few blocks are overwritten without a flush, and the power fails after a few groups:
    /// of several mappings of a block none may have its data.
    Overwrites,
    /// The power fails after a few groups, again and again: the groups that one crash discards lie
    /// where the next one looks.
    Tails,
    /// The ring goes round while a checkpoint waits for its flushes.
    Ring,
    /// Dvols in the slots of deleted ones, and crashes after a few writes.
    Slots,
    /// Flushes fail, the process is started again, and later the power fails.
    Fences,
    /// Deallocations are forgotten while others ask what has changed, just above the floor.
    Floor,
    /// Unstable writes of parts of several blocks lie over each other, and the power fails after a few
    /// groups: what a write copied of another one, and what is left of that one, has to fit.
    Copies,
    /// Writes that bring new attributes along, stable and not, with snapshots between, and the power fails
    /// after a few groups: attributes and data of one write are there together or not at all.
    Attributes,
    /// Sectors of a few blocks are written and read, some of them again and again: parts of a block are put together from what is kept
    /// of the last ones, or read once that is gone, and the power fails after a few groups.
    Sectors,
    /// Halves of a few blocks are written, of which nearly nothing is kept, or nothing: one becomes the block's data, under the delta that the other one is. Also whole
    /// blocks, several at a time, with metadata; and the power fails after a few groups.
    Halves,
    /// The first segment is laid out while it is in use, as on a file.
    Zeros,
    /// Data that the journal alone has, written over, deallocated and read, with checkpoints between, and changes of a dvol with snapshots in the same
    /// units; the power fails after a few groups.
    Journaled,
}

impl Scene {
    /// All of them.
    pub const ALL: [Scene; 14] = [
        Scene::Barrier,
        Scene::Reuse,
        Scene::Overwrites,
        Scene::Tails,
        Scene::Ring,
        Scene::Slots,
        Scene::Fences,
        Scene::Floor,
        Scene::Copies,
        Scene::Attributes,
        Scene::Sectors,
        Scene::Halves,
        Scene::Zeros,
        Scene::Journaled,
    ];

    /// Its name on the command line.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// The scene of that name.
    pub fn by_name(name: &str) -> Option<Scene> {
        Scene::ALL.into_iter().find(|scene| scene.name() == name)
    }

    /// The plan of a seed of this scene.
    pub(super) fn plan(self, seed: u64) -> Plan {
        let mut rng = Rng::stream(seed, 103);
        let latency = self.latency(&mut rng);
        let mut options = EngineOptions {
            reuse_soon: true,
            groups_in_flight_max: 4,
            ..EngineOptions::default()
        };
        let (mut faults, mut class) = (FaultConfig::default(), FaultClass::None);
        // Lives, clients, operations of each.
        let (lives, clients, operations) = match self {
            Scene::Barrier => (8, 2, 8),
            Scene::Reuse => {
                options.quiet_ns = 20_000;
                (16, 4, 60)
            }
            Scene::Overwrites => (14, 3, 12),
            Scene::Tails => {
                // What was discarded is still there, its data as well.
                options.reuse_soon = false;
                (20, 6, 12)
            }
            Scene::Ring => (3, 4, 400),
            Scene::Slots => (12, 1, 12),
            Scene::Copies => (30, 2, 6),
            Scene::Attributes => (20, 3, 8),
            Scene::Sectors => (16, 2, 24),
            Scene::Halves => {
                options.recent_parts_bytes = [0, 8 << 10][rng.index(2)];
                (24, 3, 16)
            }
            Scene::Journaled => {
                options.map_cache_bytes = [0, 1 << 30][rng.index(2)];
                options.reuse_soon = true;
                (12, 3, 24)
            }
            Scene::Zeros => {
                options.prewrite_segments = true;
                // Rests are far longer than what the scene's clients do between them, and they would hardly meet the zeros.
                options.zeros_rest_times = 0;
                // Otherwise what is handed out next comes to meet the zeros.
                options.reuse_soon = rng.coin();
                (4, 4, 300)
            }
            Scene::Fences => {
                class = FaultClass::Fencing;
                faults.flush_error = 0.1;
                (30, 2, 12)
            }
            Scene::Floor => {
                options.tombstones_max = 2 + rng.below(6);
                options.map_cache_bytes = [0, 8 << 10, 1 << 30][rng.index(3)];
                options.dirty_nodes_max = 8 + rng.index(24);
                (3, 3, 100)
            }
        };
        let device_bytes = 32 << 20;
        let mut disk = DiskConfig::new(device_bytes).faults(faults);
        if rng.coin() {
            disk = disk.fill(Fill::Noise(seed));
        }
        disk.latency = latency;
        Plan {
            seed,
            scene: Some(self),
            cores: 1,
            journals: 1,
            ring_blocks: 128,
            device_bytes,
            options,
            faults: class,
            style: Style::Mixed,
            disk,
            lives,
            clients,
            operations,
            fills_up: false,
            gives_up: 0,
            hands_over: false,
        }
    }

    fn latency(self, rng: &mut Rng) -> Latency {
        let quick = 1_000..=20_000;
        let (read_ns, write_ns, flush_ns) = match self {
            Scene::Barrier => (quick, 1_000..=50_000, 1_000..=50_000),
            // Much happens during a flush.
            Scene::Reuse => (quick, 1_000..=20_000, 200_000..=1_000_000),
            Scene::Overwrites
            | Scene::Tails
            | Scene::Copies
            | Scene::Attributes
            | Scene::Sectors
            | Scene::Halves => (quick, 1_000..=200_000, 100_000..=5_000_000),
            // Either much happens during a flush, or while a block is being written.
            Scene::Journaled => match rng.coin() {
                true => (quick, 1_000..=200_000, 100_000..=5_000_000),
                false => (quick, 1_000..=5_000_000, 1_000..=20_000),
            },
            // Zeros and data meet while some clients are at work.
            Scene::Zeros => (quick, 1_000..=50_000, 1_000..=500_000),
            Scene::Ring => (quick, 1_000..=5_000, 20_000_000..=50_000_000),
            Scene::Slots | Scene::Fences => (quick, 1_000..=100_000, 1_000..=500_000),
            // Either a question waits long for nodes, or the record of the floor for its flush.
            Scene::Floor => match rng.coin() {
                true => (300_000..=3_000_000, 1_000..=20_000, 1_000..=50_000),
                false => (1_000..=50_000, 1_000..=20_000, 500_000..=5_000_000),
            },
        };
        Latency {
            read_ns,
            write_ns,
            flush_ns,
            discard_ns: 20_000..=1_000_000,
            per_kib_ns: match self {
                // The data of a large write is still on its way when its record is durable.
                Scene::Barrier => 40_000,
                _ => 100,
            },
        }
    }

    /// Where a life ends, counted from its beginning, or from when the clients begin.
    pub(super) fn crash(self, rng: &mut Rng) -> (Option<CrashPoint>, Option<CrashPoint>) {
        // What a failed flush left is at risk until recovery has made it anew.
        let in_recovery = self == Scene::Fences && rng.coin();
        let most = match self {
            _ if in_recovery => 12,
            Scene::Barrier => 80,
            Scene::Reuse => 300,
            Scene::Overwrites => 12,
            Scene::Tails | Scene::Copies | Scene::Attributes => 16,
            Scene::Zeros => 1500,
            Scene::Ring => 1200,
            Scene::Slots => 40,
            Scene::Sectors | Scene::Journaled => 60,
            Scene::Halves => 30,
            Scene::Fences => 80,
            Scene::Floor => 300,
        };
        let moments = [
            CrashMoment::Before,
            CrashMoment::InFlight,
            CrashMoment::Completed,
        ];
        let point = Some(CrashPoint {
            nth: rng.below(most),
            counting: Counting::Changes,
            moment: moments[rng.index(3)],
        });
        match in_recovery {
            true => (point, None),
            false => (None, point),
        }
    }

    /// How a life ends that was not stopped in order.
    pub(super) fn end(self, rng: &mut Rng) -> Ended {
        let killed = match self {
            Scene::Fences => 0.5,
            _ => 0.1,
        };
        match rng.chance(killed) {
            true => Ended::Killed,
            false => Ended::PowerLoss,
        }
    }

    /// What the clients do.
    pub(super) fn load(self) -> Load {
        Rc::new(move |clients| Box::pin(self.play(clients)))
    }

    async fn play(self, mut clients: Vec<Client>) {
        let Some(first) = clients.first_mut() else {
            return;
        };
        if self == Scene::Journaled {
            first.a_log_and_another().await;
        }
        let Some(dvol) = first.a_dvol().await else {
            return;
        };
        match self {
            Scene::Reuse => {
                first
                    .write_extent(dvol, blocks(0, REUSED_BLOCKS), 0, Stable)
                    .await;
            }
            Scene::Floor => first.scatter(dvol).await,
            Scene::Copies => first.a_second_dvol().await,
            Scene::Sectors => {
                let all = blocks(0, SECTOR_BLOCKS);
                first.write_extent(dvol, all, 0, Unstable).await;
            }
            Scene::Barrier => return barrier(clients, dvol).await,
            _ => {}
        }
        let parts = clients
            .into_iter()
            .enumerate()
            .map(|(number, client)| self.part(client, number, dvol));
        join_all(parts).await;
    }

    /// What one of the clients does.
    async fn part(self, mut client: Client, number: usize, dvol: ObjectKey) {
        for _ in 0..client.plan.operations {
            if client.is_over || client.model.borrow().failure.is_some() {
                return;
            }
            match self {
                // Two clients in step, see there.
                Scene::Barrier => return,
                Scene::Reuse => client.overwrite(dvol, REUSED_BLOCKS).await,
                Scene::Overwrites => client.overwrite(dvol, 3).await,
                Scene::Tails => client.overwrite(dvol, 16).await,
                Scene::Ring | Scene::Zeros => client.overwrite(dvol, 2000).await,
                Scene::Slots => client.replace_or_write().await,
                Scene::Fences => client.write_and_flush(dvol).await,
                Scene::Floor if number == 0 => client.forget(dvol).await,
                Scene::Floor => client.ask_above_floor(dvol).await,
                Scene::Copies => client.overlap().await,
                Scene::Attributes => client.describe(dvol).await,
                Scene::Sectors => client.sectors(dvol).await,
                Scene::Halves => client.halves(dvol).await,
                Scene::Journaled => client.journal(dvol).await,
            }
        }
    }
}

/// A large write, and a snapshot while it is under way; then a few small writes, for the power to fail
/// in before there is another flush.
async fn barrier(clients: Vec<Client>, dvol: ObjectKey) {
    let mut clients = clients.into_iter();
    let (Some(mut a), Some(mut b)) = (clients.next(), clients.next()) else {
        return;
    };
    for _ in 0..a.plan.operations {
        let first = a.rng.below(64);
        let both: [Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [
            Box::pin(a.write_extent(dvol, blocks(first, 16), 0, Unstable)),
            Box::pin(b.snapshot_soon(dvol)),
        ];
        join_all(both).await;
        for _ in 0..3 {
            a.overwrite(dvol, 64).await;
        }
    }
}

/// Blocks that [`Scene::Reuse`] writes to.
const REUSED_BLOCKS: u64 = 24;

/// Blocks of each dvol that changes of [`Scene::Copies`] begin in.
const COPIED_BLOCKS: u64 = 4;

/// Blocks whose parts [`Scene::Sectors`] writes.
const SECTOR_BLOCKS: u64 = 3;

/// Blocks whose halves [`Scene::Halves`] writes: more than are kept.
const HALVED_BLOCKS: u64 = 4;

/// Blocks that [`Scene::Journaled`] writes to, of a dvol that has twice as many.
const JOURNALED_BLOCKS: u64 = 24;

/// Bytes of a sector.
const SECTOR_BYTES: u64 = 512;

/// Blocks of [`Scene::Floor`], every third of which is mapped: enough for a map of several leaves.
const SCATTERED_BLOCKS: u64 = 900;

fn blocks(first: u64, count: u64) -> Extent {
    Extent {
        offset: first * BLOCK_SIZE,
        len: count * BLOCK_SIZE,
    }
}

impl Client {
    /// A dvol that is there, or a new one.
    async fn a_dvol(&mut self) -> Option<ObjectKey> {
        let dvols = self.model.borrow().dvols(self.journal);
        if let Some(&dvol) = dvols.first() {
            return Some(dvol);
        }
        let (name, is_taken) = self.name(None);
        self.create_named(name, 1 << 30, 0, is_taken).await
    }

    async fn a_second_dvol(&mut self) {
        if self.model.borrow().dvols(self.journal).len() < 2 {
            let (name, is_taken) = self.name(None);
            self.create_named(name, 1 << 30, 0, is_taken).await;
        }
    }

    /// A dvol that is all reserved, and one that isn't, if there are none.
    async fn a_log_and_another(&mut self) {
        if self.model.borrow().dvols(self.journal).is_empty() {
            let size_bytes = 2 * JOURNALED_BLOCKS * BLOCK_SIZE;
            for reserved_bytes in [size_bytes, 0] {
                let (name, is_taken) = self.name(None);
                self.create_named(name, size_bytes, reserved_bytes, is_taken)
                    .await;
            }
        }
    }

    /// Writes to the journal alone, mostly; or whatever else may come to such blocks. Nobody takes snapshots of that dvol: those are of another one, which
    /// is changed in the same units.
    async fn journal(&mut self, log: ObjectKey) {
        let some = |client: &mut Client| {
            let first = client.rng.below(JOURNALED_BLOCKS);
            blocks(first, 1 + client.rng.below(4))
        };
        let extent = some(self);
        let stability = self.stability();
        let dvols = self.model.borrow().dvols(self.journal);
        let other = dvols.into_iter().rfind(|&other| other != log);
        let other = other.unwrap_or(log);
        match self.rng.below(32) {
            0..14 => {
                self.journals = true;
                let is_plain = (extent.offset / BLOCK_SIZE).is_multiple_of(4);
                let mut places = vec![(log, extent, Some(u64::from(is_plain)))];
                // With others in its unit, of which some have blocks.
                for _ in 0..self.rng.below(3) {
                    let meta = [None, Some(0), Some(1)][self.rng.index(3)];
                    let of = [log, other][self.rng.index(2)];
                    // What may have snapshots has blocks at once.
                    let meta = if of == log { meta } else { meta.map(|_| 1) };
                    places.push((of, some(self), meta));
                }
                self.batch_on(&places, Vec::new(), stability).await;
                self.journals = false;
            }
            14..17 => self.write_extent(log, extent, 0, stability).await,
            17..20 => self.deallocate_extent(log, extent, stability).await,
            20 => {
                let part = Extent {
                    offset: extent.offset + self.rng.below(BLOCK_SIZE),
                    len: 1 + self.rng.below(BLOCK_SIZE),
                };
                self.write_extent(log, part, 0, stability).await;
            }
            21..23 => self.read_extent(log, extent).await,
            23 => self.read_ex_of(log, extent).await,
            // Not what has changed: what is deallocated before it has a block was never written.
            24 => {
                self.allocation_of(log, blocks(0, JOURNALED_BLOCKS), 100)
                    .await
            }
            25 if other != log => self.snapshot_soon(other).await,
            26 => self.scrub().await,
            27 => self.roll_back().await,
            28 if other != log && self.rng.chance(0.2) => self.delete_with(other, true).await,
            28 => self.read_a_layer(other).await,
            29 | 30 => self.checkpoint().await,
            _ => self.flush().await,
        }
    }

    async fn read_a_layer(&mut self, dvol: ObjectKey) {
        let layers = self.model.borrow().layers_of(dvol);
        if !layers.is_empty() {
            let layer = layers[self.rng.index(layers.len())];
            self.read_all(layer).await;
        }
    }

    async fn overwrite(&mut self, dvol: ObjectKey, among: u64) {
        let first = self.rng.below(among);
        self.write_extent(dvol, blocks(first, 1), 0, Unstable).await;
    }

    /// Changes parts of a few blocks that others change as well, mostly of several at once.
    async fn overlap(&mut self) {
        let dvols = self.model.borrow().dvols(self.journal);
        let mut part = || {
            let extent = Extent {
                offset: self.rng.below(COPIED_BLOCKS * BLOCK_SIZE),
                len: 1 + self.rng.below(2 * BLOCK_SIZE),
            };
            (dvols[self.rng.index(dvols.len())], extent)
        };
        let ((dvol, extent), other) = (part(), part());
        match self.rng.below(10) {
            0..6 => self.write_extent(dvol, extent, 0, Unstable).await,
            6..9 => {
                let places = [(dvol, extent, Some(0)), (other.0, other.1, Some(0))];
                self.batch_on(&places, Vec::new(), Unstable).await;
            }
            _ => self.deallocate_extent(dvol, extent, Unstable).await,
        }
    }

    /// Writes sectors of a block, or reads some; now and then other bytes of it or all, and whatever keeps or frees what was there.
    async fn sectors(&mut self, dvol: ObjectKey) {
        let in_block = BLOCK_SIZE / SECTOR_BYTES;
        let block = self.rng.below(SECTOR_BLOCKS);
        let sector = self.rng.below(in_block);
        let count = (1 + self.rng.below(2)).min(in_block - sector);
        let sectors = Extent {
            offset: block * BLOCK_SIZE + sector * SECTOR_BYTES,
            len: count * SECTOR_BYTES,
        };
        let stability = self.stability();
        match self.rng.below(24) {
            0..14 => self.write_extent(dvol, sectors, 0, stability).await,
            14..18 => self.read_extent(dvol, sectors).await,
            18 => {
                let skip = self.rng.below(BLOCK_SIZE);
                let any = Extent {
                    offset: block * BLOCK_SIZE + skip,
                    len: 1 + self.rng.below(BLOCK_SIZE - skip),
                };
                self.write_extent(dvol, any, 0, stability).await;
            }
            19 => self.read_extent(dvol, blocks(block, 1)).await,
            20 => self.overwrite(dvol, SECTOR_BLOCKS).await,
            21 => self.snapshot_soon(dvol).await,
            22 => self.checkpoint().await,
            _ => self.flush().await,
        }
    }

    /// Writes half of a block, mostly; or what lies below halves, takes them away or keeps them, and looks at them.
    async fn halves(&mut self, dvol: ObjectKey) {
        let block = self.rng.below(HALVED_BLOCKS);
        let half = Extent {
            offset: block * BLOCK_SIZE + self.rng.below(2) * BLOCK_SIZE / 2,
            len: BLOCK_SIZE / 2,
        };
        let several = blocks(block, 1 + self.rng.below(2));
        let all = blocks(0, HALVED_BLOCKS + 1);
        // Flushes end what a crash takes back.
        let stability = match self.rng.chance(0.1) {
            true => Stable,
            false => Unstable,
        };
        match self.rng.below(32) {
            0..19 => self.write_extent(dvol, half, 0, stability).await,
            19..23 => {
                let meta = self.rng.below(3);
                self.write_extent(dvol, several, meta, stability).await;
            }
            23 => {
                let part = Extent {
                    offset: half.offset + self.rng.below(BLOCK_SIZE / 2),
                    len: 1 + self.rng.below(BLOCK_SIZE / 2),
                };
                self.write_extent(dvol, part, 0, stability).await;
            }
            24 => self.deallocate_extent(dvol, several, stability).await,
            25 => self.read_ex_of(dvol, all).await,
            26 => self.changed_since_of(dvol, all, 5, 20).await,
            27 => self.read_extent(dvol, half).await,
            28 => self.snapshot_soon(dvol).await,
            29 => self.checkpoint().await,
            30 => self.read_a_layer(dvol).await,
            _ => self.flush().await,
        }
    }

    /// Writes with attributes, or replaces them alone; looks at them now and then.
    async fn describe(&mut self, dvol: ObjectKey) {
        let extent = match self.rng.below(3) {
            0 => Extent {
                offset: self.rng.below(4 * BLOCK_SIZE),
                len: 1 + self.rng.below(2 * BLOCK_SIZE),
            },
            _ => blocks(self.rng.below(6), 1 + self.rng.below(3)),
        };
        match self.rng.below(12) {
            0 => self.flush().await,
            1 => self.snapshot_soon(dvol).await,
            2 => self.check_attributes(dvol),
            3 => self.read_ex_of(dvol, blocks(0, 6)).await,
            choice => {
                let stability = self.stability();
                let how = match choice {
                    4 => Described::Alone,
                    // Told apart without another throw, so that kept seeds stay what they are until here.
                    5 if (extent.offset / BLOCK_SIZE).is_multiple_of(2) => Described::Unmapped,
                    5 => Described::Cleared,
                    6 => Described::InBatch,
                    _ => Described::Written,
                };
                self.describe_with(dvol, extent, how, stability).await;
                self.check_attributes(dvol);
            }
        }
    }

    /// A snapshot after a moment; the oldest one goes when there are many.
    async fn snapshot_soon(&mut self, dvol: ObjectKey) {
        let pause_ns = self.rng.below(20_000);
        self.platform.sleep_ns(pause_ns).await;
        let layers = self.model.borrow().layers_of(dvol);
        if layers.len() > 6 {
            return self.delete_layer_of(layers[0]).await;
        }
        let (name, is_taken) = self.name(Some(dvol));
        if !is_taken {
            self.snapshot_of(&[dvol], vec![name]).await;
        }
    }

    /// Deletes all dvols and makes one, which then has a used slot; or a few writes to what there is.
    async fn replace_or_write(&mut self) {
        let Some(dvol) = self.a_dvol().await else {
            return;
        };
        if self.rng.chance(0.2) {
            let stability = self.stability();
            self.write_extent(dvol, blocks(0, 1), 0, stability).await;
            self.delete_with(dvol, true).await;
            self.wait_until_reaped().await;
        } else {
            self.overwrite(dvol, 8).await;
        }
    }

    async fn write_and_flush(&mut self, dvol: ObjectKey) {
        self.overwrite(dvol, 12).await;
        match self.rng.below(6) {
            0 => self.flush().await,
            1 => self.checkpoint().await,
            2 => self.create().await,
            _ => {}
        }
    }

    /// Maps blocks so far apart from each other that each takes an entry of its own.
    async fn scatter(&mut self, dvol: ObjectKey) {
        let is_there = !self.model.borrow().objects[dvol].blocks.is_empty();
        if is_there {
            return;
        }
        let all: Vec<u64> = (0..SCATTERED_BLOCKS).step_by(3).collect();
        for some in all.chunks(50) {
            let places: Vec<_> = some
                .iter()
                .map(|&vblock| (dvol, blocks(vblock, 1), Some(0)))
                .collect();
            self.batch_on(&places, Vec::new(), Unstable).await;
        }
        self.checkpoint().await;
    }

    /// Leaves many tombstones, or maps blocks again.
    async fn forget(&mut self, dvol: ObjectKey) {
        let meta = if self.rng.chance(0.6) { None } else { Some(0) };
        let mut places = Vec::new();
        for _ in 0..20 {
            let first = self.rng.below(SCATTERED_BLOCKS);
            places.push((dvol, blocks(first, 1), meta));
        }
        let stability = match self.rng.chance(0.1) {
            true => Stable,
            false => Unstable,
        };
        self.batch_on(&places, Vec::new(), stability).await;
        match self.rng.below(12) {
            0 => self.checkpoint().await,
            1..4 => self.ask_above_floor(dvol).await,
            _ => {}
        }
    }

    /// Asks what has changed since the floor, or a little after it.
    async fn ask_above_floor(&mut self, dvol: ObjectKey) {
        let Some(handle) = self.handle(dvol) else {
            return;
        };
        let Ok(floor) = self.engine.floor_of(handle) else {
            return;
        };
        let since = floor.0 + self.rng.below(3);
        let all = blocks(0, SCATTERED_BLOCKS);
        if self.rng.chance(0.8) {
            let told = self.model.borrow().objects[dvol].lsn_told;
            let back = told.saturating_sub(since);
            return self.changed_since_of(dvol, all, back, 2000).await;
        }
        let unchanged = Condition::UnchangedSince {
            handle,
            offset_bytes: all.offset,
            len_bytes: all.len,
            lsn: Lsn(since),
        };
        self.read_if_of(dvol, vec![blocks(0, 2)], vec![unchanged])
            .await;
    }
}
