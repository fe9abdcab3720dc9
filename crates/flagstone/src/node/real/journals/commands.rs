//! What people ask about journals, and ask to be done with them.

use flagstone_fs::DvolRole;

use super::super::RealNode;
use super::super::core::CoreNode;
use super::super::describe::{LOOK_PAUSE, LOOKS_MAX};
use super::super::engines::OwnedEngine;
use super::super::errors::{closed, node_error};
use super::Stays;
use crate::node::{
    HandedOverJournal, JournalInfo, MetricKind, NamedValue, NodeError, NodeErrorKind,
};
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
    pub(in crate::node::real) fn journal_numbers(&self, device: usize) -> std::ops::Range<usize> {
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
        !self.closed_journals(device).is_empty()
    }

    /// The journals of a device that are closed, by their numbers there.
    pub(in crate::node::real) fn closed_journals(&self, device: usize) -> Vec<u16> {
        let numbered = (0..).zip(self.journal_numbers(device));
        let closed = numbered.filter(|(_, number)| self.homes.closed(*number).is_some());
        closed.map(|(journal, _)| journal).collect()
    }

    /// What a scrape shows of a device's journals.
    pub(in crate::node::real) fn journal_metrics(&self, device: usize) -> [NamedValue; 3] {
        let counts = self.journal_numbers(device).map(|n| self.homes.counted(n));
        let (done, failed) = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let closed = self.closed_journals(device).len() as u64;
        let value = |name, kind, value: u64, help| NamedValue {
            name,
            help,
            kind,
            value: value as f64,
        };
        [
            value(
                "closed_journals",
                MetricKind::Gauge,
                closed,
                "Journals that no core could open when they were handed over.",
            ),
            value(
                "hand_overs_done",
                MetricKind::Counter,
                done,
                "Journals that were handed to another core.",
            ),
            value(
                "hand_overs_failed",
                MetricKind::Counter,
                failed,
                "Hand-overs of journals that were tried and came to nothing.",
            ),
        ]
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
        let served = served.await?;
        let mut closed = Vec::new();
        for (journal, number) in self.journal_numbers(device).enumerate() {
            let Some(why) = self.homes.closed(number) else {
                continue;
            };
            closed.push(JournalInfo {
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
        Ok(each_once(served, closed))
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

/// The journals that are served and those that are closed, by number. One that closed while others were asked is in both: then as it was when its
/// core was asked.
fn each_once(served: Vec<JournalInfo>, closed: Vec<JournalInfo>) -> Vec<JournalInfo> {
    let mut journals = served;
    journals.extend(closed);
    // Doesn't change the order of those with the same number.
    journals.sort_by_key(|info| info.journal);
    journals.dedup_by_key(|info| info.journal);
    journals
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
            has_filesystems: self.files.hold(owned),
            takes_new: is_first,
            is_apart: self.homes.is_apart(owned.number),
            closed: None,
            reads: io.read.operations,
            writes: io.write.operations,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_closes_while_others_are_asked_is_listed_once() {
        let one = |journal, closed: Option<&str>| JournalInfo {
            journal,
            core: 0,
            volume_count: 1,
            mapped_bytes: 0,
            has_filesystems: false,
            takes_new: false,
            is_apart: false,
            closed: closed.map(str::to_owned),
            reads: 0,
            writes: 0,
        };
        let served = vec![one(0, None), one(1, None), one(3, None)];
        let closed = vec![one(1, Some("it is away")), one(2, Some("it is away"))];
        let listed = each_once(served, closed);
        let shown = listed
            .iter()
            .map(|info| (info.journal, info.closed.is_some()));
        let expected = [(0, false), (1, false), (2, true), (3, false)];
        assert!(shown.eq(expected), "{listed:?}");
    }
}
