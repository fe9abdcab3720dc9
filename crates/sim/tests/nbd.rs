//! The NBD gateway over the device engine, on a simulated network and a simulated disk: connections
//! break at any byte, the node crashes at any write or flush and recovers, clients come back. What
//! was answered to a write with FUA, or before a flush that was answered, must be there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use flagstone_device::engine::{
    self, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, format_device,
};
use flagstone_gateway::nbd::{NbdLimits, NbdServer};
use flagstone_gateway::volume::{
    AllocationExtent, ChangedExtent, ExportInfo, OpenError, Opened, Payload, Piece, Stability,
    Volume, VolumeDirectory, VolumeError,
};
use flagstone_platform::sync::{Awaited, promise};
use flagstone_platform::{IoBuf, Listener, Platform, Stream};
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, DiskConfig, NetworkConfig, Rng, SimDisk, SimNetwork,
    SimPlatform, SimStream, World, WorldConfig,
};
use flagstone_types::Lsn;

const ADDRESS: &str = "127.0.0.1:10809";
const SECTOR: u64 = 512;
/// Each client has so much of the volume to itself.
const REGION_BYTES: u64 = 64 << 10;
const REGION_SECTORS: u64 = REGION_BYTES / SECTOR;
const CLIENTS: u64 = 3;
const LIVES: u64 = 4;

// The volume.

#[derive(Clone)]
struct EngineVolume {
    engine: Engine<SimPlatform>,
    handle: Handle,
    /// It says that writes are durable when they are not.
    lies: bool,
}

fn error_of(error: DvolError) -> VolumeError {
    match error {
        DvolError::OutOfRange => VolumeError::OutOfRange,
        DvolError::Corrupt => VolumeError::Corrupt,
        DvolError::Fenced => VolumeError::Fenced,
        DvolError::NotFound | DvolError::Stopping => VolumeError::Gone,
        DvolError::NoSpace => VolumeError::NoSpace,
        _ => VolumeError::Device,
    }
}

fn stability_of(stability: Stability) -> engine::Stability {
    match stability {
        Stability::Stable => engine::Stability::Stable,
        Stability::Unstable => engine::Stability::Unstable,
    }
}

impl Volume for EngineVolume {
    fn size_bytes(&self) -> Option<u64> {
        self.engine.size_of(self.handle).ok()
    }

    fn is_read_only(&self) -> bool {
        self.engine.is_read_only(self.handle)
    }

    async fn read(&self, offset_bytes: u64, len_bytes: u32) -> Result<Payload, VolumeError> {
        let len = u64::from(len_bytes);
        let pieces = self.engine.read(self.handle, offset_bytes, len).await;
        let piece = |piece| match piece {
            engine::Piece::Data(data) => Piece::Data(data.into_buf()),
            engine::Piece::Zeros(len) => Piece::Zeros(len),
        };
        Ok(pieces.map_err(error_of)?.into_iter().map(piece).collect())
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let stability = match self.lies {
            true => engine::Stability::Unstable,
            false => stability_of(stability),
        };
        let write = self
            .engine
            .write(self.handle, offset_bytes, data, stability);
        write.await.map(|_| ()).map_err(error_of)
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        self.engine.flush().await.map_err(error_of)
    }

    async fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let stability = stability_of(stability);
        let work = self
            .engine
            .deallocate(self.handle, offset_bytes, len_bytes, stability);
        work.await.map(drop).map_err(error_of)
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        _keep_allocated: bool,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        self.deallocate(offset_bytes, len_bytes, stability).await
    }

    async fn allocation(
        &self,
        _: u64,
        _: u64,
        _: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        Err(VolumeError::Unsupported)
    }

    async fn changed_since(
        &self,
        _: Lsn,
        _: u64,
        _: u64,
        _: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        Err(VolumeError::Unsupported)
    }
}

#[derive(Clone)]
struct OneVolume(EngineVolume);

impl VolumeDirectory for OneVolume {
    type Volume = EngineVolume;

    async fn open(&self, name: &str) -> Result<Opened<EngineVolume>, OpenError> {
        match name {
            "v" => Ok(Opened::Here(self.0.clone())),
            _ => Err(OpenError::NotFound),
        }
    }

    async fn list(&self, _: Option<&str>, _: usize) -> Vec<ExportInfo> {
        Vec::new()
    }

    async fn describe(&self, _: &str) -> String {
        String::new()
    }

    async fn snapshots(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    async fn snapshot_lsn(&self, _: &str, _: &str) -> Option<Lsn> {
        None
    }
}

/// Opens the disk, makes the volume if there is none, and serves it.
async fn serve(platform: SimPlatform, disk: SimDisk, lies: bool) {
    let device = platform.open(&disk);
    let prepared = Engine::<SimPlatform>::prepare(&platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions {
        reuse_soon: true,
        dirty_nodes_max: 8,
        ..EngineOptions::default()
    };
    let engine = Engine::open(platform.clone(), device, shared, superblock, 0, options).await;
    let (engine, _) = engine.expect("opens");
    let handle = match engine.dvol("v") {
        Some(info) => info.handle,
        None => {
            let new = CreateDvol {
                name: "v".into(),
                id: None,
                size_bytes: CLIENTS * REGION_BYTES,
                reserved_bytes: 0,
            };
            engine.create(new).await.expect("creates")
        }
    };
    let directory = OneVolume(EngineVolume {
        engine,
        handle,
        lies,
    });
    let server = NbdServer::new(platform.clone(), directory, NbdLimits::default());
    let listener = platform.network().listen(ADDRESS).expect("nobody listens");
    loop {
        let stream = listener.accept().await.expect("accepting does not fail");
        let server = server.clone();
        platform.spawn(async move { drop(server.serve_connection(stream).await) });
    }
}

// What must be there.

/// A sector's content: which write it came from; zero is none.
type Tag = u32;

#[derive(Clone, Default)]
struct Sector {
    /// What it may hold: the last is what a read must show, unless `open`.
    may: Vec<Tag>,
    /// A write went unanswered, so any of `may` may be there, now or later.
    open: bool,
}

impl Sector {
    fn fill(tag: Tag, sector: u64) -> [u8; SECTOR as usize] {
        let mut bytes = [0; SECTOR as usize];
        if tag != 0 {
            for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
                word[..4].copy_from_slice(&tag.to_le_bytes());
                word[4..].copy_from_slice(&(sector as u32 * 64 + index as u32).to_le_bytes());
            }
        }
        bytes
    }
}

/// A client's region.
struct Region {
    first_sector: u64,
    sectors: Vec<Sector>,
    tags: Tag,
}

impl Region {
    fn new(number: u64) -> Region {
        let empty = Sector {
            may: vec![0],
            open: false,
        };
        Region {
            first_sector: number * REGION_SECTORS,
            sectors: vec![empty; REGION_SECTORS as usize],
            tags: 0,
        }
    }

    fn bytes_of(&self, tag: Tag, range: Range<usize>) -> Vec<u8> {
        let sectors = range.map(|index| Sector::fill(tag, self.first_sector + index as u64));
        sectors.flatten().collect()
    }

    /// Judges what a read gave. `settles`: nothing is under way, so that is what there is.
    fn judge(&mut self, range: Range<usize>, bytes: &[u8], settles: bool) {
        for (index, found) in range.zip(bytes.chunks_exact(SECTOR as usize)) {
            let at = self.first_sector + index as u64;
            let sector = &mut self.sectors[index];
            let fits = |tag: &&Tag| Sector::fill(**tag, at) == *found;
            let last = sector.may.len() - 1;
            let from = if sector.open || settles { 0 } else { last };
            let tag = sector.may[from..].iter().find(fits).copied();
            let tag = tag.unwrap_or_else(|| {
                panic!(
                    "sector {at} holds {:?}, but may only hold one of {:?}",
                    &found[..8],
                    &sector.may[from..]
                )
            });
            if settles {
                sector.may = vec![tag];
                sector.open = false;
            }
        }
    }
}

// The client.

struct Client {
    stream: SimStream,
    cookies: u64,
}

const GO: u32 = 7;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const FUA: u16 = 1;

fn broken(what: &str) -> io::Error {
    io::Error::other(what.to_owned())
}

impl Client {
    async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(vec![IoBuf::copy_of(bytes)]).await.1
    }

    async fn receive(&self, len: usize) -> io::Result<Vec<u8>> {
        let (buf, result) = self.stream.read_exact(IoBuf::zeroed(len)).await;
        result.map(|()| buf.to_vec())
    }

    async fn connect(network: &SimNetwork) -> io::Result<Client> {
        let stream = network.connect(ADDRESS).await?;
        let client = Client { stream, cookies: 0 };
        let greeting = client.receive(18).await?;
        assert_eq!(greeting[..16], *b"NBDMAGICIHAVEOPT");
        let mut hello = 3_u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(GO.to_be_bytes());
        hello.extend(7_u32.to_be_bytes());
        hello.extend(1_u32.to_be_bytes());
        hello.extend(b"v");
        hello.extend(0_u16.to_be_bytes());
        client.send(&hello).await?;
        loop {
            let head = client.receive(20).await?;
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four"));
            client.receive(word(16) as usize).await?;
            match word(12) {
                1 => return Ok(client),
                3 => {}
                refusal => panic!("refused with {refusal:#x}"),
            }
        }
    }

    async fn request(
        &mut self,
        flags: u16,
        kind: u16,
        offset: u64,
        len: usize,
        data: &[u8],
    ) -> io::Result<u64> {
        self.cookies += 1;
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(self.cookies.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend((len as u32).to_be_bytes());
        bytes.extend(data);
        self.send(&bytes).await?;
        Ok(self.cookies)
    }

    /// The next reply: its cookie. Errors end the client, since none is expected.
    async fn reply(&self) -> io::Result<u64> {
        let head = self.receive(16).await?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four"));
        assert_eq!(word(0), 0x6744_6698, "a simple reply");
        match word(4) {
            0 => Ok(u64::from_be_bytes(head[8..].try_into().expect("eight"))),
            // ESHUTDOWN or EIO of a node that goes down.
            errno => Err(broken(&format!("errno {errno}"))),
        }
    }

    async fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.request(0, READ, offset, len, &[]).await?;
        self.reply().await?;
        self.receive(len).await
    }
}

/// One connection's worth of work. Ends with an error when the connection breaks.
async fn work(
    network: &SimNetwork,
    region: &RefCell<Region>,
    rng: &mut Rng,
    counts: &Counts,
    steps: &mut u64,
) -> io::Result<()> {
    let mut client = Client::connect(network).await?;
    counts.connected.set(counts.connected.get() + 1);
    while *steps > 0 {
        *steps -= 1;
        match rng.below(10) {
            0..6 => write_some(&mut client, region, rng).await?,
            6..8 => {
                // What was answered before the flush was asked for.
                let before: Vec<Option<Tag>> = {
                    let region = region.borrow();
                    let sectors = region.sectors.iter();
                    sectors.map(|s| s.may.last().copied()).collect()
                };
                client.request(0, FLUSH, 0, 0, &[]).await?;
                client.reply().await?;
                counts.flushed.set(counts.flushed.get() + 1);
                let mut region = region.borrow_mut();
                for (sector, tag) in region.sectors.iter_mut().zip(before) {
                    if !sector.open {
                        sector.may = tag.into_iter().collect();
                    }
                }
            }
            _ => {
                let range = draw_range(rng);
                let (offset, len) = place(region, &range);
                let bytes = client.read(offset, len).await?;
                region.borrow_mut().judge(range, &bytes, false);
            }
        }
    }
    Ok(())
}

fn draw_range(rng: &mut Rng) -> Range<usize> {
    let start = rng.index(REGION_SECTORS as usize);
    let most = [2, 8, 24][rng.index(3)];
    let len = 1 + rng.index(most);
    start..(start + len).min(REGION_SECTORS as usize)
}

fn place(region: &RefCell<Region>, range: &Range<usize>) -> (u64, usize) {
    let first = region.borrow().first_sector + range.start as u64;
    (first * SECTOR, range.len() * SECTOR as usize)
}

/// Several changes at a time to different sectors, with and without FUA.
async fn write_some(
    client: &mut Client,
    region: &RefCell<Region>,
    rng: &mut Rng,
) -> io::Result<()> {
    let mut sent: BTreeMap<u64, (Range<usize>, u16)> = BTreeMap::new();
    for _ in 0..1 + rng.index(4) {
        let range = draw_range(rng);
        let is_taken =
            |other: &(Range<usize>, u16)| other.0.start < range.end && range.start < other.0.end;
        let is_open = region.borrow().sectors[range.clone()]
            .iter()
            .any(|s| s.open);
        if is_open || sent.values().any(is_taken) {
            continue;
        }
        let is_trim = rng.chance(0.15);
        let tag = {
            let mut region = region.borrow_mut();
            region.tags += 1;
            let tag = if is_trim { 0 } else { region.tags };
            for sector in &mut region.sectors[range.clone()] {
                sector.may.push(tag);
                sector.open = true;
            }
            tag
        };
        let flags = if rng.coin() { FUA } else { 0 };
        let (offset, len) = place(region, &range);
        let cookie = if is_trim {
            client.request(flags, TRIM, offset, len, &[]).await?
        } else {
            let data = region.borrow().bytes_of(tag, range.clone());
            client.request(flags, WRITE, offset, len, &data).await?
        };
        sent.insert(cookie, (range, flags));
    }
    while !sent.is_empty() {
        let cookie = client.reply().await?;
        let (range, flags) = sent.remove(&cookie).expect("an answer to a request");
        for sector in &mut region.borrow_mut().sectors[range] {
            sector.open = false;
            if flags == FUA {
                let tag = sector.may.pop();
                sector.may = tag.into_iter().collect();
            }
        }
    }
    Ok(())
}

/// How often things happened: a test in which they don't shows nothing.
#[derive(Default)]
struct Counts {
    connected: Cell<u64>,
    broken: Cell<u64>,
    flushed: Cell<u64>,
    crashed: Cell<u64>,
}

/// A client that comes back until it has done its work. First it looks at everything it has.
async fn persist(
    platform: SimPlatform,
    region: Rc<RefCell<Region>>,
    mut rng: Rng,
    counts: Rc<Counts>,
) {
    let network = platform.network();
    loop {
        let Ok(mut client) = Client::connect(&network).await else {
            platform.sleep_ns(1_000_000).await;
            continue;
        };
        let all = 0..REGION_SECTORS as usize;
        let (offset, len) = place(&region, &all);
        if let Ok(bytes) = client.read(offset, len).await {
            region.borrow_mut().judge(all, &bytes, true);
            break;
        }
    }
    let mut steps = 60;
    while steps > 0 {
        if work(&network, &region, &mut rng, &counts, &mut steps)
            .await
            .is_err()
        {
            counts.broken.set(counts.broken.get() + 1);
            platform.sleep_ns(rng.below(2_000_000)).await;
        }
    }
}

fn task<T: 'static>(platform: &SimPlatform, work: impl Future<Output = T> + 'static) -> Awaited<T> {
    let (done, awaited) = promise();
    platform.spawn(async move { done.fulfil(work.await) });
    awaited
}

/// One life of the node with its clients.
fn live(
    seed: u64,
    disk: &SimDisk,
    regions: &[Rc<RefCell<Region>>],
    counts: &Rc<Counts>,
    lies: bool,
) {
    let mut config = WorldConfig::new(seed);
    let mut rng = Rng::new(seed);
    // The shorter the segments, the less likely each of them is the last.
    let segment_max_bytes = [7, 200, 16 << 10][rng.index(3)];
    let reset = [0.0, 0.002, 0.02][rng.index(3)];
    config.network = NetworkConfig {
        segment_max_bytes,
        reset: reset * segment_max_bytes as f64 / f64::from(16 << 10),
        delay_ns: 1_000..=20_000,
        ..NetworkConfig::default()
    };
    let world = World::with_config(config);
    let platform = world.platform(0);
    if rng.chance(0.8) {
        world.crash_at(CrashPoint {
            nth: rng.below(400),
            counting: Counting::Changes,
            moment: [
                CrashMoment::Before,
                CrashMoment::InFlight,
                CrashMoment::Completed,
            ][rng.index(3)],
        });
    }
    world.spawn(0, serve(platform.clone(), disk.clone(), lies));
    let done: Rc<Cell<bool>> = Rc::default();
    let clients: Vec<Awaited<()>> = regions
        .iter()
        .map(|region| {
            let client = persist(
                platform.clone(),
                region.clone(),
                Rng::new(rng.next_u64()),
                counts.clone(),
            );
            task(&platform, client)
        })
        .collect();
    let all_done = done.clone();
    world.spawn(0, async move {
        for client in clients {
            client.await;
        }
        all_done.set(true);
    });
    world.run_until(|| done.get());
    counts
        .crashed
        .set(counts.crashed.get() + u64::from(!done.get()));
    let mut after = world.crash();
    if rng.chance(0.3) {
        disk.process_killed(&mut after);
    } else {
        disk.power_loss(&mut after);
    }
}

/// Several nodes' worth of lives.
fn try_seeds(seeds: Range<u64>, lies: bool) -> Rc<Counts> {
    let counts: Rc<Counts> = Rc::default();
    for seed in seeds {
        let disk = SimDisk::new(DiskConfig::new(32 << 20));
        let world = World::new(seed);
        let (platform, formatted) = (world.platform(0), disk.clone());
        world.block_on(0, async move {
            let device = platform.open(&formatted);
            let options = FormatOptions {
                journal_count: 1,
                ..FormatOptions::for_size(32 << 20)
            };
            let format = format_device(&platform, &device, options);
            format.await.expect("formats");
        });
        drop(world);
        let regions: Vec<Rc<RefCell<Region>>> = (0..CLIENTS)
            .map(|number| Rc::new(RefCell::new(Region::new(number))))
            .collect();
        for life in 0..LIVES {
            live(seed * LIVES + life, &disk, &regions, &counts, lies);
        }
    }
    counts
}

#[test]
fn what_was_answered_as_durable_is_there_whatever_breaks() {
    let counts = try_seeds(0..40, false);
    assert!(counts.connected.get() > 200, "connections were made");
    assert!(counts.broken.get() > 30, "and broken");
    assert!(counts.flushed.get() > 300, "flushes were answered");
    assert!(counts.crashed.get() > 40, "the node crashed");
}

#[test]
#[should_panic(expected = "may only hold one of")]
fn a_volume_that_lies_about_durability_is_noticed() {
    try_seeds(0..40, true);
}
