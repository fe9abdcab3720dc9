//! Reading a stream, in pieces of any size.

use flagstone_types::checksum::crc32c;

use super::{
    HEADER_BYTES, KIND_DATA, KIND_ZEROS, RECORD_BYTES, RecordHead, StreamError, StreamHeader,
    Totals,
};

/// What a stream says next. Everything in it has been checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// What it is of. The first event.
    Header(Box<StreamHeader>),
    /// Data.
    Data {
        /// Where in the volume, in bytes.
        offset_bytes: u64,
        /// At most [`DATA_MAX_BYTES`](super::DATA_MAX_BYTES).
        bytes: Vec<u8>,
    },
    /// A run that reads as zeros.
    Zeros {
        /// Where in the volume, in bytes.
        offset_bytes: u64,
        /// How long, in bytes.
        len_bytes: u64,
    },
    /// The trailer, and it fits. The last event.
    End(Totals),
}

/// Where a decoder is.
#[derive(Clone, Debug)]
enum Stage {
    Header,
    /// The size of the volume.
    Records(u64),
    End,
}

/// Reads a stream: bytes in, events out. Keeps at most one record and what was pushed last.
#[derive(Clone, Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// Of `bytes`: those in front of this one have been read.
    read: usize,
    /// Where `read` is in the stream.
    at_bytes: u64,
    stage: Stage,
    totals: Totals,
    failed: Option<StreamError>,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder {
            bytes: Vec::new(),
            read: 0,
            at_bytes: 0,
            stage: Stage::Header,
            totals: Totals::default(),
            failed: None,
        }
    }
}

impl Decoder {
    /// The next bytes of the stream. Read all events before more is pushed: nothing is kept then but
    /// a part of a record.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend(bytes);
    }

    /// What has been read so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The next event; `None` if it takes more bytes. An error is final.
    pub fn next_event(&mut self) -> Result<Option<Event>, StreamError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let event = self.read_event();
        if let Err(error) = &event {
            self.failed = Some(error.clone());
        }
        event
    }

    /// Nothing more will come. An error unless the stream is whole.
    pub fn finish(&self) -> Result<Totals, StreamError> {
        match (&self.failed, &self.stage) {
            (Some(error), _) => Err(error.clone()),
            (None, Stage::End) if self.read == self.bytes.len() => Ok(self.totals),
            (None, Stage::End) => Err(StreamError::GoesOn {
                at_bytes: self.at_bytes,
            }),
            (None, _) => Err(StreamError::CutOff {
                bytes: self.at_bytes + (self.bytes.len() - self.read) as u64,
            }),
        }
    }

    fn read_event(&mut self) -> Result<Option<Event>, StreamError> {
        let rest = &self.bytes[self.read..];
        let size_bytes = match self.stage {
            Stage::Header => {
                let Some(bytes) = rest.first_chunk::<HEADER_BYTES>() else {
                    return Ok(None);
                };
                let header = StreamHeader::decode(bytes)?;
                self.totals.cover(crc32c(bytes), HEADER_BYTES as u64);
                self.stage = Stage::Records(header.size_bytes);
                self.skip(HEADER_BYTES);
                return Ok(Some(Event::Header(Box::new(header))));
            }
            Stage::End if rest.is_empty() => return Ok(None),
            Stage::End => {
                return Err(StreamError::GoesOn {
                    at_bytes: self.at_bytes,
                });
            }
            Stage::Records(size_bytes) => size_bytes,
        };
        let Some((head_bytes, rest)) = rest.split_first_chunk::<RECORD_BYTES>() else {
            return Ok(None);
        };
        let at_bytes = self.at_bytes;
        let wrong = |what| StreamError::Record { at_bytes, what };
        let head = RecordHead::decode(head_bytes)
            .ok_or(StreamError::RecordDamaged { at_bytes })?
            .map_err(wrong)?;
        // Checked before it is waited for: at most a record's worth is kept.
        let payload_bytes = head.payload_bytes as usize;
        let Some(payload) = rest.get(..payload_bytes) else {
            return Ok(None);
        };
        if crc32c(payload) != head.payload_crc {
            return Err(StreamError::DataDamaged {
                at_bytes,
                offset_bytes: head.offset_bytes,
            });
        }
        let event = match head.kind {
            KIND_DATA | KIND_ZEROS => {
                self.totals.add(&head, size_bytes).map_err(wrong)?;
                self.totals.cover(crc32c(head_bytes), RECORD_BYTES as u64);
                self.totals
                    .cover(head.payload_crc, head.payload_bytes.into());
                match head.kind {
                    KIND_DATA => Event::Data {
                        offset_bytes: head.offset_bytes,
                        bytes: payload.to_vec(),
                    },
                    _ => Event::Zeros {
                        offset_bytes: head.offset_bytes,
                        len_bytes: head.len_bytes,
                    },
                }
            }
            // Nothing else is let through by `RecordHead::decode`.
            _ => {
                if payload != self.totals.encode() || head.offset_bytes != size_bytes {
                    return Err(StreamError::Totals { found: self.totals });
                }
                self.stage = Stage::End;
                Event::End(self.totals)
            }
        };
        self.skip(RECORD_BYTES + payload_bytes);
        Ok(Some(event))
    }

    fn skip(&mut self, bytes: usize) {
        self.read += bytes;
        self.at_bytes += bytes as u64;
    }
}
