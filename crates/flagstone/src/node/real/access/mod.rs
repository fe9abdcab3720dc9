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
mod record;
mod store;

use flagstone_platform::locks::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use flagstone_platform::Platform;
use flagstone_types::DvolId;

use self::record::Token;
use super::between::Between;
use super::names::Names;
use crate::node::Restrictions;

pub(super) use self::admit::{Grant, Origin, Rule, Where};
pub(super) use self::record::Record;
pub(super) use self::store::TokenStore;

/// The tokens and restrictions of all volumes of a node.
#[derive(Clone, Default)]
pub(super) struct Access {
    names: Names,
    between: Between,
    volumes: Arc<RwLock<BTreeMap<DvolId, Arc<Record>>>>,
}

impl Access {
    /// Of volumes with these names.
    pub(super) fn new(names: Names, between: Between) -> Access {
        Access {
            names,
            between,
            volumes: Arc::default(),
        }
    }

    /// Puts in what a journal has of its volumes, and of these `others`. What can't be read is said in the log, and lets nobody in.
    pub(super) async fn load<P: Platform>(
        &self,
        store: &TokenStore<P>,
        device: usize,
        journal: u16,
        others: &BTreeSet<DvolId>,
    ) {
        let loaded = match store.load_of_volumes(others).await {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::error!(
                    device,
                    journal,
                    "reading the tokens of volumes: {error}; volumes of this journal can't be opened with tokens: see \
                     with `flagstone verify` what else is wrong"
                );
                return;
            }
        };
        for what in &loaded.unreadable {
            tracing::error!(
                device,
                journal,
                "reading the tokens of volumes: {what}; the volume it was about can't be opened with a token: make a \
                 new one (`flagstone volume token create`), and restrict the volume anew"
            );
        }
        for record in loaded.records {
            self.set(record);
        }
    }

    /// What a volume has.
    fn of(&self, volume: DvolId) -> Option<Arc<Record>> {
        let volumes = self.volumes.read().unwrap_or_else(PoisonError::into_inner);
        volumes.get(&volume).cloned()
    }

    /// What a volume has, to take it elsewhere.
    pub(super) fn record_of(&self, volume: DvolId) -> Option<Arc<Record>> {
        self.of(volume)
    }

    /// Takes what one journal has of a volume for true, which others had, too.
    pub(super) async fn reload<P: Platform>(&self, store: &TokenStore<P>, volume: DvolId) {
        match store.record(volume).await {
            Ok(Some(record)) => self.set(record),
            Ok(None) => self.forget(volume),
            Err(error) => {
                self.forget(volume);
                tracing::error!(%volume, "reading its tokens: {error}; make a new one (`flagstone volume token create`)");
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
        let mut volumes = self.volumes.write().unwrap_or_else(PoisonError::into_inner);
        volumes.insert(record.volume, Arc::new(record));
    }

    /// A volume was deleted.
    pub(super) fn forget(&self, volume: DvolId) {
        let mut volumes = self.volumes.write().unwrap_or_else(PoisonError::into_inner);
        volumes.remove(&volume);
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
