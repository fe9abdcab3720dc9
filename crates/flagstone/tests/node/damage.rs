//! Devices that can't be opened: what is said, at once, and that nothing else comes to harm.

use std::fs::{File, OpenOptions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flagstone::exit::Exit;
use flagstone::node::{DeviceOptions, Node, NodeError, PageQuery, Reservation, VolumeSpec};
use flagstone::offline::FormatOptions;
use flagstone_device::format::geometry::Geometry;
use flagstone_device::format::root::Root;
use flagstone_device::format::superblock::Superblock;
use flagstone_device::format::table::{BlockPtr, TableKind, decode_index};
use flagstone_types::{BlockNo, SegmentNo};

use crate::support::{Folder, options};

/// The smallest with several journals.
const DEVICE_BYTES: u64 = 1 << 30;
const JOURNALS: u16 = 4;

/// Longer than any start takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is found of one journal.
type Finder = fn(&Image, u16) -> Vec<BlockNo>;

/// A device in a file.
struct Image {
    path: PathBuf,
    file: File,
    geometry: Geometry,
}

impl Image {
    fn format(path: PathBuf) -> Image {
        let image = Image::of_size(path, DEVICE_BYTES);
        assert_eq!(image.geometry.journal_count, JOURNALS);
        image
    }

    fn of_size(path: PathBuf, size_bytes: u64) -> Image {
        let format = FormatOptions {
            size_bytes: Some(size_bytes),
            force: false,
            sparse: false,
        };
        flagstone::offline::format(&path, &format).expect("formatted");
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = opened.expect("it is there");
        let superblock = Superblock::decode(&block(&file, BlockNo(0))).expect("a superblock");
        let geometry = Geometry::checked(&superblock).expect("a geometry");
        Image {
            path,
            file,
            geometry,
        }
    }

    fn root(&self, journal: u16) -> Root {
        let slots = self.geometry.root_slots(journal);
        let roots = slots.map(|slot| Root::decode(&block(&self.file, slot)));
        let roots = roots.into_iter().filter_map(Result::ok);
        roots.max_by_key(|root| root.root_seq).expect("a root")
    }

    fn pages(&self, index: BlockPtr, table: TableKind) -> Vec<BlockNo> {
        let pages = decode_index(&block(&self.file, index.block), table, 0).expect("an index");
        let pages = pages.iter().filter(|page| !page.is_none());
        pages.map(|page| page.block).collect()
    }

    /// Overwrites eight bytes of each block; returns what was there.
    fn damage(&self, blocks: &[BlockNo]) -> Vec<(BlockNo, Vec<u8>)> {
        let before: Vec<_> = blocks.iter().map(|&b| (b, block(&self.file, b))).collect();
        for (place, _) in &before {
            let offset = place.offset_bytes() + 100;
            self.file.write_all_at(&[0xa5; 8], offset).expect("written");
        }
        before
    }

    fn mend(&self, blocks: &[(BlockNo, Vec<u8>)]) {
        for (place, bytes) in blocks {
            let mended = self.file.write_all_at(bytes, place.offset_bytes());
            mended.expect("written");
        }
    }
}

fn block(file: &File, place: BlockNo) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    file.read_exact_at(&mut bytes, place.offset_bytes())
        .expect("read");
    bytes
}

/// A node that has started, or why not. Never waits for ever.
fn start(devices: &[(&str, &Path)], cores: usize) -> Result<Arc<dyn Node>, NodeError> {
    start_at("127.0.0.1:0".parse().expect("an address"), devices, cores)
}

/// The same with an address for NBD.
fn start_at(
    nbd: SocketAddr,
    devices: &[(&str, &Path)],
    cores: usize,
) -> Result<Arc<dyn Node>, NodeError> {
    let mut options = options(PathBuf::new());
    options.cores = Some(cores);
    options.nbd = Some(nbd);
    options.devices = devices
        .iter()
        .map(|(name, path)| DeviceOptions {
            name: (*name).to_owned(),
            path: path.to_path_buf(),
            expected_size_bytes: None,
            layers: Vec::new(),
            schedule: Default::default(),
        })
        .collect();
    let (sender, receiver) = mpsc::channel();
    let starting = move || drop(sender.send(flagstone::node::real::start(options)));
    std::thread::Builder::new()
        .spawn(starting)
        .expect("a thread");
    receiver
        .recv_timeout(PATIENCE)
        .expect("it starts or says why not")
}

/// Does something with a node that starts, and stops it.
fn with_node<T>(
    devices: &[(&str, &Path)],
    work: impl AsyncFnOnce(&dyn Node) -> Result<T, NodeError>,
) -> T {
    let node = start(devices, 2).expect("it starts");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let result = work(&*node).await.expect("answered");
        node.shutdown().await.expect("stopped");
        result
    })
}

/// A device with a volume in each of its first two journals.
fn used(path: PathBuf, name: &str) -> Image {
    let image = Image::format(path);
    create(&image, name, 2);
    image
}

/// A volume on each of the first cores.
fn create(image: &Image, name: &str, cores: u32) {
    with_node(&[("main", &image.path)], async |node| {
        for core in 0..cores {
            node.create_volume(VolumeSpec {
                name: format!("{name}{core}"),
                size_bytes: 1 << 20,
                reserve: Reservation::None,
                device: None,
                core: Some(core),
                apart: false,
                stripes: None,
                stripe_unit_bytes: None,
                slo: Default::default(),
                oversubscribe: false,
            })
            .await?;
        }
        Ok(())
    });
}

fn volumes(devices: &[(&str, &Path)]) -> Vec<String> {
    with_node(devices, async |node| {
        let page = node
            .list_volumes(PageQuery {
                limit: 10,
                ..PageQuery::default()
            })
            .await?;
        Ok(page.items.into_iter().map(|volume| volume.name).collect())
    })
}

#[test]
fn a_journal_that_can_not_be_read_is_said_at_once() {
    let folder = Folder::new();
    let image = used(folder.path.join("device.img"), "disk");
    let finders: [(&str, Finder); 5] = [
        ("a page of the catalogue", |image, journal| {
            image.pages(image.root(journal).catalogue[0], TableKind::Catalogue)
        }),
        ("a page of the segment table", |image, journal| {
            image.pages(image.root(journal).segments[0], TableKind::Segments)
        }),
        ("an index block of the catalogue", |image, journal| {
            vec![image.root(journal).catalogue[0].block]
        }),
        ("an index block of the segment table", |image, journal| {
            vec![image.root(journal).segments[0].block]
        }),
        ("root", |image, journal| {
            image.geometry.root_slots(journal).to_vec()
        }),
    ];
    for (what, find) in finders {
        for journals in [&[0][..], &[1], &[0, 1]] {
            let blocks: Vec<_> = journals.iter().flat_map(|&j| find(&image, j)).collect();
            let before = image.damage(&blocks);
            let changed = || image.file.metadata().and_then(|m| m.modified());
            let changed_before = changed().expect("a time");
            for cores in [1, 2, 3] {
                let refused = start(&[("main", &image.path)], cores).err();
                let refused = refused.expect("it can't be opened");
                assert_eq!(refused.kind.exit(), Exit::Corrupt, "{refused}");
                for journal in 0..JOURNALS {
                    let named = refused.found.contains(&format!("journal {journal}: "));
                    assert_eq!(named, journals.contains(&journal), "{refused}");
                }
                assert!(refused.found.contains(what), "{what}: {refused}");
                let next = format!("flagstone verify {}", image.path.display());
                assert!(refused.next_step.contains(&next), "{refused}");
            }
            let changed_after = changed().expect("a time");
            assert_eq!(changed_before, changed_after, "{what}: it was written to");
            image.mend(&before);
        }
    }
    assert_eq!(volumes(&[("main", &image.path)]), ["disk0", "disk1"]);
}

/// A device of one segment, whose free blocks nobody knows then: that is damage, and not a full device.
#[test]
fn a_damaged_bitmap_that_leaves_no_room_is_damage() {
    let folder = Folder::new();
    let image = Image::of_size(folder.path.join("device.img"), 64 << 20);
    let devices: [(&str, &Path); 1] = [("main", &image.path)];
    create(&image, "disk", 1);
    let before = image.damage(&image.geometry.bitmap_slots(SegmentNo(0)));
    let refused = start(&devices, 1).err().expect("it can't be opened");
    assert_eq!(refused.kind.exit(), Exit::Corrupt, "{refused}");
    let bitmap = "a bitmap is damaged: that of segment 0";
    assert!(refused.found.contains(bitmap), "{refused}");
    let next = format!("flagstone verify {}", image.path.display());
    assert!(refused.next_step.contains(&next), "{refused}");
    image.mend(&before);
    assert_eq!(volumes(&devices), ["disk0"]);
}

/// The other device is open by then: it is stopped, not dropped.
#[test]
fn another_device_is_stopped_in_order() {
    let folder = Folder::new();
    let good = used(folder.path.join("good.img"), "good");
    let bad = used(folder.path.join("bad.img"), "bad");
    let devices: [(&str, &Path); 2] = [("good", &good.path), ("bad", &bad.path)];
    let catalogue = bad.root(0).catalogue[0];
    let before = bad.damage(&bad.pages(catalogue, TableKind::Catalogue));
    for cores in [1, 2] {
        let incarnation = good.root(0).incarnation;
        let refused = start(&devices, cores).err().expect("it can't be opened");
        assert!(refused.doing.contains("'bad'"), "{refused}");
        for journal in 0..JOURNALS {
            let root = good.root(journal);
            assert!(root.clean, "journal {journal}");
            assert!(root.incarnation > incarnation, "it was open");
        }
    }
    bad.mend(&before);
    assert_eq!(volumes(&devices), ["bad0", "bad1", "good0", "good1"]);
}

/// The device is open by the time its clients can't be listened for: it was dropped as it was, and
/// recovered at the next start.
#[test]
fn a_device_of_a_node_that_can_not_listen_is_stopped_in_order() {
    let folder = Folder::new();
    let image = used(folder.path.join("device.img"), "disk");
    let other = TcpListener::bind("127.0.0.1:0").expect("bound");
    let taken = other.local_addr().expect("its address");
    for cores in [1, 2] {
        let incarnation = image.root(0).incarnation;
        let refused = start_at(taken, &[("main", &image.path)], cores).err();
        let refused = refused.expect("the port is taken");
        assert_eq!(refused.kind.exit(), Exit::Busy, "{refused}");
        for journal in 0..JOURNALS {
            let root = image.root(journal);
            assert!(root.clean, "journal {journal}");
            assert!(root.incarnation > incarnation, "it was open");
        }
    }
}

#[test]
fn a_device_that_was_cut_short_is_said_to_be() {
    let folder = Folder::new();
    let image = Image::format(folder.path.join("device.img"));
    image.file.set_len(DEVICE_BYTES / 2).expect("cut");
    let refused = start(&[("main", &image.path)], 1).err();
    let refused = refused.expect("it can't be opened");
    assert_eq!(refused.kind.exit(), Exit::Corrupt, "{refused}");
    assert!(refused.found.contains("truncated"), "{refused}");
}
