//! What the node has to do besides, while the middle third of the time lasts.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::load::{self, Clock};
use super::moved::{self, Moved, To};
use crate::api::Api;
use crate::daemon::Node;

/// How often it is looked at, and begun anew if it has ended.
const LOOK: Duration = Duration::from_millis(100);
/// The volume that is moved.
const MOVED: &str = "moved";
/// So little that several moves are over while the burst lasts: holding its requests, changing over and deleting what was left belong to what
/// neighbours may notice. With 256 MiB no move came to that.
const MOVED_BYTES: u64 = 1 << 20;

/// So long a volume counts among those that share the device when nobody uses it any more, as this one isn't used. With strict time sharing others
/// had three quarters of what they have without it, before the burst and for a part of it.
const COUNTED: Duration = Duration::from_secs(20);

/// What was done while the burst lasted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Done {
    /// Scrubbed or copied.
    pub(super) bytes: u64,
    /// Moves that were over, of what had begun in that time as well.
    pub(super) moves: u64,
    /// Those of a tenant's own volume.
    pub(super) own_moves: Vec<Moved>,
}

/// What.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beside {
    /// The device is scrubbed, again and again.
    Scrub,
    /// A volume goes from core to core and back.
    Moves,
    /// The first tenant's own volume goes somewhere and back.
    Victim(To),
}

impl Beside {
    /// What has been done to so many bytes, for the report.
    pub(super) fn done(self) -> &'static str {
        match self {
            Beside::Scrub => "scrubbed",
            Beside::Moves | Beside::Victim(_) => "copied by moves",
        }
    }

    /// What there has to be.
    pub(super) fn prepare(self, node: &Node) -> Result<()> {
        if let Beside::Victim(to) = self {
            return to.prepare(node);
        }
        if self == Beside::Moves {
            let size = MOVED_BYTES.to_string();
            node.run(&["volume", "create", MOVED, "--size", &size, "--core", "0"])?;
            load::fill(node.nbd_port, MOVED)?;
            // For the first volume of a core a segment of the device is laid out, which is to be over before anything is measured.
            node.run(&[
                "volume", "create", "settled", "--size", "1MiB", "--core", "1",
            ])?;
            thread::sleep(COUNTED);
        }
        Ok(())
    }

    /// Does it, again and again. What isn't over when the burst is goes on until the node ends: with strict sharing a whole scrub takes
    /// minutes.
    pub(super) fn keep_busy(self, api: &Api, clock: Clock) -> Result<Done> {
        if let Beside::Victim(to) = self {
            let own_moves = moved::keep_moving(api, clock, to)?;
            return Ok(Done {
                bytes: own_moves.iter().map(|moved| moved.copied_bytes).sum(),
                moves: own_moves.len() as u64,
                own_moves,
            });
        }
        let until_burst = Duration::from_nanos(clock.burst_ns());
        thread::sleep(until_burst.saturating_sub(clock.start.elapsed()));
        let of_moved = format!("/v1/volumes/{MOVED}/move");
        let mut rounds = Rounds::default();
        let mut to_core = 1;
        let mut is_over = true;
        let mut moves = 0;
        while clock.now_ns() < clock.burst_end_ns() {
            match self {
                Beside::Victim(_) => bail!("whoever moves it was begun above"),
                // This answers with the one that runs, if one does.
                Beside::Scrub => {
                    let status = api.ask("POST", "/v1/devices/device/scrub", None)?;
                    rounds.note(bytes_of(&status, "checked_bytes")?);
                }
                Beside::Moves if is_over => {
                    let spec = json!({ "core": to_core });
                    api.ask("POST", &of_moved, Some(&spec))?;
                    (to_core, is_over) = (1 - to_core, false);
                    rounds.note(0);
                }
                Beside::Moves => {
                    let status = api.ask("GET", &of_moved, None)?;
                    rounds.note(bytes_of(&status, "copied_bytes")?);
                    is_over = match status["state"].as_str() {
                        Some("running") => false,
                        Some("done") => {
                            // What was answered later may have been done later.
                            moves += u64::from(clock.now_ns() < clock.burst_end_ns());
                            true
                        }
                        other => bail!("the move's state is {other:?}: {status}"),
                    };
                }
            }
            // The next move follows at once.
            if !is_over || self != Beside::Moves {
                thread::sleep(LOOK);
            }
        }
        Ok(Done {
            bytes: rounds.bytes(),
            moves,
            own_moves: Vec::new(),
        })
    }
}

fn bytes_of(status: &Value, field: &str) -> Result<u64> {
    let bytes = status[field].as_u64();
    bytes.with_context(|| format!("it doesn't say `{field}`: {status}"))
}

/// How much was done in several rounds, one after the other.
#[derive(Default)]
struct Rounds {
    over_bytes: u64,
    last_bytes: u64,
}

impl Rounds {
    /// What the round that runs has done so far.
    fn note(&mut self, bytes: u64) {
        if bytes < self.last_bytes {
            // Another one.
            self.over_bytes += self.last_bytes;
        }
        self.last_bytes = bytes;
    }

    fn bytes(&self) -> u64 {
        self.over_bytes + self.last_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_counts() {
        let mut rounds = Rounds::default();
        for bytes in [0, 5, 9, 2, 2, 7] {
            rounds.note(bytes);
        }
        assert_eq!(rounds.bytes(), 9 + 7);
    }
}
