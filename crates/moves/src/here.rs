//! The node that a volume comes to: from requests of the native protocol to the arrival that carries them out.

use std::net::SocketAddr;

use flagstone_device::engine::DvolError;
use flagstone_device::transfer::{Announced, Arrival, Became, Keeper, Marks, NewDvol, Run};
use flagstone_gateway::native::arrivals::{ArrivalReply, ArrivalRequest};
use flagstone_gateway::native::volume::NativeError;
use flagstone_platform::{IoBuf, Platform};
use flagstone_wire::arrival::{ArrivingRun, RECORD_BYTES, Settled};

/// Tokens of a volume as they travel.
pub type RecordBytes = Box<[u8; RECORD_BYTES]>;

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
        ArrivalRequest::Begin(new) => {
            let announced = Announced {
                new: NewDvol {
                    id: new.id,
                    name: new.name,
                    reserved_bytes: new.reserved_bytes,
                    attributes: new.attributes,
                },
                size_bytes: new.size_bytes,
                epoch: new.epoch,
                above: new.highest_layer,
            };
            arrival.begin(attempt, announced).await
        }
        ArrivalRequest::Runs(runs, payload) => {
            arrival.take(attempt, runs_of(&runs, &payload)).await
        }
        ArrivalRequest::Resize(size_bytes) => arrival.resize(attempt, size_bytes).await,
        ArrivalRequest::Snapshot {
            name,
            created_ns,
            attributes,
        } => {
            let taken = arrival.snapshot(attempt, &name, created_ns, &attributes);
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
        DvolError::TooMany => NativeError::Limit,
        DvolError::OutOfRange => NativeError::OutOfRange,
        DvolError::Corrupt => NativeError::Corrupt,
        DvolError::Fenced => NativeError::Fenced,
        _ => NativeError::Device,
    }
}
