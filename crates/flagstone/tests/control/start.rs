//! The real binary where it can't start: what it says, and what it leaves behind.

use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

use flagstone::exit::Exit;

use crate::cli::{Ran, binary, fails, ran};
use crate::support::TempDir;

const ANY_PORT: &str = "--api 127.0.0.1:0 --nbd 127.0.0.1:0 --nfs 127.0.0.1:0";

fn flagstone(args: &str) -> Ran {
    let mut command = binary();
    command.args(args.split_whitespace()).stdin(Stdio::null());
    ran(command.output().expect("the binary starts"))
}

/// Nothing that the next try would take for a device, nor anything else.
#[track_caller]
fn left_nothing(dir: &Path) {
    for name in [
        "device.img",
        "device.img.new",
        "demo.pending",
        "node.json",
        "node.lock",
        "api.key",
        "api.key.new",
        "metrics.key",
    ] {
        assert!(!dir.join(name).exists(), "{name} was left behind");
    }
}

#[test]
fn sockets_are_tried_before_a_device_is_made() {
    let dir = TempDir::new("sockets");
    let shown = dir.path().display();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = (taken.local_addr().expect("bound"), taken);
    let dev = format!("dev --dir {shown} --size 32M --api 127.0.0.1:0");
    let busy = flagstone(&format!("{dev} --nbd {}", taken.0));
    fails(&busy, Exit::Busy, "listening for NBD clients on");
    assert!(busy.err.contains("--nbd"), "{}", busy.err);
    let elsewhere = flagstone(&format!("{dev} --nbd 192.0.2.1:0"));
    fails(&elsewhere, Exit::Usage, "listening for NBD clients on");
    let busy = flagstone(&format!("dev --dir {shown} --size 32M --api {}", taken.0));
    fails(&busy, Exit::Busy, "opening the API");
    let unix = |path: &Path| flagstone(&format!("{dev} --nbd-unix {}", path.display()));
    fails(
        &unix(&dir.path().join("no/nbd.sock")),
        Exit::NotFound,
        "make its folder",
    );
    let file = dir.path().join("file");
    File::create(&file).expect("made");
    fails(&unix(&file), Exit::AlreadyExists, "not a socket");
    let served = dir.path().join("served.sock");
    let listener = UnixListener::bind(&served).expect("bound");
    fails(&unix(&served), Exit::Busy, "another process listens on it");
    drop(listener);
    left_nothing(dir.path());
}

#[test]
fn a_start_that_fails_takes_its_new_device_away() {
    let dir = TempDir::new("undone");
    let args = format!("dev --dir {} --size 32M {ANY_PORT}", dir.path().display());
    let mut command = binary();
    command.args(args.split_whitespace());
    command.env("FLAGSTONE_TUNING", "nonsense=1");
    let failed = ran(command.output().expect("the binary starts"));
    fails(&failed, Exit::Usage, "tuning the cores");
    left_nothing(dir.path());
    // One that was there before stays.
    let image = dir.path().join("device.img");
    let formatted = flagstone(&format!("device format {}:32M", image.display()));
    assert_eq!(formatted.exit, 0, "{}", formatted.err);
    let failed = ran(command.output().expect("the binary starts"));
    fails(&failed, Exit::Usage, "tuning the cores");
    assert!(image.exists());
}

#[test]
fn sizes_that_do_not_work_are_named_with_the_option() {
    let dir = TempDir::new("dev-size");
    let dev = format!("dev --dir {} {ANY_PORT}", dir.path().display());
    let small = flagstone(&format!("{dev} --size 1M"));
    fails(&small, Exit::Usage, "expected at least 16 MiB");
    assert!(small.err.contains("--size"), "{}", small.err);
    let large = flagstone(&format!("{dev} --size 100T"));
    fails(&large, Exit::NoSpace, "creating the device");
    assert!(
        large.err.contains("a smaller --size than 100 TiB"),
        "{}",
        large.err
    );
    left_nothing(dir.path());
    // Nor the folder, if there was none.
    let new = dir.path().join("new");
    let small = flagstone(&format!("dev --dir {} {ANY_PORT} --size 1M", new.display()));
    fails(&small, Exit::Usage, "expected at least 16 MiB");
    assert!(!new.exists());
}

/// As after a start that was interrupted.
#[test]
fn another_size_than_that_of_the_device_is_not_passed_over() {
    let dir = TempDir::new("othersize");
    let image = dir.path().join("device.img");
    let formatted = flagstone(&format!("device format {}:32M", image.display()));
    assert_eq!(formatted.exit, 0, "{}", formatted.err);
    let (found, asked) = ("32 MiB (33554432 bytes)", "--size 64M (67108864 bytes)");
    for (size, is_other) in [("--size 64M", true), ("--size 32M", false), ("", false)] {
        let args = format!("dev --dir {} {ANY_PORT} {size}", dir.path().display());
        let mut command = binary();
        command.args(args.split_whitespace());
        // It ends right behind that.
        command.env("FLAGSTONE_TUNING", "nonsense=1");
        let failed = ran(command.output().expect("the binary starts"));
        fails(&failed, Exit::Usage, "tuning the cores");
        for part in [found, asked] {
            assert_eq!(failed.err.contains(part), is_other, "{}", failed.err);
        }
    }
}

#[test]
fn a_device_that_is_too_short_is_said_to_be() {
    let dir = TempDir::new("short");
    let image = dir.path().join("device.img");
    for size in [0, 1, 4095, 4096, 8192, 100_000] {
        let file = File::create(&image).expect("made");
        file.set_len(size).expect("its length");
        let dev = format!("dev --dir {} {ANY_PORT}", dir.path().display());
        let serve = format!(
            "serve --device {} --dir {} {ANY_PORT}",
            image.display(),
            dir.path().display()
        );
        for args in [dev, serve] {
            let failed = flagstone(&args);
            fails(&failed, Exit::Usage, &format!("({size} bytes)"));
            assert!(failed.err.contains("16 MiB"), "{}", failed.err);
            assert!(failed.err.contains("make a new one"), "{}", failed.err);
        }
        assert_eq!(fs::metadata(&image).expect("kept").len(), size);
    }
}

/// What is no device at all is a wrong argument, whatever is asked of it; what was one is damaged.
#[test]
fn no_device_and_a_damaged_one_are_told_apart_everywhere() {
    let dir = TempDir::new("nodevice");
    let image = dir.path().join("disk.img");
    let shown = image.display();
    let commands = [
        format!("verify {shown}"),
        format!("fs check --device {shown}"),
        format!("inspect {shown}"),
        format!("inspect --block 0 {shown}"),
        format!(
            "serve --device {shown} --dir {} {ANY_PORT}",
            dir.path().display()
        ),
    ];
    let write = |offset: u64, bytes: &[u8]| {
        let file = File::options().write(true).open(&image).expect("there");
        file.write_all_at(bytes, offset).expect("written");
    };
    let file = File::create(&image).expect("made");
    file.set_len(32 << 20).expect("sparse");
    for (what, found) in [("", "nothing but zeros"), ("text", "data (bytes other")] {
        write(9, what.as_bytes());
        for command in &commands {
            let refused = flagstone(command);
            fails(&refused, Exit::Usage, "is no Flagstone device: found");
            assert!(refused.err.contains(found), "{}", refused.err);
            assert!(refused.err.contains("device format"), "{}", refused.err);
        }
    }
    let formatted = flagstone(&format!("device format --force {shown}"));
    assert_eq!(formatted.exit, 0, "{}", formatted.err);
    // Both superblocks: the journals' roots still tell what it was.
    write(0, &[0; 4096]);
    write((32 << 20) - 4096, &[0; 4096]);
    for command in &commands {
        let damaged = flagstone(command);
        let code = i32::from(Exit::Corrupt.code());
        assert_eq!(damaged.exit, code, "{command}: {}", damaged.err);
    }
}

#[test]
fn a_block_behind_the_end_is_refused() {
    let dir = TempDir::new("blockend");
    let image = dir.path().join("disk.img");
    let formatted = flagstone(&format!("device format {}:32M", image.display()));
    assert_eq!(formatted.exit, 0, "{}", formatted.err);
    let inspect = |block: u64| flagstone(&format!("inspect --block {block} {}", image.display()));
    let last = (32 << 20) / 4096 - 1;
    assert_eq!(inspect(last).exit, 0);
    for block in [last + 1, u64::MAX] {
        let refused = inspect(block);
        fails(&refused, Exit::Usage, &format!("no block {block}"));
        let range = format!("blocks 0 to {last}");
        assert!(refused.err.contains(&range), "{}", refused.err);
    }
}

/// It needs no node, and is not told of one. A device that somebody has is left alone, and so are those beside it.
#[test]
fn filesystems_are_checked_without_a_node() {
    let dir = TempDir::new("fscheck");
    let (image, other) = (dir.path().join("a.img"), dir.path().join("b.img"));
    for image in [&image, &other] {
        let formatted = flagstone(&format!("device format {}:32M", image.display()));
        assert_eq!(formatted.exit, 0, "{}", formatted.err);
    }
    let (a, b) = (image.display(), other.display());
    let before = fs::read(&image).expect("read");
    let checked = flagstone(&format!("fs check --device {a} --device {b}:32M"));
    assert_eq!((checked.exit, checked.err.as_str()), (0, ""));
    let none = |path| format!("{path}: there is no filesystem on it; nothing was changed on it\n");
    assert_eq!(checked.out, none(a.to_string()) + &none(b.to_string()));
    let checked = flagstone(&format!("fs check -o json --device {a}"));
    let value: serde_json::Value = serde_json::from_str(&checked.out).expect("JSON");
    assert_eq!(value["clean"], true);
    assert_eq!(value["items"], serde_json::json!([]));
    assert_eq!(value["devices"][0]["device"], a.to_string());
    assert_eq!(fs::read(&image).expect("read"), before);
    let named = flagstone(&format!("fs check --device {a} data"));
    fails(&named, Exit::NotFound, "there is no filesystem 'data'");
    let size = flagstone(&format!("fs check --device {a}:64M"));
    fails(&size, Exit::Usage, "expected a device of");
    for option in ["--dir d", "--api localhost:1", "--api-key-file f"] {
        for args in [
            format!("fs check --device {a} {option}"),
            format!("{option} fs check --device {a}"),
        ] {
            let refused = flagstone(&args);
            fails(
                &refused,
                Exit::Usage,
                "`flagstone fs check --device` takes no --",
            );
            assert!(refused.err.contains("needs no node"), "{}", refused.err);
        }
    }
    let lock = flagstone_runtime::lock_device(&other).expect("free");
    let busy = flagstone(&format!("fs check --device {a} --device {b}"));
    fails(&busy, Exit::Busy, "another process has it open");
    assert_eq!(busy.out, "", "nothing was begun");
    assert!(busy.err.contains("stop the node"), "{}", busy.err);
    drop(lock);
}

/// Said to be what it is: the node may be writing at the same time.
#[test]
fn inspecting_a_served_device_says_so() {
    let dir = TempDir::new("servedimage");
    let image = dir.path().join("disk.img");
    let formatted = flagstone(&format!("device format {}:32M", image.display()));
    assert_eq!(formatted.exit, 0, "{}", formatted.err);
    let words = || flagstone(&format!("inspect {}", image.display()));
    let is_served = || {
        let shown = flagstone(&format!("-o json inspect {}", image.display()));
        let value: serde_json::Value = serde_json::from_str(&shown.out).expect("JSON");
        value["served"].as_bool().expect("a flag")
    };
    assert!(!words().out.contains("may be torn") && !is_served());
    let lock = flagstone_runtime::lock_device(&image).expect("free");
    let shown = words();
    assert_eq!(shown.exit, 0);
    assert!(
        shown.out.starts_with("note: a node serves this device"),
        "{}",
        shown.out
    );
    assert!(shown.out.contains("format version"), "{}", shown.out);
    assert!(is_served());
    drop(lock);
}

#[test]
fn more_cores_than_processors_are_warned_of() {
    let dir = TempDir::new("manycores");
    let processors = std::thread::available_parallelism().expect("known").get();
    for (cores, is_warned) in [(processors, false), (processors + 1, true)] {
        let args = format!(
            "dev --dir {} --size 32M {ANY_PORT} --cores {cores}",
            dir.path().display()
        );
        let mut command = binary();
        command.args(args.split_whitespace());
        // It ends right behind that.
        command.env("FLAGSTONE_TUNING", "nonsense=1");
        let failed = ran(command.output().expect("the binary starts"));
        fails(&failed, Exit::Usage, "tuning the cores");
        let warned = failed.err.contains("they slow each other down");
        assert_eq!(warned, is_warned, "{}", failed.err);
    }
}

#[test]
fn a_file_is_no_folder() {
    let dir = TempDir::new("nofolder");
    let file = dir.path().join("file");
    File::create(&file).expect("made");
    for path in [file.clone(), file.join("below")] {
        let dev = flagstone(&format!("dev --dir {} {ANY_PORT}", path.display()));
        fails(&dev, Exit::Usage, "serving");
        assert!(dev.err.contains("choose another --dir"), "{}", dev.err);
        let list = flagstone(&format!("volume list --dir {}", path.display()));
        fails(&list, Exit::Usage, "this is a file");
    }
}

#[test]
fn the_systems_errors_have_their_exit_codes() {
    let dir = TempDir::new("codes");
    let shown = dir.path().display();
    let missing = format!("{shown}/missing");
    for args in [
        format!("verify {missing}"),
        format!("fs check --device {missing}"),
        format!("inspect {missing}"),
        format!("config check {missing}"),
        format!("serve --config {missing}"),
        format!("serve --device {missing} --dir {shown} {ANY_PORT}"),
    ] {
        fails(&flagstone(&args), Exit::NotFound, "missing");
    }
    for args in [
        format!("verify {shown}"),
        format!("fs check --device {shown}"),
        format!("config check {shown}"),
        format!("serve --device {shown} --dir {shown} {ANY_PORT}"),
    ] {
        fails(&flagstone(&args), Exit::Usage, "");
    }
}

#[test]
fn the_example_passes_the_check() {
    let example = flagstone("config example");
    assert_eq!(example.exit, 0);
    let dir = TempDir::new("example");
    let path = dir.path().join("example.toml");
    fs::write(&path, &example.out).expect("written");
    for args in [
        format!("config check {}", path.display()),
        "config check".to_owned(),
        "config check -".to_owned(),
    ] {
        let mut command = binary();
        command.args(args.split_whitespace());
        command.stdin(File::open(&path).expect("there"));
        let checked = ran(command.output().expect("the binary starts"));
        assert_eq!(checked.exit, 0, "{}", checked.err);
        assert!(
            checked.out.contains("no device; name one"),
            "{}",
            checked.out
        );
    }
}

#[test]
fn a_configuration_that_is_no_text_is_wrong_usage() {
    let dir = TempDir::new("notext");
    let path = dir.path().join("config");
    fs::write(&path, [0x7f, b'E', 0xff, 0xfe]).expect("written");
    for args in [
        format!("config check {}", path.display()),
        "config check".to_owned(),
        format!("serve --config {}", path.display()),
    ] {
        let mut command = binary();
        command.args(args.split_whitespace());
        command.stdin(File::open(&path).expect("there"));
        let checked = ran(command.output().expect("the binary starts"));
        fails(&checked, Exit::Usage, "expected UTF-8 text");
    }
}

/// Whoever checks a configuration wants to know whether a node would start with it.
#[test]
fn a_key_of_another_certificate_fails_the_check() {
    let dir = TempDir::new("checked");
    let path = |name: &str| dir.path().join(name);
    let pair = || rcgen::KeyPair::generate().expect("a key");
    let (key, other) = (pair(), pair());
    let params = rcgen::CertificateParams::new(vec!["node".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    fs::write(path("node.pem"), certificate).expect("written");
    for (name, pair) in [("node.key", &key), ("other.key", &other)] {
        fs::write(path(name), pair.serialize_pem()).expect("written");
        fs::set_permissions(path(name), Permissions::from_mode(0o600)).expect("changed");
    }
    let checked = |key: &str| {
        let (certificate, key) = (path("node.pem"), path(key));
        let text = format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n");
        fs::write(path("config"), text).expect("written");
        flagstone(&format!("config check {}", path("config").display()))
    };
    let good = checked("node.key");
    assert_eq!(good.exit, 0, "{}", good.err);
    assert!(!good.out.contains("not checked"), "{}", good.out);
    fails(
        &checked("other.key"),
        Exit::Usage,
        "name the key that the certificate was made for",
    );
    // Perhaps it is where the node will be.
    let missing = checked("none.key");
    assert_eq!(missing.exit, 0, "{}", missing.err);
    assert!(
        missing.out.contains("were not checked: reading"),
        "{}",
        missing.out
    );
    // And one that everybody may read is refused there, too.
    fs::set_permissions(path("node.key"), Permissions::from_mode(0o644)).expect("changed");
    fails(&checked("node.key"), Exit::Refused, "chmod 600");
}

/// Keys and certificates are looked at before anything is touched.
#[test]
fn a_certificate_that_is_not_there_is_said_before_anything_is_made() {
    let dir = TempDir::new("certificates");
    let node = dir.path().join("node");
    let config = dir.path().join("node.toml");
    let text = format!(
        "dir = {node:?}\n[tls]\ncertificate = \"/no/such.pem\"\nkey = \"/no/such.key\"\n\
         [[device]]\npath = \"/no/such.img\"\n"
    );
    fs::write(&config, text).expect("written");
    let serve = flagstone(&format!("serve --config {} {ANY_PORT}", config.display()));
    fails(
        &serve,
        Exit::NotFound,
        "reading the certificate, /no/such.pem",
    );
    assert!(!node.exists(), "nothing was made");
}
