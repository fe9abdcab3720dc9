//! Recording what is asked of a device, so that crash images can be built from it later.
//!
//! A device that is recorded tells a [`Recorder`] what happens, in the order in which its user
//! sees it:
//! - a write or a discard is *submitted* when it is handed to the kernel, and *completed* when its
//!   result is handed to the user. One whose future is dropped is never completed: it may have
//!   reached the media, wholly, in part, or not at all;
//! - a flush is *submitted* when it is handed to the kernel, and *completed* when its result is
//!   handed to the user. So the record never calls a write durable that the device's user may not
//!   rely on.
//!
//! So at any point of the record, what must be on the media is every write completed before the
//! submission of a flush that has since completed well; any subset of the other submitted writes,
//! torn at 512 bytes, may be there as well.
//!
//! **Format** of an event in a file, little-endian: kind (u8), ok (u8), zero (u16), length of the
//! data that follows (u32), id (u64; of a mark its value), offset (u64), length of a range without
//! data (u64), data. A file that ends within an event has lost its tail with the process, and is read up
//! to there.

/// Bytes of an event without its data.
const HEADER_BYTES: usize = 32;

const WRITE_SUBMITTED: u8 = 1;
const WRITE_COMPLETED: u8 = 2;
const FLUSH_SUBMITTED: u8 = 3;
const FLUSH_COMPLETED: u8 = 4;
const DISCARD_SUBMITTED: u8 = 5;
const DISCARD_COMPLETED: u8 = 6;
const MARK: u8 = 7;

/// Something that happened at a device. Ids tell operations apart; they are not in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoEvent<'a> {
    /// A write went to the device.
    WriteSubmitted {
        /// The write.
        id: u64,
        /// Where.
        offset_bytes: u64,
        /// What.
        data: &'a [u8],
    },
    /// A write's user has got its result.
    WriteCompleted {
        /// The write.
        id: u64,
        /// False if it failed: then any part of it may be on the media.
        ok: bool,
    },
    /// A flush was asked for.
    FlushSubmitted {
        /// The flush.
        id: u64,
    },
    /// A flush's user has got its result.
    FlushCompleted {
        /// The flush.
        id: u64,
        /// False if it failed: then it promises nothing.
        ok: bool,
    },
    /// A range was given up. Its bytes may be anything until they are written again.
    DiscardSubmitted {
        /// The discard.
        id: u64,
        /// Start of the range.
        offset_bytes: u64,
        /// Length of the range.
        len_bytes: u64,
    },
    /// A discard's user has got its result.
    DiscardCompleted {
        /// The discard.
        id: u64,
        /// False if it failed or isn't supported.
        ok: bool,
    },
    /// Something happened above the device that whoever checks the record wants to find in it,
    /// such as an answer to a client. It has no effect on the device.
    Mark {
        /// Its meaning is between who records and who checks: see [`NodeMark`].
        value: u64,
        /// The range it is about, in bytes of whatever it is about.
        offset_bytes: u64,
        /// Length of that range.
        len_bytes: u64,
        /// More about it.
        data: &'a [u8],
    },
}

/// What a node marks in its record: what its volumes' users were answered, and when an operation
/// began that takes a while. The answers are marked when a volume gives them to a gateway, so never
/// later than a client can have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeMark {
    /// A write of the mark's range of a volume (its id is the data) was answered as stable.
    WroteStable,
    /// A write was answered as unstable.
    WroteUnstable,
    /// A range was deallocated, or zeros written; answered as stable.
    ClearedStable,
    /// The same, unstable.
    ClearedUnstable,
    /// A client's flush, with a number that only its answer has, too, came to the volume.
    FlushBegan(u64),
    /// It was answered.
    Flushed(u64),
    /// A snapshot was asked for; the data is `volume@snapshot`.
    SnapshotBegan,
    /// It was answered.
    SnapshotTaken,
    /// A snapshot's deletion was asked for.
    SnapshotGoing,
    /// It was answered.
    SnapshotGone,
}

impl NodeMark {
    /// The mark's value: what it says in the lowest byte, a number above.
    pub fn value(self) -> u64 {
        match self {
            NodeMark::WroteStable => 1,
            NodeMark::WroteUnstable => 2,
            NodeMark::ClearedStable => 3,
            NodeMark::ClearedUnstable => 4,
            NodeMark::FlushBegan(number) => 5 | number << 8,
            NodeMark::Flushed(number) => 6 | number << 8,
            NodeMark::SnapshotBegan => 7,
            NodeMark::SnapshotTaken => 8,
            NodeMark::SnapshotGoing => 9,
            NodeMark::SnapshotGone => 10,
        }
    }

    /// What a mark's value says, if a node made it.
    pub fn of_value(value: u64) -> Option<NodeMark> {
        Some(match (value & 0xff, value >> 8) {
            (1, 0) => NodeMark::WroteStable,
            (2, 0) => NodeMark::WroteUnstable,
            (3, 0) => NodeMark::ClearedStable,
            (4, 0) => NodeMark::ClearedUnstable,
            (5, number) => NodeMark::FlushBegan(number),
            (6, number) => NodeMark::Flushed(number),
            (7, 0) => NodeMark::SnapshotBegan,
            (8, 0) => NodeMark::SnapshotTaken,
            (9, 0) => NodeMark::SnapshotGoing,
            (10, 0) => NodeMark::SnapshotGone,
            _ => return None,
        })
    }
}

/// Receives events. Cores that share a device share a recorder: its clones give ids from one
/// counter and put events into one order.
pub trait Recorder: Clone + 'static {
    /// An id that no other operation on this record has.
    fn next_id(&self) -> u64;

    /// Takes an event. It must have its place in the order when this returns.
    fn record(&self, event: &IoEvent<'_>);
}

impl IoEvent<'_> {
    /// Appends the event in the format above. A write of 4 GiB or more can't be recorded; no device
    /// is asked for one.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let (kind, ok, id, offset_bytes, len_bytes, data): (u8, bool, u64, u64, u64, &[u8]) =
            match *self {
                IoEvent::WriteSubmitted {
                    id,
                    offset_bytes,
                    data,
                } => (WRITE_SUBMITTED, true, id, offset_bytes, 0, data),
                IoEvent::WriteCompleted { id, ok } => (WRITE_COMPLETED, ok, id, 0, 0, &[]),
                IoEvent::FlushSubmitted { id } => (FLUSH_SUBMITTED, true, id, 0, 0, &[]),
                IoEvent::FlushCompleted { id, ok } => (FLUSH_COMPLETED, ok, id, 0, 0, &[]),
                IoEvent::DiscardSubmitted {
                    id,
                    offset_bytes,
                    len_bytes,
                } => (DISCARD_SUBMITTED, true, id, offset_bytes, len_bytes, &[]),
                IoEvent::DiscardCompleted { id, ok } => (DISCARD_COMPLETED, ok, id, 0, 0, &[]),
                IoEvent::Mark {
                    value,
                    offset_bytes,
                    len_bytes,
                    data,
                } => (MARK, true, value, offset_bytes, len_bytes, data),
            };
        let data_len = u32::try_from(data.len()).expect("a write is shorter than 4 GiB");
        into.extend_from_slice(&[kind, u8::from(ok), 0, 0]);
        into.extend_from_slice(&data_len.to_le_bytes());
        into.extend_from_slice(&id.to_le_bytes());
        into.extend_from_slice(&offset_bytes.to_le_bytes());
        into.extend_from_slice(&len_bytes.to_le_bytes());
        into.extend_from_slice(data);
    }

    /// The event at the start of `bytes`, and what follows it. `Ok(None)` if it isn't all there;
    /// an error if this is no event.
    pub fn decode(bytes: &[u8]) -> Result<Option<(IoEvent<'_>, &[u8])>, RecordError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let word = |at: usize| {
            let (field, _) = header[at..]
                .split_first_chunk::<8>()
                .expect("within the header");
            u64::from_le_bytes(*field)
        };
        let data_len = (word(0) >> 32) as usize;
        if header[1] > 1 || header[2] != 0 || header[3] != 0 {
            return Err(RecordError { kind: header[0] });
        }
        let Some((data, rest)) = rest.split_at_checked(data_len) else {
            return Ok(None);
        };
        let (ok, id, offset_bytes, len_bytes) = (header[1] == 1, word(8), word(16), word(24));
        let event = match header[0] {
            WRITE_SUBMITTED => IoEvent::WriteSubmitted {
                id,
                offset_bytes,
                data,
            },
            WRITE_COMPLETED => IoEvent::WriteCompleted { id, ok },
            FLUSH_SUBMITTED => IoEvent::FlushSubmitted { id },
            FLUSH_COMPLETED => IoEvent::FlushCompleted { id, ok },
            DISCARD_SUBMITTED => IoEvent::DiscardSubmitted {
                id,
                offset_bytes,
                len_bytes,
            },
            DISCARD_COMPLETED => IoEvent::DiscardCompleted { id, ok },
            MARK => IoEvent::Mark {
                value: id,
                offset_bytes,
                len_bytes,
                data,
            },
            kind => return Err(RecordError { kind }),
        };
        Ok(Some((event, rest)))
    }
}

/// A record holds something that is no event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordError {
    /// What stands where an event's kind should be.
    pub kind: u8,
}

impl std::fmt::Display for RecordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "reading a record of device I/O: no event begins with the byte {}",
            self.kind
        )
    }
}

impl std::error::Error for RecordError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Vec<IoEvent<'static>> {
        vec![
            IoEvent::WriteSubmitted {
                id: 1,
                offset_bytes: 1 << 40,
                data: b"some data",
            },
            IoEvent::FlushSubmitted { id: 2 },
            IoEvent::WriteCompleted { id: 1, ok: false },
            IoEvent::FlushCompleted { id: 2, ok: true },
            IoEvent::DiscardSubmitted {
                id: u64::MAX,
                offset_bytes: 4096,
                len_bytes: 1 << 50,
            },
            IoEvent::DiscardCompleted {
                id: u64::MAX,
                ok: true,
            },
            IoEvent::Mark {
                value: 4711,
                offset_bytes: 3,
                len_bytes: 5,
                data: b"more",
            },
        ]
    }

    #[test]
    fn what_a_node_marks_survives_as_a_number() {
        let marks = [
            NodeMark::WroteStable,
            NodeMark::WroteUnstable,
            NodeMark::ClearedStable,
            NodeMark::ClearedUnstable,
            NodeMark::FlushBegan(77),
            NodeMark::Flushed(77),
            NodeMark::SnapshotBegan,
            NodeMark::SnapshotTaken,
            NodeMark::SnapshotGoing,
            NodeMark::SnapshotGone,
        ];
        for mark in marks {
            assert_eq!(NodeMark::of_value(mark.value()), Some(mark));
        }
        assert_eq!(NodeMark::of_value(0), None);
        assert_eq!(NodeMark::of_value(1 << 8 | 1), None);
    }

    #[test]
    fn events_survive_their_encoding_and_a_lost_tail() {
        let mut bytes = Vec::new();
        events().iter().for_each(|event| event.encode(&mut bytes));
        let mut rest = bytes.as_slice();
        for expected in events() {
            let (event, after) = IoEvent::decode(rest).unwrap().unwrap();
            assert_eq!(event, expected);
            rest = after;
        }
        assert_eq!(IoEvent::decode(rest), Ok(None));
        for cut in 0..HEADER_BYTES + 9 {
            assert_eq!(IoEvent::decode(&bytes[..cut]), Ok(None));
        }
        bytes[0] = 77;
        assert_eq!(IoEvent::decode(&bytes), Err(RecordError { kind: 77 }));
    }
}
