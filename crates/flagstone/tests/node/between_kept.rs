//! What a move between nodes that is cut off keeps if it can't go on: nothing, at either node.

use flagstone::node::{MoveHooks, MovePoint, MoveState, NodeErrorKind};

use crate::between::ended;
use crate::between_resumed::{MIB, again_with, check, filled, info, node, on_its_way, until};

/// As one whose device is full. It is over then, and neither a start nor its copy remembers it.
#[test]
fn a_move_that_fails_at_once_behind_a_start_is_over() {
    let (one, other) = (node(), node());
    let owner = filled(&one);
    on_its_way(&one, &other, 5 * MIB);
    let one = again_with(one, |options| {
        let limit = options.move_hooks.point_after_bytes;
        options.move_hooks = MoveHooks::at_points(|at| at != MovePoint::GoesOn);
        options.move_hooks.point_after_bytes = limit;
    });
    let failed = ended(&one, "vm");
    assert_eq!(failed.state, MoveState::Failed, "{failed:?}");
    let error = failed.error.unwrap_or_default();
    assert!(error.contains("under way here"), "{error}");
    check(&one, &owner, 4);
    let resized = one.ask(|node| node.resize_volume("vm".to_owned(), 128 * MIB, false));
    resized.expect("it can be changed at once");
    // It goes with its copy.
    until("its name isn't free there", || {
        other.create("vm", MIB).is_ok()
    });
    other
        .ask(|node| node.delete_volume("vm".to_owned(), true))
        .expect("is deleted");
    let one = again_with(one, |_| {});
    let known = one.ask(|node| node.show_move("vm".to_owned()));
    assert_eq!(known.map_err(|e| e.kind), Err(NodeErrorKind::NotFound));
    check(&one, &owner, 4);
    // It can be asked for again.
    on_its_way(&one, &other, 5 * MIB);
    assert_eq!(info(&one).error, None);
    assert_eq!(ended(&one, "vm").state, MoveState::Done);
    check(&other, &owner, 4);
}
