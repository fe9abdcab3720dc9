//! First come, first served: for comparison, and for devices with one tenant.

use std::collections::VecDeque;

use crate::volume::{Place, Volume, VolumeKey};

/// The volumes of all requests that wait, in the order in which these came.
#[derive(Debug, Default)]
pub(crate) struct FirstCome {
    turns: VecDeque<VolumeKey>,
}

impl FirstCome {
    /// A request has come.
    pub(crate) fn add<R>(&mut self, key: VolumeKey, volume: &mut Volume<R>) {
        if volume.place == Place::Limited {
            volume.missed_turns += 1;
        } else {
            volume.place = Place::Ready;
            self.turns.push_back(key);
        }
    }

    /// A request is not wanted any more, before which so many of its volume wait: its turn goes, too.
    pub(crate) fn withdraw<R>(&mut self, key: VolumeKey, volume: &mut Volume<R>, before: usize) {
        // Turns that were missed came before those that stand here.
        let missed = usize::try_from(volume.missed_turns).unwrap_or(usize::MAX);
        let Some(before) = before.checked_sub(missed) else {
            volume.missed_turns -= 1;
            return;
        };
        let mut own = self.turns.iter().enumerate().filter(|(_, of)| **of == key);
        if let Some((at, _)) = own.nth(before) {
            self.turns.remove(at);
        }
    }

    /// How many turns there are.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.turns.len()
    }

    /// The volume whose turn it is.
    pub(crate) fn pick<R>(&mut self, volumes: &mut [Option<Volume<R>>]) -> Option<u32> {
        while let Some(key) = self.turns.pop_front() {
            let Some(Some(volume)) = volumes.get_mut(key.index as usize) else {
                continue;
            };
            if volume.generation != key.generation || volume.queue.is_empty() {
                continue;
            }
            match volume.place {
                Place::Limited => volume.missed_turns += 1,
                _ => return Some(key.index),
            }
        }
        None
    }

    /// A volume whose limit held it has its turns, which came before all others that wait now.
    pub(crate) fn give_turns<R>(&mut self, index: u32, volume: &mut Volume<R>) {
        volume.put(if volume.queue.is_empty() {
            Place::Idle
        } else {
            Place::Ready
        });
        let generation = volume.generation;
        for _ in 0..std::mem::take(&mut volume.missed_turns) {
            self.turns.push_front(VolumeKey { index, generation });
        }
    }
}
