//! Directories in parts, while they change.

use std::collections::BTreeMap;

use flagstone_fs::{Cookie, Entry, FileError, Files};
use flagstone_sim::Rng;

use super::{Client, comparable, mode};

pub(crate) async fn parts_of_a_listing<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let directory = root.directory(top, "d").await.expect("makes");
    let empty = root.list_behind(directory, Cookie(0), 1).await;
    let empty = empty.expect("lists");
    let found: Vec<_> = empty.iter().map(|e| (&e.name[..], e.node)).collect();
    assert_eq!(found, [(&b"."[..], directory), (b"..", top)]);
    let mut expected = BTreeMap::new();
    for n in 0..30 {
        let name = format!("name {n}");
        let made = match n % 3 {
            0 => root.directory(directory, &name).await,
            1 => root.symlink(directory, &name, b"x").await,
            _ => root.file(directory, &name).await,
        };
        expected.insert(name.into_bytes(), made.expect("makes"));
    }
    let all = root.list_behind(directory, Cookie(0), 1000).await;
    let all = all.expect("lists");
    for count in [1, 2, 3, 7, 31, 32, 33] {
        let parts = root.list_behind(directory, Cookie(0), count).await;
        assert_eq!(parts.as_ref(), Ok(&all), "{count}");
    }
    for entry in &all {
        let attributes = entry.attributes.expect("they were asked for");
        assert_eq!(
            comparable(attributes),
            comparable(root.get(entry.node).await)
        );
        let behind = root.list_behind(directory, entry.cookie, 10).await;
        let place = all.iter().position(|other| other == entry);
        let place = place.expect("it is one of them");
        assert_eq!(behind.expect("lists"), all[place + 1..]);
    }
    let names = all.into_iter().skip(2);
    let names: BTreeMap<_, _> = names.map(|entry| (entry.name, entry.node)).collect();
    assert_eq!(names, expected);
    // None asked for, none given.
    let listing = fs.list(&root.caller, directory, Cookie(0), 0, true).await;
    let listing = listing.expect("lists");
    assert!(listing.entries.is_empty() && !listing.is_end);
    let listing = fs.list(&root.caller, directory, Cookie(0), 40, false).await;
    let listing = listing.expect("lists");
    assert!(
        listing
            .entries
            .iter()
            .all(|entry| entry.attributes.is_none())
    );
    assert_eq!(
        comparable(listing.directory),
        comparable(root.get(directory).await)
    );
    let top_listed = root.list_behind(top, Cookie(0), 2).await.expect("lists");
    assert_eq!(top_listed[1].node, top, "above the topmost there is none");
}

pub(crate) async fn errors_of_list<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "file").await.expect("makes");
    let link = root.symlink(top, "link", b".").await.expect("makes");
    for node in [file, link] {
        let listed = root.list_behind(node, Cookie(0), 1).await;
        assert_eq!(listed, Err(FileError::NotDirectory));
    }
    let all = root.list_behind(top, Cookie(0), 9).await.expect("lists");
    let last = all.last().expect("has entries").cookie;
    let listing = fs.list(&root.caller, top, last, 9, true).await;
    let listing = listing.expect("lists");
    assert!(listing.entries.is_empty() && listing.is_end);
    for cookie in [last.0 + 1, last.0 + 1000, u64::MAX] {
        let listed = root.list_behind(top, Cookie(cookie), 1).await;
        assert_eq!(listed, Err(FileError::BadCookie));
    }
}

async fn entry_of<F: Files>(root: &Client<F>, name: &str) -> Entry {
    let all = root.list_behind(root.top(), Cookie(0), 100).await;
    let mut all = all.expect("lists").into_iter();
    let found = all.find(|entry| entry.name == name.as_bytes());
    found.expect("it is there")
}

pub(crate) async fn cookies_are_never_given_twice<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let mut last = Cookie(0);
    for n in 0..10 {
        let made = root.file(top, "x").await;
        let cookie = entry_of(&root, "x").await.cookie;
        assert!(last < cookie, "new ones come behind");
        last = cookie;
        if n % 2 == 0 {
            root.rename((top, "x"), (top, "y")).await.expect("renames");
            root.rename((top, "y"), (top, "x")).await.expect("renames");
            let cookie = entry_of(&root, "x").await.cookie;
            assert!(last < cookie, "a name that comes back is another");
            last = cookie;
        }
        let file = made.expect("makes");
        root.link(file, top, "z").await.expect("links");
        root.remove(top, "x").await.expect("removes");
        assert!(last < entry_of(&root, "z").await.cookie);
        // The last name that was given a cookie is gone; the cookie isn't free.
        root.remove(top, "z").await.expect("removes");
    }
    root.file(top, "old").await.expect("makes");
    let new = root.file(top, "new").await.expect("makes");
    let cookie = entry_of(&root, "old").await.cookie;
    root.rename((top, "new"), (top, "old"))
        .await
        .expect("renames");
    let entry = entry_of(&root, "old").await;
    assert_eq!(
        (entry.cookie, entry.node),
        (cookie, new),
        "the name was there all the time"
    );
    root.set(new, mode(0o600)).await.expect("sets");
    root.write(new, 0, b"x").await.expect("writes");
    assert_eq!(entry_of(&root, "old").await.cookie, cookie);
}

pub(crate) async fn listings_go_on_while_names_come_and_go<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let directory = root.directory(top, seed.to_string()).await.expect("makes");
        for n in 0..60 {
            let name = format!("{}{n}", if n % 2 == 0 { "stays" } else { "goes" });
            root.file(directory, name).await.expect("makes");
        }
        let (mut behind, mut seen) = (Cookie(0), BTreeMap::new());
        let mut going: Vec<String> = (0..30).map(|n| format!("goes{}", 2 * n + 1)).collect();
        for round in 0.. {
            let count = 1 + rng.index(4);
            let listing = fs.list(&root.caller, directory, behind, count, true).await;
            let listing = listing.expect("a cookie holds for ever");
            for entry in &listing.entries {
                *seen.entry(entry.name.clone()).or_insert(0) += 1;
                behind = entry.cookie;
            }
            if listing.is_end || round == 200 {
                assert!(listing.is_end, "it ends though names are added");
                break;
            }
            for change in 0..rng.below(3) {
                let old = (!going.is_empty()).then(|| going.swap_remove(rng.index(going.len())));
                let (new, is_last) = (format!("new {round} {change}"), rng.below(3) > 0);
                match old {
                    Some(old) if is_last => {
                        root.remove(directory, old).await.expect("removes");
                    }
                    Some(old) => {
                        let renamed = root.rename((directory, &old), (directory, &new));
                        renamed.await.expect("renames");
                    }
                    None if round < 150 => drop(root.file(directory, new).await.expect("makes")),
                    None => {}
                }
            }
            // What was just listed is the worst that can go.
            let gone = listing
                .entries
                .last()
                .filter(|entry| entry.name.starts_with(b"goes"));
            if let Some(entry) = gone {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if let Some(place) = going.iter().position(|other| *other == name) {
                    going.swap_remove(place);
                    root.remove(directory, name).await.expect("removes");
                }
            }
        }
        for n in (0..60).step_by(2) {
            let name = format!("stays{n}").into_bytes();
            assert_eq!(seen.get(&name), Some(&1), "seed {seed}: {n}");
        }
        assert!(seen.values().all(|&count| count == 1), "none comes twice");
    }
}

pub(crate) async fn attributes_are_for_those_who_may_look_up<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    root.file(play, "file").await.expect("makes");
    let user = Client::user(&fs, 5, 5, &[]);
    for (bits, expected) in [
        (0o005, Ok(true)),
        (0o004, Ok(false)),
        (0o773, Err(FileError::Denied)),
    ] {
        root.set(play, mode(bits)).await.expect("sets");
        let listed = user.list_behind(play, Cookie(0), 9).await;
        let with_attributes = listed.map(|entries| {
            assert_eq!(entries.len(), 3);
            let with = entries.iter().filter(|entry| entry.attributes.is_some());
            match with.count() {
                0 => false,
                3 => true,
                _ => panic!("some have attributes: {entries:?}"),
            }
        });
        assert_eq!(with_attributes, expected, "{bits:o}");
    }
}
