//! Random bytes and mutated requests: nothing may panic, hang, or be left behind. The fuzz target in `fuzz/` runs
//! the same function with a fuzzer's inputs.

use std::collections::BTreeMap;

use flagstone_gateway::native::CloseReason;
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use crate::native_support::arrivals::arrivals;
use crate::native_support::cases::requests;
use crate::native_support::client::hello_frame;
use crate::support::Rng;

/// Requests that make some sense, as [`requests`] takes them: headers with sixteen bytes each.
fn script(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + rng.below(12) {
        let count = Operation::ALL.len() as u64;
        let operation = Operation::ALL[rng.below(count) as usize];
        let header = RequestHeader {
            flags: (rng.below(8) & u64::from(operation.flags())) as u8,
            volume: VolumeNo(u32::from(!rng.one_in(4))),
            offset_bytes: rng.below(1 << 20),
            len_bytes: rng.below(9000),
            patience_ms: u16::from(rng.one_in(3)),
            ..RequestHeader::of(operation)
        };
        bytes.extend(header.encode());
        for _ in 0..16 {
            bytes.push(rng.below(256) as u8);
        }
    }
    bytes
}

#[test]
fn random_and_mutated_requests_do_no_harm() {
    for seed in 0..3000 {
        let mut rng = Rng(seed);
        let mut bytes = script(&mut rng);
        for _ in 0..rng.below(6) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = rng.below(256) as u8,
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, rng.below(256) as u8),
            }
        }
        requests(seed, &bytes);
    }
}

#[test]
fn random_bytes_as_a_connection_do_no_harm() {
    for seed in 0..1000 {
        let mut rng = Rng(seed);
        let mut bytes = Vec::new();
        if rng.one_in(2) {
            bytes = hello_frame(Default::default(), Default::default());
        }
        for _ in 0..rng.below(300) {
            bytes.push(rng.below(256) as u8);
        }
        if !bytes.is_empty() && rng.one_in(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }
        // A multiple of seven: the bytes are sent as they are.
        requests(seed * 7, &bytes);
    }
}

/// Random scripts of volumes that arrive: what reaches the arrivals is what was sent with a proof.
#[test]
fn random_arrivals_do_no_harm() {
    let (mut carried, mut statuses) = (BTreeMap::new(), BTreeMap::new());
    let mut guessed = 0;
    for seed in 0..3000 {
        let mut rng = Rng(seed);
        let len = rng.below(300);
        let bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
        let came = arrivals(seed, &bytes);
        for operation in came.carried {
            *carried.entry(operation.number()).or_insert(0) += 1;
        }
        for (_, status) in came.answered {
            *statuses.entry(format!("{status:?}")).or_insert(0) += 1;
        }
        guessed += u64::from(came.reason == CloseReason::Denied);
    }
    for operation in [
        Operation::Arrive,
        Operation::ArriveRuns,
        Operation::ArriveStep,
        Operation::Arrived,
        Operation::Settle,
    ] {
        let count = carried.get(&operation.number()).copied().unwrap_or(0);
        assert!(count > 300, "{operation:?}: {count}");
    }
    for status in [
        Status::Ok,
        Status::Denied,
        Status::Invalid,
        Status::StaleEpoch,
        Status::NoSpace,
    ] {
        let count = statuses.get(&format!("{status:?}")).copied().unwrap_or(0);
        assert!(count > 100, "{status:?}: {count}");
    }
    assert!(guessed > 10, "{guessed} were cut off for guessing");
}
