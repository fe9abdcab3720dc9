//! `verify` finds nothing wrong with images that are right.

use crate::support;

use flagstone_device::format::record::Record;
use flagstone_device::offline::verify::{Options, Report, verify};
use flagstone_device::offline::{Overlay, Zeros};
use support::{Builder, Rng, script};

fn check(image: &Overlay<Zeros>) -> Report {
    verify(image, Options::default(), &mut |_, _| {})
}

fn assert_clean(image: &Overlay<Zeros>, what: &str) -> Report {
    let report = check(image);
    assert!(report.is_clean(), "{what}:\n{}", report.words());
    report
}

#[test]
fn a_formatted_device_is_clean() {
    let builder = Builder::format(4096, 2, 128);
    let report = assert_clean(&builder.image, "just formatted");
    assert_eq!(report.counts.journals, 2);
    assert_eq!(report.counts.segments, 0);
}

#[test]
fn random_histories_are_clean_after_a_checkpoint_and_with_a_full_ring() {
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let mut builder = Builder::format(2 * 32768 + 300, 2, 256);
        for journal in 0..2 {
            builder.start(journal);
            builder.reserve(journal, u32::from(journal));
        }
        for round in 0..6 {
            for journal in 0..2 {
                script::run(&mut builder, journal, &mut rng, 30);
            }
            let report = assert_clean(&builder.image, &format!("seed {seed} round {round}"));
            assert_eq!(report.counts.dropped_units, 0);
            builder.restart(0);
            assert_clean(
                &builder.image,
                &format!("seed {seed} round {round}, journal 0 restarted"),
            );
        }
        builder.checkpoint(1, true);
        let report = assert_clean(&builder.image, &format!("seed {seed} at the end"));
        assert!(report.counts.data_blocks > 0 && report.counts.nodes > 0);
        assert_eq!(report.counts.groups, 0);
    }
}

/// Power fails at a random moment: whatever subset of the unflushed writes is there, verify finds
/// nothing wrong and counts what recovery would leave out.
#[test]
fn random_crashes_are_clean() {
    let mut dropped = 0;
    for seed in 0..12 {
        let mut rng = Rng::new(1000 + seed);
        let mut builder = Builder::format(4600, 1, 256);
        builder.start(0);
        builder.reserve(0, 0);
        for round in 0..12 {
            script::run(&mut builder, 0, &mut rng, 12);
            for crash in 0..3 {
                let image = builder.crash_image(&mut rng);
                let what = format!("seed {seed} round {round} crash {crash}");
                dropped += assert_clean(&image, &what).counts.dropped_units;
            }
        }
    }
    assert!(dropped > 20, "the crashes hit something: {dropped}");
}

/// A unit over two dvols, one block of which is missing, is left out on both; and what it had
/// displaced, which is suspect too and missing as well, is left out after it.
#[test]
fn suspect_units_are_left_out_whole_and_in_turn() {
    let mut builder = Builder::format(4400, 1, 128);
    builder.start(0);
    builder.reserve(0, 0);
    let first = builder.create(0, "first", None);
    let second = builder.create(0, "second", None);
    let record = builder.data(0, first, 0, 1, 0);
    builder.unit(0, vec![record]);
    builder.flush();
    let displaced = builder.data(0, first, 0, 1, 0);
    let (lost_before, _) = displaced.new_blocks().next().expect("one block");
    builder.unit(0, vec![displaced]);
    let records = vec![
        builder.data(0, first, 0, 1, 0),
        builder.data(0, second, 0, 1, 0),
    ];
    let (lost, _) = records[1].new_blocks().next().expect("one block");
    builder.unit(0, records);
    let mut image = builder.image.clone();
    image.put(lost_before, &[]);
    let report = assert_clean(&image, "a displaced mapping isn't looked at");
    assert_eq!(
        (report.counts.dropped_units, report.counts.data_blocks),
        (0, 2)
    );
    image.put(lost, &[]);
    let report = assert_clean(&image, "both units are left out");
    assert_eq!(
        (report.counts.dropped_units, report.counts.data_blocks),
        (2, 1)
    );
}

/// A part of a block goes with the block that it was written over. Over what that block had replaced, it would
/// displace the part that lies there, which is durable.
#[test]
fn a_part_is_left_out_with_the_block_below_it() {
    let mut builder = Builder::format(4400, 1, 128);
    builder.start(0);
    builder.reserve(0, 0);
    let dvol = builder.create(0, "first", None);
    let records = [
        builder.data(0, dvol, 0, 1, 0),
        builder.delta(0, dvol, 0, (0, 100)),
    ];
    for record in records {
        builder.unit(0, vec![record]);
    }
    builder.flush();
    let block = builder.data(0, dvol, 0, 1, 0);
    let (lost, _) = block.new_blocks().next().expect("one block");
    builder.unit(0, vec![block]);
    let part = builder.delta(0, dvol, 0, (200, 300));
    builder.unit(0, vec![part]);
    let counts = |image: &Overlay<Zeros>| {
        let counts = assert_clean(image, "a part over a suspect block").counts;
        (counts.dropped_units, counts.data_blocks)
    };
    let mut image = builder.image.clone();
    assert_eq!(counts(&image), (0, 1));
    image.put(lost, &[]);
    assert_eq!(counts(&image), (2, 1), "both");
}

/// What is mapped under a delta goes with it, and so does what is written over that; but not with the block that it replaced, nor with one of
/// its kind before it.
#[test]
fn what_lies_under_a_delta_is_left_out_with_it() {
    let mut builder = Builder::format(4400, 1, 128);
    builder.start(0);
    builder.reserve(0, 0);
    let dvol = builder.create(0, "first", None);
    let record = builder.data(0, dvol, 0, 1, 0);
    builder.unit(0, vec![record]);
    builder.flush();
    let mut blocks = Vec::new();
    for is_delta in [true, false, false, true, false] {
        let record = match is_delta {
            true => builder.delta(0, dvol, 0, (0, 2048)),
            false => builder.under(0, dvol, 0, 7),
        };
        blocks.extend(record.new_blocks().map(|(block, _)| block));
        builder.unit(0, vec![record]);
    }
    let counts = |lost: &[usize]| {
        let mut image = builder.image.clone();
        for &number in lost {
            image.put(blocks[number], &[]);
        }
        let counts = assert_clean(&image, &format!("without {lost:?}")).counts;
        (
            counts.dropped_units,
            counts.data_blocks,
            counts.delta_blocks,
        )
    };
    assert_eq!(counts(&[]), (0, 1, 1));
    // What was displaced isn't looked at.
    assert_eq!(counts(&[0, 1, 2]), (0, 1, 1));
    assert_eq!(counts(&[4]), (1, 1, 1));
    assert_eq!(counts(&[3]), (2, 1, 1), "the delta and what is under it");
    // Then the one before is final, and is missing as well: what was written over it goes, too.
    assert_eq!(counts(&[2, 4]), (3, 1, 1));
    assert_eq!(counts(&[0, 3]), (5, 1, 0), "all but the block");
}

/// An aborted unit is left out although its data is there, wherever the watermark stands.
#[test]
fn aborted_units_never_happened() {
    let mut builder = Builder::format(4400, 1, 128);
    builder.start(0);
    builder.reserve(0, 0);
    let dvol = builder.create(0, "first", None);
    let kept = builder.data(0, dvol, 0, 1, 0);
    let aborted = builder.data(0, dvol, 1, 1, 0);
    builder.apply(0, &kept);
    let seq = builder.next_seq(0);
    builder.group(0, &[vec![kept], vec![aborted]]);
    builder.flush();
    builder.unit(0, vec![Record::Abort { seq, unit: 1 }]);
    builder.flush();
    builder.group(0, &[]);
    let report = assert_clean(&builder.image, "an aborted unit");
    assert_eq!(
        (report.counts.data_blocks, report.counts.dropped_units),
        (1, 0)
    );
}

/// A layer is half reaped whose nodes were never written: the next checkpoint writes them, because
/// the layer's map still has them, and somebody must free them again.
#[test]
fn reaping_what_was_not_written_yet_leaks_nothing() {
    let mut builder = Builder::format(4600, 1, 256);
    builder.start(0);
    builder.reserve(0, 0);
    let dvol = builder.create(0, "short-lived", None);
    let record = builder.data(0, dvol, 0, 300, 0);
    builder.unit(0, vec![record]);
    builder.unit(0, vec![Record::DeleteDvol { slot: dvol }]);
    assert!(builder.reap(0, 150), "passes the first leaf");
    builder.checkpoint(0, false);
    assert_clean(&builder.image, "half reaped");
    while builder.reap(0, 150) {}
    builder.checkpoint(0, false);
    builder.checkpoint(0, false);
    let report = assert_clean(&builder.image, "reaped");
    assert_eq!((report.counts.hidden_layers, report.counts.nodes), (0, 0));
}
