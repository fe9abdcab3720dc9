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
    let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
    command.args(line.split(' '));
    let output = served
        .aim(&mut command)
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
    assert_eq!(
        ok("fs set data --quota none --quota-files 7 --promote-bytes 64K"),
        "filesystem data: quota none, of files 7; files become large ones past 64 KiB; share 1, limit none\n"
    );
    let set = ok("fs set data --floor reads=500 --limit bytes=1M --oversubscribe");
    assert!(
        set.ends_with("64 KiB; floor reads=500 writes=0, limit bytes=1048576\n"),
        "{set}"
    );
    // What isn't named stays.
    let set = ok("fs set data --share 3");
    assert!(set.ends_with("; share 3, limit bytes=1048576\n"), "{set}");
    assert_eq!(
        ok("fs image-store data /images"),
        "/images of filesystem data is an image store\n"
    );
    let card = ok("fs show data");
    for (title, value) in [
        ("quota", "none"),
        ("files quota", "7"),
        ("promote", "files past 64 KiB (65536 bytes)"),
        ("promised", "share 3"),
        ("limit", "bytes=1048576"),
        ("image stores", "/images"),
    ] {
        let is_it = |line: &str| line.split_once(title).map(|(_, rest)| rest.trim() == value);
        assert!(card.lines().any(|line| is_it(line) == Some(true)), "{card}");
    }
    ok("fs image-store data /images --off");
    assert!(!ok("fs show data").contains("/images"));
    ok("fs set data --quota-bytes 1G");
    let limited = "fs create limited --quota-bytes 2G --quota-files 9 --promote-bytes 0 --floor writes=7 -o json";
    let limited: FilesystemInfo = serde_json::from_str(&ok(limited)).expect("JSON");
    let limits = (
        limited.quota_bytes,
        limited.quota_files,
        limited.promote_bytes,
    );
    assert_eq!(limits, (Some(2 << 30), Some(9), 0));
    assert_eq!(limited.slo.promise.to_string(), "floor reads=0 writes=7");
    let taken = ok("fs snapshot create data monday");
    assert_eq!(taken, "took snapshot monday; clients mount /data@monday\n");
    assert!(ok("fs snapshot list data").contains("/data@monday"));
    let checked = ok("fs check");
    assert_eq!(checked.lines().count(), 3, "{checked}");
    assert!(
        checked.starts_with("data: clean; 1 file, 1 snapshot"),
        "{checked}"
    );
    assert_eq!(
        ok("fs clone data /base.img /vms/7.img"),
        "cloned /base.img to /vms/7.img in filesystem data (100 GiB)\n"
    );
    let cloned = ok("fs clone data /base.img /7.img --snapshot monday -o json");
    let cloned: Value = serde_json::from_str(&cloned).expect("JSON");
    assert_eq!(
        (&cloned["snapshot"], &cloned["path"], &cloned["size_bytes"]),
        (&json!("monday"), &json!("/7.img"), &json!(100_u64 << 30))
    );
    assert_eq!(
        ok("fs snapshot rollback data monday"),
        "rolled data back to monday\n"
    );
    ok("fs snapshot create data long");
    let rolling = ok("fs snapshot rollback data long");
    assert!(rolling.contains("`flagstone fs show data`"), "{rolling}");
    assert!(ok("fs show data").contains("2; being rolled back to long"));
    ok("fs snapshot rollback data monday");
    ok("fs snapshot delete data long monday");
    assert_eq!(
        ok("fs snapshot list data").lines().count(),
        1,
        "the heading"
    );
    assert_eq!(
        ok("fs delete other limited"),
        "deleted filesystem other\ndeleted filesystem limited\n"
    );
    assert_eq!(ok("fs list").lines().count(), 2);
}

#[test]
fn what_is_wrong_is_said_and_is_the_exit_code() {
    let served = serve();
    assert_eq!(run(&served, "fs check").out, "there is no filesystem\n");
    fails(&served, "fs show data", Exit::NotFound, "'data'");
    fails(&served, "fs check data", Exit::NotFound, "'data'");
    fails(&served, "fs clone data /a /b", Exit::NotFound, "'data'");
    fails(&served, "fs clone data a /b", Exit::Usage, "topmost");
    fails(&served, "fs clone data /a b", Exit::Usage, "topmost");
    fails(&served, "fs set data --quota 1G", Exit::NotFound, "'data'");
    fails(&served, "fs set data", Exit::Usage, "--promote-bytes");
    fails(&served, "fs set data --quota 0", Exit::Usage, "or none");
    let zero = "fs set data --quota-files 0";
    fails(&served, zero, Exit::Usage, "or none");
    let relative = "fs image-store data images";
    fails(&served, relative, Exit::Usage, "topmost");
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
    let gone = "fs snapshot rollback data b";
    fails(&served, gone, Exit::NotFound, "data@b");
    let kept = "fs delete data";
    fails(&served, kept, Exit::Busy, "snapshots");
    assert_eq!(run(&served, "fs create used").exit, 0);
    fails(&served, "fs delete used", Exit::Busy, "a client");
    fails(&served, "fs delete none", Exit::NotFound, "'none'");
    assert_eq!(run(&served, "fs delete used --force").exit, 0);
    assert_eq!(run(&served, "fs create brief").exit, 0);
    assert_eq!(run(&served, "fs snapshot create brief a").exit, 0);
    assert_eq!(run(&served, "fs delete brief --with-snapshots").exit, 0);
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
