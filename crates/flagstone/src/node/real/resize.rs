//! Changing a volume's size, and what is reserved for the volume.

use flagstone_device::engine::{DvolError, DvolInfo, Engine, Handle};
use flagstone_platform::Platform;
use flagstone_runtime::UringPlatform;
use flagstone_types::BLOCK_SIZE;

use super::core::CoreNode;
use super::creation::reserved_bytes;
use super::errors::{Wanted, check_reservation, check_size, no_room_for_all};
use super::stripes::{Shortage, Unreserved};
use super::{NodeError, NodeErrorKind, RealNode, Reservation, Target, VolumeInfo};

/// What came of it.
pub(super) enum Resized {
    Done,
    /// It would have become smaller than so many bytes, and that was not consented to.
    WouldShrink(u64),
}

/// Changes the size of a volume that an engine of this core has, and with it what is reserved for a volume of which
/// all is. Of no volume more is reserved afterwards than it has.
pub(super) async fn resize_here(
    core: &CoreNode,
    engine: &Engine<UringPlatform>,
    dvol: Handle,
    size_bytes: u64,
    allow_data_loss: bool,
) -> Result<Resized, DvolError> {
    // What is consented to depends on the size there is: nobody else changes it meanwhile.
    let sizing = core.sizing(dvol.id);
    let _turn = sizing.take(1).await;
    core.check_settled(dvol.id)?;
    resize_alone(engine, dvol, size_bytes, allow_data_loss).await
}

/// The same for who is the only one to change it.
pub(super) async fn resize_alone(
    engine: &Engine<UringPlatform>,
    dvol: Handle,
    size_bytes: u64,
    allow_data_loss: bool,
) -> Result<Resized, DvolError> {
    let before_bytes = engine.size_of(dvol)?;
    let (_, reserved_before) = engine.usage_of(dvol)?;
    if size_bytes < before_bytes && !allow_data_loss {
        return Ok(Resized::WouldShrink(before_bytes));
    }
    let is_full = reserved_before > 0 && reserved_before >= before_bytes;
    let kept = is_full.then_some(reserved_before);
    resize_reserved(engine, dvol, (before_bytes, size_bytes), kept).await?;
    Ok(Resized::Done)
}

/// Changes a size, and what is reserved with it: if all of the volume is to be, `reserved` is how much that is now. What is missing for a
/// larger size is set aside first, and given back if the size stays as it was.
pub(super) async fn resize_reserved<P: Platform>(
    engine: &Engine<P>,
    dvol: Handle,
    (was, is): (u64, u64),
    reserved: Option<u64>,
) -> Result<(), DvolError> {
    let reserved = reserved.filter(|_| is > was);
    if reserved.is_some() {
        engine.set_reserved(dvol, is).await?;
    }
    let resized = engine.resize(dvol, is).await;
    let is_new = engine.size_of(dvol) == Ok(is);
    let settled = match (reserved, is_new) {
        // Nobody could ever use what was set aside for the larger size.
        (Some(before), false) => engine.set_reserved(dvol, before).await,
        // Also if what lies behind the new end could not be given back.
        (_, true) if is <= was => reserve_no_more(engine, dvol).await,
        _ => Ok(()),
    };
    resized.and(settled)
}

/// Gives back what is reserved for a volume beyond its size, which nobody could ever use.
pub(super) async fn reserve_no_more<P: Platform>(
    engine: &Engine<P>,
    dvol: Handle,
) -> Result<(), DvolError> {
    let size_bytes = engine.size_of(dvol)?;
    let (_, reserved_bytes) = engine.usage_of(dvol)?;
    match reserved_bytes > size_bytes.next_multiple_of(BLOCK_SIZE) {
        true => engine.set_reserved(dvol, size_bytes).await,
        false => Ok(()),
    }
}

/// The same where all else is done, and stays done without it.
pub(super) async fn try_reserve_no_more(engine: &Engine<UringPlatform>, dvol: Handle) {
    if let Err(error) = reserve_no_more(engine, dvol).await {
        tracing::warn!(
            volume = %dvol.id,
            "giving back what is reserved beyond a size: {error}; the next start tries again"
        );
    }
}

/// What was answered, with what there was no room for apart from other errors.
fn answered<R>(done: Result<R, Unreserved>) -> Result<Result<R, Shortage>, DvolError> {
    match done {
        Ok(done) => Ok(Ok(done)),
        Err(Unreserved::NoRoom(shortage)) => Ok(Err(shortage)),
        Err(Unreserved::Dvol(error)) => Err(error),
    }
}

impl RealNode {
    /// There is no room for what was to be reserved for a striped volume.
    fn no_room(&self, shortage: &Shortage, target: &Target, doing: String) -> NodeError {
        let device = &self.devices[self.device_of(target.place.engine)];
        let named = (device.name.as_str(), device.path.as_path());
        no_room_for_all(shortage, named, doing)
    }

    pub(super) async fn resize(
        &self,
        name: String,
        size_bytes: u64,
        allow_data_loss: bool,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("resizing volume '{name}' to {size_bytes} bytes");
        let target = self.target_to_change(&name, &doing)?;
        check_size(size_bytes, &doing)?;
        let engine = target.place.engine;
        let resized = self.on_volume(&target, &doing, move |core, dvol| async move {
            let engine = core.engine(engine).ok_or(DvolError::NotFound)?;
            if let Some(stripe) = core.names.stripe_of(dvol.id) {
                let dvol = (&engine, dvol);
                let resized = core.resize_striped(dvol, &stripe, size_bytes, allow_data_loss);
                return answered(resized.await);
            }
            let resized = resize_here(&core, &engine, dvol, size_bytes, allow_data_loss);
            Ok(Ok(resized.await?))
        });
        match resized.await {
            Ok(Ok(Resized::Done)) => self.show(&name).await,
            Ok(Err(shortage)) => Err(self.no_room(&shortage, &target, doing)),
            Ok(Ok(Resized::WouldShrink(bytes))) => {
                let found =
                    format!("it has {bytes} bytes; what lies behind the new end would be lost");
                Err(NodeError::new(NodeErrorKind::Refused, doing, found)
                    .next("pass --allow-data-loss if that is what you want"))
            }
            Err(error) => {
                let wanted = move |dvol: &DvolInfo| Wanted::more_than(dvol, size_bytes);
                Err(self.with_space_of(error, &target, wanted).await)
            }
        }
    }

    pub(super) async fn reserve(
        &self,
        name: String,
        reserve: Reservation,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("reserving space for volume '{name}'");
        let target = self.target_to_change(&name, &doing)?;
        let size = self.show(&name).await?.size_bytes;
        let bytes = reserved_bytes(reserve, size);
        check_reservation(bytes, size, &doing)?;
        let place = target.place;
        let is_full = reserve == Reservation::Full;
        let reserved = self.on_volume(&target, &doing, move |core, dvol| async move {
            if let Some(stripe) = core.names.stripe_of(dvol.id) {
                let bytes = (!is_full).then_some(bytes);
                return answered(core.reserve_striped(dvol, &stripe, bytes).await);
            }
            let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
            // All of it is what it has now: nobody changes its size meanwhile.
            let sizing = core.sizing(dvol.id);
            let _turn = sizing.take(1).await;
            core.check_settled(dvol.id)?;
            let size_bytes = engine.size_of(dvol)?;
            let bytes = match is_full {
                true => size_bytes,
                false => bytes.min(size_bytes),
            };
            Ok(Ok(engine.set_reserved(dvol, bytes).await?))
        });
        match reserved.await {
            Ok(Ok(())) => self.show(&name).await,
            Ok(Err(shortage)) => Err(self.no_room(&shortage, &target, doing)),
            Err(error) => {
                let wanted = move |dvol: &DvolInfo| Wanted::more_than(dvol, bytes);
                Err(self.with_space_of(error, &target, wanted).await)
            }
        }
    }
}

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;
