//! What the control side changes of filesystems: quotas, and which files become dvols.

use flagstone_fs::{Caller, Description, FileError, SnapshotNumber, WithSnapshots};

use super::CoreFilesystem;
use super::copies::find;
use super::errors::file_error;
use crate::node::real::RealNode;
use crate::node::{FilesystemChanges, FilesystemInfo, ImageStoreSpec, NodeError, NodeErrorKind};

/// Larger files are always kept as volumes' data is: in blocks they are slow to read, cut and remove.
const PROMOTE_BYTES_MAX: u64 = 1 << 30;

/// A filesystem, and its image stores.
type Described = (Description, Vec<String>);

/// What `fs show` shows of a filesystem.
pub(super) async fn described(files: CoreFilesystem, doing: &str) -> Result<Described, NodeError> {
    match files.image_stores().await {
        Ok(stores) => Ok((files.describe(), stores)),
        // Nobody is let in.
        Err(FileError::Later) if files.rolling_back_to().is_some() => {
            Ok((files.describe(), Vec::new()))
        }
        Err(error) => Err(file_error(error, doing)),
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
        let said = doing.clone();
        let found = self.on_fs(name, &doing, move |files| async move {
            let changed = files.change_settings(|settings| {
                let FilesystemChanges {
                    quota_bytes,
                    quota_files,
                    promote_bytes,
                } = changes;
                settings.quota_bytes = quota_bytes.unwrap_or(settings.quota_bytes);
                settings.quota_files = quota_files.unwrap_or(settings.quota_files);
                settings.promote_bytes = promote_bytes.unwrap_or(settings.promote_bytes);
            });
            changed.await.map_err(|error| file_error(error, &said))?;
            described(files, &said).await
        });
        let found = found.await?;
        self.info_of(found, &doing).await
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
