//! What concerns a volume as a whole: size, reservation, epoch.

use flagstone_platform::Platform;
use flagstone_types::Epoch;
use flagstone_wire::Operation;
use flagstone_wire::open::OpenReply;

use crate::connect::Connect;
use crate::error::{Cause, Error};
use crate::open::Description;
use crate::order::Blocks;
use crate::volume::Volume;

impl<P: Platform, C: Connect> Volume<P, C> {
    /// What the server knows of it now.
    pub async fn describe(&self) -> Result<Description, Error> {
        let ask = self.ask(
            Operation::Describe,
            format!("describing {}", self.inner.target),
        );
        let doing = ask.doing.clone();
        let done = self.call(ask).await?;
        let body = done.body.unwrap_or_default();
        let reply = OpenReply::decode(&body);
        let wrong = |error| Error::of(false, &doing, Cause::Protocol(format!("{error}")));
        let description = Description::of(&reply.map_err(wrong)?);
        self.inner.describe_as(description.clone());
        Ok(description)
    }

    /// Gives it another size, in bytes. What lies behind a smaller one is lost. Changes that were
    /// called before are carried out first.
    pub async fn resize(&self, size_bytes: u64) -> Result<(), Error> {
        let doing = format!("resizing {} to {size_bytes} bytes", self.inner.target);
        let mut ask = self.ask(Operation::Resize, doing);
        ask.fields.len_bytes = size_bytes;
        ask.blocks = vec![Blocks::all(self.description().id)];
        self.call(ask).await.map(drop)
    }

    /// Reserves so many bytes for it on its device, so that writing them finds room.
    pub async fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let doing = format!("reserving {bytes} bytes for {}", self.inner.target);
        let mut ask = self.ask(Operation::Reserve, doing);
        ask.fields.len_bytes = bytes;
        self.call(ask).await.map(drop)
    }

    /// Raises its epoch: whoever else has it open for writing is refused from now on. Changes that
    /// were called before are carried out first.
    pub async fn set_epoch(&self, epoch: Epoch) -> Result<(), Error> {
        let doing = format!("setting the epoch of {} to {}", self.inner.target, epoch.0);
        let mut ask = self.ask(Operation::SetEpoch, doing);
        ask.fields.lsn = epoch.0.into();
        ask.blocks = vec![Blocks::all(self.description().id)];
        let result = self.call(ask).await;
        if result
            .as_ref()
            .map_or_else(Error::may_have_happened, |_| true)
        {
            self.inner.may_have_epoch(epoch);
        }
        result.map(drop)
    }
}
