//! A volume that is open: what can be asked of it.

use std::future::Future;
use std::sync::Arc;

use flagstone_client::{Cause, Description, Durability, Error, Target};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::Lsn;

use crate::thread::{AsyncVolume, Thread, VolumeKey, failure};

/// A volume that is open. A cheap handle, for any number of threads, whose calls are on their way
/// together; when the last one is dropped the volume is closed, and nobody waits for that.
///
/// Every call waits until it is answered, at most as long as [`Options::call_timeout_ns`](crate::Options::call_timeout_ns) or
/// [`Volume::within`] says.
#[derive(Clone)]
pub struct Volume {
    held: Arc<Held>,
    timeout_ns: Option<u64>,
}

/// What all handles of a volume have in common.
struct Held {
    key: VolumeKey,
    target: Target,
    thread: Arc<Thread>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let key = self.key;
        self.thread.tell(move |desk| desk.forget(key));
    }
}

impl Volume {
    pub(crate) fn new(thread: Arc<Thread>, key: VolumeKey, target: Target) -> Volume {
        let held = Held {
            key,
            target,
            thread,
        };
        Volume {
            held: Arc::new(held),
            timeout_ns: None,
        }
    }

    /// The same volume, whose calls take `timeout_ns` nanoseconds each at most. What is answered later was
    /// perhaps carried out.
    pub fn within(&self, timeout_ns: u64) -> Volume {
        let mut volume = self.clone();
        volume.timeout_ns = Some(timeout_ns);
        volume
    }

    /// What was known of it when it was opened or described last. Asks no server; waits for the client's thread alone.
    pub fn description(&self) -> Result<Description, Error> {
        self.call(
            false,
            || "looking up".to_owned(),
            |volume| async move { Ok(volume.description()) },
        )
    }

    /// Its size in bytes, as [`Volume::description`] has it.
    pub fn size_bytes(&self) -> Result<u64, Error> {
        Ok(self.description()?.size_bytes)
    }

    /// Asks the server what it knows of the volume now.
    pub fn describe(&self) -> Result<Description, Error> {
        self.call(
            false,
            || "describing".to_owned(),
            |volume| async move { volume.describe().await },
        )
    }

    /// Fills `bytes` (1 or more, as many as one reply may have: 4 MiB usually) with what is there from byte
    /// `offset_bytes` on. It matches the checksum that came with it. After an error `bytes` is as before.
    pub fn read_at(&self, bytes: &mut [u8], offset_bytes: u64) -> Result<(), Error> {
        let len_bytes = bytes.len() as u64;
        let read = self.call(
            false,
            || format!("reading {len_bytes} bytes at {offset_bytes} of"),
            move |volume| async move {
                let read = volume.read(offset_bytes, len_bytes).await?;
                // Buffers of the platform stay on their thread.
                Ok(read.to_vec())
            },
        )?;
        // The async client gives out as many as were asked for, or an error.
        bytes.copy_from_slice(&read);
        Ok(())
    }

    /// Writes `bytes` (1 or more, as many as one request may have: 4 MiB usually) from byte `offset_bytes` on,
    /// each block of them wholly or not at all: the change's LSN.
    pub fn write_at(
        &self,
        bytes: &[u8],
        offset_bytes: u64,
        durability: Durability,
    ) -> Result<Lsn, Error> {
        let len_bytes = bytes.len();
        let bytes = bytes.to_vec();
        self.call(
            true,
            || format!("writing {len_bytes} bytes at {offset_bytes} of"),
            move |volume| async move {
                let bytes = IoBuf::copy_of(&bytes);
                volume.write(offset_bytes, bytes, durability).await
            },
        )
    }

    /// Makes a range, in bytes, read as zeros: the change's LSN. With `keep_space` it keeps the space that it
    /// has.
    pub fn zero(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_space: bool,
        durability: Durability,
    ) -> Result<Lsn, Error> {
        self.call(
            true,
            || format!("zeroing {len_bytes} bytes at {offset_bytes} of"),
            move |volume| async move {
                volume
                    .zero(offset_bytes, len_bytes, keep_space, durability)
                    .await
            },
        )
    }

    /// Gives the space of a range, in bytes, back; it reads as zeros from then on: the change's LSN.
    pub fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        durability: Durability,
    ) -> Result<Lsn, Error> {
        self.call(
            true,
            || format!("deallocating {len_bytes} bytes at {offset_bytes} of"),
            move |volume| async move { volume.deallocate(offset_bytes, len_bytes, durability).await },
        )
    }

    /// Makes durable every change that was answered before this is called, to whichever thread: the LSN of the last
    /// change that is durable. [`Cause::UnflushedLost`] if the server's process has ended since some of
    /// them were answered: those have to be made again.
    pub fn flush(&self) -> Result<Lsn, Error> {
        self.call(
            true,
            || "flushing".to_owned(),
            |volume| async move { volume.flush().await },
        )
    }

    /// Closes the volume for all who have a handle, and waits until the server knows, or can't be told. Later calls
    /// of the others fail with [`Cause::Closed`]. Fails only if the client's thread has ended; then it is closed as
    /// well.
    pub fn close(self) -> Result<(), Error> {
        self.call(
            false,
            || "closing".to_owned(),
            |volume| async move {
                volume.close().await;
                Ok(())
            },
        )
    }

    /// Has something done with the volume on the client's thread. `doing` says what, up to the volume.
    fn call<T, F>(
        &self,
        is_change: bool,
        doing: impl Fn() -> String,
        work: impl FnOnce(AsyncVolume) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let Held {
            key,
            target,
            thread,
        } = &*self.held;
        let (key, timeout_ns) = (*key, self.timeout_ns);
        let doing = || format!("{} {target}", doing());
        let done = thread.call(is_change, doing, move |desk| {
            let volume = desk.volume(key).map(|volume| match timeout_ns {
                Some(ns) => volume.until(desk.platform.now().plus_ns(ns)),
                None => volume,
            });
            let working = volume.map(work);
            async move {
                match working {
                    Some(working) => Some(working.await).transpose(),
                    None => Ok(None),
                }
            }
        })?;
        // Not while there is a handle; this one is.
        done.ok_or_else(|| failure(false, doing(), Cause::Closed))
    }
}
