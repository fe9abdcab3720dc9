//! The real binary where it can't start: what it says, and what it leaves behind.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

use flagstone::exit::Exit;

use crate::cli::{Ran, binary, fails, ran};
use crate::support::TempDir;

const ANY_PORT: &str = "--api 127.0.0.1:0 --nbd 127.0.0.1:0";

fn flagstone(args: &str) -> Ran {
    let mut command = binary();
    command.args(args.split_whitespace()).stdin(Stdio::null());
    ran(command.output().expect("the binary starts"))
}

/// Nothing that the next try would take for a device.
#[track_caller]
fn left_nothing(dir: &Path) {
    for name in ["device.img", "device.img.new", "demo.pending", "node.json"] {
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
        format!("inspect {missing}"),
        format!("config check {missing}"),
        format!("serve --config {missing}"),
        format!("serve --device {missing} --dir {shown} {ANY_PORT}"),
    ] {
        fails(&flagstone(&args), Exit::NotFound, "missing");
    }
    for args in [
        format!("verify {shown}"),
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
