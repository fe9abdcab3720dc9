//! Explores the model of commits over several stores: with the rules as they are nothing may be found, and every planted
//! bug must be.

use flagstone_model::{TwoPhase, TwoPhaseBug, TwoPhaseProperty, two_phase, two_phase_planted};

/// Far above what any configuration here has.
const STATES_MAX: usize = 4_000_000;

#[test]
fn the_rules_hold_in_every_reachable_state() {
    for config in two_phase(true) {
        let name = config.name;
        let outcome = TwoPhase::new(config, None).explore(STATES_MAX);
        if let Some(found) = outcome.counterexample {
            let steps = found.steps.join("\n");
            panic!("{name}: {} ({})\n{steps}", found.property, found.detail);
        }
        assert!(outcome.complete, "{name} is too large to be seen whole");
        assert!(
            outcome.states > 10_000,
            "{name} sees next to nothing: {}",
            outcome.states
        );
    }
}

/// Without the bug, its configuration is explored as far as the counterexample went.
#[test]
fn every_planted_bug_is_found() {
    for bug in TwoPhaseBug::ALL {
        let outcome = TwoPhase::new(two_phase_planted(bug), Some(bug)).explore(STATES_MAX);
        let found = outcome.counterexample;
        let found = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        assert!(found.steps.len() > 2, "{bug:?}: {:?}", found.steps);
        let without = TwoPhase::new(two_phase_planted(bug), None).explore(outcome.states);
        assert!(
            without.counterexample.is_none(),
            "{bug:?}: found without it"
        );
    }
}

/// A counterexample that can be read here: the last store must not decide alone.
#[test]
fn counterexamples_are_shortest_and_readable() {
    let bug = TwoPhaseBug::DecideBeforePrepared;
    let outcome = TwoPhase::new(two_phase_planted(bug), Some(bug)).explore(STATES_MAX);
    let found = outcome.counterexample.expect("a planted bug");
    assert_eq!(found.property, TwoPhaseProperty::AllOrNothing);
    assert_eq!(
        found.steps,
        [
            "T0: its coordinator reads",
            "T0: its coordinator reads",
            "T0: its coordinator reads",
            "T0: PrepareAndDecide arrives at store 2, which has Decided then",
        ]
    );
}

#[test]
fn bugs_have_names() {
    for bug in TwoPhaseBug::ALL {
        assert_eq!(TwoPhaseBug::by_name(&bug.name()), Some(bug));
    }
    assert_eq!(TwoPhaseBug::NoPromise.name(), "no-promise");
}
