//! `flagstone device format` by the real binary: only what is blank is formatted.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use flagstone::exit::Exit;
use flagstone_device::engine;
use flagstone_runtime::host_room;

use crate::cli::{Ran, binary, fails, ran};
use crate::support::TempDir;

const SIZE: u64 = 128 << 20;

fn format(args: &[&str]) -> Ran {
    let mut command = binary();
    command.args(["device", "format"]).args(args);
    ran(command.output().expect("the binary starts"))
}

fn image(dir: &TempDir, parts: &[(u64, &[u8])]) -> String {
    let path = dir.path().join("disk.img");
    let file = File::create(&path).expect("made");
    file.set_len(SIZE).expect("sparse");
    for (offset, bytes) in parts {
        file.write_all_at(bytes, *offset).expect("written");
    }
    path.display().to_string()
}

fn bytes_at(path: &str, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let file = File::open(path).expect("there");
    file.read_exact_at(&mut bytes, offset).expect("read");
    bytes
}

#[test]
fn blank_is_formatted_and_then_it_is_not_blank() {
    let dir = TempDir::new("blank");
    let path = image(&dir, &[]);
    assert_eq!(format(&[&path]).exit, 0);
    let before = fs::read(&path).expect("read");
    let again = format(&[&path]);
    fails(&again, Exit::AlreadyExists, "a Flagstone device at byte 0");
    assert!(again.err.contains("pass --force"), "{}", again.err);
    assert!(
        fs::read(&path).expect("read") == before,
        "nothing is changed"
    );
    // Either superblock alone is enough, even behind a first MiB of zeros.
    let file = File::options().write(true).open(&path).expect("there");
    file.write_all_at(&vec![0; 1 << 20], 0).expect("written");
    fails(
        &format(&[&path]),
        Exit::AlreadyExists,
        &format!("second superblock) at byte {}", SIZE - 4096),
    );
    assert_eq!(format(&[&path, "--force"]).exit, 0);
}

#[test]
fn whatever_is_found_is_named_and_kept() {
    let dir = TempDir::new("foreign");
    let mdraid = 0xa92b_4efc_u32.to_le_bytes();
    let zfs = 0x00ba_b10c_u64.to_le_bytes();
    // What, the words, and where it stands.
    let table: [(&str, u64, &[u8]); 17] = [
        ("an XFS filesystem at byte 0", 0, b"XFSB"),
        ("ext4 filesystem at byte 1080", 1080, b"\x53\xef"),
        ("a btrfs filesystem at byte 65600", 65600, b"_BHRfS_M"),
        ("an LVM physical volume at byte 512", 512, b"LABELONE"),
        ("a LUKS container at byte 0", 0, b"LUKS\xba\xbe"),
        ("swap space at byte 4086", 4086, b"SWAPSPACE2"),
        ("MBR partition table at byte 510", 510, b"\x55\xaa"),
        ("a GPT partition table at byte 512", 512, b"EFI PART"),
        (
            "GPT partition table (backup) at byte",
            SIZE - 512,
            b"EFI PART",
        ),
        ("an md RAID member (1.0) at byte", SIZE - 8192, &mdraid),
        ("an md RAID member (1.2) at byte 4096", 4096, &mdraid),
        ("a ZFS pool member at byte 132096", (129 << 10), &zfs),
        ("a ZFS pool member at byte", SIZE - (128 << 10), &zfs),
        ("data (bytes other than zero) at byte 999999", 999_999, b"x"),
        (
            "data (bytes other than zero) at byte 67108864",
            64 << 20,
            b"x",
        ),
        (
            "data (bytes other than zero) at byte 134217727",
            SIZE - 1,
            b"x",
        ),
        ("what is left of a Flagstone device", 4096, b"FSROOT01"),
    ];
    for (words, offset, magic) in table {
        let path = image(&dir, &[(offset, magic)]);
        let refused = format(&[&path]);
        fails(&refused, Exit::Refused, words);
        assert!(refused.err.contains("--force"), "{}", refused.err);
        // A size changes nothing about it: the file isn't even grown.
        let larger = format(&[&format!("{path}:1G")]);
        fails(&larger, Exit::Refused, words);
        assert_eq!(fs::metadata(&path).expect("there").len(), SIZE);
        assert_eq!(bytes_at(&path, offset, magic.len()), magic, "{words}");
    }
}

#[test]
fn force_leaves_nothing_of_what_it_was_at_the_ends() {
    let dir = TempDir::new("force");
    let parts: [(u64, &[u8]); 2] = [(65600, b"_BHRfS_M"), (SIZE - 300 * 1024, b"x")];
    let path = image(&dir, &parts);
    assert_eq!(format(&[&path, "--force"]).exit, 0);
    for (offset, was) in parts {
        assert_eq!(bytes_at(&path, offset, was.len()), vec![0; was.len()]);
    }
}

/// Bytes that the filesystem has set aside for a file.
fn stored_bytes(path: &str) -> u64 {
    fs::metadata(path).expect("there").blocks() * 512
}

#[test]
fn a_file_that_was_sparse_is_set_aside() {
    let dir = TempDir::new("set-aside");
    let path = image(&dir, &[]);
    assert!(stored_bytes(&path) < SIZE);
    let formatted = format(&[&path]);
    assert_eq!(formatted.exit, 0, "{}", formatted.err);
    assert!(!formatted.out.contains("warning"), "{}", formatted.out);
    assert!(stored_bytes(&path) >= SIZE, "{}", stored_bytes(&path));
    let larger = SIZE + (32 << 20);
    let path = image(&dir, &[]);
    assert_eq!(format(&[&format!("{path}:{larger}")]).exit, 0);
    assert!(stored_bytes(&path) >= larger, "{}", stored_bytes(&path));
    // Of a device that is smaller than the file, the device.
    let path = image(&dir, &[]);
    assert_eq!(format(&[&format!("{path}:{}", SIZE / 2)]).exit, 0);
    let stored = stored_bytes(&path);
    assert!((SIZE / 2..SIZE).contains(&stored), "{stored}");
    let path = dir.path().join("new.img").display().to_string();
    assert_eq!(format(&[&format!("{path}:{SIZE}")]).exit, 0);
    assert!(stored_bytes(&path) >= SIZE, "{}", stored_bytes(&path));
}

#[test]
fn a_file_that_stays_sparse_has_its_journals_set_aside() {
    let dir = TempDir::new("sparse");
    let path = image(&dir, &[]);
    let size: u64 = 2 << 30;
    let layout = engine::FormatOptions::for_size(size);
    let rings = u64::from(layout.journal_count) * u64::from(layout.ring_blocks) * 4096;
    assert!(layout.journal_count > 1 && rings > 16 << 20, "{rings}");
    let new = dir.path().join("new.img").display().to_string();
    for path in [path, new] {
        let formatted = format(&[&format!("{path}:{size}"), "--sparse"]);
        assert_eq!(formatted.exit, 0, "{}", formatted.err);
        let stored = stored_bytes(&path);
        assert!((rings..2 * rings).contains(&stored), "{stored}");
        // Where the rings are: all of the beginning, and the second superblock.
        let data_start = engine::fixed_areas(layout).expect("valid")[0].end;
        assert!(data_start > rings && data_start < stored, "{data_start}");
    }
}

#[test]
fn a_file_without_room_on_its_filesystem_is_refused_and_kept() {
    let dir = TempDir::new("no-room");
    let path = image(&dir, &[]);
    let room = host_room(&path).expect("looked").expect("a file");
    let too_large = 2 * room.free_bytes + (64 << 30);
    for (name, bytes) in [("as it is", too_large), ("grown", SIZE)] {
        let file = File::options().write(true).open(&path).expect("there");
        file.set_len(bytes).expect("sparse");
        let before = fs::metadata(&path).expect("there");
        let asked = match name {
            "grown" => format!("{path}:{too_large}"),
            _ => path.clone(),
        };
        let refused = format(&[&asked]);
        fails(
            &refused,
            Exit::NoSpace,
            "the filesystem of the file is too full",
        );
        for words in ["pass --sparse", &format!("({too_large} bytes)"), "are free"] {
            assert!(refused.err.contains(words), "{name}: {}", refused.err);
        }
        let after = fs::metadata(&path).expect("there");
        let seen = |m: &fs::Metadata| (m.len(), m.blocks(), m.mtime(), m.mtime_nsec());
        assert_eq!(seen(&after), seen(&before), "{name}");
    }
    let new = dir.path().join("new.img");
    let asked = format!("{}:{too_large}", new.display());
    fails(&format(&[&asked]), Exit::NoSpace, "pass --sparse");
    assert!(!new.exists());
}

#[test]
fn a_real_filesystem_is_refused() {
    let dir = TempDir::new("mkfs");
    let path = image(&dir, &[]);
    let made = Command::new("/sbin/mke2fs")
        .args(["-q", "-t", "ext4", &path])
        .status();
    assert!(made.expect("e2fsprogs is installed").success());
    fails(
        &format(&[&path]),
        Exit::Refused,
        "ext4 filesystem at byte 1080",
    );
    let checked = Command::new("/sbin/e2fsck").args(["-fn", &path]).output();
    assert!(checked.expect("e2fsprogs is installed").status.success());
}

#[test]
fn sizes_and_places_that_do_not_work() {
    let dir = TempDir::new("sizes");
    let path = dir.path().join("new.img");
    let small = format(&[&format!("{}:1M", path.display())]);
    fails(&small, Exit::Usage, "expected at least 16 MiB");
    assert!(small.err.contains("found 1 MiB"), "{}", small.err);
    // More than any filesystem here has: nothing is left behind.
    for size in ["-1", "+1G", "", "20GB"] {
        let wrong = format(&[&format!("{}:{size}", path.display())]);
        fails(&wrong, Exit::Usage, "PATH[:SIZE]");
        assert!(wrong.err.contains("write for example 10G"), "{}", wrong.err);
    }
    let huge = format(&[&format!("{}:100T", path.display())]);
    fails(&huge, Exit::NoSpace, "100 TiB");
    assert!(!path.exists());
    fails(
        &format(&[&path.display().to_string()]),
        Exit::NotFound,
        "there is no such file",
    );
    File::create(&path).expect("made");
    let empty = path.display().to_string();
    fails(&format(&[&empty]), Exit::Usage, "found 0 B (0 bytes)");
    assert_eq!(
        format(&[&format!("{empty}:32M")]).exit,
        0,
        "an empty file grows"
    );
    let folder = Path::new(dir.path()).display().to_string();
    fails(&format(&[&folder]), Exit::Usage, "formatting");
    let below = path.join("below").display().to_string();
    fails(
        &format(&[&format!("{below}:32M")]),
        Exit::Usage,
        "Not a directory",
    );
}
