//! Traces of devices, as the API tells of them.

use flagstone_platform::layers::{Kept, Operation, Outcome, Trace, Traced};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Operations in an answer, unless it is said how many.
pub const TRACE_ROWS_DEFAULT: usize = 1_000;

/// The most that may be asked for at a time.
pub const TRACE_ROWS_MAX: usize = 10_000;

/// What was asked of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TracedKind {
    /// To read.
    Read,
    /// To write.
    Write,
    /// To make what was written durable.
    Flush,
    /// To forget a range.
    Discard,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TracedResult {
    /// It hasn't.
    UnderWay,
    /// As it should.
    Done,
    /// The device, or a layer, let it fail.
    Failed,
    /// Nobody waited for it any more, so nobody knows.
    Abandoned,
}

/// An operation that a device was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TracedOperation {
    /// How many came before it since the node was started.
    pub number: u64,
    /// When it came to the trace, in nanoseconds since 1970 by a clock that is set when the node starts, and never since.
    pub began_ns: u64,
    /// The core that asked.
    pub core: u32,
    /// What for.
    pub kind: TracedKind,
    /// Where it begins on the device; 0 of a flush.
    pub offset_bytes: u64,
    /// Its length; 0 of a flush.
    pub len_bytes: u64,
    /// How long layers behind the trace held it, in nanoseconds.
    pub held_ns: u64,
    /// How long it took, `held_ns` included; none while it is under way. What took more than 73 minutes says so much.
    pub took_ns: Option<u64>,
    /// How it ended.
    pub result: TracedResult,
}

impl TracedOperation {
    /// What was traced; `clock_ns` is what the wall clock shows at the beginning of the device's time.
    pub fn of(traced: &Traced, clock_ns: u64) -> TracedOperation {
        let (kind, offset_bytes, len_bytes) = match traced.operation {
            Operation::Read {
                offset_bytes,
                len_bytes,
            } => (TracedKind::Read, offset_bytes, len_bytes),
            Operation::Write {
                offset_bytes,
                len_bytes,
            } => (TracedKind::Write, offset_bytes, len_bytes),
            Operation::Flush => (TracedKind::Flush, 0, 0),
            Operation::Discard {
                offset_bytes,
                len_bytes,
            } => (TracedKind::Discard, offset_bytes, len_bytes),
        };
        let result = match traced.ended.map(|ended| ended.outcome) {
            None => TracedResult::UnderWay,
            Some(Outcome::Done) => TracedResult::Done,
            Some(Outcome::Failed) => TracedResult::Failed,
            Some(Outcome::Abandoned) => TracedResult::Abandoned,
        };
        TracedOperation {
            number: traced.number,
            began_ns: traced.came.plus_ns(clock_ns).0,
            core: traced.core,
            kind,
            offset_bytes,
            len_bytes,
            held_ns: traced.held_ns,
            took_ns: traced.ended.map(|ended| ended.took_ns),
            result,
        }
    }
}

/// What a device was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceTrace {
    /// The name of the device.
    pub device: String,
    /// How many operations are kept at most.
    pub operations_max: u64,
    /// Operations, in the order in which they came.
    pub items: Vec<TracedOperation>,
    /// What to give as `from` to read on: the number behind the last one here.
    pub next: u64,
    /// Operations of those asked for that are not kept any more.
    pub missed: u64,
}

impl DeviceTrace {
    /// What a trace has of what is asked for.
    pub fn of(device: &str, trace: &Trace, query: &TraceQuery, clock_ns: u64) -> DeviceTrace {
        let seen = trace.seen();
        let back = query.last.unwrap_or(u64::MAX).min(trace.capacity());
        // A number that there was not yet is of a node that ran before: whoever reads on reads this one's from the beginning.
        let from = query.from.map(|from| if from > seen { 0 } else { from });
        let from = from.unwrap_or(seen.saturating_sub(back));
        let Kept {
            operations,
            next,
            missed,
        } = trace.read(from, query.limit);
        DeviceTrace {
            device: device.to_owned(),
            operations_max: trace.capacity(),
            items: operations
                .iter()
                .map(|traced| TracedOperation::of(traced, clock_ns))
                .collect(),
            next,
            missed,
        }
    }
}

/// Which operations of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct TraceQuery {
    /// From this number on: the `next` of an answer. Without it, and without `last`, all that is kept.
    pub from: Option<u64>,
    /// The last so many.
    pub last: Option<u64>,
    /// Rows at most, 0 to 10,000. With none the answer says from where to follow.
    #[param(minimum = 0, maximum = 10000, default = 1000)]
    pub limit: usize,
}

impl Default for TraceQuery {
    fn default() -> TraceQuery {
        TraceQuery {
            from: None,
            last: None,
            limit: TRACE_ROWS_DEFAULT,
        }
    }
}

#[cfg(test)]
mod tests {
    use flagstone_platform::Time;
    use flagstone_platform::layers::{Layer, Layers};

    use super::*;

    #[test]
    fn what_is_asked_for_is_what_is_told() {
        let layers = Layers::new(&[Layer::Trace { operations: 4 }]);
        for at in 0..6 {
            let read = Operation::Read {
                offset_bytes: at * 512,
                len_bytes: 512,
            };
            let verdict = layers.begin(Time(at), 1, read);
            if at != 4 {
                layers.end(verdict.ticket, Time(at + 9), Outcome::Done);
            }
        }
        let trace = layers.trace().expect("one");
        let told = |from, last, limit| {
            let query = TraceQuery { from, last, limit };
            let told = DeviceTrace::of("main", trace, &query, 1_000);
            let numbers: Vec<u64> = told.items.iter().map(|item| item.number).collect();
            (numbers, told.next, told.missed)
        };
        assert_eq!(told(None, None, 10), (vec![2, 3, 4, 5], 6, 0));
        assert_eq!(told(None, Some(2), 10), (vec![4, 5], 6, 0));
        assert_eq!(told(None, Some(20), 3), (vec![2, 3, 4], 5, 0));
        assert_eq!(told(None, Some(0), 3), (vec![], 6, 0));
        assert_eq!(told(Some(1), None, 2), (vec![2, 3], 4, 1));
        assert_eq!(told(Some(6), None, 2), (vec![], 6, 0));
        let all = DeviceTrace::of("main", trace, &TraceQuery::default(), 1_000);
        assert_eq!(all.operations_max, 4);
        let third = TracedOperation {
            number: 4,
            began_ns: 1_004,
            core: 1,
            kind: TracedKind::Read,
            offset_bytes: 2048,
            len_bytes: 512,
            held_ns: 0,
            took_ns: None,
            result: TracedResult::UnderWay,
        };
        assert_eq!(all.items[2], third);
        let done = (all.items[3].took_ns, all.items[3].result);
        assert_eq!(done, (Some(9), TracedResult::Done));
    }
}
