//! What must be there at each moment of a record, from what the node answered and the clients sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_platform::record::NodeMark;

use super::client_log::{ClientLog, Kind, number_in};
use crate::image::SECTOR_BYTES;
use crate::record::IoEvent;

/// One writer at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriterProgress {
    /// Requests answered: all of its first ones. The next may have been sent.
    pub answered: usize,
    /// Requests that a client's flush has made stable: all of its first ones.
    pub flushed: usize,
}

/// A snapshot at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotProgress {
    /// The volume.
    pub volume: usize,
    /// Each writer's answered requests when it was asked for: it holds them all.
    pub least: Arc<[usize]>,
    /// The same when it was answered: it holds none sent later.
    pub most: Option<Arc<[usize]>>,
    /// Its deletion was asked for.
    pub going: bool,
    /// Its deletion was answered.
    pub gone: bool,
}

/// What must be there at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// By writer.
    pub writers: Vec<WriterProgress>,
    /// By name, `volume@snapshot`.
    pub snapshots: BTreeMap<String, SnapshotProgress>,
}

/// Follows a record.
pub struct Expected {
    log: Arc<ClientLog>,
    /// Now.
    pub progress: Progress,
    /// Clients' flushes under way: the volume, and each writer's answered requests at the start.
    flushes: BTreeMap<u64, (usize, Vec<usize>)>,
    /// Take unstable answers for stable ones; to see that the difference is noticed.
    believes_unstable: bool,
}

impl Expected {
    /// At the start of a record.
    pub fn new(log: Arc<ClientLog>, believes_unstable: bool) -> Expected {
        let writers = vec![WriterProgress::default(); log.writers.len()];
        Expected {
            progress: Progress {
                writers,
                snapshots: BTreeMap::new(),
            },
            log,
            flushes: BTreeMap::new(),
            believes_unstable,
        }
    }

    /// Takes the next event. An error if the node's answers and the clients' requests don't fit
    /// together: a client had an answer that the volume had not given.
    pub fn apply(&mut self, event: &IoEvent) -> Result<(), String> {
        match event {
            IoEvent::WriteSubmitted { bytes, .. } => {
                for sector in bytes.chunks(SECTOR_BYTES as usize) {
                    if let Some(number) = number_in(sector) {
                        self.sent(number)?;
                    }
                }
                Ok(())
            }
            IoEvent::Mark {
                value,
                offset_bytes,
                len_bytes,
                bytes,
            } => match NodeMark::of_value(*value) {
                Some(mark) => self.marked(mark, *offset_bytes, *len_bytes, bytes),
                None => Err(format!("the record has a mark {value} that no node makes")),
            },
            _ => Ok(()),
        }
    }

    /// A request was seen on its way to the device: its sender has had the answers to all that it
    /// sent before.
    fn sent(&self, number: u64) -> Result<(), String> {
        let Some((writer, place)) = self.log.sender_of(number) else {
            return Err(format!("the device is written {number}, which nobody sent"));
        };
        let now = self.progress.writers[writer];
        let request = self.log.writers[writer].requests[place];
        if now.answered < place {
            return Err(format!(
                "writer {writer} sent request {number} before the volume answered the one before"
            ));
        }
        if request.after_flush && now.answered == place && now.flushed < place {
            return Err(format!(
                "writer {writer} had the answer to a flush before the volume gave it"
            ));
        }
        Ok(())
    }

    fn marked(
        &mut self,
        mark: NodeMark,
        offset_bytes: u64,
        len_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        let (kind, stable) = match mark {
            NodeMark::WroteStable => (Kind::Write, true),
            NodeMark::WroteUnstable => (Kind::Write, false),
            NodeMark::ClearedStable => (Kind::Clear, true),
            NodeMark::ClearedUnstable => (Kind::Clear, false),
            NodeMark::FlushBegan(number) => {
                let answered = self.progress.writers.iter().map(|w| w.answered).collect();
                let began = (self.volume(bytes)?, answered);
                self.flushes.insert(number, began);
                return Ok(());
            }
            NodeMark::Flushed(number) => return self.flushed(number),
            NodeMark::SnapshotBegan
            | NodeMark::SnapshotTaken
            | NodeMark::SnapshotGoing
            | NodeMark::SnapshotGone => return self.snapshot(mark, bytes),
        };
        let (first, sectors) = (offset_bytes / SECTOR_BYTES, len_bytes / SECTOR_BYTES);
        let volume = self.volume(bytes)?;
        let writer = self.log.writer_of(volume, first);
        let writer = writer.ok_or_else(|| format!("nobody has sector {first}"))?;
        let now = &mut self.progress.writers[writer];
        let request = self.log.writers[writer].requests.get(now.answered);
        let fits = request.is_some_and(|r| {
            (r.kind, r.stable, r.first, r.sectors) == (kind, stable, first, sectors)
        });
        if !fits {
            return Err(format!(
                "writer {writer} sent {request:?} and {mark:?} of sectors {first} and on, \
                 {sectors} of them, was answered"
            ));
        }
        now.answered += 1;
        if self.believes_unstable {
            now.flushed = now.answered;
        }
        Ok(())
    }

    fn volume(&self, id: &[u8]) -> Result<usize, String> {
        let id = <[u8; 16]>::try_from(id).map_err(|_| "a mark without a dvol".to_owned())?;
        let found = self.log.volume_of_id(u128::from_le_bytes(id));
        found.ok_or_else(|| "a mark of a volume that nobody wrote to".to_owned())
    }

    fn flushed(&mut self, number: u64) -> Result<(), String> {
        let began = self.flushes.remove(&number);
        let (volume, answered) = began.ok_or("a flush ended that never began")?;
        let writers = self.progress.writers.iter_mut().zip(&self.log.writers);
        for ((now, writer), answered) in writers.zip(answered) {
            if writer.volume == volume {
                now.flushed = now.flushed.max(answered);
            }
        }
        Ok(())
    }

    fn snapshot(&mut self, mark: NodeMark, name: &[u8]) -> Result<(), String> {
        let name = String::from_utf8_lossy(name).into_owned();
        let answered: Arc<[usize]> = self.progress.writers.iter().map(|w| w.answered).collect();
        if mark == NodeMark::SnapshotBegan {
            let volume = name.split('@').next().unwrap_or_default();
            let volumes = &self.log.volumes;
            let volume = volumes.iter().position(|known| known.name == volume);
            let new = SnapshotProgress {
                volume: volume.ok_or_else(|| format!("{name} is of no volume"))?,
                least: answered,
                most: None,
                going: false,
                gone: false,
            };
            let known = self.progress.snapshots.insert(name.clone(), new);
            return match known {
                Some(_) => Err(format!("there were two snapshots called {name}")),
                None => Ok(()),
            };
        }
        let known = self.progress.snapshots.get_mut(&name);
        let known = known.ok_or_else(|| format!("{name} is not known"))?;
        match mark {
            NodeMark::SnapshotTaken => known.most = Some(answered),
            NodeMark::SnapshotGoing => known.going = true,
            _ => known.gone = true,
        }
        Ok(())
    }
}
