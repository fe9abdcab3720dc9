//! Why a call failed, and what that says of the volume.

use std::fmt;

use flagstone_types::Lsn;
use flagstone_wire::{CarriedOut, Status};

/// Why a call failed. The two kinds are what a caller decides by; [`Error::failure`] has the rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// Nothing has changed, and nothing of the call will happen later.
    NotCarriedOut(Failure),
    /// It may have happened, or still happen until the connection is made again: each block is
    /// wholly as before or wholly as asked for. Reading it, or asking what has changed since an LSN,
    /// tells which.
    Perhaps(Failure),
}

/// What was being done, and why it failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What was being done, to what: "writing 4096 bytes at 8192 of volume vm1".
    pub doing: String,
    /// Why it failed.
    pub cause: Cause,
}

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The server said so: its status, and its sentence if that came along.
    Refused {
        /// A [`Status`] as a number: a later version of the protocol may have more of them.
        status: u16,
        /// For people; empty if none came.
        sentence: String,
    },
    /// A condition doesn't hold: the range was changed by the change with this LSN, if that is known.
    ConditionFailed(Option<Lsn>),
    /// Other bytes are there than expected: these, if they came along.
    NotEqual(Option<Vec<u8>>),
    /// The caller's time was over. The last trouble on the way, if there was some.
    TimedOut(Option<String>),
    /// The server's process, or the session, has ended before the answer came.
    SessionLost,
    /// Changes that were answered without being durable may be gone: the server's process has
    /// ended since. Told once; they have to be made again.
    UnflushedLost,
    /// What came back doesn't match its checksum, again and again. The network, or memory on the way,
    /// is faulty.
    Damaged,
    /// The server answered something that can't be.
    Protocol(String),
    /// The call makes no sense as it is, or is longer than the server's limits allow.
    Invalid(String),
    /// The volume or the client was closed.
    Closed,
    /// What makes calls in this process could not be started, or has ended: of clients that have a thread of
    /// their own (`flagstone-blocking`).
    NotRunning(String),
}

impl Error {
    /// What was being done, and why it failed.
    pub fn failure(&self) -> &Failure {
        match self {
            Error::NotCarriedOut(failure) | Error::Perhaps(failure) => failure,
        }
    }

    /// Why it failed.
    pub fn cause(&self) -> &Cause {
        &self.failure().cause
    }

    /// The server's status, if it is what it failed by and this version knows it.
    pub fn status(&self) -> Option<Status> {
        match self.cause() {
            Cause::Refused { status, .. } => Status::from_number(*status),
            Cause::ConditionFailed(_) => Some(Status::ConditionFailed),
            Cause::NotEqual(_) => Some(Status::NotEqual),
            _ => None,
        }
    }

    /// True if it may have been carried out nevertheless.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Error::Perhaps(_))
    }

    /// Of a call that has carried something out perhaps, or not.
    pub(crate) fn of(perhaps: bool, doing: &str, cause: Cause) -> Error {
        let doing = doing.to_owned();
        let failure = Failure { doing, cause };
        match perhaps {
            true => Error::Perhaps(failure),
            false => Error::NotCarriedOut(failure),
        }
    }
}

impl Cause {
    /// A status other than 0, with its sentence.
    pub(crate) fn refused(status: u16, sentence: &str) -> Cause {
        match Status::from_number(status) {
            Some(Status::ConditionFailed) => Cause::ConditionFailed(None),
            Some(Status::NotEqual) => Cause::NotEqual(None),
            _ => Cause::Refused {
                status,
                sentence: sentence.to_owned(),
            },
        }
    }
}

/// Whether what was answered with a status may have been carried out.
pub(crate) fn perhaps(status: u16) -> bool {
    let known = Status::from_number(status).map(Status::carried_out);
    known != Some(CarriedOut::No)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.failure())?;
        match self {
            Error::NotCarriedOut(_) => Ok(()),
            Error::Perhaps(_) => f.write_str(" It may have been carried out: read to find out."),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.cause)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Refused { status, sentence } => {
                let known = Status::from_number(*status);
                match known {
                    Some(status) => write!(f, "the server answered {status}: ")?,
                    None => write!(
                        f,
                        "the server answered status {status}, which is new to us: "
                    )?,
                }
                match (sentence.as_str(), known) {
                    ("", Some(status)) => f.write_str(status.sentence()),
                    ("", None) => f.write_str("it gives no reason."),
                    (sentence, _) => f.write_str(sentence),
                }
            }
            Cause::ConditionFailed(Some(lsn)) => write!(
                f,
                "the range has changed: the change {lsn:?} is above what was expected."
            ),
            Cause::ConditionFailed(None) => f.write_str("the range has changed since that LSN."),
            Cause::NotEqual(_) => f.write_str("the bytes there are others than expected."),
            Cause::TimedOut(trouble) => {
                f.write_str("no answer before the time was over")?;
                match trouble {
                    Some(trouble) => write!(f, "; the last trouble was: {trouble}."),
                    None => f.write_str("; the server is slow or can't be reached."),
                }
            }
            Cause::SessionLost => {
                f.write_str("the server was restarted, or forgot the session, before the answer.")
            }
            Cause::UnflushedLost => f.write_str(
                "the server was restarted since changes that were not durable were answered; make \
                 them again.",
            ),
            Cause::Damaged => f.write_str(
                "what came doesn't match its checksum, several times; look at the network.",
            ),
            Cause::Protocol(what) => write!(f, "the server contradicts the protocol: {what}."),
            Cause::Invalid(what) => write!(f, "{what}."),
            Cause::Closed => f.write_str("the volume, or the client, was closed; open it again."),
            Cause::NotRunning(what) => write!(f, "{what}."),
        }
    }
}
