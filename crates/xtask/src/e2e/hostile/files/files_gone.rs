//! Handles of what was deleted: of files, directories, snapshots and filesystems.

use std::net::TcpStream;

use anyhow::{Context, Result, ensure};

use super::Ground;
use super::calls::{CHANGES, PROCEDURES, expect_of_handle, expect_one_of};
use crate::e2e::load::Random;
use crate::e2e::nfs::procedure::COMMIT;
use crate::e2e::nfs::{How, status};
use crate::repo;

pub(super) fn all(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    files(ground)?;
    filesystem(ground)?;
    snapshot(ground)?;
    Ok(Vec::new())
}

/// Whatever has the name next has another handle.
fn files(ground: &Ground) -> Result<()> {
    let mut client = ground.client()?;
    // In the inode, in blocks, as a dvol.
    let mut gone = Vec::new();
    for bytes in [0, 100, 100_000, 1 << 20, 3 << 20] {
        let file = client.create(&ground.root, "gone")?;
        for offset in (0..bytes).step_by(1 << 20) {
            let piece = vec![9; (bytes - offset).min(1 << 20)];
            client.write(&file, offset as u64, &piece, How::Unstable)?;
        }
        client.remove(&ground.root, "gone")?;
        expect_of_handle(&mut client, &file, status::STALE)
            .with_context(|| format!("a removed file of {bytes} bytes"))?;
        gone.push(file);
    }
    for _ in 0..3 {
        let directory = client.make_directory(&ground.root, "gone")?;
        let inner = client.create(&directory, "inner")?;
        client.remove(&directory, "inner")?;
        client.remove_directory(&ground.root, "gone")?;
        gone.extend([directory, inner]);
    }
    let link = client.make_link(&ground.root, "gone", "anywhere")?;
    client.remove(&ground.root, "gone")?;
    gone.push(link);
    // A name that something else takes.
    let replaced = client.create(&ground.root, "gone")?;
    let other = client.create(&ground.root, "other")?;
    client.rename((&ground.root, "other"), (&ground.root, "gone"))?;
    ensure!(client.size(&other)? == 0, "a renamed file");
    client.remove(&ground.root, "gone")?;
    gone.extend([replaced, other]);
    for handle in &gone {
        expect_of_handle(&mut client, handle, status::STALE)?;
        ensure!(
            gone.iter().filter(|other| *other == handle).count() == 1,
            "two files had one handle"
        );
    }
    Ok(())
}

/// Another filesystem has the name then.
fn filesystem(ground: &Ground) -> Result<()> {
    let command = |words: &[&str]| repo::output(ground.node.command(words));
    let mut client = ground.client()?;
    let mut old = Vec::new();
    for _ in 0..2 {
        command(&["fs", "create", "doomed", "--owner", "0:0"])?;
        let root = client.mount("/doomed")?;
        let file = client.create(&root, "file")?;
        client.write(&file, 0, b"doomed", How::FileSync)?;
        ensure!(!old.contains(&root), "two filesystems had one handle");
        for handle in &old {
            expect_of_handle(&mut client, handle, status::STALE)
                .context("of a filesystem that was deleted, and another has its name")?;
        }
        old.extend([root, file]);
        command(&["fs", "delete", "doomed", "--force"])?;
        for handle in &old {
            expect_of_handle(&mut client, handle, status::STALE)
                .context("of a filesystem that was deleted")?;
        }
    }
    Ok(())
}

fn snapshot(ground: &Ground) -> Result<()> {
    let command = |words: &[&str]| repo::output(ground.node.command(words));
    let mut client = ground.client()?;
    command(&["fs", "snapshot", "create", "open", "gone"])?;
    let root = client.mount("/open@gone")?;
    let file = client.lookup(&root, "file")?;
    let file = file.map_err(|status| anyhow::anyhow!("a snapshot's file: {status}"))?;
    command(&["fs", "snapshot", "delete", "open", "gone"])?;
    for handle in [&root, &file] {
        for procedure in PROCEDURES {
            // That it can't be changed is as true as that it is gone. Linux says so to COMMIT, too.
            let expected: &[u32] = match CHANGES.contains(&procedure) || procedure == COMMIT {
                true => &[status::STALE, status::ROFS],
                false => &[status::STALE],
            };
            expect_one_of(&mut client, procedure, handle, expected)
                .context("of a snapshot that was deleted")?;
        }
    }
    Ok(())
}
