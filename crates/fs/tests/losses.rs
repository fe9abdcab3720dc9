//! What is said of large files while the page store loses commits: that is not what they are written with.

use crate::conformance;
use crate::support;

use std::cell::Cell;
use std::rc::Rc;

use flagstone_fs::{Caller, Creation, Files, New, Node, SetAttributes, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, FaultConfig, Latency, SimDisk, SimPlatform, World};

use conformance::Client;
use support::{MIB, TestFs, begin_losing};

const PAGE: u64 = 4096;

/// What all who work with the file know.
struct Shared {
    fs: TestFs,
    platform: SimPlatform,
    root: Node,
    file: Node,
    /// Where the next write goes that makes it longer.
    next: Cell<u64>,
    /// The end of the longest that was answered.
    answered: Cell<u64>,
    working: Cell<u32>,
}

impl Shared {
    async fn write(&self, offset_bytes: u64) -> bool {
        let data = IoBuf::copy_of(&[7; PAGE as usize]);
        let by = Caller::default();
        let written = self
            .fs
            .write(&by, self.file, offset_bytes, data, Stability::Unstable);
        written.await.is_ok()
    }

    async fn append(&self) {
        let at = self.next.replace(self.next.get() + PAGE);
        if self.write(at).await {
            self.answered.set(self.answered.get().max(at + PAGE));
        }
    }

    /// Something for the page store, whose groups fail now and then.
    async fn make(&self, name: &str) {
        let (by, new) = (Caller::default(), New::File(Creation::Unchecked));
        let set = SetAttributes::default();
        let made = self.fs.make(&by, self.root, name.as_bytes(), new, set);
        let _ = made.await;
    }

    async fn work(self: Rc<Self>, who: u64) {
        for round in 0..40 {
            match who {
                0..3 => self.append().await,
                3..5 => drop(self.write(0).await),
                5 => {
                    while self.working.get() > 1 {
                        let by = Caller::default();
                        drop(self.fs.read(&by, self.file, 0, 100).await);
                        self.platform.sleep_ns(7_000).await;
                    }
                }
                _ => {
                    self.platform.sleep_ns(700_000 + who * 300_000).await;
                    self.make(&format!("{who}-{round}")).await;
                }
            }
        }
        self.working.set(self.working.get() - 1);
    }
}

/// Gives how often the verifier changed.
fn unstable_writes_while_commits_are_lost(seed: u64) -> u64 {
    let mut config = DiskConfig::new(96 * MIB);
    // Writes take very different times, so that the first of two may be the last that is there.
    config.latency = Latency {
        read_ns: 1_000..=5_000,
        write_ns: 5_000..=3_000_000,
        flush_ns: 10_000..=50_000,
        discard_ns: 1_000..=2_000,
        per_kib_ns: 1,
    };
    let disk = SimDisk::new(config);
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disk.clone());
    let losses = world.block_on(0, async move {
        let (_engine, _all, fs) = begin_losing(&platform, &on, 0).await;
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        let mut verifier = root
            .write(file, 0, &[1; PAGE as usize])
            .await
            .expect("writes")
            .verifier;
        on.set_faults(FaultConfig {
            write_error: 0.15,
            ..FaultConfig::default()
        });
        let shared = Rc::new(Shared {
            root: root.top(),
            file,
            next: Cell::new(PAGE),
            answered: Cell::new(PAGE),
            working: Cell::new(8),
            platform: platform.clone(),
            fs,
        });
        for who in 0..8 {
            platform.spawn(shared.clone().work(who));
        }
        let mut losses = 0;
        while shared.working.get() > 0 {
            platform.sleep_ns(20_000).await;
            let expected = shared.answered.get();
            if let Ok(found) = shared.fs.attributes(file).await {
                let size = found.size_bytes;
                assert!(
                    size >= expected,
                    "seed {seed}: {size} bytes, and {expected} were answered"
                );
            }
            let (by, data) = (Caller::default(), IoBuf::copy_of(&[7; PAGE as usize]));
            let written = shared.fs.write(&by, file, 0, data, Stability::Unstable);
            if let Ok(written) = written.await {
                losses += u64::from(
                    std::mem::replace(&mut verifier, written.verifier) != written.verifier,
                );
            }
        }
        losses
    });
    let _ = world.crash();
    losses
}

/// Two images of one file in memory, of which one took back what the other had said: seeds 100 and 227 did.
#[test]
fn a_large_file_does_not_get_shorter_when_commits_are_lost() {
    let seeds = (0..60).chain([100, 227]);
    let losses: u64 = seeds.map(unstable_writes_while_commits_are_lost).sum();
    assert!(losses > 30, "{losses}");
}
