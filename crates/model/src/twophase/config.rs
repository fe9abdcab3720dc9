//! Who takes part, how much may go wrong, and the planted bugs.

/// What a transaction does with the one page that a store has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Part {
    /// Nothing: it does not take part.
    None,
    /// Reads it and replaces it, if it is still as it was read.
    Write,
    /// Depends on it, and leaves it as it is.
    Check,
    /// Replaces it, whatever it holds.
    Blind,
}

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct TwoPhaseConfig {
    /// Names it in what is printed.
    pub name: &'static str,
    /// For each transaction, the stores in the order of its list and what it does in each.
    pub(crate) parts: Vec<Vec<(usize, Part)>>,
    /// Crashes of stores, all together.
    pub(crate) crashes: u8,
    /// Times that a store forgets a finished transaction for want of room.
    pub(crate) evictions: u8,
    /// Walks along the list by others than the coordinators.
    pub(crate) walks: u8,
}

/// One rule, broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwoPhaseBug {
    /// The coordinator lets the last store decide though not all others have answered.
    DecideBeforePrepared,
    /// The coordinator takes a lost answer of the last store for a refusal.
    LostAnswerIsAbort,
    /// A refusal leaves nothing behind: the same message may be accepted when it comes again.
    RefusalNotFinal,
    /// Prepared records are deleted without the promise of the store that is next in the list.
    NoPromise,
    /// A promise is forgotten in a crash, and nothing else keeps what it excludes away.
    PromiseForgotten,
    /// Finished transactions are forgotten, and the floor stays where it is.
    ForgottenBelowFloor,
    /// A released transaction leaves nothing behind: the last message may decide it once more.
    ReleasedForgotten,
    /// A store that is asked for the promise gives it though it has prepared, and drops its record.
    PromiseDropsPrepared,
    /// A store that is asked for the promise gives it though it has decided.
    PromiseAfterDecision,
    /// Who finds a decision releases the last store first.
    ReleaseLastFirst,
    /// Who finds a decision releases from where the list was met, not from its beginning.
    ReleaseFromMiddle,
    /// Who finds a decision with nothing before it leaves it there.
    DecisionLeftBehind,
    /// Whoever gets the promise takes that for proof that the transaction was aborted.
    PromiseProvesAbort,
    /// A promise given, what is refused because of it counts as refused from the beginning.
    PromiseIsVerdict,
    /// Pages that are only depended on aren't held.
    ChecksNotHeld,
    /// Pages that will be written aren't held against others who write them.
    WritesNotHeld,
    /// A page that will be written may still be depended on by others.
    CheckedThroughHold,
    /// A start doesn't hold what prepared records say.
    HoldsForgotten,
    /// A store answers that it has prepared before that is durable.
    PreparedBeforeDurable,
    /// A store answers that it has decided before that is durable.
    DecidedBeforeDurable,
    /// A store answers that it has released before that is durable.
    ReleasedBeforeDurable,
}

impl TwoPhaseBug {
    /// All of them, in the order of the table in `docs/protocols/two-phase-commit.md`.
    pub const ALL: [TwoPhaseBug; 21] = [
        TwoPhaseBug::DecideBeforePrepared,
        TwoPhaseBug::LostAnswerIsAbort,
        TwoPhaseBug::RefusalNotFinal,
        TwoPhaseBug::NoPromise,
        TwoPhaseBug::PromiseForgotten,
        TwoPhaseBug::ForgottenBelowFloor,
        TwoPhaseBug::ReleasedForgotten,
        TwoPhaseBug::PromiseDropsPrepared,
        TwoPhaseBug::PromiseAfterDecision,
        TwoPhaseBug::ReleaseLastFirst,
        TwoPhaseBug::ReleaseFromMiddle,
        TwoPhaseBug::DecisionLeftBehind,
        TwoPhaseBug::PromiseProvesAbort,
        TwoPhaseBug::PromiseIsVerdict,
        TwoPhaseBug::ChecksNotHeld,
        TwoPhaseBug::WritesNotHeld,
        TwoPhaseBug::CheckedThroughHold,
        TwoPhaseBug::HoldsForgotten,
        TwoPhaseBug::PreparedBeforeDurable,
        TwoPhaseBug::DecidedBeforeDurable,
        TwoPhaseBug::ReleasedBeforeDurable,
    ];

    /// Its name on the command line.
    pub fn name(self) -> String {
        crate::bug::dashed(&format!("{self:?}"))
    }

    /// The bug of that name.
    pub fn by_name(name: &str) -> Option<TwoPhaseBug> {
        TwoPhaseBug::ALL.into_iter().find(|bug| bug.name() == name)
    }
}

/// One transaction over three stores, by itself: messages, crashes, forgetting, walks.
fn alone() -> TwoPhaseConfig {
    TwoPhaseConfig {
        name: "two-phase alone",
        parts: vec![vec![(0, Part::Write), (1, Part::Write), (2, Part::Write)]],
        crashes: 2,
        evictions: 0,
        walks: 1,
    }
}

/// The same over two stores, with nothing that would be in a conflict with itself.
fn blind() -> TwoPhaseConfig {
    TwoPhaseConfig {
        name: "two-phase blind",
        parts: vec![vec![(0, Part::Blind), (1, Part::Blind)]],
        crashes: 1,
        evictions: 1,
        walks: 2,
    }
}

/// Two transactions that go through the same two stores in opposite directions.
fn crossing() -> TwoPhaseConfig {
    TwoPhaseConfig {
        name: "two-phase crossing",
        parts: vec![
            vec![(0, Part::Write), (1, Part::Write)],
            vec![(1, Part::Write), (0, Part::Write)],
        ],
        crashes: 1,
        evictions: 0,
        walks: 0,
    }
}

/// Each depends on what the other writes.
fn skew() -> TwoPhaseConfig {
    TwoPhaseConfig {
        name: "two-phase skew",
        parts: vec![
            vec![(0, Part::Check), (1, Part::Write)],
            vec![(1, Part::Check), (0, Part::Write)],
        ],
        crashes: 0,
        evictions: 0,
        walks: 1,
    }
}

/// One writes two pages that the other depends on, or writes whatever they hold.
fn mixed() -> TwoPhaseConfig {
    TwoPhaseConfig {
        name: "two-phase mixed",
        parts: vec![
            vec![(0, Part::Write), (1, Part::Write)],
            vec![(0, Part::Check), (1, Part::Write)],
        ],
        crashes: 0,
        evictions: 0,
        walks: 1,
    }
}

/// Three stores and two transactions that meet in two of them.
fn meeting() -> TwoPhaseConfig {
    TwoPhaseConfig {
        name: "two-phase meeting",
        parts: vec![
            vec![(0, Part::Write), (1, Part::Check), (2, Part::Write)],
            vec![(1, Part::Write), (2, Part::Write)],
        ],
        crashes: 0,
        evictions: 0,
        walks: 0,
    }
}

/// The configurations in which nothing may be found.
pub fn two_phase(is_small: bool) -> Vec<TwoPhaseConfig> {
    let mut all = vec![alone(), blind(), crossing(), skew(), mixed(), meeting()];
    if !is_small {
        for config in &mut all {
            config.crashes = config.crashes.max(1);
            config.walks = config.walks.max(1);
        }
    }
    all
}

/// A configuration in which this bug is found.
pub fn two_phase_planted(bug: TwoPhaseBug) -> TwoPhaseConfig {
    match bug {
        TwoPhaseBug::ReleasedForgotten | TwoPhaseBug::RefusalNotFinal => TwoPhaseConfig {
            parts: vec![
                vec![(0, Part::Blind), (1, Part::Blind)],
                vec![(1, Part::Write), (0, Part::Write)],
            ],
            walks: 1,
            ..crossing()
        },
        TwoPhaseBug::ForgottenBelowFloor
        | TwoPhaseBug::PromiseIsVerdict
        | TwoPhaseBug::PromiseProvesAbort => blind(),
        TwoPhaseBug::PromiseForgotten => TwoPhaseConfig {
            crashes: 1,
            ..alone()
        },
        TwoPhaseBug::ChecksNotHeld => skew(),
        TwoPhaseBug::CheckedThroughHold => mixed(),
        TwoPhaseBug::WritesNotHeld | TwoPhaseBug::HoldsForgotten => crossing(),
        _ => alone(),
    }
}
