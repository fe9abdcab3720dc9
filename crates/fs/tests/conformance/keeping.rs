//! Filesystems that can be asked for snapshots and copies.

use flagstone_fs::memory::MemoryFiles;
use flagstone_fs::{Caller, Created, FileError, Files, Filesystem, Node, SnapshotInfo, Timestamp};
use flagstone_platform::Platform;

/// What histories do beside what [`Files`] has.
pub(crate) trait Keeps: Files {
    fn take(&self, name: &str) -> impl Future<Output = Result<SnapshotInfo, FileError>>;

    fn delete(&self, name: &str) -> impl Future<Output = Result<(), FileError>>;

    fn roll_back_to(&self, name: &str) -> impl Future<Output = Result<(), FileError>>;

    fn copy(
        &self,
        caller: &Caller,
        source: Node,
        directory: Node,
        name: &[u8],
    ) -> impl Future<Output = Result<Created, FileError>>;
}

macro_rules! keeps {
    ($($files:ident),*) => {$(
        impl<P: Platform> Keeps for $files<P> {
            async fn take(&self, name: &str) -> Result<SnapshotInfo, FileError> {
                let number = self.take_snapshot(name).await?;
                let taken = self.snapshots().into_iter().find(|info| info.number == number);
                // Or somebody has deleted it already.
                let unknown = || SnapshotInfo {
                    name: name.to_owned(),
                    number,
                    taken: Timestamp::default(),
                };
                Ok(taken.unwrap_or_else(unknown))
            }

            async fn delete(&self, name: &str) -> Result<(), FileError> {
                self.delete_snapshot(name).await
            }

            async fn roll_back_to(&self, name: &str) -> Result<(), FileError> {
                self.roll_back(name).await
            }

            async fn copy(
                &self,
                caller: &Caller,
                source: Node,
                directory: Node,
                name: &[u8],
            ) -> Result<Created, FileError> {
                self.clone_file(caller, source, directory, name).await
            }
        }
    )*};
}

keeps!(Filesystem, MemoryFiles);
