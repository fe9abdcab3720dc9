//! Volumes that go to and fro between two nodes: under fio, and under `kill -9` of either.
//!
//! First fio, attached to one node by NBD, overwrites a volume and checks what it wrote, while the volume is moved to the other node and back, again
//! and again. It may see no error and no wrong byte, and the middle one of the pauses is judged (`pauses`). Then one node after the other is
//! killed at random moments while a volume is moved and written: behind each death both devices are verified, the volume has to be served by
//! one node and no other, and the writers (`load`) are held to what they were told.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::flood::{self, Flood};
use super::load::{Random, Writer};
use super::pauses::{self, Busy};
use super::scene::{Scene, find_number, find_strings};
use crate::daemon::{Node, NodeOptions, free_port};
use crate::repo;

const DEVICE_BYTES: &str = "1G";
const MOVES: usize = 10;
/// On both nodes: each has a demo volume.
const VOLUMES: u64 = 4;
const WRITERS: u64 = 4;
const REGION_BYTES: u64 = 4 << 20;
/// The first node lives this long, at least and at most, before it is killed.
const LIFE_MS: (u64, u64) = (50, 2_500);
/// How long two nodes may take to find out whose a volume is.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// Two nodes, and what commands need to know of each.
struct Pair([Node; 2]);

/// How a command reaches a node.
#[derive(Clone)]
struct Reached {
    options: NodeOptions,
    api_port: u16,
}

impl Reached {
    fn of(node: &Node) -> Reached {
        Reached {
            options: node.options.clone(),
            api_port: node.api_port,
        }
    }
}

pub(super) fn run(scene: &Scene, kills: u32, seed: u64) -> Result<()> {
    let mut pair = Pair([start(scene, "one")?, start(scene, "other")?]);
    let create = |node: &Node, name: &str, bytes: u64| {
        node.run(&["volume", "create", name, "--size", &bytes.to_string()])
            .map(drop)
    };
    create(&pair.0[0], pauses::VOLUME, pauses::VOLUME_BYTES)?;
    under_fio(scene, &pair)?;
    create(&pair.0[0], flood::VOLUME, flood::VOLUME_BYTES)?;
    under_a_flood(&pair)?;
    create(&pair.0[0], "data", WRITERS * REGION_BYTES)?;
    let mut random = Random::new(seed);
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|index| Writer::new(index, REGION_BYTES, seed))
        .collect();
    let mut at = 0;
    for kill in 1..=kills {
        let life = Duration::from_millis(LIFE_MS.0 + random.below(LIFE_MS.1 - LIFE_MS.0));
        let victim = random.below(2) as usize;
        // Both are down for a while, or one after the other.
        let together = random.below(2) == 0;
        let moved = one_life(&mut pair, at, &mut writers, (life, victim, together))
            .with_context(|| format!("kill {kill}, seed {seed}"))?;
        at = settled(&pair).with_context(|| format!("after kill {kill}, seed {seed}"))?;
        for (index, writer) in writers.iter_mut().enumerate() {
            let check = writer.check(pair.0[at].nbd_port, "data");
            check.with_context(|| format!("kill {kill}, writer {index}, seed {seed}"))?;
        }
        println!(
            "kill {kill}: node {victim} after {} ms{}, {moved} moves were over; it is at node {at}",
            life.as_millis(),
            if together { ", then both" } else { "" }
        );
    }
    for node in &mut pair.0 {
        node.stop()?;
        node.verify()?;
    }
    Ok(())
}

fn start(scene: &Scene, name: &str) -> Result<Node> {
    let mut options = scene.options(DEVICE_BYTES, 1);
    options.dir = scene.dir.join(name);
    // The same after each death: the other node has it written down.
    let native = format!("127.0.0.1:{}", free_port()?);
    options.arguments = vec!["--native".to_owned(), native];
    Node::start(options)
}

/// Moves a volume and returns how long its changes waited, in microseconds.
fn move_it(from: &Reached, to: &Reached, volume: &str) -> Result<u64> {
    let address = format!("127.0.0.1:{}", to.api_port);
    let key = to.options.dir.join("api.key");
    let key = key.to_str().context("a folder with a plain name")?;
    let words = [
        "volume",
        "move",
        volume,
        "--to",
        &address,
        "--to-api-key-file",
        key,
        "-o",
        "json",
    ];
    let text = repo::output(from.options.command(&words))?;
    let moved: serde_json::Value = serde_json::from_str(&text).context("it printed no JSON")?;
    ensure!(moved["state"] == "done", "it was not moved: {moved}");
    find_number(&moved, "held_us").context("nobody says how long changes waited")
}

/// fio is attached to the first node all the time, wherever the volume is.
fn under_fio(scene: &Scene, pair: &Pair) -> Result<()> {
    let reached = [0, 1].map(|index| Reached::of(&pair.0[index]));
    let mut busy = Busy::new(scene, &pair.0[0])?;
    let (mut held, at) = (Vec::new(), Cell::new(0));
    let moves = || {
        let (from, to) = (&reached[at.get()], &reached[1 - at.get()]);
        let us = move_it(from, to, pauses::VOLUME)?;
        at.set(1 - at.get());
        Ok::<_, anyhow::Error>(us)
    };
    // Without load: how long changes waited says nothing.
    let bring_home = || match at.get() {
        0 => Ok(()),
        _ => moves().map(drop),
    };
    while held.len() < MOVES {
        if !busy.is_running()? {
            bring_home()?;
        }
        held.extend(busy.beside(&reached[at.get()].options, moves)?);
        // Some of the load is at its new place.
        thread::sleep(Duration::from_millis(200));
    }
    busy.wait()?;
    bring_home()?;
    let bound = busy.end()?.bound(pauses::BOUND_ELSEWHERE);
    pauses::judge("to another node", bound, &held)
}

/// The same under a client that writes as quickly as it is answered. It is attached to the first node, too.
fn under_a_flood(pair: &Pair) -> Result<()> {
    let reached = [0, 1].map(|index| Reached::of(&pair.0[index]));
    let mut client = Flood::open(pair.0[0].nbd_port)?;
    let mut seen = Vec::new();
    for at in (0..2).cycle().take(flood::MOVES) {
        let moves = || move_it(&reached[at], &reached[1 - at], flood::VOLUME);
        seen.push(client.beside(moves).context("to another node")?);
    }
    let bound = client.end()?.bound(pauses::BOUND_ELSEWHERE);
    let at = flood::MOVES % 2;
    pair.0[at].run(&["volume", "delete", flood::VOLUME])?;
    flood::judge("to another node", bound, &seen)
}

/// The volume is written, and goes to and fro, until one node is killed, and then the other. Both are verified and started again. Returns how many
/// moves were over.
fn one_life(
    pair: &mut Pair,
    at: usize,
    writers: &mut [Writer],
    (life, victim, together): (Duration, usize, bool),
) -> Result<u32> {
    let reached = [0, 1].map(|index| Reached::of(&pair.0[index]));
    let port = pair.0[at].nbd_port;
    let killed = AtomicBool::new(false);
    thread::scope(|scope| {
        let running: Vec<_> = writers
            .iter_mut()
            .map(|writer| {
                let killed = &killed;
                // Those who are attached where the volume isn't see errors when the other node dies.
                scope.spawn(move || match writer.run(port, "data") {
                    Err(_) if killed.load(Ordering::SeqCst) => Ok(()),
                    result => result,
                })
            })
            .collect();
        let mover = scope.spawn(|| {
            let (mut moves, mut at) = (0, at);
            while !killed.load(Ordering::SeqCst) {
                match move_it(&reached[at], &reached[1 - at], "data") {
                    Ok(_) => (moves, at) = (moves + 1, 1 - at),
                    Err(_) if killed.load(Ordering::SeqCst) => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(moves)
        });
        thread::sleep(life);
        killed.store(true, Ordering::SeqCst);
        let mut outcome = deaths(pair, victim, together);
        for each in running {
            let result = each.join();
            outcome = outcome.and(result.unwrap_or_else(|_| Err(anyhow!("a client panicked"))));
        }
        let moves = mover.join();
        outcome.and(moves.unwrap_or_else(|_| Err(anyhow!("whoever moves panicked"))))
    })
}

/// Kills both nodes, the second one before or after the first one is back.
fn deaths(pair: &mut Pair, victim: usize, together: bool) -> Result<()> {
    pair.0[victim].kill()?;
    if together {
        pair.0[1 - victim].kill()?;
    }
    back(&mut pair.0[victim])?;
    if !together {
        // Long enough for some of what is to be settled.
        thread::sleep(Duration::from_millis(300));
        pair.0[1 - victim].kill()?;
    }
    back(&mut pair.0[1 - victim])
}

fn back(node: &mut Node) -> Result<()> {
    let dir = node.options.dir.display().to_string();
    node.verify().with_context(|| format!("verify of {dir}"))?;
    node.restart()
        .with_context(|| format!("restart of {dir}"))?;
    Ok(())
}

/// Waits until one node has the volume, and looks that the other one hasn't, nor anything of it. Returns which.
fn settled(pair: &Pair) -> Result<usize> {
    let until = Instant::now() + SETTLE_LIMIT;
    loop {
        let mut names = Vec::new();
        let mut volumes = 0;
        for node in &pair.0 {
            names.push(find_strings(&node.json(&["volume", "list"])?, "name"));
            let device = node.json(&["device", "list"])?;
            volumes +=
                find_number(&device, "volume_count").context("it has no number of volumes")?;
        }
        let has = |index: usize| names[index].iter().any(|name| name == "data");
        match (has(0), has(1)) {
            (true, true) => bail!("both nodes have it: {names:?}"),
            (true, false) | (false, true) if volumes == VOLUMES => return Ok(usize::from(has(1))),
            _ if Instant::now() > until => {
                bail!("it isn't known whose it is: {names:?}, {volumes} volumes on the devices")
            }
            _ => thread::sleep(Duration::from_millis(50)),
        }
    }
}
