//! Changing a volume's size, and with it what is reserved for the volume.

use flagstone_device::engine::{DvolError, DvolInfo};

use super::errors::{Wanted, check_size};
use super::{NodeError, NodeErrorKind, RealNode, VolumeInfo};

/// What came of it.
enum Resized {
    Done,
    /// It would have become smaller than so many bytes, and that was not consented to.
    WouldShrink(u64),
}

impl RealNode {
    pub(super) async fn resize(
        &self,
        name: String,
        size_bytes: u64,
        allow_data_loss: bool,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("resizing volume '{name}' to {size_bytes} bytes");
        let target = self.target(&name, &doing)?;
        check_size(size_bytes, &doing)?;
        let (place, named) = (target.place, name.clone());
        let resized = self.on_volume(&target, &doing, move |core, dvol| async move {
            let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
            // What is consented to depends on the size there is: nobody else changes it meanwhile.
            let sizing = core.sizing(dvol.id);
            let _turn = sizing.take(1).await;
            let before = engine.dvol_with(dvol.id, &named);
            let before = before.ok_or(DvolError::NotFound)?;
            if size_bytes < before.size_bytes && !allow_data_loss {
                return Ok(Resized::WouldShrink(before.size_bytes));
            }
            let is_full = before.reserved_bytes > 0 && before.reserved_bytes >= before.size_bytes;
            if is_full && size_bytes > before.size_bytes {
                engine.set_reserved(dvol, size_bytes).await?;
            }
            let resized = engine.resize(dvol, size_bytes).await;
            // Also if what lies behind the new end could not be given back: the size is the new one
            // by then.
            let is_new = engine.size_of(dvol) == Ok(size_bytes);
            if is_full && size_bytes <= before.size_bytes && is_new {
                resized.and(engine.set_reserved(dvol, size_bytes).await)?;
            } else {
                resized?;
            }
            Ok(Resized::Done)
        });
        match resized.await {
            Ok(Resized::Done) => self.show(&name).await,
            Ok(Resized::WouldShrink(bytes)) => {
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
}
