//! Snapshots of volumes.

use flagstone_platform::Platform;
use flagstone_types::Lsn;
use flagstone_wire::open::NAME_MAX_BYTES;
use flagstone_wire::snapshots::{self, NewSnapshot, SNAPSHOTS_MAX, Snapshots};
use flagstone_wire::{Operation, VolumeNo};

use crate::call::{Ask, Done, call};
use crate::client::Client;
use crate::conditional::{Committed, Volumes, invalid};
use crate::connect::Connect;
use crate::error::Error;
use crate::order::Blocks;
use crate::query::contradicts;
use crate::volume::Volume;

/// A snapshot that there is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// Of the last change in it.
    pub lsn: Lsn,
    /// When it was taken, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Size of the volume when it was taken, in bytes.
    pub size_bytes: u64,
}

impl<P: Platform, C: Connect> Client<P, C> {
    /// Takes snapshots of several volumes (1 to 1,024) in one instant, each with its name: 1 to 128
    /// bytes. It has every change that was answered before this is called. All volumes must be on one
    /// core and in one journal. Ends at the deadline of the first one.
    pub async fn snapshot(&self, new: &[(&Volume<P, C>, &str)]) -> Result<Committed, Error> {
        let doing = format!("taking {} snapshots", new.len());
        let Some((first, _)) = new.first() else {
            return invalid(&doing, "there must be one at least");
        };
        if new.len() > SNAPSHOTS_MAX {
            return invalid(&doing, "there may be 1,024 at once");
        }
        for (_, name) in new {
            check_name(name, &doing)?;
        }
        let mut volumes = Volumes::new();
        let indexes: Vec<usize> = new
            .iter()
            .map(|(volume, _)| volumes.index(volume))
            .collect();
        let body = |numbers: &[VolumeNo], out: &mut Vec<u8>| {
            let named = indexes.iter().zip(new).map(|(at, (_, name))| NewSnapshot {
                volume: numbers[*at],
                name,
            });
            let named: Vec<NewSnapshot<'_>> = named.collect();
            let encoded = snapshots::encode_snapshots(&named, out);
            encoded.expect("names and their count were held to their limits before");
        };
        let mut ask: Ask<'_> = first.ask(Operation::Snapshot, doing);
        ask.body = &body;
        let done = call(volumes.inners(), ask).await?;
        Ok(Committed::of(&done, new.len()))
    }
}

impl<P: Platform, C: Connect> Volume<P, C> {
    /// Takes a snapshot: the LSN of the last change in it. It has every change that was answered before
    /// this is called.
    pub async fn snapshot(&self, name: &str) -> Result<Lsn, Error> {
        let doing = format!("taking snapshot {name} of {}", self.inner.target);
        check_name(name, &doing)?;
        let body = |numbers: &[VolumeNo], out: &mut Vec<u8>| {
            let volume = numbers[0];
            let encoded = snapshots::encode_snapshots(&[NewSnapshot { volume, name }], out);
            encoded.expect("the name's length was looked at before");
        };
        let mut ask: Ask<'_> = self.ask(Operation::Snapshot, doing);
        ask.body = &body;
        self.call(ask).await.map(|done| done.lsn)
    }

    /// Deletes a snapshot.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), Error> {
        let doing = format!("deleting snapshot {name} of {}", self.inner.target);
        check_name(name, &doing)?;
        let ask = self.ask(Operation::DeleteSnapshot, doing);
        self.named(ask, name).await.map(drop)
    }

    /// Makes the volume what it was in a snapshot, as a change: its LSN. Changes that were called before
    /// are carried out first.
    pub async fn roll_back(&self, name: &str) -> Result<Lsn, Error> {
        let doing = format!("rolling {} back to snapshot {name}", self.inner.target);
        check_name(name, &doing)?;
        let mut ask = self.ask(Operation::RollBack, doing);
        ask.blocks = vec![Blocks::all(self.description().id)];
        self.named(ask, name).await.map(|done| done.lsn)
    }

    /// All snapshots, by name.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        let mut all: Vec<Snapshot> = Vec::new();
        loop {
            let doing = format!("listing the snapshots of {}", self.inner.target);
            let ask = self.ask(Operation::ListSnapshots, doing.clone());
            let after = all.last().map_or("", |last| &last.name);
            let done = self.named(ask, after).await?;
            let body = done.body.unwrap_or_default();
            let page = Snapshots::decode(&body, after);
            let page = page.map_err(|error| contradicts(&doing, &error))?;
            let before = all.len();
            let owned: Vec<Snapshot> = page
                .map(|snapshot| Snapshot {
                    name: snapshot.name.to_owned(),
                    lsn: snapshot.lsn,
                    created_ns: snapshot.created_ns,
                    size_bytes: snapshot.size_bytes,
                })
                .collect();
            all.extend(owned);
            // Names rise, so this comes to an end.
            if all.len() == before {
                return Ok(all);
            }
        }
    }

    /// Something whose body is a name.
    async fn named(&self, ask: Ask<'static>, name: &str) -> Result<Done, Error> {
        let body = |_: &[VolumeNo], out: &mut Vec<u8>| out.extend(name.as_bytes());
        let mut ask: Ask<'_> = ask;
        ask.body = &body;
        self.call(ask).await
    }
}

fn check_name(name: &str, doing: &str) -> Result<(), Error> {
    match (1..=NAME_MAX_BYTES).contains(&name.len()) {
        true => Ok(()),
        false => invalid(doing, "the name of a snapshot has 1 to 128 bytes"),
    }
}
