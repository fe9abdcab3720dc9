//! Somebody opens a volume alone while it is on its way to another node, most of all while its move is cut off. What goes with a volume says of which
//! epoch it comes, and whoever held it in another one is locked out where it goes: that must not be the one who opened it last.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_device::engine::DvolError;
use flagstone_platform::Platform;
use flagstone_sim::{Cut, Rng};
use flagstone_types::Epoch;

use crate::between::{Death, changes_of, check};
use crate::node::{Both, CLIENTS, ORIGIN, PART_BYTES, TARGET, at, comes_of};
use crate::resumed::{ALL_BYTES, Begun, on_its_way};

/// What happens when so many bytes are copied.
#[derive(Clone, Copy, Debug)]
enum When {
    /// It is opened, and nothing else.
    Copied,
    /// The target is cut off, it is opened, and the target is reached again.
    CutOff,
    /// The target dies, it is opened, and the target is started again.
    Away,
    /// As `CutOff`, and the origin is started again before that.
    CutOffAndStarted,
    /// As `CutOff`, but it is opened behind a start of the origin.
    StartedAndCutOff,
}

/// In which epoch it was opened last.
#[derive(Clone, Default)]
struct Opened {
    answered: Rc<Cell<u32>>,
    asked: Rc<Cell<u32>>,
}

impl Opened {
    /// It is opened alone where it is, as a node does that: as a change of it.
    async fn again(&self, both: &Both) {
        let Some((engine, handle, gate)) = both.origin.here.borrow().clone() else {
            return;
        };
        let Ok(_entered) = gate.enter().await else {
            return;
        };
        let Ok(Epoch(epoch)) = engine.epoch_of(handle) else {
            return;
        };
        self.asked.set(epoch + 1);
        // A node that is dying fails what it is asked for.
        if engine.set_epoch(handle, Epoch(epoch + 1)).await.is_ok() {
            self.answered.set(epoch + 1);
        }
    }

    /// Whoever has it open isn't locked out where it is now.
    fn check(&self, what: &str, went: bool, both: &Both) {
        let epoch = match went {
            true => {
                let (engine, handle) = both.target.here.borrow().clone().expect("has come");
                comes_of(&engine.attributes_of(handle).expect("is there"))
            }
            false => {
                let (engine, handle, _) = both.origin.here.borrow().clone().expect("is here");
                engine.epoch_of(handle).expect("is there")
            }
        };
        let may_be = self.answered.get()..=self.asked.get();
        assert!(may_be.contains(&epoch.0), "{what}: {epoch:?}, {may_be:?}");
    }
}

/// It is opened so many times when that happens. Returns whether it went, and why not.
fn run(when: When, behind_bytes: u64, times: u32) -> (bool, Option<DvolError>) {
    let what = format!("{when:?} behind {behind_bytes}, {times} times");
    let mut begun = on_its_way(90);
    let opened = Opened::default();
    let both = begun.both.clone();
    let open = |begun: &Begun| {
        for _ in 0..times {
            let (opened, both) = (opened.clone(), begun.both.clone());
            let opening = async move { opened.again(&both).await };
            begun.scene.world.block_on(CLIENTS, opening);
        }
        assert_eq!(opened.answered.get(), opened.asked.get(), "{what}");
    };
    let until_copied = |begun: &Begun| {
        let origin = &both.origin;
        let is_due = || origin.copied_bytes.get() >= behind_bytes;
        begun.scene.run_until(is_due);
        assert!(!begun.scene.is_over(), "{what}: nothing is cut off");
    };
    let until_waits = |begun: &Begun| {
        begun.scene.run_until(|| both.origin.waits.get());
        assert!(both.origin.waits.get(), "{what}: it doesn't wait");
    };
    until_copied(&begun);
    match when {
        When::Copied => open(&begun),
        When::Away => {
            begun.scene.end(TARGET);
            until_waits(&begun);
            open(&begun);
            begun.scene.start_target(false);
        }
        When::CutOff | When::CutOffAndStarted | When::StartedAndCutOff => {
            begun.network.cut(&at().to_string(), Cut::Both);
            until_waits(&begun);
            if matches!(when, When::StartedAndCutOff) {
                begun.scene.kill(ORIGIN);
                until_waits(&begun);
            }
            open(&begun);
            if matches!(when, When::CutOffAndStarted) {
                begun.scene.kill(ORIGIN);
            }
            begun.network.heal();
        }
    }
    begun.scene.run_until(|| false);
    assert!(begun.scene.is_over(), "{what}: no end");
    let went = both.origin.ended.get() == Some(true);
    opened.check(&what, went, &both);
    if !went {
        begun.nothing_there(&what);
        assert_eq!(*both.origin.trouble.borrow(), None, "{what}: it is reached");
    }
    let world = &begun.scene.world;
    check(world, &what, went, &both, &begun.model, begun.snapshots);
    (went, both.origin.error.get())
}

/// Behind each part, as far as it isn't held by then. As often as a move raises the epoch, too: that is no move.
fn each_moment(mut each: impl FnMut(u64, u32)) {
    for (nth, behind_bytes) in (0..ALL_BYTES).step_by(PART_BYTES as usize).enumerate() {
        each(behind_bytes.max(1), [1, Epoch::PER_MOVE][nth % 2]);
    }
}

#[test]
fn a_move_ends_if_somebody_opens_the_volume_alone_while_it_is_copied() {
    each_moment(|behind_bytes, times| {
        let ended = run(When::Copied, behind_bytes, times);
        assert_eq!(ended, (false, Some(DvolError::StaleEpoch)));
    });
}

/// As soon as it is asked for, before anything of it is announced, or just behind that.
#[test]
fn whoever_opens_a_volume_alone_when_its_move_begins_is_not_locked_out() {
    let (mut went, mut stayed) = (0, 0);
    for delay_ns in (0..5_000_000).step_by(100_000) {
        let what = format!("{delay_ns} ns behind the beginning");
        let mut begun = on_its_way(90);
        let opened = Opened::default();
        let both = begun.both.clone();
        begun.scene.world.run_for(delay_ns);
        let (opening, origin) = (opened.clone(), both.clone());
        let opening = async move { opening.again(&origin).await };
        begun.scene.world.block_on(CLIENTS, opening);
        begun.scene.run_until(|| false);
        assert!(begun.scene.is_over(), "{what}: no end");
        let is_there = both.origin.ended.get() == Some(true);
        opened.check(&what, is_there, &both);
        let snapshots = std::mem::take(&mut begun.snapshots);
        let world = &begun.scene.world;
        check(world, &what, is_there, &both, &begun.model, snapshots);
        if is_there {
            went += 1;
        } else {
            stayed += 1;
            assert_eq!(both.origin.error.get(), Some(DvolError::StaleEpoch));
            begun.nothing_there(&what);
        }
    }
    assert!(stayed > 10, "{went} went, {stayed} stayed");
}

#[test]
fn a_move_that_was_cut_off_ends_if_somebody_has_opened_the_volume_alone_meanwhile() {
    for when in [When::CutOff, When::Away, When::StartedAndCutOff] {
        each_moment(|behind_bytes, times| {
            let ended = run(when, behind_bytes, times);
            let stays = (false, Some(DvolError::StaleEpoch));
            assert_eq!(ended, stays, "{when:?} behind {behind_bytes}");
        });
    }
}

/// It comes of the epoch of who opened it, since nobody has heard of the one before by then.
#[test]
fn a_move_goes_on_for_who_opened_the_volume_alone_before_its_origin_was_started_again() {
    each_moment(|behind_bytes, times| {
        let (went, _) = run(When::CutOffAndStarted, behind_bytes, times);
        assert!(went, "behind {behind_bytes}");
    });
}

/// At any moment, with deaths of both nodes and times in which they don't reach each other.
#[test]
fn whoever_opens_a_volume_alone_at_any_moment_is_not_locked_out() {
    let (mut went, mut stayed) = (0, 0);
    for seed in 3000..3150 {
        let mut begun = on_its_way(seed);
        let mut rng = Rng::stream(seed, 11);
        let both = begun.both.clone();
        let opened = Opened::default();
        let (opening, origin) = (opened.clone(), both.clone());
        let platform = begun.scene.world.platform(CLIENTS);
        let pauses: Vec<u64> = (0..rng.index(3))
            .map(|_| rng.within(&(0..=100_000_000)))
            .collect();
        let what = format!("seed {seed}, pauses of {pauses:?}");
        begun.scene.world.spawn(CLIENTS, async move {
            for pause_ns in pauses {
                platform.sleep_ns(pause_ns).await;
                // A node that dies meanwhile never answers.
                opening.again(&origin).await;
            }
        });
        for _ in 0..rng.index(3) {
            match rng.index(3) {
                0 => {
                    begun.network.cut(&at().to_string(), Cut::Both);
                    begun.scene.world.run_for(rng.within(&(0..=8_000_000_000)));
                    begun.network.heal();
                }
                node => {
                    let death = Death {
                        node: node - 1,
                        after_changes: rng.within(&(0..=80)),
                    };
                    let disk = begun.scene.disks[death.node].clone();
                    let due = changes_of(&disk) + death.after_changes;
                    begun.scene.run_until(|| changes_of(&disk) >= due);
                    if !begun.scene.is_over() {
                        begun.scene.kill(death.node);
                    }
                }
            }
        }
        begun.scene.run_until(|| false);
        assert!(begun.scene.is_over(), "{what}: no end");
        let is_there = both.origin.ended.get() == Some(true);
        opened.check(&what, is_there, &both);
        let world = &begun.scene.world;
        check(world, &what, is_there, &both, &begun.model, begun.snapshots);
        match is_there {
            true => went += 1,
            false => stayed += 1,
        }
    }
    assert!(went > 20 && stayed > 20, "{went} went, {stayed} stayed");
}
