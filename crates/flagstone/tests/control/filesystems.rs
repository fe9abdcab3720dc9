//! `flagstone fs` and `/v1/filesystems`, over a node in memory.

use std::process::{Command, Stdio};

use flagstone::exit::Exit;
use flagstone::node::{FilesystemInfo, FilesystemPage};
use serde_json::{Value, json};

use crate::support::{Served, serve};

struct Ran {
    exit: i32,
    out: String,
    err: String,
}

fn run(served: &Served, line: &str) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .args(line.split(' '))
        .args(["--api", &served.address.to_string()])
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts");
    Ran {
        exit: output.status.code().expect("it ends by itself"),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

fn fails(served: &Served, line: &str, exit: Exit, hint: &str) {
    let ran = run(served, line);
    assert_eq!(ran.exit, i32::from(exit.code()), "{line}: {}", ran.err);
    assert!(ran.err.contains(hint), "{line}: {}", ran.err);
}

#[test]
fn a_filesystem_from_its_creation_to_a_snapshot_that_goes() {
    let served = serve();
    let ok = |line: &str| {
        let ran = run(&served, line);
        assert_eq!((ran.exit, ran.err.as_str()), (0, ""), "{line}");
        ran.out
    };
    let made = ok("fs create data --quota 1G --owner 7:8");
    assert!(
        made.starts_with("created filesystem data\n  sudo mount"),
        "{made}"
    );
    assert!(made.contains("nfs-ls 'nfs://127.0.0.1/data?"), "{made}");
    ok("fs create other");
    let listed = ok("fs list");
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), 3, "{listed}");
    assert!(lines[0].starts_with("FILESYSTEM"), "{listed}");
    assert!(
        lines[1].starts_with("data") && lines[1].contains("1 GiB"),
        "{listed}"
    );
    assert!(
        lines[2].starts_with("other") && lines[2].ends_with("/other"),
        "{listed}"
    );
    assert_eq!(ok("fs list oth").lines().count(), 2);
    let shown: FilesystemInfo = serde_json::from_str(&ok("fs show data -o json")).expect("JSON");
    assert_eq!(
        (shown.name.as_str(), shown.quota_bytes),
        ("data", Some(1 << 30))
    );
    assert!(ok("fs show data").contains("mount "));
    let taken = ok("fs snapshot create data monday");
    assert_eq!(taken, "took snapshot monday; clients mount /data@monday\n");
    assert!(ok("fs snapshot list data").contains("/data@monday"));
    let checked = ok("fs check");
    assert_eq!(checked.lines().count(), 2, "{checked}");
    assert!(
        checked.starts_with("data: clean; 1 file, 1 snapshot"),
        "{checked}"
    );
    ok("fs snapshot delete data monday");
    assert_eq!(
        ok("fs snapshot list data").lines().count(),
        1,
        "the heading"
    );
}

#[test]
fn what_is_wrong_is_said_and_is_the_exit_code() {
    let served = serve();
    assert_eq!(run(&served, "fs check").out, "there is no filesystem\n");
    fails(&served, "fs show data", Exit::NotFound, "'data'");
    fails(&served, "fs check data", Exit::NotFound, "'data'");
    fails(&served, "fs create .data", Exit::Usage, "is not a name");
    fails(&served, "fs create data --owner me", Exit::Usage, "UID:GID");
    assert_eq!(run(&served, "fs create data").exit, 0);
    fails(&served, "fs create data", Exit::AlreadyExists, "already");
    fails(
        &served,
        "fs snapshot create none a",
        Exit::NotFound,
        "'none'",
    );
    assert_eq!(run(&served, "fs snapshot create data a").exit, 0);
    fails(
        &served,
        "fs snapshot create data a",
        Exit::AlreadyExists,
        "data@a",
    );
    fails(
        &served,
        "fs snapshot delete data b",
        Exit::NotFound,
        "data@b",
    );
    assert_eq!(run(&served, "fs create damaged").exit, 0);
    let ran = run(&served, "fs check");
    assert_eq!(ran.exit, i32::from(Exit::Corrupt.code()));
    assert!(
        ran.out.contains("PROBLEM: damaged: a name leads nowhere"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("what to do"), "{}", ran.out);
    assert_eq!(run(&served, "fs check data").exit, 0);
    let ran = run(&served, "fs check -o json");
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(value["clean"], json!(false));
}

#[test]
fn lists_come_in_pages() {
    let served = serve();
    let client = served.client();
    for name in ["a", "b1", "b2", "b3", "c"] {
        let body = json!({ "name": name });
        let made: FilesystemInfo = client.send("POST", "/v1/filesystems", &body).expect(name);
        assert_eq!(made.quota_bytes, None);
    }
    let page = |query: &str| -> (Vec<String>, Option<String>) {
        let page: FilesystemPage = client
            .get(&format!("/v1/filesystems?{query}"))
            .expect(query);
        (
            page.items.into_iter().map(|info| info.name).collect(),
            page.next,
        )
    };
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        page("limit=2"),
        (names(&["a", "b1"]), Some("b1".to_owned()))
    );
    assert_eq!(page("prefix=b&after=b1"), (names(&["b2", "b3"]), None));
    let refused = client.get::<FilesystemPage>("/v1/filesystems?limit=0");
    assert_eq!(refused.expect_err("no rows").exit(), Exit::Usage);
}
