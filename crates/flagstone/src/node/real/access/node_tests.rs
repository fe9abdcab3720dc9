//! A whole node: who has been given a token is admitted, and nobody else, also after a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flagstone_platform::Time;
use flagstone_types::DvolId;
use flagstone_wire::hello::{Nonce, SessionId};
use flagstone_wire::open::Target;
use flagstone_wire::proof::{Claim, KEY_BYTES, Key};

use super::admit::{Grant, Origin, Rule, Where};
use super::tests::logged;
use crate::node::real::start::start_node;
use crate::node::real::tests::{formatted, options, runtime, spec};
use crate::node::real::{RealNode, describe};
use crate::node::{Node, RotateSpec, TokenKind, TokenSpec, TokenText, VolumeInfo};

/// A folder with a device, removed when dropped.
struct Device(PathBuf);

impl Device {
    fn new(name: &str) -> Device {
        Device(formatted(name))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn create(node: &RealNode, name: &str) -> (VolumeInfo, TokenText) {
    let created = node.create_volume(spec(name)).await.expect("created");
    (created.volume, created.token.expect("a token"))
}

/// What a client makes of the text of a token.
fn read(token: &TokenText) -> (u32, Key) {
    let (number, digits) = token.0.split_once('-').expect("a number and a key");
    let mut key = [0; KEY_BYTES];
    for (at, byte) in key.iter_mut().enumerate() {
        let digits = &digits[2 * at..2 * at + 2];
        *byte = u8::from_str_radix(digits, 16).expect("digits");
    }
    (number.parse().expect("a number"), Key(key))
}

fn open(node: &RealNode, target: Target<'_>, token: &TokenText) -> Result<Grant, Rule> {
    let (number, key) = read(token);
    let claim = Claim {
        server: Nonce([1; 16]),
        client: Nonce([2; 16]),
        session: SessionId([3; 16]),
        token: number,
        flags: 0,
        target,
    };
    let origin = Origin {
        peer: "10.0.0.2".parse().ok(),
        local: "10.0.0.1".parse().ok(),
        interface: None,
    };
    let now_ns = describe::wall_clock_ns();
    let proof = claim.prove(&key);
    let admitted = node.access.admit(&claim, &proof, origin, now_ns);
    if let Err(rule) = admitted {
        let access = &node.access;
        access.tell_refused(&claim, "host", origin, rule.into(), Time(0));
    }
    admitted
}

fn rule(node: &RealNode, name: &str, token: &TokenText) -> Option<Rule> {
    open(node, Target::Name(name), token).map(drop).err()
}

fn start(device: &Device) -> Arc<RealNode> {
    start_node(options(device.path().to_owned())).expect("started")
}

#[test]
fn tokens_open_their_volume_and_no_other_one() {
    let device = Device::new("tokens-open");
    let node = start(&device);
    let (vm, reader) = runtime().block_on(async {
        let (info, vm) = create(&node, "vm").await;
        let (_, other) = create(&node, "other").await;
        assert_eq!(rule(&node, "vm", &vm), None);
        assert_eq!(rule(&node, "other", &other), None);
        assert_eq!(rule(&node, "other", &vm), Some(Rule::WrongProof));
        assert_eq!(
            rule(&node, "vm@any", &vm),
            None,
            "who is admitted learns what there is"
        );
        let id = DvolId(u128::from_str_radix(&info.id, 16).expect("an id"));
        let grant = open(&node, Target::Id(id), &vm).expect("is admitted");
        let Where::Here(place) = grant.place else {
            panic!("it is here");
        };
        assert_eq!((grant.kind, place.id), (TokenKind::Owner, id));
        let spec = TokenSpec {
            kind: TokenKind::Reader,
            ends_in_s: None,
            label: String::new(),
        };
        let reader = node
            .create_token("vm".to_owned(), spec)
            .await
            .expect("made")
            .token;
        assert_eq!(
            open(&node, Target::Name("vm"), &reader)
                .expect("is admitted")
                .kind,
            TokenKind::Reader
        );
        let deleted = node.delete_volume("other".to_owned(), false);
        deleted.await.expect("deleted");
        assert_eq!(rule(&node, "other", &other), Some(Rule::NoVolume));
        let (_, again) = create(&node, "other").await;
        assert_eq!(rule(&node, "other", &other), Some(Rule::WrongProof));
        assert_eq!(rule(&node, "other", &again), None);
        let renamed = node.rename_volume("vm".to_owned(), "web".to_owned());
        renamed.await.expect("renamed");
        assert_eq!(rule(&node, "vm", &vm), Some(Rule::NoVolume));
        assert_eq!(rule(&node, "web", &vm), None);
        let clone = node.clone_volume("web".parse().expect("a source"), "copy".to_owned());
        clone.await.expect("cloned");
        assert_eq!(rule(&node, "copy", &vm), Some(Rule::NoToken));
        node.shutdown().await.expect("stopped");
        (vm, reader)
    });
    drop(node);
    let node = start(&device);
    runtime().block_on(async {
        for token in [&vm, &reader] {
            assert_eq!(rule(&node, "web", token), None);
        }
        let revoked = node.revoke_token("web".to_owned(), 1).await;
        revoked.expect("revoked");
        assert_eq!(rule(&node, "web", &vm), Some(Rule::Revoked));
        assert_eq!(rule(&node, "web", &reader), None);
        node.shutdown().await.expect("stopped");
    });
    drop(node);
    let node = start(&device);
    assert_eq!(rule(&node, "web", &vm), Some(Rule::Revoked));
    runtime().block_on(node.shutdown()).expect("stopped");
}

#[test]
fn rotating_keeps_what_is_open_and_revoking_does_not() {
    let device = Device::new("tokens-rotate");
    let node = start(&device);
    runtime().block_on(async {
        let (_, old) = create(&node, "vm").await;
        let grant = open(&node, Target::Name("vm"), &old).expect("is admitted");
        let at_once = RotateSpec {
            old_ends_in_s: 0,
            ends_in_s: None,
        };
        let rotated = node.rotate_token("vm".to_owned(), 1, at_once);
        let new = rotated.await.expect("rotated").token;
        assert_eq!(rule(&node, "vm", &old), Some(Rule::Ended));
        assert_eq!(rule(&node, "vm", &new), None);
        assert!(!grant.is_revoked());
        let listed = node.list_tokens("vm".to_owned()).await.expect("listed");
        assert_eq!(listed.items[0].open_count, 1);
        // Nor does it lose its place to others while it is in use.
        for _ in 2..crate::node::TOKENS_MAX {
            let spec = TokenSpec {
                kind: TokenKind::Reader,
                ends_in_s: None,
                label: String::new(),
            };
            node.create_token("vm".to_owned(), spec)
                .await
                .expect("made");
        }
        let later = RotateSpec {
            old_ends_in_s: 60,
            ends_in_s: None,
        };
        let full = node.rotate_token("vm".to_owned(), 2, later.clone()).await;
        assert!(full.is_err(), "{full:?}");
        let revoked = node
            .revoke_token("vm".to_owned(), 1)
            .await
            .expect("revoked");
        assert_eq!(revoked.open_count, 1);
        assert!(grant.is_revoked());
        // A revoked one makes room whether it is in use or not: it is of no use.
        node.rotate_token("vm".to_owned(), 2, later)
            .await
            .expect("rotated");
        assert!(grant.is_revoked());
        assert_eq!(rule(&node, "vm", &old), Some(Rule::NoToken));
        assert_eq!(rule(&node, "vm", &new), None, "it ends in a minute");
        node.shutdown().await.expect("stopped");
    });
}

#[test]
fn the_audit_log_says_what_was_done_with_tokens() {
    let device = Device::new("tokens-audit");
    let node = start(&device);
    let mut told = Vec::new();
    let lines = logged(|| {
        runtime().block_on(async {
            let (_, first) = create(&node, "vm").await;
            let spec = TokenSpec {
                kind: TokenKind::Writer,
                ends_in_s: None,
                label: "host".to_owned(),
            };
            let second = node
                .create_token("vm".to_owned(), spec)
                .await
                .expect("made")
                .token;
            let rotated = node.rotate_token("vm".to_owned(), 2, RotateSpec::default());
            let third = rotated.await.expect("rotated").token;
            node.revoke_token("vm".to_owned(), 3)
                .await
                .expect("revoked");
            drop(open(&node, Target::Name("vm"), &third));
            told = vec![first, second, third];
        });
    });
    runtime().block_on(node.shutdown()).expect("stopped");
    let audit: Vec<&String> = lines.iter().filter(|l| l.contains(" audit: ")).collect();
    let expected = [
        ["token made", "volume=\"vm\"", "token=1", "kind=\"owner\""],
        ["token made", "volume=\"vm\"", "token=2", "kind=\"writer\""],
        ["token rotated", "volume=\"vm\"", "token=3", "replaces=2"],
        ["token revoked", "volume=\"vm\"", "token=3", ""],
        [
            "open refused",
            "volume=\"vm\"",
            "token=3",
            "rule=\"token-revoked\"",
        ],
    ];
    assert_eq!(audit.len(), expected.len(), "{lines:#?}");
    for (line, parts) in audit.iter().zip(expected) {
        for part in parts {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
    // Of no key more than a few digits that are in it by chance.
    let all = lines.join("\n");
    for token in told {
        let key = token.0.split_once('-').expect("a key").1.to_owned();
        for at in (0..56).step_by(2) {
            assert!(!all.contains(&key[at..at + 8]), "a part of a key is logged");
        }
    }
}
