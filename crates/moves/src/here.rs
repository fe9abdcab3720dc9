//! The node that a volume comes to: from requests of the native protocol to the arrival that carries them out.

use std::net::SocketAddr;

use flagstone_device::engine::DvolError;
use flagstone_device::transfer::{
    Announced, Arrival, Became, Keeper, Marks, NewDvol, POINT_BYTES, Point, Resumed, Run,
};
use flagstone_gateway::native::arrivals::{ArrivalReply, ArrivalRequest, NewArrival};
use flagstone_gateway::native::volume::NativeError;
use flagstone_platform::{IoBuf, Platform};
use flagstone_wire::arrival::{AGAIN_MAX, Again, ArrivingRun, LeftCopy, RECORD_BYTES, Settled};

/// Tokens of a volume as they travel.
pub type RecordBytes = Box<[u8; RECORD_BYTES]>;

const _: () = assert!(POINT_BYTES == flagstone_wire::arrival::POINT_BYTES);

/// Carries out what an origin asks of its arrival. `at` is where the volume is to be asked for once it is here.
pub async fn carry_out<P, M, K>(
    arrival: &Arrival<P, M, K>,
    at: SocketAddr,
    attempt: u64,
    request: ArrivalRequest,
) -> Result<ArrivalReply, NativeError>
where
    P: Platform,
    M: Marks + Clone,
    K: Keeper<Record = RecordBytes>,
{
    let done = match request {
        ArrivalRequest::Begin(new) => arrival.begin(attempt, announced(new)).await,
        ArrivalRequest::Again(new) => {
            let again = arrival.again(attempt, announced(new)).await;
            let (attempt, resumed) = again.map_err(native)?;
            let left = resumed.map(left_copy);
            return Ok(ArrivalReply::Again(Again { attempt, left }));
        }
        ArrivalRequest::Point(point) => arrival.save(attempt, point_of(&point)?).await,
        ArrivalRequest::Runs(runs, payload) => {
            arrival.take(attempt, runs_of(&runs, &payload)).await
        }
        ArrivalRequest::Resize(size_bytes) => arrival.resize(attempt, size_bytes).await,
        ArrivalRequest::Snapshot {
            name,
            created_ns,
            attributes,
            point,
        } => {
            let point = point.as_ref().map(point_of).transpose()?;
            let taken = arrival.snapshot(attempt, &name, created_ns, &attributes, point);
            taken.await
        }
        ArrivalRequest::Finish(record) => {
            return match arrival.finish(attempt, record).await {
                Ok(()) => Ok(ArrivalReply::At(at)),
                Err(error) => Err(native(error)),
            };
        }
        ArrivalRequest::Settle {
            abandon, confirm, ..
        } => {
            let became = arrival.settle(abandon).await;
            if confirm && became == Became::Arrived {
                arrival.confirm().await.map_err(native)?;
            }
            return Ok(ArrivalReply::Settled(match became {
                Became::Arriving => Settled::Arriving,
                Became::Arrived => Settled::Arrived(at),
                Became::Never => Settled::Never,
                Became::Unknown => Settled::NotHere,
            }));
        }
    };
    done.map(|()| ArrivalReply::Done).map_err(native)
}

fn announced(new: NewArrival) -> Announced {
    Announced {
        new: NewDvol {
            id: new.id,
            name: new.name,
            reserved_bytes: new.reserved_bytes,
            attributes: new.attributes,
        },
        size_bytes: new.size_bytes,
        epoch: new.epoch,
        above: new.highest_layer,
    }
}

fn point_of(bytes: &[u8; POINT_BYTES]) -> Result<Point, NativeError> {
    Point::decode(bytes).ok_or(NativeError::Invalid("it isn't said how far the copy is"))
}

/// As it travels. Where there are too many ranges for an answer, neighbours become one, with what lies between them: it does no harm to copy that once more.
fn left_copy(resumed: Resumed) -> LeftCopy {
    let together = resumed.again.len().div_ceil(AGAIN_MAX).max(1);
    let again = resumed.again.chunks(together).filter_map(|ranges| {
        let (first, last) = (ranges.first()?, ranges.last()?);
        Some((first.start, last.end.checked_sub(first.start)?))
    });
    LeftCopy {
        point: resumed.point.encode(),
        again: again.collect(),
    }
}

/// Runs with their bytes, which follow one another in the payload: as many as the decoder has made sure of.
fn runs_of(runs: &[ArrivingRun], payload: &IoBuf) -> Vec<Run> {
    let mut at = 0;
    let mut taken = Vec::with_capacity(runs.len());
    for run in runs {
        let (offset_bytes, len_bytes) = (run.offset_bytes, run.len_bytes);
        if run.is_zeros {
            taken.push(Run::Zeros {
                offset_bytes,
                len_bytes,
            });
            continue;
        }
        let end = at + len_bytes as usize;
        let bytes = payload.get(at..end).unwrap_or_default().to_vec();
        taken.push(Run::Data {
            offset_bytes,
            meta: run.metadata,
            bytes,
        });
        at = end;
    }
    taken
}

/// Why an arrival refuses, for the origin.
fn native(error: DvolError) -> NativeError {
    match error {
        DvolError::NotFound => NativeError::NotFound,
        DvolError::AlreadyExists => NativeError::Exists,
        DvolError::NoSpace => NativeError::NoSpace,
        DvolError::StaleEpoch => NativeError::StaleEpoch,
        DvolError::Busy => NativeError::Busy,
        DvolError::Stopping => NativeError::Stopping,
        DvolError::TooMany => NativeError::Limit(
            "The journal there has no room for one more volume or snapshot; delete some, or choose another device.",
        ),
        DvolError::OutOfRange => NativeError::OutOfRange,
        DvolError::Corrupt => NativeError::Corrupt,
        DvolError::Fenced => NativeError::Fenced,
        _ => NativeError::Device,
    }
}

#[cfg(test)]
mod tests {
    use flagstone_device::transfer::What;
    use flagstone_types::Lsn;

    use super::*;

    #[test]
    fn what_has_to_come_again_fits_into_an_answer() {
        let point = Point {
            snapshots: 0,
            of: None,
            what: What::Allocated,
            offset_bytes: 0,
            mark: Lsn(0),
            lsn: Lsn(7),
            copied_bytes: 0,
        };
        for count in [0, 1, 2, 511, 512, 513, 1024, 1025, 40_000] {
            let again: Vec<_> = (0..count).map(|at| at * 8..at * 8 + 4).collect();
            let left = left_copy(Resumed {
                point,
                again: again.clone(),
            });
            assert_eq!(Point::decode(&left.point), Some(point));
            assert!(left.again.len() <= AGAIN_MAX, "{count}");
            if again.len() <= AGAIN_MAX {
                assert_eq!(left.again.len(), again.len());
            }
            let ends = left.again.iter().map(|(offset, len)| offset + len);
            assert_eq!(ends.max(), again.last().map(|range| range.end));
            for range in again {
                let mut all = left.again.iter();
                let is_there = |(offset, len): &(u64, u64)| {
                    *offset <= range.start && range.end <= offset + len
                };
                assert!(all.any(is_there), "{count}: {range:?}");
            }
        }
    }
}
