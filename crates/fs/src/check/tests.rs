//! What a check finds: each kind of damage is done to a filesystem that is whole, behind its back.

use flagstone_btree::Part;
use flagstone_device::engine::{
    Attributes as DvolAttributes, CreateDvol, Engine, EngineOptions, FormatOptions, format_device,
};
use flagstone_pagestore::{ExtentId, Geometry};
use flagstone_platform::IoBuf;
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};

use super::*;
use crate::change::versions;
use crate::files::{Caller, Creation, Files, New, Node, Stability};
use crate::object::Said;
use crate::system::{FilesystemOptions, Filesystems};
use crate::{SetAttributes, Settings};

/// A filesystem with a directory, a file in it, one beside it and a large one. The file was written to since a snapshot.
struct Stage {
    engine: Engine<SimPlatform>,
    fs: Filesystem<SimPlatform>,
    directory: FileId,
    file: FileId,
    other: FileId,
    large: FileId,
}

const SNAPSHOT: u32 = 1;

impl Stage {
    async fn begin(platform: &SimPlatform, disk: &SimDisk) -> (Filesystems<SimPlatform>, Stage) {
        let device = platform.open(disk);
        let options = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(disk.size_bytes())
        };
        let formatted = format_device(platform, &device, options).await;
        formatted.expect("formats");
        let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
        let (superblock, shared) = prepared.expect("has a superblock");
        let options = EngineOptions::default();
        let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
        let engine = opened.await.expect("opens").0;
        let options = FilesystemOptions::default();
        let all = Filesystems::open(platform.clone(), engine.clone(), options).await;
        let all = all.expect("opens");
        let settings = Settings {
            promote_bytes: 64 << 10,
            ..Settings::default()
        };
        let fs = all.create_with("files", settings).await.expect("makes");
        let top = fs.root();
        let new = New::Directory;
        let directory = make(&fs, top, "directory", new).await;
        let file = make(&fs, directory, "file", New::File(Creation::Guarded)).await;
        let other = make(&fs, top, "other", New::File(Creation::Guarded)).await;
        let large = make(&fs, top, "large", New::File(Creation::Guarded)).await;
        for (file, len) in [(file, 20_000), (other, 9_000), (large, 200_000)] {
            write(&fs, file, len).await;
        }
        fs.take_snapshot("snapshot").await.expect("takes one");
        write(&fs, file, 20_000).await;
        let stage = Stage {
            engine,
            fs,
            directory,
            file,
            other,
            large,
        };
        (all, stage)
    }

    /// The newest version of a key, and its value.
    async fn newest(&self, key: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (from, to) = versions(key, u32::MAX);
        let found = self.fs.inner.tree.scan(&from, &to, 1).await;
        found.expect("reads").value.pop().expect("is there")
    }

    async fn put(&self, key: &[u8], value: &[u8]) {
        let mut tx = self.fs.inner.tree.begin();
        tx.put(key, value).expect("fits");
        tx.commit().await.expect("commits");
    }

    async fn delete(&self, key: &[u8]) {
        let mut tx = self.fs.inner.tree.begin();
        tx.delete(key).expect("fits");
        tx.commit().await.expect("commits");
    }

    async fn change_inode(&self, file: FileId, change: impl FnOnce(&mut Inode)) {
        let (key, value) = self.newest(&self.keys().inode(file)).await;
        let mut inode = Inode::decode(file, &value).expect("is an inode");
        change(&mut inode);
        self.put(&key, &inode.encode()).await;
    }

    fn keys(&self) -> key::Keys {
        self.fs.inner.keys
    }

    /// The first block of the file that isn't large.
    async fn block(&self, file: FileId) -> (Vec<u8>, BlockValue) {
        let (key, value) = self.newest(&self.keys().block(file, 0)).await;
        (key, BlockValue::decode(&value).expect("is a block"))
    }
}

async fn make(fs: &Filesystem<SimPlatform>, parent: FileId, name: &str, new: New<'_>) -> FileId {
    let by = Caller::default();
    let parent = Node::live(parent);
    let set = SetAttributes::default();
    let made = fs.make(&by, parent, name.as_bytes(), new, set).await;
    made.expect("makes").node.file
}

async fn write(fs: &Filesystem<SimPlatform>, file: FileId, len: usize) {
    let (by, data) = (Caller::default(), IoBuf::copy_of(&vec![7; len]));
    let written = fs.write(&by, Node::live(file), 0, data, Stability::Stable);
    written.await.expect("writes");
}

/// What the check says after some damage.
fn problems_after(damage: impl AsyncFnOnce(&Stage) + 'static) -> Vec<String> {
    let world = World::new(1);
    let (platform, disk) = (world.platform(0), SimDisk::new(DiskConfig::new(256 << 20)));
    world.block_on(0, async move {
        let (_all, stage) = Stage::begin(&platform, &disk).await;
        let whole = stage.fs.check().await.expect("can be looked at");
        assert_eq!(whole.problems, [""; 0]);
        assert_eq!((whole.files, whole.objects, whole.snapshots), (5, 1, 1));
        damage(&stage).await;
        stage.fs.check().await.expect("can be looked at").problems
    })
}

/// What is said of all filesystems, and how far it says it has come.
fn problems_of_all(damage: impl AsyncFnOnce(&Stage) + 'static) -> (Vec<String>, (u64, u64)) {
    let world = World::new(1);
    let (platform, disk) = (world.platform(0), SimDisk::new(DiskConfig::new(256 << 20)));
    world.block_on(0, async move {
        let (all, stage) = Stage::begin(&platform, &disk).await;
        damage(&stage).await;
        let progress = CheckProgress::default();
        let found = all.check_noting(&progress).await;
        let found = found.expect("can be looked at");
        for (_, report) in found.filesystems {
            assert_eq!(report.problems, [""; 0], "in it all is well");
        }
        (found.problems, progress.far())
    })
}

#[track_caller]
fn assert_found(wanted: &[&str], damage: impl AsyncFnOnce(&Stage) + 'static) {
    let problems = problems_after(damage);
    for wanted in wanted {
        let is_it = |problem: &String| problem.contains(wanted);
        assert!(
            problems.iter().any(is_it),
            "'{wanted}' is not in {problems:#?}"
        );
    }
}

#[test]
fn a_check_has_come_to_its_end_when_it_is_over() {
    let (problems, (done, total)) = problems_of_all(async |_| {});
    assert_eq!(problems, [""; 0]);
    // Five files, and one more for what there is without any: the tree, and keys, now and in the snapshot.
    assert_eq!((done, total), (6 + 3 * 5, 6 + 3 * 5));
}

#[test]
fn dvols_that_nobody_names_are_told() {
    let create = async |stage: &Stage, name: &str, attributes: DvolAttributes| {
        let new = CreateDvol {
            name: name.to_owned(),
            id: None,
            size_bytes: 1 << 20,
            reserved_bytes: 0,
        };
        let created = stage.engine.create_with(new, attributes).await;
        created.expect("creates");
    };
    let of_kind = |kind: u8| {
        let mut attributes: DvolAttributes = [0; _];
        attributes[0] = kind;
        attributes[1] = 99;
        attributes
    };
    let (problems, _) = problems_of_all(async move |stage| {
        let geometry = Geometry::new(4096, 4096, 100).expect("makes sense");
        let store = stage.fs.inner.store();
        let made = store.create_extent(ExtentId(0x4d), geometry).await;
        made.expect("makes one");
        let said = Said {
            filesystem: crate::FilesystemId(99),
            file: stage.large,
            stamp: 1,
            since: 1,
            is_cleared: false,
            size_bytes: 0,
            time_ns: 0,
            home: 0,
        };
        create(stage, ".file-of-another", said.encode()).await;
        create(stage, "a second store", of_kind(2)).await;
        create(stage, "a second log", of_kind(4)).await;
        create(stage, "some extent", of_kind(1)).await;
        // What are volumes, and what the node keeps of them.
        create(stage, "a volume", of_kind(0)).await;
        create(stage, "tokens", of_kind(6)).await;
    });
    let found = |wanted: &str| problems.iter().filter(|p| p.contains(wanted)).count();
    for wanted in [
        "is the extent 0x4d, which no filesystem has",
        "is of a file of filesystem 0000000000000063, which is not there",
        "there are 2 page stores in a journal that has one",
        "there are 2 logs of it in a journal that has one",
        "what the dvol 'some extent' says of its extent can't be read",
    ] {
        assert_eq!(found(wanted), 1, "{wanted}: {problems:#?}");
    }
    assert_eq!(problems.len(), 5, "{problems:#?}");
}

#[test]
fn names_and_cookies_belong_together() {
    assert_found(&["names and cookies of"], async |stage| {
        let (_, value) = stage
            .newest(&stage.keys().entry(stage.directory, b"file"))
            .await;
        let cookie = EntryValue::decode(&value).expect("is an entry").cookie;
        let key = stage
            .newest(&stage.keys().cookie(stage.directory, cookie))
            .await
            .0;
        stage.delete(&key).await;
    });
    assert_found(&["says 0 names of 0 bytes, and has 1"], async |stage| {
        let change = |inode: &mut Inode| {
            inode.attributes.size_bytes = 0;
            if let Body::Directory(part) = &mut inode.body {
                part.entries = 0;
            }
        };
        stage.change_inode(stage.directory, change).await;
    });
    assert_found(&["is no directory and has names"], async |stage| {
        let key = key::versioned(&stage.keys().entry(stage.other, b"name"), 2);
        let entry = EntryValue {
            file: stage.file,
            cookie: 9,
        };
        stage.put(&key, &entry.encode()).await;
    });
}

#[test]
fn names_lead_to_files_and_files_have_names() {
    assert_found(
        &["which is not there", "has no inode, and keys"],
        async |stage| {
            let key = stage.newest(&stage.keys().inode(stage.other)).await.0;
            stage.delete(&key).await;
        },
    );
    assert_found(
        &["3 links and 1 names, and 1 were expected"],
        async |stage| {
            stage
                .change_inode(stage.other, |inode| inode.attributes.links = 3)
                .await;
        },
    );
    assert_found(&["1 links and 0 names"], async |stage| {
        let key = stage
            .newest(&stage.keys().entry(stage.fs.root(), b"other"))
            .await
            .0;
        stage.delete(&key).await;
    });
    assert_found(
        &["and says", "is not below the topmost directory"],
        async |stage| {
            let own = stage.directory.directory;
            let change = |inode: &mut Inode| {
                if let Body::Directory(part) = &mut inode.body {
                    part.parent = own;
                }
            };
            stage.change_inode(stage.directory, change).await;
        },
    );
}

#[test]
fn blocks_are_counted_and_are_one_file_s() {
    assert_found(&["says that it takes 1 bytes"], async |stage| {
        stage
            .change_inode(stage.other, |inode| inode.attributes.used_bytes = 1)
            .await;
    });
    assert_found(
        &["bytes are counted, and blocks have", "says that it takes"],
        async |stage| {
            let key = stage.block(stage.other).await.0;
            stage.delete(&key).await;
        },
    );
    assert_found(&["a block's value can't be read"], async |stage| {
        let key = stage.block(stage.other).await.0;
        stage.put(&key, b"nonsense").await;
    });
    assert_found(&["two keys name the block"], async |stage| {
        let key = stage.block(stage.other).await.0;
        let block = stage.block(stage.file).await.1;
        stage.put(&key, &block.encode()).await;
    });
    assert_found(&["and the page store says"], async |stage| {
        let block = stage.block(stage.other).await.1;
        let mut tx = stage.fs.inner.tree.begin();
        tx.add(Part::Free(block.block));
        tx.commit().await.expect("commits");
    });
    assert_found(&["has a block at 0 and ends at 0"], async |stage| {
        stage
            .change_inode(stage.other, |inode| inode.attributes.size_bytes = 0)
            .await;
    });
}

#[test]
fn versions_are_noted_for_the_snapshot_that_needs_them() {
    assert_found(&["is kept and not noted"], async |stage| {
        let key = stage.keys().inode(stage.file);
        let old = key::versioned(&key, SNAPSHOT);
        stage.delete(&stage.keys().displaced(SNAPSHOT, &old)).await;
    });
    assert_found(
        &["is noted to need a version that is not there"],
        async |stage| {
            let versioned = key::versioned(&stage.keys().inode(stage.other), 7);
            stage
                .put(&stage.keys().displaced(SNAPSHOT, &versioned), &[])
                .await;
        },
    );
    assert_found(&["the newest version of"], async |stage| {
        let versioned = stage.newest(&stage.keys().inode(stage.other)).await.0;
        stage
            .put(&stage.keys().displaced(SNAPSHOT, &versioned), &[])
            .await;
    });
    assert_found(&["is live"], async |stage| {
        let value = stage.newest(&stage.keys().inode(stage.other)).await.1;
        let versioned = key::versioned(&stage.keys().inode(stage.other), 99);
        stage.put(&versioned, &value).await;
    });
}

#[test]
fn dvols_are_what_inodes_name() {
    assert_found(&["the dvol", "is not there"], async |stage| {
        let value = stage.newest(&stage.keys().inode(stage.large)).await.1;
        let inode = Inode::decode(stage.large, &value).expect("is an inode");
        let dvol = inode.object().expect("is large").dvol;
        let handle = stage.fs.inner.dvol(dvol).expect("is there").handle;
        let deleted = stage.engine.delete(handle, true).await;
        deleted.expect("deletes");
    });
    assert_found(&["says that it is of"], async |stage| {
        let value = stage.newest(&stage.keys().inode(stage.large)).await.1;
        let large = Inode::decode(stage.large, &value).expect("is an inode");
        let content = large.body;
        stage
            .change_inode(stage.other, |inode| inode.body = content)
            .await;
    });
    assert_found(&["says something of its inode"], async |stage| {
        let change = |inode: &mut Inode| {
            if let Body::Regular {
                content: Content::Object(object),
                ..
            } = &mut inode.body
            {
                object.stamp = 0;
            }
        };
        stage.change_inode(stage.large, change).await;
    });
}
