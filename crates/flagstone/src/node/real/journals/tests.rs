//! Hand-overs as the cores see them: what is taken for a volume of the journal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flagstone_device::engine::{CreateDvol, Stability};
use flagstone_device::transfer::Marks;
use flagstone_platform::IoBuf;

use crate::node::real::attributes::VolumeAttributes;
use crate::node::real::moving::VolumeMarks;
use crate::node::real::start::start_node;
use crate::node::real::tests::{options, runtime, spec};
use crate::node::real::{Names, RealNode};
use crate::node::{Node, Slo, SloLimit, VolumeSpec};
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
