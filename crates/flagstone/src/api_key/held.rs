//! A key that a running node holds, and its file, which may change.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::file::{Loaded, Stamp, load_file};
use super::{KeyUse, Secret};

/// How often the file is looked at for keys that are right. For one that is wrong it always is.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// For how long a file is read again although it looks the same: it may have changed twice within one tick of the
/// clock that its times are taken from.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// A key and where it comes from.
#[derive(Debug)]
pub struct HeldKey {
    place: Option<(PathBuf, KeyUse)>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The last good one.
    secret: Secret,
    looked: Instant,
    /// What the file looked like, good or not, and since when.
    seen: Option<(Stamp, Instant)>,
    is_settled: bool,
    /// What is there now can't be taken, and that has been said.
    is_bad: bool,
}

impl HeldKey {
    pub(super) fn new(path: PathBuf, key_use: KeyUse, loaded: Loaded) -> HeldKey {
        let (secret, stamp) = loaded;
        let mut held = HeldKey::fixed(secret);
        held.place = Some((path, key_use));
        let state = held.state.get_mut();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        state.seen = Some((stamp, state.looked));
        held
    }

    /// A key that is in no file, and stays.
    pub fn fixed(secret: Secret) -> HeldKey {
        HeldKey {
            place: None,
            state: Mutex::new(State {
                secret,
                looked: Instant::now(),
                seen: None,
                is_settled: false,
                is_bad: false,
            }),
        }
    }

    /// Whether it is the key that its file has. Reads the file if that has changed; the last good key stays if it
    /// is gone or can't be taken.
    pub fn accepts(&self, offered: &Secret) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK_PAUSE {
            self.look(&mut state);
        }
        if state.secret.is(offered) {
            return true;
        }
        self.look(&mut state);
        state.secret.is(offered)
    }

    /// A call or two to the system, on the API's thread: what is looked at is small and in memory.
    fn look(&self, state: &mut State) {
        let Some((path, key_use)) = &self.place else {
            return;
        };
        let now = Instant::now();
        state.looked = now;
        if let Ok(found) = fs::metadata(path) {
            let stamp = Stamp::of(&found);
            match state.seen {
                Some((seen, _)) if seen == stamp && state.is_settled => return,
                Some((seen, since)) if seen == stamp => {
                    state.is_settled = now.duration_since(since) >= SETTLED_AFTER;
                }
                _ => {
                    state.seen = Some((stamp, now));
                    state.is_settled = false;
                }
            }
        }
        match load_file(path, *key_use) {
            Ok((secret, _)) => {
                let is_new = !secret.is(&state.secret);
                if is_new || state.is_bad {
                    let what = if is_new {
                        "key replaced"
                    } else {
                        "key read again, the one before"
                    };
                    let file = path.display().to_string();
                    tracing::info!(target: "audit", key = key_use.file_name(), file, "{what}");
                }
                state.secret = secret;
                state.is_bad = false;
            }
            Err(error) if !state.is_bad => {
                tracing::warn!("{error}; until then the key before it holds");
                state.is_bad = true;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
