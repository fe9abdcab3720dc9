//! Bodies of replies that say why a request failed.

use std::net::SocketAddr;

use flagstone_types::Lsn;

use crate::fields::Fields;
use crate::hello::cut;
use crate::{BodyError, Status, address};

/// The longest sentence that is sent, in bytes.
pub const SENTENCE_MAX_BYTES: usize = 1024;

/// What the body of a failed request's reply says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure<'a> {
    /// A sentence for people; empty if there is none.
    Sentence(&'a str),
    /// [`Status::Version`]: what the server speaks.
    Versions {
        /// The lowest version.
        min: u16,
        /// The highest.
        max: u16,
    },
    /// [`Status::Moved`]: where the volume was last known to be.
    Moved(SocketAddr),
    /// [`Status::ConditionFailed`]: the LSN of the change that broke the condition; 0 if it isn't
    /// known.
    Found(Lsn),
}

impl<'a> Failure<'a> {
    /// Appends the body. A sentence that is too long is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Failure::Sentence(sentence) => {
                out.extend(cut(sentence, SENTENCE_MAX_BYTES).as_bytes());
            }
            Failure::Versions { min, max } => {
                out.extend(min.to_le_bytes());
                out.extend(max.to_le_bytes());
            }
            Failure::Moved(address) => address::encode(*address, out),
            Failure::Found(lsn) => out.extend(lsn.0.to_le_bytes()),
        }
    }

    /// A body that came with a status other than 0, which may be an unknown one. A sentence ends
    /// where it stops being text.
    pub fn decode(status: u16, body: &'a [u8]) -> Result<Failure<'a>, BodyError> {
        let mut fields = Fields::new(body);
        let failure = match Status::from_number(status) {
            Some(Status::Version) => Failure::Versions {
                min: fields.u16("the lowest version")?,
                max: fields.u16("the highest version")?,
            },
            Some(Status::Moved) => Failure::Moved(address::take(&mut fields)?),
            Some(Status::ConditionFailed) => Failure::Found(Lsn(fields.u64("the LSN")?)),
            _ => return Ok(Failure::Sentence(text_of(body))),
        };
        fields.end()?;
        Ok(failure)
    }
}

/// The text that `bytes` begin with, up to the longest sentence.
fn text_of(bytes: &[u8]) -> &str {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    cut(text, SENTENCE_MAX_BYTES)
}
