//! Thousands of random flipped bits all over images that the engine made: each is noticed, or makes
//! no difference. Never does anybody read wrong data. What may go unnoticed, and why, is in
//! `docs/formats/device.md` and `docs/verification.md` under "Flipped bits".

use std::collections::{BTreeMap, BTreeSet};

use flagstone_device::engine::{
    Change, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece, Pieces,
    Stability, format_device,
};
use flagstone_device::offline::verify::{Kind, Options, Report, verify};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, DiskImage, Rng, SimDisk, SimPlatform, World};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const DEVICE_BYTES: u64 = 160 * MIB;
const JOURNALS: u16 = 2;
/// Blocks of a volume that are used.
const SPACE: u64 = 200;

fn check(image: &DiskImage) -> Report {
    verify(
        image.blocks(DEVICE_BYTES),
        Options::default(),
        &mut |_, _| {},
    )
}

fn run<T: 'static, F: Future<Output = T> + 'static>(
    disk: &SimDisk,
    task: impl FnOnce(SimPlatform, SimDisk) -> F,
) -> T {
    let world = World::new(7);
    let platform = world.platform(0);
    world.block_on(0, task(platform, disk.clone()))
}

/// Opens all journals; `None` if one refuses.
async fn try_open(platform: &SimPlatform, disk: &SimDisk) -> Option<Vec<Engine<SimPlatform>>> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.ok()?;
    let options = EngineOptions::default();
    let mut opening = Vec::new();
    for journal in 0..JOURNALS {
        let (device, shared) = (device.clone(), shared.clone());
        let open = Engine::open(
            platform.clone(),
            device,
            shared,
            superblock.clone(),
            journal,
            options,
        );
        opening.push(platform.timeout_after(open));
    }
    let opened = flagstone_device::engine::join_all(opening).await;
    let opened = opened.into_iter().map(|one| one.map(|(engine, _)| engine));
    opened.collect()
}

/// One engine waits for all others to be known; if one is refused it would wait for ever.
trait TimeoutAfter: Platform {
    async fn timeout_after<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Option<T>;
}

impl TimeoutAfter for SimPlatform {
    async fn timeout_after<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let mut late = std::pin::pin!(self.sleep_ns(60_000_000_000));
        std::future::poll_fn(|context| {
            if let std::task::Poll::Ready(done) = work.as_mut().poll(context) {
                return std::task::Poll::Ready(done.ok());
            }
            late.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

fn formatted() -> SimDisk {
    let disk = SimDisk::new(DiskConfig::new(DEVICE_BYTES));
    run(&disk, |platform, disk| async move {
        let device = platform.open(&disk);
        let options = FormatOptions {
            journal_count: JOURNALS,
            ring_blocks: 256,
            size_bytes: DEVICE_BYTES,
        };
        format_device(&platform, &device, options)
            .await
            .expect("formats");
    });
    disk
}

async fn create(engine: &Engine<SimPlatform>, name: String) -> Handle {
    let new = CreateDvol {
        name,
        id: None,
        size_bytes: SPACE * BLOCK,
        reserved_bytes: 0,
    };
    engine.create(new).await.expect("creates")
}

fn noise(rng: &mut Rng, len: u64) -> IoBuf {
    let bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
    IoBuf::copy_of(&bytes)
}

/// Random changes: whole blocks, parts of blocks, metadata, deallocations, several volumes at once.
async fn change(engine: &Engine<SimPlatform>, dvols: &[Handle], rng: &mut Rng, count: usize) {
    for _ in 0..count {
        let dvol = dvols[rng.below(dvols.len() as u64) as usize];
        let at = rng.below(SPACE - 8) * BLOCK;
        let len = (1 + rng.below(6)) * BLOCK;
        let stable = Stability::Stable;
        match rng.below(8) {
            0 => {
                let gone = engine.deallocate(dvol, at, len, stable).await;
                gone.expect("ok");
            }
            1 | 2 => {
                let len = 1 + rng.below(2000);
                let data = noise(rng, len);
                engine
                    .write(dvol, at + 700, data, stable)
                    .await
                    .expect("ok");
            }
            3 => {
                let (data, meta) = (noise(rng, len), rng.next_u64());
                let written = engine.write_ex(dvol, at, data, meta, stable);
                written.await.expect("ok");
            }
            4 => {
                let mut batch = flagstone_device::engine::Batch::default();
                for &handle in dvols {
                    batch.changes.push(Change::Write {
                        handle,
                        offset_bytes: at,
                        data: noise(rng, BLOCK),
                        meta: 0,
                    });
                }
                engine.commit(batch, stable).await.expect("ok");
            }
            _ => {
                let data = noise(rng, len);
                engine.write(dvol, at, data, stable).await.expect("ok");
            }
        }
    }
}

/// An image with everything: snapshots, clones, a deleted volume with a clone that lives, deltas,
/// tombstones, metadata, two journals, and a chain behind each root whose end is known to be
/// durable.
fn rich(seed: u64) -> DiskImage {
    let disk = formatted();
    run(&disk, move |platform, disk| async move {
        let engines = try_open(&platform, &disk).await.expect("opens");
        let mut rng = Rng::new(seed);
        for (number, engine) in engines.iter().enumerate() {
            let first = create(engine, format!("a{number}")).await;
            let second = create(engine, format!("b{number}")).await;
            change(engine, &[first, second], &mut rng, 30).await;
            let names = [(first, "monday".to_owned()), (second, "monday".to_owned())];
            let layers = engine.snapshot(&names).await.expect("snapshots");
            change(engine, &[first, second], &mut rng, 30).await;
            let names = [(first, "tuesday".to_owned())];
            engine.snapshot(&names).await.expect("snapshots");
            let new = CreateDvol {
                name: format!("c{number}"),
                id: None,
                size_bytes: 0,
                reserved_bytes: 0,
            };
            let clone = engine.clone_of(layers[1], new).await.expect("clones");
            change(engine, &[first, second, clone], &mut rng, 20).await;
            engine.delete(second, true).await.expect("deletes");
            engine.wait_until_reaped().await.expect("reaps");
            engine.checkpoint().await.expect("checkpoints");
            change(engine, &[first, clone], &mut rng, 25).await;
            let names = [(clone, "late".to_owned())];
            engine.snapshot(&names).await.expect("snapshots");
            change(engine, &[first, clone], &mut rng, 10).await;
        }
        // The watermark is told, so that nothing is suspect but the groups that say so. The process
        // is killed; at power loss these groups, which nobody flushes, may be missing.
        platform.sleep_ns(2_000_000_000).await;
        disk.visible_image()
    })
}

/// What a reader finds: each block of each volume and snapshot, with its metadata; `None`: an error.
type Content = BTreeMap<(String, u64), Option<(Vec<u8>, u64)>>;

fn flat(pieces: &Pieces) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeros(count) => bytes.resize(bytes.len() + *count as usize, 0),
        }
    }
    bytes
}

/// Reads everything. `None` if the device is refused.
fn content(image: &DiskImage) -> Option<Content> {
    let disk = SimDisk::from_image(image.clone(), DiskConfig::new(DEVICE_BYTES));
    run(&disk, |platform, disk| async move {
        let engines = try_open(&platform, &disk).await?;
        let mut content = Content::new();
        for engine in &engines {
            let mut handles = Vec::new();
            for dvol in engine.dvols() {
                let layers = engine.layers(dvol.handle.id);
                let named = layers
                    .iter()
                    .map(|l| (format!("{}@{}", dvol.name, l.name), l.handle));
                handles.extend(named);
                handles.push((dvol.name.clone(), dvol.handle));
            }
            for (name, handle) in handles {
                for block in 0..SPACE {
                    let found = engine.read_ex(handle, block * BLOCK, BLOCK).await;
                    let found = match found {
                        Ok((pieces, metas)) => Some((flat(&pieces), metas[0].meta)),
                        Err(DvolError::Corrupt) => None,
                        Err(error) => panic!("{name} block {block}: {error}"),
                    };
                    content.insert((name.clone(), block), found);
                }
            }
        }
        Some(content)
    })
}

fn flipped(image: &DiskImage, rng: &mut Rng, blocks: &[u64]) -> (DiskImage, u64, String) {
    let block = blocks[rng.below(blocks.len() as u64) as usize];
    let (byte, bit) = (rng.below(BLOCK), rng.below(8) as u8);
    let mut flipped = image.clone();
    flipped.flip_bit(block * BLOCK + byte, bit);
    (
        flipped,
        block,
        format!("bit {bit} of byte {byte} of block {block}"),
    )
}

/// Every flip is noticed by `verify`, or the engine serves everything as if it were not there.
/// Whatever `verify` says, nobody reads anything wrong.
#[test]
fn no_flipped_bit_makes_wrong_data() {
    let (mut noticed, mut unnoticed, mut refused, mut errors) = (0, 0, 0, 0);
    let mut kinds = BTreeSet::new();
    for seed in 0..3 {
        let image = rich(seed);
        assert!(check(&image).is_clean(), "{}", check(&image).words());
        let expected = content(&image).expect("opens");
        assert!(expected.len() >= 2000 && expected.values().all(Option::is_some));
        let stored: Vec<u64> = image.stored_in(0, DEVICE_BYTES / BLOCK).collect();
        let metadata: Vec<u64> = stored
            .iter()
            .copied()
            .filter(|&b| !is_data(&image, b))
            .collect();
        let mut rng = Rng::new(seed ^ 0xf11b);
        for round in 0..350 {
            let blocks = if round % 4 == 0 { &stored } else { &metadata };
            let (flipped, _, what) = flipped(&image, &mut rng, blocks);
            let report = check(&flipped);
            kinds.extend(report.findings.problems.iter().map(|p| p.kind));
            let is_clean = report.is_clean();
            *(if is_clean {
                &mut unnoticed
            } else {
                &mut noticed
            }) += 1;
            let Some(found) = content(&flipped) else {
                assert!(
                    !is_clean,
                    "seed {seed}: {what} is refused and verify is content"
                );
                refused += 1;
                continue;
            };
            let same = found.keys().eq(expected.keys());
            assert!(same, "seed {seed}: {what}: other volumes are there");
            for (place, bytes) in &found {
                match bytes {
                    None => {
                        assert!(!is_clean, "seed {seed}: {what}: verify is content");
                        errors += 1;
                    }
                    some => assert!(some == &expected[place], "seed {seed}: {what}: {place:?}"),
                }
            }
        }
    }
    let all = [
        Kind::Superblock,
        Kind::Root,
        Kind::Table,
        Kind::Segment,
        Kind::Node,
        Kind::Data,
        Kind::Journal,
    ];
    for kind in all {
        assert!(kinds.contains(&kind), "{kind:?} was not among {kinds:?}");
    }
    let tally = format!("{noticed} noticed, {unnoticed} not; {refused} refused, {errors} errors");
    assert!(
        noticed > 150 && unnoticed > 100 && refused > 50 && errors > 50,
        "{tally}"
    );
}

/// A bit anywhere in what is live is noticed by `verify`. What is live is found by flipping a whole
/// byte of the block: what reacts to that reacts to each of its bits.
#[test]
fn every_bit_of_what_is_live_is_noticed() {
    let mut flips = 0;
    for seed in 10..12 {
        let image = rich(seed);
        let stored = image.stored_in(0, DEVICE_BYTES / BLOCK);
        let is_live = |&block: &u64| {
            let mut spoiled = image.clone();
            (0..8).for_each(|bit| spoiled.flip_bit(block * BLOCK + 9, bit));
            !check(&spoiled).is_clean()
        };
        let live: Vec<u64> = stored.filter(is_live).collect();
        assert!(live.len() > 300, "{} live blocks", live.len());
        let mut rng = Rng::new(seed);
        for _ in 0..4000 {
            let (flipped, _, what) = flipped(&image, &mut rng, &live);
            assert!(!check(&flipped).is_clean(), "seed {seed}: {what}");
            flips += 1;
        }
    }
    assert_eq!(flips, 8000);
}

/// Whether a block holds noise, as all data of these tests does: metadata has runs of zeros.
fn is_data(image: &DiskImage, block: u64) -> bool {
    let mut bytes = [0; BLOCK as usize];
    image.read(block * BLOCK, &mut bytes);
    bytes.iter().filter(|&&byte| byte == 0).count() < 200
}
