//! Explores the model: with the rules as they are nothing may be found, and every planted bug must
//! be.

use flagstone_model::{Bug, Config, Model, Outcome, Property, Size, limits, plain, planted};

/// Far above what any configuration here has: an exploration that gets here has gone wrong.
const STATES_MAX: usize = 4_000_000;

fn explore(config: Config, bug: Option<Bug>) -> Outcome {
    Model::new(config, bug).explore(STATES_MAX)
}

/// Explores the plain configurations whose place in the list leaves this rest when divided by two;
/// two tests share them so that they run side by side.
fn nothing_is_found(rest: usize) {
    let mut explored = 0;
    for config in plain(Size::Small).into_iter().skip(rest).step_by(2) {
        let name = format!(
            "{} ({:?}, {:?})",
            config.name, config.discipline, config.seal
        );
        let outcome = explore(config, None);
        if let Some(found) = outcome.counterexample {
            panic!(
                "{name}: {} ({})\n{}",
                found.property,
                found.detail,
                found.steps.join("\n")
            );
        }
        assert!(outcome.complete, "{name} is too large to be seen whole");
        assert!(
            outcome.states > 2000,
            "{name} sees next to nothing: {} states",
            outcome.states
        );
        explored += 1;
    }
    assert!(explored > 10);
}

#[test]
fn the_rules_hold_in_every_reachable_state_1() {
    nothing_is_found(0);
}

#[test]
fn the_rules_hold_in_every_reachable_state_2() {
    nothing_is_found(1);
}

/// Without the bug, its configuration is explored as far as the counterexample went: else the bug
/// might be found only because the configuration is wrong.
#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        let outcome = explore(planted(bug), Some(bug));
        let found = outcome
            .counterexample
            .unwrap_or_else(|| panic!("{bug:?} was not found"));
        assert!(
            found.steps.len() > 1,
            "{bug:?}: nothing happened, and that is wrong?"
        );
        let without = Model::new(planted(bug), None).explore(outcome.states);
        assert!(
            without.counterexample.is_none(),
            "{bug:?}: its configuration is bad by itself"
        );
    }
}

/// What the rules don't give stays known, with the reason in `docs/model.md`.
#[test]
fn limits_are_as_documented() {
    for (config, property) in limits() {
        let name = config.name;
        let found = explore(config, None).counterexample;
        let found = found.unwrap_or_else(|| panic!("{name} is no limit any more: say so"));
        assert_eq!(found.property, property, "{name}: {}", found.detail);
    }
}

/// Two bugs whose counterexamples are so short that they can be read here.
#[test]
fn counterexamples_are_shortest_and_readable() {
    let found = explore(planted(Bug::AckBeforeFlush), Some(Bug::AckBeforeFlush)).counterexample;
    let found = found.expect("a planted bug");
    assert_eq!(found.property, Property::PromisesKept);
    assert_eq!(
        found.steps,
        [
            "core 0 submits group 1: op 3, stable write of k0 to block 2",
            "the write to block 2 is answered",
            "the write to ring slot 1 of core 0 is answered; op 3 acknowledged",
            "POWER LOSS: block 2 is torn or lost, ring slot 1 of core 0 is torn or lost",
        ]
    );
    let bug = Bug::DropOnlyFailingKey;
    let found = explore(planted(bug), Some(bug))
        .counterexample
        .expect("a planted bug");
    assert_eq!(found.property, Property::WholeOrAbsent);
    assert_eq!(found.steps.len(), 2);
}

/// The same exploration twice sees the same.
#[test]
fn explorations_repeat() {
    let counts = || {
        let config = plain(Size::Small)
            .into_iter()
            .find(|config| config.name == "reads");
        let outcome = explore(config.expect("there is one of that name"), None);
        (outcome.states, outcome.transitions, outcome.depth)
    };
    assert_eq!(counts(), counts());
}

#[test]
fn bugs_have_names() {
    for bug in Bug::ALL {
        assert_eq!(Bug::by_name(&bug.name()), Some(bug));
    }
    assert_eq!(Bug::AckBeforeFlush.name(), "ack-before-flush");
}
