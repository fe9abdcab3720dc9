//! What people ask about journals, and ask to be done with them.

use flagstone_fs::DvolRole;

use super::super::RealNode;
use super::super::core::CoreNode;
use super::super::describe::{LOOK_PAUSE, LOOKS_MAX};
use super::super::engines::OwnedEngine;
use super::super::errors::{closed, node_error};
use super::super::files::has_store;
use super::Stays;
use crate::node::{HandedOverJournal, JournalInfo, NodeError, NodeErrorKind};
use crate::size::counted;

impl RealNode {
    /// The number in the node of a device's journal.
    fn journal_number(&self, device: usize, journal: u16) -> Option<usize> {
        let found = self.devices.get(device)?;
        let before = self.devices.iter().take(device);
        let before: usize = before.map(|device| device.journal_count).sum();
        (usize::from(journal) < found.journal_count).then_some(before + usize::from(journal))
    }

    /// The numbers in the node of a device's journals, in order.
    fn journal_numbers(&self, device: usize) -> std::ops::Range<usize> {
        let first = self.journal_number(device, 0).unwrap_or(0);
        let found = self.devices.get(device);
        first..first + found.map_or(0, |found| found.journal_count)
    }

    /// Whether a core serves a journal of a device that takes new volumes.
    pub(in crate::node::real) fn serves(&self, core: usize, device: usize) -> bool {
        let mut numbers = self.journal_numbers(device);
        numbers.any(|number| self.homes.takes_new(number, core))
    }

    /// Does something with each journal of a device that anybody serves, on the core that does. `work` is asked again if it says that this
    /// is no moment for it.
    pub(in crate::node::real) async fn on_journals<R: Send + 'static>(
        &self,
        device: usize,
        doing: &str,
        work: impl Fn(&CoreNode, &OwnedEngine) -> Option<R> + Clone + Send + 'static,
    ) -> Result<Vec<R>, NodeError> {
        let mut done = Vec::new();
        'journals: for number in self.journal_numbers(device) {
            for _ in 0..LOOKS_MAX {
                let Some(core) = self.homes.of(number) else {
                    continue 'journals;
                };
                let work = work.clone();
                let asked = self.on_core(core, doing, move |core| async move {
                    let owned = core.engines.get(number)?;
                    work(&core, &owned)
                });
                if let Some(one) = asked.await? {
                    done.push(one);
                    continue 'journals;
                }
                if self.homes.closed(number).is_some() {
                    continue 'journals;
                }
                tokio::time::sleep(LOOK_PAUSE).await;
            }
            let found = "one of its journals is being handed over and doesn't arrive";
            return Err(NodeError::new(NodeErrorKind::Busy, doing, found).next("try again"));
        }
        Ok(done)
    }

    /// The device of a journal, by its number in the node.
    pub(in crate::node::real) fn device_of(&self, number: usize) -> usize {
        let mut devices = 0..self.devices.len();
        let found = devices.find(|device| self.journal_numbers(*device).contains(&number));
        found.unwrap_or(0)
    }

    /// Whether a journal of a device is closed.
    pub(in crate::node::real) fn has_closed(&self, device: usize) -> bool {
        let mut numbers = self.journal_numbers(device);
        numbers.any(|number| self.homes.closed(number).is_some())
    }

    /// What there is to say about journals that nobody serves.
    pub(in crate::node::real) fn closed_notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            for (journal, number) in self.journal_numbers(index).enumerate() {
                let Some(why) = self.homes.closed(number) else {
                    continue;
                };
                let volumes = counted(self.names.count_at(number), "volume");
                notices.push(format!(
                    "journal {journal} of device '{}' is closed, and its {volumes} served by nobody until the node is restarted: {why}",
                    device.name
                ));
            }
        }
        notices
    }

    pub(in crate::node::real) async fn journals_of(
        &self,
        device: String,
    ) -> Result<Vec<JournalInfo>, NodeError> {
        let doing = format!("listing the journals of device '{device}'");
        let device = self.device_index(&device, &doing)?;
        let served = self.on_journals(device, &doing, |core, owned| Some(core.journal_info(owned)));
        let mut journals = served.await?;
        for (journal, number) in self.journal_numbers(device).enumerate() {
            let Some(why) = self.homes.closed(number) else {
                continue;
            };
            journals.push(JournalInfo {
                journal: journal as u16,
                core: self.homes.of(number).unwrap_or_default() as u32,
                volume_count: self.names.count_at(number),
                mapped_bytes: 0,
                has_filesystems: false,
                takes_new: false,
                is_apart: self.homes.is_apart(number),
                closed: Some(why.to_owned()),
                reads: 0,
                writes: 0,
            });
        }
        journals.sort_by_key(|info| info.journal);
        Ok(journals)
    }

    pub(in crate::node::real) async fn hand_over(
        &self,
        device: String,
        journal: u16,
        core: u32,
    ) -> Result<HandedOverJournal, NodeError> {
        let doing = format!("handing over journal {journal} of device '{device}' to core {core}");
        let index = self.device_index(&device, &doing)?;
        let named = &self.devices[index].name;
        let Some(number) = self.journal_number(index, journal) else {
            let count = counted(self.devices[index].journal_count as u64, "journal");
            let found = format!("the device has {count}, from 0");
            return Err(NodeError::new(NodeErrorKind::NotFound, doing, found)
                .next(format!("`flagstone device journals {named}` lists them")));
        };
        let to = core as usize;
        if to >= self.remotes.len() {
            let count = counted(self.remotes.len() as u64, "core");
            let found = format!("the node has {count}, from 0");
            return Err(NodeError::new(NodeErrorKind::NotFound, doing, found)
                .next("name another core, or start the node with more --cores"));
        }
        if let Some(why) = self.homes.closed(number) {
            return Err(closed(why, &doing));
        }
        let from = self.homes.of(number).unwrap_or_default();
        if from == to {
            let found = format!("core {core} serves it already");
            return Err(
                NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(format!(
                    "`flagstone device journals {named}` says who serves which"
                )),
            );
        }
        let handed = self.on_core(from, &doing, move |core| async move {
            core.hand_journal_over(number, to).await
        });
        match handed.await? {
            Ok(moved) => Ok(HandedOverJournal {
                device: named.clone(),
                journal,
                from_core: from as u32,
                core,
                volume_count: moved.volumes,
                held_us: moved.held_ns / 1000,
            }),
            Err(stays) => Err(stays.error(&doing)),
        }
    }
}

impl Stays {
    fn error(self, doing: &str) -> NodeError {
        let error = |kind, found: String, next: &str| NodeError::new(kind, doing, found).next(next);
        match self {
            Stays::Going => error(
                NodeErrorKind::Busy,
                "it is being handed over already".to_owned(),
                "try again",
            ),
            Stays::Elsewhere => error(
                NodeErrorKind::Busy,
                "another core got it in this moment".to_owned(),
                "`flagstone device journals` says who serves it",
            ),
            Stays::Stopping => error(
                NodeErrorKind::Unavailable,
                "the node is stopping".to_owned(),
                "try again once it has been started",
            ),
            Stays::Filesystems => error(
                NodeErrorKind::InvalidArgument,
                "filesystems are stored in it, which stay on their core".to_owned(),
                "if it is for its volumes, move those one by one: `flagstone volume move NAME --core N`",
            ),
            Stays::Used { volume, how } if volume.is_empty() => error(
                NodeErrorKind::Busy,
                how.to_owned(),
                "try again once that is over",
            ),
            Stays::Used { volume, how } => error(
                NodeErrorKind::Busy,
                format!("volume '{volume}' can't go: {how}"),
                "try again once that is over",
            ),
            Stays::Failed(failed) => node_error(failed, doing),
            Stays::Reopened(why) => error(
                NodeErrorKind::Internal,
                format!("that core could not open it: {why}"),
                "it is served where it was; see the log",
            ),
            Stays::Closed(why) => error(
                NodeErrorKind::Internal,
                format!("no core could open it: {why}"),
                "nothing that was answered is lost, and its volumes are served by nobody: see the log, put that right, and restart the node",
            ),
        }
    }
}

impl CoreNode {
    fn journal_info(&self, owned: &OwnedEngine) -> JournalInfo {
        let (mut volumes, mut mapped) = (0, 0);
        for dvol in owned.engine.dvols() {
            volumes += u64::from(DvolRole::of(&dvol.attributes).is_none());
            mapped += dvol.mapped_bytes;
        }
        let io = owned.io.snapshot();
        let is_first = self.engines.first_of(owned.device) == Some(owned.number);
        JournalInfo {
            journal: owned.engine.journal_no(),
            core: self.index as u32,
            volume_count: volumes,
            mapped_bytes: mapped,
            has_filesystems: has_store(&owned.engine),
            takes_new: is_first,
            is_apart: self.homes.is_apart(owned.number),
            closed: None,
            reads: io.read.operations,
            writes: io.write.operations,
        }
    }
}
