//! Questions about what is stored: metadata of blocks, what is allocated, what has changed.

use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, Lsn};
use flagstone_wire::query::{self, BlockMetadata, Run};
use flagstone_wire::{BodyError, Operation, VolumeNo};

use crate::call::{Ask, Done};
use crate::connect::Connect;
use crate::error::{Cause, Error};
use crate::volume::Volume;

impl<P: Platform, C: Connect> Volume<P, C> {
    /// Reads whole blocks, and of each the LSN of its last change and its metadata.
    pub async fn read_metadata(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(IoBuf, Vec<BlockMetadata>), Error> {
        let operation = Operation::ReadMetadata;
        let ask = self.range(operation, "reading with metadata", offset_bytes, len_bytes);
        let doing = ask.doing.clone();
        let done = self.call(ask).await?;
        let body = done.body.as_deref().unwrap_or_default();
        let metadata = query::decode_metadata(body, len_bytes / BLOCK_SIZE);
        let metadata = metadata
            .map_err(|error| contradicts(&doing, &error))?
            .collect();
        if done.payload.len() as u64 != len_bytes {
            let text = format!("{} bytes came", done.payload.len());
            return Err(Error::of(false, &doing, Cause::Protocol(text)));
        }
        Ok((done.payload, metadata))
    }

    /// What of a range is allocated, as 1 to `runs_max` runs from its beginning on. They may end before
    /// it does: then ask again from there.
    pub async fn allocation(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        runs_max: u32,
    ) -> Result<Vec<Run>, Error> {
        let operation = Operation::Allocation;
        let ask = self.range(
            operation,
            "asking what is allocated of",
            offset_bytes,
            len_bytes,
        );
        self.runs(ask, runs_max).await
    }

    /// What of a range has changed after `lsn`, as for [`Volume::allocation`]. `FORGOTTEN` if that is
    /// not known any more: then all of it may have.
    pub async fn changed_since(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        lsn: Lsn,
        runs_max: u32,
    ) -> Result<Vec<Run>, Error> {
        let operation = Operation::ChangedSince;
        let mut ask = self.range(
            operation,
            "asking what has changed of",
            offset_bytes,
            len_bytes,
        );
        ask.fields.lsn = lsn.0;
        self.runs(ask, runs_max).await
    }

    async fn runs(&self, ask: Ask<'static>, runs_max: u32) -> Result<Vec<Run>, Error> {
        let (doing, asked_bytes) = (ask.doing.clone(), ask.fields.len_bytes);
        let body = |_: &[VolumeNo], out: &mut Vec<u8>| query::encode_runs_max(runs_max, out);
        let mut ask: Ask<'_> = ask;
        ask.body = &body;
        let done: Done = self.call(ask).await?;
        let body = done.body.as_deref().unwrap_or_default();
        let runs = query::decode_runs(body, asked_bytes, runs_max);
        let runs = runs.map_err(|error| contradicts(&doing, &error))?;
        Ok(runs.collect())
    }
}

/// A reply that can't be.
pub(crate) fn contradicts(doing: &str, error: &BodyError) -> Error {
    Error::of(false, doing, Cause::Protocol(error.to_string()))
}
