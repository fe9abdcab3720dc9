//! The same seed is the same run: in another world, on another thread, at another time.

use flagstone_sim::CrashMoment;
use flagstone_sim::workload::{Plan, Report, Script, crash_script, run, whole_script};

/// Seeds of all kinds: with and without faults, one core and two, short lives and long.
const SEEDS: [u64; 12] = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144];

fn hash_of(seed: u64) -> u64 {
    let report: Report = run(Plan::of(seed));
    assert_eq!(report.failure, None, "seed {seed}");
    report.hash
}

#[expect(
    clippy::disallowed_methods,
    reason = "each thread has worlds of its own"
)]
fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(work).join().expect("it does not panic")
}

#[test]
fn a_seed_has_one_trace() {
    let here: Vec<u64> = SEEDS.iter().map(|&seed| hash_of(seed)).collect();
    let there = elsewhere(|| {
        // In another order, so that nothing is handed on from run to run.
        let mut hashes: Vec<u64> = SEEDS.iter().rev().map(|&seed| hash_of(seed)).collect();
        hashes.reverse();
        hashes
    });
    assert_eq!(here, there);
    let mut different = here.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(
        different.len(),
        SEEDS.len(),
        "each seed has a trace of its own"
    );
}

#[test]
fn a_script_has_one_trace() {
    let run = |script| {
        let whole = whole_script(script);
        assert_eq!(whole.failure, None);
        let middle = whole.changes / 2;
        let crashed = crash_script(script, middle, CrashMoment::InFlight, 0..4);
        (
            whole.changes,
            whole.hash,
            crashed
                .expect("nothing is wrong")
                .expect("the script gets that far"),
        )
    };
    for script in Script::ALL {
        assert_eq!(run(script), elsewhere(move || run(script)));
    }
}
