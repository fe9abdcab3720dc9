//! A tenant whose own volume is moved while it uses it, to another core or another device and back, one move behind the other, as long as the middle
//! third lasts; and how long it waited because of each.
//!
//! What counts is what its client sees: the longest that one of its requests took of those that were answered from the beginning of a move until shortly
//! behind its end. That is no less than the longest time without an answer, since there are always some in flight, and it also shows when writes are
//! held while reads go on.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::load::{Answer, Clock};
use crate::api::Api;
use crate::daemon::Node;
use crate::repo;

/// The tenant whose volume it is.
pub(super) const VICTIM: &str = "first";
/// The node has both if a volume goes from one to the other; all volumes begin on the first.
pub(super) const DEVICES: [&str; 2] = ["here", "there"];
const DEVICE_SIZE: &str = "2G";
/// How often it is looked whether a move is over.
const LOOK: Duration = Duration::from_millis(20);
/// Between two moves: what waited for the end of one is answered, and some of the load is at its new place.
const BETWEEN_NS: u64 = 200_000_000;
/// A move that takes longer doesn't come to its end.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Where it goes, and then back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum To {
    Core,
    Device,
}

impl To {
    /// What the middle one of its waits has to be less than, in milliseconds.
    pub(super) fn bound_ms(self) -> f64 {
        match self {
            To::Core => 50.0,
            To::Device => 200.0,
        }
    }

    fn spec(self, is_there: bool) -> Value {
        let target = usize::from(!is_there);
        match self {
            To::Core => json!({ "core": target }),
            To::Device => json!({ "device": DEVICES[target] }),
        }
    }

    /// For the first volume at a place a segment of the device is laid out there, which is to be over before anything is measured.
    pub(super) fn prepare(self, node: &Node) -> Result<()> {
        let place = match self {
            To::Core => ["--core", "1"],
            To::Device => ["--device", DEVICES[1]],
        };
        let words = ["volume", "create", "settled", "--size", "1MiB"];
        node.run(&[&words[..], &place].concat()).map(drop)
    }
}

/// The configuration of a node with two devices, which are made.
pub(super) fn two_devices(binary: &Path, dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let mut text = String::new();
    for device in DEVICES {
        let path = dir.join(format!("{device}.img"));
        let mut format = Command::new(binary);
        format
            .args(["device", "format"])
            .arg(format!("{}:{DEVICE_SIZE}", path.display()));
        repo::output(format)?;
        let _ = write!(text, "[[device]]\nname = {device:?}\npath = {path:?}\n");
    }
    let config = dir.join("node.toml");
    fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
    Ok(config)
}

/// One whole move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moved {
    /// When it was asked for, and when it was seen to be over.
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// For how long changes were held, as the node says.
    pub(super) held_us: u64,
    pub(super) copied_bytes: u64,
}

/// Moves it to and fro while the middle third lasts. Those that were over then are returned.
pub(super) fn keep_moving(api: &Api, clock: Clock, to: To) -> Result<Vec<Moved>> {
    let path = format!("/v1/volumes/{VICTIM}/move");
    let mut moves = Vec::new();
    let mut is_there = false;
    clock.wait_until(clock.burst_ns());
    loop {
        let from_ns = clock.now_ns();
        api.ask("POST", &path, Some(&to.spec(is_there)))?;
        let status = wait(api, clock, &path)?;
        let to_ns = clock.now_ns();
        is_there = !is_there;
        if to_ns + BETWEEN_NS > clock.burst_end_ns() {
            return Ok(moves);
        }
        let number = |field: &str| {
            let number = status[field].as_u64();
            number.with_context(|| format!("it doesn't say `{field}`: {status}"))
        };
        moves.push(Moved {
            from_ns,
            to_ns,
            held_us: number("held_us")?,
            copied_bytes: number("copied_bytes")?,
        });
        clock.wait_until(to_ns + BETWEEN_NS);
    }
}

fn wait(api: &Api, clock: Clock, path: &str) -> Result<Value> {
    let until_ns = clock.now_ns() + PATIENCE_NS;
    loop {
        let status = api.ask("GET", path, None)?;
        match status["state"].as_str() {
            Some("running") => thread::sleep(LOOK),
            Some("done") => return Ok(status),
            other => bail!("the move's state is {other:?}: {status}"),
        }
        ensure!(
            clock.now_ns() < until_ns,
            "the move doesn't come to its end: {status}"
        );
    }
}

/// The longest that a request took because of each move.
pub(super) fn waits_ns(answers: &[Answer], moves: &[Moved]) -> Vec<u64> {
    let of_move = |moved: &Moved| {
        let within = moved.from_ns..moved.to_ns + BETWEEN_NS;
        let within = answers
            .iter()
            .filter(|answer| within.contains(&answer.at_ns));
        within.map(|answer| answer.took_ns).max().unwrap_or(0)
    };
    moves.iter().map(of_move).collect()
}

/// The middle one, in milliseconds; of an even number the longer of both. Nothing if there is none.
pub(super) fn median_ms(ns: &[u64]) -> f64 {
    let mut sorted = ns.to_vec();
    sorted.sort_unstable();
    let middle = sorted.get(sorted.len() / 2).copied().unwrap_or(0);
    middle as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_move_has_the_longest_wait_of_its_own_time() {
        let moved = |from_ns, to_ns| Moved {
            from_ns,
            to_ns,
            held_us: 0,
            copied_bytes: 0,
        };
        let answer = |at_ns, took_ns| Answer {
            at_ns,
            took_ns,
            price_ns: 0,
        };
        let answers = [
            answer(5, 9_000_000),
            answer(10, 1_000_000),
            answer(20, 3_000_000),
            // What waited for the end of the first one.
            answer(29 + BETWEEN_NS, 7_000_000),
            answer(30 + BETWEEN_NS, 8_000_000),
            answer(2 * BETWEEN_NS, 4_000_000),
        ];
        let moves = [
            moved(10, 30),
            moved(2 * BETWEEN_NS - 5, 2 * BETWEEN_NS),
            moved(9 * BETWEEN_NS, 9 * BETWEEN_NS),
        ];
        let waits = waits_ns(&answers, &moves);
        assert_eq!(waits, [7_000_000, 4_000_000, 0]);
        assert_eq!(median_ms(&waits), 4.0);
        assert_eq!(median_ms(&[]), 0.0);
    }

    #[test]
    fn it_goes_there_and_back() {
        assert_eq!(To::Core.spec(false)["core"], 1);
        assert_eq!(To::Core.spec(true)["core"], 0);
        assert_eq!(To::Device.spec(false)["device"], DEVICES[1]);
    }
}
