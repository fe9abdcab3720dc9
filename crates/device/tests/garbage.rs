//! `inspect` and `verify` on devices that hold anything at all: they answer, whatever is there. Both
//! noise, and images in which random bytes were changed and all checksums made right again, which is
//! the only way for nonsense to get past the decoders.

use crate::support;

use std::cell::Cell;
use std::io;

use flagstone_device::format::table::TableKind;
use flagstone_device::offline::verify::{Options, verify};
use flagstone_device::offline::{BlockBytes, Image, ReadBlocks, inspect};
use flagstone_types::{BlockNo, Slot};
use support::patch::{self, TestImage};
use support::{BLOCK, Builder, Rng, script};

/// Everything that reads an image. Returns whether anything was wrong.
fn look(image: &TestImage) -> bool {
    let report = verify(image, Options::default(), &mut |_, _| {});
    let _ = (report.words(), report.tree());
    if let Ok(opened) = Image::open(image) {
        let view = inspect::inspect(&opened, true);
        let _ = (view.words(), view.tree());
        for name in ["dvol-1", "dvol-2@snap-3"] {
            if let Some(view) = inspect::inspect_map(&opened, name) {
                let _ = (view.words(), view.tree());
            }
        }
        let _ = inspect::inspect_block(&opened, opened.geometry.data_start).words();
    }
    !report.is_clean()
}

fn build(seed: u64) -> Builder {
    let mut rng = Rng::new(seed);
    let mut builder = Builder::format(4600, 1, 256);
    builder.start(0);
    builder.reserve(0, 0);
    script::run(&mut builder, 0, &mut rng, 100);
    builder.checkpoint(0, false);
    for _ in 0..4 {
        let dvol = builder.state(0).dvols().map(|(_, slot)| slot).next();
        let dvol = dvol.unwrap_or_else(|| builder.create(0, "dvol-x", None));
        let record = builder.data(0, dvol, rng.below(500), 3, 0);
        builder.unit(0, vec![record]);
    }
    builder
}

#[test]
fn noise() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut image = Builder::format(4400, 2, 128).image;
        for _ in 0..40 {
            let block = BlockNo(rng.below(4400));
            let bytes: Vec<u8> = (0..BLOCK).map(|_| rng.next() as u8).collect();
            image.put(block, &bytes);
        }
        look(&image);
        // Noise on both superblocks: not a device.
        let bytes: Vec<u8> = (0..BLOCK).map(|_| rng.next() as u8).collect();
        image.put(BlockNo(0), &bytes);
        image.put(BlockNo(4399), &bytes);
        assert!(look(&image));
    }
}

/// Changes some bytes: random ones, or a field of four or eight bytes to an extreme value.
fn spoil(rng: &mut Rng, bytes: &mut [u8]) {
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len() as u64 - 8) as usize;
        match rng.below(4) {
            0 => bytes[at] = rng.next() as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => {
                let values = [0, 1, 2, 1 << 39, u64::MAX, 1 << 53, 4399, 300, 301, 302];
                bytes[at..at + 8].copy_from_slice(&rng.pick(&values).to_le_bytes());
            }
            _ => {
                // Something from elsewhere in the same block: right in form, wrong in place.
                let from = rng.below(bytes.len() as u64 - 8) as usize;
                let copy: Vec<u8> = bytes[from..from + 8].to_vec();
                bytes[at..at + 8].copy_from_slice(&copy);
            }
        }
    }
}

fn spoil_somewhere(image: &mut TestImage, slots: &[Slot], rng: &mut Rng) {
    let mut inner = rng.clone();
    rng.next();
    match rng.below(8) {
        0 => patch::patch_page(image, 0, TableKind::Segments, 0, |bytes| {
            spoil(&mut inner, &mut bytes[64..64 + 40]);
        }),
        1 | 2 => patch::patch_page(image, 0, TableKind::Catalogue, 0, |bytes| {
            spoil(&mut inner, &mut bytes[64..]);
        }),
        3 => {
            let number = rng.below(4) as usize;
            patch::patch_group(image, 0, number, |body| spoil(&mut inner, &mut body[..200]));
        }
        4 => patch::patch_root(image, 0, |root| match inner.below(6) {
            0 => root.next_seq = inner.next() | 1,
            1 => root.ring_index = inner.below(256) as u32,
            2 => root.next_layer = 1 + inner.below(50) as u32,
            3 => root.incarnation = 1 + inner.below(9) as u32,
            4 => root.segments = root.catalogue.clone(),
            _ => root.catalogue.truncate(0),
        }),
        _ => {
            let slot = *rng.pick(slots);
            let mut within = rng.clone();
            patch::patch_node(image, 0, slot, &mut within, |bytes| {
                // Where the entries are.
                let count = usize::from(u16::from_le_bytes([bytes[6], bytes[7]])).min(100);
                spoil(&mut inner, &mut bytes[..96 + 40 * count]);
            });
        }
    }
}

#[test]
fn nonsense_under_right_checksums() {
    let mut wrong = 0;
    for seed in 0..8 {
        let builder = build(seed);
        assert!(!look(&builder.image), "seed {seed}: nothing is wrong yet");
        let slots: Vec<Slot> = builder
            .state(0)
            .slots()
            .map(|(slot, _)| slot)
            .take(8)
            .collect();
        for round in 0..150 {
            let mut rng = Rng::new(seed << 32 | round);
            let mut image = builder.image.clone();
            for _ in 0..=rng.below(2) {
                // The last patch may have left something that the next one can't take apart.
                if Image::open(&image).is_ok_and(|i| i.roots(0).current().is_some()) {
                    spoil_once(&mut image, &slots, &mut rng);
                }
            }
            wrong += u32::from(look(&image));
        }
    }
    // Some changes mean nothing: an LSN, a checksum put in its own place, bytes that are not used.
    assert!(wrong > 700, "most changes are noticed: {wrong} of 1200");
}

/// Patches one thing, unless an earlier patch made that impossible.
fn spoil_once(image: &mut TestImage, slots: &[Slot], rng: &mut Rng) {
    if !verify(&*image, Options { fast: true }, &mut |_, _| {}).is_clean() {
        return;
    }
    spoil_somewhere(image, slots, rng);
}

/// An image that counts how much is read from it, and fails some reads.
struct Watched<'a> {
    image: &'a TestImage,
    reads: Cell<u64>,
    bad: BlockNo,
}

impl ReadBlocks for Watched<'_> {
    fn block_count(&self) -> u64 {
        self.image.block_count()
    }

    fn read(&self, block: BlockNo, into: &mut BlockBytes) -> io::Result<()> {
        self.reads.set(self.reads.get() + 1);
        if block == self.bad {
            return Err(io::Error::other("a bad sector"));
        }
        self.image.read(block, into)
    }
}

#[test]
fn a_block_that_cannot_be_read_is_named() {
    let builder = build(3);
    let live: Vec<BlockNo> = builder.live_blocks().into_iter().collect();
    for &bad in live.iter().step_by(7) {
        let watched = Watched {
            image: &builder.image,
            reads: Cell::new(0),
            bad,
        };
        let report = verify(&watched, Options::default(), &mut |_, _| {});
        assert!(!report.is_clean(), "{bad} can't be read");
        let is_named =
            report.findings.problems.iter().any(|problem| {
                problem.blocks.contains(&bad) && problem.what.contains("a bad sector")
            });
        assert!(is_named, "{bad}:\n{}", report.words());
    }
}

/// Work is bounded by what is on the device: a check reads each block a few times, not once per
/// layer that reaches it.
#[test]
fn a_hundred_snapshots_cost_what_they_change() {
    let mut builder = Builder::format(2 * 32768, 1, 1024);
    builder.start(0);
    for segment in 0..2 {
        builder.reserve(0, segment);
    }
    let dvol = builder.create(0, "dvol", None);
    for start in 0..50 {
        let record = builder.data(0, dvol, start * 100, 100, 0);
        builder.unit(0, vec![record]);
    }
    builder.checkpoint(0, false);
    let reads = |builder: &Builder| {
        let watched = Watched {
            image: &builder.image,
            reads: Cell::new(0),
            bad: BlockNo(u64::MAX),
        };
        let report = verify(&watched, Options { fast: true }, &mut |_, _| {});
        assert!(report.is_clean(), "{}", report.words());
        watched.reads.get()
    };
    let before = reads(&builder);
    for number in 0..100 {
        let layer_slot = builder.free_slots(0, 1)[0];
        let snapshot = flagstone_device::format::record::Record::Snapshot {
            slot: dvol,
            layer_slot,
            head: builder.state(0).next_layer,
            created_ns: 1,
            name: format!("snap-{number}"),
        };
        builder.unit(0, vec![snapshot]);
        let record = builder.data(0, dvol, number * 40, 1, 0);
        builder.unit(0, vec![record]);
        builder.checkpoint(0, false);
    }
    let after = reads(&builder);
    // Each snapshot changed a leaf and the inner node above it, and has a few neighbours looked up.
    assert!(
        after < before + 100 * 12,
        "{before} reads before, {after} after"
    );
}
