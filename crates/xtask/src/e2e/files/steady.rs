//! A client that goes on whatever happens to its server, and knows what a crash may and may not lose.
//!
//! It mounts once. When its server is gone it tries to connect until the server is back, and sends the call that
//! was not answered once more, as it was. So its handles are from before all crashes, and what must not be done
//! twice comes twice: a name that it makes, renames or removes must be answered as the first time.
//!
//! Its file consists of sectors that say where they belong and which write has put them there (`load`). A write is
//! stable when it was answered so, or when a COMMIT has answered with the verifier that the write was answered
//! with [rfc1813 3.3.7] [rfc1813 3.3.21]. What isn't is sent again, as clients do. After each crash the file is read:
//!
//! - a sector holds a write that was sent to it, whole, and none older than its last stable one;
//! - nothing else ever appears, and the file has the size it had.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::e2e::load::{Random, SECTOR_BYTES, read_stamp, stamp};
use crate::e2e::nfs::{Client, Handle, How, status};
use crate::e2e::rpc::Rpc;

/// For how long a server may be away.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest write: 128 KiB.
const WRITE_SECTORS_MAX: u64 = 256;
/// It has so many names at most, beside its file.
const NAMES_MAX: usize = 20;

/// What one sector may hold.
#[derive(Clone, Default)]
struct Sector {
    /// The write that is stable here; zero for none, which reads as zeros.
    stable: u64,
    /// Later writes that were sent to it, oldest first.
    later: Vec<u64>,
}

/// A write that was answered as unstable.
#[derive(Clone, Copy, Debug)]
struct Unstable {
    number: u64,
    first: u64,
    sectors: u64,
    verifier: u64,
    /// How often the connection had been lost by then.
    lost: u32,
}

/// What one client has seen.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Seen {
    pub(super) calls: u64,
    pub(super) stable_writes: u64,
    pub(super) unstable_writes: u64,
    pub(super) commits: u64,
    /// Unstable writes that the verifier said might be lost.
    pub(super) sent_again: u64,
    pub(super) names: u64,
    pub(super) crashes: u64,
    pub(super) longest: Duration,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls: {} stable writes, {} unstable ones, {} commits, {} writes sent again, {} changes of \
             names; {} connections lost; the longest call took {} ms",
            self.calls,
            self.stable_writes,
            self.unstable_writes,
            self.commits,
            self.sent_again,
            self.names,
            self.crashes,
            self.longest.as_millis()
        )
    }
}

impl Seen {
    pub(super) fn add(&mut self, other: &Seen) {
        self.calls += other.calls;
        self.stable_writes += other.stable_writes;
        self.unstable_writes += other.unstable_writes;
        self.commits += other.commits;
        self.sent_again += other.sent_again;
        self.names += other.names;
        self.crashes += other.crashes;
        self.longest = self.longest.max(other.longest);
    }
}

/// See the module's page.
pub(super) struct Steady {
    name: String,
    client: Client,
    directory: Handle,
    file: Handle,
    sectors: u64,
    known: BTreeMap<u64, Sector>,
    unstable: Vec<Unstable>,
    next_number: u64,
    /// Those it has made and not removed.
    names: Vec<String>,
    next_name: u64,
    random: Random,
    /// Crashes after which the file was looked at.
    checked: u32,
    seen: Seen,
}

impl Steady {
    /// A client of its own directory, with a file of `bytes`.
    pub(super) fn start(
        port: u16,
        export: &str,
        index: u64,
        bytes: u64,
        seed: u64,
    ) -> Result<Steady> {
        let mut random = Random::new(seed ^ (index << 32));
        // Clients of one machine draw their numbers at random, too.
        let rpc = Rpc::connect(port)?.with_patience(PATIENCE, random.next() as u32);
        let mut client = Client::new(rpc);
        let root = client.mount(export)?;
        let name = format!("steady-{index}");
        let directory = client.make_directory(&root, &name)?;
        let file = client.create(&directory, "file")?;
        let mut steady = Steady {
            name,
            client,
            directory,
            file,
            sectors: bytes / SECTOR_BYTES as u64,
            known: BTreeMap::new(),
            unstable: Vec::new(),
            next_number: (index << 40) + 1,
            names: Vec::new(),
            next_name: 0,
            random,
            checked: 0,
            seen: Seen::default(),
        };
        // The file has its size, and its layout, from the beginning.
        let last = steady.sectors - 1;
        steady.write(last, 1, How::FileSync)?;
        Ok(steady)
    }

    /// Works until it is over. The crashes are for others to bring about.
    pub(super) fn run(mut self, is_over: &AtomicBool) -> Result<(Steady, Seen)> {
        while !is_over.load(Ordering::Acquire) {
            self.step().with_context(|| self.name.clone())?;
            if self.client.rpc.lost != self.checked {
                self.seen.crashes += 1;
                self.check()
                    .with_context(|| format!("{} after crash {}", self.name, self.seen.crashes))?;
            }
        }
        self.check().with_context(|| self.name.clone())?;
        self.seen.calls = self.client.calls;
        self.seen.longest = self.client.longest;
        let seen = self.seen;
        Ok((self, seen))
    }

    fn step(&mut self) -> Result<()> {
        match self.random.below(16) {
            0 => self.commit(),
            1 | 2 => self.change_names(),
            choice => {
                let (first, sectors) = self.pick_range();
                let how = match choice {
                    3..8 => How::FileSync,
                    _ => How::Unstable,
                };
                self.write(first, sectors, how)
            }
        }
    }

    /// Mostly whole blocks, often parts of one, sometimes many; hot spots make overwrites common.
    fn pick_range(&mut self) -> (u64, u64) {
        let blocks = self.sectors / 8;
        let hot = self.random.below(2) == 0;
        let first = 8 * self.random.below(if hot { blocks.min(32) } else { blocks });
        let (offset, sectors) = match self.random.below(4) {
            0 | 1 => (0, 8),
            2 => (self.random.below(8), 1 + self.random.below(20)),
            _ => (0, 1 + self.random.below(WRITE_SECTORS_MAX)),
        };
        let first = first + offset;
        (first, sectors.min(self.sectors - first))
    }

    fn write(&mut self, first: u64, sectors: u64, how: How) -> Result<()> {
        let number = self.next_number;
        self.next_number += 1;
        let mut data = Vec::with_capacity(sectors as usize * SECTOR_BYTES);
        for sector in first..first + sectors {
            data.extend(stamp(sector, number));
            // From here on it may be there, answered or not.
            self.known.entry(sector).or_default().later.push(number);
        }
        let offset = first * SECTOR_BYTES as u64;
        let wrote = self.client.write(&self.file, offset, &data, how)?;
        let write = Unstable {
            number,
            first,
            sectors,
            verifier: wrote.verifier,
            lost: self.client.rpc.lost,
        };
        if wrote.is_stable {
            self.seen.stable_writes += 1;
            self.stable(write);
        } else {
            self.seen.unstable_writes += 1;
            self.unstable.push(write);
        }
        Ok(())
    }

    /// A stable write makes what came before it in its sectors history.
    fn stable(&mut self, write: Unstable) {
        for sector in write.first..write.first + write.sectors {
            if let Some(known) = self.known.get_mut(&sector) {
                known.stable = known.stable.max(write.number);
                known.later.retain(|number| *number > write.number);
            }
        }
    }

    /// Has everything made stable. What the node has forgotten is sent again.
    fn commit(&mut self) -> Result<()> {
        let lost = self.settle()?;
        self.seen.commits += 1;
        self.send_again(lost)
    }

    fn send_again(&mut self, lost: Vec<Unstable>) -> Result<()> {
        self.seen.sent_again += lost.len() as u64;
        for write in lost {
            self.write(write.first, write.sectors, How::FileSync)?;
        }
        Ok(())
    }

    /// COMMIT. Returns the writes that may be lost: the verifier they were answered with is another one.
    fn settle(&mut self) -> Result<Vec<Unstable>> {
        let verifier = self.client.commit(&self.file)?;
        let mut lost = Vec::new();
        for write in std::mem::take(&mut self.unstable) {
            if write.verifier == verifier {
                self.stable(write);
                continue;
            }
            ensure!(
                write.lost != self.client.rpc.lost,
                "the write verifier has changed from {:#x} to {verifier:#x}, and there was no crash",
                write.verifier
            );
            lost.push(write);
        }
        Ok(lost)
    }

    /// Names: made, renamed, removed. Each is done once, whether its call comes twice or not.
    fn change_names(&mut self) -> Result<()> {
        self.seen.names += 1;
        let directory = self.directory.clone();
        let name = format!("name-{}", self.next_name);
        match self.random.below(3) {
            _ if self.names.is_empty() => {}
            0 if self.names.len() < NAMES_MAX => {}
            1 => {
                self.next_name += 1;
                let old = self.take_name();
                self.client
                    .rename((&directory, &old), (&directory, &name))?;
                self.names.push(name);
                return Ok(());
            }
            _ => {
                let old = self.take_name();
                return self.client.remove(&directory, old);
            }
        }
        self.next_name += 1;
        self.client.create(&directory, &name)?;
        self.names.push(name);
        Ok(())
    }

    fn take_name(&mut self) -> String {
        let at = self.random.below(self.names.len() as u64) as usize;
        self.names.swap_remove(at)
    }

    /// Reads everything and holds it against what is known; then takes it as stable.
    fn check(&mut self) -> Result<()> {
        // What was answered with the verifier that is valid now has to be there.
        let lost = self.settle()?;
        let bytes = self.sectors as usize * SECTOR_BYTES;
        let data = self.client.read(&self.file, 0, bytes + 1)?;
        ensure!(data.len() == bytes, "the file has {} bytes", data.len());
        for (sector, bytes) in (0..).zip(data.chunks_exact(SECTOR_BYTES)) {
            let number = read_stamp(sector, bytes)?;
            let known = self.known.entry(sector).or_default();
            ensure!(
                number >= known.stable,
                "sector {sector} lost stable write {}: it holds {number}",
                known.stable
            );
            ensure!(
                number == known.stable || known.later.contains(&number),
                "sector {sector} holds write {number}, but {} is stable there and {:?} later",
                known.stable,
                known.later
            );
        }
        let mut expected = self.names.clone();
        expected.push("file".to_owned());
        expected.sort();
        let found = self.client.names(&self.directory)?;
        ensure!(
            found == expected,
            "the names are {found:?}, not {expected:?}"
        );
        // Crashes while it was being read are looked at next time.
        self.checked = self.client.rpc.lost;
        self.send_again(lost)
    }

    /// Who mounts anew is given the same handles.
    pub(super) fn check_handles(&mut self, fresh: &mut Client, root: &[u8]) -> Result<()> {
        let directory = fresh.lookup(root, &self.name)?;
        ensure!(
            directory == Ok(self.directory.clone()),
            "{}'s directory has another handle",
            self.name
        );
        let file = fresh.lookup(&self.directory, "file")?;
        ensure!(file == Ok(self.file.clone()), "{}'s file", self.name);
        let none = fresh.lookup(&self.directory, "none")?;
        ensure!(none == Err(status::NOENT), "a name that nobody made");
        Ok(())
    }
}
