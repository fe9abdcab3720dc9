//! S3-FIFO: which blocks to keep. Without I/O, and without knowing what a block is.
//!
//! Three queues, each first in, first out. What is new goes to the *small* one, a tenth of the places.
//! What leaves it without having been asked for twice is forgotten but for its key, which goes to the
//! *ghost*; what was asked for twice moves to the *main* queue, and so does what comes back while the
//! ghost remembers it. In the main queue, what was asked for since it was last looked at goes round once
//! more for each time, three at most. So a scan, which asks for everything once, passes through the small
//! queue and leaves the main one alone. A hit changes one small number and moves nothing.
//!
//! Invariants: never more than `places` keys; a key is in one queue at most; a key that was removed is
//! not found, and the ghost has forgotten it.
//!
//! The order depends on the keys and the calls alone. The ghost is a table by hash in which a newer key
//! may take an older one's place: that costs a second chance, never more.

use super::index::{Index, mix};

/// Hits that are counted between two looks at a key, at most.
const HITS_MAX: u8 = 3;

/// Hits in the small queue that get a key into the main one.
const HITS_TO_STAY: u8 = 2;

/// No entry.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Small,
    Main,
}

struct Entry<V> {
    key: u64,
    /// Towards the newest.
    newer: u32,
    /// Towards the oldest; in a vacant entry the next vacant one.
    older: u32,
    hits: u8,
    place: Place,
    /// `None` if the entry is vacant.
    value: Option<V>,
}

/// The ends of a queue.
struct Queue {
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Queue {
    const EMPTY: Queue = Queue {
        newest: NONE,
        oldest: NONE,
        len: 0,
    };
}

/// Keys that were let go lately.
struct Ghost {
    /// A part of the key's hash (never zero), and the number of the key.
    places: Box<[(u32, u32)]>,
    /// Keys noted so far.
    noted: u32,
    /// Keys remembered.
    len: u32,
}

impl Ghost {
    fn new(len: usize) -> Ghost {
        Ghost {
            places: vec![(0, 0); len.next_power_of_two()].into(),
            noted: 0,
            len: len as u32,
        }
    }

    fn place(&self, key: u64) -> (usize, u32) {
        let hash = mix(key);
        let place = (hash >> 32) as usize & (self.places.len() - 1);
        (place, hash as u32 | 1)
    }

    fn note(&mut self, key: u64) {
        let (place, tag) = self.place(key);
        self.places[place] = (tag, self.noted);
        self.noted = self.noted.wrapping_add(1);
    }

    /// Forgets a key; true if it was remembered.
    fn forget(&mut self, key: u64) -> bool {
        let (place, tag) = self.place(key);
        let (found, number) = self.places[place];
        if found != tag {
            return false;
        }
        self.places[place] = (0, 0);
        self.noted.wrapping_sub(number) <= self.len
    }
}

// [s3fifo 4.1]
/// See the module's page.
pub struct S3Fifo<V> {
    entries: Vec<Entry<V>>,
    vacant: u32,
    index: Index,
    small: Queue,
    main: Queue,
    ghost: Ghost,
    places: usize,
    small_max: usize,
}

impl<V> S3Fifo<V> {
    /// With room for so many, at least one.
    pub fn new(places: usize) -> S3Fifo<V> {
        let places = places.clamp(1, NONE as usize / 4);
        S3Fifo {
            // Memory that is not touched yet costs nothing.
            entries: Vec::with_capacity(places),
            vacant: NONE,
            index: Index::new(places),
            small: Queue::EMPTY,
            main: Queue::EMPTY,
            ghost: Ghost::new(places),
            places,
            small_max: (places / 10).max(1),
        }
    }

    /// Keys that are kept.
    pub fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    /// True if none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is kept for `key`, which counts as a hit.
    pub fn hit(&mut self, key: u64) -> Option<&V> {
        let at = self.find(key)?;
        let entry = &mut self.entries[at as usize];
        entry.hits = (entry.hits + 1).min(HITS_MAX);
        entry.value.as_ref()
    }

    /// What is kept for `key`; nobody has asked for it.
    pub fn peek(&self, key: u64) -> Option<&V> {
        self.entries[self.find(key)? as usize].value.as_ref()
    }

    /// Keeps `value`. What was kept for the key goes; so does something else if there is no room.
    pub fn insert(&mut self, key: u64, value: V) {
        if let Some(at) = self.find(key) {
            self.entries[at as usize].value = Some(value);
            return;
        }
        while self.len() >= self.places {
            self.evict();
        }
        let place = match self.ghost.forget(key) {
            true => Place::Main,
            false => Place::Small,
        };
        let entry = Entry {
            key,
            newer: NONE,
            older: NONE,
            hits: 0,
            place,
            value: Some(value),
        };
        let at = match self.vacant {
            NONE => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            vacant => {
                self.vacant = self.entries[vacant as usize].older;
                self.entries[vacant as usize] = entry;
                vacant
            }
        };
        self.index.insert(key, at);
        self.push(at, place);
    }

    /// Forgets `key` altogether: next time it is new.
    pub fn remove(&mut self, key: u64) -> Option<V> {
        self.ghost.forget(key);
        let at = self.find(key)?;
        Some(self.take_out(at).1)
    }

    /// Forgets all keys that are chosen.
    pub fn remove_all(&mut self, is_chosen: impl Fn(u64) -> bool) {
        for at in 0..self.entries.len() as u32 {
            let entry = &self.entries[at as usize];
            if entry.value.is_some() && is_chosen(entry.key) {
                self.take_out(at);
            }
        }
    }

    /// Lets go of what is least worth keeping.
    pub fn evict(&mut self) -> Option<(u64, V)> {
        loop {
            let from_small = self.small.len >= self.small_max || self.main.len == 0;
            let place = match from_small {
                true => Place::Small,
                false => Place::Main,
            };
            let at = self.queue(place).oldest;
            if at == NONE {
                return None;
            }
            let hits = self.entries[at as usize].hits;
            match place {
                Place::Small if hits >= HITS_TO_STAY => {
                    self.unlink(at);
                    self.entries[at as usize].hits = 0;
                    self.push(at, Place::Main);
                }
                Place::Main if hits > 0 => {
                    self.unlink(at);
                    self.entries[at as usize].hits = hits - 1;
                    self.push(at, Place::Main);
                }
                _ => {
                    let (key, value) = self.take_out(at);
                    if place == Place::Small {
                        self.ghost.note(key);
                    }
                    return Some((key, value));
                }
            }
        }
    }

    fn find(&self, key: u64) -> Option<u32> {
        let is_it = |at: u32| self.entries[at as usize].key == key;
        self.index.find(key, is_it)
    }

    fn queue(&mut self, place: Place) -> &mut Queue {
        match place {
            Place::Small => &mut self.small,
            Place::Main => &mut self.main,
        }
    }

    /// Puts an entry that is in no queue at the newest end of one.
    fn push(&mut self, at: u32, place: Place) {
        let queue = self.queue(place);
        let before = std::mem::replace(&mut queue.newest, at);
        queue.len += 1;
        match before {
            NONE => queue.oldest = at,
            before => self.entries[before as usize].newer = at,
        }
        let entry = &mut self.entries[at as usize];
        entry.place = place;
        entry.older = before;
        entry.newer = NONE;
    }

    /// Takes an entry out of its queue.
    fn unlink(&mut self, at: u32) {
        let Entry {
            newer,
            older,
            place,
            ..
        } = self.entries[at as usize];
        match newer {
            NONE => self.queue(place).newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.queue(place).oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        self.queue(place).len -= 1;
    }

    fn take_out(&mut self, at: u32) -> (u64, V) {
        self.unlink(at);
        let entries = &self.entries;
        let key = entries[at as usize].key;
        self.index
            .remove(key, at, |other| entries[other as usize].key);
        let vacant = std::mem::replace(&mut self.vacant, at);
        let entry = &mut self.entries[at as usize];
        entry.older = vacant;
        let value = entry.value.take().expect("what is in a queue has a value");
        (key, value)
    }
}

#[cfg(test)]
mod tests;
