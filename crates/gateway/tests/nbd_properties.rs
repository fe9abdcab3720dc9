//! Random requests, split at random positions, against a vector of bytes.
//!
//! Requests in flight never overlap, so each read has one right answer whatever the order in which
//! the server does things. A failing seed is printed; replay it with `NBD_SEED`.

use crate::support;

use std::collections::BTreeMap;

use flagstone_gateway::nbd::{CloseReason, NbdLimits, NbdServer, Outcome};
use flagstone_platform::Platform;
use support::Rng;
use support::client::*;
use support::memory::{BLOCK, MemoryDirectory, MemoryVolume};
use support::stream::{Link, MemoryStream};
use support::world::World;

const SIZE: u64 = 1 << 20;
const SEEDS: u64 = 120;
const REQUESTS: u64 = 200;

/// Stands for a write that is refused.
const REFUSED: u16 = 1000;

/// A request in flight: its range, and what it must return.
struct Expected {
    start: u64,
    end: u64,
    command: u16,
    data: Vec<u8>,
}

struct Run {
    rng: Rng,
    client: Client,
    model: Vec<u8>,
    in_flight: BTreeMap<u64, Expected>,
}

impl Run {
    /// A range that overlaps nothing in flight. Lengths from one byte to a quarter of the volume.
    fn range(&mut self) -> Option<(u64, u64)> {
        let len = match self.rng.below(6) {
            0 => 1 + self.rng.below(16),
            1 => BLOCK,
            2 => BLOCK * (1 + self.rng.below(16)),
            3 => 1 + self.rng.below(SIZE / 4),
            _ => 1 + self.rng.below(3 * BLOCK),
        };
        let aligned = self.rng.one_in(2);
        let mut start = self.rng.below(SIZE - len + 1);
        if aligned {
            start -= start % BLOCK;
        }
        let end = start + len;
        let free = self
            .in_flight
            .values()
            .all(|other| end <= other.start || other.end <= start);
        free.then_some((start, len))
    }

    async fn submit(&mut self) {
        if self.rng.one_in(12) {
            return self.submit_refused().await;
        }
        let Some((start, len)) = self.range() else {
            return;
        };
        let range = start as usize..(start + len) as usize;
        let fua = if self.rng.one_in(4) { FUA } else { 0 };
        let command = match self.rng.below(10) {
            0..4 => READ,
            4..7 => WRITE,
            7 => TRIM,
            8 => ZEROES,
            _ if self.client.mode != Mode::Simple && self.rng.one_in(2) => STATUS,
            _ => CACHE,
        };
        let cookie = match command {
            READ => {
                let structured = self.client.mode != Mode::Simple;
                let flags = if structured && self.rng.one_in(4) {
                    DF
                } else {
                    0
                };
                self.client.submit(READ, flags, start, len).await
            }
            WRITE => {
                let salt = self.rng.next();
                let data: Vec<u8> = (0..len)
                    .map(|at| (salt >> (at % 8 * 8)) as u8 | 1)
                    .collect();
                self.model[range.clone()].copy_from_slice(&data);
                self.client.submit_write(fua, start, &data).await
            }
            TRIM | ZEROES => {
                let no_hole = if command == ZEROES && self.rng.one_in(2) {
                    NO_HOLE
                } else {
                    0
                };
                self.model[range.clone()].fill(0);
                self.client.submit(command, fua | no_hole, start, len).await
            }
            _ => self.client.submit(command, 0, start, len).await,
        };
        let data = self.model[range].to_vec();
        let expected = Expected {
            start,
            end: start + len,
            command,
            data,
        };
        self.in_flight.insert(cookie, expected);
    }

    /// A write past the end, whose payload has to be skipped.
    async fn submit_refused(&mut self) {
        let longest = if self.rng.one_in(2) { 5000 } else { 40 };
        let data = vec![0x25; 1 + self.rng.below(longest) as usize];
        let start = SIZE + 1 - data.len() as u64;
        let cookie = self.client.submit_write(0, start, &data).await;
        let expected = Expected {
            start: 0,
            end: 0,
            command: REFUSED,
            data,
        };
        self.in_flight.insert(cookie, expected);
    }

    async fn finish_one(&mut self) {
        let answer = self.client.answer().await.expect("an answer");
        let expected = self.in_flight.remove(&answer.cookie).expect("asked for");
        if expected.command == REFUSED {
            assert_eq!(answer.result, Err(ENOSPC));
            return;
        }
        assert_eq!(answer.result, Ok(()), "command {}", expected.command);
        match expected.command {
            READ => assert!(answer.data == expected.data, "wrong bytes"),
            STATUS => {
                let extents = &answer.status[&1];
                let mut at = 0;
                for (len, flags) in extents {
                    let bytes = &expected.data[at..at + *len as usize];
                    assert!(
                        *flags == 0 || bytes.iter().all(|byte| *byte == 0),
                        "a hole of zeros"
                    );
                    at += *len as usize;
                }
                assert_eq!(at, expected.data.len());
            }
            _ => {}
        }
    }
}

fn run(seed: u64) {
    let mut rng = Rng(seed);
    let world = World::new(seed);
    let volume = MemoryVolume::new(&world, SIZE);
    volume.memory.slow.set(rng.one_in(2));
    volume.memory.fragment.set(rng.one_in(2));
    let directory = MemoryDirectory::with("disk", &volume);
    let limits = NbdLimits {
        requests_in_flight_max: 1 + rng.below(40) as u32,
        own_payload_bytes: rng.below(1 << 20),
        ..NbdLimits::default()
    };
    let server = NbdServer::new(world.clone(), directory, limits);
    let portion_max = match rng.below(3) {
        0 => usize::MAX,
        1 => 1 + rng.below(100) as usize,
        _ => 1 + rng.below(100_000) as usize,
    };
    let link = Link {
        capacity: 4 << 20,
        portion_max,
        seed,
        ..Link::default()
    };
    let (near, far) = link.connect();
    let serving = server.clone();
    world.spawn(async move {
        let outcome = serving.serve_connection(far).await;
        assert!(matches!(outcome, Outcome::Closed(CloseReason::Finished)));
    });
    let (checked, pool) = (volume.clone(), world.buffers().clone());
    world.run(async move {
        play(rng, near, MODES[(seed % 3) as usize], &checked).await;
        server.stopped().await;
    });
    assert_eq!(volume.memory.running.get(), 0);
    assert_eq!(pool.in_use_bytes(), 0, "all buffers are back");
}

/// The client's side, from attaching to good-bye.
async fn play(mut rng: Rng, stream: MemoryStream, mode: Mode, volume: &MemoryVolume) {
    let depth = 1 + rng.below(32) as usize;
    let contexts: &[&str] = match mode {
        Mode::Simple => &[],
        _ => &["base:allocation"],
    };
    let client = Client::attach(stream, mode, "disk", contexts)
        .await
        .expect("attached");
    let model = vec![0; SIZE as usize];
    let in_flight = BTreeMap::new();
    let mut run = Run {
        rng,
        client,
        model,
        in_flight,
    };
    for _ in 0..REQUESTS {
        run.submit().await;
        let drain = run.rng.one_in(3);
        while run.in_flight.len() >= depth || (drain && !run.in_flight.is_empty()) {
            run.finish_one().await;
        }
    }
    while !run.in_flight.is_empty() {
        run.finish_one().await;
    }
    run.client.call(FLUSH, 0, 0, 0).await;
    let memory = &volume.memory;
    assert!(
        *memory.bytes.borrow() == run.model,
        "holds what was written"
    );
    assert!(*memory.stable.borrow() == run.model, "and it is stable");
    run.client.submit(DISC, 0, 0, 0).await;
    assert_eq!(run.client.take(1).await, None);
}

#[test]
fn random_requests_agree_with_a_vector() {
    if let Ok(seed) = std::env::var("NBD_SEED") {
        return run(seed.parse().expect("a number"));
    }
    for seed in 0..SEEDS {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "seed {seed}: replay with NBD_SEED={seed}");
    }
}
