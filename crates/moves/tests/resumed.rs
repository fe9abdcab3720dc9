//! A move that is cut off while the volume is copied goes on: either node dies at each step, or they don't reach each other for a while. What had been
//! copied isn't copied again, and everything arrives.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_sim::{Cut, SimNetwork, World, WorldConfig};

use crate::between::{Death, Model, Scene, Snapshots, changes_of, check, write};
use crate::node::{
    BLOCK, BLOCKS, Both, CLIENTS, ORIGIN, PART_BYTES, POINT_AFTER_BYTES, TARGET, at, begin,
    move_volume,
};

/// All there is to copy.
pub(crate) const ALL_BYTES: u64 = (BLOCKS + BLOCKS.div_ceil(3)) * BLOCK;

/// What may be copied twice: what came behind the last point, and the part that was on its way.
const TWICE_MAX_BYTES: u64 = POINT_AFTER_BYTES + 2 * PART_BYTES;

/// What happens while the volume is copied.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    Dies(Death),
    /// This node dies once so many bytes are copied.
    DiesBehind(usize, u64),
    /// The target is cut off once so many bytes are copied, for so many nanoseconds.
    CutOff(u64, u64),
}

struct Ran {
    went: bool,
    copied_bytes: u64,
    /// What had been copied when it went on, each time that it did.
    resumed: Vec<u64>,
    /// How often it was seen to wait for the target.
    cut_off: u64,
    changes: [u64; 2],
}

/// A volume that is full, with a snapshot. Nobody changes it while it is moved, so that it is known what there is to copy.
pub(crate) fn filled(scene: &Scene, model: &Model) -> Snapshots {
    let platform = scene.world.platform(CLIENTS);
    let (both, model) = (scene.both.clone(), model.clone());
    scene.world.block_on(CLIENTS, async move {
        let (engine, handle, _) = both.origin.here.borrow().clone().expect("is here");
        for block in 0..BLOCKS {
            write(&platform, &both, &model, block, false).await;
        }
        let dvols = [(handle, "one".into())];
        engine.snapshot_at(&dvols, 4000).await.expect("is taken");
        let snapshots = Snapshots::from([("one", model.answered())]);
        for block in (0..BLOCKS).step_by(3) {
            write(&platform, &both, &model, block, false).await;
        }
        snapshots
    })
}

/// A full volume that is on its way.
pub(crate) struct Begun {
    pub(crate) scene: Scene,
    pub(crate) both: Both,
    pub(crate) model: Model,
    pub(crate) snapshots: Snapshots,
    pub(crate) network: SimNetwork,
}

impl Begun {
    /// Nothing of the volume is left at the target.
    pub(crate) fn nothing_there(&self, what: &str) {
        let store = &self.both.target.store;
        self.scene.world.run_until(|| store.borrow().is_some());
        let there = store.borrow().clone().expect("has started");
        assert_eq!(there.volume(), None, "{what}: a copy is left");
        let world = &self.scene.world;
        let noted = world.block_on(TARGET, async move { there.note().await });
        assert_eq!(noted, None, "{what}: it still waits for the volume");
    }
}

/// Begins to move one.
pub(crate) fn on_its_way(seed: u64) -> Begun {
    let world = World::with_config(WorldConfig::new(seed).cores(3));
    let (disks, store, device, both) = begin(&world);
    let mut scene = Scene {
        world,
        disks,
        before: [0; 2],
        device,
        both: both.clone(),
        left: Rc::new(Cell::new(0)),
    };
    let model = Model::default();
    let snapshots = filled(&scene, &model);
    scene.start_target(true);
    scene.run_until(|| both.target.store.borrow().is_some());
    scene.before = [0, 1].map(|at| changes_of(&scene.disks[at]));
    let (platform, network) = (scene.world.platform(ORIGIN), scene.world.network());
    let moving = move_volume(
        platform,
        network.clone(),
        store,
        device,
        both.clone(),
        u64::MAX,
    );
    scene.world.spawn(ORIGIN, moving);
    Begun {
        scene,
        both,
        model,
        snapshots,
        network,
    }
}

fn run(seed: u64, trouble: Trouble) -> Ran {
    let what = format!("seed {seed}, {trouble:?}");
    let Begun {
        mut scene,
        both,
        model,
        snapshots,
        network,
    } = on_its_way(seed);
    match trouble {
        Trouble::None => {}
        Trouble::Dies(death) => {
            let disk = scene.disks[death.node].clone();
            let due = scene.before[death.node] + death.after_changes;
            scene.run_until(|| changes_of(&disk) >= due);
            if !scene.is_over() {
                scene.kill(death.node);
            }
        }
        Trouble::DiesBehind(node, bytes) => {
            scene.run_until(|| both.origin.copied_bytes.get() >= bytes);
            scene.kill(node);
        }
        Trouble::CutOff(behind_bytes, for_ns) => {
            scene.run_until(|| both.origin.copied_bytes.get() >= behind_bytes);
            network.cut(&at().to_string(), Cut::Both);
            scene.world.run_for(for_ns);
            assert!(both.origin.waits.get(), "{what}: it isn't seen to wait");
            let (engine, handle, gate) = both.origin.here.borrow().clone().expect("is here");
            assert!(!gate.is_shut() && !gate.is_gone(), "{what}: nobody waits");
            assert!(engine.epoch_of(handle).is_ok());
            network.heal();
        }
    }
    scene.run_until(|| false);
    assert!(scene.is_over(), "{what}: no end");
    let went = both.origin.ended.get() == Some(true);
    check(&scene.world, &what, went, &both, &model, snapshots);
    assert!(!both.origin.waits.get(), "{what}: it is over");
    Ran {
        went,
        copied_bytes: both.origin.copied_bytes.get(),
        resumed: both.origin.resumed.borrow().clone(),
        cut_off: both.origin.cut_off.get(),
        changes: [0, 1].map(|at| changes_of(&scene.disks[at]) - scene.before[at]),
    }
}

/// All there is to copy, in one run in which nothing happens.
fn whole(seed: u64) -> Ran {
    let whole = run(seed, Trouble::None);
    assert!(whole.went && whole.resumed.is_empty() && whole.cut_off == 0);
    assert_eq!(whole.copied_bytes, ALL_BYTES);
    whole
}

fn dies_while_it_is_copied(node: usize) {
    let seed = 70 + node as u64;
    let whole = whole(seed);
    let changes = 0..whole.changes[node];
    let at_changes = changes.map(|after_changes| {
        Trouble::Dies(Death {
            node,
            after_changes,
        })
    });
    let parts = (1..whole.copied_bytes / PART_BYTES).map(|part| part * PART_BYTES);
    let behind_parts = parts.map(|bytes| Trouble::DiesBehind(node, bytes));
    let (mut resumed, mut far) = (0, 0);
    for trouble in at_changes.chain(behind_parts) {
        let ran = run(seed, trouble);
        let had = ran.resumed.first().copied().unwrap_or(0);
        // It stays if a node dies at the very end: then the target is asked, and gives it up.
        resumed += u64::from(ran.went && had > 0);
        far += u64::from(ran.went && had > whole.copied_bytes / 2);
        let most = whole.copied_bytes + TWICE_MAX_BYTES;
        assert!(
            ran.copied_bytes <= most,
            "{trouble:?}: {} bytes of {} are copied, {had} when it went on",
            ran.copied_bytes,
            whole.copied_bytes
        );
        if let Trouble::DiesBehind(_, bytes) = trouble {
            assert!(ran.went, "{trouble:?}");
            assert!(had + TWICE_MAX_BYTES > bytes, "{trouble:?}: {had}");
        }
    }
    assert!(resumed > 30, "{resumed} went on and came to their end");
    assert!(far > 10, "{far} had copied most of it");
}

#[test]
fn a_move_goes_on_behind_a_death_of_its_origin() {
    dies_while_it_is_copied(ORIGIN);
}

#[test]
fn a_move_goes_on_behind_a_death_of_its_target() {
    dies_while_it_is_copied(TARGET);
}

#[test]
fn a_move_goes_on_when_the_nodes_reach_each_other_again() {
    let whole = whole(80);
    for part in 1..8 {
        let behind_bytes = whole.copied_bytes * part / 8;
        for for_ns in [10_000_000_000, 60_000_000_000] {
            let ran = run(80, Trouble::CutOff(behind_bytes, for_ns));
            assert!(ran.went, "{behind_bytes}");
            assert!(ran.cut_off > 0, "{behind_bytes}");
            assert!(ran.resumed.iter().all(|had| *had > 0));
            let most = whole.copied_bytes + TWICE_MAX_BYTES;
            assert!(ran.copied_bytes <= most, "{behind_bytes}: {most}");
        }
    }
}
