//! Why a volume is slow: what the time of its operations was spent on, from numbers that were measured.
//!
//! Everything here is a pure function of [`Measured`]. What was measured of the volume itself (how long its operations
//! took, how long they waited for their turns) is exact. What happened below is not counted for each volume: how long the
//! device took for one operation, of all of the node's. So the parts of the device are that, for each operation of the
//! volume. Of what that leaves, the core can have caused no more than the part of the time for which it worked; the rest is
//! said to be unexplained. Parts never add up to more than what the operations took.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use flagstone_types::DvolId;

use super::activity::{
    DeviceUser, Spans, VolumeActivity, VolumeSpan, core_activities, device_io, users,
};
use super::look::{CoreLook, Look, ServerLook, VolumeLook};
use super::metrics::{ErrorCount, IoMetrics};
use super::slo::{SchedulePolicy, Slo};
use super::types::VolumeInfo;
use crate::size::{counted, percent, short_time as time};

mod words;

use words::said;

/// Parts of the time below this one are not worth a sentence.
const LEAST_PART: f64 = 0.02;

/// A core that is busy for this part of the time has no room for bursts: what comes waits for what is there.
const BUSY_CORE: f64 = 0.8;

/// A core that comes late for this part of the time leaves its devices idle meanwhile.
const LATE_CORE: f64 = 0.1;

/// A device of whose ceiling volumes use this part is taken to be at it: some is kept for the background, and what waits
/// for the next tick is not used.
const FULL_DEVICE: f64 = 0.85;

/// A volume that used this part of what it was promised has used it up.
const USED_UP: f64 = 0.95;

/// With this part of the time without anything to do for a volume, its client is what makes it slow.
const IDLE: f64 = 0.3;

/// How long something took: how many times, and all times together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Took {
    /// Operations.
    pub count: u64,
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
    /// 99 of 100 took no longer, in nanoseconds.
    pub p99_ns: u64,
}

impl Took {
    /// Of counted operations.
    pub fn of(counted: &IoMetrics) -> Took {
        Took {
            count: counted.operations,
            sum_ns: counted.latency.sum_ns(),
            p99_ns: counted.latency.quantile_ns(0.99).unwrap_or(0),
        }
    }

    fn mean_ns(&self) -> u64 {
        self.sum_ns / self.count.max(1)
    }
}

/// What was measured of a volume, and of what it uses, in an interval.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Measured {
    /// Its name.
    pub volume: String,
    /// The device that holds it.
    pub device: String,
    /// The core that owns it.
    pub core: u32,
    /// How long the interval was, in nanoseconds.
    pub interval_ns: u64,
    /// Its SLO.
    pub slo: Slo,
    /// Its reads, from accepting them to answering them.
    pub read: Took,
    /// Its writes.
    pub write: Took,
    /// Its flushes.
    pub flush: Took,
    /// Its deallocations.
    pub trim: Took,
    /// How many of its changes were answered only when they were durable.
    pub stable: u64,
    /// What of all that was spent on waiting for turns, in nanoseconds.
    pub waited_ns: u64,
    /// Operations that have begun and have not ended, at the end of the interval.
    pub in_flight: u64,
    /// Time in which it had an operation under way, in nanoseconds.
    pub occupied_ns: u64,
    /// Operations that failed.
    pub errors: Vec<ErrorCount>,
    /// The part of the device's time that it used. `None` where nothing is divided.
    pub used: Option<f64>,
    /// The part that it is promised.
    pub promised: Option<f64>,
    /// The part of the interval for which it got less than that, though it wanted more.
    pub missed: f64,
    /// For how long its own limit held it back, in nanoseconds.
    pub limited_ns: u64,
    /// Who goes next at the device.
    pub policy: SchedulePolicy,
    /// The part of the device's ceiling that all volumes used.
    pub device_used: Option<f64>,
    /// Others who used more of the device than they were promised, by how much.
    pub greedy: Vec<DeviceUser>,
    /// Reads of the device, by all of the node.
    pub device_read: Took,
    /// Writes of the device.
    pub device_write: Took,
    /// Flushes of the device.
    pub device_flush: Took,
    /// Operations in the device at a time, on average.
    pub device_in_flight: f64,
    /// For how long changes of its journal could not go on for lack of room in the ring, in nanoseconds.
    pub journal_full_ns: u64,
    /// Checkpoints that its journal made.
    pub checkpoints: u64,
    /// The part of the time that the core worked.
    pub core_busy: f64,
    /// The part of the time for which something was due and the core didn't come to it.
    pub core_late: f64,
    /// Commands of NBD that the core answered, of all its volumes, and their operations.
    pub nbd: ServerLook,
    /// The same of the native protocol.
    pub native: ServerLook,
}

/// What time can be spent on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// Waiting for a turn at the device.
    Turn,
    /// Waiting for room in the journal's ring.
    JournalFull,
    /// Flushes of the device: the one that makes it durable, and the one before that.
    Flush,
    /// Reads of the device.
    DeviceRead,
    /// Writes of the device.
    DeviceWrite,
    /// The node's own work, and waiting for the core to be free: at most the part of the time for which it worked.
    Node,
    /// What no count explains.
    Rest,
}

/// What a part of the time was spent on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Cause {
    /// What.
    pub kind: CauseKind,
    /// The part of the time of all operations: all causes together are at most 1.
    pub part: f64,
    /// How long, for an operation on average, in nanoseconds.
    pub mean_ns: u64,
    /// The figures, in a sentence.
    pub says: String,
    /// What can be done about it; null where nothing is to be done.
    pub advice: Option<String>,
}

/// What matters beside how long operations took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// Operations are under way, and none has ended.
    Stuck,
    /// Operations failed.
    Errors,
    /// It got less than it was promised.
    Missed,
    /// Nothing was asked of it, or little: what is slow is in front of the node.
    Client,
    /// Time passes between the arrival of a command and its operation, or between that and the answer.
    Gateway,
    /// The core that owns it has little time left, or comes late.
    Core,
}

/// Something that matters beside that.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Note {
    /// What it is about.
    pub kind: NoteKind,
    /// The figures, in a sentence.
    pub says: String,
}

/// Why a volume is as slow as it is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// When the interval ended: nanoseconds since 1970-01-01 UTC.
    pub ended_ns: u64,
    /// How long it was, in nanoseconds.
    pub interval_ns: u64,
    /// What the volume did.
    pub volume: VolumeActivity,
    /// What the time of its operations was spent on, the largest part first.
    pub causes: Vec<Cause>,
    /// What else matters, the most serious first.
    pub notes: Vec<Note>,
}

impl Measured {
    fn count(&self) -> u64 {
        self.read.count + self.write.count + self.flush.count + self.trim.count
    }

    fn took_ns(&self) -> u64 {
        let kinds = [&self.read, &self.write, &self.flush, &self.trim];
        kinds
            .iter()
            .fold(0, |sum, kind| sum.saturating_add(kind.sum_ns))
    }
}

/// How the time of its operations is divided among causes, in nanoseconds. What was measured of the volume comes first;
/// what is reckoned from the device's operations gets what is left.
fn divided(measured: &Measured) -> Vec<(CauseKind, u64)> {
    let took_ns = measured.took_ns();
    let waited_ns = measured.waited_ns.min(took_ns);
    // How long turns were waited for isn't counted by kind: all kinds are taken to have waited alike.
    let went_on = 1.0 - waited_ns as f64 / took_ns.max(1) as f64;
    let left = |sum_ns: u64| (sum_ns as f64 * went_on) as u64;
    let mut reads_ns = left(measured.read.sum_ns);
    let mut changes_ns = left(measured.write.sum_ns.saturating_add(measured.trim.sum_ns));
    let flushes_ns = left(measured.flush.sum_ns);
    let take = |left_ns: &mut u64, wanted_ns: u64| {
        let ns = wanted_ns.min(*left_ns);
        *left_ns -= ns;
        ns
    };
    // All of its changes wait as long as the ring is full, however many there are at a time.
    let full = measured.journal_full_ns as f64 / measured.interval_ns.max(1) as f64;
    let full_ns = (changes_ns as f64 * full.min(1.0)) as u64;
    let full_ns = take(&mut changes_ns, full_ns);
    // A flush waits for nothing else than flushes. Many changes share one, so there are fewer than those who wait for it.
    let flush_ns = measured.device_flush.mean_ns();
    let durable_ns = take(&mut changes_ns, measured.stable.saturating_mul(flush_ns));
    // Of what the device did less often than the volume asked, the rest was answered from memory.
    let of_device = |count: u64, device: &Took| {
        let times = count.min(device.count);
        times.saturating_mul(device.mean_ns())
    };
    let read_ns = of_device(measured.read.count, &measured.device_read);
    let read_ns = take(&mut reads_ns, read_ns);
    let write_ns = of_device(measured.write.count, &measured.device_write);
    let write_ns = take(&mut changes_ns, write_ns);
    let rest_ns = reads_ns + changes_ns;
    let node_ns = rest_ns.min((took_ns as f64 * measured.core_busy) as u64);
    vec![
        (CauseKind::Turn, waited_ns),
        (CauseKind::JournalFull, full_ns),
        (CauseKind::Flush, flushes_ns + durable_ns),
        (CauseKind::DeviceRead, read_ns),
        (CauseKind::DeviceWrite, write_ns),
        (CauseKind::Node, node_ns),
        (CauseKind::Rest, rest_ns - node_ns),
    ]
}

/// What the time of a volume's operations was spent on, the largest part first.
fn causes(measured: &Measured) -> Vec<Cause> {
    let (count, took_ns) = (measured.count().max(1), measured.took_ns().max(1));
    let mut causes: Vec<Cause> = divided(measured)
        .into_iter()
        .map(|(kind, ns)| {
            let (says, advice) = said(kind, measured);
            let part = ns as f64 / took_ns as f64;
            Cause {
                kind,
                part: (part * 10_000.0).round() / 10_000.0,
                mean_ns: ns / count,
                says,
                advice,
            }
        })
        .filter(|cause| cause.part >= LEAST_PART)
        .collect();
    causes.sort_by(|a, b| b.part.total_cmp(&a.part).then(a.kind.cmp(&b.kind)));
    causes
}

/// What matters beside the time of operations, the most serious first.
fn notes(measured: &Measured) -> Vec<Note> {
    let found = [stuck, errors, missed, client, nbd, native, late, core];
    found.iter().filter_map(|note| note(measured)).collect()
}

fn note(kind: NoteKind, says: String) -> Option<Note> {
    Some(Note { kind, says })
}

fn stuck(measured: &Measured) -> Option<Note> {
    if measured.in_flight == 0 || measured.count() > 0 {
        return None;
    }
    let under_way = counted(measured.in_flight, "operation");
    let says = format!(
        "{under_way} under way, and none has ended in all that time. Either a checkpoint has yet to make room in the \
         journal's ring (that is counted when it has), or device '{}' hangs, or what is below it: if it stays so, see the \
         node's log",
        measured.device
    );
    note(NoteKind::Stuck, says)
}

fn errors(measured: &Measured) -> Option<Note> {
    let failed: u64 = measured.errors.iter().map(|error| error.count).sum();
    if failed == 0 {
        return None;
    }
    let kinds: Vec<String> = measured
        .errors
        .iter()
        .map(|error| format!("{} {}", error.count, error.kind))
        .collect();
    let says = format!(
        "{} of {} failed: {}",
        failed,
        counted(measured.count(), "operation"),
        kinds.join(", ")
    );
    note(NoteKind::Errors, says)
}

fn missed(measured: &Measured) -> Option<Note> {
    if measured.missed == 0.0 {
        return None;
    }
    let says = format!(
        "its promise ({}) was not kept for {} of the time",
        measured.slo.promise,
        percent(measured.missed)
    );
    note(NoteKind::Missed, says)
}

/// Whether the node waits for the client.
fn client(measured: &Measured) -> Option<Note> {
    if measured.count() == 0 && measured.in_flight == 0 {
        let says = "nothing was asked of it: if a client waits, it is for something else, or its connection is gone";
        return note(NoteKind::Client, says.to_owned());
    }
    let idle = 1.0 - measured.occupied_ns as f64 / measured.interval_ns.max(1) as f64;
    if idle < IDLE {
        return None;
    }
    let says = format!(
        "for {} of the time nothing of it was under way: the node waited for the client or the network. More \
         operations at a time would use that time; a faster node would not shorten it",
        percent(idle)
    );
    note(NoteKind::Client, says)
}

fn nbd(measured: &Measured) -> Option<Note> {
    gateway("a command of NBD", &measured.nbd, measured)
}

fn native(measured: &Measured) -> Option<Note> {
    gateway(
        "a request of the native protocol",
        &measured.native,
        measured,
    )
}

/// What passes between a command's arrival and its operation, and behind that until its answer is sent. Each protocol for itself: beside much that is
/// asked for by another one nothing would be left.
fn gateway(what: &str, server: &ServerLook, measured: &Measured) -> Option<Note> {
    let outside_ns = server.commands_ns.saturating_sub(server.operations_ns);
    let part = outside_ns as f64 / server.commands_ns.max(1) as f64;
    // Some is the way of the data through the socket, and clocks are read at other moments.
    if part < 0.25 {
        return None;
    }
    let says = format!(
        "of the time from the arrival of {what} on core {} until its reply is handed to the socket, {} ({} for \
         each) passes outside of its operation: it waits for its data, for room in its connection's window, or for \
         clients to take the replies before it",
        measured.core,
        percent(part),
        time(outside_ns / server.commands.max(1))
    );
    note(NoteKind::Gateway, says)
}

/// Whether the core doesn't come to its work in time.
fn late(measured: &Measured) -> Option<Note> {
    if measured.core_late < LATE_CORE {
        return None;
    }
    let says = format!("{}: {}", words::late(measured), words::of_late(measured));
    note(NoteKind::Core, says)
}

fn core(measured: &Measured) -> Option<Note> {
    // One that comes late seems busy, while it is other programs that work.
    if measured.core_busy < BUSY_CORE || measured.core_late >= LATE_CORE {
        return None;
    }
    let says = format!(
        "core {}, which does its work, is busy {} of the time",
        measured.core,
        percent(measured.core_busy)
    );
    note(NoteKind::Core, says)
}

/// What was measured of a volume between two looks.
fn measure(before: &Look, after: &Look, spans: &Spans<'_>, volume: &VolumeSpan<'_>) -> Measured {
    let device = volume.now.device;
    let facts = after.devices.get(device);
    let mine = spans.of_device(device);
    let others: Vec<&VolumeSpan<'_>> = mine
        .iter()
        .copied()
        .filter(|other| !std::ptr::eq(other.now, volume.now))
        .collect();
    let is_divided = facts.is_some_and(|facts| facts.schedule.ceiling.is_some());
    let mut greedy = users(&others, is_divided);
    greedy.retain(|user| user.over.is_some_and(|over| over > 0.0));
    let io = device_io(before, after, device);
    let took_ns: u64 = io.iter().map(|kind| kind.latency.sum_ns()).sum();
    let [device_read, device_write, device_flush, _] = &io;
    let of_core = |look: &Look| {
        let core = look.cores.iter().find(|core| core.core == volume.core);
        core.cloned().unwrap_or_default()
    };
    let (then, now) = (of_core(before), of_core(after));
    let core_busy = core_activities(before, after)
        .iter()
        .find(|core| core.core == volume.core)
        .map_or(0.0, |core| core.busy);
    let mut known = before.cores.iter().flat_map(|core| &core.volumes);
    let known = known.find(|known| known.id == volume.now.id);
    // Of its journal and its device more was counted than of the volume, if it was not used before.
    let since = |count: fn(&VolumeLook) -> u64| {
        let then = known.map_or(0, count);
        count(volume.now).saturating_sub(then)
    };
    let since_known = |count: fn(&VolumeLook) -> u64| known.map_or(0, |_| since(count));
    Measured {
        volume: volume.now.name.clone(),
        device: facts.map_or_else(String::new, |facts| facts.name.clone()),
        core: volume.core,
        interval_ns: volume.interval_ns,
        slo: volume.now.slo,
        read: Took::of(&volume.read),
        write: Took::of(&volume.write),
        flush: Took::of(&volume.flush),
        trim: Took::of(&volume.trim),
        stable: since(|look| look.stable),
        waited_ns: volume.waited_ns(),
        in_flight: volume.now.in_flight,
        occupied_ns: since(|look| look.occupied_ns),
        errors: errors_of(volume),
        used: volume.used(),
        promised: volume.promised(),
        missed: volume.short_ns as f64 / volume.interval_ns.max(1) as f64,
        limited_ns: volume.limited_ns,
        policy: facts.map_or_else(SchedulePolicy::default, |facts| facts.schedule.policy),
        device_used: is_divided.then(|| {
            let used = mine.iter().filter_map(|volume| volume.used());
            used.fold(0.0, |sum, part| sum + part)
        }),
        greedy,
        device_read: Took::of(device_read),
        device_write: Took::of(device_write),
        device_flush: Took::of(device_flush),
        device_in_flight: took_ns as f64 / spans.interval_ns() as f64,
        journal_full_ns: since_known(|look| look.journal_full_ns),
        checkpoints: since_known(|look| look.checkpoints),
        core_busy,
        core_late: late_part(&then, &now),
        nbd: now.nbd.since(&then.nbd),
        native: now.native.since(&then.native),
    }
}

/// For which part of the time between two looks a core was late. Counted when it comes: of what began before, no more than there is time.
fn late_part(then: &CoreLook, now: &CoreLook) -> f64 {
    let late_ns = now.late_ns.saturating_sub(then.late_ns);
    let passed_ns = now.at_ns.saturating_sub(then.at_ns);
    (late_ns as f64 / passed_ns.max(1) as f64).min(1.0)
}

/// Failures of all kinds of operations together.
fn errors_of(volume: &VolumeSpan<'_>) -> Vec<ErrorCount> {
    let mut errors: Vec<ErrorCount> = Vec::new();
    for error in volume.kinds().iter().flat_map(|kind| &kind.errors) {
        match errors.iter_mut().find(|known| known.kind == error.kind) {
            Some(known) => known.count += error.count,
            None => errors.push(*error),
        }
    }
    errors.sort_by_key(|error| std::cmp::Reverse(error.count));
    errors
}

/// Why a volume was as slow as it was between two looks. One that was never used is in neither.
pub fn explanation(before: &Look, after: &Look, info: &VolumeInfo) -> Explanation {
    let spans = Spans::between(before, after);
    let device = after.devices.iter().position(|one| one.name == info.device);
    let unused = VolumeLook::new(DvolId(0), info.name.clone(), device.unwrap_or(0), info.slo);
    let unused = VolumeSpan::between(None, &unused, info.core, spans.interval_ns());
    let mut volumes = spans.volumes.iter();
    let volume = volumes.find(|volume| volume.now.name == info.name);
    let volume = volume.unwrap_or(&unused);
    let measured = measure(before, after, &spans, volume);
    Explanation {
        ended_ns: after.wall_ns,
        interval_ns: volume.interval_ns,
        volume: volume.activity(&after.devices),
        causes: causes(&measured),
        notes: notes(&measured),
    }
}

#[cfg(test)]
mod tests;
