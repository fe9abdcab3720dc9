//! Record marking: where a message begins and ends in a stream of bytes. [rfc5531 11]
//!
//! A message is sent as one or more fragments, each behind a header of four bytes: the highest bit
//! says that it is the last one, the others are its length.
//!
//! The machine says what to read next and is told what was read. It never holds a byte itself.
//! Invariants: what it asks for never adds up to more than [`RecordLimits::record_bytes_max`] a
//! record, and a record has at most [`RecordLimits::fragments_max`] fragments, so that empty ones
//! can't keep a connection busy for ever.

use std::fmt;

/// Length of a fragment's header, in bytes.
pub const HEADER_BYTES: usize = 4;

const LAST_FRAGMENT: u32 = 1 << 31;

/// The longest fragment there can be, in bytes.
pub const FRAGMENT_BYTES_MAX: u32 = LAST_FRAGMENT - 1;

/// What one record may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordLimits {
    /// All fragments together without their headers, in bytes.
    pub record_bytes_max: u32,
    /// Fragments.
    pub fragments_max: u32,
}

/// What the driver reads next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Four bytes, for [`RecordMachine::handle_header`].
    Header,
    /// Bytes of the record, as many of them as come; [`RecordMachine::handle_body`] with their
    /// number.
    Body {
        /// What is left of this fragment. Never zero.
        bytes: u32,
    },
    /// Nothing: a record has been read to its end. [`RecordMachine::take_record`] goes on.
    Record {
        /// Its length. May be zero.
        bytes: u32,
    },
}

/// The stream can't be followed any further; close the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordError {
    /// A record is longer than allowed.
    TooLong {
        /// The limit in bytes.
        max: u32,
        /// How long it is at least.
        found: u64,
    },
    /// A record is cut into too many pieces.
    TooManyFragments {
        /// The limit.
        max: u32,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::TooLong { max, found } => write!(
                f,
                "an RPC record of {found} bytes or more, expected at most {max}"
            ),
            RecordError::TooManyFragments { max } => {
                write!(f, "an RPC record in more than {max} fragments")
            }
        }
    }
}

impl std::error::Error for RecordError {}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Header,
    Body { left_bytes: u32, last: bool },
    Complete,
}

/// The machine. See the module's page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordMachine {
    limits: RecordLimits,
    state: State,
    /// Length of the record as far as headers have told.
    known_bytes: u32,
    fragments: u32,
}

impl RecordMachine {
    /// At the start of a stream.
    pub fn new(limits: RecordLimits) -> RecordMachine {
        RecordMachine {
            limits,
            state: State::Header,
            known_bytes: 0,
            fragments: 0,
        }
    }

    /// What to read next.
    pub fn poll_next(&self) -> Next {
        match self.state {
            State::Header => Next::Header,
            State::Body { left_bytes, .. } => Next::Body { bytes: left_bytes },
            State::Complete => Next::Record {
                bytes: self.known_bytes,
            },
        }
    }

    /// Length of the record, once its last fragment has begun: then the rest of it comes in one
    /// piece, and a payload can be received where it belongs.
    pub fn record_bytes(&self) -> Option<u32> {
        match self.state {
            State::Header | State::Body { last: false, .. } => None,
            State::Body { last: true, .. } | State::Complete => Some(self.known_bytes),
        }
    }

    /// Takes a fragment's header. Checked before any byte of the fragment is waited for.
    pub fn handle_header(&mut self, header: [u8; HEADER_BYTES]) -> Result<(), RecordError> {
        debug_assert_eq!(self.state, State::Header, "no header was asked for");
        let word = u32::from_be_bytes(header);
        let last = word & LAST_FRAGMENT != 0;
        let fragment_bytes = word & FRAGMENT_BYTES_MAX;
        let RecordLimits {
            record_bytes_max,
            fragments_max,
        } = self.limits;
        if self.fragments >= fragments_max {
            return Err(RecordError::TooManyFragments { max: fragments_max });
        }
        let known_bytes = self
            .known_bytes
            .checked_add(fragment_bytes)
            .filter(|bytes| *bytes <= record_bytes_max)
            .ok_or(RecordError::TooLong {
                max: record_bytes_max,
                found: u64::from(self.known_bytes) + u64::from(fragment_bytes),
            })?;
        self.fragments += 1;
        self.known_bytes = known_bytes;
        self.state = State::Body {
            left_bytes: fragment_bytes,
            last,
        };
        self.settle();
        Ok(())
    }

    /// `count` bytes of the fragment have been read, at most as many as were asked for.
    pub fn handle_body(&mut self, count: u32) {
        match &mut self.state {
            State::Body { left_bytes, .. } if count <= *left_bytes => *left_bytes -= count,
            _ => debug_assert!(false, "{count} bytes that were not asked for"),
        }
        self.settle();
    }

    /// A fragment without bytes left is over.
    fn settle(&mut self) {
        if let State::Body {
            left_bytes: 0,
            last,
        } = self.state
        {
            self.state = if last { State::Complete } else { State::Header };
        }
    }

    /// Goes on to the next record. The driver has used the one before.
    pub fn take_record(&mut self) {
        debug_assert_eq!(self.state, State::Complete, "the record is not complete");
        *self = RecordMachine::new(self.limits);
    }
}

/// Reserves the header of a record that has one fragment, at the end of `out`. Returns where, for
/// [`finish_record`].
pub fn begin_record(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    at
}

/// Fills in the header at `at`. The record is all of `out` behind it and `further_bytes`, which are
/// sent from another place: the payload of a READ and its padding, or none.
pub fn finish_record(out: &mut [u8], at: usize, further_bytes: usize) {
    let len_bytes = out.len() - at - HEADER_BYTES + further_bytes;
    let len_bytes = u32::try_from(len_bytes).expect("we send no record of 2 GiB");
    assert!(len_bytes <= FRAGMENT_BYTES_MAX);
    let header = (LAST_FRAGMENT | len_bytes).to_be_bytes();
    out[at..at + HEADER_BYTES].copy_from_slice(&header);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RecordLimits = RecordLimits {
        record_bytes_max: 100,
        fragments_max: 4,
    };

    #[test]
    fn one_fragment() {
        let mut machine = RecordMachine::new(LIMITS);
        assert_eq!(machine.poll_next(), Next::Header);
        assert_eq!(machine.record_bytes(), None);
        machine.handle_header([0x80, 0, 0, 10]).expect("short");
        assert_eq!(machine.poll_next(), Next::Body { bytes: 10 });
        assert_eq!(machine.record_bytes(), Some(10));
        machine.handle_body(3);
        assert_eq!(machine.poll_next(), Next::Body { bytes: 7 });
        machine.handle_body(7);
        assert_eq!(machine.poll_next(), Next::Record { bytes: 10 });
        assert_eq!(machine.record_bytes(), Some(10));
        machine.take_record();
        assert_eq!(machine, RecordMachine::new(LIMITS));
    }

    /// [rfc5531 11] test
    #[test]
    fn several_fragments_are_one_record() {
        let mut machine = RecordMachine::new(LIMITS);
        machine.handle_header([0, 0, 0, 60]).expect("short");
        assert_eq!(machine.record_bytes(), None);
        machine.handle_body(60);
        // An empty one adds nothing.
        machine.handle_header([0, 0, 0, 0]).expect("empty");
        assert_eq!(machine.poll_next(), Next::Header);
        machine
            .handle_header([0x80, 0, 0, 40])
            .expect("to the limit");
        assert_eq!(machine.record_bytes(), Some(100));
        machine.handle_body(40);
        assert_eq!(machine.poll_next(), Next::Record { bytes: 100 });
    }

    #[test]
    fn an_empty_record() {
        let mut machine = RecordMachine::new(LIMITS);
        machine.handle_header([0x80, 0, 0, 0]).expect("empty");
        assert_eq!(machine.poll_next(), Next::Record { bytes: 0 });
    }

    #[test]
    fn long_records_are_refused_by_their_header() {
        let mut machine = RecordMachine::new(LIMITS);
        assert_eq!(
            machine.handle_header([0x80, 0, 0, 101]),
            Err(RecordError::TooLong {
                max: 100,
                found: 101
            })
        );
        let mut machine = RecordMachine::new(LIMITS);
        machine.handle_header([0, 0, 0, 61]).expect("short");
        machine.handle_body(61);
        assert_eq!(
            machine.handle_header([0x80, 0, 0, 40]),
            Err(RecordError::TooLong {
                max: 100,
                found: 101
            })
        );
        // Even where sums of lengths leave 32 bits.
        let mut machine = RecordMachine::new(RecordLimits {
            record_bytes_max: u32::MAX,
            fragments_max: 4,
        });
        for _ in 0..2 {
            machine
                .handle_header([0x7f, 0xff, 0xff, 0xff])
                .expect("room");
            machine.handle_body(FRAGMENT_BYTES_MAX);
        }
        let refused = machine.handle_header([0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(refused, Err(RecordError::TooLong { .. })));
    }

    #[test]
    fn endless_records_are_refused() {
        let mut machine = RecordMachine::new(LIMITS);
        for _ in 0..LIMITS.fragments_max {
            machine.handle_header([0; 4]).expect("below the limit");
        }
        let refused = machine.handle_header([0x80, 0, 0, 1]);
        assert_eq!(refused, Err(RecordError::TooManyFragments { max: 4 }));
    }

    #[test]
    fn records_that_we_send() {
        let mut out = vec![9];
        let at = begin_record(&mut out);
        out.extend_from_slice(b"abcd");
        finish_record(&mut out, at, 0);
        assert_eq!(out, [9, 0x80, 0, 0, 4, b'a', b'b', b'c', b'd']);
        finish_record(&mut out, at, 0x01_0000);
        assert_eq!(out[1..5], [0x80, 1, 0, 4]);
    }
}
