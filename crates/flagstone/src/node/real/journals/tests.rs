//! Hand-overs as the cores see them: what is taken for a volume of the journal.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_device::engine::{CreateDvol, DvolError, Handle, Stability};
use flagstone_device::transfer::Marks;
use flagstone_platform::IoBuf;
use flagstone_types::Slot;

use crate::name::SnapshotRef;
use crate::node::real::attributes::VolumeAttributes;
use crate::node::real::core::CoreNode;
use crate::node::real::moving::VolumeMarks;
use crate::node::real::start::start_node;
use crate::node::real::tests::{options, runtime, spec};
use crate::node::real::{Names, RealNode};
use crate::node::{MoveSpec, Node, NodeErrorKind, Slo, SloLimit, VolumeSpec};
use crate::offline::FormatOptions;

/// A device for two cores, removed when dropped.
struct Device(PathBuf);

impl Device {
    fn new(name: &str) -> Device {
        let path = std::env::temp_dir().join(format!("flagstone-{name}-{}", std::process::id()));
        let options = FormatOptions {
            size_bytes: Some(2 << 30),
            force: true,
            sparse: true,
        };
        crate::offline::format(&path, &options).expect("formatted");
        Device(path)
    }

    fn start(&self) -> Arc<RealNode> {
        let path: &Path = &self.0;
        let mut options = options(path.to_owned());
        options.cores = Some(2);
        start_node(options).expect("started")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What a volume was before it was moved, and what couldn't be deleted then, is no volume: its journal goes without it.
#[test]
fn what_a_move_has_left_behind_is_not_taken_for_the_volume() {
    let device = Device::new("left-behind");
    let node = device.start();
    let limited = Slo {
        limit: SloLimit {
            reads: Some(12_345),
            ..SloLimit::default()
        },
        ..Slo::default()
    };
    runtime().block_on(async {
        for (name, core) in [("beside", 0), ("vm", 1)] {
            let spec = VolumeSpec {
                core: Some(core),
                slo: if name == "vm" {
                    limited
                } else {
                    Slo::default()
                },
                ..spec(name)
            };
            node.create_volume(spec).await.expect("created");
        }
        let at = node.names.find("vm").expect("is there");
        let first = node.names.find("beside").expect("is there").engine;
        // As a move from there leaves it if it can't delete it.
        node.on_core(0, "leaving it", move |core| async move {
            let engine = core.engine(first).expect("is served");
            let new = CreateDvol {
                name: "vm".to_owned(),
                id: Some(at.id),
                size_bytes: 1 << 20,
                reserved_bytes: 0,
            };
            let plain = VolumeAttributes::default().encode();
            let handle = engine
                .create_with(new, VolumeMarks.leaving(&plain, 7))
                .await;
            let handle = handle.expect("created");
            let stale = IoBuf::copy_of(&[0xee; 4096]);
            let written = engine.write(handle, 0, stale, Stability::Stable);
            written.await.expect("written");
        })
        .await
        .expect("done");
        let moved = node.hand_over_journal("main".to_owned(), 0, 1).await;
        assert_eq!(moved.expect("is handed over").volume_count, 1);
        let now: &Names = &node.names;
        assert_eq!(now.find("vm"), Some(at), "it is where it was");
        let shown = node.show_volume("vm".to_owned()).await.expect("is there");
        assert_eq!((shown.slo, shown.mapped_bytes), (limited, 0));
        let known = node.on_core(1, "asking", move |core| async move { core.slo_of(at.id) });
        assert_eq!(
            known.await.expect("is told"),
            limited,
            "and goes by its own"
        );
        // What is left of it goes with the journal, wherever that is.
        node.hand_over_journal("main".to_owned(), 0, 0)
            .await
            .expect("is handed over");
        assert_eq!(node.names.find("vm"), Some(at));
        node.shutdown().await.expect("stops");
    });
}

/// A command that has looked up where a volume is, and asks there when it is elsewhere.
#[test]
fn whoever_comes_too_late_follows_a_volume_to_the_core_that_has_it() {
    let device = Device::new("too-late");
    let node = device.start();
    runtime().block_on(async {
        let at_0 = VolumeSpec {
            core: Some(0),
            ..spec("vm")
        };
        node.create_volume(at_0).await.expect("created");
        let taken: SnapshotRef = "vm@s".parse().expect("a snapshot");
        node.create_snapshots(vec![taken]).await.expect("taken");
        let before = node.target("vm", "testing").expect("is there");
        let place = before.place;
        let handed = node.hand_over_journal("main".to_owned(), 0, 1).await;
        handed.expect("is handed over");
        let core = |core: Rc<CoreNode>, _: Handle| async move { Ok(core.index) };
        assert_eq!(node.on_volume(&before, "testing", core).await, Ok(1));
        let listed = node.volume_infos(vec![("vm".to_owned(), place)]).await;
        let listed = listed.expect("listed");
        assert_eq!((listed.len(), listed[0].core), (1, 1));
        let layers = node.layers_of(place, None, 10).await.expect("listed");
        assert_eq!(layers.len(), 1);
        // What waited for its turn there, and can't follow, is told to come again.
        let changed = node.on_core(0, "testing", move |core| async move {
            let handle = Handle {
                slot: Slot(0),
                id: place.id,
                layer: None,
            };
            // The journal that new volumes of this core go to by now.
            let engine = core.engines.first_of(0).expect("is one");
            core.change_access(engine, handle, |_, _| Ok(())).await
        });
        let changed = changed.await.expect("is asked").map(|_| ());
        assert_eq!(changed, Err(DvolError::Stopping));
        // One that is in another journal by now isn't what the command was made for.
        let elsewhere = MoveSpec {
            core: Some(0),
            ..MoveSpec::default()
        };
        let moved = node.move_volume("vm".to_owned(), elsewhere).await;
        moved.expect("begins");
        while node.names.find("vm").expect("is there").engine == place.engine {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let late = node.on_volume(&before, "testing", core).await;
        assert_eq!(late.expect_err("is elsewhere").kind, NodeErrorKind::Busy);
        let listed = node.volume_infos(vec![("vm".to_owned(), place)]).await;
        assert_eq!(listed.expect("listed").len(), 1);
        node.delete_volume("vm".to_owned(), true)
            .await
            .expect("deleted");
        let gone = node.on_volume(&before, "testing", core).await;
        assert_eq!(gone.expect_err("is no more").kind, NodeErrorKind::NotFound);
        assert_eq!(
            node.layers_of(place, None, 10).await.expect("listed").len(),
            0
        );
        node.shutdown().await.expect("stops");
    });
}
