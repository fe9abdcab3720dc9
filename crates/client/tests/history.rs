//! Seeds: tasks of one client read and write while connections break at any byte, the network parts,
//! the server restarts, forgets sessions, is busy, damages bytes and moves volumes. Every write has a value
//! of its own, so that afterwards the server's log tells what really happened:
//!
//! - what was answered OK was carried out exactly once (more often only by a volume opened alone, which
//!   repeats what is in doubt);
//! - what was answered "not carried out" never was, and what is in doubt at most once;
//! - writes of one block were carried out in the order in which they were called;
//! - a read sees nothing that was overwritten before it was called, unless a restart may have lost
//!   that; a flush that was answered OK makes sure it may not;
//! - every call ends at its deadline, and the client breaks none of the server's rules.
//!
//! These mistakes were planted in the client, one at a time, and each was noticed; by the tests here with
//! a hundred seeds (H), or by those that have one promise each (`basics.rs`, `operations.rs`: B):
//!
//! | mistake | noticed by |
//! | --- | --- |
//! | a change in doubt is sent again though the volume is not opened alone | H, B |
//! | a conditional change in doubt is sent again | H, B |
//! | the outcomes in a reply to HELLO are not looked at | H, B |
//! | what has no outcome counts as unknown | B |
//! | `unsettled` is always 0; or the count of what is on its way | H |
//! | numbers go on from what was sent, not from what has arrived | B |
//! | changes of one block don't wait for one another | H, B |
//! | a change makes room for later ones when its caller gives up | H |
//! | deadlines are ignored | H, B |
//! | the server isn't told the deadline | B |
//! | what was sent when the time was over counts as not carried out; or when the client was stopped | H, B; B |
//! | a doubt is forgotten with the next attempt | H, B |
//! | another epoch on opening again is taken for ours | B |
//! | a volume is opened alone again with each connection | H, B |
//! | a flush that another process has answered counts | H, B |
//! | a payload's checksum is not compared | B |
//! | one request, or twice the payload, beyond the limits | H, B |
//! | `BUSY` is handed to the caller | H, B |
//! | silence is not noticed | B |
//! | redirects are followed for ever | B |
//! | volumes are not opened again on a new connection | H, B |
//! | volumes that were on two cores count as such without asking | B |
//!
//! `FLAGSTONE_CLIENT_SEEDS=N` tries N seeds instead of the usual number, from
//! `FLAGSTONE_CLIENT_SEED` on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_client::{
    Cause, Change, Client, Durability, Error, OpenHow, Options, Target, Volume,
};
use flagstone_platform::{IoBuf, Platform, Time};
use flagstone_sim::{
    Cut, FaultsSeen, NetworkConfig, Rng, SegmentFaults, SimPlatform, World, WorldConfig,
};

use crate::gate::{Gate, GateConnect};
use crate::server::{BLOCK, Server, Trouble, value_of};

const MS: u64 = 1_000_000;
const SEEDS: u64 = 300;
const BLOCKS: usize = 6;
/// Bytes of a write in each block it touches; of the ones before the last one it writes all.
const SHORT: usize = 64;
/// By how much a call may end after its deadline: timers are late, and tasks take turns.
const LATE_MAX_NS: u64 = 5 * MS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Came {
    Pending,
    Ok,
    No,
    Perhaps,
}

#[derive(Clone, Debug)]
struct Write {
    volume: usize,
    blocks: std::ops::Range<usize>,
    /// One for each block, rising in the order of the calls.
    values: Vec<u64>,
    durable: bool,
    /// Made by a commit, which is never repeated when in doubt.
    is_commit: bool,
    came: Came,
    called_ns: u64,
    /// A flush that covers it was answered.
    is_flushed: bool,
    /// A flush has said that it may be gone.
    is_told_lost: bool,
}

#[derive(Default)]
struct History {
    writes: RefCell<Vec<Write>>,
    next_value: Cell<u64>,
    restarts_ns: RefCell<Vec<u64>>,
    /// How often sessions were forgotten, by restarts or otherwise.
    losses: Cell<u64>,
    reads: Cell<u64>,
    wrong: RefCell<Vec<String>>,
}

type SimClient = Client<SimPlatform, GateConnect>;
type SimVolume = Volume<SimPlatform, GateConnect>;

struct Worker {
    client: SimClient,
    volume: SimVolume,
    index: usize,
    platform: SimPlatform,
    rng: Rng,
    history: Rc<History>,
}

fn came(result: &Result<impl Sized, Error>) -> Came {
    match result {
        Ok(_) => Came::Ok,
        Err(Error::NotCarriedOut(_)) => Came::No,
        Err(Error::Perhaps(_)) => Came::Perhaps,
    }
}

impl Worker {
    async fn work(mut self, operations: usize) {
        for _ in 0..operations {
            let now = self.platform.now();
            let patience_ns = match self.rng.chance(0.2) {
                true => self.rng.within(&(MS / 2..=30 * MS)),
                false => 3_600_000 * MS,
            };
            let deadline = now.plus_ns(patience_ns);
            let volume = self.volume.until(deadline);
            match self.rng.below(10) {
                0..=4 => self.write(&volume).await,
                5 => self.flush(&volume).await,
                _ => self.read(&volume).await,
            }
            let late_ns = self.platform.now().since(deadline);
            if late_ns > LATE_MAX_NS {
                self.wrong(format!("a call ended {late_ns} ns after its deadline"));
            }
            let pause_ns = self.rng.within(&(0..=2 * MS));
            self.platform.sleep_ns(pause_ns).await;
        }
    }

    fn wrong(&self, text: String) {
        self.history.wrong.borrow_mut().push(text);
    }

    async fn write(&mut self, volume: &SimVolume) {
        let first = self.rng.index(BLOCKS);
        let count = 1 + usize::from(first + 1 < BLOCKS && self.rng.chance(0.3));
        let durable = self.rng.coin();
        let is_commit = self.rng.chance(0.3);
        let from_value = self.history.next_value.get() + 1;
        self.history.next_value.set(from_value + count as u64 - 1);
        let values: Vec<u64> = (from_value..from_value + count as u64).collect();
        let mut bytes = vec![0; (count - 1) * BLOCK + SHORT];
        for (value, piece) in values.iter().zip(bytes.chunks_mut(BLOCK)) {
            piece[..8].copy_from_slice(&value.to_le_bytes());
        }
        let number = self.history.writes.borrow().len();
        self.history.writes.borrow_mut().push(Write {
            volume: self.index,
            blocks: first..first + count,
            values,
            durable,
            is_commit,
            came: Came::Pending,
            called_ns: self.platform.now().0,
            is_flushed: false,
            is_told_lost: false,
        });
        let durability = match durable {
            true => Durability::Durable,
            false => Durability::Visible,
        };
        let offset = (first * BLOCK) as u64;
        let result = match is_commit {
            true => {
                let pieces = bytes.chunks(BLOCK).enumerate();
                let changes = pieces.map(|(at, piece)| Change::Write {
                    volume,
                    offset_bytes: offset + (at * BLOCK) as u64,
                    bytes: IoBuf::copy_of(&piece[..SHORT]),
                    metadata: 0,
                });
                let changes: Vec<_> = changes.collect();
                let committed = self.client.commit(&[], &changes, durability).await;
                committed.map(|committed| committed.lsn)
            }
            false => {
                let bytes = IoBuf::copy_of(&bytes);
                volume.write(offset, bytes, durability).await
            }
        };
        self.expect(&result);
        let write = &mut self.history.writes.borrow_mut()[number];
        write.came = came(&result);
    }

    async fn flush(&mut self, volume: &SimVolume) {
        let answered: Vec<usize> = {
            let writes = self.history.writes.borrow();
            let mine =
                |(_, write): &(usize, &Write)| write.volume == self.index && write.came == Came::Ok;
            writes
                .iter()
                .enumerate()
                .filter(mine)
                .map(|(number, _)| number)
                .collect()
        };
        let result = volume.flush().await;
        self.expect(&result);
        let mut writes = self.history.writes.borrow_mut();
        let lost = result
            .as_ref()
            .is_err_and(|error| error.cause() == &Cause::UnflushedLost);
        for number in answered {
            writes[number].is_flushed |= result.is_ok() && !writes[number].is_told_lost;
            writes[number].is_told_lost |= lost && !writes[number].is_flushed;
        }
    }

    async fn read(&mut self, volume: &SimVolume) {
        let block = self.rng.index(BLOCKS);
        // Floors of the moment at which it is called.
        let floor = self.floor(block);
        let result = volume.read((block * BLOCK) as u64, SHORT as u64).await;
        self.expect(&result);
        if let Ok(bytes) = result {
            self.history.reads.set(self.history.reads.get() + 1);
            self.check_read(block, value_of(&bytes), floor);
        }
    }

    /// The last write of a block that was answered, and so is there unless a restart took it.
    fn floor(&self, block: usize) -> Option<usize> {
        let writes = self.history.writes.borrow();
        writes.iter().rposition(|write| {
            write.volume == self.index && write.blocks.contains(&block) && write.came == Came::Ok
        })
    }

    fn check_read(&self, block: usize, found: u64, floor: Option<usize>) {
        let writes = self.history.writes.borrow();
        let restarts = self.history.restarts_ns.borrow();
        let value = |write: &Write| write.values[block - write.blocks.start];
        let Some(floor) = floor else { return };
        // The lowest value that may be seen is that of the last write which nothing can have taken. A
        // restart may have come between a write and its answer. A flush that was answered says that
        // none before it has taken anything.
        let least = writes[..=floor].iter().rev().find(|write| {
            let is_here = write.volume == self.index && write.blocks.contains(&block);
            let may_be_lost = restarts.iter().any(|at_ns| *at_ns >= write.called_ns);
            let is_safe = write.durable || write.is_flushed || !may_be_lost;
            is_here && write.came == Came::Ok && is_safe
        });
        if let Some(least) = least
            && found < value(least)
        {
            self.wrong(format!(
                "a read of block {block} of volume {} saw {found}, and {} was answered before: \
                 {least:?}",
                self.index,
                value(least)
            ));
        }
    }

    /// Errors that may come on a network like this one.
    fn expect(&self, result: &Result<impl Sized, Error>) {
        let Err(error) = result else { return };
        match error.cause() {
            Cause::TimedOut(_) | Cause::SessionLost | Cause::UnflushedLost | Cause::Damaged => {}
            _ => self.wrong(format!("{error}")),
        }
    }
}

/// What goes wrong from the outside.
async fn chaos(server: Server, network: flagstone_sim::SimNetwork, gate: Gate, world: Chaos) {
    let Chaos {
        platform,
        mut rng,
        history,
        until,
        names,
    } = world;
    while platform.now() < until {
        platform.sleep_ns(rng.within(&(MS..=25 * MS))).await;
        match rng.below(12) {
            0..=2 => network.reset_all(),
            3 => {
                history.restarts_ns.borrow_mut().push(platform.now().0);
                history.losses.set(history.losses.get() + 1);
                server.restart();
            }
            4 => {
                history.restarts_ns.borrow_mut().push(platform.now().0);
                history.losses.set(history.losses.get() + 1);
                server.with(|state| state.is_down = true);
                server.restart();
                platform.sleep_ns(rng.within(&(MS..=40 * MS))).await;
                server.with(|state| state.is_down = false);
            }
            5 => {
                network.reset_all();
                platform.sleep_ns(rng.within(&(0..=2 * MS))).await;
                history.losses.set(history.losses.get() + 1);
                server.forget_sessions();
            }
            6 | 7 => {
                gate.set_shut(true);
                platform.sleep_ns(rng.within(&(MS..=60 * MS))).await;
                gate.set_shut(false);
            }
            8 | 9 => {
                let cores = server.with(|state| state.addresses.len());
                server.move_volume(names[rng.index(names.len())], rng.index(cores));
            }
            10 => {
                // Connections live on, each side by itself; what was sent before it was given up comes late.
                let addresses = server.with(|state| state.addresses.clone());
                let address = addresses[rng.index(addresses.len())].to_string();
                let cut = [Cut::Both, Cut::To, Cut::From][rng.index(3)];
                network.cut(&address, cut);
                platform.sleep_ns(rng.within(&(MS..=60 * MS))).await;
                network.heal();
            }
            _ => {}
        }
    }
    gate.set_shut(false);
}

struct Chaos {
    platform: SimPlatform,
    rng: Rng,
    history: Rc<History>,
    until: Time,
    names: [&'static str; 2],
}

/// How much happened, so that seeds in which nothing does are noticed.
#[derive(Default, Debug)]
struct Sums {
    ok: u64,
    no: u64,
    perhaps: u64,
    repeated: u64,
    reads: u64,
    faults: FaultsSeen,
}

fn run(seed: u64, sums: &mut Sums) {
    let mut config = WorldConfig::new(seed);
    let mut rng = Rng::stream(seed, 1);
    config.network = NetworkConfig {
        reset: if rng.coin() { 0.01 } else { 0.0 },
        slow: 0.02,
        slow_ns: MS..=20 * MS,
        segment_max_bytes: 1 + rng.below(6000),
        segments: match Rng::stream(seed, 3).coin() {
            true => SegmentFaults::of_all_kinds(),
            false => SegmentFaults::default(),
        },
        ..NetworkConfig::default()
    };
    let world = World::with_config(config);
    let server = Server::start(&world, 3);
    server.with(|state| {
        state.trouble = Trouble {
            busy: if rng.coin() { 0.1 } else { 0.0 },
            damaged_request: if rng.chance(0.3) { 0.03 } else { 0.0 },
            damaged_reply: if rng.chance(0.3) { 0.05 } else { 0.0 },
            wrong_redirect: if rng.coin() { 0.5 } else { 0.0 },
            slow_ns: rng.within(&(1..=10 * MS)),
            is_full: false,
            forgets: 0,
        };
        state.limits.requests_max = 1 + rng.below(6) as u32;
        state.limits.payload_max_bytes = 5000 + rng.below(2) as u32 * 100_000;
        state.limits.payload_in_flight_max_bytes = 5000 + rng.below(20_000) as u32;
    });
    let names = ["shared", "alone"];
    let tokens = names.map(|name| server.create(name, rng.index(3), BLOCKS));
    let (platform, gate) = (world.platform(0), Gate::default());
    let connector = GateConnect {
        network: world.network(),
        gate: gate.clone(),
    };
    let addresses = server.with(|state| state.addresses[..1 + rng.index(2)].to_vec());
    let mut options = Options::new(addresses, "history");
    options.silence_ns = 20 * MS;
    options.connect_timeout_ns = 50 * MS;
    options.pause_max_ns = 20 * MS;
    options.call_timeout_ns = 3_600_000 * MS;
    let client = Client::new(platform.clone(), connector, options);
    let history: Rc<History> = Rc::default();
    let volumes: Vec<SimVolume> = {
        let client = client.clone();
        world.block_on(0, async move {
            let mut volumes = Vec::new();
            for (name, token) in names.iter().zip(tokens) {
                let how = OpenHow {
                    alone: *name == "alone",
                    held: None,
                    read_only: false,
                };
                let target = Target::Name((*name).to_owned());
                volumes.push(client.open(target, token, how).await.expect("it is there"));
            }
            volumes
        })
    };
    let left = Rc::new(Cell::new(0));
    for worker in 0..4 + rng.index(4) {
        let index = worker % 2;
        let worker = Worker {
            client: client.clone(),
            volume: volumes[index].clone(),
            index,
            platform: platform.clone(),
            rng: Rng::stream(seed, 10 + worker as u64),
            history: history.clone(),
        };
        left.set(left.get() + 1);
        let left = left.clone();
        world.spawn(0, async move {
            worker.work(25).await;
            left.set(left.get() - 1);
        });
    }
    let chaos_world = Chaos {
        platform: platform.clone(),
        rng: Rng::stream(seed, 2),
        history: history.clone(),
        until: world.now().plus_ns(300 * MS),
        names,
    };
    world.spawn(0, chaos(server.clone(), world.network(), gate, chaos_world));
    world.run_until(|| left.get() == 0);
    finish(seed, &world, &server, (&client, &volumes), &history);
    sum(&server, &history, sums);
    sums.faults += world.network().faults_seen();
    drop((volumes, client));
    world.run_until_idle();
    let mut wrong = history.wrong.take();
    wrong.extend(server.with(|state| std::mem::take(&mut state.broken_rules)));
    wrong.extend(judge(&server, &history, names));
    assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
}

/// When nothing goes wrong any more, everything can be flushed and read.
fn finish(
    seed: u64,
    world: &World,
    server: &Server,
    (client, volumes): (&SimClient, &[SimVolume]),
    history: &Rc<History>,
) {
    server.with(|state| state.trouble = Trouble::default());
    let calm = NetworkConfig::default();
    world.network().set_config(calm);
    for (index, volume) in volumes.iter().enumerate() {
        let worker = Worker {
            client: client.clone(),
            volume: volume.clone(),
            index,
            platform: world.platform(0),
            rng: Rng::stream(seed, 99),
            history: history.clone(),
        };
        world.block_on(0, async move {
            let mut worker = worker;
            let volume = worker.volume.clone();
            worker.flush(&volume).await;
            for block in 0..BLOCKS {
                let floor = worker.floor(block);
                let read = volume.read((block * BLOCK) as u64, SHORT as u64).await;
                let bytes = read.expect("nothing goes wrong any more");
                worker.check_read(block, value_of(&bytes), floor);
            }
        });
    }
}

/// What the server's log says of each write.
fn judge(server: &Server, history: &History, names: [&str; 2]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let log = server.with(|state| state.volumes[*name].log.clone());
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        log.iter()
            .for_each(|value| *counts.entry(*value).or_default() += 1);
        let writes = history.writes.borrow();
        let mut blocks: BTreeMap<u64, usize> = BTreeMap::new();
        for write in writes.iter().filter(|write| write.volume == index) {
            for (value, block) in write.values.iter().zip(write.blocks.clone()) {
                blocks.insert(*value, block);
                let count = counts.get(value).copied().unwrap_or_default();
                let can_repeat = *name == "alone" && !write.is_commit;
                let repeats = if can_repeat { history.losses.get() } else { 0 };
                let fits = match write.came {
                    Came::Ok => (1..=1 + repeats).contains(&count),
                    Came::No => count == 0,
                    Came::Perhaps => count <= 1 + repeats,
                    Came::Pending => false,
                };
                if !fits {
                    wrong.push(format!("carried out {count} times on {name}: {write:?}"));
                }
            }
        }
        let mut last: BTreeMap<usize, u64> = BTreeMap::new();
        for value in log {
            let before = last.insert(blocks[&value], value).unwrap_or_default();
            if before > value {
                let block = blocks[&value];
                wrong.push(format!(
                    "block {block} of {name}: {value} was written after {before}"
                ));
            }
        }
    }
    wrong
}

fn sum(server: &Server, history: &History, sums: &mut Sums) {
    for write in history.writes.borrow().iter() {
        match write.came {
            Came::Ok => sums.ok += 1,
            Came::No => sums.no += 1,
            Came::Perhaps | Came::Pending => sums.perhaps += 1,
        }
    }
    sums.reads += history.reads.get();
    let mut log = server.with(|state| state.volumes["alone"].log.clone());
    let before = log.len();
    log.sort_unstable();
    log.dedup();
    sums.repeated += (before - log.len()) as u64;
}

fn number(name: &str, usual: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(usual, |text| text.parse().expect("a number of seeds"))
}

#[test]
fn what_is_answered_is_what_happened() {
    let from = number("FLAGSTONE_CLIENT_SEED", 0);
    let seeds = number("FLAGSTONE_CLIENT_SEEDS", SEEDS);
    let mut sums = Sums::default();
    for seed in from..from + seeds {
        run(seed, &mut sums);
    }
    println!("{seeds} seeds: {sums:?}");
    if seeds >= SEEDS {
        // Each kind of answer comes, or the faults above are none.
        assert!(sums.ok > 20 * seeds && sums.reads > 10 * seeds, "{sums:?}");
        assert!(
            sums.no > seeds / 10 && sums.perhaps > seeds / 10,
            "{sums:?}"
        );
        assert!(sums.repeated > 0, "{sums:?}");
        let seen = sums.faults;
        assert!(seen.rarest() > seeds, "{seen:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let twice = [(); 2].map(|()| {
        let mut sums = Sums::default();
        run(7, &mut sums);
        format!("{sums:?}")
    });
    assert_eq!(twice[0], twice[1]);
}
