//! A key that is held: what changes in its file counts, and what is wrong with it does not.

use std::fs;

use super::super::file::tests::Folder;
use super::super::{KeyUse, load_or_make, rotate};
use super::*;

fn key(digit: &str) -> Secret {
    let digits = digit.repeat(super::super::KEY_DIGITS);
    Secret::parse(digits.as_bytes()).expect("a key")
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().expect("a runtime")
}

#[test]
fn a_new_key_holds_with_its_first_use_and_the_old_one_ends() {
    let folder = Folder::new();
    folder.put(&key("a").digits(), 0o600);
    let (held, _) = load_or_make(&folder.0, KeyUse::Api).expect("there");
    assert!(held.accepts(&key("a")) && !held.accepts(&key("b")));
    // By hand: in place, then as another file, then by the command.
    folder.put(&key("b").digits(), 0o600);
    assert!(held.accepts(&key("b")) && !held.accepts(&key("a")));
    fs::write(folder.0.join("next"), key("c").digits()).expect("written");
    let mode = fs::metadata(folder.key()).expect("there").permissions();
    fs::set_permissions(folder.0.join("next"), mode).expect("changed");
    fs::rename(folder.0.join("next"), folder.key()).expect("renamed");
    assert!(held.accepts(&key("c")) && !held.accepts(&key("b")));
    let new = rotate(&folder.0, KeyUse::Api).expect("replaced");
    assert!(held.accepts(&new) && !held.accepts(&key("c")));
}

/// Nobody offers the new one, so nothing but the time has the node look.
#[test]
fn the_old_key_ends_within_a_second_by_itself() {
    let folder = Folder::new();
    folder.put(&key("a").digits(), 0o600);
    runtime().block_on(async {
        let (held, _) = load_or_make(&folder.0, KeyUse::Api).expect("there");
        rotate(&folder.0, KeyUse::Api).expect("replaced");
        assert!(held.accepts(&key("a")), "it looks at most once a second");
        tokio::time::sleep(LOOK_PAUSE).await;
        assert!(!held.accepts(&key("a")));
    });
}

#[test]
fn what_is_gone_or_wrong_leaves_the_last_good_key() {
    let folder = Folder::new();
    folder.put(&key("a").digits(), 0o600);
    let (held, _) = load_or_make(&folder.0, KeyUse::Api).expect("there");
    let stays = |what: &str| {
        assert!(!held.accepts(&key("b")), "{what}");
        assert!(held.accepts(&key("a")), "{what}");
    };
    fs::remove_file(folder.key()).expect("removed");
    stays("gone");
    for (text, mode) in [("", 0o600), ("half", 0o600), (&key("b").digits(), 0o644)] {
        folder.put(text, mode);
        stays(text);
    }
    fs::remove_file(folder.key()).expect("removed");
    fs::create_dir(folder.key()).expect("made");
    stays("a folder");
    fs::remove_dir(folder.key()).expect("removed");
    folder.put(&key("b").digits(), 0o600);
    assert!(held.accepts(&key("b")) && !held.accepts(&key("a")));
}

#[test]
fn it_does_not_show_itself() {
    let shown = format!("{:?}", HeldKey::fixed(key("a")));
    assert!(!shown.contains("aaaa"), "{shown}");
}
