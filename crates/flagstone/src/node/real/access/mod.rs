//! Who may open a volume over the native protocol: its tokens, and the addresses it is restricted to.
//!
//! [`Access`] is the table of a whole node, which every core looks into when a client wants to open a volume; nothing
//! looks into it for a request on a volume that is open. A core changes the entries of its own volumes, once the
//! device has them ([`store`]): what is in the table survives power loss.
//!
//! What a client may learn: a claim on a volume that isn't there, with a token that isn't there, with a wrong proof, or
//! from where it may not be opened all take the same way, one proof made and compared in constant time, and get one
//! answer. Which of them it was is for the audit log.

mod admit;
mod commands;
mod interfaces;
mod record;
mod store;

use flagstone_platform::locks::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use flagstone_platform::Platform;
use flagstone_types::DvolId;

use self::interfaces::Interfaces;
use self::record::Token;
use super::between::Between;
use super::names::Names;
use crate::audit::Refusals;
use crate::node::Restrictions;

pub(super) use self::admit::{Grant, Origin, Rule, Where};
pub(super) use self::commands::tell_restricted;
pub(super) use self::interfaces::ends_of;
pub(super) use self::record::Record;
pub(super) use self::store::TokenStore;

/// Of volumes that are closed so many are named in the log.
const NAMED_MAX: usize = 16;

/// The tokens and restrictions of all volumes of a node.
#[derive(Clone, Default)]
pub(super) struct Access {
    names: Names,
    between: Between,
    interfaces: Interfaces,
    table: Arc<RwLock<Table>>,
    /// Which refusals are lines of the audit log.
    refusals: Arc<Mutex<Refusals>>,
}

#[derive(Default)]
struct Table {
    records: BTreeMap<DvolId, Arc<Record>>,
    /// How often it changed which addresses a volume may be used from.
    changes: u64,
}

impl Table {
    /// Puts in what a volume has now, if it has anything.
    fn replace(&mut self, volume: DvolId, record: Option<Record>) {
        let none = Record::new(volume);
        let before = match record {
            Some(record) => self.records.insert(volume, Arc::new(record)),
            None => self.records.remove(&volume),
        };
        let before = before.as_deref().unwrap_or(&none);
        let now = self.records.get(&volume).map_or(&none, |now| &**now);
        self.changes += u64::from(!now.is_restricted_as(before));
    }
}

impl Access {
    /// Of volumes with these names.
    pub(super) fn new(names: Names, between: Between) -> Access {
        Access {
            names,
            between,
            interfaces: Interfaces::default(),
            table: Arc::default(),
            refusals: Arc::default(),
        }
    }

    /// Puts in what a journal has of its volumes, whose names these are, and of these `others`. What can't be read is said in the log,
    /// and lets nobody in: a record that can't be read doesn't say whose it is, so each volume without one is [closed](Record::lost).
    pub(super) async fn load<P: Platform>(
        &self,
        store: &TokenStore<P>,
        device: usize,
        journal: u16,
        volumes: &BTreeMap<DvolId, String>,
        others: &BTreeSet<DvolId>,
    ) {
        let loaded = match store.load_of_volumes(others).await {
            Ok(loaded) => loaded,
            Err(error) => {
                volumes.keys().for_each(|id| self.set(Record::lost(*id)));
                tracing::error!(
                    device,
                    journal,
                    volumes = volumes.len(),
                    "reading the tokens of volumes: {error}; nobody can use the volumes of this journal: start the node \
                     again, and if that doesn't help, see with `flagstone verify` what is wrong, and copy them with \
                     `flagstone snapshot send`"
                );
                return;
            }
        };
        let mut without: BTreeMap<&DvolId, &String> = volumes.iter().collect();
        let mut others = others.clone();
        for record in loaded.records {
            without.remove(&record.volume);
            others.remove(&record.volume);
            self.set(record);
        }
        for what in &loaded.unreadable {
            tracing::error!(device, journal, "reading the tokens of volumes: {what}");
        }
        if loaded.unreadable.is_empty() {
            return;
        }
        for id in without.keys() {
            self.set(Record::lost(**id));
        }
        if !without.is_empty() {
            let named: Vec<&str> = without.values().map(|name| name.as_str()).collect();
            let count = named.len();
            let (shown, more) = named.split_at(count.min(NAMED_MAX));
            tracing::error!(
                device,
                journal,
                volumes = %shown.join(" "),
                more = more.len(),
                "{count} volumes have no record, and any of them may be one of those that can't be read: nobody can use them. \
                 Say anew from where each may be used (`flagstone volume restrict VOLUME --allow-from NETWORKS`, or \
                 `--none`), and make it a token (`flagstone volume token create VOLUME`)"
            );
        } else if others.is_empty() {
            // They are about volumes that were deleted.
            let _turn = store.turn().await;
            if let Err(error) = store.discard_unreadable().await {
                tracing::debug!(device, journal, "records that can't be read stay: {error}");
            }
        }
    }

    /// What a volume has.
    fn of(&self, volume: DvolId) -> Option<Arc<Record>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.records.get(&volume).cloned()
    }

    /// A number that differs whenever it may be that a volume can be used from other addresses than before.
    pub(super) fn changes(&self) -> u64 {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.changes
    }

    /// How many volumes are closed because their records can't be read. Costs what all volumes do.
    pub(super) fn lost_count(&self) -> u64 {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.records.values().filter(|r| r.is_lost).count() as u64
    }

    /// Whether a journal, by its number in the node, has any of those.
    fn has_lost_at(&self, engine: usize) -> bool {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let lost: Vec<DvolId> = table
            .records
            .values()
            .filter(|r| r.is_lost)
            .map(|r| r.volume)
            .collect();
        drop(table);
        let place_of = |id: &DvolId| self.names.place_of(*id).map(|(_, place)| place);
        lost.iter()
            .filter_map(place_of)
            .any(|place| place.engine == engine)
    }

    /// What a volume has, to take it elsewhere.
    pub(super) fn record_of(&self, volume: DvolId) -> Option<Arc<Record>> {
        self.of(volume)
    }

    /// Takes what one journal has of a volume for true, which others had, too.
    pub(super) async fn reload<P: Platform>(&self, store: &TokenStore<P>, volume: DvolId) {
        match store.record(volume).await {
            Ok(Some(record)) => self.set(record),
            Ok(None) if store.has_unreadable() => self.set(Record::lost(volume)),
            Ok(None) => self.forget(volume),
            Err(error) => {
                self.set(Record::lost(volume));
                tracing::error!(
                    %volume,
                    "reading its tokens: {error}; nobody can use it: say anew from where it may be used (`flagstone volume \
                     restrict`), and make it a token (`flagstone volume token create`)"
                );
            }
        }
    }

    /// What a volume is restricted to.
    pub(super) fn restrictions(&self, volume: DvolId) -> Restrictions {
        let record = self.of(volume);
        record.map_or_else(Restrictions::default, |record| Restrictions {
            allow_from: record.networks.clone(),
            allow_on: record.locals.clone(),
        })
    }

    /// A volume has this from now on.
    pub(super) fn set(&self, record: Record) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.replace(record.volume, Some(record));
    }

    /// A volume was deleted.
    pub(super) fn forget(&self, volume: DvolId) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.replace(volume, None);
    }
}

/// Tells those who have a volume open with a token that it was revoked.
fn revoke(token: &Token) {
    token.live.revoked.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod tests;
