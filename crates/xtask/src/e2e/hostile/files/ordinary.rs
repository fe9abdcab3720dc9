//! A client that does what clients do, in a filesystem of its own, and notes how long it waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::e2e::load::Random;
use crate::e2e::nfs::{Client, How, status};
use crate::e2e::rpc::Rpc;

/// What its files have: in the inode, in blocks, and as a dvol.
const SIZES: [usize; 3] = [300, 70_000, 1_500_000];
/// How it writes them.
const PIECE_BYTES: usize = 128 << 10;
const LINKS: usize = 3;

/// One that is at work.
pub(super) struct Ordinary {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Experience>>,
}

/// What it has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experience {
    pub(super) calls: u64,
    pub(super) longest: Duration,
}

impl Ordinary {
    /// Starts one with a connection that has to last.
    pub(super) fn start(port: u16, export: &'static str, seed: u64) -> Ordinary {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut client = Client::new(Rpc::connect(port)?);
            let root = client.mount(export)?;
            let mut random = Random::new(seed);
            loop {
                one_round(&mut client, &root, &mut random)?;
                // At least one round, whoever is quicker.
                if over.load(Ordering::Acquire) {
                    return Ok(Experience {
                        calls: client.calls,
                        longest: client.longest,
                    });
                }
            }
        });
        Ordinary { is_over, thread }
    }

    /// Has it end its round.
    pub(super) fn finish(self) -> Result<Experience> {
        self.is_over.store(true, Ordering::Release);
        let seen = self.thread.join();
        seen.map_err(|_| anyhow::anyhow!("the ordinary client panicked"))?
            .context("the ordinary client")
    }
}

/// A directory is made, filled, read, renamed in and removed. Everything has to succeed.
fn one_round(client: &mut Client, root: &[u8], random: &mut Random) -> Result<()> {
    let name = format!("round-{:x}", random.next());
    let directory = client.make_directory(root, &name)?;
    let mut expected = Vec::new();
    for (index, bytes) in SIZES.into_iter().enumerate() {
        let content: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
        let file = client.create(&directory, &format!("file-{index}"))?;
        write(client, &file, &content, random)?;
        let found = client.read(&file, 0, bytes + 1)?;
        ensure!(found == content, "a file of {bytes} bytes holds others");
        ensure!(client.size(&file)? == bytes as u64, "a file's size");
        expected.push(format!("file-{index}"));
    }
    for index in 0..LINKS {
        client.make_link(&directory, &format!("link-{index}"), "anywhere")?;
        expected.push(format!("link-{index}"));
    }
    let found = client.names(&directory)?;
    ensure!(found == expected, "a directory has the names {found:?}");
    for name in expected {
        let other = format!("{name}-renamed");
        client.rename((&directory, &name), (&directory, &other))?;
        let old = client.lookup(&directory, &name)?;
        ensure!(old == Err(status::NOENT), "a renamed file has both names");
        client.remove(&directory, &other)?;
    }
    client.remove_directory(root, &name)
}

fn write(client: &mut Client, file: &[u8], content: &[u8], random: &mut Random) -> Result<()> {
    let how = match random.below(2) {
        0 => How::Unstable,
        _ => How::FileSync,
    };
    let mut verifiers = Vec::new();
    for (index, piece) in content.chunks(PIECE_BYTES).enumerate() {
        let wrote = client.write(file, (index * PIECE_BYTES) as u64, piece, how)?;
        if !wrote.is_stable {
            verifiers.push(wrote.verifier);
        }
    }
    if how == How::Unstable {
        let verifier = client.commit(file)?;
        ensure!(
            verifiers.iter().all(|said| *said == verifier),
            "the write verifier changed, and the node was there all the time"
        );
    }
    Ok(())
}
