//! Bytes of regular files.

use flagstone_fs::{FileError, FileKind, Files, New, SetAttributes, SetTime, Stability, Timestamp};
use flagstone_platform::IoBuf;
use flagstone_sim::Rng;

use super::{Client, NOTHING, assert_changed, comparable, size};

pub(crate) async fn writes<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let file = root.file(root.top(), "file").await.expect("makes");
    for (offset, data, expected) in [
        (0, "begin", "begin"),
        (5, " and go on", "begin and go on"),
        (2, "G", "beGin and go on"),
        (14, "ff", "beGin and go off"),
    ] {
        let before = root.get(file).await;
        let written = root.write(file, offset, data.as_bytes()).await;
        let after = root.get(file).await;
        assert_changed(before, written.expect("writes").changes, after);
        assert!(before.modified < after.modified);
        assert_eq!(after.accessed, before.accessed);
        assert_eq!(after.size_bytes, expected.len() as u64);
        let read = root.read(file, 0, 100).await;
        assert_eq!(read, Ok(expected.as_bytes().to_vec()));
    }
    let before = root.get(file).await;
    for offset in [0, 3, 1000, u64::MAX] {
        let written = root.write(file, offset, b"").await.expect("writes nothing");
        assert_eq!(comparable(written.changes.after), comparable(before));
    }
    assert_eq!(root.get(file).await, before, "nothing is no change");
}

pub(crate) async fn commits<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let file = root.file(root.top(), "file").await.expect("makes");
    let data = IoBuf::copy_of(b"data");
    let unstable = fs.write(&root.caller, file, 0, data, Stability::Unstable);
    let unstable = unstable.await.expect("writes");
    let stable = root.write(file, 4, b"data").await.expect("writes");
    let before = root.get(file).await;
    let committed = fs.commit(&root.caller, file).await.expect("commits");
    assert_eq!(committed.stability, Stability::Stable);
    assert_eq!(comparable(committed.changes.after), comparable(before));
    assert_eq!(committed.changes.before.changed, before.changed);
    assert_eq!(unstable.verifier, committed.verifier, "nothing was lost");
    assert_eq!(stable.verifier, committed.verifier);
}

pub(crate) async fn the_end_of_a_file<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let file = root.file(root.top(), "file").await.expect("makes");
    // What `read` checks is the point here.
    for offset in [0, 1, u64::MAX] {
        assert_eq!(root.read(file, offset, 10).await, Ok(vec![]));
    }
    let content: Vec<u8> = (0..10_000_u32).map(|n| (n % 251) as u8).collect();
    root.write(file, 0, &content).await.expect("writes");
    for (offset, len) in [
        (0, 0),
        (0, 1),
        (0, 9_999),
        (0, 10_000),
        (0, 10_001),
        (0, 1 << 20),
        (4095, 2),
        (4096, 4096),
        (9_999, 1),
        (9_999, 2),
        (10_000, 0),
        (10_000, 1),
        (10_001, 1),
        (1 << 62, 1 << 20),
        (u64::MAX, 1 << 20),
    ] {
        let read = root.read(file, offset, len).await.expect("reads");
        let start = offset.min(10_000) as usize;
        let end = (start + len as usize).min(10_000);
        assert_eq!(read, content[start..end], "{offset} {len}");
    }
}

pub(crate) async fn holes<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let file = root.file(root.top(), "file").await.expect("makes");
    let far = (64 << 20).min(fs.size_max_bytes() - 10);
    root.write(file, far, b"end").await.expect("writes");
    let attributes = root.get(file).await;
    assert_eq!(attributes.size_bytes, far + 3);
    assert!(
        attributes.used_bytes <= 1 << 20,
        "what wasn't written takes nothing"
    );
    assert_eq!(root.read(file, 0, 100_000).await, Ok(vec![0; 100_000]));
    assert_eq!(root.read(file, far - 3, 9).await, Ok(b"\0\0\0end".to_vec()));
    // In the middle, at no border of anything.
    root.write(file, 123_457, b"mid").await.expect("writes");
    let around = root.read(file, 123_450, 20).await;
    let expected = [&[0; 7][..], b"mid", &[0; 10]].concat();
    assert_eq!(around, Ok(expected));
    assert_eq!(root.get(file).await.size_bytes, far + 3);
}

pub(crate) async fn cut_and_extended_again<F: Files>(fs: F) {
    let root = Client::root(&fs);
    for len in [10_usize, 600, 5_000, 70_000, 300_000] {
        let name = len.to_string();
        let file = root.file(root.top(), &name).await.expect("makes");
        root.write(file, 0, &vec![7; len]).await.expect("writes");
        for cut in [len - 1, len / 2, 5, 0] {
            let before = root.get(file).await;
            let after = root.set(file, size(cut as u64)).await.expect("cuts");
            assert_eq!(after.size_bytes, cut as u64);
            assert!(before.modified < after.modified && before.changed < after.changed);
            let read = root.read(file, 0, 1 << 20).await;
            assert_eq!(read, Ok(vec![7; cut]));
            let longer = len as u64 + 1_000;
            let after = root.set(file, size(longer)).await.expect("extends");
            assert_eq!(after.size_bytes, longer);
            let mut expected = vec![7; cut];
            expected.resize(longer as usize, 0);
            let read = root.read(file, 0, 1 << 20).await;
            assert_eq!(read, Ok(expected), "{len} {cut}");
        }
        // By a write behind the end.
        root.write(file, 0, &[7; 10]).await.expect("writes");
        root.set(file, size(3)).await.expect("cuts");
        root.write(file, 12, b"x").await.expect("writes");
        let read = root.read(file, 0, 100).await;
        assert_eq!(read, Ok(b"\x07\x07\x07\0\0\0\0\0\0\0\0\0x".to_vec()));
        let same = root.get(file).await;
        let after = root.set(file, size(13)).await.expect("sets");
        assert!(
            same.modified < after.modified,
            "also if it is the size already"
        );
    }
}

pub(crate) async fn the_largest_file<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let file = root.file(root.top(), "file").await.expect("makes");
    let max = fs.size_max_bytes();
    for (offset, len) in [
        (max, 1),
        (max - 1, 2),
        (u64::MAX, 1),
        (u64::MAX - 5, 1 << 20),
    ] {
        let written = root.write(file, offset, &vec![1; len]).await;
        assert_eq!(written, Err(FileError::TooLarge), "{offset} {len}");
    }
    if let Some(too_large) = max.checked_add(1) {
        let set = root.set(file, size(too_large)).await;
        assert_eq!(set, Err(FileError::TooLarge));
    }
    assert_eq!(root.get(file).await.size_bytes, 0, "nothing has changed");
    root.write(file, max - 1, b"x").await.expect("fits");
    assert_eq!(root.get(file).await.size_bytes, max);
    assert_eq!(root.read(file, max - 2, 5).await, Ok(b"\0x".to_vec()));
    root.set(file, size(0)).await.expect("cuts");
    root.set(file, size(max)).await.expect("extends");
    assert_eq!(root.read(file, max - 2, 5).await, Ok(b"\0\0".to_vec()));
}

pub(crate) async fn what_may_not_be_read_or_written<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let link = root.symlink(top, "link", b"file").await.expect("makes");
    let pipe = New::Special(FileKind::Pipe);
    let pipe = root.make(top, "pipe", pipe, NOTHING).await.expect("makes");
    for (node, error) in [
        (top, FileError::IsDirectory),
        (link, FileError::Invalid),
        (pipe, FileError::Invalid),
    ] {
        let before = root.get(node).await;
        assert_eq!(root.read(node, 0, 1).await.map(drop), Err(error));
        assert_eq!(root.write(node, 0, b"x").await.map(drop), Err(error));
        assert_eq!(root.write(node, 0, b"").await.map(drop), Err(error));
        let committed = fs.commit(&root.caller, node).await;
        assert_eq!(committed.map(drop), Err(error));
        assert_eq!(root.set(node, size(0)).await.map(drop), Err(error));
        assert_eq!(root.get(node).await, before);
    }
}

/// Files that grow from nothing through whatever ways of keeping them there are, written, cut and read
/// anywhere.
pub(crate) async fn random_writes_beside_a_plain_vector<F: Files>(fs: F) {
    let root = Client::root(&fs);
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let name = seed.to_string();
        let file = root.file(root.top(), &name).await.expect("makes");
        let mut plain: Vec<u8> = Vec::new();
        let reach = [500, 5_000, 40_000, 200_000, 700_000, 2_500_000][seed as usize];
        let reach = reach.min(fs.size_max_bytes() / 2);
        for _ in 0..60 {
            let offset = rng.below(reach);
            // Now and then whole blocks.
            let offset = if rng.coin() {
                offset
            } else {
                offset / 4096 * 4096
            };
            let len = 1 + rng.below(1 + reach / 4) as usize;
            match rng.below(8) {
                0 => {
                    root.set(file, size(offset)).await.expect("sets");
                    plain.resize(offset as usize, 0);
                }
                1..=4 => {
                    let mut data = vec![0; len];
                    rng.fill(&mut data);
                    root.write(file, offset, &data).await.expect("writes");
                    let end = offset as usize + len;
                    plain.resize(plain.len().max(end), 0);
                    plain[offset as usize..end].copy_from_slice(&data);
                }
                _ => {
                    let read = root.read(file, offset, len as u32).await;
                    let start = plain.len().min(offset as usize);
                    let end = plain.len().min(start + len);
                    assert!(read == Ok(plain[start..end].to_vec()), "seed {seed}");
                }
            }
            assert_eq!(root.get(file).await.size_bytes, plain.len() as u64);
        }
        let read = root.read(file, 0, 8 << 20).await;
        assert!(read == Ok(plain), "seed {seed}");
    }
    // Times that were set stay until the next write.
    let file = root.lookup(root.top(), "0").await.expect("is there");
    let time = Timestamp::default();
    let set = SetAttributes {
        modified: SetTime::To(time),
        ..NOTHING
    };
    assert_eq!(root.set(file, set).await.expect("sets").modified, time);
    root.write(file, 0, b"x").await.expect("writes");
    assert_ne!(root.get(file).await.modified, time);
}
