//! Reading the record of what was done to a device, from which crash images are made.
//!
//! The format is that of [`flagstone_platform::record`]: the real runtime writes it, a file per
//! device. Here are events that own their bytes, and a reader that takes any file for what it is
//! worth: a record may be cut off anywhere (the recording process was killed), and nothing in a
//! file makes the reader panic or take memory beyond what the file holds.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use flagstone_platform::record;

/// Bytes read from the file at a time.
const READ_BYTES: u64 = 1 << 20;

/// One event on a device; see [`flagstone_platform::record::IoEvent`]. Here an id may be used again
/// once its operation has completed, and flushes have ids of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IoEvent {
    /// A write went to the device.
    WriteSubmitted {
        /// The write.
        id: u64,
        /// Where it goes, in bytes.
        offset_bytes: u64,
        /// What it writes.
        bytes: Arc<[u8]>,
    },
    /// A write was answered.
    WriteCompleted {
        /// The write.
        id: u64,
        /// False if it failed.
        ok: bool,
    },
    /// A flush went to the device.
    FlushSubmitted {
        /// The flush.
        id: u64,
    },
    /// A flush was answered.
    FlushCompleted {
        /// The flush.
        id: u64,
        /// False if it failed.
        ok: bool,
    },
    /// A discard went to the device.
    DiscardSubmitted {
        /// The discard.
        id: u64,
        /// Where it begins, in bytes.
        offset_bytes: u64,
        /// Its length in bytes.
        len_bytes: u64,
    },
    /// A discard was answered.
    DiscardCompleted {
        /// The discard.
        id: u64,
        /// False if it failed.
        ok: bool,
    },
    /// Something worth remembering happened above the device.
    Mark {
        /// Its meaning is between the recorder and the checker.
        value: u64,
        /// The range it is about, in bytes.
        offset_bytes: u64,
        /// Length of that range.
        len_bytes: u64,
        /// More about it.
        bytes: Arc<[u8]>,
    },
}

impl From<record::IoEvent<'_>> for IoEvent {
    fn from(event: record::IoEvent<'_>) -> IoEvent {
        use record::IoEvent as Recorded;
        match event {
            Recorded::WriteSubmitted {
                id,
                offset_bytes,
                data,
            } => IoEvent::WriteSubmitted {
                id,
                offset_bytes,
                bytes: data.into(),
            },
            Recorded::WriteCompleted { id, ok } => IoEvent::WriteCompleted { id, ok },
            Recorded::FlushSubmitted { id } => IoEvent::FlushSubmitted { id },
            Recorded::FlushCompleted { id, ok } => IoEvent::FlushCompleted { id, ok },
            Recorded::DiscardSubmitted {
                id,
                offset_bytes,
                len_bytes,
            } => IoEvent::DiscardSubmitted {
                id,
                offset_bytes,
                len_bytes,
            },
            Recorded::DiscardCompleted { id, ok } => IoEvent::DiscardCompleted { id, ok },
            Recorded::Mark {
                value,
                offset_bytes,
                len_bytes,
                data,
            } => IoEvent::Mark {
                value,
                offset_bytes,
                len_bytes,
                bytes: data.into(),
            },
        }
    }
}

impl IoEvent {
    /// A mark that is a number and nothing else.
    pub fn mark(value: u64) -> IoEvent {
        IoEvent::Mark {
            value,
            offset_bytes: 0,
            len_bytes: 0,
            bytes: Arc::default(),
        }
    }

    /// The same event as the platform has it.
    pub fn as_recorded(&self) -> record::IoEvent<'_> {
        use record::IoEvent as Recorded;
        match *self {
            IoEvent::WriteSubmitted {
                id,
                offset_bytes,
                ref bytes,
            } => Recorded::WriteSubmitted {
                id,
                offset_bytes,
                data: bytes,
            },
            IoEvent::WriteCompleted { id, ok } => Recorded::WriteCompleted { id, ok },
            IoEvent::FlushSubmitted { id } => Recorded::FlushSubmitted { id },
            IoEvent::FlushCompleted { id, ok } => Recorded::FlushCompleted { id, ok },
            IoEvent::DiscardSubmitted {
                id,
                offset_bytes,
                len_bytes,
            } => Recorded::DiscardSubmitted {
                id,
                offset_bytes,
                len_bytes,
            },
            IoEvent::DiscardCompleted { id, ok } => Recorded::DiscardCompleted { id, ok },
            IoEvent::Mark {
                value,
                offset_bytes,
                len_bytes,
                ref bytes,
            } => Recorded::Mark {
                value,
                offset_bytes,
                len_bytes,
                data: bytes,
            },
        }
    }
}

/// Why a record can't be read further.
#[derive(Debug)]
pub enum ReadError {
    /// Reading the file failed.
    Io(io::Error),
    /// There is something that is no event.
    Record {
        /// Where it begins, in bytes.
        at_bytes: u64,
        /// What is wrong.
        error: record::RecordError,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io(error) => write!(f, "reading a record of device I/O: {error}"),
            ReadError::Record { at_bytes, error } => write!(f, "{error}, at byte {at_bytes}"),
        }
    }
}

impl std::error::Error for ReadError {}

/// Reads a record: an iterator over its events that ends at the end of the file, where the file was
/// cut off, or after the first error.
pub struct RecordReader<R> {
    source: R,
    /// Read and not yet decoded, from `decoded` on.
    pending: Vec<u8>,
    decoded: usize,
    /// Place of `pending` in the file.
    at_bytes: u64,
    ended: bool,
}

impl<R: Read> RecordReader<R> {
    /// A reader at the start of a record.
    pub fn new(source: R) -> RecordReader<R> {
        RecordReader {
            source,
            pending: Vec::new(),
            decoded: 0,
            at_bytes: 0,
            ended: false,
        }
    }

    /// Bytes of an event that the file ends within; zero unless the record was cut off. Final once
    /// the iterator has ended.
    pub fn lost_tail_bytes(&self) -> u64 {
        (self.pending.len() - self.decoded) as u64
    }

    fn read_event(&mut self) -> Result<Option<IoEvent>, ReadError> {
        loop {
            let pending = &self.pending[self.decoded..];
            let at_bytes = self.at_bytes + self.decoded as u64;
            let decoded = record::IoEvent::decode(pending);
            let decoded = decoded.map_err(|error| ReadError::Record { at_bytes, error })?;
            if let Some((event, rest)) = decoded {
                let event = IoEvent::from(event);
                self.decoded = self.pending.len() - rest.len();
                return Ok(Some(event));
            }
            self.at_bytes += self.decoded as u64;
            self.pending.drain(..self.decoded);
            self.decoded = 0;
            // As much again as an unfinished event already has, so that a long one is not looked
            // at over and over.
            let want_bytes = READ_BYTES.max(self.pending.len() as u64);
            let mut source = self.source.by_ref().take(want_bytes);
            let got_bytes = source
                .read_to_end(&mut self.pending)
                .map_err(ReadError::Io)?;
            if got_bytes == 0 {
                return Ok(None);
            }
        }
    }
}

impl<R: Read> Iterator for RecordReader<R> {
    type Item = Result<IoEvent, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.read_event().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::LogReplay;
    use crate::image::{DiskImage, Fill};
    use crate::rng::Rng;

    fn one_of_each() -> Vec<IoEvent> {
        vec![
            IoEvent::WriteSubmitted {
                id: 1,
                offset_bytes: 4096,
                bytes: vec![7; 512].into(),
            },
            IoEvent::WriteCompleted { id: 1, ok: true },
            IoEvent::FlushSubmitted { id: u64::MAX },
            IoEvent::FlushCompleted {
                id: u64::MAX,
                ok: false,
            },
            IoEvent::DiscardSubmitted {
                id: 2,
                offset_bytes: 1 << 40,
                len_bytes: 128 << 20,
            },
            IoEvent::DiscardCompleted { id: 2, ok: true },
            IoEvent::mark(99),
            IoEvent::WriteSubmitted {
                id: 3,
                offset_bytes: 0,
                bytes: vec![8; 3 << 20].into(),
            },
        ]
    }

    fn encode(events: &[IoEvent]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for event in events {
            event.as_recorded().encode(&mut bytes);
        }
        bytes
    }

    /// Gives a few bytes at a time.
    struct Drip<'a>(&'a [u8], Rng);

    impl Read for Drip<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let most = out.len().min(self.0.len());
            let count = most.min(1 + self.1.index(2_000));
            let (now, later) = self.0.split_at(count);
            out[..count].copy_from_slice(now);
            self.0 = later;
            Ok(count)
        }
    }

    #[test]
    fn events_round_trip() {
        let events = one_of_each();
        let bytes = encode(&events);
        let mut reader = RecordReader::new(Drip(&bytes, Rng::new(1)));
        let read: Vec<IoEvent> = reader.by_ref().map(|event| event.unwrap()).collect();
        assert_eq!(read, events);
        assert_eq!(reader.lost_tail_bytes(), 0);
    }

    #[test]
    fn a_record_cut_off_anywhere_gives_the_events_before() {
        let events = &one_of_each()[..7];
        let bytes = encode(events);
        for len in 0..bytes.len() {
            let mut reader = RecordReader::new(&bytes[..len]);
            let read: Vec<IoEvent> = reader.by_ref().map(|event| event.unwrap()).collect();
            assert_eq!(read, events[..read.len()]);
            let whole_bytes = encode(&read).len();
            assert_eq!(reader.lost_tail_bytes(), (len - whole_bytes) as u64);
        }
    }

    #[test]
    fn what_is_no_event_ends_the_record_with_its_place() {
        let mut bytes = encode(&one_of_each()[..2]);
        let end_bytes = bytes.len() as u64;
        bytes.extend([200; 64]);
        let mut reader = RecordReader::new(&bytes[..]);
        assert!(reader.next().is_some_and(|event| event.is_ok()));
        assert!(reader.next().is_some_and(|event| event.is_ok()));
        match reader.next() {
            Some(Err(error @ ReadError::Record { at_bytes, .. })) => {
                assert_eq!(at_bytes, end_bytes);
                assert!(error.to_string().contains("at byte"));
            }
            other => panic!("{other:?}"),
        }
        assert!(reader.next().is_none());
    }

    #[test]
    fn noise_does_no_harm() {
        let mut rng = Rng::new(21);
        let good = encode(&one_of_each()[..7]);
        let (mut replayed, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..rng.within(&(1..=8)) {
                let at = rng.index(bytes.len());
                // Mostly in the headers, mostly small numbers.
                let at = if rng.chance(0.7) { at % 32 } else { at };
                bytes[at] = rng.next_u64() as u8 >> rng.below(8);
            }
            bytes.truncate(rng.index(bytes.len() + 1));
            let mut replay = LogReplay::new(DiskImage::new(Fill::Zeros));
            for event in RecordReader::new(&bytes[..]).map_while(Result::ok) {
                match replay.apply(&event) {
                    Ok(()) => replayed += 1,
                    Err(_) => refused += 1,
                }
            }
            replay.images().sample(&mut rng);
        }
        assert!(replayed > 1_000, "{replayed}");
        assert!(refused > 1_000, "{refused}");
    }

    #[test]
    fn a_huge_length_takes_no_memory() {
        let mut bytes = encode(&one_of_each()[..1]);
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut reader = RecordReader::new(&bytes[..]);
        assert!(reader.next().is_none());
        assert_eq!(reader.lost_tail_bytes(), bytes.len() as u64);
        assert!(reader.pending.capacity() < 4 << 20);
    }
}
