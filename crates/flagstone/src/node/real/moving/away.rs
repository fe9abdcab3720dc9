//! A move to another node that doesn't answer: how long, and how often it was tried to go on.

use super::Watched;

/// The other node doesn't answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::node::real) struct Away {
    /// Since when, in nanoseconds since 1970.
    pub(in crate::node::real) since_ns: u64,
    /// How often it was tried to go on, that it was cut off included.
    pub(in crate::node::real) attempts: u32,
}

impl Watched {
    /// The other node doesn't answer at this time, in nanoseconds since 1970, for this reason. Returns whether it did before.
    pub(in crate::node::real) fn is_cut_off(&self, now_ns: u64, why: String) -> bool {
        // In this order: of one that is seen to wait it is known why.
        self.set_trouble(Some(why));
        let mut seen = self.lock();
        let before = seen.away;
        let since_ns = before.map_or(now_ns, |away| away.since_ns);
        let attempts = before.map_or(0, |away| away.attempts).saturating_add(1);
        seen.away = Some(Away { since_ns, attempts });
        before.is_none()
    }

    /// The volume is held, and the other node was asked in vain whose it is, at this time and for this reason.
    pub(in crate::node::real) fn held_in_vain(&self, now_ns: u64, why: String) {
        self.set_trouble(Some(why));
        let mut seen = self.lock();
        let before = seen.held;
        let since_ns = before.map_or(now_ns, |held| held.since_ns);
        let attempts = before.map_or(0, |held| held.attempts).saturating_add(1);
        seen.held = Some(Away { since_ns, attempts });
    }

    /// The other node has said whose the volume is: somebody serves it, though the move isn't over yet.
    pub(in crate::node::real) fn is_told(&self) {
        if self.lock().held.take().is_some() {
            self.set_trouble(None);
        }
    }

    /// The other node has answered. Returns whether it didn't before.
    pub(in crate::node::real) fn goes_on(&self) -> bool {
        let was_away = self.lock().away.take().is_some();
        if was_away {
            self.set_trouble(None);
        }
        was_away
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_counted_how_often_it_was_tried_since_it_was_cut_off() {
        let watched = Watched::new(None);
        assert!(!watched.goes_on(), "it was never cut off");
        assert!(watched.is_cut_off(7, "no answer".to_owned()));
        assert!(!watched.is_cut_off(9, "no connection".to_owned()));
        let away = watched.seen().away;
        assert_eq!(
            away.map(|away| (away.since_ns, away.attempts)),
            Some((7, 2))
        );
        assert_eq!(watched.trouble().as_deref(), Some("no connection"));
        assert!(!watched.seen().is_running());
        assert!(watched.goes_on());
        assert!(watched.seen().is_running());
        assert_eq!(watched.trouble(), None);
        // Held it is another thing, which only what the other node says ends, or the end of the move.
        watched.held_in_vain(13, "no answer".to_owned());
        watched.held_in_vain(14, "no connection".to_owned());
        let held = watched.seen().held;
        assert_eq!(
            held.map(|held| (held.since_ns, held.attempts)),
            Some((13, 2))
        );
        assert_eq!(watched.trouble().as_deref(), Some("no connection"));
        assert!(!watched.seen().is_running());
        assert!(!watched.goes_on());
        assert!(watched.seen().held.is_some());
        watched.is_told();
        assert!(watched.seen().is_running());
        assert_eq!(watched.trouble(), None);
        watched.held_in_vain(15, "no answer".to_owned());
        let ended = watched.end(super::super::State::Done);
        assert_eq!((ended.held, ended.away), (None, None));
        // It is counted anew.
        let watched = Watched::new(None);
        assert!(watched.is_cut_off(11, "no answer".to_owned()));
        assert_eq!(watched.seen().away.map(|away| away.since_ns), Some(11));
    }
}
