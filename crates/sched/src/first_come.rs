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
