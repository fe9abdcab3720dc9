//! Tokens of volumes on a real node: what is told, what stays, what goes with the volume.

use std::collections::BTreeSet;

use flagstone::node::{
    NewToken, NodeError, NodeErrorKind, RESTRICTIONS_MAX, Reservation, Restrictions, RotateSpec,
    TOKENS_MAX, TokenInfo, TokenKind, TokenSpec, TokenState, TokenText, VolumeSpec,
};
use flagstone::offline::{InspectOptions, inspect};

use crate::support::Scene;

const MIB: u64 = 1 << 20;

fn volume(scene: &Scene, name: &str) -> TokenText {
    volume_of(scene, name, None)
}

fn volume_of(scene: &Scene, name: &str, stripes: Option<u32>) -> TokenText {
    let spec = VolumeSpec {
        name: name.to_owned(),
        size_bytes: 8 * MIB,
        reserve: Reservation::None,
        device: None,
        core: None,
        apart: false,
        stripes,
        stripe_unit_bytes: None,
        slo: Default::default(),
        oversubscribe: false,
    };
    let created = scene.ask(|node| node.create_volume(spec)).expect("created");
    created.token.expect("a token")
}

fn spec(kind: TokenKind) -> TokenSpec {
    TokenSpec {
        kind,
        ends_in_s: None,
        label: String::new(),
    }
}

fn make(scene: &Scene, volume: &str, spec: TokenSpec) -> Result<NewToken, NodeError> {
    scene.ask(|node| node.create_token(volume.to_owned(), spec))
}

fn list(scene: &Scene, volume: &str) -> Vec<TokenInfo> {
    let listed = scene.ask(|node| node.list_tokens(volume.to_owned()));
    listed.expect("listed").items
}

fn revoke(scene: &Scene, volume: &str, number: u32) -> Result<TokenInfo, NodeError> {
    scene.ask(|node| node.revoke_token(volume.to_owned(), number))
}

fn rotate(
    scene: &Scene,
    volume: &str,
    number: u32,
    old_ends_in_s: u64,
) -> Result<NewToken, NodeError> {
    let spec = RotateSpec {
        old_ends_in_s,
        ends_in_s: None,
    };
    scene.ask(|node| node.rotate_token(volume.to_owned(), number, spec))
}

fn states(scene: &Scene, volume: &str) -> Vec<(u32, TokenKind, TokenState)> {
    let tokens = list(scene, volume).into_iter();
    tokens.map(|t| (t.number, t.kind, t.state)).collect()
}

/// The 64 digits of a token's key.
fn key(token: &TokenText, number: u32) -> String {
    let key = token
        .0
        .strip_prefix(&format!("{number}-"))
        .expect("its number");
    assert_eq!(key.len(), 64);
    assert!(
        key.bytes()
            .all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
    );
    key.to_owned()
}

#[track_caller]
fn refused<T>(asked: Result<T, NodeError>, kind: NodeErrorKind, words: &str) {
    let Err(error) = asked else {
        panic!("it was not refused");
    };
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
    assert!(!error.next_step.is_empty(), "{error}");
}

use TokenKind::{Owner, Reader, Writer};
use TokenState::{Ended, Revoked, Valid};

#[test]
fn tokens_are_made_revoked_and_rotated_and_stay_over_a_restart() {
    let scene = Scene::new();
    let mut keys = BTreeSet::from([key(&volume(&scene, "vm"), 1)]);
    let labelled = TokenSpec {
        label: "backup".to_owned(),
        ends_in_s: Some(3600),
        ..spec(Reader)
    };
    let made = make(&scene, "vm", labelled).expect("made");
    keys.insert(key(&made.token, 2));
    assert_eq!(
        made.info.ends_ns,
        Some(made.info.created_ns + 3_600_000_000_000)
    );
    keys.insert(key(
        &make(&scene, "vm", spec(Writer)).expect("made").token,
        3,
    ));
    let all = [(1, Owner, Valid), (2, Reader, Valid), (3, Writer, Valid)];
    assert_eq!(states(&scene, "vm"), all);
    assert_eq!(list(&scene, "vm")[1], made.info);

    let revoked = revoke(&scene, "vm", 3).expect("revoked");
    assert_eq!((revoked.number, revoked.state), (3, Revoked));
    assert_eq!(
        revoke(&scene, "vm", 3).expect("it was"),
        revoked,
        "as before"
    );
    let rotated = rotate(&scene, "vm", 1, 0).expect("rotated");
    keys.insert(key(&rotated.token, 4));
    assert_eq!((rotated.info.kind, rotated.info.state), (Owner, Valid));
    let rotated = rotate(&scene, "vm", 2, 60).expect("rotated");
    keys.insert(key(&rotated.token, 5));
    assert_eq!(rotated.info.label, "backup");
    assert_eq!(keys.len(), 5, "each has a key of its own");
    let all = [
        (1, Owner, Ended),
        (2, Reader, Valid),
        (3, Writer, Revoked),
        (4, Owner, Valid),
        (5, Reader, Valid),
    ];
    assert_eq!(states(&scene, "vm"), all);
    let old = &list(&scene, "vm")[1];
    let ends_ns = old.ends_ns.expect("it ends");
    assert!(ends_ns <= rotated.info.created_ns + 60_000_000_000);
    // It would have ended before: it still does.
    rotate(&scene, "vm", 2, 86_400).expect("rotated");
    assert_eq!(list(&scene, "vm")[1].ends_ns, Some(ends_ns));

    let before = list(&scene, "vm");
    let scene = scene.restart(|_| {});
    assert_eq!(list(&scene, "vm"), before);
    let next = make(&scene, "vm", spec(Owner)).expect("made");
    assert_eq!(next.info.number, 7, "no number is given twice");
}

#[test]
fn tokens_go_with_their_volume_and_with_nothing_else() {
    let scene = Scene::new();
    let first = volume(&scene, "vm");
    volume(&scene, "other");
    make(&scene, "vm", spec(Reader)).expect("made");
    let renamed = scene.ask(|node| node.rename_volume("vm".to_owned(), "web".to_owned()));
    renamed.expect("renamed");
    assert_eq!(list(&scene, "web").len(), 2);
    refused(
        make(&scene, "vm", spec(Reader)),
        NodeErrorKind::NotFound,
        "there is no volume",
    );
    let source = "web".parse().expect("a source");
    let cloned = scene.ask(|node| node.clone_volume(source, "copy".to_owned()));
    cloned.expect("cloned");
    assert_eq!(list(&scene, "copy"), []);
    let own = make(&scene, "copy", spec(Owner)).expect("made");
    assert_eq!(own.info.number, 1);
    let deleted = scene.ask(|node| node.delete_volume("web".to_owned(), true));
    deleted.expect("deleted");
    refused(
        revoke(&scene, "web", 1),
        NodeErrorKind::NotFound,
        "there is no volume",
    );
    let again = volume(&scene, "web");
    assert_ne!(key(&again, 1), key(&first, 1));
    let scene = scene.restart(|_| {});
    for name in ["web", "copy", "other"] {
        assert_eq!(states(&scene, name), [(1, Owner, Valid)], "{name}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let scene = Scene::new();
    volume(&scene, "vm");
    let labelled = |label: &str| TokenSpec {
        label: label.to_owned(),
        ..spec(Reader)
    };
    let invalid = NodeErrorKind::InvalidArgument;
    refused(
        make(&scene, "vm", labelled(&"x".repeat(33))),
        invalid,
        "32 bytes",
    );
    refused(
        make(&scene, "vm", labelled("a\nb")),
        invalid,
        "control characters",
    );
    make(&scene, "vm", labelled(&"x".repeat(32))).expect("made");
    let at_once = TokenSpec {
        ends_in_s: Some(0),
        ..spec(Reader)
    };
    refused(make(&scene, "vm", at_once), invalid, "of no use");
    refused(
        revoke(&scene, "vm", 9),
        NodeErrorKind::NotFound,
        "no token 9",
    );
    refused(
        rotate(&scene, "vm", 9, 0),
        NodeErrorKind::NotFound,
        "no token 9",
    );
    revoke(&scene, "vm", 2).expect("revoked");
    refused(rotate(&scene, "vm", 2, 0), invalid, "revoked already");
    rotate(&scene, "vm", 1, 0).expect("rotated");
    refused(rotate(&scene, "vm", 1, 0), invalid, "ended already");
    // For longer than there is time.
    let long = |ends_in_s: u64| TokenSpec {
        ends_in_s: Some(ends_in_s),
        ..spec(Reader)
    };
    let year_s = 365 * 86_400;
    for in_s in [u64::MAX, 99_999_999 * 86_400, 600 * year_s] {
        refused(make(&scene, "vm", long(in_s)), invalid, "year 2554");
        refused(rotate(&scene, "vm", 3, in_s), invalid, "year 2554");
    }
    let made = make(&scene, "vm", long(500 * year_s)).expect("made");
    assert_eq!(made.info.state, Valid);
    // What nobody connects to, so that nobody could use the volume.
    for nobodys in ["0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1"] {
        let restrictions = Restrictions {
            allow_on: vec![nobodys.parse().expect("an address")],
            ..Restrictions::default()
        };
        let asked = scene.ask(|node| node.restrict_volume("vm".to_owned(), restrictions));
        refused(asked, invalid, "no address of the node");
    }
}

#[test]
fn those_that_are_over_make_room() {
    let scene = Scene::new();
    volume(&scene, "vm");
    for _ in 1..TOKENS_MAX {
        make(&scene, "vm", spec(Reader)).expect("made");
    }
    let full = NodeErrorKind::TooMany;
    let error = make(&scene, "vm", spec(Reader)).expect_err("one too many");
    assert!(error.next_step.contains("token revoke"), "{error}");
    assert_eq!(error.kind.http_status(), 409);
    refused(make(&scene, "vm", spec(Reader)), full, "32 tokens");
    // The one that ends makes room at once, also for what takes its place.
    let rotated = rotate(&scene, "vm", 5, 0).expect("rotated");
    assert_eq!(rotated.info.number, TOKENS_MAX as u32 + 1);
    let numbers: Vec<u32> = list(&scene, "vm").iter().map(|t| t.number).collect();
    assert_eq!(numbers.len(), TOKENS_MAX);
    assert!(!numbers.contains(&5));
    refused(rotate(&scene, "vm", 6, 60), full, "32 tokens");
    let sixth = list(&scene, "vm").into_iter().find(|t| t.number == 6);
    assert_eq!(
        sixth.expect("there").ends_ns,
        None,
        "it was refused as a whole"
    );
    revoke(&scene, "vm", 8).expect("revoked");
    make(&scene, "vm", spec(Reader)).expect("made");
    assert!(list(&scene, "vm").iter().all(|t| t.number != 8));
}

/// Many at the same time, on volumes that two cores have.
#[test]
fn changes_at_the_same_time_all_happen() {
    let scene = Scene::with_two_cores();
    for name in ["a", "b"] {
        volume(&scene, name);
    }
    let made = scene.ask_all(|node| {
        let volumes = ["a", "b"].into_iter().cycle().take(20);
        volumes
            .map(|volume| node.create_token(volume.to_owned(), spec(Writer)))
            .collect()
    });
    assert!(made.iter().all(Result::is_ok));
    let scene = scene.restart(|_| {});
    for name in ["a", "b"] {
        let numbers: Vec<u32> = list(&scene, name).iter().map(|t| t.number).collect();
        assert_eq!(numbers, (1..=11).collect::<Vec<u32>>());
    }
}

/// The dvol that tokens are in is nobody's volume, and tools that read a device show no key.
#[test]
fn keys_are_shown_by_nothing_but_the_answer() {
    let mut scene = Scene::new();
    let token = volume(&scene, "vm");
    let digits = key(&token, 1);
    let page = scene.ask(|node| node.list_volumes(Default::default()));
    let names: Vec<String> = page
        .expect("listed")
        .items
        .into_iter()
        .map(|v| v.name)
        .collect();
    assert_eq!(names, ["vm"]);
    let device = scene
        .ask(|node| node.show_device("main".to_owned()))
        .expect("shown");
    assert_eq!(device.volume_count, 1);
    let shown = format!("{:?} {:?}", list(&scene, "vm"), token);
    assert!(!shown.contains(&digits));
    let path = scene.device_path();
    scene.stop().expect("stopped");
    let raw: Vec<u8> = (0..32)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits"))
        .collect();
    let bytes = std::fs::read(&path).expect("read");
    assert!(
        bytes.windows(32).any(|w| w == raw),
        "the test knows what it looks for"
    );
    let inspected = |options: InspectOptions| {
        let found = inspect(&path, &options).expect("inspected");
        format!("{} {}", found.words, found.value)
    };
    let detailed = InspectOptions {
        detailed: true,
        ..Default::default()
    };
    let map = InspectOptions {
        map_of: Some(".tokens".to_owned()),
        ..Default::default()
    };
    for text in [inspected(detailed), inspected(map)] {
        assert!(text.contains(".tokens"), "{text}");
        assert!(!text.contains(&digits[..16]), "{text}");
    }
}

/// What keeps others from a volume keeps them from its clones, too, and from the clones of its snapshots; striped ones as well. What is said of one
/// later is that one's.
#[test]
fn a_clone_is_restricted_as_its_source() {
    let scene = Scene::with_two_cores();
    volume(&scene, "vm");
    volume_of(&scene, "wide", Some(2));
    let wanted = Restrictions {
        allow_from: vec!["10.1.0.0/16".parse().expect("a network")],
        allow_on: vec!["fd00::1".parse().expect("an address")],
    };
    let of = |scene: &Scene, name: &str| scene.show(name).expect("shown").restrictions;
    let clone = |source: &str, name: &str| {
        let source = source.parse().expect("a source");
        scene.ask(|node| node.clone_volume(source, name.to_owned()))
    };
    for name in ["vm", "wide"] {
        let restricted = wanted.clone();
        scene
            .ask(|node| node.restrict_volume(name.to_owned(), restricted))
            .expect("restricted");
        let snapshots = vec![format!("{name}@kept").parse().expect("a snapshot")];
        scene
            .ask(|node| node.create_snapshots(snapshots))
            .expect("taken");
        for (source, copy) in [(name.to_owned(), "head"), (format!("{name}@kept"), "old")] {
            let copy = format!("{name}-{copy}");
            let made = clone(&source, &copy).expect("cloned");
            assert_eq!(made.restrictions, wanted, "{copy}");
            assert_eq!(list(&scene, &copy).len(), 0, "{copy} has no tokens");
        }
        // A name that is taken makes nothing.
        let again = clone(name, &format!("{name}-old"));
        assert_eq!(again.expect_err("taken").kind, NodeErrorKind::AlreadyExists);
        let lifted = Restrictions::default();
        scene
            .ask(|node| node.restrict_volume(name.to_owned(), lifted))
            .expect("lifted");
        let free = clone(&format!("{name}@kept"), &format!("{name}-free"));
        assert_eq!(free.expect("cloned").restrictions, Restrictions::default());
    }
    let scene = scene.restart(|_| {});
    for name in ["vm", "wide"] {
        for copy in ["head", "old"] {
            assert_eq!(
                of(&scene, &format!("{name}-{copy}")),
                wanted,
                "{name}-{copy}"
            );
        }
        assert_eq!(of(&scene, name), Restrictions::default());
        assert_eq!(of(&scene, &format!("{name}-free")), Restrictions::default());
    }
}

#[test]
fn restrictions_stay_and_are_told() {
    let scene = Scene::new();
    volume(&scene, "vm");
    let restrict = |scene: &Scene, restrictions: Restrictions| {
        scene.ask(|node| node.restrict_volume("vm".to_owned(), restrictions))
    };
    assert_eq!(
        scene.show("vm").expect("shown").restrictions,
        Restrictions::default()
    );
    let wanted = Restrictions {
        allow_from: vec!["10.1.0.0/16".parse().expect("a network")],
        allow_on: vec!["fd00::1".parse().expect("an address")],
    };
    let info = restrict(&scene, wanted.clone()).expect("restricted");
    assert_eq!(info.restrictions, wanted);
    make(&scene, "vm", spec(Reader)).expect("made");
    let scene = scene.restart(|_| {});
    assert_eq!(scene.show("vm").expect("shown").restrictions, wanted);
    assert_eq!(list(&scene, "vm").len(), 2);
    let most = Restrictions {
        allow_from: vec![wanted.allow_from[0]; RESTRICTIONS_MAX],
        allow_on: vec![wanted.allow_on[0]; RESTRICTIONS_MAX],
    };
    restrict(&scene, most.clone()).expect("restricted");
    let mut too_many = most.clone();
    too_many.allow_on.push(wanted.allow_on[0]);
    refused(
        restrict(&scene, too_many),
        NodeErrorKind::InvalidArgument,
        "25 were given",
    );
    // An address in a network in its place: the right one is named.
    for (given, right) in [
        ("10.0.0.5/24", "10.0.0.0/24"),
        ("2001:db8::7/32", "2001:db8::/32"),
        ("10.0.0.5/0", "0.0.0.0/0"),
    ] {
        let error = restrict(
            &scene,
            Restrictions {
                allow_from: vec![given.parse().expect("a network")],
                ..Restrictions::default()
            },
        )
        .expect_err(given);
        assert_eq!(error.kind, NodeErrorKind::InvalidArgument);
        let says = format!("that network is {right}");
        assert!(error.found.contains(&says), "{error}");
        assert!(
            error.next_step.contains(&format!("write {right}")),
            "{error}"
        );
    }
    // An address that no client has locks everybody out; a network that begins with it doesn't.
    let from = |given: &str| Restrictions {
        allow_from: vec![given.parse().expect("a network")],
        ..Restrictions::default()
    };
    for nobodys in ["0.0.0.0", "::"] {
        let asked = restrict(&scene, from(nobodys));
        refused(
            asked,
            NodeErrorKind::InvalidArgument,
            "no address that a client can have",
        );
    }
    assert_eq!(scene.show("vm").expect("shown").restrictions, most);
    restrict(&scene, from("0.0.0.0/1")).expect("half of all");
    restrict(&scene, Restrictions::default()).expect("lifted");
    assert_eq!(
        scene.show("vm").expect("shown").restrictions,
        Restrictions::default()
    );
    let none = scene.ask(|node| node.restrict_volume("none".to_owned(), wanted));
    refused(none, NodeErrorKind::NotFound, "there is no volume");
}
