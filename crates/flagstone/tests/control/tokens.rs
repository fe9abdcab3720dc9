//! `flagstone volume token`, and tokens in files.

use std::os::unix::fs::PermissionsExt;

use flagstone::exit::Exit;
use serde_json::Value;

use crate::cli::{fails, good, json, run};
use crate::fake_tokens::text;
use crate::support::{TempDir, keyed, serve};

#[test]
fn tokens_are_made_listed_rotated_and_revoked() {
    let served = serve();
    let created = json(&served, "volume create vm --size 1G");
    assert_eq!(created["name"], "vm", "what was there before is as it was");
    assert_eq!(created["token"], text(1).0.as_str());
    assert_eq!(
        good(
            &served,
            "volume token create vm --kind reader --label backup"
        ),
        format!("made token 2 (reader) of volume vm: {}\n", text(2).0)
    );
    let made = json(
        &served,
        "volume token create vm --kind writer --ends-in 90s",
    );
    assert_eq!(made["number"], 3);
    assert_eq!(made["kind"], "writer");
    assert_eq!(made["token"], text(3).0.as_str());
    let ends_ns = made["ends_ns"].as_u64().expect("a time");
    assert_eq!(
        ends_ns - made["created_ns"].as_u64().expect("a time"),
        90_000_000_000
    );
    assert_eq!(
        good(&served, "volume token rotate vm 1 --old-ends-in 15m"),
        format!(
            "rotated token 1, which ends in 15m at the latest, to token 4 (owner) of volume vm: {}\n",
            text(4).0
        )
    );
    assert_eq!(
        good(&served, "volume token revoke vm 2 3"),
        "revoked token 2 (reader) of volume vm\nrevoked token 3 (writer) of volume vm\n"
    );
    let table = good(&served, "volume token list vm");
    let expected = "\
NUMBER  KIND    STATE    OPEN  CREATED (UTC)        END (UTC)            LABEL
     1  owner   valid       0  2023-11-14 22:13:20  2023-11-14 22:28:20  -
     2  reader  revoked     0  2023-11-14 22:13:20  2023-11-14 22:13:20  backup
     3  writer  revoked     0  2023-11-14 22:13:20  2023-11-14 22:13:20  -
     4  owner   valid       0  2023-11-14 22:13:20  -                    -
";
    assert_eq!(table, expected);
    let listed = json(&served, "volume token list vm");
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(4));
    for number in 1..=4 {
        let key = text(number).0;
        assert!(!table.contains(&key[2..]) && !listed.to_string().contains(&key[2..]));
    }
    fails(
        &run(&served, "volume token list other"),
        Exit::NotFound,
        "no such volume",
    );
    fails(
        &run(&served, "volume token revoke vm 9"),
        Exit::NotFound,
        "token 9",
    );
    fails(
        &run(&served, "volume token create vm --kind king"),
        Exit::Usage,
        "king",
    );
    fails(
        &run(
            &served,
            "volume token create vm --kind reader --ends-in soon",
        ),
        Exit::Usage,
        "write 90s, 15m, 12h or 30d",
    );
}

#[test]
fn tokens_in_files_are_for_their_owner_alone() {
    let served = serve();
    let folder = TempDir::new("tokens");
    let path = |name: &str| folder.path().join(name);
    let at = |name: &str| path(name).display().to_string();
    let holds = |name: &str, number: u32| {
        let found = std::fs::read_to_string(path(name)).expect("written");
        assert_eq!(found, format!("{}\n", text(number).0));
        let mode = std::fs::metadata(path(name))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    };
    let created = good(
        &served,
        &format!("volume create vm --size 1G --token-to {}", at("first")),
    );
    assert_eq!(created.lines().count(), 1, "{created}");
    holds("first", 1);
    let made = good(
        &served,
        &format!("volume token create vm --kind reader --to {}", at("second")),
    );
    assert_eq!(
        made,
        format!("made token 2 (reader) of volume vm, in {}\n", at("second"))
    );
    holds("second", 2);
    let rotated = json(
        &served,
        &format!("volume token rotate vm 2 --to {}", at("third")),
    );
    assert_eq!(
        (&rotated["number"], &rotated["token"]),
        (&Value::from(3), &Value::Null)
    );
    holds("third", 3);
    // Who has the volume open with the old one goes on, and can open it again: for a day, unless told otherwise.
    let listed = json(&served, "volume token list vm");
    let ends_ns = listed["items"][1]["ends_ns"].as_u64().expect("a time");
    let made_ns = listed["items"][1]["created_ns"].as_u64().expect("a time");
    assert_eq!(ends_ns - made_ns, 86_400_000_000_000);
    assert_eq!(listed["items"][1]["state"], "valid");
    let created = json(
        &served,
        &format!("volume create other --size 1G --token-to {}", at("fourth")),
    );
    assert_eq!(
        (&created["name"], &created["token"]),
        (&Value::from("other"), &Value::Null)
    );

    // A file that is there is kept, and no token is made for nothing.
    let before = json(&served, "volume token list vm");
    let taken = format!("volume token create vm --kind reader --to {}", at("first"));
    fails(&run(&served, &taken), Exit::AlreadyExists, "first");
    holds("first", 1);
    assert_eq!(json(&served, "volume token list vm"), before);
    // Nor does a file stay behind if none was made.
    let none = format!(
        "volume token create none --kind reader --to {}",
        at("fifth")
    );
    fails(&run(&served, &none), Exit::NotFound, "no such volume");
    let none = format!("volume create vm --size 1G --token-to {}", at("fifth"));
    fails(&run(&served, &none), Exit::AlreadyExists, "already");
    assert!(!path("fifth").exists());
}

#[test]
fn volumes_are_restricted_and_what_is_not_named_stays() {
    let served = serve();
    good(&served, "volume create vm --size 1G");
    let restrict = |args: &str| good(&served, &format!("volume restrict vm {args}"));
    assert_eq!(restrict(""), "volume vm: restricted none\n");
    assert_eq!(
        restrict("--allow-from 10.1.0.0/16 10.2.0.7"),
        "volume vm: restricted from 10.1.0.0/16 10.2.0.7/32\n"
    );
    assert_eq!(
        restrict("--allow-on 10.0.0.1 fd00::1"),
        "volume vm: restricted from 10.1.0.0/16 10.2.0.7/32, on 10.0.0.1 fd00::1\n"
    );
    let shown = json(&served, "volume show vm")["restrictions"].clone();
    let expected = serde_json::json!({
        "allow_from": ["10.1.0.0/16", "10.2.0.7/32"],
        "allow_on": ["10.0.0.1", "fd00::1"],
    });
    assert_eq!(shown, expected);
    assert_eq!(json(&served, "volume restrict vm"), expected);
    assert!(good(&served, "volume show vm").contains("from 10.1.0.0/16 10.2.0.7/32, on"));
    assert_eq!(
        restrict("--allow-from any"),
        "volume vm: restricted on 10.0.0.1 fd00::1\n"
    );
    assert_eq!(restrict("--none"), "volume vm: restricted none\n");
    let mixed = run(&served, "volume restrict vm --allow-on any 10.0.0.1");
    fails(&mixed, Exit::Usage, "'any'");
    for (args, words) in [
        ("--allow-from 10.0.0.0/33", "no network"),
        ("--allow-on eth0", "write an address as"),
        ("--none --allow-on 10.0.0.1", "cannot be used with"),
    ] {
        let ran = run(&served, &format!("volume restrict vm {args}"));
        fails(&ran, Exit::Usage, words);
    }
    // Whoever talks to the API must name both lists: a misspelled one would lift what it should set.
    for body in [
        r#"{"allow_from":[]}"#,
        r#"{"allow_from":["x"],"allow_on":[]}"#,
    ] {
        let head = format!(
            "PUT /v1/volumes/vm/restrictions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let answer = served.raw(&keyed(head.as_bytes()));
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
}
