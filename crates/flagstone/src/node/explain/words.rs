//! What is said of causes: the figures, and what can be done.

use super::{BUSY_CORE, CauseKind, FULL_DEVICE, LEAST_PART, Measured, Took, USED_UP};
use crate::node::{Rates, SchedulePolicy, SloLimit, SloPromise};
use crate::size::{counted, percent, short_time as time};

pub(super) fn said(kind: CauseKind, measured: &Measured) -> (String, Option<String>) {
    match kind {
        CauseKind::Turn => of_turns(measured),
        CauseKind::JournalFull => (
            format!(
                "waiting for room in the journal's ring: checkpoints make it, and {} did so",
                counted(measured.checkpoints, "checkpoint")
            ),
            Some(
                "fewer changes at a time, or a device that writes faster; a device's journals are as large as it \
                 was formatted"
                    .to_owned(),
            ),
        ),
        CauseKind::Flush => (
            format!(
                "flushes of device '{}', which take it {} on average ({} for 99 of 100); what comes during one waits \
                 for the next",
                measured.device,
                time(measured.device_flush.mean_ns()),
                time(measured.device_flush.p99_ns)
            ),
            Some(
                "fewer flushes and stable writes, more of them at a time (they share flushes), or a device with a \
                 write cache that survives power loss"
                    .to_owned(),
            ),
        ),
        CauseKind::DeviceRead => (of_device("reads", &measured.device_read, measured), None),
        CauseKind::DeviceWrite => (of_device("writes", &measured.device_write, measured), None),
        CauseKind::Node => of_node(measured),
        CauseKind::Rest => (of_rest(measured), None),
    }
}

fn of_device(what: &str, took: &Took, measured: &Measured) -> String {
    format!(
        "{what} of device '{}', which take it {} on average ({} for 99 of 100) with {:.1} operations in it at a time",
        measured.device,
        time(took.mean_ns()),
        time(took.p99_ns),
        measured.device_in_flight
    )
}

fn of_node(measured: &Measured) -> (String, Option<String>) {
    let busy = percent(measured.core_busy);
    let core = measured.core;
    match measured.core_busy >= BUSY_CORE {
        true => (
            format!(
                "the node's own work on core {core}, which is busy {busy} of the time: operations wait for it"
            ),
            Some(format!(
                "put volumes on another core, give the node more cores, or ask for larger operations; `flagstone top` \
                 shows who uses core {core}"
            )),
        ),
        false => (
            format!(
                "at most: the node's own work on core {core}, which is busy {busy} of the time"
            ),
            None,
        ),
    }
}

/// What the counts leave: a device that isn't asked one thing after the other.
fn of_rest(measured: &Measured) -> String {
    format!(
        "nothing that is counted. It may be the slowest of several operations of device '{}' where one needs several \
         (large ones; pages of maps), changes before its own in the journal, or other programs that use the machine's \
         processors{}",
        measured.device,
        match measured.core_late >= LEAST_PART {
            true => format!(
                ": core {} came late for {} of the time",
                measured.core,
                percent(measured.core_late)
            ),
            false => String::new(),
        }
    )
}

/// Whether it is its own limit that it waits for: at least half of the time for which it waited for turns.
fn is_held_by_limit(measured: &Measured) -> bool {
    let waited = measured.waited_ns as f64 / measured.took_ns().max(1) as f64;
    let waited_ns = measured.occupied_ns as f64 * waited.min(1.0);
    measured.limited_ns > 0 && measured.limited_ns as f64 >= waited_ns / 2.0
}

/// Whether it waits for its core: that was late for half of the time for which it waited for turns, or for half of what all volumes together left of
/// the device.
fn is_held_by_core(measured: &Measured) -> bool {
    let waited = measured.waited_ns as f64 / measured.took_ns().max(1) as f64;
    let occupied = measured.occupied_ns as f64 / measured.interval_ns.max(1) as f64;
    let waited = occupied.min(1.0) * waited.min(1.0);
    let unused = (1.0 - measured.device_used.unwrap_or(0.0)).max(0.0);
    let late = measured.core_late;
    late >= LEAST_PART && (late >= waited / 2.0 || late >= unused / 2.0)
}

/// That the core was late, and for how long.
pub(super) fn late(measured: &Measured) -> String {
    format!(
        "core {} came late to what was due for {} of the time, a millisecond or more each time: other programs had its processor, or its own \
         work took long (it is busy {} of the time, such waiting included)",
        measured.core,
        percent(measured.core_late),
        percent(measured.core_busy)
    )
}

/// What to do about that.
pub(super) fn of_late(measured: &Measured) -> String {
    format!(
        "give core {} a processor of its own (end or move what else runs on this machine, or give the node fewer --cores than there are processors), \
         or put volumes on another core",
        measured.core
    )
}

/// Why it waits for its turns.
fn of_turns(measured: &Measured) -> (String, Option<String>) {
    let (volume, device) = (&measured.volume, &measured.device);
    if is_held_by_limit(measured) && measured.slo.limit == SloLimit::default() {
        return (
            format!(
                "it is being moved, and written as quickly as it is copied: its writes are made slower until it is there, which held it back for \
                 {} of the time",
                percent((measured.limited_ns as f64 / measured.interval_ns.max(1) as f64).min(1.0))
            ),
            Some(format!(
                "`flagstone volume move {volume} --status` says how far that is; a higher `--limit` there, or more of the device for moves, has it \
                 end sooner"
            )),
        );
    }
    if is_held_by_limit(measured) {
        return (
            format!(
                "its own limit ({}) held it back for {} of the time, whatever the device could do",
                measured.slo.limit,
                percent((measured.limited_ns as f64 / measured.interval_ns.max(1) as f64).min(1.0))
            ),
            Some(format!(
                "`flagstone volume slo {volume} --limit none`, or a higher one"
            )),
        );
    }
    let (Some(used), Some(promised)) = (measured.used, measured.promised) else {
        // It was divided, or limited, while the operations waited.
        return (
            "waiting for its turn, as nothing has to any more".to_owned(),
            None,
        );
    };
    let figures = format!(
        "waiting for its turn at device '{device}': it used {} of the device and is promised {} ({})",
        percent(used),
        percent(promised),
        measured.slo.promise
    );
    let is_used_up = used >= promised * USED_UP;
    let is_full = measured.device_used.is_some_and(|part| part >= FULL_DEVICE);
    let is_strict = measured.policy == SchedulePolicy::Strict;
    let is_out = is_full || (is_used_up && is_strict);
    if !is_out && is_held_by_core(measured) {
        return (
            format!(
                "{figures}. It is the core that it waits for, not the device: {}",
                late(measured)
            ),
            Some(of_late(measured)),
        );
    }
    if measured.missed > 0.0 && !is_used_up {
        return (
            format!(
                "{figures}, and for {} of the time it got less than that though it wanted more",
                percent(measured.missed)
            ),
            Some(of_missed(measured)),
        );
    }
    // What others don't use it gets beyond its promise, too, unless each has its own and no more.
    let is_used_up = is_used_up && is_out;
    if is_used_up && !is_strict && !measured.greedy.is_empty() {
        let others: Vec<String> = measured
            .greedy
            .iter()
            .map(|user| {
                let over = user.over.unwrap_or(0.0);
                format!("'{}' ({} over its promise)", user.volume, percent(over))
            })
            .collect();
        return (
            format!(
                "{figures}. It has used its promise up, and others want what is left, too: {}",
                others.join(", ")
            ),
            Some(more_for(measured)),
        );
    }
    if is_used_up {
        let said = match is_strict {
            true => format!(
                "{figures}. It has used its promise up, and with strict time sharing nobody gets more"
            ),
            false => format!(
                "{figures}. The device is close to its ceiling ({} of it), and nobody else uses more than he was promised",
                percent(measured.device_used.unwrap_or(1.0))
            ),
        };
        return (said, Some(more_for(measured)));
    }
    let said = format!(
        "{figures}. All volumes together used {} of the device, so it waits only while the device's window is full or \
         others that are behind go first: requests come in bursts, or are large",
        percent(measured.device_used.unwrap_or(used))
    );
    let advice = "ask for less at a time, or in smaller operations; a higher `latency` of the ceiling makes its window \
                  larger";
    (said, Some(advice.to_owned()))
}

/// What to do about a promise that isn't kept.
fn of_missed(measured: &Measured) -> String {
    match measured.core_busy >= BUSY_CORE {
        true => format!(
            "core {} is busy {} of the time: it doesn't come to ask the device for more. Put volumes on another core",
            measured.core,
            percent(measured.core_busy)
        ),
        false => format!(
            "if it stays so, the ceiling of device '{}' is more than the device, or the machine's processors, can do: \
             lower it (`flagstone device schedule`), or promise less to others",
            measured.device
        ),
    }
}

/// The options for twice a floor. A limit below that would have them refused.
fn more_floor(rates: Rates, limit: SloLimit) -> String {
    let twice = Rates {
        reads: rates.reads.saturating_mul(2),
        writes: rates.writes.saturating_mul(2),
    };
    let rates = [("reads", twice.reads), ("writes", twice.writes)];
    let given = rates.iter().filter(|(_, rate)| *rate > 0);
    let given: Vec<String> = given.map(|(name, rate)| format!("{name}={rate}")).collect();
    let limit = match limit.is_below(twice) {
        true => " --limit none",
        false => "",
    };
    format!("--floor {}{limit}", given.join(","))
}

fn more_for(measured: &Measured) -> String {
    let volume = &measured.volume;
    let raise = match measured.slo.promise {
        SloPromise::Share(parts) => format!("--share {}", parts.saturating_mul(2)),
        SloPromise::Floor(rates) => more_floor(rates, measured.slo.limit),
    };
    let raise = format!("promise it more (`flagstone volume slo {volume} {raise}`)");
    match measured.greedy.first() {
        Some(user) => format!("{raise}, or give '{}' a limit", user.volume),
        None => format!("{raise}, or raise the ceiling if the device can do more"),
    }
}
