//! Random and mutated bytes as negotiation and as requests: nothing may panic, hang, or be left
//! behind. The fuzz targets in `fuzz/` run the same functions with a fuzzer's inputs.

use crate::support;

use flagstone_gateway::nbd::options::Output;
use support::Rng;
use support::cases;
use support::client::*;
use support::stream::Link;

/// Cuts, flips, repeats and splices.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    const NASTY: [u8; 6] = [0, 1, 0x7f, 0x80, 0xff, b'I'];
    for _ in 0..=rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = NASTY[rng.below(6) as usize],
            2 => bytes.truncate(at),
            3 => {
                let end = (at + 1 + rng.below(64) as usize).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                let to = rng.below(bytes.len() as u64) as usize;
                bytes.splice(to..to, copy);
            }
            4 => {
                let end = (at + 1 + rng.below(16) as usize).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let end = (at + 4).min(bytes.len());
                bytes[at..end].fill(NASTY[rng.below(6) as usize]);
            }
        }
    }
}

#[test]
fn mutated_negotiations() {
    let mut rng = Rng(0x1dea);
    let script = cases::negotiation_script();
    assert_eq!(
        cases::negotiation(&script, 1).1,
        Some(Output::Transmit),
        "the script is valid"
    );
    let mut transmits = 0;
    for case in 0..300_000u32 {
        let mut bytes = script.clone();
        mutate(&mut rng, &mut bytes);
        let whole = cases::negotiation(&bytes, bytes.len());
        cases::negotiation_with_tls(&bytes, 1 + case as usize % 40);
        transmits += u32::from(whole.1 == Some(Output::Transmit));
        if case % 16 == 0 {
            let portion = 1 + rng.below(40) as usize;
            assert_eq!(
                cases::negotiation(&bytes, portion),
                whole,
                "case {case}: {bytes:?}"
            );
        }
    }
    assert!(
        (1000..299_000).contains(&transmits),
        "mutations of all sorts: {transmits}"
    );
}

#[test]
fn random_negotiations() {
    let mut rng = Rng(0xfeed);
    for _ in 0..100_000 {
        let mut bytes = vec![0, 0, 0, rng.below(4) as u8];
        while rng.below(8) > 0 {
            bytes.extend(b"IHAVEOPT\0\0\0");
            bytes.push(rng.below(14) as u8);
            let len = rng.below(40) as u32;
            bytes.extend(len.to_be_bytes());
            (0..len).for_each(|_| bytes.push(if rng.one_in(3) { rng.next() as u8 } else { 0 }));
        }
        cases::negotiation(&bytes, bytes.len());
        cases::negotiation_with_tls(&bytes, 4 + bytes.len() % 17);
    }
}

/// Valid requests of all kinds, in the headers of `mode`.
fn request_script(rng: &mut Rng, mode: Mode) -> Vec<u8> {
    let (stream, _) = Link::default().connect();
    let world = support::world::World::new(0);
    let count = 1 + rng.below(8);
    let seed = rng.next();
    world.run(async move {
        let mut rng = Rng(seed);
        let mut client = Client::detached(stream, mode);
        let mut script = Vec::new();
        for _ in 0..count {
            const COMMANDS: [u16; 9] = [READ, WRITE, FLUSH, TRIM, CACHE, ZEROES, STATUS, DISC, 9];
            let common = if rng.one_in(8) { 9 } else { 7 };
            let command = COMMANDS[rng.below(common) as usize];
            let flags = if rng.one_in(3) { 1 << rng.below(6) } else { 0 };
            let longest = if rng.one_in(10) { 100_000 } else { 9000 };
            let len = rng.below(longest);
            let (_, bytes) = client.encode(command, flags, rng.below(64 << 10), len);
            script.extend(bytes);
            if command == WRITE || flags == PAYLOAD {
                script.extend((0..len).map(|at| at as u8));
            }
        }
        script
    })
}

#[test]
fn mutated_requests() {
    let mut rng = Rng(0xcafe);
    let mut finished = 0;
    for case in 0..60_000u64 {
        let mode = MODES[(case % 3) as usize];
        let mut script = request_script(&mut rng, mode);
        if case % 4 > 0 {
            mutate(&mut rng, &mut script);
        }
        let reason = cases::requests((case % 3) as u8, case, &script);
        finished += u32::from(reason == flagstone_gateway::nbd::CloseReason::Finished);
    }
    assert!(
        (10_000..58_000).contains(&finished),
        "mutations of all sorts: {finished}"
    );
}
