//! The rules of power loss, one by one, without executor and latencies. `tests/properties.rs`
//! compares random runs with an oracle that shares no code with this.

use std::collections::BTreeSet;

use super::*;

const DISK_SECTORS: u64 = 64;

fn cache() -> WriteCache {
    WriteCache::new(DiskImage::new(Fill::Zeros))
}

/// Sectors that all hold `tag`.
fn tagged(tag: u8, sectors: u64) -> Payload {
    Payload::Bytes(vec![tag; (sectors * SECTOR_BYTES) as usize].into())
}

fn submit(cache: &mut WriteCache, sector: u64, sectors: u64, tag: u8) -> ChangeId {
    let len_bytes = sectors * SECTOR_BYTES;
    cache.submit(sector * SECTOR_BYTES, len_bytes, tagged(tag, sectors))
}

fn write(cache: &mut WriteCache, sector: u64, sectors: u64, tag: u8) {
    let id = submit(cache, sector, sectors, tag);
    assert!(cache.complete(id, Survival::Whole, None));
}

fn flush(cache: &mut WriteCache) {
    let started = cache.flush_started();
    cache.flushed(started);
}

fn tag_in(image: &DiskImage, sector: u64) -> u8 {
    let mut bytes = [0; SECTOR_BYTES as usize];
    image.read(sector * SECTOR_BYTES, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a torn sector");
    bytes[0]
}

fn visible(cache: &WriteCache, sector: u64) -> u8 {
    let mut bytes = [0; SECTOR_BYTES as usize];
    cache.read(sector * SECTOR_BYTES, &mut bytes, None);
    assert_eq!(bytes[0], tag_in(&cache.visible(), sector));
    bytes[0]
}

/// What the sectors may hold together after a power loss, over every outcome.
fn outcomes(cache: &WriteCache, sectors: &[u64]) -> BTreeSet<Vec<u8>> {
    let images = crate::crash::CrashImages {
        cache: cache.clone(),
    };
    let outcomes = images.sector_subsets(16).unwrap();
    let tags = |image: DiskImage| sectors.iter().map(|s| tag_in(&image, *s)).collect();
    outcomes.map(tags).collect()
}

fn set<const N: usize>(outcomes: [&[u8]; N]) -> BTreeSet<Vec<u8>> {
    outcomes.into_iter().map(<[u8]>::to_vec).collect()
}

#[test]
fn a_completed_write_is_durable_only_by_a_flush() {
    let mut cache = cache();
    write(&mut cache, 3, 1, 1);
    assert_eq!(visible(&cache, 3), 1);
    assert_eq!(outcomes(&cache, &[3]), set([&[0], &[1]]));
    flush(&mut cache);
    assert_eq!(outcomes(&cache, &[3]), set([&[1]]));
    assert!(cache.volatile().is_empty());
}

#[test]
fn a_flush_does_not_cover_what_completes_while_it_runs() {
    let mut cache = cache();
    let early = submit(&mut cache, 0, 1, 1);
    let started = cache.flush_started();
    cache.complete(early, Survival::Whole, None);
    write(&mut cache, 1, 1, 2);
    cache.flushed(started);
    let all = set([&[0, 0], &[1, 0], &[0, 2], &[1, 2]]);
    assert_eq!(outcomes(&cache, &[0, 1]), all);
}

#[test]
fn a_write_in_flight_may_already_be_there() {
    let mut cache = cache();
    submit(&mut cache, 5, 1, 1);
    assert_eq!(visible(&cache, 5), 0);
    assert_eq!(outcomes(&cache, &[5]), set([&[0], &[1]]));
    let mut seen = BTreeSet::new();
    let mut rng = Rng::new(1);
    for _ in 0..50 {
        let mut bytes = [9; SECTOR_BYTES as usize];
        cache.read(5 * SECTOR_BYTES, &mut bytes, Some(&mut rng));
        seen.insert(bytes[0]);
    }
    assert_eq!(seen, BTreeSet::from([0, 1]));
}

#[test]
fn writes_tear_between_sectors_only() {
    let mut cache = cache();
    // Over a page's end. `tag_in` checks that no sector is torn.
    write(&mut cache, 7, 2, 1);
    let all = set([&[0, 0], &[1, 0], &[0, 1], &[1, 1]]);
    assert_eq!(outcomes(&cache, &[7, 8]), all);
    let mut rng = Rng::new(1);
    let images = crate::crash::CrashImages { cache };
    let sampled: BTreeSet<Vec<u8>> = (0..200)
        .map(|_| {
            let image = images.sample(&mut rng);
            vec![tag_in(&image, 7), tag_in(&image, 8)]
        })
        .collect();
    assert_eq!(sampled, all);
}

#[test]
fn an_overwrite_may_leave_old_older_or_new() {
    let mut cache = cache();
    write(&mut cache, 0, 1, 1);
    write(&mut cache, 0, 1, 2);
    assert_eq!(visible(&cache, 0), 2);
    assert_eq!(outcomes(&cache, &[0]), set([&[0], &[1], &[2]]));
    flush(&mut cache);
    assert_eq!(outcomes(&cache, &[0]), set([&[2]]));
    write(&mut cache, 0, 1, 3);
    assert_eq!(outcomes(&cache, &[0]), set([&[2], &[3]]));
}

#[test]
fn a_flushed_write_below_one_in_flight() {
    let mut cache = cache();
    write(&mut cache, 0, 2, 1);
    let over = submit(&mut cache, 1, 1, 2);
    flush(&mut cache);
    assert_eq!(outcomes(&cache, &[0, 1]), set([&[1, 1], &[1, 2]]));
    cache.complete(over, Survival::Whole, None);
    assert_eq!(outcomes(&cache, &[0, 1]), set([&[1, 1], &[1, 2]]));
}

#[test]
fn overlapping_writes_in_flight_together_end_in_either_order() {
    let mut tops = BTreeSet::new();
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut cache = cache();
        let one = submit(&mut cache, 0, 1, 1);
        let two = submit(&mut cache, 0, 1, 2);
        cache.complete(one, Survival::Whole, Some(&mut rng));
        cache.complete(two, Survival::Whole, Some(&mut rng));
        // A third, submitted later, is always on top.
        let top = visible(&cache, 0);
        tops.insert(top);
        let started = cache.flush_started();
        cache.flushed(started);
        assert_eq!(
            visible(&cache, 0),
            top,
            "a flush does not change what is read"
        );
        write(&mut cache, 0, 1, 3);
        assert_eq!(visible(&cache, 0), 3);
        cache.check_invariants();
    }
    assert_eq!(tops, BTreeSet::from([1, 2]));
}

#[test]
fn covered_and_uncovered_in_one_place() {
    // The one that is not covered lies below the one that is: the flush settles both.
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut cache = cache();
        let slow = submit(&mut cache, 0, 1, 2);
        write(&mut cache, 0, 1, 1);
        let started = cache.flush_started();
        cache.complete(slow, Survival::Whole, Some(&mut rng));
        let top = visible(&cache, 0);
        cache.flushed(started);
        assert_eq!(visible(&cache, 0), top);
        let expected = match top {
            1 => set([&[1]]),
            _ => set([&[1], &[2]]),
        };
        assert_eq!(outcomes(&cache, &[0]), expected);
        cache.check_invariants();
    }
}

#[test]
fn a_failed_flush_loses_for_good() {
    let (mut lost, mut kept, mut vanished) = (0, 0, 0);
    for seed in 0..400 {
        let mut cache = cache();
        write(&mut cache, 0, 1, 1);
        flush(&mut cache);
        write(&mut cache, 0, 1, 2);
        cache.fail_flush(&mut Rng::new(seed));
        flush(&mut cache);
        let readable = visible(&cache, 0);
        let after = outcomes(&cache, &[0]);
        assert_eq!(
            after.len(),
            1,
            "a later flush leaves no doubt, right or wrong"
        );
        match (after.contains(&vec![2]), readable) {
            (true, 2) => kept += 1,
            (false, 2) => lost += 1,
            (false, 1) => vanished += 1,
            other => panic!("{other:?}"),
        }
        // What is written and flushed afterwards is safe.
        write(&mut cache, 0, 1, 3);
        flush(&mut cache);
        assert_eq!(outcomes(&cache, &[0]), set([&[3]]));
        cache.check_invariants();
    }
    for count in [lost, kept, vanished] {
        assert!(count > 40, "{lost} lost, {kept} kept, {vanished} vanished");
    }
}

#[test]
fn a_failed_flush_may_have_done_its_work() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let mut cache = cache();
        write(&mut cache, 0, 2, 1);
        cache.fail_flush(&mut Rng::new(seed));
        seen.insert(outcomes(&cache, &[0, 1]));
    }
    assert!(seen.contains(&set([&[1, 1]])), "all of it is durable");
    assert!(
        seen.contains(&set([&[1, 0]])),
        "or a part, and the rest lost"
    );
    assert!(seen.contains(&set([&[0, 0]])), "or nothing");
    assert!(
        seen.iter().any(|outcomes| outcomes.len() == 4),
        "or all is open"
    );
}

#[test]
fn tears_are_prefixes_suffixes_and_scattered() {
    let mut rng = Rng::new(3);
    let kept = |survival: Survival| (16..32).map(|sector| survival.keeps(sector)).collect();
    let (mut prefixes, mut suffixes, mut scattered) = (0, 0, 0);
    for _ in 0..300 {
        let survival = Survival::torn(&mut rng, 16 * SECTOR_BYTES, 16 * SECTOR_BYTES);
        let kept: Vec<bool> = kept(survival);
        let changes = kept.windows(2).filter(|pair| pair[0] != pair[1]).count();
        match (changes, kept[0]) {
            (0, _) => {} // Everything or nothing.
            (1, true) => prefixes += 1,
            (1, false) => suffixes += 1,
            _ => scattered += 1,
        }
    }
    for count in [prefixes, suffixes, scattered] {
        assert!(count > 50, "{prefixes}, {suffixes}, {scattered}");
    }
}

#[test]
fn after_doubt_nothing_is_sure_until_it_is_written_again() {
    let mut cache = cache();
    write(&mut cache, 0, 1, 1);
    cache.doubt_all();
    flush(&mut cache);
    assert_eq!(outcomes(&cache, &[0]), set([&[0], &[1]]));
    write(&mut cache, 0, 1, 2);
    flush(&mut cache);
    assert_eq!(outcomes(&cache, &[0]), set([&[2]]));
}

#[test]
fn a_partial_write_leaves_the_other_sectors_alone() {
    let mut cache = cache();
    write(&mut cache, 0, 4, 1);
    flush(&mut cache);
    let torn = submit(&mut cache, 0, 4, 2);
    cache.complete(torn, Survival::Before(1), None);
    assert_eq!(visible(&cache, 0), 2);
    assert_eq!(visible(&cache, 1), 1);
    let none = submit(&mut cache, 0, 4, 3);
    cache.complete(none, Survival::Nothing, None);
    assert_eq!(visible(&cache, 0), 2);
    flush(&mut cache);
    assert_eq!(outcomes(&cache, &[0, 1, 3]), set([&[2, 1, 1]]));
}

#[test]
fn a_discard_costs_what_is_stored() {
    let mut cache = cache();
    write(&mut cache, 0, 8, 1);
    flush(&mut cache);
    write(&mut cache, 16, 8, 2);
    assert_eq!(cache.allocated_pages(), 2);
    let everything = cache.submit(0, 1 << 50, Payload::Zeros);
    cache.complete(everything, Survival::Whole, None);
    assert_eq!((visible(&cache, 0), visible(&cache, 16)), (0, 0));
    assert_eq!(cache.allocated_pages(), 0);
    assert_eq!(cache.stable().stored_pages(), 1);
    flush(&mut cache);
    assert_eq!(cache.stable().stored_pages(), 0);
    assert!(cache.volatile().is_empty());
}

#[test]
fn invariants_hold_in_random_runs() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut cache = cache();
        let mut in_flight = Vec::new();
        let mut flushes = Vec::new();
        for step in 0..60 {
            let sector = rng.below(DISK_SECTORS - 20);
            match rng.below(12) {
                0..=3 => {
                    let sectors = 1 + rng.below(20);
                    in_flight.push(submit(&mut cache, sector, sectors, step));
                }
                4..=6 if !in_flight.is_empty() => {
                    let id = in_flight.swap_remove(rng.index(in_flight.len()));
                    let survival = Survival::any(&mut rng, 0, DISK_SECTORS * SECTOR_BYTES);
                    assert!(cache.complete(id, survival, Some(&mut rng)));
                }
                7 => {
                    let len_bytes = (1 + rng.below(20)) * SECTOR_BYTES;
                    let id = cache.submit(sector * SECTOR_BYTES, len_bytes, Payload::Noise(1));
                    cache.complete(id, Survival::Whole, Some(&mut rng));
                }
                8 => flushes.push(cache.flush_started()),
                9 if !flushes.is_empty() => {
                    let started = flushes.swap_remove(rng.index(flushes.len()));
                    let before = cache.visible().content_hash();
                    cache.flushed(started);
                    assert_eq!(cache.visible().content_hash(), before);
                }
                10 => cache.fail_flush(&mut rng),
                11 => cache.abandon_in_flight(&mut rng),
                _ => {}
            }
            if rng.below(12) == 11 {
                in_flight.clear();
                cache.abandon_in_flight(&mut rng);
            }
            in_flight.retain(|id| cache.in_flight.contains_key(&id.0));
            cache.check_invariants();
        }
    }
}
