//! A flipped bit in anything live is noticed, and one in anything else is not. What is live is
//! what `docs/formats/device.md` says under "Flipped bits"; the builder knows it independently.

use crate::support;

use std::collections::BTreeSet;

use flagstone_device::offline::verify::{Kind, Options, Severity, verify};
use flagstone_types::BlockNo;
use support::patch::{TestImage, read};
use support::{BLOCK, Builder, Rng, script};

fn is_noticed(image: &TestImage) -> bool {
    !verify(image, Options::default(), &mut |_, _| {}).is_clean()
}

/// An image whose ring is empty, or not.
fn build(seed: u64, is_clean: bool) -> Builder {
    let mut rng = Rng::new(seed);
    let mut builder = Builder::format(4400, 2, 128);
    builder.start(0);
    builder.reserve(0, 0);
    script::run(&mut builder, 0, &mut rng, 120);
    builder.checkpoint(0, is_clean);
    if !is_clean {
        script::run(&mut builder, 0, &mut rng, 8);
        let dvol = builder.create(0, "last", None);
        let record = builder.data(0, dvol, 5, 40, 9);
        builder.unit(0, vec![record]);
    }
    builder
}

fn flip(image: &TestImage, block: BlockNo, bit: usize) -> TestImage {
    let mut image = image.clone();
    let mut bytes = read(&image, block);
    bytes[bit / 8] ^= 1 << (bit % 8);
    image.put(block, &bytes);
    image
}

fn random_bits(seed: u64, is_clean: bool, flips: usize) {
    let builder = build(seed, is_clean);
    assert!(
        !is_noticed(&builder.image),
        "seed {seed}: nothing is wrong yet"
    );
    let live: Vec<BlockNo> = builder.live_blocks().into_iter().collect();
    let live_set: BTreeSet<BlockNo> = live.iter().copied().collect();
    let dead: Vec<BlockNo> = (0..builder.superblock.block_count)
        .map(BlockNo)
        .filter(|block| !live_set.contains(block))
        .collect();
    let mut rng = Rng::new(seed ^ 0xf11b);
    for _ in 0..flips {
        let (block, bit) = (*rng.pick(&live), rng.below(BLOCK as u64 * 8) as usize);
        let flipped = flip(&builder.image, block, bit);
        let report = verify(&flipped, Options::default(), &mut |_, _| {});
        // What could also be a write that never finished is only remarked on.
        let is_remarked = builder.is_suspect(block)
            && report
                .findings
                .notes
                .iter()
                .any(|note| note.contains("one bit away"));
        assert!(
            !report.is_clean() || is_remarked,
            "seed {seed}: bit {bit} of live {block} is not noticed"
        );
        let (block, bit) = (*rng.pick(&dead), rng.below(BLOCK as u64 * 8) as usize);
        let flipped = flip(&builder.image, block, bit);
        let report = verify(&flipped, Options::default(), &mut |_, _| {});
        assert!(
            report.is_clean(),
            "seed {seed}: bit {bit} of {block}:\n{}",
            report.words()
        );
    }
}

#[test]
fn random_flips_after_a_stop_in_order() {
    for seed in 0..6 {
        random_bits(seed, true, 100);
    }
}

#[test]
fn random_flips_with_groups_behind_the_root() {
    for seed in 0..6 {
        random_bits(seed, false, 100);
    }
}

/// Each place that could pass for a write that never finished, at every 61st bit.
#[test]
fn the_ends_of_journals_are_not_taken_for_torn_writes() {
    let builder = build(99, false);
    let last_group = *builder.ring_live(0).last().expect("a group");
    let places = [
        builder.geometry.root_slots(0),
        builder.geometry.root_slots(1),
    ];
    for bit in (0..BLOCK * 8).step_by(61) {
        for block in [last_group, places[0][0], places[0][1], places[1][1]] {
            let flipped = flip(&builder.image, block, bit);
            let report = verify(flipped, Options::default(), &mut |_, _| {});
            // The older of the roots can be spared, and the newest can be mended.
            let expected = match block == last_group {
                false => Severity::Harmless,
                true => Severity::Loss,
            };
            assert_eq!(
                report.worst(),
                Some(expected),
                "bit {bit} of {block}:\n{}",
                report.words()
            );
        }
    }
}

#[test]
fn messages_name_the_block_and_the_bit() {
    let builder = build(7, true);
    let data = builder.some_data_block(0);
    let report = verify(
        flip(&builder.image, data, 12_345),
        Options::default(),
        &mut |_, _| {},
    );
    assert_eq!(
        report.findings.count_of(Kind::Data),
        1,
        "{}",
        report.words()
    );
    let problem = &report.findings.problems[0];
    assert_eq!(problem.blocks, [data]);
    assert!(
        problem.what.contains("bit 1 of byte 1543 is flipped"),
        "{}",
        problem.what
    );
    let fast = verify(
        flip(&builder.image, data, 12_345),
        Options { fast: true },
        &mut |_, _| {},
    );
    assert!(fast.is_clean(), "the fast check doesn't read data");
}
