//! Volumes that go to and fro between devices and cores, by themselves or with their journals: under fio, and under `kill -9`.
//!
//! First fio overwrites a volume and checks what it wrote, round after round, while the volume is moved. It may see no
//! error and no wrong byte. How long changes waited at the end of each move is printed and, of each kind, judged (`pauses`). Then a client that nothing holds
//! back writes a volume while that is moved, and how long it got no answer is judged by the same bounds (`flood`).
//! Then the node is killed at random moments while a volume is moved and written: after each kill both devices
//! are verified, a move that was cut off goes on, the volume has to be there once, and the writers (`load`) are held to what they were told.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::flood::{self, Flood};
use super::load::{Random, Writer};
use super::pauses::{self, Busy};
use super::scene::{Scene, find_number, find_strings};
use crate::daemon::{Node, NodeOptions};
use crate::repo;

const DEVICES: [&str; 2] = ["main", "other"];
const DEVICE_BYTES: &str = "2G";
/// Of each kind.
const MOVES: usize = 10;
const KINDS: [Kind; 3] = [Kind::Core, Kind::Device, Kind::Journal];
const WRITERS: u64 = 4;
const REGION_BYTES: u64 = 16 << 20;
/// The node lives this long, at least and at most, before it is killed.
const LIFE_MS: (u64, u64) = (100, 1_000);

/// For a move that goes on.
const PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of a volume.
#[derive(Clone, Copy)]
enum Kind {
    /// It is copied to a journal of another core.
    Core,
    /// It is copied to another device.
    Device,
    /// Its journal is handed over to another core.
    Journal,
}

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Kind::Core => "copied to another core",
            Kind::Device => "copied to another device",
            Kind::Journal => "with its journal to another core",
        }
    }

    /// What the middle pause has to stay below.
    fn bound(self) -> Duration {
        match self {
            Kind::Core | Kind::Journal => pauses::BOUND_CORE,
            Kind::Device => pauses::BOUND_ELSEWHERE,
        }
    }
}

pub(super) fn run(scene: &Scene, kills: u32, seed: u64) -> Result<()> {
    let mut node = start(scene)?;
    node.run(&[
        "volume",
        "create",
        "fio",
        "--size",
        &pauses::VOLUME_BYTES.to_string(),
        "--device",
        DEVICES[0],
    ])?;
    under_fio(scene, &node)?;
    under_a_flood(&node)?;
    let size = (WRITERS * REGION_BYTES).to_string();
    node.run(&[
        "volume", "create", "data", "--size", &size, "--device", DEVICES[0],
    ])?;
    let mut random = Random::new(seed);
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|index| Writer::new(index, REGION_BYTES, seed))
        .collect();
    let mut went_on = 0;
    for kill in 1..=kills {
        let life = LIFE_MS.0 + random.below(LIFE_MS.1 - LIFE_MS.0);
        let life_ms = Duration::from_millis(life);
        let moved = one_life(&mut node, &mut writers, life_ms, kill as usize)?;
        for device in DEVICES {
            verify(scene, device).with_context(|| format!("verify after kill {kill}"))?;
        }
        node.restart()
            .with_context(|| format!("restart after kill {kill}"))?;
        let goes_on = is_moving(&node)?;
        went_on += u32::from(goes_on);
        // As it is moved, if it is, and as it is then.
        for _ in 0..1 + u32::from(goes_on) {
            for (index, writer) in writers.iter_mut().enumerate() {
                let check = writer.check(node.nbd_port, "data");
                check.with_context(|| format!("kill {kill}, writer {index}, seed {seed}"))?;
            }
            until_it_stays(&node).with_context(|| format!("after kill {kill}"))?;
            is_there_once(&node).with_context(|| format!("after kill {kill}"))?;
        }
        let what = if goes_on {
            "; the last one went on"
        } else {
            ""
        };
        println!("kill {kill}: after {life} ms, and {moved} moves that were over{what}");
    }
    println!("{went_on} of {kills} moves went on");
    let read = repo::output(pauses::fio(scene, &node, &["--rw=read"]));
    read.context("fio's check after the last kill")?;
    node.stop()?;
    DEVICES
        .iter()
        .try_for_each(|device| verify(scene, device).map(drop))
}

fn device_path(scene: &Scene, device: &str) -> PathBuf {
    scene.dir.join(format!("{device}.img"))
}

/// A node with two cores and two devices.
fn start(scene: &Scene) -> Result<Node> {
    let mut text = String::new();
    for device in DEVICES {
        let path = device_path(scene, device).display().to_string();
        let mut format = Command::new(&scene.binary);
        format
            .args(["device", "format"])
            .arg(format!("{path}:{DEVICE_BYTES}"));
        repo::output(format)?;
        text += &format!("[[device]]\nname = {device:?}\npath = {path:?}\n");
    }
    let config = scene.dir.join("node.toml");
    fs::write(&config, text).context("writing the configuration")?;
    let mut options = scene.options(DEVICE_BYTES, 2);
    options.config = Some(config);
    Node::start(options)
}

fn verify(scene: &Scene, device: &str) -> Result<String> {
    let mut command = Command::new(&scene.binary);
    command.arg("verify").arg(device_path(scene, device));
    repo::output(command)
}

/// Each run of fio has to pass while the volume is moved, and a last one afterwards.
fn under_fio(scene: &Scene, node: &Node) -> Result<()> {
    let mut busy = Busy::new(scene, node)?;
    let mut held = KINDS.map(|_| Vec::new());
    for _ in 0..MOVES {
        for (kind, held) in KINDS.into_iter().zip(&mut held) {
            let us = loop {
                let moves = || move_it(&node.options, pauses::VOLUME, kind, None);
                if let Some(us) = busy.beside(&node.options, moves)? {
                    break us;
                }
            };
            held.push(us);
            // Some of the load is at its new place.
            thread::sleep(Duration::from_millis(200));
        }
    }
    let others = busy.end()?;
    let mut outcome = Ok(());
    for (kind, held) in KINDS.into_iter().zip(&held) {
        // All are printed, whichever is too long.
        outcome = outcome.and(pauses::judge(
            kind.words(),
            others.bound(kind.bound()),
            held,
        ));
    }
    outcome
}

/// The same under a client that writes as quickly as it is answered.
fn under_a_flood(node: &Node) -> Result<()> {
    let size = flood::VOLUME_BYTES.to_string();
    let words = ["volume", "create", flood::VOLUME, "--size", &size];
    node.run(&[&words[..], &["--device", DEVICES[0]]].concat())?;
    let mut client = Flood::open(node.nbd_port)?;
    let mut seen = KINDS.map(|_| Vec::new());
    for _ in 0..flood::MOVES {
        for (kind, seen) in KINDS.into_iter().zip(&mut seen) {
            let moves = || move_it(&node.options, flood::VOLUME, kind, None);
            seen.push(client.beside(moves).context(kind.words())?);
        }
    }
    let others = client.end()?;
    node.run(&["volume", "delete", flood::VOLUME])?;
    let mut outcome = Ok(());
    for (kind, seen) in KINDS.into_iter().zip(&seen) {
        outcome = outcome.and(flood::judge(kind.words(), others.bound(kind.bound()), seen));
    }
    outcome
}

/// A `flagstone` command that has to succeed, and the JSON that it prints.
pub(super) fn json(node: &NodeOptions, arguments: &[&str]) -> Result<serde_json::Value> {
    let text = repo::output(node.command(&[arguments, &["-o", "json"]].concat()))?;
    serde_json::from_str(&text).with_context(|| format!("`{arguments:?}` printed no JSON"))
}

/// Moves a volume to the other device, to the other core, or with its journal there and back. Returns how long changes waited, in microseconds.
fn move_it(node: &NodeOptions, volume: &str, kind: Kind, limit: Option<&str>) -> Result<u64> {
    let shown = json(node, &["volume", "show", volume])?;
    let core = find_number(&shown, "core").context("it is on no core")?;
    let on_first = find_strings(&shown, "device").contains(&DEVICES[0].to_owned());
    let other_core = (1 - core.min(1)).to_string();
    let mut words = vec!["volume", "move", volume];
    match kind {
        Kind::Core => words.extend(["--core", &other_core]),
        Kind::Device => words.extend(["--device", DEVICES[usize::from(on_first)]]),
        Kind::Journal => {
            let journal = find_number(&shown, "journal").context("it is in no journal")?;
            let (device, journal) = (DEVICES[usize::from(!on_first)], journal.to_string());
            let own_core = core.to_string();
            let mut held_us = 0;
            // There and back: a core that has no journal of a device left takes no volume of it.
            for core in [&other_core, &own_core] {
                let words = ["device", "hand-over", device, "--journal", &journal];
                let handed = json(node, &[&words[..], &["--to-core", core]].concat())?;
                let held = find_number(&handed, "held_us");
                held_us = held_us.max(held.context("nobody says how long changes waited")?);
            }
            return Ok(held_us);
        }
    }
    if let Some(limit) = limit {
        words.extend(["--limit", limit]);
    }
    let moved = json(node, &words)?;
    ensure!(moved["state"] == "done", "it was not moved: {moved}");
    find_number(&moved, "held_us").context("nobody says how long changes waited")
}

/// The volume is written and moved until the node is killed; the first move is another one in each life. Returns how many moves were over.
fn one_life(node: &mut Node, writers: &mut [Writer], life: Duration, first: usize) -> Result<u32> {
    let port = node.nbd_port;
    let commands = node.options.clone();
    let killed = AtomicBool::new(false);
    thread::scope(|scope| {
        let running: Vec<_> = writers
            .iter_mut()
            .map(|writer| scope.spawn(move || writer.run(port, "data")))
            .collect();
        let mover = scope.spawn(|| {
            let mut moves = 0;
            while !killed.load(Ordering::SeqCst) {
                // Some are slow, so that kills find them while they copy.
                let limit = (moves % 4 == 3).then_some("64M");
                let kind = KINDS[(first + moves as usize) % KINDS.len()];
                match move_it(&commands, "data", kind, limit) {
                    Ok(_) => moves += 1,
                    Err(_) if killed.load(Ordering::SeqCst) => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(moves)
        });
        thread::sleep(life);
        killed.store(true, Ordering::SeqCst);
        let mut outcome = node.kill();
        for each in running {
            let result = each.join();
            outcome = outcome.and(result.unwrap_or_else(|_| Err(anyhow!("a client panicked"))));
        }
        let moves = mover.join();
        outcome.and(moves.unwrap_or_else(|_| Err(anyhow!("whoever moves panicked"))))
    })
}

fn is_moving(node: &Node) -> Result<bool> {
    let shown = node.json(&["volume", "show", "data"])?;
    Ok(!shown["moving"].is_null())
}

/// Waits until a move that goes on is over.
fn until_it_stays(node: &Node) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while is_moving(node)? {
        ensure!(Instant::now() < until, "its move doesn't come to an end");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Each volume is listed once, and no device has one that isn't.
fn is_there_once(node: &Node) -> Result<()> {
    let mut listed = find_strings(&node.json(&["volume", "list"])?, "name");
    listed.sort_unstable();
    ensure!(listed == ["data", "fio"], "there are {listed:?}");
    let mut count = 0;
    for device in DEVICES {
        let shown = node.json(&["device", "show", device])?;
        count += find_number(&shown, "volume_count").context("it has no number of volumes")?;
    }
    ensure!(count == 2, "the devices have {count} volumes");
    Ok(())
}
