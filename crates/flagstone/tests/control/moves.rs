//! `flagstone volume move` against a node in memory: what it prints, and how it exits.

use std::io::Write;
use std::net::{Shutdown, TcpListener};

use flagstone::exit::Exit;
use serde_json::Value;

use crate::cli::{binary, fails, good, json, ran, run};
use crate::support::{API_KEY, Served, TempDir, put_key, serve};

fn with_volume() -> Served {
    let served = serve();
    good(&served, "volume create vm --size 1G --core 0");
    served
}

#[test]
fn it_waits_for_the_end_and_says_how_long_changes_waited() {
    let served = with_volume();
    assert_eq!(
        good(&served, "volume move vm --core 1"),
        "volume vm: moved from device device, core 0 to device device, core 1, 3 MiB copied; its changes waited 2.5 \
         ms at the end\n"
    );
    // What was is told again.
    let status = json(&served, "volume move vm --status");
    assert_eq!(
        (&status["state"], &status["held_us"]),
        (&"done".into(), &2500.into())
    );
}

#[test]
fn one_that_fails_has_an_exit_code_and_says_why() {
    let served = with_volume();
    for output in ["", " -o json"] {
        let ran = run(&served, &format!("volume move vm --core 9{output}"));
        assert_eq!(ran.exit, i32::from(Exit::NoSpace.code()), "{}", ran.err);
        assert!(ran.err.contains("make room"), "{}", ran.err);
        assert!(
            ran.err
                .contains("moving volume 'vm': the device has no room"),
            "{}",
            ran.err
        );
        let told = match output {
            "" => "volume vm: stays on device device, core 0: the device has no room\n",
            _ => "\"state\": \"failed\"",
        };
        assert!(ran.out.contains(told), "{}", ran.out);
    }
    let status = json(&served, "volume move vm --status");
    assert_eq!(status["error_kind"], "no_space");
    // To look at it is no failure.
    let looked = good(&served, "volume move vm --status");
    assert_eq!(
        looked,
        "volume vm: stays on device device, core 0: the device has no room\n"
    );
    let ran = run(&served, "volume move vm --core 8");
    assert_eq!(ran.exit, i32::from(Exit::Internal.code()), "{}", ran.err);
    assert!(
        ran.err.contains("moving volume 'vm': the device is gone"),
        "{}",
        ran.err
    );
}

#[test]
fn one_that_somebody_else_ends_has_an_exit_code_of_its_own() {
    let served = with_volume();
    let ran = run(&served, "volume move vm --core 6");
    assert_eq!((ran.exit, Exit::Cancelled.code()), (11, 11), "{}", ran.err);
    assert!(
        ran.err.contains("moving volume 'vm': it was cancelled"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("if that is still wanted"), "{}", ran.err);
    // Who ends one, or looks at it, has done so.
    good(&served, "volume move vm --status");
    good(&served, "volume move vm --core 1 --no-wait");
    good(&served, "volume move vm --cancel");
}

#[test]
fn one_that_waits_for_its_device_says_so_and_can_be_ended() {
    let served = with_volume();
    let begun = json(&served, "volume move vm --device away --no-wait");
    assert_eq!(begun["state"], "waiting");
    assert_eq!(begun["waits"]["what"], "device");
    let told = "waiting: it waits for device away: start the node with it";
    assert_eq!(
        good(&served, "volume move vm --status"),
        format!("volume vm: stays on device device, core 0 for now, its move is {told}\n")
    );
    let shown = good(&served, "volume show vm");
    assert!(shown.contains(told), "{shown}");
    assert_eq!(
        good(&served, "volume move vm --cancel"),
        "volume vm: stays on device device, core 0: it was cancelled\n"
    );
}

#[test]
fn one_that_waits_for_the_other_node_says_so_and_since_when() {
    let (served, other) = (with_volume(), serve());
    let to = format!(
        "--to {} --to-api-key-file {} --core 7",
        other.address,
        other.key_file().display()
    );
    good(&served, &format!("volume move vm {to} --no-wait"));
    let mut status = json(&served, "volume move vm --status");
    assert_eq!(
        (&status["state"], &status["waits"]),
        (&"running".into(), &Value::Null)
    );
    status = json(&served, "volume move vm --status");
    assert_eq!(status["state"], "waiting");
    let waits = &status["waits"];
    assert_eq!(
        (&waits["what"], &waits["attempts"]),
        (&"node".into(), &1.into())
    );
    assert_eq!(
        good(&served, "volume move vm --status"),
        "volume vm: stays on device device, core 0 for now, its move is waiting for node 127.0.0.1:4421 (since 2026-01-31 12:34:56, 2 \
         attempts): it waits for the other node: no connection\n"
    );
    good(&served, "volume move vm --cancel");
    // Who waits for the move waits for the other node as well.
    let ran = good(&served, &format!("volume move vm {to}"));
    assert!(
        ran.contains("moved from device device, core 0 to node"),
        "{ran}"
    );
}

/// Nobody serves it: who waits for the move is told at once, and so is who would end it.
#[test]
fn one_that_is_held_says_so_and_what_can_be_done() {
    let (served, other) = (with_volume(), serve());
    let to = format!(
        "--to {} --to-api-key-file {} --core 5",
        other.address,
        other.key_file().display()
    );
    let stay = "flagstone volume move vm --stay --force";
    let told = |words: &str| {
        let ran = run(&served, words);
        assert_eq!(
            ran.exit,
            i32::from(Exit::NotReachable.code()),
            "{}",
            ran.err
        );
        let why = "moving volume 'vm': it is held, and served by nobody: the other node can't be asked: no connection";
        for says in [why, stay] {
            assert!(ran.err.contains(says), "{says}: {}", ran.err);
        }
        assert!(
            ran.out.contains("it is held, served by nobody"),
            "{}",
            ran.out
        );
    };
    told(&format!("volume move vm {to}"));
    let status = json(&served, "volume move vm --status");
    assert_eq!(
        (&status["state"], &status["waits"]["what"]),
        (&"held".into(), &"node".into())
    );
    assert_eq!(
        good(&served, "volume move vm --status"),
        "volume vm: on its way from device device, core 0 to node 127.0.0.1:4421, device main, core 5, it is held, served by nobody (since \
         2026-01-31 12:34:56, 1 attempt): the other node can't be asked: no connection\n"
    );
    let ran = run(&served, "volume move vm --cancel");
    fails(&ran, Exit::Busy, "it is held");
    // And one that comes to that while somebody waits for its end.
    good(&served, &format!("volume move vm {to} --no-wait"));
    told("volume move vm --cancel");
}

/// A place that was promised in vain is given back, and its node can be asked for it once more at once; and whoever runs that node can end it there.
#[test]
fn what_was_promised_for_a_move_that_is_refused_is_given_back() {
    let (served, other) = (with_volume(), serve());
    let to = format!(
        "--to {} --to-api-key-file {} --core 4",
        other.address,
        other.key_file().display()
    );
    let given_back = || other.node.given_back();
    for times in 1..3 {
        let ran = run(&served, &format!("volume move vm {to}"));
        fails(&ran, Exit::Busy, "it was opened alone");
        assert_eq!(given_back(), times);
    }
    // It may have begun: then its place is needed.
    let ran = run(
        &served,
        &format!("volume move vm {}", to.replace("core 4", "core 3")),
    );
    assert_eq!(
        ran.exit,
        i32::from(Exit::NotReachable.code()),
        "{}",
        ran.err
    );
    assert_eq!(given_back(), 2);
    good(&other, "volume move vm --cancel");
    good(
        &served,
        &format!("volume move vm {}", to.replace("core 4", "core 2")),
    );
    assert_eq!(given_back(), 2, "what has begun needs its place");
    let ran = run(&other, "volume move vm --cancel");
    assert_eq!(ran.exit, i32::from(Exit::NotFound.code()), "{}", ran.err);
    let spec = serde_json::json!({ "volume": "vm", "id": "a7".repeat(16), "core": 4 });
    let client = other.client();
    let promised: serde_json::Value = client
        .send("POST", "/v1/arrivals", &spec)
        .expect("promises");
    assert_eq!(promised["core"], 4);
    assert_eq!(
        good(&other, "volume move vm --cancel"),
        "volume vm: doesn't come; it stays at the node that it was to come from, which is told so when it asks\n"
    );
}

#[test]
fn a_key_that_the_other_node_refuses_is_the_one_of_to() {
    let (served, other) = (with_volume(), serve());
    let dir = TempDir::new("another-key");
    put_key(dir.path(), "key", &API_KEY.replace('a', "b"), 0o600);
    let to = format!(
        "--to {} --to-api-key-file {}",
        other.address,
        dir.path().join("key").display()
    );
    let ran = run(&served, &format!("volume move vm {to}"));
    fails(&ran, Exit::Refused, "--to-api-key-file names the key");
    assert!(ran.err.contains(&other.address.to_string()), "{}", ran.err);
}

#[test]
fn the_help_says_what_each_word_is() {
    let served = with_volume();
    let help = good(&served, "volume move --help");
    // Wherever its lines end.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for says in [
        "The volume to move",
        "exit code 5",
        "exit code 11",
        "exit code 7",
        "also at the other node",
        "--cancel ends it, for good",
        "the move waits for it",
    ] {
        assert!(help.contains(says), "{says}: {help}");
    }
}

#[test]
fn it_can_be_left_alone_looked_at_and_ended() {
    let served = with_volume();
    let begun = json(&served, "volume move vm --device other --no-wait");
    assert_eq!(begun["state"], "running");
    assert_eq!(begun["to"]["device"], "other");
    assert_eq!(
        good(&served, "volume move vm --status"),
        "volume vm: moving from device device, core 0 to device other, core 0, 1 MiB of about 3 MiB copied, about 3m 20s left; copying \
         snapshot 2 of 5\n"
    );
    assert_eq!(
        good(&served, "volume move vm --cancel"),
        "volume vm: stays on device device, core 0: it was cancelled\n"
    );
    let status = json(&served, "volume move vm --status");
    assert_eq!(status["state"], "cancelled");
}

#[test]
fn how_fast_it_copies_can_be_changed() {
    let served = with_volume();
    let ran = run(&served, "volume move vm --limit 1M");
    fails(&ran, Exit::NotFound, "it was not moved");
    let begun = json(
        &served,
        "volume move vm --device other --no-wait --limit 1M",
    );
    assert_eq!(begun["limit_bytes"], 1 << 20);
    assert_eq!(begun["left_s"], Value::Null);
    let limited = good(&served, "volume move vm --limit 400M");
    assert!(
        limited.contains("copied, at most 400 MiB a second; beginning"),
        "{limited}"
    );
    let status = json(&served, "volume move vm --status");
    assert_eq!(
        (&status["limit_bytes"], &status["left_s"]),
        (&(400 << 20).into(), &200.into())
    );
    let lifted = json(&served, "volume move vm --limit none");
    assert_eq!(lifted["limit_bytes"], Value::Null);
    good(&served, "volume move vm --cancel");
    let ran = run(&served, "volume move vm --limit none");
    fails(&ran, Exit::NotFound, "its move is over");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let served = with_volume();
    for words in ["--status", "--cancel"] {
        let ran = run(&served, &format!("volume move vm {words}"));
        fails(
            &ran,
            Exit::NotFound,
            "it was not moved since the node was started",
        );
    }
    let ran = run(&served, "volume move none --core 1");
    fails(&ran, Exit::NotFound, "there is no such volume");
    for words in [
        "--status --cancel",
        "--status --core 1",
        "--cancel --device other",
        "--cancel --no-wait",
        "--limit much",
        "--core x",
    ] {
        let ran = run(&served, &format!("volume move vm {words}"));
        assert_eq!(
            ran.exit,
            i32::from(Exit::Usage.code()),
            "{words}: {}",
            ran.err
        );
    }
}

#[test]
fn to_another_node_a_place_is_asked_for_there_first() {
    let (served, other) = (with_volume(), serve());
    let to = format!(
        "--to {} --to-api-key-file {}",
        other.address,
        other.key_file().display()
    );
    // That node listens on all its addresses: by the one that its API has.
    assert_eq!(
        good(&served, &format!("volume move vm {to}")),
        "volume vm: moved from device device, core 0 to node 127.0.0.1:4421, device main, core 1, 3 MiB copied; its changes \
         waited 2.5 ms at the end\n"
    );
    good(&other, "volume create vm --size 1G");
    let ran = run(&served, &format!("volume move vm {to}"));
    fails(
        &ran,
        Exit::AlreadyExists,
        "promising volume 'vm' of another node a place: the name is taken",
    );
    let ran = run(&served, &format!("volume move vm --to {}", other.address));
    assert_eq!(ran.exit, i32::from(Exit::Refused.code()), "{}", ran.err);
    // Whether it can go is asked first: the other node, where its name is taken, is asked nothing in vain.
    good(&served, "volume create busy --size 1G --core 0");
    good(&other, "volume create busy --size 1G");
    good(&served, "volume move busy --core 1 --no-wait");
    let ran = run(&served, &format!("volume move busy {to}"));
    fails(&ran, Exit::Busy, "it is being moved");
    for words in [
        "--status --to 127.0.0.1:9",
        "--to-api-key-file x",
        "--to nowhere",
    ] {
        let ran = run(&served, &format!("volume move vm {words}"));
        assert_eq!(
            ran.exit,
            i32::from(Exit::Usage.code()),
            "{words}: {}",
            ran.err
        );
    }
}

/// Somebody who listens there but is no API: he says what NBD servers say first, or nothing.
fn no_api(says: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its own");
    let answer = move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(says);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    };
    std::thread::Builder::new().spawn(answer).expect("a thread");
    address.to_string()
}

#[test]
fn another_port_than_that_of_the_api_is_told_apart() {
    let served = with_volume();
    let other = serve();
    let key = other.key_file().display().to_string();
    let port = "`flagstone node info` there says where that is";
    for (says, exit) in [
        (&b"NBDMAGICIHAVEOPT\0\x03\r\n\r\n"[..], Exit::Internal),
        (&b""[..], Exit::NotReachable),
    ] {
        let to = no_api(says);
        let found = run(
            &served,
            &format!("volume move vm --to {to} --to-api-key-file {key}"),
        );
        fails(&found, exit, port);
        assert!(found.err.contains("ports of their own"), "{}", found.err);
    }
    // Nobody listens there. Of the command's own node nothing is said of an option that it doesn't have.
    let found = run(&served, "volume move vm --to 127.0.0.1:1");
    fails(&found, Exit::NotReachable, port);
    assert!(!found.err.contains("flagstone dev"), "{}", found.err);
    let mut command = binary();
    command.args(["volume", "list", "--api", "127.0.0.1:1"]);
    let own = ran(command.output().expect("the binary starts"));
    fails(&own, Exit::NotReachable, "--dir or --api");
    assert!(!own.err.contains("--to"), "{}", own.err);
}

#[test]
fn what_a_node_would_have_to_say_is_said_with_force() {
    let served = with_volume();
    for (words, teaches) in [
        (
            "--force",
            "say what is so although another node can't be asked",
        ),
        ("--stay", "bring that node back"),
        ("--settled", "it confirms by itself"),
    ] {
        let ran = run(&served, &format!("volume move vm {words}"));
        fails(&ran, Exit::Usage, teaches);
    }
    for words in [
        "--stay --settled --force",
        "--stay --force --core 1",
        "--settled --force --status",
        "--force --to 127.0.0.1:9",
    ] {
        let ran = run(&served, &format!("volume move vm {words}"));
        let usage = i32::from(Exit::Usage.code());
        assert_eq!(ran.exit, usage, "{words}: {}", ran.err);
    }
    assert_eq!(
        good(&served, "volume move vm --stay --force"),
        "volume vm: goes on here, in epoch 65537; whoever had it open opens it again. 10.0.0.2:4421 may have it, too: if \
         that node comes back, delete it there\n"
    );
    let shown = good(&served, "volume show vm");
    assert!(
        shown.contains("whether 10.0.0.2:4421 has it, too, isn't known"),
        "{shown}"
    );
    assert_eq!(
        good(&served, "volume move vm --settled --force"),
        "volume vm: may be deleted and moved; if the node that it came from comes back, it deletes what it has\n"
    );
    good(&served, "volume create there --size 1G");
    let forced = json(&served, "volume move there --stay --force");
    assert_eq!(
        (&forced["outcome"], &forced["node"], &forced["epoch"]),
        (&"went".into(), &"10.0.0.2:4421".into(), &Value::Null)
    );
}
