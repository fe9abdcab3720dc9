//! The keys of a node in their files: made at the first start, refused if they are wrong, replaced while it runs.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flagstone::api_key::{self, KeyUse, Secret};
use flagstone::client::{Client, ClientError};
use flagstone::exit::Exit;
use flagstone::node::NodeErrorKind;
use flagstone::node_file::NodeFile;

use crate::cli::{Ran, binary, fails, ran};
use crate::serve::{ANY_PORT, Node1, client, launch};
use crate::support::{API_KEY, METRICS_KEY, TempDir, put_key, secret};

fn dev(dir: &TempDir) -> String {
    format!("dev --dir {} {ANY_PORT}", dir.path().display())
}

fn flagstone(dir: &Path, args: &str) -> Ran {
    let mut command = binary();
    command.args(args.split_whitespace()).arg("--dir").arg(dir);
    ran(command.output().expect("the binary starts"))
}

fn with(dir: &TempDir, key: &Secret) -> Client {
    let file = NodeFile::read(dir.path()).expect("it serves");
    Client::new(file.api, "node.json").with_key(key.clone())
}

#[track_caller]
fn is_refused(client: &Client, path: &str) {
    match client.get_text(path) {
        Err(ClientError::Problem(problem)) => {
            assert_eq!(problem.kind, NodeErrorKind::Unauthenticated);
        }
        other => panic!("{path}: {other:?}"),
    }
}

fn text(dir: &TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(name)).expect(name)
}

#[test]
fn a_node_makes_its_keys_once_and_commands_find_them() {
    let dir = TempDir::new("keys");
    let mut node = launch(&dev(&dir));
    let announced = node.until_ready();
    let path = dir.path().join("api.key");
    let line = format!("the API's key is in {}\n", path.display());
    assert!(announced.contains(&line), "{announced}");
    let keys = ["api.key", "metrics.key"].map(|name| {
        let found = fs::metadata(dir.path().join(name)).expect(name);
        assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
        text(&dir, name)
    });
    assert_ne!(keys[0], keys[1]);
    for key in &keys {
        assert_eq!(key.trim().len(), 64);
        assert!(!announced.contains(key.trim()));
        assert!(!text(&dir, "node.json").contains(key.trim()));
        let path = format!("/proc/{}/cmdline", node.child.id());
        assert!(!fs::read_to_string(path).expect("runs").contains(key.trim()));
    }
    let listed = flagstone(dir.path(), "volume list");
    assert_eq!((listed.exit, listed.err.as_str()), (0, ""));
    assert!(listed.out.contains("demo"), "{}", listed.out);
    let metrics = api_key::load(dir.path(), KeyUse::Metrics).expect("there");
    with(&dir, &metrics).get_text("/metrics").expect("opened");
    is_refused(&with(&dir, &metrics), "/v1/volumes");
    // To an address that was typed the folder's is not sent.
    let mut typed = binary();
    let address = NodeFile::read(dir.path()).expect("it serves").api;
    typed.args(["volume", "list", "--api", &address]);
    typed.env("FLAGSTONE_DIR", dir.path());
    let refused = ran(typed.output().expect("the binary starts"));
    fails(&refused, Exit::Refused, "the request has no key");
    assert!(refused.err.contains("--api-key-file"), "{}", refused.err);
    node.signal("TERM");
    assert_eq!(node.exit_code(), Some(0));
    let mut node = launch(&dev(&dir));
    node.until_ready();
    assert_eq!(
        keys,
        ["api.key", "metrics.key"].map(|name| text(&dir, name))
    );
}

#[test]
fn a_key_that_is_wrong_keeps_the_node_from_starting() {
    let long = "a".repeat(5000);
    let cases = [
        ("", 0o600, Exit::Usage, "it is empty"),
        (&long, 0o600, Exit::Usage, "longer than 4 KiB"),
        (
            "hunter2",
            0o600,
            Exit::Usage,
            "expected 64 hexadecimal digits",
        ),
        (API_KEY, 0o644, Exit::Refused, "others may read"),
        (API_KEY, 0o606, Exit::Refused, "others may read"),
    ];
    let refused = |dir: &TempDir, exit: Exit, words: &str, name: &str| {
        let mut node = launch(&dev(dir));
        assert_eq!(node.exit_code(), Some(i32::from(exit.code())), "{words}");
        let errors = node.errors();
        let path = dir.path().join(name);
        let parts = [words, path.to_str().expect("text")];
        for part in parts {
            assert!(errors.contains(part), "{part}: {errors}");
        }
        let does = ["chmod ", "move "].iter().any(|word| errors.contains(word));
        assert!(does, "what to do: {errors}");
        assert!(
            !errors.contains("hunter2") && !errors.contains(API_KEY),
            "{errors}"
        );
        let names: Vec<_> = fs::read_dir(dir.path()).expect("a folder").collect();
        assert_eq!(names.len(), 1, "nothing but the key is left: {names:?}");
    };
    for name in ["api.key", "metrics.key"] {
        for (text, mode, exit, words) in cases {
            let dir = TempDir::new("wrong-key");
            put_key(dir.path(), name, text, mode);
            refused(&dir, exit, words, name);
        }
        let dir = TempDir::new("wrong-key");
        fs::create_dir(dir.path().join(name)).expect("made");
        refused(&dir, Exit::Usage, "found a folder", name);
    }
}

#[test]
fn a_start_that_fails_takes_the_keys_away_that_it_made() {
    let dir = TempDir::new("not-started");
    let new = dir.path().join("new");
    let serve = |dir: &Path| {
        let device = dir.join("none.img");
        let mut node = launch(&format!(
            "serve --device {} --dir {} {ANY_PORT}",
            device.display(),
            dir.display()
        ));
        assert_eq!(node.exit_code(), Some(i32::from(Exit::NotFound.code())));
    };
    serve(&new);
    assert!(!new.exists(), "with its keys in it, it would stay");
    fs::create_dir(&new).expect("made");
    put_key(&new, "metrics.key", METRICS_KEY, 0o640);
    serve(&new);
    assert!(!new.join("api.key").exists());
    let kept = fs::read_to_string(new.join("metrics.key")).expect("theirs stays");
    assert_eq!(kept, METRICS_KEY);
}

#[test]
fn a_new_key_holds_at_once_and_the_old_one_does_not() {
    let dir = TempDir::new("rotate");
    let mut node = launch(&dev(&dir));
    node.until_ready();
    for (args, key_use, path) in [
        ("node rotate-api-key", KeyUse::Api, "/v1/node"),
        ("node rotate-api-key --metrics", KeyUse::Metrics, "/metrics"),
    ] {
        let old = api_key::load(dir.path(), key_use).expect("there");
        with(&dir, &old).get_text(path).expect("good until now");
        let rotated = flagstone(dir.path(), args);
        assert_eq!((rotated.exit, rotated.err.as_str()), (0, ""));
        assert!(
            rotated.out.contains("the node has taken it"),
            "{}",
            rotated.out
        );
        // Asked before anybody has used the new one, but for the command.
        is_refused(&with(&dir, &old), path);
        let new = api_key::load(dir.path(), key_use).expect("there");
        with(&dir, &new).get_text(path).expect("good from now on");
        assert!(!rotated.out.contains(&new.digits()), "{}", rotated.out);
    }
    // By hand, as configuration management does; then gone; then wrong; then back.
    put_key(dir.path(), "api.key", API_KEY, 0o600);
    with(&dir, &secret(API_KEY))
        .get_text("/v1/node")
        .expect("taken");
    fs::remove_file(dir.path().join("api.key")).expect("removed");
    let stays = || {
        with(&dir, &secret(API_KEY))
            .get_text("/v1/node")
            .expect("the last good one");
        is_refused(&with(&dir, &secret(METRICS_KEY)), "/v1/node");
    };
    stays();
    put_key(dir.path(), "api.key", METRICS_KEY, 0o644);
    stays();
    put_key(dir.path(), "api.key", "", 0o600);
    stays();
    let open = Client::new(
        NodeFile::read(dir.path()).expect("it serves").api,
        "node.json",
    );
    is_refused(&open, "/v1/node");
    put_key(dir.path(), "api.key", METRICS_KEY, 0o600);
    client(&dir).get_text("/v1/node").expect("taken");
    is_refused(&with(&dir, &secret(API_KEY)), "/v1/node");
    node.signal("TERM");
    assert_eq!(node.exit_code(), Some(0));
    let log = node.errors();
    let warnings = log
        .lines()
        .filter(|line| line.contains("the key before it holds"));
    assert_eq!(warnings.count(), 1, "once, for all three: {log}");
    // Without a node, too; and never to an address.
    let rotated = flagstone(dir.path(), "node rotate-api-key");
    assert_eq!(rotated.exit, 0, "{}", rotated.err);
    assert!(
        rotated.out.contains("no node serves the folder"),
        "{}",
        rotated.out
    );
    let mut typed = binary();
    typed.args(["node", "rotate-api-key", "--api", "127.0.0.1:1"]);
    let refused = ran(typed.output().expect("the binary starts"));
    fails(&refused, Exit::Usage, "--api names none");
}

/// Reads all it logs while it runs: more than a pipe holds.
fn logged(node: &mut Node1) -> std::thread::JoinHandle<String> {
    let mut errors = node.child.stderr.take().expect("piped");
    let read = move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).expect("text");
        text
    };
    std::thread::Builder::new().spawn(read).expect("a thread")
}

#[test]
fn refusals_are_logged_and_keys_are_not() {
    let dir = TempDir::new("audit");
    let mut node = launch(&format!("{} --log-level trace", dev(&dir)));
    let log = logged(&mut node);
    node.until_ready();
    let (api, metrics) = (text(&dir, "api.key"), text(&dir, "metrics.key"));
    client(&dir).get_text("/v1/node").expect("the right key");
    client(&dir)
        .call("DELETE", "/v1/volumes/demo")
        .expect("the right key");
    let address = NodeFile::read(dir.path()).expect("it serves").api;
    let stranger = Client::new(address, "node.json");
    is_refused(&stranger, "/v1/volumes?secret=hunter2");
    // The next comes in another second than those above, and all of it in one.
    crate::support::pause(1100);
    let wrong = with(&dir, &secret(METRICS_KEY));
    let flood: Vec<_> = (0..30)
        .map(|_| {
            let wrong = wrong.clone();
            let ask = move || is_refused(&wrong, "/v1/snapshots");
            std::thread::Builder::new().spawn(ask).expect("a thread")
        })
        .collect();
    for one in flood {
        one.join().expect("no panic");
    }
    crate::support::pause(1100);
    is_refused(&stranger, "/v1/devices");
    node.signal("TERM");
    assert_eq!(node.exit_code(), Some(0));
    let log = log.join().expect("no panic");
    for key in [api.trim(), metrics.trim(), METRICS_KEY, "hunter2"] {
        assert!(!log.contains(key), "a key in the log");
    }
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("request refused"))
        .collect();
    let missing = lines.first().expect("a line");
    for part in [
        "audit: request refused protocol=\"api\" from=\"127.0.0.1\" method=\"GET\" ",
        "path=\"/v1/volumes\"",
        "rule=\"missing-key\"",
    ] {
        assert!(missing.contains(part), "{part}: {missing}");
    }
    let wrong: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("rule=\"wrong-key\""))
        .collect();
    assert_eq!(wrong.len(), 10, "{lines:#?}");
    let last = lines.last().expect("a line");
    assert!(
        last.contains("left_out=20") && last.contains("/v1/devices"),
        "{last}"
    );
}

#[test]
fn without_a_key_it_serves_loopback_and_says_so() {
    let dir = TempDir::new("open");
    let mut node = launch(&format!("{} --api-open", dev(&dir)));
    let announced = node.until_ready();
    assert!(
        announced.contains("note: the API asks for no key"),
        "{announced}"
    );
    for name in ["api.key", "metrics.key"] {
        assert!(!dir.path().join(name).exists(), "{name} is of no use");
    }
    let listed = flagstone(dir.path(), "volume list");
    assert_eq!((listed.exit, listed.err.as_str()), (0, ""));
    let info = flagstone(dir.path(), "node info");
    assert!(info.out.contains("the API asks for no key"), "{}", info.out);
    node.signal("TERM");
    assert_eq!(node.exit_code(), Some(0));
    let log = node.errors();
    let is_warning = |line: &str| line.contains("WARN") && line.contains("asks for no key");
    assert_eq!(
        log.lines().filter(|line| is_warning(line)).count(),
        1,
        "{log}"
    );
}

#[test]
fn without_a_key_no_other_address_is_served() {
    let dir = TempDir::new("open-remote");
    let new = dir.path().join("new");
    let config = dir.path().join("flagstone.toml");
    let open = "[api]\nlisten = \"0.0.0.0:0\"\nallow_remote = true\nauthentication = \"none\"\n";
    fs::write(&config, format!("{open}[[device]]\npath = \"/none\"\n")).expect("written");
    let shown = new.display();
    for args in [
        format!("dev --dir {shown} --api-open --api 0.0.0.0:0"),
        format!("dev --dir {shown} --api-open --api [::]:0 --allow-remote-api"),
        format!("serve --config {} --dir {shown}", config.display()),
    ] {
        let mut node = launch(&args);
        assert_eq!(
            node.exit_code(),
            Some(i32::from(Exit::Refused.code())),
            "{args}"
        );
        let errors = node.errors();
        for part in ["without a key", "use a loopback address", "--api-open"] {
            assert!(errors.contains(part), "{part}: {errors}");
        }
        assert!(!new.exists(), "before anything is made");
    }
    let mut check = binary();
    check.args(["config", "check"]).arg(&config);
    fails(
        &ran(check.output().expect("it starts")),
        Exit::Refused,
        "without a key",
    );
}
