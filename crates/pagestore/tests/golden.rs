//! An image of a store as version 3 of its header has it, which is never edited: with a log, and a record of a
//! transaction over several stores. If it can't be opened any more the format has changed: that takes a new version,
//! a new page and a new image, and this code has to go on reading the old one.

use crate::support;

use flagstone_device::engine::{Engine, FormatOptions, format_device};
use flagstone_pagestore::{
    Answer, BlockPtr, Commit, CommitError, Message, PageSlot, PageWrite, Participant, StoreId,
    StoreOptions, TransactionId,
};
use flagstone_platform::IoBuf;
use flagstone_sim::{DiskConfig, DiskImage, Fill, SimDisk, SimPlatform, World};
use support::*;

const GOLDEN: &str = include_str!("golden/v3-store.txt");
const DEVICE_BYTES: u64 = 16 * MIB;
const T: TransactionId = TransactionId(0x7eed);
/// The store that is next in the list.
const NEXT: StoreId = StoreId(9);
/// Where the version is in the block of the header, and what it is.
const VERSION_AT: usize = 8;
const VERSION: u8 = 3;

/// A page with a byte in front and nothing else: the image is short.
fn page(byte: u8) -> IoBuf {
    let mut bytes = vec![0; 4096];
    bytes[0] = byte;
    IoBuf::copy_of(&bytes)
}

async fn first_byte(store: &TestStore, block: BlockPtr) -> u8 {
    store.read(block.0).await.expect("readable").data[0]
}

async fn open(platform: &SimPlatform, engine: &Engine<SimPlatform>) -> TestStore {
    let options = StoreOptions {
        injected_one_in: 0,
        recent_bytes: 64 << 10,
        log_bytes: 256 << 10,
        journaled_bytes: 0,
    };
    open_with(platform, engine, options).await
}

/// Blocks of the image: one is written by the transaction, one freed, one sealed, one allocated.
async fn blocks(store: &TestStore) -> Vec<BlockPtr> {
    let mut blocks = Vec::new();
    for block in 0..3 {
        let found = store.block(SMALL, block).await.expect("readable");
        blocks.push(found.expect("is allocated"));
    }
    blocks
}

async fn make_golden(platform: SimPlatform, disk: SimDisk) {
    let device = platform.open(&disk);
    let options = FormatOptions {
        journal_count: 1,
        ring_blocks: 128,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    let formatted = format_device(&platform, &device, options).await;
    formatted.expect("formats");
    let engine = open_engine(&platform, &disk).await;
    let store = open(&platform, &engine).await;
    store.create_extent(SMALL, small()).await.expect("creates");
    for byte in 1..4 {
        let claim = store.claim(SMALL, ALICE).await.expect("has one");
        let write = PageWrite {
            ptr: claim.ptr.0,
            slot: PageSlot(0),
            data: page(byte),
        };
        let commit = Commit {
            allocates: vec![claim.ptr],
            writes: vec![write],
            ..Commit::default()
        };
        store.commit_alone(&commit).await.expect("commits");
    }
    let all = blocks(&store).await;
    let slot = store.read(all[0].0).await.expect("readable").slot;
    let claim = store.claim(SMALL, BOB).await.expect("has one");
    let write = |ptr: BlockPtr, slot, byte| PageWrite {
        ptr: ptr.0,
        slot,
        data: page(byte),
    };
    let part = Commit {
        writes: vec![write(all[0], slot, 11), write(claim.ptr, PageSlot(0), 14)],
        frees: vec![all[1]],
        seals: vec![all[2]],
        allocates: vec![claim.ptr],
        ..Commit::default()
    };
    let asked = store.send(Message::Inquire(T)).await.expect("answers");
    let message = Message::Prepare {
        transaction: T,
        previous: None,
        next: NEXT,
        as_of: asked.as_of,
        part,
    };
    let answer = store.send(message).await.expect("answers").answer;
    assert!(matches!(answer, Answer::Prepared { .. }), "{answer:?}");
}

/// Writes the image as text. It is kept by hand, and never replaced.
#[test]
#[ignore = "run it to make an image of a new version"]
fn make() {
    use std::fmt::Write;
    let disk = SimDisk::new(DiskConfig::new(DEVICE_BYTES));
    let world = World::new(2026);
    world.block_on(0, make_golden(world.platform(0), disk.clone()));
    let image = disk.crash_images().everything_survives();
    let mut text = String::from("# A store with a prepared record, behind a power failure.\n");
    writeln!(text, "blocks {}", disk.size_bytes() / 4096).expect("memory");
    for block in image.stored_in(0, disk.size_bytes() / 4096) {
        writeln!(text, "@{block}").expect("memory");
        for offset in (0..4096).step_by(32) {
            let mut line = [0; 32];
            image.read(block * 4096 + offset, &mut line);
            if line != [0; 32] {
                let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
                writeln!(text, "{offset:03x} {hex}").expect("memory");
            }
        }
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    std::fs::write(format!("{folder}/new-store.txt"), text).expect("written");
}

fn image_of(text: &str) -> DiskImage {
    let mut image = DiskImage::new(Fill::Zeros);
    let mut block = 0;
    for line in text.lines().skip(2) {
        if let Some(number) = line.strip_prefix('@') {
            block = number.parse().expect("a block's number");
            continue;
        }
        let (offset, hex) = line.split_once(' ').expect("an offset and bytes");
        let offset = u64::from_str_radix(offset, 16).expect("an offset");
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        image.write(block * 4096 + offset, &bytes);
    }
    image
}

/// What is prepared in it is held, and happens when it is told to; or it doesn't, and all is as it was.
#[test]
fn a_store_of_version_3_goes_on_where_it_stopped() {
    for is_committed in [true, false] {
        let disk = SimDisk::from_image(image_of(GOLDEN), DiskConfig::new(DEVICE_BYTES));
        let world = World::new(3);
        let platform = world.platform(0);
        world.block_on(0, go_on(platform, disk, is_committed));
    }
}

async fn go_on(platform: SimPlatform, disk: SimDisk, is_committed: bool) {
    let engine = open_engine(&platform, &disk).await;
    let header = engine.dvol(".pagestore").expect("is there").handle;
    let block = engine.read(header, 0, 4096).await.expect("readable");
    assert_eq!(bytes_of(block)[VERSION_AT], VERSION);
    let store = open(&platform, &engine).await;
    assert_eq!(store.records().await, Ok(vec![T]));
    let all = blocks(&store).await;
    let expected = Answer::Prepared {
        previous: None,
        next: NEXT,
    };
    let asked = store.send(Message::Inquire(T)).await.expect("answers");
    assert_eq!(asked.answer, expected);
    let slot = store.read(all[0].0).await.expect("readable").slot;
    let write = Commit {
        writes: vec![PageWrite {
            ptr: all[0].0,
            slot,
            data: page(99),
        }],
        ..Commit::default()
    };
    let busy = CommitError::Busy(all[0].0, T);
    assert_eq!(store.commit(&write).await, Err(busy));
    let (message, answer) = match is_committed {
        true => (Message::DecideAndRelease(T), Answer::Committed),
        false => (Message::Abort(T), Answer::Aborted),
    };
    let done = store.send(message).await.expect("answers");
    assert_eq!(done.answer, answer);
    assert_eq!(store.records().await, Ok(Vec::new()));
    let now = store.block(SMALL, 2).await.expect("readable");
    let now = now.expect("is there");
    assert_eq!(now.0.read_only, is_committed, "sealed");
    assert_eq!(first_byte(&store, now).await, 3);
    let freed = store.block(SMALL, 1).await.expect("readable");
    assert_eq!(freed.is_none(), is_committed, "freed");
    let taken = store.block(SMALL, 3).await.expect("readable");
    assert_eq!(taken.is_some(), is_committed, "allocated");
    if let Some(taken) = taken {
        assert_eq!(taken.0.owner, BOB);
        assert_eq!(first_byte(&store, taken).await, 14);
    }
    let byte = if is_committed { 11 } else { 1 };
    assert_eq!(first_byte(&store, all[0]).await, byte);
    if !is_committed {
        store.commit(&write).await.expect("is free again");
    }
    store.stop().await;
    engine.stop().await.expect("stops");
}
