//! What NFS clients are shown: filesystems, and the directory of volumes.

use flagstone_fs::{
    AccessMask, Attributes, Caller, Changes, Cookie, Created, FileError, FileId, FileRead, Files,
    FilesystemId, Found, Listing, New, Node, SetAttributes, Space, Stability, Timestamp, Written,
};
use flagstone_platform::IoBuf;

use super::CountedFiles;
use super::volumes::VolumeFiles;

/// One of the two. What is asked of a filesystem takes the filesystem's turns, what is asked of a volume the volume's.
#[derive(Clone)]
pub(in crate::node::real) enum Shown {
    Filesystem(CountedFiles),
    Volumes(VolumeFiles),
}

/// The same of whichever it is.
macro_rules! of_either {
    ($shown:expr, $files:ident => $result:expr) => {
        match $shown {
            Shown::Filesystem($files) => $result,
            Shown::Volumes($files) => $result,
        }
    };
}

impl Files for Shown {
    fn id(&self) -> FilesystemId {
        of_either!(self, files => files.id())
    }

    fn root(&self) -> FileId {
        of_either!(self, files => files.root())
    }

    fn secret(&self) -> [u8; 16] {
        of_either!(self, files => files.secret())
    }

    fn size_max_bytes(&self) -> u64 {
        of_either!(self, files => files.size_max_bytes())
    }

    async fn attributes(&self, node: Node) -> Result<Attributes, FileError> {
        of_either!(self, files => files.attributes(node).await)
    }

    async fn access(
        &self,
        caller: &Caller,
        node: Node,
        wanted: AccessMask,
    ) -> Result<(AccessMask, Attributes), FileError> {
        of_either!(self, files => files.access(caller, node, wanted).await)
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Found, FileError> {
        of_either!(self, files => files.lookup(caller, directory, name).await)
    }

    async fn read_link(
        &self,
        caller: &Caller,
        node: Node,
    ) -> Result<(Vec<u8>, Attributes), FileError> {
        of_either!(self, files => files.read_link(caller, node).await)
    }

    async fn read(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<FileRead, FileError> {
        of_either!(self, files => files.read(caller, node, offset_bytes, len_bytes).await)
    }

    async fn write(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Written, FileError> {
        of_either!(self, files => files.write(caller, node, offset_bytes, data, stability).await)
    }

    async fn commit(&self, caller: &Caller, node: Node) -> Result<Written, FileError> {
        of_either!(self, files => files.commit(caller, node).await)
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        node: Node,
        set: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Changes, FileError> {
        of_either!(self, files => files.set_attributes(caller, node, set, guard).await)
    }

    async fn make(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        new: New<'_>,
        set: SetAttributes,
    ) -> Result<Created, FileError> {
        of_either!(self, files => files.make(caller, directory, name, new, set).await)
    }

    async fn remove(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        of_either!(self, files => files.remove(caller, directory, name).await)
    }

    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        of_either!(self, files => files.remove_directory(caller, directory, name).await)
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
    ) -> Result<(Changes, Changes), FileError> {
        of_either!(self, files => files.rename(caller, from, to).await)
    }

    async fn link(
        &self,
        caller: &Caller,
        node: Node,
        directory: Node,
        name: &[u8],
    ) -> Result<(Attributes, Changes), FileError> {
        of_either!(self, files => files.link(caller, node, directory, name).await)
    }

    async fn list(
        &self,
        caller: &Caller,
        directory: Node,
        behind: Cookie,
        count: usize,
        with_attributes: bool,
    ) -> Result<Listing, FileError> {
        of_either!(self, files => files.list(caller, directory, behind, count, with_attributes).await)
    }

    async fn space(&self) -> Result<Space, FileError> {
        of_either!(self, files => files.space().await)
    }
}
