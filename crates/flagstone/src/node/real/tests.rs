//! What a core keeps of volumes that are gone.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use flagstone_gateway::volume::{Opened, Volume, VolumeDirectory};

use super::core::Directory;
use super::start::start_node;
use super::volume::{RealVolume, VolumeCounters};
use super::*;
use crate::node::{DeviceOptions, NodeOptions};
use crate::offline::FormatOptions;

thread_local! {
    /// What a client of the core holds.
    static ATTACHED: RefCell<Option<RealVolume>> = const { RefCell::new(None) };
    static COUNTERS: RefCell<Weak<VolumeCounters>> = const { RefCell::new(Weak::new()) };
}

fn options(path: PathBuf) -> NodeOptions {
    NodeOptions {
        devices: vec![DeviceOptions {
            name: "main".to_owned(),
            path,
            expected_size_bytes: None,
        }],
        cores: Some(1),
        nbd: None,
        nbd_unix: None,
        map_cache_bytes: None,
        scrub_days: 0,
        nbd_connections_max: 4,
        stop_grace_ms: 0,
        record: None,
        tuning: None,
    }
}

#[test]
fn counters_go_with_the_volume_and_its_last_client() {
    let path = std::env::temp_dir().join(format!("flagstone-counters-{}", std::process::id()));
    let format = FormatOptions {
        size_bytes: Some(64 << 20),
        force: true,
    };
    crate::offline::format(&path, &format).unwrap();
    let node = start_node(options(path.clone())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        // Others come and go, and nothing stays.
        for round in 0..50 {
            let spec = VolumeSpec {
                name: "disk".to_owned(),
                size_bytes: 1 << 20,
                reserve: Reservation::None,
                device: None,
                core: None,
            };
            node.create_volume(spec).await.unwrap();
            let attach = |core: Rc<CoreNode>| async move {
                let directory = Directory { core: core.clone() };
                let Ok(Opened::Here(volume)) = directory.open("disk").await else {
                    panic!("it is here");
                };
                volume.flush().await.unwrap();
                COUNTERS.set(Rc::downgrade(&volume.counters));
                ATTACHED.set(Some(volume));
                core.counted_volumes()
            };
            assert_eq!(node.on_core(0, "attaching", attach).await.unwrap(), 1);
            node.delete_volume("disk".to_owned(), false).await.unwrap();
            let detach = |core: Rc<CoreNode>| async move {
                let held = COUNTERS.with_borrow(|c| c.upgrade().is_some());
                ATTACHED.set(None);
                let left = COUNTERS.with_borrow(|c| c.upgrade().is_some());
                (core.counted_volumes(), held, left)
            };
            let found = node.on_core(0, "detaching", detach).await.unwrap();
            assert_eq!(found, (0, true, false), "round {round}");
        }
        node.shutdown().await.unwrap();
    });
    drop(node);
    std::fs::remove_file(path).unwrap();
}
