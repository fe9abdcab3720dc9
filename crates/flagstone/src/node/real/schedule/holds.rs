//! Snapshots that are being sent: the schedule doesn't delete them before the stream has ended.

use flagstone_platform::locks::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use flagstone_device::engine::Handle;
use flagstone_types::{DvolId, LayerNo};

type Key = (DvolId, LayerNo);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// By so many streams.
    Sent(u64),
    /// The schedule is deleting it.
    Going,
}

/// Which snapshots of a core's volumes are being sent. Streams end on other threads.
#[derive(Clone, Default)]
pub(in crate::node::real) struct Holds(Arc<Mutex<BTreeMap<Key, Use>>>);

impl Holds {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<Key, Use>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps a snapshot until this is dropped. `None` if it is being deleted.
    pub(in crate::node::real) fn hold(&self, layer: Handle) -> Option<Held> {
        let key = (layer.id, layer.layer?);
        let is_held = self.with(|uses| match uses.entry(key).or_insert(Use::Sent(0)) {
            Use::Sent(count) => {
                *count += 1;
                true
            }
            Use::Going => false,
        });
        is_held.then(|| Held {
            holds: self.clone(),
            key,
        })
    }

    /// Whether any snapshot of a volume is being sent.
    pub(super) fn is_sent(&self, volume: DvolId) -> bool {
        self.with(|uses| {
            let mut of_it = uses.range((volume, LayerNo(0))..=(volume, LayerNo(u32::MAX)));
            of_it.any(|(_, used)| matches!(used, Use::Sent(_)))
        })
    }

    /// To be dropped when it is deleted. `None` if it is being sent.
    pub(super) fn begin_deleting(&self, layer: Handle) -> Option<Going> {
        let key = (layer.id, layer.layer?);
        let is_free = self.with(|uses| {
            let is_free = !uses.contains_key(&key);
            if is_free {
                uses.insert(key, Use::Going);
            }
            is_free
        });
        is_free.then(|| Going {
            holds: self.clone(),
            key,
        })
    }
}

/// A stream of a snapshot.
pub(in crate::node::real) struct Held {
    holds: Holds,
    key: Key,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.holds.with(|uses| {
            if let Some(Use::Sent(count)) = uses.get_mut(&self.key) {
                *count -= 1;
                if *count == 0 {
                    uses.remove(&self.key);
                }
            }
        });
    }
}

/// A snapshot that the schedule is deleting.
pub(super) struct Going {
    holds: Holds,
    key: Key,
}

impl Drop for Going {
    fn drop(&mut self) {
        self.holds.with(|uses| uses.remove(&self.key));
    }
}

#[cfg(test)]
mod tests {
    use flagstone_types::Slot;

    use super::*;

    #[test]
    fn what_is_sent_stays_until_the_last_stream_has_ended() {
        let holds = Holds::default();
        let layer = Handle {
            slot: Slot(1),
            id: DvolId(2),
            layer: Some(LayerNo(3)),
        };
        let (first, second) = (holds.hold(layer), holds.hold(layer));
        assert!(first.is_some() && second.is_some());
        let sent = [1, 2, 3].map(|volume| holds.is_sent(DvolId(volume)));
        assert_eq!(sent, [false, true, false]);
        drop(first);
        assert!(holds.begin_deleting(layer).is_none());
        drop(second);
        let going = holds.begin_deleting(layer);
        assert!(going.is_some());
        assert!(!holds.is_sent(DvolId(2)));
        assert!(holds.hold(layer).is_none(), "too late to send it");
        drop(going);
        assert!(holds.with(|uses| uses.is_empty()));
    }
}
