//! A key's file: made once, refused if it is wrong, replaced on demand.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A folder that is removed when dropped.
pub(in crate::api_key) struct Folder(pub(in crate::api_key) PathBuf);

impl Folder {
    pub(in crate::api_key) fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("flagstone-key-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    pub(in crate::api_key) fn key(&self) -> PathBuf {
        self.0.join("api.key")
    }

    pub(in crate::api_key) fn put(&self, text: &str, mode: u32) {
        fs::write(self.key(), text).expect("written");
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.key(), mode).expect("changed");
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string())
            .map(|name| name.expect("text"))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).expect("there").mode() & MODE_BITS
}

fn digits(digit: &str) -> String {
    digit.repeat(super::super::KEY_DIGITS)
}

#[test]
fn it_is_made_once_for_its_owner_alone_and_goes_if_the_node_does_not_start() {
    let folder = Folder::new();
    // What a crash left behind, with another mode.
    fs::write(folder.0.join("api.key.new"), "half").expect("written");
    let (_, made) = load_or_make(&folder.0, KeyUse::Api).expect("made");
    drop(made.expect("it was not there"));
    assert!(folder.names().is_empty(), "{:?}", folder.names());

    let (held, made) = load_or_make(&folder.0, KeyUse::Api).expect("made");
    made.expect("it was not there").keep();
    let secret = load(&folder.0, KeyUse::Api).expect("there");
    assert!(held.accepts(&secret));
    assert_eq!(mode_of(&folder.key()), 0o600);
    let text = fs::read_to_string(folder.key()).expect("text");
    assert_eq!(text, format!("{}\n", secret.digits()));
    let (held, made) = load_or_make(&folder.0, KeyUse::Api).expect("the same");
    assert!(made.is_none() && held.accepts(&secret));
    assert_eq!(folder.names(), ["api.key"]);
    let (metrics, made) = load_or_make(&folder.0, KeyUse::Metrics).expect("made");
    made.expect("it was not there").keep();
    assert!(!metrics.accepts(&secret), "a key of its own");
    assert_eq!(mode_of(&folder.0.join("metrics.key")), 0o600);
}

#[test]
fn what_an_operator_has_put_in_place_stays() {
    let folder = Folder::new();
    folder.put(&digits("a"), 0o400);
    let (held, made) = load_or_make(&folder.0, KeyUse::Api).expect("theirs");
    assert!(made.is_none());
    assert!(held.accepts(&Secret::parse(digits("A").as_bytes()).expect("a key")));
    // Between the look and the making, too: a link to nowhere is such a name.
    fs::remove_file(folder.key()).expect("removed");
    symlink(folder.0.join("nowhere"), folder.key()).expect("linked");
    let error = load_or_make(&folder.0, KeyUse::Api).expect_err("nothing there");
    assert_eq!(error.kind, NodeErrorKind::NotFound, "{error}");
    assert!(folder.key().is_symlink());
    assert_eq!(folder.names(), ["api.key"]);
    // What came since is not taken for ours.
    fs::remove_file(folder.key()).expect("removed");
    let (_, made) = load_or_make(&folder.0, KeyUse::Api).expect("made");
    fs::rename(folder.key(), folder.0.join("old")).expect("renamed");
    folder.put(&digits("b"), 0o600);
    drop(made);
    assert_eq!(folder.names(), ["api.key", "old"]);
}

#[test]
fn a_file_that_is_wrong_is_refused_with_what_to_do_and_without_what_it_says() {
    let almost = digits("a").replacen('a', "x", 1);
    let cases = [
        ("", 0o600, "it is empty", "openssl rand -hex 32"),
        (" \n", 0o600, "it is empty", "move "),
        (&"a".repeat(5000), 0o600, "longer than 4 KiB", "move "),
        (&almost, 0o600, "expected 64 hexadecimal digits", "move "),
        (&digits("a")[1..], 0o600, "expected 64", "move "),
        (&digits("a"), 0o640, "its mode is 640", "chmod 600 "),
        (&digits("a"), 0o604, "its mode is 604", "rotate-api-key"),
        (&digits("a"), 0o602, "its mode is 602", "chmod 600 "),
        (&digits("a"), 0o620, "its mode is 620", "chmod 600 "),
    ];
    let folder = Folder::new();
    for (text, mode, found, next) in cases {
        folder.put(text, mode);
        for error in [
            load(&folder.0, KeyUse::Api).expect_err(found),
            load_or_make(&folder.0, KeyUse::Api)
                .map(drop)
                .expect_err(found),
        ] {
            assert!(error.found.contains(found), "{error}");
            assert!(error.next_step.contains(next), "{error}");
            assert!(error.doing.contains("api.key"), "{error}");
            assert!(!error.to_string().contains("aaaa"), "{error}");
        }
        assert_eq!(fs::read_to_string(folder.key()).expect("kept"), text);
    }
    fs::remove_file(folder.key()).expect("removed");
    fs::create_dir(folder.key()).expect("made");
    let error = load_or_make(&folder.0, KeyUse::Api).expect_err("a folder");
    assert!(error.found.contains("found a folder"), "{error}");
    // The key of the metrics may be read by a group, and no more.
    let path = folder.0.join("metrics.key");
    fs::write(&path, digits("a")).expect("written");
    for (mode, is_good) in [(0o640, true), (0o660, false), (0o644, false)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changed");
        assert_eq!(
            load(&folder.0, KeyUse::Metrics).is_ok(),
            is_good,
            "{mode:o}"
        );
    }
}

#[test]
fn a_named_file_may_be_anybodys_but_has_to_be_a_key() {
    let folder = Folder::new();
    folder.put(&format!("{}\r\n", digits("a")), 0o644);
    assert!(read_given(&folder.key()).is_ok());
    folder.put("hunter2", 0o600);
    let error = read_given(&folder.key()).expect_err("no key");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    let error = read_given(Path::new("/dev/zero")).expect_err("endless");
    assert!(error.found.contains("longer than 4 KiB"), "{error}");
}

#[test]
fn replacing_keeps_who_may_read_it() {
    let folder = Folder::new();
    let error = rotate(&folder.0, KeyUse::Metrics).expect_err("none there");
    assert_eq!(error.kind, NodeErrorKind::NotFound, "{error}");
    assert!(folder.names().is_empty(), "{:?}", folder.names());
    let (_, made) = load_or_make(&folder.0, KeyUse::Metrics).expect("made");
    made.expect("it was not there").keep();
    let path = folder.0.join("metrics.key");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("changed");
    let old = load(&folder.0, KeyUse::Metrics).expect("there");
    let new = rotate(&folder.0, KeyUse::Metrics).expect("replaced");
    assert!(!new.is(&old));
    assert!(load(&folder.0, KeyUse::Metrics).expect("there").is(&new));
    assert_eq!(mode_of(&path), 0o640);
    assert_eq!(folder.names(), ["keys.lock", "metrics.key"]);
    // One that could not be taken is one that can be afterwards.
    folder.put("no key", 0o666);
    let new = rotate(&folder.0, KeyUse::Api).expect("replaced");
    assert!(load(&folder.0, KeyUse::Api).expect("there").is(&new));
    assert_eq!(mode_of(&folder.key()), 0o600);
    // A link is not replaced by a file: what it leads to is kept elsewhere.
    fs::remove_file(folder.key()).expect("removed");
    symlink(&path, folder.key()).expect("linked");
    let error = rotate(&folder.0, KeyUse::Api).expect_err("a link");
    assert!(error.found.contains("symbolic link"), "{error}");
    assert!(folder.key().is_symlink());
}

#[test]
fn two_that_replace_it_have_it_one_after_the_other() {
    let folder = Folder::new();
    let (_, made) = load_or_make(&folder.0, KeyUse::Api).expect("made");
    made.expect("it was not there").keep();
    let turn = take_turn(&folder.0).expect("free");
    let error = rotate(&folder.0, KeyUse::Api).expect_err("held");
    assert_eq!(error.kind, NodeErrorKind::Busy, "{error}");
    drop(turn);
    rotate(&folder.0, KeyUse::Api).expect("free again");
}
