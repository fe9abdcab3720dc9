//! What the control side changes of filesystems: quotas, which files become dvols, and SLOs.

use std::rc::Rc;

use flagstone_device::engine::Attributes as DvolAttributes;
use flagstone_fs::{
    Caller, Description, FileError, Files, FilesystemId, OPAQUE_MAX_BYTES, Opaque, Settings,
    SnapshotNumber, WithSnapshots,
};

use super::copies::find;
use super::errors::file_error;
use super::{CORE, CoreFilesystem};
use crate::node::real::RealNode;
use crate::node::real::attributes::VolumeAttributes;
use crate::node::real::core::CoreNode;
use crate::node::real::slo::{note_floor, terms_of};
use crate::node::{
    FilesystemChanges, FilesystemInfo, ImageStoreSpec, NodeError, NodeErrorKind, Slo, SloPromise,
};

/// Larger files are always kept as volumes' data is: in blocks they are slow to read, cut and remove.
const PROMOTE_BYTES_MAX: u64 = 1 << 30;

const _: () = assert!(OPAQUE_MAX_BYTES == size_of::<DvolAttributes>());

/// What is kept with a filesystem's settings: its SLO, as a volume's attributes would have it, without the zeros at the end.
pub(super) fn kept(slo: &Slo) -> Opaque {
    let attributes = VolumeAttributes {
        slo: *slo,
        ..VolumeAttributes::default()
    };
    let attributes = attributes.encode();
    let end = attributes.iter().rposition(|byte| *byte != 0);
    let end = end.map_or(0, |last| last + 1);
    Opaque::of(&attributes[..end]).unwrap_or_default()
}

/// The SLO that a filesystem's settings say.
pub(super) fn slo_in(settings: &Settings) -> Slo {
    let mut attributes: DvolAttributes = [0; _];
    for (byte, kept) in attributes.iter_mut().zip(settings.opaque.bytes()) {
        *byte = *kept;
    }
    VolumeAttributes::decode(&attributes).slo
}

/// A filesystem, and its image stores.
type Described = (Description, Vec<String>);

/// What `fs show` shows of a filesystem.
pub(super) async fn described(files: CoreFilesystem, doing: &str) -> Result<Described, NodeError> {
    files.count_again().await;
    match files.image_stores().await {
        Ok(stores) => Ok((files.describe(), stores)),
        // Nobody is let in.
        Err(FileError::Later) if files.rolling_back_to().is_some() => {
            Ok((files.describe(), Vec::new()))
        }
        Err(error) => Err(file_error(error, doing)),
    }
}

/// Whether large files are to lie on one device. A floor is a promise of one.
pub(super) fn is_one_device(asked: Option<bool>, slo: &Slo) -> bool {
    asked.unwrap_or(matches!(slo.promise, SloPromise::Floor(_)))
}

/// What it is promised of the device of the names (0), and of others: a floor is one device's, and was admitted there.
pub(super) fn slo_at(place: usize, slo: &Slo) -> Slo {
    match (place, slo.promise) {
        (1.., SloPromise::Floor(_)) => Slo {
            promise: SloPromise::default(),
            ..*slo
        },
        _ => *slo,
    }
}

/// Refuses files on several devices where one device's time is promised.
pub(super) fn check_devices(
    one_device: Option<bool>,
    slo: &Slo,
    doing: &str,
) -> Result<(), NodeError> {
    match (one_device, slo.promise) {
        (Some(false), SloPromise::Floor(_)) => {
            let found = "a floor is promised of the device that holds the filesystem, and its large files would lie on others, too";
            Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("leave its files on one device (--devices one), or give it a share instead of a floor"))
        }
        _ => Ok(()),
    }
}

/// Refuses a size of promotion that makes no sense.
pub(super) fn check_promotion(promote_bytes: Option<u64>, doing: &str) -> Result<(), NodeError> {
    match promote_bytes {
        Some(bytes) if bytes > PROMOTE_BYTES_MAX => {
            let found = format!("files would stay in blocks up to {bytes} bytes");
            Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next(format!("choose {PROMOTE_BYTES_MAX} bytes (1G) at most")))
        }
        _ => Ok(()),
    }
}

async fn change_on_core(
    core: &Rc<CoreNode>,
    name: &str,
    changes: FilesystemChanges,
    doing: &str,
) -> Result<Described, NodeError> {
    let files = core.files.named(core, name, doing).await?;
    let FilesystemChanges {
        quota_bytes,
        quota_files,
        promote_bytes,
        zeros_to_holes,
        one_device,
        slo,
        oversubscribe: _,
    } = changes;
    let now = slo.unwrap_or_else(|| slo_in(&files.settings()));
    check_devices(one_device, &now, doing)?;
    let changed = files.change_settings(|settings| {
        settings.quota_bytes = quota_bytes.unwrap_or(settings.quota_bytes);
        settings.quota_files = quota_files.unwrap_or(settings.quota_files);
        settings.promote_bytes = promote_bytes.unwrap_or(settings.promote_bytes);
        settings.zeros_to_holes = zeros_to_holes.unwrap_or(settings.zeros_to_holes);
        settings.one_device = match one_device {
            Some(asked) => asked,
            None => settings.one_device || is_one_device(None, &now),
        };
        settings.opaque = slo.as_ref().map_or(settings.opaque, kept);
    });
    let changed = changed.await.map_err(|error| file_error(error, doing))?;
    files.stay_home(is_one_device(None, &slo_in(&changed)));
    // Also if two change it at the same time: each goes by what was kept last.
    if let Some(known) = core.files.exports.borrow().get(&files.id()) {
        let slo = slo_in(&changed);
        for (nth, at) in known.places.iter().enumerate() {
            let (slo, limits) = terms_of(&slo_at(nth, &slo));
            at.tenant.change(slo, limits);
        }
    }
    described(files, doing).await
}

impl RealNode {
    pub(super) async fn info_of(
        &self,
        (found, image_stores): Described,
        doing: &str,
    ) -> Result<FilesystemInfo, NodeError> {
        let device = self.home_device(doing).await?;
        Ok(FilesystemInfo {
            image_stores: Some(image_stores),
            ..self.filesystem_info(&device, found)
        })
    }

    pub(in crate::node::real) async fn change_fs(
        &self,
        name: String,
        changes: FilesystemChanges,
    ) -> Result<FilesystemInfo, NodeError> {
        let doing = format!("changing filesystem '{name}'");
        check_promotion(changes.promote_bytes, &doing)?;
        // Held until it is done: two who ask at the same time can't both get what is left.
        let mut floors = match changes.slo {
            Some(slo) => {
                let floors = self.floors.lock().await;
                let (id, device) = self.promised_fs(name.clone(), &doing).await?;
                let confirmed = changes.oversubscribe;
                self.admit(&floors, device, Some(id.into()), &slo, confirmed, &doing)?;
                Some((floors, device, slo))
            }
            None => None,
        };
        let said = doing.clone();
        let found = self.on_core(CORE, &doing, move |core| async move {
            change_on_core(&core, &name, changes, &said).await
        });
        let found = found.await??;
        if let Some((floors, device, slo)) = &mut floors {
            note_floor(floors, found.0.id, *device, slo);
        }
        drop(floors);
        self.info_of(found, &doing).await
    }

    /// A filesystem, and the device that its turns are at.
    async fn promised_fs(
        &self,
        name: String,
        doing: &str,
    ) -> Result<(FilesystemId, usize), NodeError> {
        let found = self.on_fs(name, doing, |files| async move { Ok(files.id()) });
        Ok((found.await?, self.home_index(doing).await?))
    }

    pub(in crate::node::real) async fn set_fs_image_store(
        &self,
        name: String,
        spec: ImageStoreSpec,
    ) -> Result<FilesystemInfo, NodeError> {
        let ImageStoreSpec { path, enabled } = spec;
        let doing = match enabled {
            true => format!("making '{path}' of filesystem '{name}' an image store"),
            false => format!("making '{path}' of filesystem '{name}' an ordinary directory"),
        };
        let said = doing.clone();
        let found = self.on_fs(name, &doing, move |files| async move {
            let shown = WithSnapshots::new(files.clone());
            let directory = find(&shown, SnapshotNumber::LIVE, &path, &said).await?;
            let caller = Caller::default();
            let set = files.set_image_store(&caller, directory.node, enabled);
            set.await.map_err(|error| match error {
                FileError::NotDirectory => {
                    let found = format!("'{path}' is not a directory");
                    NodeError::new(NodeErrorKind::InvalidArgument, &*said, found).next(
                        "image stores are directories; files in them become large ones at once",
                    )
                }
                error => file_error(error, &said),
            })?;
            described(files, &said).await
        });
        let found = found.await?;
        self.info_of(found, &doing).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Rates, SloLimit};

    #[test]
    fn a_floor_is_one_devices() {
        let limit = SloLimit {
            writes: Some(500),
            ..SloLimit::default()
        };
        let promise = SloPromise::Floor(Rates {
            reads: 5000,
            writes: 256,
        });
        let floor = Slo { promise, limit };
        assert_eq!(slo_at(0, &floor), floor);
        let elsewhere = slo_at(1, &floor);
        assert_eq!(elsewhere.promise, SloPromise::default());
        assert_eq!(elsewhere.limit, limit);
        let share = Slo {
            promise: SloPromise::Share(256),
            limit,
        };
        assert_eq!([slo_at(0, &share), slo_at(2, &share)], [share, share]);
    }

    #[test]
    fn slos_are_read_as_they_were_kept() {
        let limit = SloLimit {
            reads: None,
            writes: Some(500),
            bytes: Some(1 << 40),
        };
        let floor = SloPromise::Floor(Rates {
            reads: 5000,
            writes: 256,
        });
        for promise in [SloPromise::default(), SloPromise::Share(256), floor] {
            for limit in [SloLimit::default(), limit] {
                let slo = Slo { promise, limit };
                let opaque = kept(&slo);
                let settings = Settings {
                    opaque,
                    ..Settings::default()
                };
                assert_eq!(slo_in(&settings), slo);
                let is_default = slo == Slo::default();
                assert_eq!(opaque.bytes().is_empty(), is_default, "{slo:?}");
            }
        }
    }
}
