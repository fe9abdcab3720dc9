//! Hand-overs as the cores see them: what is taken for a volume of the journal.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_device::engine::{CreateDvol, DvolError, Handle, Stability};
use flagstone_device::transfer::Marks;
use flagstone_fs::{FilesystemOptions, Filesystems};
use flagstone_platform::{IoBuf, Platform};

use crate::name::SnapshotRef;
use crate::node::real::attributes::VolumeAttributes;
use crate::node::real::core::CoreNode;
use crate::node::real::moving::VolumeMarks;
use crate::node::real::start::start_node;
use crate::node::real::tests::{options, runtime, spec};
use crate::node::real::{Names, RealNode};
use crate::node::{
    MoveSpec, MoveState, Node, NodeErrorKind, ScrubState, Slo, SloLimit, TokenKind, TokenSpec,
    VolumeSpec,
};
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
        self.start_with(2)
    }

    fn start_with(&self, cores: usize) -> Arc<RealNode> {
        let path: &Path = &self.0;
        let mut options = options(path.to_owned());
        options.cores = Some(cores);
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
        let layers = node.layers_of(place, |_| true, 10, "testing").await;
        let layers = layers.expect("listed");
        assert_eq!(layers.len(), 1);
        // What comes to be there is found there.
        for (source, name) in [("vm", "clone"), ("vm@s", "clone-of-s")] {
            let looked_up =
                node.clone_at(source.parse().expect("a source"), name.to_owned(), &before);
            looked_up.await.expect("cloned");
            assert_eq!(node.names.find(name).map(|at| at.core), Some(1));
            node.show_volume(name.to_owned()).await.expect("is found");
        }
        let renamed = node.rename_at(&before, "renamed".to_owned()).await;
        assert_eq!(renamed.expect("is found").core, 1);
        let back = node.rename_volume("renamed".to_owned(), "vm".to_owned());
        back.await.expect("renamed");
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
        // It is there before all of its move is over, and is refused until then.
        let is_moving = || async {
            let shown = node.show_move("vm".to_owned()).await;
            shown.expect("is known").state == MoveState::Running
        };
        while is_moving().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        node.delete_volume("vm".to_owned(), true)
            .await
            .expect("deleted");
        let gone = node.on_volume(&before, "testing", core).await;
        assert_eq!(gone.expect_err("is no more").kind, NodeErrorKind::NotFound);
        assert_eq!(
            node.layers_of(place, |_| true, 10, "testing")
                .await
                .expect("listed")
                .len(),
            0
        );
        node.shutdown().await.expect("stops");
    });
}

/// Or its report would be that of an earlier one.
#[test]
fn a_scrub_waits_for_a_journal_that_just_goes() {
    let device = Device::new("scrub-waits");
    let node = device.start();
    runtime().block_on(async {
        let hold = |is_held: bool| {
            node.on_core(0, "testing", move |core| async move {
                let owned = core.engines.get(0).expect("is served");
                match is_held {
                    true => owned.making.shut(),
                    false => owned.making.release(),
                }
            })
        };
        hold(true).await.expect("is held");
        let mut scrub = std::pin::pin!(node.start_scrub("main".to_owned()));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut scrub).await;
        assert!(early.is_err(), "it began in a journal that goes");
        hold(false).await.expect("is released");
        scrub.await.expect("begins");
        node.shutdown().await.expect("stops");
    });
}

/// A change of tokens that waits for its turn while the journal goes would be lost there: it is told to come again.
#[test]
fn who_waits_for_a_turn_while_a_journal_goes_comes_again() {
    let device = Device::new("waits");
    let node = device.start();
    runtime().block_on(async {
        let at_0 = VolumeSpec {
            core: Some(0),
            ..spec("vm")
        };
        node.create_volume(at_0).await.expect("created");
        let id = node.names.find("vm").expect("is there").id;
        let changed = node.on_core(0, "testing", move |core| async move {
            let owned = core.owned(0).expect("is served");
            let handle = owned.engine.dvol_with(id, "vm").expect("is there").handle;
            let turn = owned.tokens.turn().await;
            let (tell, told) = tokio::sync::oneshot::channel();
            let (going, waiting) = (core.clone(), core.clone());
            core.platform.spawn(async move {
                let handed = going.hand_journal_over(0, 1).await;
                handed.expect("is handed over");
            });
            core.platform.sleep_ns(50_000_000).await;
            core.platform.spawn(async move {
                let changed = waiting.change_access(0, handle, |_, _| Ok(())).await;
                tell.send(changed.map(drop)).expect("somebody waits");
            });
            core.platform.sleep_ns(10_000_000).await;
            drop(turn);
            told.await.expect("is told")
        });
        assert_eq!(changed.await, Ok(Err(DvolError::Stopping)));
        let spec = TokenSpec {
            kind: TokenKind::Reader,
            ends_in_s: None,
            label: String::new(),
        };
        let made = node.create_token("vm".to_owned(), spec).await;
        made.expect("made where it is now");
        node.shutdown().await.expect("stops");
    });
}

/// What it holds would otherwise be held on a core that the snapshot has left.
#[test]
fn a_stream_that_is_to_begin_while_its_journal_goes_begins_behind_it() {
    let device = Device::new("stream-begins");
    let node = device.start();
    runtime().block_on(async {
        let at_0 = VolumeSpec {
            core: Some(0),
            ..spec("vm")
        };
        node.create_volume(at_0).await.expect("created");
        let taken: SnapshotRef = "vm@s".parse().expect("a snapshot");
        node.create_snapshots(vec![taken.clone()])
            .await
            .expect("taken");
        // It goes, and comes no further than to whoever changes tokens.
        let (go_on, stay) = tokio::sync::oneshot::channel::<()>();
        let going = node.on_core(0, "testing", move |core| async move {
            let owned = core.owned(0).expect("is served");
            let turn = owned.tokens.turn().await;
            let going = core.clone();
            core.platform.spawn(async move {
                let handed = going.hand_journal_over(0, 1).await;
                handed.expect("is handed over");
            });
            core.platform.sleep_ns(50_000_000).await;
            assert!(owned.making.is_shut(), "it goes");
            core.platform.spawn(async move {
                drop(stay.await);
                drop(turn);
            });
        });
        going.await.expect("it goes");
        let mut opened = std::pin::pin!(node.open_stream(taken, None));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut opened).await;
        assert!(early.is_err(), "it began in a journal that goes");
        go_on.send(()).expect("it waits");
        let source = opened.await.expect("begins");
        assert_eq!(node.names.find("vm").map(|at| at.core), Some(1));
        // As long as it lasts the journal stays where that is.
        let back = node.hand_over_journal("main".to_owned(), 0, 0);
        assert_eq!(
            back.await.expect_err("it is sent").kind,
            NodeErrorKind::Busy
        );
        let part = node.read_stream(source, 0).await.expect("is read");
        assert!(part.next_bytes > 0, "{part:?}");
        let back = node.hand_over_journal("main".to_owned(), 0, 0);
        back.await.expect("is handed over");
        node.shutdown().await.expect("stops");
    });
}

/// A scrub that could not begin has looked at nothing, and says so.
#[test]
fn a_scrub_that_did_not_begin_is_none() {
    let device = Device::new("scrub-none");
    let node = device.start();
    runtime().block_on(async {
        let state = || async {
            let status = node.scrub_status("main".to_owned()).await;
            status.expect("a status").state
        };
        node.on_core(0, "testing", |core| async move {
            core.engines.get(0).expect("is served").making.shut();
        })
        .await
        .expect("is held");
        let refused = node.start_scrub("main".to_owned()).await;
        assert_eq!(refused.expect_err("it goes").kind, NodeErrorKind::Busy);
        assert_eq!(state().await, ScrubState::Idle);
        node.on_core(0, "testing", |core| async move {
            core.engines.get(0).expect("is served").making.release();
        })
        .await
        .expect("is released");
        node.start_scrub("main".to_owned()).await.expect("begins");
        while state().await == ScrubState::Running {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(state().await, ScrubState::Finished);
        node.shutdown().await.expect("stops");
    });
}

/// Nothing makes them there any more; where somebody once did, the node says that it doesn't serve them.
#[test]
fn filesystems_where_nobody_looks_for_them_are_told_of() {
    let device = Device::new("strays");
    for (cores, told) in [(2, 0), (2, 0), (3, 1), (1, 0)] {
        let node = device.start_with(cores);
        runtime().block_on(async {
            let info = node.info().await.expect("its description");
            let notices = info.notices.iter();
            let strays = notices.filter(|notice| notice.contains("journal 2 of device 'main'"));
            assert_eq!(strays.count(), told, "with {cores} cores");
            let made = node.on_core(0, "testing", move |core| async move {
                let engine = core.engine(2).filter(|_| cores == 2);
                if let Some(engine) = engine {
                    let platform = core.platform.clone();
                    let opened = Filesystems::open(platform, engine, FilesystemOptions::default());
                    opened.await.expect("opened").stop().await;
                }
            });
            made.await.expect("made");
            node.shutdown().await.expect("stops");
        });
    }
}
