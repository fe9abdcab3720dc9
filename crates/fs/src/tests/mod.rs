//! What is seen from inside alone: what of the background is done when, and what is in memory.

#![allow(dead_code)] // Each module uses its part.

mod background;
mod damage;
mod expiry;
mod reaper;
mod rollback;
mod snapshots;

use flagstone_device::engine::{Engine, EngineOptions, FormatOptions, format_device};
use flagstone_pagestore::StoreOptions;
use flagstone_platform::IoBuf;
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};

use crate::files::{Caller, Creation, FileId, Files, New, Node, Stability, Token};
use crate::filesystem::{Filesystem, Inner};
use crate::key::Keys;
use crate::system::{FilesystemOptions, Filesystems};
use crate::{SetAttributes, Settings};

/// A filesystem whose files become dvols with more than 64 KiB.
struct Stage {
    platform: SimPlatform,
    disk: SimDisk,
    engine: Engine<SimPlatform>,
    all: Filesystems<SimPlatform>,
    fs: Filesystem<SimPlatform>,
}

const PROMOTE_BYTES: u64 = 64 << 10;

async fn open_engine(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions {
        reuse_soon: true,
        ..EngineOptions::default()
    };
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

async fn open_all(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
) -> Filesystems<SimPlatform> {
    open_all_with(platform, engine, StoreOptions::default()).await
}

async fn open_all_with(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
    store: StoreOptions,
) -> Filesystems<SimPlatform> {
    let options = FilesystemOptions {
        store,
        ..FilesystemOptions::default()
    };
    let opened = Filesystems::open(platform.clone(), engine.clone(), options).await;
    opened.expect("opens")
}

/// Runs a test, and proves that everything is whole afterwards.
fn run(test: impl AsyncFnOnce(&mut Stage) + 'static) {
    run_on(DiskConfig::new(256 << 20), test);
}

/// The same on a disk of some kind.
fn run_on(config: DiskConfig, test: impl AsyncFnOnce(&mut Stage) + 'static) {
    run_with(config, StoreOptions::default(), test);
}

/// The same with no frame in the journal: the device can lose each group, by a write of data that fails.
fn run_losing(test: impl AsyncFnOnce(&mut Stage) + 'static) {
    let store = StoreOptions {
        journaled_bytes: 0,
        ..StoreOptions::default()
    };
    run_with(DiskConfig::new(256 << 20), store, test);
}

fn run_with(config: DiskConfig, store: StoreOptions, test: impl AsyncFnOnce(&mut Stage) + 'static) {
    let (world, disk) = (World::new(1), SimDisk::new(config));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let device = platform.open(&disk);
        let options = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(disk.size_bytes())
        };
        let formatted = format_device(&platform, &device, options).await;
        formatted.expect("formats");
        let engine = open_engine(&platform, &disk).await;
        let all = open_all_with(&platform, &engine, store).await;
        let settings = Settings {
            promote_bytes: PROMOTE_BYTES,
            ..Settings::default()
        };
        let fs = all.create_with("files", settings).await.expect("makes");
        let mut stage = Stage {
            platform,
            disk,
            engine,
            all,
            fs,
        };
        test(&mut stage).await;
        stage.check().await;
        stage.all.stop().await;
        stage.engine.stop().await.expect("stops");
    });
    let _ = world.crash();
}

impl Stage {
    /// Stops the filesystems and opens them again.
    async fn reopen(&mut self) {
        self.all.stop().await;
        self.all = open_all(&self.platform, &self.engine).await;
        self.fs = self.all.open_by_name("files").await.expect("is there");
    }

    fn inner(&self) -> &Inner<SimPlatform> {
        &self.fs.inner
    }

    fn keys(&self) -> Keys {
        self.inner().keys
    }

    async fn check(&self) {
        for (info, report) in self.all.check().await.expect("can be looked at") {
            assert_eq!(report.problems, [""; 0], "{info:?}");
        }
    }

    async fn sleep_ns(&self, ns: u64) {
        use flagstone_platform::Platform;
        self.platform.sleep_ns(ns).await;
    }

    async fn make(&self, name: &str) -> FileId {
        self.make_by(&Caller::default(), name).await
    }

    async fn make_by(&self, by: &Caller, name: &str) -> FileId {
        let new = New::File(Creation::Unchecked);
        let (top, set) = (Node::live(self.fs.root()), SetAttributes::default());
        let made = self.fs.make(by, top, name.as_bytes(), new, set).await;
        made.expect("makes").node.file
    }

    async fn write(&self, file: FileId, byte: u8, len: usize) {
        let (by, data) = (Caller::default(), IoBuf::copy_of(&vec![byte; len]));
        let node = Node::live(file);
        let written = self.fs.write(&by, node, 0, data, Stability::Stable);
        written.await.expect("writes");
    }

    async fn put(&self, key: &[u8], value: &[u8]) {
        let mut tx = self.inner().tree.begin();
        tx.put(key, value).expect("fits");
        tx.commit().await.expect("commits");
    }

    async fn delete(&self, key: &[u8]) {
        let mut tx = self.inner().tree.begin();
        tx.delete(key).expect("fits");
        tx.commit().await.expect("commits");
    }

    /// Keys of the tree in a range, with their values.
    async fn scan(&self, (from, to): (Vec<u8>, Vec<u8>)) -> Vec<(Vec<u8>, Vec<u8>)> {
        let found = self.inner().tree.scan(&from, &to, usize::MAX).await;
        found.expect("reads").value
    }
}

/// A call of a client.
fn call(client: u64, call: u64) -> Caller {
    Caller {
        token: Some(Token { client, call }),
        ..Caller::default()
    }
}
