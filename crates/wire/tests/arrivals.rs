//! Bodies by which a volume arrives from another node: as they were written, and refused if anything is wrong.

use std::net::SocketAddr;

use flagstone_types::{DeviceId, DvolId, Epoch, LayerNo};
use flagstone_wire::BodyError;
use flagstone_wire::arrival::{
    AGAIN_MAX, Again, Arrive, ArrivingRun, BODY_MAX_BYTES, LeftCopy, RECORD_BYTES, RUNS_MAX,
    Settle, Settled, Step, WARRANT_BYTES, Warrant, decode_arrived, decode_runs, encode_arrived,
    encode_runs,
};
use flagstone_wire::hello::{Nonce, SessionId};
use flagstone_wire::proof::{ArrivalClaim, Key};
use proptest::collection::vec;
use proptest::prelude::*;

const WARRANT: Warrant = Warrant {
    arrival: 7,
    proof: [9; 32],
};

fn rising<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|at| first + at as u8)
}

fn arrive(name: &str) -> Arrive<'_> {
    Arrive {
        warrant: WARRANT,
        id: DvolId(0x51),
        size_bytes: 1 << 30,
        reserved_bytes: 4096,
        epoch: Epoch(12),
        highest_layer: LayerNo(5),
        snapshot_count: 3,
        attributes: rising(1),
        name,
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = Vec::new();
    write(&mut body);
    body
}

/// Cut anywhere, or with a byte more, it is refused.
fn refused_unless_whole<T>(body: &[u8], decode: impl Fn(&[u8]) -> Result<T, BodyError>) {
    assert!(decode(body).is_ok());
    for end in 0..body.len() {
        assert!(decode(&body[..end]).is_err(), "cut at {end}");
    }
    assert!(decode(&[body, &[0]].concat()).is_err(), "a byte more");
}

#[test]
fn proofs_of_arrivals_are_those_of_the_page() {
    let claim = ArrivalClaim {
        server: Nonce(rising(0x30)),
        client: Nonce(rising(0x20)),
        session: SessionId(rising(0x10)),
        arrival: 7,
        operation: 51,
        flags: 1,
    };
    let key = Key(rising(0));
    let proof = claim.prove(&key);
    let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
    // Made with Python's hmac and hashlib.
    let expected = "dd2971cf56c5460460b149074d40aa091dfccd54de18ce9abf4a6a0719f4e43c";
    assert_eq!(hex, expected);
    assert!(claim.is_proven(&key, &proof));
    let others = [
        ArrivalClaim {
            server: Nonce(rising(0x31)),
            ..claim
        },
        ArrivalClaim {
            client: Nonce(rising(0x21)),
            ..claim
        },
        ArrivalClaim {
            session: SessionId(rising(0x11)),
            ..claim
        },
        ArrivalClaim {
            arrival: 8,
            ..claim
        },
        ArrivalClaim {
            operation: 52,
            ..claim
        },
        ArrivalClaim { flags: 0, ..claim },
    ];
    for other in others {
        assert!(!other.is_proven(&key, &proof), "{other:?}");
    }
    assert!(!claim.is_proven(&Key(rising(1)), &proof));
}

#[test]
fn what_is_not_whole_is_refused() {
    let body = written(|out| arrive("vm-1").encode(out));
    refused_unless_whole(&body, |body| Arrive::decode(body).map(drop));
    let body = written(|out| Step::Size(5).encode(&WARRANT, out));
    refused_unless_whole(&body, |body| Step::decode(body).map(drop));
    let snapshot = |point| Step::Snapshot {
        created_ns: 1,
        attributes: rising(2),
        point,
        name: "monday",
    };
    let point = rising(3);
    for step in [snapshot(None), snapshot(Some(point)), Step::Point(point)] {
        let body = written(|out| step.encode(&WARRANT, out));
        assert_eq!(Step::decode(&body), Ok((WARRANT, step)));
        refused_unless_whole(&body, |body| Step::decode(body).map(drop));
    }
    let settle = Settle {
        warrant: WARRANT,
        device: DeviceId(3),
        volume: DvolId(4),
    };
    let body = written(|out| settle.encode(out));
    refused_unless_whole(&body, |body| Settle::decode(body).map(drop));
    let at: SocketAddr = "10.0.0.7:4420".parse().expect("an address");
    for settled in [
        Settled::Arriving,
        Settled::Arrived(at),
        Settled::Never,
        Settled::NotHere,
    ] {
        let body = written(|out| settled.encode(out));
        assert_eq!(Settled::decode(&body), Ok(settled));
        refused_unless_whole(&body, |body| Settled::decode(body).map(drop));
    }
    assert!(Settled::decode(&[0]).is_err() && Settled::decode(&[5]).is_err());
}

#[test]
fn a_copy_that_goes_on_has_ranges_in_order() {
    let with = |again: Vec<(u64, u64)>| {
        let left = Some(LeftCopy {
            point: rising(3),
            again,
        });
        let again = Again { attempt: 9, left };
        (written(|out| again.encode(out)), again)
    };
    let nothing = Again {
        attempt: 9,
        left: None,
    };
    let body = written(|out| nothing.encode(out));
    assert_eq!(Again::decode(&body), Ok(nothing));
    for good in [
        vec![],
        vec![(0, 4096)],
        vec![(0, 4096), (4096, 1), (1 << 40, u64::MAX - (1 << 40))],
        (0..AGAIN_MAX as u64).map(|at| (at * 2, 1)).collect(),
    ] {
        let (body, again) = with(good);
        assert_eq!(Again::decode(&body), Ok(again));
        assert!(Again::decode(&body[..body.len() - 1]).is_err());
        assert!(Again::decode(&[&body[..], &[0]].concat()).is_err());
    }
    for bad in [
        vec![(0, 0)],
        vec![(1, u64::MAX)],
        vec![(0, 4097), (4096, 1)],
        vec![(4096, 1), (0, 1)],
        (0..=AGAIN_MAX as u64).map(|at| (at * 2, 1)).collect(),
    ] {
        let (body, again) = with(bad);
        assert!(Again::decode(&body).is_err(), "{again:?}");
    }
}

#[test]
fn a_volume_that_arrives_must_make_sense() {
    let refused = |arrive: Arrive<'_>| {
        let body = written(|out| arrive.encode(out));
        assert!(Arrive::decode(&body).is_err(), "{arrive:?}");
    };
    let right = arrive("vm-1");
    refused(Arrive {
        id: DvolId(0),
        ..right
    });
    refused(Arrive {
        epoch: Epoch(Epoch::MAX.0 + 1),
        ..right
    });
    refused(Arrive {
        snapshot_count: 6,
        ..right
    });
    refused(arrive(""));
    refused(arrive(&"x".repeat(129)));
}

#[test]
fn a_record_is_there_or_not() {
    let none = written(|out| encode_arrived(&WARRANT, None, out));
    assert_eq!(decode_arrived(&none), Ok((WARRANT, None)));
    let record = [5; RECORD_BYTES];
    let body = written(|out| encode_arrived(&WARRANT, Some(&record), out));
    assert_eq!(decode_arrived(&body), Ok((WARRANT, Some(&record))));
    for end in (0..body.len()).filter(|end| *end != WARRANT_BYTES) {
        assert!(decode_arrived(&body[..end]).is_err(), "cut at {end}");
    }
    assert!(decode_arrived(&[&body[..], &[0]].concat()).is_err());
}

fn run(offset_bytes: u64, len_bytes: u64, is_zeros: bool) -> ArrivingRun {
    ArrivingRun {
        offset_bytes,
        len_bytes,
        is_zeros,
        metadata: if is_zeros { 0 } else { 77 },
    }
}

#[test]
fn runs_must_make_sense() {
    let decode = |runs: &[ArrivingRun], payload_bytes| {
        let body = written(|out| encode_runs(&WARRANT, runs, out));
        decode_runs(&body, payload_bytes).map(|(_, runs)| runs.collect::<Vec<_>>())
    };
    let good = [
        run(0, 4096, false),
        run(4096, 100, false),
        run(8192, 1 << 40, true),
    ];
    assert_eq!(decode(&good, 4196), Ok(good.to_vec()));
    for payload_bytes in [0, 4195, 4197, u32::MAX] {
        assert!(decode(&good, payload_bytes).is_err(), "{payload_bytes}");
    }
    assert!(decode(&[], 0).is_err(), "none");
    assert!(decode(&[run(0, 0, true)], 0).is_err(), "of nothing");
    assert!(decode(&[run(1, 5, true)], 0).is_err(), "within a block");
    let end = u64::MAX - 4095;
    assert!(decode(&[run(end, 4095, true)], 0).is_ok());
    assert!(decode(&[run(end, 4096, true)], 0).is_err(), "too far");
    let over = [run(0, 4097, true), run(4096, 1, true)];
    assert!(decode(&over, 0).is_err(), "one reaches into the next");
    let back = [run(8192, 1, true), run(0, 1, true)];
    assert!(decode(&back, 0).is_err(), "not in order");
    let with_metadata = ArrivingRun {
        metadata: 1,
        ..run(0, 1, true)
    };
    assert!(decode(&[with_metadata], 0).is_err(), "zeros have none");
    let most = |len_bytes| decode(&[run(0, len_bytes, false)], len_bytes as u32).is_ok();
    assert!(most(1 << 20) && !most((1 << 20) + 1));
    // A sum that would run over.
    let huge: Vec<ArrivingRun> = vec![run(0, (1 << 63) - 4096, false); 1];
    assert!(decode(&huge, u32::MAX).is_err());
    let many = |count: usize| {
        let runs: Vec<_> = (0..count as u64)
            .map(|at| run(at * 4096, 1, true))
            .collect();
        decode(&runs, 0).is_ok()
    };
    assert!(many(RUNS_MAX) && !many(RUNS_MAX + 1));
    let body = written(|out| encode_runs(&WARRANT, &good, out));
    assert!(decode_runs(&body[..body.len() - 1], 4196).is_err());
    assert!(body.len() < BODY_MAX_BYTES);
}

proptest! {
    #[test]
    fn arrivals_survive(
        (arrival, proof, id) in (any::<u32>(), any::<[u8; 32]>(), 1_u128..),
        (size_bytes, reserved_bytes, epoch) in (any::<u64>(), any::<u64>(), 0..=Epoch::MAX.0),
        (layer, count) in (any::<u32>(), 0_u32..1 << 20),
        (attributes, name) in (vec(any::<u8>(), 64), "\\PC{1,32}"),
    ) {
        let arrive = Arrive {
            warrant: Warrant { arrival, proof },
            id: DvolId(id),
            size_bytes,
            reserved_bytes,
            epoch: Epoch(epoch),
            highest_layer: LayerNo(layer),
            snapshot_count: count.min(layer),
            attributes: attributes.try_into().expect("64 of them"),
            name: &name,
        };
        let body = written(|out| arrive.encode(out));
        prop_assert_eq!(Arrive::decode(&body), Ok(arrive));
        let step = Step::Snapshot {
            created_ns: size_bytes,
            attributes: arrive.attributes,
            point: count.is_multiple_of(2).then_some([count as u8; 48]),
            name: &name,
        };
        let body = written(|out| step.encode(&arrive.warrant, out));
        prop_assert_eq!(Step::decode(&body), Ok((arrive.warrant, step)));
        let body = written(|out| Step::Size(size_bytes).encode(&arrive.warrant, out));
        prop_assert_eq!(Step::decode(&body), Ok((arrive.warrant, Step::Size(size_bytes))));
    }

    #[test]
    fn nothing_panics(body in vec(any::<u8>(), 0..300), payload_bytes in any::<u32>()) {
        let _ = Arrive::decode(&body);
        let _ = Step::decode(&body);
        let _ = Settle::decode(&body);
        let _ = Settled::decode(&body);
        let _ = Again::decode(&body);
        let _ = decode_arrived(&body);
        if let Ok((_, runs)) = decode_runs(&body, payload_bytes) {
            runs.for_each(drop);
        }
    }
}
