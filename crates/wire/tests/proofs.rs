//! Proofs of a token's key, held against those of another implementation.

use flagstone_types::DvolId;
use flagstone_wire::hello::{Nonce, SessionId};
use flagstone_wire::open::Target;
use flagstone_wire::proof::{Claim, Key};

fn rising<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|at| first + at as u8)
}

fn claim(target: Target<'_>) -> Claim<'_> {
    Claim {
        server: Nonce(rising(0x30)),
        client: Nonce(rising(0x20)),
        session: SessionId(rising(0x10)),
        token: 5,
        flags: 2,
        target,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn proofs_are_those_of_the_page() {
    // Made with Python's hmac and hashlib from docs/protocols/native.md.
    let key = Key(rising(0));
    let named = claim(Target::Name("vm-1"));
    let expected = "4172fbee869c56415fd1fcd82ebd83f5c65bd6a8d4ca79f51b95876dc77b7f61";
    assert_eq!(hex(&named.prove(&key)), expected);
    let id = DvolId(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);
    let by_id = Claim {
        token: 6,
        flags: 1,
        ..claim(Target::Id(id))
    };
    let expected = "3a0da9ae90c6ff1390a8c601d50059e78899572273bb82851630dea94dacc746";
    assert_eq!(hex(&by_id.prove(&key)), expected);
}

#[test]
fn a_proof_is_for_one_claim_and_one_key() {
    let key = Key(rising(0));
    let right = claim(Target::Name("vm-1"));
    let proof = right.prove(&key);
    assert!(right.is_proven(&key, &proof));
    let others = [
        Claim {
            server: Nonce(rising(0x31)),
            ..right
        },
        Claim {
            client: Nonce(rising(0x21)),
            ..right
        },
        Claim {
            session: SessionId(rising(0x11)),
            ..right
        },
        Claim { token: 6, ..right },
        Claim { flags: 0, ..right },
        claim(Target::Name("vm-2")),
        claim(Target::Name("vm-1@a")),
        claim(Target::Id(DvolId(1))),
    ];
    for other in others {
        assert!(!other.is_proven(&key, &proof), "{other:?}");
    }
    assert!(!right.is_proven(&Key(rising(1)), &proof));
    for bit in 0..256 {
        let mut wrong = proof;
        wrong[bit / 8] ^= 1 << (bit % 8);
        assert!(!right.is_proven(&key, &wrong), "bit {bit}");
    }
}

#[test]
fn a_key_is_not_shown() {
    assert_eq!(format!("{:?}", Key(rising(0))), "Key(..)");
}

#[test]
fn keys_are_the_same_if_all_their_bits_are() {
    let key = Key(rising(0));
    assert!(key.is_same(&Key(rising(0))));
    for bit in 0..256 {
        let mut other = rising(0);
        other[bit / 8] ^= 1 << (bit % 8);
        let other = Key(other);
        assert!(!key.is_same(&other) && !other.is_same(&key), "bit {bit}");
    }
}
