//! The real binary against a served node in memory: what it prints and how it exits.

use std::path::Path;
use std::process::{Command, Output};

use flagstone::exit::Exit;
use flagstone::node_file::{DirLock, NodeFile};
use serde_json::Value;

use crate::support::{API_KEY, Served, TempDir, put_key, serve};

/// The binary in a clean environment.
pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
    command
        .env_remove("FLAGSTONE_DIR")
        .env_remove("FLAGSTONE_API_KEY_FILE")
        .env_remove("FLAGSTONE_LOG")
        .env("NO_COLOR", "1");
    command
}

pub(crate) struct Ran {
    pub(crate) exit: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn ran(output: Output) -> Ran {
    Ran {
        exit: output.status.code().expect("no signal"),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

/// Runs `flagstone ARGS --api ADDRESS`.
pub(crate) fn run(served: &Served, args: &str) -> Ran {
    let mut command = binary();
    command.args(args.split_whitespace());
    served.aim(&mut command);
    ran(command.output().expect("the binary starts"))
}

/// Runs a command that has to succeed without a word on standard error.
pub(crate) fn good(served: &Served, args: &str) -> String {
    let ran = run(served, args);
    assert_eq!((ran.exit, ran.err.as_str()), (0, ""), "{args}");
    ran.out
}

pub(crate) fn json(served: &Served, args: &str) -> Value {
    let out = good(served, &format!("{args} -o json"));
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args}: {error}: {out}"))
}

#[track_caller]
pub(crate) fn fails(ran: &Ran, exit: Exit, words: &str) {
    assert_eq!(ran.exit, i32::from(exit.code()), "{}", ran.err);
    assert!(ran.err.contains(words), "{}", ran.err);
    assert_eq!(ran.out, "");
}

#[test]
fn a_session() {
    let served = serve();
    let created = good(&served, "volume create vm-1 --size 10G");
    let (first, token) = created.split_once('\n').expect("two lines");
    assert_eq!(
        first,
        "created volume vm-1 (10 GiB) at nbd://127.0.0.1:10809/vm-1"
    );
    let digits = "01".repeat(32);
    assert_eq!(token, format!("owner's token, told only now: 1-{digits}\n"));
    assert_eq!(
        json(&served, "volume create vm-2 --size 512M --reserve full")["reserve"],
        "full"
    );
    assert_eq!(
        good(&served, "snapshot create vm-1@s1 vm-2@s1")
            .lines()
            .count(),
        2
    );
    good(&served, "snapshot create vm-1 s2");
    let snapshots = json(&served, "snapshot list vm-1");
    let names: Vec<&str> = snapshots["items"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|s| s["name"].as_str())
        .collect();
    assert_eq!(names, ["s1", "s2"]);
    assert!(good(&served, "snapshot show vm-1 s1").contains("vm-1@s1"));
    assert!(good(&served, "snapshot show vm-1@s1").contains("vm-1@s1"));
    assert_eq!(
        json(&served, "volume clone vm-1@s1 vm-3")["origin"],
        "vm-1@s1"
    );
    assert_eq!(
        json(&served, "snapshot clone vm-1@s1 vm-4")["origin"],
        "vm-1@s1"
    );
    assert_eq!(json(&served, "volume clone vm-1 vm-5")["origin"], "vm-1");
    assert_eq!(
        json(&served, "volume resize vm-1 20G")["size_bytes"],
        20u64 << 30
    );
    assert_eq!(
        json(&served, "volume rollback vm-1 s1")["size_bytes"],
        10u64 << 30
    );
    // Nothing is said of what stays as it was.
    assert_eq!(
        good(&served, "volume rollback vm-1 s1"),
        "rolled back to vm-1@s1\n"
    );
    good(&served, "volume resize vm-1 20G");
    let attach = |count| {
        let mut state = served.node.state.lock().expect("not poisoned");
        let volume = state.volumes.get_mut("vm-1").expect("there");
        volume.connection_count = count;
    };
    attach(3);
    let said = good(&served, "volume rollback vm-1 s1");
    for part in ["20 GiB (21474836480 bytes)", "to 10 GiB", "3 connections"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    attach(0);
    assert_eq!(
        json(&served, "volume rollback vm-1@s1")["size_bytes"],
        10u64 << 30
    );
    assert_eq!(
        json(&served, "volume reserve vm-1 1G")["reserved_bytes"],
        1 << 30
    );
    assert_eq!(
        json(
            &served,
            "volume slo vm-1 --floor reads=500,writes=7 --limit bytes=1M"
        )["slo"],
        serde_json::json!({
            "promise": {"floor": {"reads": 500, "writes": 7}},
            "limit": {"reads": null, "writes": null, "bytes": 1 << 20},
        })
    );
    // What is not named stays as it is.
    assert_eq!(
        good(&served, "volume slo vm-1 --share 3"),
        "volume vm-1: share 3, limit bytes=1048576\n"
    );
    assert_eq!(
        good(&served, "volume slo vm-1 --limit none"),
        "volume vm-1: share 3, limit none\n"
    );
    assert_eq!(
        json(&served, "volume slo vm-1")["promise"],
        serde_json::json!({"share": 3})
    );
    good(
        &served,
        "volume slo vm-1 --floor reads=200000 --oversubscribe",
    );
    let created = json(
        &served,
        "volume create vm-7 --size 1G --share 2 --limit reads=9",
    );
    assert_eq!(created["slo"]["promise"], serde_json::json!({"share": 2}));
    assert_eq!(created["slo"]["limit"]["reads"], 9);
    let slo = |args: &str| {
        let info = json(&served, &format!("volume slo vm-7 {args}"));
        (info["slo"]["promise"].clone(), info["slo"]["limit"].clone())
    };
    let (_, limit) = slo("--floor reads=70");
    // The rest stays; who has none has a share, which stays, too.
    assert_eq!(
        slo("--floor none"),
        (serde_json::json!({"share": 1}), limit)
    );
    slo("--share 5 --limit none");
    let (promise, _) = slo("--floor none");
    assert_eq!(promise, serde_json::json!({"share": 5}));
    fails(
        &run(&served, "volume slo vm-7 --floor nothing"),
        Exit::Usage,
        "or 'none'",
    );
    good(&served, "volume delete vm-7");
    assert_eq!(
        good(&served, "device schedule device"),
        "device device: no ceiling, so nothing is divided\n"
    );
    assert_eq!(
        good(
            &served,
            "device schedule device --ceiling reads=9000,writes=4000,latency=2ms"
        ),
        "device device: deficit, up to reads=9000 writes=4000 latency=2ms; its own work is promised 5 %; floors claim 25.0 % of what it can \
         promise\n"
    );
    let strict = json(&served, "device schedule device --policy strict");
    assert_eq!(strict["schedule"]["policy"], "strict");
    assert_eq!(strict["schedule"]["ceiling"]["reads"], 9000, "it stays");
    // Whoever chooses it reads that it keeps nothing.
    let first_come = "its ceiling (reads=9000 writes=4000 latency=2ms) IS NOT KEPT: first-come keeps no ceiling and no promise";
    for command in [
        "device schedule device --policy first-come",
        "device show device",
    ] {
        let said = good(&served, command);
        assert!(said.contains(first_come), "{command}: {said}");
    }
    for command in ["device schedule --help", "dev --help", "serve --help"] {
        let help = good(&served, command);
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            help.contains("first-come keeps no ceiling"),
            "{command}: {help}"
        );
    }
    let none = json(&served, "device schedule device --ceiling none");
    assert_eq!(none["schedule"]["ceiling"], serde_json::Value::Null);
    assert_eq!(json(&served, "volume rename vm-5 vm-6")["name"], "vm-6");
    good(&served, "snapshot rename vm-2@s1 first");
    good(&served, "snapshot delete vm-2@first");
    good(&served, "volume delete vm-2 vm-6");
    assert_eq!(listed(&served), ["vm-1", "vm-3", "vm-4"]);
    assert_eq!(
        json(&served, "volume list vm-3")["items"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    assert!(good(&served, "volume show vm-1").contains("10 GiB (10737418240 bytes)"));
}

/// The names in the table of volumes.
fn listed(served: &Served) -> Vec<String> {
    let table = good(served, "volume list");
    let rows = table.lines().skip(1);
    rows.filter_map(|row| row.split_whitespace().next())
        .map(str::to_string)
        .collect()
}

#[test]
fn tables_as_people_see_them() {
    let served = serve();
    good(
        &served,
        "volume create vm-1 --size 10G --core 0 --reserve 1G",
    );
    good(&served, "volume create database --size 1.5T --core 1");
    good(&served, "snapshot create vm-1@monday");
    good(&served, "volume clone vm-1@monday vm-2");
    let mut screen = String::new();
    for command in [
        "volume list",
        "volume show vm-1",
        "snapshot list",
        "snapshot show vm-1@monday",
        "device list",
        "device show device",
        "device scrub device --wait",
        "device hand-over device --journal 1 --to-core 2",
        "device hand-over device --journal 1 --to-core 2",
        "device journals device",
    ] {
        screen += &format!("$ flagstone {command}\n{}\n", good(&served, command));
    }
    insta::assert_snapshot!(screen);
}

/// Whoever looks at devices is told, not only who lists their journals.
#[test]
fn devices_with_closed_journals_say_so() {
    let served = serve();
    served.node.state.lock().expect("whole").closed_journals = vec![1, 4];
    let listed = good(&served, "device list");
    assert!(listed.trim_end().ends_with("2 journals CLOSED"), "{listed}");
    let shown = good(&served, "device show device");
    for journal in ["JOURNAL 1 CLOSED", "JOURNAL 4 CLOSED"] {
        assert!(shown.contains(journal), "{shown}");
    }
    let closed = serde_json::json!([1, 4]);
    assert_eq!(
        json(&served, "device show device")["closed_journals"],
        closed
    );
    assert_eq!(
        json(&served, "device list")["items"][0]["closed_journals"],
        closed
    );
}

#[test]
fn the_list_of_volumes_has_their_journals() {
    let served = serve();
    good(&served, "volume create vm-1 --size 10G");
    let mut state = served.node.state.lock().expect("whole");
    state.volumes.get_mut("vm-1").expect("is there").journal = 5;
    drop(state);
    for value in [
        &json(&served, "volume list")["items"][0],
        &json(&served, "volume show vm-1"),
    ] {
        assert_eq!(value["journal"], 5, "{value}");
    }
}

#[test]
fn each_failure_has_its_exit_code() {
    let served = serve();
    good(&served, "volume create a --size 1G");
    good(&served, "volume create busy --size 1G");
    good(&served, "snapshot create a@s");
    let run = |args: &str| run(&served, args);
    fails(
        &run("volume show b"),
        Exit::NotFound,
        "there is no such volume",
    );
    fails(
        &run("volume create a --size 1G"),
        Exit::AlreadyExists,
        "already",
    );
    fails(
        &run("volume create c --size 2T --reserve full"),
        Exit::NoSpace,
        "less to promise",
    );
    fails(
        &run("volume delete busy"),
        Exit::Busy,
        "a client writes to it",
    );
    fails(&run("volume delete a"), Exit::Busy, "it has snapshots");
    fails(
        &run("volume resize a 1M"),
        Exit::Refused,
        "data would be lost",
    );
    fails(
        &run("volume create c --size 0"),
        Exit::Usage,
        "its size is 0",
    );
    fails(
        &run("volume resize a 0 --allow-data-loss"),
        Exit::Usage,
        "its size is 0",
    );
    fails(&run("volume create c --size 1GB"), Exit::Usage, "10G, 512M");
    fails(
        &run("volume create c/d --size 1G"),
        Exit::Usage,
        "is not a name",
    );
    fails(&run("volume rollback a"), Exit::Usage, "VOLUME@SNAPSHOT");
    fails(
        &run("volume rollback a@s b@s"),
        Exit::Usage,
        "is not one snapshot",
    );
    fails(
        &run("snapshot show a b c"),
        Exit::Usage,
        "unexpected argument 'c'",
    );
    fails(&run("volume creat c"), Exit::Usage, "create");
    fails(
        &run("volume create panic --size 1"),
        Exit::Internal,
        "failed unexpectedly",
    );
    // The next step is there, on a line of its own.
    let ran = run("volume show b");
    assert!(
        ran.err.starts_with("error: showing volume 'b': "),
        "{}",
        ran.err
    );
    assert!(
        ran.err.ends_with("\n  this is the next step\n"),
        "{}",
        ran.err
    );
}

#[test]
fn failures_as_json() {
    let served = serve();
    let ran = run(&served, "volume show b -o json");
    fails(&ran, Exit::NotFound, "");
    let value: Value = serde_json::from_str(&ran.err).expect("one JSON line");
    assert_eq!(value["exit_code"], 3);
    assert_eq!(value["next_step"], "this is the next step");
}

#[test]
fn wrong_usage_as_json() {
    for args in [
        "volume create v -o json",
        "-o json volume",
        "volume list --output json --nonsense",
        "volume list --output=json --nonsense",
        "volume list -ojson --nonsense",
        "volume create @ --size 1G -o json",
    ] {
        let ran = ran(binary().args(args.split(' ')).output().expect("it starts"));
        assert_eq!(ran.exit, 2, "{args}");
        let value: Value = serde_json::from_str(&ran.err)
            .unwrap_or_else(|error| panic!("{args}: {error}: {}", ran.err));
        assert_eq!(value["exit_code"], 2);
        let error = value["error"].as_str().expect("a text");
        assert!(!error.is_empty() && !error.starts_with("error"), "{error}");
    }
    let plain = ran(binary()
        .args(["volume", "create"])
        .output()
        .expect("it starts"));
    assert!(plain.err.starts_with("error: "), "{}", plain.err);
}

#[test]
fn long_names_are_refused_before_a_node_is_looked_for() {
    let dir = TempDir::new("longname");
    let (name, long) = ("a".repeat(128), "a".repeat(129));
    let cases = [
        (format!("volume show {name}"), None),
        (format!("volume show {long}"), Some(129)),
        (format!("volume rollback v@{long}"), Some(129)),
        (format!("snapshot create v@{long}"), Some(129)),
        (format!("snapshot delete {long} s"), Some(129)),
        (format!("snapshot show v {long}"), Some(129)),
    ];
    for (args, found) in cases {
        let mut command = binary();
        command
            .args(args.split(' '))
            .env("FLAGSTONE_DIR", dir.path());
        let ran = ran(command.output().expect("it starts"));
        match found {
            None => fails(&ran, Exit::NotReachable, "no node serves"),
            Some(found) => {
                fails(&ran, Exit::Usage, "128 at most");
                assert!(
                    ran.err.contains(&format!("{found} characters")),
                    "{}",
                    ran.err
                );
            }
        }
    }
}

#[test]
fn corruption_found_by_a_scrub_is_an_exit_code() {
    let served = serve();
    let clean = good(&served, "device scrub device --wait");
    assert!(clean.contains("finished"), "{clean}");
    good(&served, "volume create corrupt --size 1G");
    let found = run(&served, "device scrub device --wait");
    assert_eq!(found.exit, i32::from(Exit::Corrupt.code()));
    assert!(found.out.contains("1 BAD BLOCK"), "{}", found.out);
    assert!(
        found.out.contains("block 7 does not match"),
        "{}",
        found.out
    );
}

#[test]
fn what_a_volume_has_for_itself_is_left_out_if_nobody_knows() {
    let served = serve();
    good(&served, "volume create a --size 1G");
    assert!(good(&served, "volume show a").contains("\nexclusive "));
    for volume in served
        .node
        .state
        .lock()
        .expect("not poisoned")
        .volumes
        .values_mut()
    {
        volume.exclusive_bytes = None;
    }
    assert!(!good(&served, "volume show a").contains("exclusive"));
    assert_eq!(
        json(&served, "volume show a")["exclusive_bytes"],
        Value::Null
    );
}

#[test]
fn ten_thousand_volumes_are_listed() {
    let served = serve();
    {
        let mut state = served.node.state.lock().expect("not poisoned");
        for number in 0..10_000 {
            let spec = flagstone::node::VolumeSpec {
                name: format!("vol-{number:05}"),
                size_bytes: 1 << 30,
                reserve: Default::default(),
                device: None,
                core: None,
                apart: false,
                stripes: None,
                stripe_unit_bytes: None,
                slo: Default::default(),
                oversubscribe: false,
            };
            state.create(spec).expect("created");
        }
    }
    assert_eq!(good(&served, "volume list").lines().count(), 10_001);
    let list = json(&served, "volume list");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(10_000));
    assert_eq!(list["next"], Value::Null);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let served = serve();
    for number in 0..2000 {
        let mut state = served.node.state.lock().expect("not poisoned");
        let spec = flagstone::node::VolumeSpec {
            name: format!("a-volume-with-quite-a-long-name-{number}"),
            size_bytes: 1 << 30,
            reserve: Default::default(),
            device: None,
            core: None,
            apart: false,
            stripes: None,
            stripe_unit_bytes: None,
            slo: Default::default(),
            oversubscribe: false,
        };
        state.create(spec).expect("created");
    }
    let mut command = binary();
    served.aim(command.args(["volume", "list"]));
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    drop(child.stdout.take());
    let ran = ran(child.wait_with_output().expect("it ends"));
    assert_eq!((ran.exit, ran.err.as_str()), (0, ""));
}

/// What a node writes that serves there.
fn file_of(served: &Served) -> NodeFile {
    NodeFile {
        pid: std::process::id(),
        version: "0.1.0".to_string(),
        api: served.address.to_string(),
        nbd: Vec::new(),
        nbd_unix: None,
        native: Vec::new(),
        nfs: Vec::new(),
    }
}

/// Somebody else may listen where a node did that was killed.
#[test]
fn the_key_is_not_sent_where_no_node_is() {
    let served = serve();
    let dir = TempDir::new("killed");
    put_key(dir.path(), "api.key", API_KEY, 0o600);
    let list = || {
        let mut command = binary();
        command.args(["volume", "list", "--dir"]).arg(dir.path());
        ran(command.output().expect("the binary starts"))
    };
    file_of(&served).write(dir.path()).expect("written");
    fails(&list(), Exit::Refused, "the request has no key");
    let lock = DirLock::take(dir.path(), |_| panic!("nothing to wait for")).expect("free");
    file_of(&served).write(dir.path()).expect("written");
    assert_eq!(list().exit, 0);
    drop(lock);
}

#[test]
fn the_node_is_found_by_its_folder() {
    let served = serve();
    let dir = TempDir::new("found");
    // It takes the folder's key only while a node holds its lock.
    let lock = DirLock::take(dir.path(), |_| panic!("nothing to wait for")).expect("free");
    put_key(dir.path(), "api.key", API_KEY, 0o600);
    let file = file_of(&served);
    file.write(dir.path()).expect("written");
    let list = |prepare: &dyn Fn(&mut Command)| {
        let mut command = binary();
        command.args(["volume", "list"]);
        prepare(&mut command);
        ran(command.output().expect("the binary starts"))
    };
    assert_eq!(
        list(&|command| {
            command.arg("--dir").arg(dir.path());
        })
        .exit,
        0
    );
    assert_eq!(
        list(&|command| {
            command.env("FLAGSTONE_DIR", dir.path());
        })
        .exit,
        0
    );
    let nowhere = Path::new("/nonexistent-flagstone");
    let found = list(&|command| {
        command
            .env("FLAGSTONE_DIR", nowhere)
            .arg("--dir")
            .arg(dir.path());
    });
    assert_eq!(found.exit, 0, "--dir is stronger than the environment");
    let missing = list(&|command| {
        command.env("FLAGSTONE_DIR", nowhere);
    });
    fails(
        &missing,
        Exit::NotReachable,
        "no node serves /nonexistent-flagstone",
    );
    assert!(
        missing.err.contains("flagstone dev --dir"),
        "{}",
        missing.err
    );
    // A folder that a configuration names is not to be another node's. Neither of the two can be made, and the refusal names the one that was meant.
    let config = dir.path().join("serve.toml");
    for (named, meant) in [
        ("dir = \"/proc/of-the-file\"\n", "/proc/of-the-file"),
        ("", "/proc/of-the-environment"),
    ] {
        std::fs::write(&config, format!("{named}[[device]]\npath = \"device\"\n"))
            .expect("written");
        let mut command = binary();
        command
            .args(["serve", "--config"])
            .arg(&config)
            .env("FLAGSTONE_DIR", "/proc/of-the-environment");
        let refused = ran(command.output().expect("it starts"));
        assert_ne!(refused.exit, 0, "{}", refused.out);
        assert!(refused.err.contains(meant), "{meant}: {}", refused.err);
    }
    // A node that was killed leaves its file behind.
    drop(lock);
    let stale = NodeFile {
        api: "127.0.0.1:1".to_string(),
        ..file
    };
    stale.write(dir.path()).expect("written");
    let stale = list(&|command| {
        command.arg("--dir").arg(dir.path());
    });
    fails(&stale, Exit::NotReachable, "127.0.0.1:1");
    assert!(
        stale
            .err
            .contains(&format!("process {}", std::process::id())),
        "{}",
        stale.err
    );
}

#[test]
fn options_stand_in_front_of_the_command_too() {
    let served = serve();
    let bare = |args: &str| ran(binary().args(args.split(' ')).output().expect("it starts"));
    let api = format!("--api {}", served.address);
    let key = format!("--api-key-file {}", served.key_file().display());
    for line in [
        format!("-o json {api} {key} volume list"),
        format!("{key} volume list {api} -o json"),
        format!("-o json {api} volume list {key}"),
    ] {
        let listed = bare(&line);
        assert_eq!((listed.exit, listed.err.as_str()), (0, ""), "{line}");
    }
    let refused = bare(&format!("{key} config example"));
    fails(&refused, Exit::Usage, "takes no --api-key-file");
    let listed = bare(&format!("-o json {api} {key} volume list"));
    assert_eq!((listed.exit, listed.err.as_str()), (0, ""));
    let list: Value = serde_json::from_str(&listed.out).expect("JSON");
    assert_eq!(list["items"], Value::Array(Vec::new()));
    let dir = TempDir::new("leading");
    let missing = bare(&format!("--dir {} volume list", dir.path().display()));
    let words = format!("no node serves {}", dir.path().display());
    fails(&missing, Exit::NotReachable, &words);
    let refused = bare("-o json config example");
    fails(&refused, Exit::Usage, "takes no -o");
    let value: Value = serde_json::from_str(&refused.err).expect("one JSON line");
    assert_eq!(value["exit_code"], 2);
}

#[test]
fn what_is_no_address_is_wrong_usage() {
    for address in ["foo", "127.0.0.1", "http://127.0.0.1:7878", "127.0.0.1:0"] {
        for args in [
            ["node", "info", "--api", address],
            ["--api", address, "node", "info"],
        ] {
            let ran = ran(binary().args(args).output().expect("it starts"));
            fails(&ran, Exit::Usage, "ADDR:PORT, for example 127.0.0.1:7878");
        }
    }
}

#[test]
fn metrics_as_json() {
    let served = serve();
    good(&served, "volume create vm-1 --size 1G");
    let series = json(&served, "node metrics");
    let series = series.as_array().expect("a list");
    let text = good(&served, "node metrics");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(series.len(), lines.count());
    let build = serde_json::json!({
        "name": "flagstone_build_info",
        "labels": {"version": env!("CARGO_PKG_VERSION")},
        "type": "gauge",
        "value": 1,
    });
    assert_eq!(series[0], build);
}

#[test]
fn what_is_no_node_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let answer = move || {
        let (mut stream, _) = listener.accept().expect("the binary connects");
        let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
        let _ = std::io::Write::write_all(&mut stream, b"NBDMAGICIHAVEOPT\0\x03\r\n\r\n");
    };
    let thread = std::thread::Builder::new().spawn(answer).expect("a thread");
    let mut command = binary();
    command.args(["node", "info", "--api", &address]);
    let ran = ran(command.output().expect("the binary starts"));
    thread.join().expect("no panic");
    fails(&ran, Exit::Internal, "not HTTP as expected");
}

#[test]
fn node_commands() {
    let mut served = serve();
    let info = json(&served, "node info");
    assert_eq!(info["api_address"], served.address.to_string());
    let card = good(&served, "node info");
    assert!(card.contains("registered buffers are off"), "{card}");
    let arriving = "volume comes from 10.0.0.9 to device device, core 1; heard of 1m 30s ago, given up in 23h 58m if that is all";
    assert!(card.contains(arriving), "{card}");
    assert_eq!(info["arriving"][0]["volume"], "comes");
    assert!(good(&served, "node metrics").starts_with("# HELP flagstone_build_info"));
    assert_eq!(good(&served, "node stop"), "the node has stopped\n");
    assert!(served.stop.is_stopped());
    served.finish();
    fails(&run(&served, "node info"), Exit::NotReachable, "--api");
}

#[test]
fn commands_without_a_node() {
    let bare = |args: &[&str]| ran(binary().args(args).output().expect("the binary starts"));
    let example = bare(&["config", "example"]);
    assert_eq!(
        (example.exit, example.out.as_str()),
        (0, flagstone::config::EXAMPLE)
    );
    assert_eq!(bare(&["openapi"]).out, flagstone::api::openapi::document());
    for (shell, sign) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef flagstone"),
        ("fish", "complete -c"),
    ] {
        let script = bare(&["completions", shell]);
        assert_eq!(script.exit, 0);
        assert!(script.out.contains(sign), "{shell}");
    }
    let dir = TempDir::new("config");
    let file = dir.path().join("flagstone.toml");
    let path = file.to_str().expect("text");
    std::fs::write(&file, "[[device]]\npath = \"/dev/vdb\"\n").expect("written");
    let checked = bare(&["config", "check", path]);
    assert_eq!(checked.exit, 0);
    assert!(checked.out.contains("vdb at /dev/vdb"), "{}", checked.out);
    std::fs::write(&file, "[nbd]\nlisen = \"127.0.0.1:1\"\n").expect("written");
    let wrong = bare(&["config", "check", path]);
    fails(
        &wrong,
        Exit::Usage,
        "unknown field `lisen`, expected one of `listen`, `unix`",
    );
    std::fs::write(&file, "").expect("written");
    let without = bare(&["config", "check", path]);
    assert_eq!(without.exit, 0, "`serve --device` can name it");
    assert!(without.out.contains("no device"), "{}", without.out);
    let missing = dir.path().join("none");
    let missing = bare(&["config", "check", missing.to_str().expect("text")]);
    fails(&missing, Exit::NotFound, "No such file");
    fails(
        &bare(&["--log-level", "lots=of=noise", "config", "example"]),
        Exit::Usage,
        "log level",
    );
}

#[test]
fn help_teaches() {
    let bare = |args: &[&str]| ran(binary().args(args).output().expect("the binary starts"));
    let help = bare(&["--help"]);
    assert_eq!(help.exit, 0);
    for exit in Exit::ALL {
        assert!(help.out.contains(exit.meaning()), "{}", exit.meaning());
    }
    for words in ["flagstone dev", "FLAGSTONE_DIR", "Units are binary"] {
        assert!(help.out.contains(words), "{words}");
    }
    for command in [
        &["dev"][..],
        &["serve"],
        &["volume", "create"],
        &["volume", "clone"],
        &["snapshot", "create"],
        &["device", "format"],
        &["verify"],
        &["fs", "check"],
        &["completions"],
    ] {
        let help = bare(&[command, &["--help"]].concat());
        assert!(help.out.contains("Example"), "{command:?}");
    }
    assert_eq!(
        bare(&["--version"]).out,
        format!("flagstone {}\n", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(bare(&[]).exit, i32::from(Exit::Usage.code()));
}
