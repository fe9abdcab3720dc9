//! Bodies of the operations by which a volume arrives from another node.
//!
//! Each begins with a [`Warrant`]: which arrival is meant, and the proof that whoever asks has its key. What the operations do, and what
//! each answer promises, is in `docs/decisions/2026-11-25-moves-between-nodes.md`.

use std::net::SocketAddr;

use flagstone_types::{BLOCK_SIZE, DeviceId, DvolId, Epoch, LayerNo};

use crate::batch::ATTRIBUTES_BYTES;
use crate::fields::{Fields, bounded, whole_entries};
use crate::open::{NAME_MAX_BYTES, PROOF_BYTES, put_name, take_name};
use crate::{BodyError, address};

/// Bytes of a warrant.
pub const WARRANT_BYTES: usize = 4 + PROOF_BYTES;
/// Runs that one `ARRIVE_RUNS` may have.
pub const RUNS_MAX: usize = 512;
/// Payload that one `ARRIVE_RUNS` may have, in bytes.
pub const RUNS_PAYLOAD_MAX_BYTES: u64 = 1 << 20;
/// Bytes of a volume's record of tokens.
pub const RECORD_BYTES: usize = 4096;
/// Bytes that say how far a copy is. What they say is for those to know who copy (`docs/formats/device.md`, "Attributes of volumes").
pub const POINT_BYTES: usize = 48;
/// Ranges that the reply to one `ARRIVE_AGAIN` may have.
pub const AGAIN_MAX: usize = 512;
/// Snapshots that a volume which arrives may have.
pub const SNAPSHOTS_MAX: u32 = 1 << 20;

const ATTRIBUTES: usize = ATTRIBUTES_BYTES as usize;
const RUN_BYTES: usize = 24;
const AGAIN_BYTES: usize = 16;
/// In the length of a run: nothing is stored there.
const ZEROS: u64 = 1 << 63;

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Warrant {
    /// The arrival's number.
    pub arrival: u32,
    /// That the client has its key.
    pub proof: [u8; PROOF_BYTES],
}

impl Warrant {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.arrival.to_le_bytes());
        out.extend(self.proof);
    }

    fn take(fields: &mut Fields<'_>) -> Result<Warrant, BodyError> {
        Ok(Warrant {
            arrival: fields.u32("the arrival's number")?,
            proof: fields.array("the proof")?,
        })
    }
}

/// Body of an `ARRIVE`, and of an `ARRIVE_AGAIN`: the volume, as it is when its move begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrive<'a> {
    /// Who asks.
    pub warrant: Warrant,
    /// Its id, which it keeps.
    pub id: DvolId,
    /// Its size, in bytes, until a step says otherwise.
    pub size_bytes: u64,
    /// What is to be set aside for it, in bytes.
    pub reserved_bytes: u64,
    /// The epoch that it will have.
    pub epoch: Epoch,
    /// The highest number of its layers; 0 if it has no snapshot.
    pub highest_layer: LayerNo,
    /// How many snapshots will follow.
    pub snapshot_count: u32,
    /// What the layer above keeps with it.
    pub attributes: [u8; ATTRIBUTES],
    /// Its name, 1 to 128 bytes.
    pub name: &'a str,
}

impl<'a> Arrive<'a> {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.warrant.encode(out);
        out.extend(self.id.0.to_le_bytes());
        out.extend(self.size_bytes.to_le_bytes());
        out.extend(self.reserved_bytes.to_le_bytes());
        out.extend(self.epoch.0.to_le_bytes());
        out.extend(self.highest_layer.0.to_le_bytes());
        out.extend(self.snapshot_count.to_le_bytes());
        out.extend(self.attributes);
        put_name(self.name, out);
    }

    /// A body that came.
    pub fn decode(body: &'a [u8]) -> Result<Arrive<'a>, BodyError> {
        let mut fields = Fields::new(body);
        let warrant = Warrant::take(&mut fields)?;
        let id = fields.u128("the id")?;
        // 0 stands for a volume that is just being made.
        if id == 0 {
            return Err(BodyError::Unknown {
                field: "the id",
                found: 0,
            });
        }
        let size_bytes = fields.u64("the size")?;
        let reserved_bytes = fields.u64("what is reserved")?;
        let epoch = Epoch(fields.u32("the epoch")?);
        bounded("the epoch", epoch.0.into(), 0, Epoch::MAX.0.into())?;
        let highest_layer = LayerNo(fields.u32("the highest layer")?);
        let snapshot_count = fields.u32("the number of snapshots")?;
        let most = SNAPSHOTS_MAX.min(highest_layer.0);
        bounded(
            "the number of snapshots",
            snapshot_count.into(),
            0,
            most.into(),
        )?;
        let arrive = Arrive {
            warrant,
            id: DvolId(id),
            size_bytes,
            reserved_bytes,
            epoch,
            highest_layer,
            snapshot_count,
            attributes: fields.array("the attributes")?,
            name: take_name(&mut fields)?,
        };
        fields.end()?;
        Ok(arrive)
    }
}

/// Bytes in one state, in an `ARRIVE_RUNS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrivingRun {
    /// Where in the volume: a multiple of 4,096.
    pub offset_bytes: u64,
    /// How many, 1 at least.
    pub len_bytes: u64,
    /// Nothing is stored there. Otherwise the bytes are in the payload.
    pub is_zeros: bool,
    /// The tenant's metadata of each block; 0 where nothing is stored.
    pub metadata: u64,
}

impl ArrivingRun {
    /// How many bytes of the payload belong to it.
    pub fn payload_bytes(&self) -> u64 {
        match self.is_zeros {
            true => 0,
            false => self.len_bytes,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let zeros = if self.is_zeros { ZEROS } else { 0 };
        out.extend(self.offset_bytes.to_le_bytes());
        out.extend((self.len_bytes | zeros).to_le_bytes());
        out.extend(self.metadata.to_le_bytes());
    }

    fn take(fields: &mut Fields<'_>) -> Result<ArrivingRun, BodyError> {
        let offset_bytes = fields.u64("the offset of a run")?;
        let len = fields.u64("the length of a run")?;
        let metadata = fields.u64("the metadata of a run")?;
        let (len_bytes, is_zeros) = (len & !ZEROS, len & ZEROS != 0);
        bounded("the length of a run", len_bytes, 1, ZEROS - 1)?;
        if offset_bytes % BLOCK_SIZE != 0 {
            let field = "where in a block a run begins";
            return Err(BodyError::NotZero { field });
        }
        if offset_bytes.checked_add(len_bytes).is_none() {
            return Err(BodyError::OutOfRange {
                offset_bytes,
                len_bytes,
            });
        }
        if is_zeros && metadata != 0 {
            let field = "the metadata of a run of zeros";
            return Err(BodyError::NotZero { field });
        }
        Ok(ArrivingRun {
            offset_bytes,
            len_bytes,
            is_zeros,
            metadata,
        })
    }
}

/// Appends the body of an `ARRIVE_RUNS`.
pub fn encode_runs(warrant: &Warrant, runs: &[ArrivingRun], out: &mut Vec<u8>) {
    warrant.encode(out);
    runs.iter().for_each(|run| run.encode(out));
}

/// The body of an `ARRIVE_RUNS` that came with so much payload. Runs are in the order of their offsets, none reaches into the next one,
/// and the payload is theirs.
pub fn decode_runs(
    body: &[u8],
    payload_bytes: u32,
) -> Result<(Warrant, impl Iterator<Item = ArrivingRun> + Clone), BodyError> {
    let mut fields = Fields::new(body);
    let warrant = Warrant::take(&mut fields)?;
    let count = whole_entries("the runs", fields.rest(), RUN_BYTES)?;
    bounded("the number of runs", count as u64, 1, RUNS_MAX as u64)?;
    let mut looked = fields;
    let (mut end, mut sum) = (0, 0_u64);
    for _ in 0..count {
        let run = ArrivingRun::take(&mut looked)?;
        if run.offset_bytes < end {
            return Err(BodyError::Order {
                field: "the offset of a run",
            });
        }
        // It ends within 2^64, as was looked at.
        end = run.offset_bytes + run.len_bytes;
        sum = sum.saturating_add(run.payload_bytes());
    }
    if sum != u64::from(payload_bytes) {
        return Err(BodyError::Sum {
            field: "the data of the runs",
            found: sum,
            expected: payload_bytes.into(),
        });
    }
    bounded("the data of the runs", sum, 0, RUNS_PAYLOAD_MAX_BYTES)?;
    // All of them were looked at.
    let runs = (0..count).map_while(move |_| ArrivingRun::take(&mut fields).ok());
    Ok((warrant, runs))
}

/// What happens to a volume that arrives, between its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// Its size in bytes is this from now on.
    Size(u64),
    /// A snapshot is taken of it as it is now.
    Snapshot {
        /// When it was taken where the volume comes from, in nanoseconds since 1970.
        created_ns: u64,
        /// What the layer above keeps with it.
        attributes: [u8; ATTRIBUTES],
        /// How far the copy is behind that, written down in the same instant. `None`: that is not written down.
        point: Option<[u8; POINT_BYTES]>,
        /// Its name, 1 to 128 bytes.
        name: &'a str,
    },
    /// What has come is made durable, and that the copy is so far.
    Point([u8; POINT_BYTES]),
}

impl<'a> Step<'a> {
    /// Appends the body of an `ARRIVE_STEP`.
    pub fn encode(&self, warrant: &Warrant, out: &mut Vec<u8>) {
        warrant.encode(out);
        match self {
            Step::Size(bytes) => {
                out.push(1);
                out.extend(bytes.to_le_bytes());
            }
            Step::Snapshot {
                created_ns,
                attributes,
                point,
                name,
            } => {
                out.push(if point.is_some() { 4 } else { 2 });
                out.extend(created_ns.to_le_bytes());
                out.extend(attributes);
                out.extend(point.iter().flatten());
                put_name(name, out);
            }
            Step::Point(point) => {
                out.push(3);
                out.extend(point);
            }
        }
    }

    /// A body that came.
    pub fn decode(body: &'a [u8]) -> Result<(Warrant, Step<'a>), BodyError> {
        let mut fields = Fields::new(body);
        let warrant = Warrant::take(&mut fields)?;
        let step = match fields.u8("the kind of a step")? {
            1 => Step::Size(fields.u64("the size")?),
            kind @ (2 | 4) => Step::Snapshot {
                created_ns: fields.u64("when it was taken")?,
                attributes: fields.array("the attributes")?,
                point: match kind {
                    4 => Some(fields.array("the point")?),
                    _ => None,
                },
                name: take_name(&mut fields)?,
            },
            3 => Step::Point(fields.array("the point")?),
            kind => {
                return Err(BodyError::Unknown {
                    field: "the kind of a step",
                    found: kind.into(),
                });
            }
        };
        fields.end()?;
        Ok((warrant, step))
    }
}

/// Appends the body of an `ARRIVED`: the volume's record of tokens, if it has one.
pub fn encode_arrived(warrant: &Warrant, record: Option<&[u8; RECORD_BYTES]>, out: &mut Vec<u8>) {
    warrant.encode(out);
    if let Some(record) = record {
        out.extend(record);
    }
}

/// The body of an `ARRIVED` that came. What is in the record is for others to check.
pub fn decode_arrived(body: &[u8]) -> Result<(Warrant, Option<&[u8; RECORD_BYTES]>), BodyError> {
    let mut fields = Fields::new(body);
    let warrant = Warrant::take(&mut fields)?;
    let rest = fields.rest();
    if rest.is_empty() {
        return Ok((warrant, None));
    }
    let (record, behind) = rest
        .split_first_chunk::<RECORD_BYTES>()
        .ok_or(BodyError::Ends {
            field: "the record of tokens",
            left_bytes: rest.len(),
        })?;
    match behind.len() {
        0 => Ok((warrant, Some(record))),
        extra_bytes => Err(BodyError::GoesOn { extra_bytes }),
    }
}

/// What there is of a copy that was cut off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftCopy {
    /// How far it is, durably.
    pub point: [u8; POINT_BYTES],
    /// What may have come behind that, as offsets and lengths in bytes: it has to come once more. In the order of the offsets.
    pub again: Vec<(u64, u64)>,
}

/// The body of the reply to `ARRIVE_AGAIN`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Again {
    /// The attempt of what follows: whatever was sent before is of a lower one.
    pub attempt: u64,
    /// `None`: nothing that could go on. It is to begin, with `ARRIVE`.
    pub left: Option<LeftCopy>,
}

impl Again {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.attempt.to_le_bytes());
        let Some(left) = &self.left else { return };
        out.extend(left.point);
        for (offset_bytes, len_bytes) in &left.again {
            out.extend(offset_bytes.to_le_bytes());
            out.extend(len_bytes.to_le_bytes());
        }
    }

    /// A body that came.
    pub fn decode(body: &[u8]) -> Result<Again, BodyError> {
        let mut fields = Fields::new(body);
        let attempt = fields.u64("the attempt")?;
        if fields.rest().is_empty() {
            return Ok(Again {
                attempt,
                left: None,
            });
        }
        let point = fields.array("the point")?;
        let count = whole_entries("the ranges", fields.rest(), AGAIN_BYTES)?;
        bounded("the number of ranges", count as u64, 0, AGAIN_MAX as u64)?;
        let (mut again, mut end) = (Vec::with_capacity(count), 0);
        for _ in 0..count {
            let offset_bytes = fields.u64("the offset of a range")?;
            let len_bytes = fields.u64("the length of a range")?;
            bounded("the length of a range", len_bytes, 1, u64::MAX)?;
            if offset_bytes < end {
                return Err(BodyError::Order {
                    field: "the offset of a range",
                });
            }
            let next = offset_bytes.checked_add(len_bytes);
            end = next.ok_or(BodyError::OutOfRange {
                offset_bytes,
                len_bytes,
            })?;
            again.push((offset_bytes, len_bytes));
        }
        fields.end()?;
        let left = Some(LeftCopy { point, again });
        Ok(Again { attempt, left })
    }
}

/// Body of a `SETTLE`: what became of an arrival?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settle {
    /// Who asks.
    pub warrant: Warrant,
    /// The device that the volume was to arrive on.
    pub device: DeviceId,
    /// The volume.
    pub volume: DvolId,
}

impl Settle {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.warrant.encode(out);
        out.extend(self.device.0.to_le_bytes());
        out.extend(self.volume.0.to_le_bytes());
    }

    /// A body that came.
    pub fn decode(body: &[u8]) -> Result<Settle, BodyError> {
        let mut fields = Fields::new(body);
        let settle = Settle {
            warrant: Warrant::take(&mut fields)?,
            device: DeviceId(fields.u128("the device")?),
            volume: DvolId(fields.u128("the volume")?),
        };
        fields.end()?;
        Ok(settle)
    }
}

/// What became of an arrival: the body of the reply to `SETTLE`. All but the first and the last hold for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// It goes on.
    Arriving,
    /// The volume has arrived. Whoever looks for it asks there.
    Arrived(SocketAddr),
    /// It has not arrived, and never will.
    Never,
    /// The device isn't served now: ask again later.
    NotHere,
}

impl Settled {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Settled::Arriving => out.push(1),
            Settled::Arrived(at) => {
                out.push(2);
                address::encode(*at, out);
            }
            Settled::Never => out.push(3),
            Settled::NotHere => out.push(4),
        }
    }

    /// A body that came.
    pub fn decode(body: &[u8]) -> Result<Settled, BodyError> {
        let mut fields = Fields::new(body);
        let settled = match fields.u8("the state of an arrival")? {
            1 => Settled::Arriving,
            2 => Settled::Arrived(address::take(&mut fields)?),
            3 => Settled::Never,
            4 => Settled::NotHere,
            state => {
                return Err(BodyError::Unknown {
                    field: "the state of an arrival",
                    found: state.into(),
                });
            }
        };
        fields.end()?;
        Ok(settled)
    }
}

/// The longest body of these, in bytes.
pub const BODY_MAX_BYTES: usize = {
    let runs = WARRANT_BYTES + RUNS_MAX * RUN_BYTES;
    let record = WARRANT_BYTES + RECORD_BYTES;
    let volume = WARRANT_BYTES + 16 + 8 + 8 + 4 + 4 + 4 + ATTRIBUTES + 2 + NAME_MAX_BYTES;
    let longest = if runs > record { runs } else { record };
    if longest > volume { longest } else { volume }
};
