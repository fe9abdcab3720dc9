//! Who is admitted, and what is said of it.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Once;

use flagstone_platform::Time;
use flagstone_wire::hello::{Nonce, SessionId};
use flagstone_wire::open::Target;
use flagstone_wire::proof::{Claim, KEY_BYTES, Key};

use super::admit::{Grant, Origin, Rule, Where};
use super::*;
use crate::node::TokenKind;
use crate::node::real::names::Place;

const VOLUME: DvolId = DvolId(7);
const NOW_NS: u64 = 1000;

fn place() -> Place {
    Place {
        core: 1,
        engine: 2,
        id: VOLUME,
    }
}

fn token(number: u32, kind: TokenKind) -> Token {
    Token {
        number,
        kind,
        key: Key([number as u8 + 100; KEY_BYTES]),
        created_ns: 1,
        ends_ns: 0,
        revoked_ns: 0,
        label: String::new(),
        live: Arc::default(),
    }
}

/// Volume `vm` with an owner's, a writer's and a reader's token.
fn table(change: impl FnOnce(&mut Record)) -> Access {
    let names = Names::default();
    names.insert_found("vm", place());
    let mut record = Record::new(VOLUME);
    record.tokens = vec![
        token(1, TokenKind::Owner),
        token(2, TokenKind::Writer),
        token(3, TokenKind::Reader),
    ];
    record.next_number = 4;
    change(&mut record);
    let access = Access::new(names, Between::default());
    access.set(record);
    access
}

fn claim(target: Target<'_>, token: u32) -> Claim<'_> {
    Claim {
        server: Nonce([1; 16]),
        client: Nonce([2; 16]),
        session: SessionId([3; 16]),
        token,
        flags: 0,
        target,
    }
}

fn origin(peer: &str, local: &str) -> Origin {
    Origin {
        peer: peer.parse().ok(),
        local: local.parse().ok(),
        interface: None,
    }
}

/// Asks with the key that the token of that number has.
fn ask(access: &Access, target: Target<'_>, number: u32) -> Result<Grant, Rule> {
    ask_from(access, target, number, origin("10.1.2.3", "10.0.0.1"))
}

fn ask_from(
    access: &Access,
    target: Target<'_>,
    number: u32,
    origin: Origin,
) -> Result<Grant, Rule> {
    let claim = claim(target, number);
    let proof = claim.prove(&token(number, TokenKind::Owner).key);
    let admitted = access.admit(&claim, &proof, origin, NOW_NS);
    if let Err(rule) = admitted {
        access.tell_refused(&claim, "host b", origin, rule.into(), Time(0));
    }
    admitted
}

fn refused(asked: Result<Grant, Rule>) -> Rule {
    asked.map(drop).expect_err("is refused")
}

#[test]
fn who_has_a_key_is_admitted() {
    let access = table(|_| {});
    for target in [
        Target::Name("vm"),
        Target::Name("vm@any"),
        Target::Id(VOLUME),
    ] {
        for (number, kind) in [
            (1, TokenKind::Owner),
            (2, TokenKind::Writer),
            (3, TokenKind::Reader),
        ] {
            let grant = ask(&access, target, number).expect("is admitted");
            assert_eq!((grant.place, grant.kind), (Where::Here(place()), kind));
            assert!(!grant.is_revoked());
        }
    }
}

#[test]
fn everybody_else_is_refused() {
    let access = table(|record| {
        record.tokens[1].ends_ns = NOW_NS;
        record.tokens[2].revoked_ns = 5;
    });
    let vm = Target::Name("vm");
    assert_eq!(
        refused(ask(&access, Target::Name("other"), 1)),
        Rule::NoVolume
    );
    assert_eq!(refused(ask(&access, Target::Name(""), 1)), Rule::NoVolume);
    assert_eq!(
        refused(ask(&access, Target::Id(DvolId(8)), 1)),
        Rule::NoVolume
    );
    assert_eq!(refused(ask(&access, vm, 9)), Rule::NoToken);
    assert_eq!(refused(ask(&access, vm, 2)), Rule::Ended);
    assert_eq!(refused(ask(&access, vm, 3)), Rule::Revoked);
    // A proof for something else than what is claimed.
    let proof = claim(vm, 1).prove(&token(1, TokenKind::Owner).key);
    let others: [&dyn Fn(&mut Claim<'_>); 4] = [
        &|claim| claim.server = Nonce([9; 16]),
        &|claim| claim.session = SessionId([9; 16]),
        &|claim| claim.flags = 1,
        &|claim| claim.target = Target::Name("vm@other"),
    ];
    let here = origin("10.1.2.3", "10.0.0.1");
    assert!(access.admit(&claim(vm, 1), &proof, here, NOW_NS).is_ok());
    for (index, change) in others.iter().enumerate() {
        let mut claim = claim(vm, 1);
        change(&mut claim);
        let rule = refused(access.admit(&claim, &proof, here, NOW_NS));
        assert_eq!(rule, Rule::WrongProof, "change {index}");
    }
    // The key that stands in for those that aren't there opens nothing.
    let nobodys = Key([0; KEY_BYTES]);
    for (target, number, rule) in [
        (vm, 1, Rule::WrongProof),
        (vm, 9, Rule::NoToken),
        (Target::Name("other"), 1, Rule::NoVolume),
    ] {
        let claim = claim(target, number);
        let proof = claim.prove(&nobodys);
        assert_eq!(refused(access.admit(&claim, &proof, here, NOW_NS)), rule);
    }
}

/// What a client without the key does learns nothing of the token or of the rules.
#[test]
fn a_wrong_proof_comes_before_what_else_is_wrong() {
    let access = table(|record| {
        record.tokens[1].ends_ns = 1;
        record.tokens[2].revoked_ns = 5;
        record.networks = vec!["192.168.0.0/16".parse().expect("a network")];
    });
    let here = origin("10.1.2.3", "10.0.0.1");
    for number in 1..=3 {
        let asked = access.admit(&claim(Target::Id(VOLUME), number), &[0; 32], here, NOW_NS);
        assert_eq!(refused(asked), Rule::WrongProof);
    }
}

#[test]
fn a_token_that_ends_later_still_opens() {
    let access = table(|record| record.tokens[0].ends_ns = NOW_NS + 1);
    let grant = ask(&access, Target::Id(VOLUME), 1).expect("is admitted");
    access.set(Record {
        tokens: vec![Token {
            ends_ns: NOW_NS,
            ..access.of(VOLUME).expect("there").tokens[0].clone()
        }],
        ..Record::clone(&access.of(VOLUME).expect("there"))
    });
    assert_eq!(refused(ask(&access, Target::Id(VOLUME), 1)), Rule::Ended);
    assert!(!grant.is_revoked(), "what is open stays open");
}

#[test]
fn restrictions_are_by_network_and_by_local_address() {
    let restricted = |networks: &[&str], locals: &[&str]| {
        table(|record| {
            record.networks = networks.iter().map(|n| n.parse().expect(n)).collect();
            record.locals = locals.iter().map(|n| n.parse().expect(n)).collect();
        })
    };
    let rule = |access: &Access, peer: &str, local: &str| {
        let asked = ask_from(access, Target::Id(VOLUME), 1, origin(peer, local));
        asked.map(drop).err()
    };
    let access = restricted(&["10.1.0.0/16", "2001:db8::/32"], &[]);
    for peer in ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7"] {
        assert_eq!(rule(&access, peer, "10.0.0.1"), None, "{peer}");
    }
    for peer in ["10.2.0.1", "::ffff:10.2.0.1", "2001:db9::7", "none"] {
        assert_eq!(rule(&access, peer, "10.1.0.1"), Some(Rule::Peer), "{peer}");
    }
    let access = restricted(&[], &["10.0.0.1", "fd00::1"]);
    for local in ["10.0.0.1", "::ffff:10.0.0.1", "fd00::1"] {
        assert_eq!(rule(&access, "10.9.9.9", local), None, "{local}");
    }
    for local in ["10.0.0.2", "fd00::2", "none"] {
        assert_eq!(
            rule(&access, "10.0.0.1", local),
            Some(Rule::Local),
            "{local}"
        );
    }
    let both = restricted(&["10.1.0.0/16"], &["10.0.0.1"]);
    assert_eq!(rule(&both, "10.1.2.3", "10.0.0.1"), None);
    assert_eq!(rule(&both, "10.1.2.3", "10.0.0.2"), Some(Rule::Local));
    assert_eq!(rule(&both, "10.2.2.3", "10.0.0.1"), Some(Rule::Peer));
}

#[test]
fn grants_are_counted_and_see_that_they_are_revoked() {
    let access = table(|_| {});
    let opens = |number: u32| {
        let record = access.of(VOLUME).expect("there");
        record.token(number).expect("there").info(NOW_NS).open_count
    };
    let first = ask(&access, Target::Id(VOLUME), 2).expect("is admitted");
    let second = ask(&access, Target::Id(VOLUME), 2).expect("is admitted");
    let other = ask(&access, Target::Id(VOLUME), 3).expect("is admitted");
    assert_eq!((opens(2), opens(3)), (2, 1));
    drop(second);
    assert_eq!(opens(2), 1);
    // The table gets another record meanwhile, with the same tokens.
    access.set(Record::clone(&access.of(VOLUME).expect("there")));
    assert_eq!(opens(2), 1);
    revoke(access.of(VOLUME).expect("there").token(2).expect("there"));
    assert!(first.is_revoked());
    assert!(!other.is_revoked());
    // Not even if the table was looked into before it was revoked.
    assert_eq!(refused(ask(&access, Target::Id(VOLUME), 2)), Rule::Revoked);
    assert_eq!(opens(2), 1, "who was refused doesn't count");
}

#[test]
fn a_deleted_volume_lets_nobody_in() {
    let access = table(|_| {});
    access.forget(VOLUME);
    assert_eq!(refused(ask(&access, Target::Name("vm"), 1)), Rule::NoToken);
    access.names.deleted(VOLUME);
    assert_eq!(refused(ask(&access, Target::Name("vm"), 1)), Rule::NoVolume);
}

thread_local! {
    /// What is logged on this thread, if somebody wants to know.
    static LINES: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LINES.with_borrow_mut(|lines| {
            if let Some(lines) = lines {
                lines.extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The lines that are logged while something is done on this thread.
pub(super) fn logged(act: impl FnOnce()) -> Vec<String> {
    // For all threads: what one without a subscriber comes by first isn't told to those of other threads, either.
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::TRACE)
            .with_writer(|| Lines)
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("no other test has one");
    });
    LINES.set(Some(Vec::new()));
    act();
    let bytes = LINES.take().expect("set above");
    let text = String::from_utf8(bytes).expect("text");
    text.lines().map(str::to_owned).collect()
}

/// The fields of the lines that are logged while something is done on this thread.
fn logged_fields(act: impl FnOnce()) -> Vec<BTreeMap<String, serde_json::Value>> {
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_max_level(tracing::Level::INFO)
        .with_writer(|| Lines)
        .finish();
    let lines = logged(|| tracing::subscriber::with_default(subscriber, act));
    let fields = |line: String| {
        let mut fields: BTreeMap<_, serde_json::Value> = serde_json::from_str(&line).expect("JSON");
        assert_eq!(fields["target"], "audit");
        for known in ["timestamp", "level", "target"] {
            fields.remove(known);
        }
        fields
    };
    lines.into_iter().map(fields).collect()
}

/// What a line has, but for its protocol.
fn fields(
    protocol: &str,
    message: &str,
    more: &[(&str, serde_json::Value)],
) -> BTreeMap<String, serde_json::Value> {
    let first = [("protocol", protocol.into()), ("message", message.into())];
    let all = first.into_iter().chain(more.iter().cloned());
    all.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Each kind of line, whatever protocol it is about: a field has one value, that of nothing else, and the same name everywhere. What a client
/// has named is in it as it is.
#[test]
fn every_field_of_the_audit_log_is_one_value() {
    use flagstone_gateway::native::directory::Rule as Named;
    let access = table(|record| {
        record.networks = vec!["10.0.0.0/8".parse().expect("a network")];
    });
    let here = origin("10.1.2.3", "10.0.0.1");
    let mapped = origin("::ffff:192.168.0.1", "::ffff:10.0.0.1");
    let nowhere = origin("", "");
    let (vm, odd) = (Target::Name("vm"), "x'\"\n2026 INFO audit: opened");
    let ends = [("from", "10.1.2.3".into()), ("on", "10.0.0.1".into())];
    let with = |more: &[(&'static str, serde_json::Value)]| [&ends[..], more].concat();
    type Case<'a> = (&'a dyn Fn(), BTreeMap<String, serde_json::Value>);
    let cases: [Case<'_>; 11] = [
        (
            &|| access.tell_opened(vm, (1, None), "host a\n", here),
            fields(
                "native",
                "opened",
                &with(&[
                    ("volume", "vm".into()),
                    ("token", 1.into()),
                    ("client", "host a\n".into()),
                ]),
            ),
        ),
        (
            &|| access.tell_opened(Target::Name("vm@mon"), (2, Some(77)), "", nowhere),
            fields(
                "native",
                "opened",
                &[
                    ("volume", "vm".into()),
                    ("snapshot", "mon".into()),
                    ("token", 2.into()),
                    ("token_ends_ns", 77.into()),
                    ("client", "".into()),
                ],
            ),
        ),
        (
            &|| drop(ask(&access, Target::Name(odd), 1)),
            fields(
                "native",
                "open refused",
                &with(&[
                    ("volume", odd.into()),
                    ("token", 1.into()),
                    ("client", "host b".into()),
                    ("rule", "unknown-volume".into()),
                ]),
            ),
        ),
        (
            &|| drop(ask(&access, Target::Id(DvolId(0xabc)), 1)),
            fields(
                "native",
                "open refused",
                &with(&[
                    ("volume_id", DvolId(0xabc).to_string().into()),
                    ("token", 1.into()),
                    ("client", "host b".into()),
                    ("rule", "unknown-volume".into()),
                ]),
            ),
        ),
        (
            &|| drop(ask(&access, Target::Id(VOLUME), 9)),
            fields(
                "native",
                "open refused",
                &with(&[
                    ("volume", "vm".into()),
                    ("token", 9.into()),
                    ("client", "host b".into()),
                    ("rule", "unknown-token".into()),
                ]),
            ),
        ),
        (
            &|| access.tell_refused(&claim(vm, 3), "host b", here, Named::Kind, Time(0)),
            fields(
                "native",
                "open refused",
                &with(&[
                    ("volume", "vm".into()),
                    ("token", 3.into()),
                    ("client", "host b".into()),
                    ("rule", "kind-of-token".into()),
                ]),
            ),
        ),
        (
            &|| access.tell_refused(&claim(vm, 3), "", nowhere, Named::TooMany, Time(0)),
            fields(
                "native",
                "open refused",
                &[
                    ("volume", "vm".into()),
                    ("token", 3.into()),
                    ("client", "".into()),
                    ("rule", "too-many-refused".into()),
                ],
            ),
        ),
        (
            &|| access.tell_request_refused(VOLUME, 2, "host", here, Named::Revoked, Time(0)),
            fields(
                "native",
                "request refused",
                &with(&[
                    ("volume", "vm".into()),
                    ("token", 2.into()),
                    ("client", "host".into()),
                    ("rule", "token-revoked".into()),
                ]),
            ),
        ),
        (
            &|| access.tell_forbidden("vm@mon", mapped, Time(0)),
            fields(
                "nbd",
                "open refused",
                &[
                    ("volume", "vm".into()),
                    ("snapshot", "mon".into()),
                    ("from", "192.168.0.1".into()),
                    ("on", "10.0.0.1".into()),
                    ("rule", "address".into()),
                ],
            ),
        ),
        (
            &|| access.tell_file_refused(VOLUME, here, Rule::Local, Time(0)),
            fields(
                "nfs",
                "request refused",
                &with(&[("volume", "vm".into()), ("rule", "local-address".into())]),
            ),
        ),
        (
            // It may be used from there by now.
            &|| access.tell_forbidden("vm", here, Time(0)),
            BTreeMap::new(),
        ),
    ];
    for (index, (tell, expected)) in cases.iter().enumerate() {
        let found = logged_fields(tell);
        let expected: Vec<_> = Some(expected)
            .filter(|e| !e.is_empty())
            .into_iter()
            .collect();
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "case {index}");
    }
    // As text, too: nothing that a client has named begins a line, or looks like a field.
    let lines = logged(|| drop(ask(&access, Target::Name(odd), 1)));
    let [line] = &lines[..] else {
        panic!("one line expected: {lines:?}");
    };
    assert!(
        line.contains(r#" volume="x'\"\n2026 INFO audit: opened" "#),
        "{line}"
    );
}

/// Being refused takes no key, and the log has an end. What is left out is counted, and one address leaves others their lines.
#[test]
fn refusals_of_one_address_are_few_lines() {
    let access = table(|_| {});
    let (bad, good) = (
        origin("10.1.2.3", "10.0.0.1"),
        origin("10.1.2.4", "10.0.0.1"),
    );
    let lines_at = |ms: u64, from: Origin, times: usize| {
        let now = Time(ms * 1_000_000);
        let rule = Rule::WrongProof.into();
        let claim = claim(Target::Name("vm"), 1);
        let refuse = || access.tell_refused(&claim, "host", from, rule, now);
        logged_fields(|| (0..times).for_each(|_| refuse()))
    };
    let written = lines_at(0, bad, 1000);
    assert_eq!(written.len(), 10);
    assert!(written.iter().all(|line| !line.contains_key("left_out")));
    assert_eq!(lines_at(1, good, 1).len(), 1, "others have theirs");
    // Another protocol is no way around it.
    let told = logged_fields(|| access.tell_file_refused(VOLUME, bad, Rule::Peer, Time(2)));
    assert!(told.is_empty(), "{told:?}");
    let opened = || access.tell_opened(Target::Name("vm"), (1, None), "host", bad);
    assert_eq!(logged_fields(opened).len(), 1, "who was let in has a line");
    let [line] = &lines_at(1000, bad, 1)[..] else {
        panic!("one line a second later");
    };
    assert_eq!(line["left_out"], 991);
    assert!(!line.contains_key("left_out_others"));
}

/// Each way to be refused, with the name that the log has of it.
#[test]
fn every_refusal_is_a_line_with_its_reason() {
    let access = table(|record| {
        record.tokens[1].ends_ns = NOW_NS;
        record.tokens[2].revoked_ns = 5;
        record.networks = vec!["10.0.0.0/8".parse().expect("a network")];
        record.locals = vec!["10.0.0.1".parse().expect("an address")];
    });
    let key = |number: u32| token(number, TokenKind::Owner).key;
    let wrong = Key([0xab; KEY_BYTES]);
    let (inside, vm) = ("10.1.2.3", "vm");
    let cases = [
        ("other", 1, key(1), inside, "10.0.0.1", "unknown-volume"),
        (vm, 9, key(9), inside, "10.0.0.1", "unknown-token"),
        (vm, 1, wrong, inside, "10.0.0.1", "wrong-proof"),
        (vm, 3, key(3), inside, "10.0.0.1", "token-revoked"),
        (vm, 2, key(2), inside, "10.0.0.1", "token-ended"),
        (vm, 1, key(1), "192.168.0.1", "10.0.0.1", "address"),
        (vm, 1, key(1), "none", "10.0.0.1", "address"),
        (vm, 1, key(1), inside, "10.0.0.2", "local-address"),
    ];
    for (name, number, key, peer, local, reason) in cases {
        let lines = logged(|| {
            let claim = claim(Target::Name(name), number);
            let from = origin(peer, local);
            let rule = refused(access.admit(&claim, &claim.prove(&key), from, NOW_NS));
            assert_eq!(rule.to_string(), reason);
            access.tell_refused(&claim, "host", from, rule.into(), Time(0));
        });
        let [line] = &lines[..] else {
            panic!("{reason}: one line expected: {lines:?}");
        };
        let from = match peer {
            "none" => String::new(),
            peer => format!(" from=\"{peer}\""),
        };
        let wanted = [
            " audit: open refused protocol=\"native\"".to_owned(),
            format!(" volume=\"{name}\" token={number}"),
            format!("{number} client=\"host\"{from} on=\"{local}\" rule=\"{reason}\""),
        ];
        for part in &wanted {
            assert!(line.contains(part), "{part} in {line}");
        }
        let byte = key.0[0];
        let (digits, bytes) = (format!("{byte:02x}").repeat(4), format!("{byte}, {byte}"));
        assert!(!line.contains(&digits) && !line.contains(&bytes), "{line}");
    }
    let lines = logged(|| {
        let grant = access.admit(
            &claim(Target::Name(vm), 1),
            &claim(Target::Name(vm), 1).prove(&key(1)),
            origin(inside, "10.0.0.1"),
            NOW_NS,
        );
        assert!(grant.is_ok());
    });
    assert!(lines.is_empty(), "{lines:?}");
}

/// It isn't known who may: so nobody may, by whichever way, until it is said anew.
#[test]
fn nobody_uses_a_volume_whose_record_is_lost() {
    let access = table(|_| {});
    let (vm, from) = (Target::Name("vm"), origin("10.1.2.3", "10.0.0.1"));
    let before = access.changes();
    access.set(Record::lost(VOLUME));
    assert_ne!(access.changes(), before);
    assert_eq!(access.lost_count(), 1);
    assert!(access.has_lost_at(2) && !access.has_lost_at(1));
    let nowhere = origin("", "");
    let origins = [
        from,
        nowhere,
        origin("0.0.0.1", "0.0.0.0"),
        origin("::1", "::1"),
    ];
    let kept_out = |rule: Rule| {
        for from in origins {
            for name in ["vm", "vm@any"] {
                assert_eq!(access.check_name(name, from), Err(rule), "{from:?}");
            }
            assert_eq!(access.check_volume(VOLUME, from), Err(rule), "{from:?}");
        }
    };
    kept_out(Rule::Lost);
    assert_eq!(refused(ask(&access, vm, 1)), Rule::Lost);
    // With a token it is one that is restricted, as it lies on the device.
    let mut made = Record::clone(&access.of(VOLUME).expect("one"));
    made.is_lost = false;
    made.tokens.push(token(1, TokenKind::Owner));
    made.next_number = 2;
    access.set(Record::decode(&made.encode()).expect("a record"));
    kept_out(Rule::Peer);
    assert_eq!(refused(ask(&access, vm, 1)), Rule::Peer);
    assert_eq!(access.lost_count(), 0);
    access.forget(VOLUME);
    assert_eq!(access.check_name("vm", from), Ok(()));
}
