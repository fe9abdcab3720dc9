//! Somebody ends a move that is cut off. Once that is said it doesn't come back, whichever node is started again; and if the other node was reached,
//! nothing of the volume is left there.

use flagstone_sim::Cut;

use crate::between::{changes_of, check};
use crate::node::{ORIGIN, PART_BYTES, TARGET, at};
use crate::resumed::{ALL_BYTES, Begun, on_its_way};

/// A move that is cut off behind so many bytes and that somebody has ended. With `is_reached` the nodes reach each other from then on.
fn ended(behind_bytes: u64, is_reached: bool) -> Begun {
    let begun = on_its_way(91);
    let origin = begun.both.origin.clone();
    begun
        .scene
        .run_until(|| origin.copied_bytes.get() >= behind_bytes);
    begun.network.cut(&at().to_string(), Cut::Both);
    begun.scene.run_until(|| origin.waits.get());
    assert!(origin.waits.get(), "behind {behind_bytes}: it doesn't wait");
    origin.is_unwanted.set(true);
    if is_reached {
        begun.network.heal();
    }
    begun
}

/// Waits until it is said.
fn said(begun: &Begun, is_reached: bool, what: &str) {
    let origin = &begun.both.origin;
    begun.scene.run_until(|| false);
    assert_eq!(origin.ended.get(), Some(false), "{what}: it isn't said");
    assert_eq!(origin.is_untold.get(), !is_reached, "{what}");
    if is_reached {
        begun.nothing_there(what);
    }
}

/// Both nodes go on for a while, and the volume is where it was.
fn stays(mut begun: Begun, is_reached: bool, resumed: usize, what: &str) {
    let origin = begun.both.origin.clone();
    begun.scene.run_until(|| false);
    begun.scene.world.run_for(30_000_000_000);
    assert_eq!(origin.ended.get(), Some(false), "{what}: it has come back");
    assert_eq!(origin.resumed.borrow().len(), resumed, "{what}: it goes on");
    if is_reached {
        begun.nothing_there(what);
    }
    let snapshots = std::mem::take(&mut begun.snapshots);
    let world = &begun.scene.world;
    check(world, what, false, &begun.both, &begun.model, snapshots);
}

fn moments() -> impl Iterator<Item = u64> {
    (1..ALL_BYTES).step_by(3 * PART_BYTES as usize)
}

#[test]
fn what_is_said_to_be_over_does_not_come_back() {
    for behind_bytes in moments() {
        for (is_reached, node) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
            let what = format!("behind {behind_bytes}, {is_reached}, node {node}");
            let mut begun = ended(behind_bytes, is_reached);
            said(&begun, is_reached, &what);
            let origin = begun.both.origin.clone();
            // By now it is told nothing more, so what has come is left there.
            begun.network.heal();
            let resumed = origin.resumed.borrow().len();
            begun.scene.kill(node);
            stays(begun, is_reached, resumed, &what);
        }
    }
}

/// The node dies at each change of its disk from then on. What goes on behind that has not been said to be over.
fn dies_while_it_is_ended(node: usize) {
    let (mut came_back, mut stayed) = (0, 0);
    // With that change, and once it has been made.
    for (behind_bytes, delay_ns) in moments().flat_map(|bytes| [(bytes, 0), (bytes, 1_500_000)]) {
        for after_changes in 0.. {
            let what = format!(
                "node {node}, behind {behind_bytes}, {after_changes} changes and {delay_ns} ns"
            );
            let mut begun = ended(behind_bytes, true);
            let origin = begun.both.origin.clone();
            let disk = begun.scene.disks[node].clone();
            let due = changes_of(&disk) + after_changes;
            begun.scene.run_until(|| changes_of(&disk) >= due);
            let until = begun.scene.world.now().plus_ns(delay_ns);
            begun.scene.run_until(|| begun.scene.world.now() >= until);
            let was_said = origin.ended.get().is_some();
            let resumed = origin.resumed.borrow().len();
            begun.scene.kill(node);
            begun.scene.run_until(|| false);
            match origin.ended.get() {
                Some(true) => {
                    assert!(!was_said && node == ORIGIN, "{what}: it has come back");
                    came_back += 1;
                    let snapshots = std::mem::take(&mut begun.snapshots);
                    let world = &begun.scene.world;
                    check(world, &what, true, &begun.both, &begun.model, snapshots);
                }
                Some(false) => {
                    stayed += 1;
                    begun.nothing_there(&what);
                    // What the other node has said is durable there.
                    begun.scene.kill(TARGET);
                    let resumed = origin.resumed.borrow().len().max(resumed);
                    stays(begun, true, resumed, &what);
                }
                None => panic!("{what}: no end"),
            }
            if was_said {
                break;
            }
        }
    }
    assert!(stayed > 20, "{came_back} came back, {stayed} stayed");
    assert_eq!(came_back > 0, node == ORIGIN, "{came_back} came back");
}

#[test]
fn the_origin_dies_while_its_move_is_ended() {
    dies_while_it_is_ended(ORIGIN);
}

#[test]
fn the_target_dies_while_the_move_to_it_is_ended() {
    dies_while_it_is_ended(TARGET);
}
