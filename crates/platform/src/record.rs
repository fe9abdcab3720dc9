//! Recording what is asked of a device, so that crash images can be built from it later.
//!
//! A [`RecordingDevice`] stands in front of any device and tells a [`Recorder`] what happens, in
//! the order in which its user sees it:
//! - a write is *submitted* when it is first polled, since only then it can reach the device, and
//!   *completed* when its result is handed to the user. A write whose future is dropped is never
//!   completed: it may have reached the media, wholly, in part, or not at all;
//! - a flush is *submitted* when `flush` is called, since only writes completed before that are
//!   covered by it, and *completed* when its result is handed to the user. Both are on the safe
//!   side: the record never calls a write durable that the device's user may not rely on.
//!
//! So at any point of the record, what must be on the media is every write completed before the
//! submission of a flush that has since completed well; any subset of the other submitted writes,
//! torn at 512 bytes, may be there as well.
//!
//! **Format** of an event in a file, little-endian: kind (u8), ok (u8), zero (u16), length of the
//! data that follows (u32), id (u64; of a mark its value), offset (u64), length of a discarded range
//! (u64), data. A file that ends within an event has lost its tail with the process, and is read up
//! to there.

use std::future::Future;
use std::io;

use crate::buf::IoBuf;
use crate::traits::BlockDevice;

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
        /// Its meaning is between who records and who checks.
        value: u64,
    },
}

/// Receives events. Cores that share a device share a recorder: its clones give ids from one
/// counter and put events into one order.
pub trait Recorder: Clone + 'static {
    /// An id that no other operation on this record has.
    fn next_id(&self) -> u64;

    /// Takes an event. It must have its place in the order when this returns.
    fn record(&self, event: &IoEvent<'_>);
}

/// A device whose writes, flushes and discards are recorded.
#[derive(Clone)]
pub struct RecordingDevice<D, R> {
    device: D,
    recorder: R,
}

impl<D: BlockDevice, R: Recorder> RecordingDevice<D, R> {
    /// Records what `device` is asked for.
    pub fn new(device: D, recorder: R) -> RecordingDevice<D, R> {
        RecordingDevice { device, recorder }
    }

    /// The device behind.
    pub fn inner(&self) -> &D {
        &self.device
    }
}

impl<D: BlockDevice, R: Recorder> BlockDevice for RecordingDevice<D, R> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        self.device.read(offset_bytes, buf)
    }

    fn write(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let RecordingDevice { device, recorder } = self.clone();
        async move {
            let id = recorder.next_id();
            recorder.record(&IoEvent::WriteSubmitted {
                id,
                offset_bytes,
                data: &buf,
            });
            let (buf, result) = device.write(offset_bytes, buf).await;
            recorder.record(&IoEvent::WriteCompleted {
                id,
                ok: result.is_ok(),
            });
            (buf, result)
        }
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static {
        let RecordingDevice { device, recorder } = self.clone();
        let id = recorder.next_id();
        recorder.record(&IoEvent::FlushSubmitted { id });
        async move {
            let result = device.flush().await;
            recorder.record(&IoEvent::FlushCompleted {
                id,
                ok: result.is_ok(),
            });
            result
        }
    }

    fn discard(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let RecordingDevice { device, recorder } = self.clone();
        async move {
            let id = recorder.next_id();
            recorder.record(&IoEvent::DiscardSubmitted {
                id,
                offset_bytes,
                len_bytes,
            });
            let result = device.discard(offset_bytes, len_bytes).await;
            recorder.record(&IoEvent::DiscardCompleted {
                id,
                ok: result.is_ok(),
            });
            result
        }
    }
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
                IoEvent::Mark { value } => (MARK, true, value, 0, 0, &[]),
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
            MARK => IoEvent::Mark { value: id },
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
    use std::cell::{Cell, RefCell};
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};

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
            IoEvent::Mark { value: 4711 },
        ]
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

    #[derive(Clone, Default)]
    struct Log(Rc<(Cell<u64>, RefCell<Vec<u8>>)>);

    impl Recorder for Log {
        fn next_id(&self) -> u64 {
            self.0.0.replace(self.0.0.get() + 1)
        }

        fn record(&self, event: &IoEvent<'_>) {
            event.encode(&mut self.0.1.borrow_mut());
        }
    }

    /// A device that answers at the second poll.
    #[derive(Clone)]
    struct Slow;

    async fn second_poll() {
        let mut polled = false;
        std::future::poll_fn(|_| match std::mem::replace(&mut polled, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "the trait's futures don't borrow the device"
    )]
    impl BlockDevice for Slow {
        fn size_bytes(&self) -> u64 {
            1 << 20
        }

        fn read(
            &self,
            _: u64,
            buf: IoBuf,
        ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
            async { (buf, Ok(())) }
        }

        fn write(
            &self,
            _: u64,
            buf: IoBuf,
        ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
            async {
                second_poll().await;
                (buf, Ok(()))
            }
        }

        fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static {
            async {
                second_poll().await;
                Err(io::Error::other("broken"))
            }
        }

        fn discard(&self, _: u64, _: u64) -> impl Future<Output = io::Result<()>> + 'static {
            async { Ok(()) }
        }
    }

    #[test]
    fn writes_count_from_their_first_poll_and_flushes_from_their_call() {
        let log = Log::default();
        let device = RecordingDevice::new(Slow, log.clone());
        let mut cx = Context::from_waker(Waker::noop());
        let mut unpolled = pin!(device.write(0, IoBuf::copy_of(&[1; 4])));
        let mut flush = pin!(device.flush());
        let mut write = pin!(device.write(512, IoBuf::copy_of(&[2; 4])));
        assert!(write.as_mut().poll(&mut cx).is_pending());
        {
            let mut dropped = Box::pin(device.write(1024, IoBuf::copy_of(&[3; 4])));
            assert!(dropped.as_mut().poll(&mut cx).is_pending());
        }
        assert!(flush.as_mut().poll(&mut cx).is_pending());
        assert!(write.as_mut().poll(&mut cx).is_ready());
        assert!(flush.as_mut().poll(&mut cx).is_ready());
        assert!(unpolled.as_mut().poll(&mut cx).is_pending());
        let bytes = log.0.1.borrow();
        let mut rest = bytes.as_slice();
        let mut seen = Vec::new();
        while let Some((event, after)) = IoEvent::decode(rest).unwrap() {
            seen.push(event);
            rest = after;
        }
        let expected = [
            IoEvent::FlushSubmitted { id: 0 },
            IoEvent::WriteSubmitted {
                id: 1,
                offset_bytes: 512,
                data: &[2; 4],
            },
            IoEvent::WriteSubmitted {
                id: 2,
                offset_bytes: 1024,
                data: &[3; 4],
            },
            IoEvent::WriteCompleted { id: 1, ok: true },
            IoEvent::FlushCompleted { id: 0, ok: false },
            IoEvent::WriteSubmitted {
                id: 3,
                offset_bytes: 0,
                data: &[1; 4],
            },
        ];
        assert_eq!(seen, expected);
    }
}
