//! Copies of files that the control side asks for, by their paths.

use flagstone_fs::{
    Caller, FileError, Files, Found, Node as FileNode, PathError, SnapshotNumber, WithSnapshots,
};

use super::errors::{file_error, no_such_snapshot};
use super::{CoreFilesystem, ExportedFiles};
use crate::node::real::RealNode;
use crate::node::{ClonedFile, FileCloneSpec, NodeError, NodeErrorKind};

/// What the control side says when a path leads nowhere.
pub(super) fn path_error(found: PathError, doing: &str) -> NodeError {
    let PathError { error, path } = found;
    let (kind, found) = match error {
        FileError::NotFound => (NodeErrorKind::NotFound, format!("there is no '{path}'")),
        FileError::NotDirectory => (
            NodeErrorKind::InvalidArgument,
            format!("'{path}' is not a directory, and symbolic links are not followed"),
        ),
        FileError::Invalid | FileError::NameTooLong => (
            NodeErrorKind::InvalidArgument,
            format!("'{path}' is no path of a file"),
        ),
        error => return file_error(error, doing),
    };
    NodeError::new(kind, doing, found).next(
        "paths begin with a slash, which is the filesystem's topmost directory: `nfs-ls` or a client that has \
         it mounted shows what there is",
    )
}

/// Finds a file of a filesystem by its path, as it is now or in a snapshot. Also through `.snapshot`.
pub(super) async fn find(
    files: &ExportedFiles,
    at: SnapshotNumber,
    path: &str,
    doing: &str,
) -> Result<Found, NodeError> {
    let top = FileNode {
        file: files.root(),
        at,
    };
    let caller = Caller::default();
    let found = flagstone_fs::find(files, &caller, top, path).await;
    found.map_err(|found| path_error(found, doing))
}

async fn clone_file(
    files: CoreFilesystem,
    spec: FileCloneSpec,
    doing: &str,
) -> Result<ClonedFile, NodeError> {
    let name = files.describe().name;
    let at = match &spec.snapshot {
        None => SnapshotNumber::LIVE,
        Some(snapshot) => {
            let all = files.snapshots().into_iter();
            let found = all.into_iter().find(|info| info.name == *snapshot);
            let found = found.ok_or_else(|| no_such_snapshot(&name, snapshot, doing))?;
            found.number
        }
    };
    let files: ExportedFiles = WithSnapshots::new(files);
    let source = find(&files, at, &spec.source, doing).await?;
    let Some((directory, last)) = flagstone_fs::split_last(&spec.destination) else {
        let found = format!("'{}' names no file to be made", spec.destination);
        return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
            .next("give the path of the copy in full, such as /images/copy.img"));
    };
    let directory = find(&files, SnapshotNumber::LIVE, directory, doing).await?;
    let caller = Caller::default();
    let cloned = files.clone_file(&caller, source.node, directory.node, last.as_bytes());
    let cloned =
        cloned.await.map_err(|error| {
            let said = |kind, found: String| NodeError::new(kind, doing, found);
            match error {
            FileError::Exists => said(
                NodeErrorKind::AlreadyExists,
                format!("'{}' is there already", spec.destination),
            )
            .next("choose another name; a copy into a directory needs its name, too"),
            FileError::IsDirectory | FileError::Invalid => said(
                NodeErrorKind::InvalidArgument,
                format!("'{}' is not a regular file", spec.source),
            )
            .next("only regular files are cloned; a snapshot keeps a whole tree"),
            FileError::NotDirectory => said(
                NodeErrorKind::InvalidArgument,
                format!("'{}' is in something that is no directory", spec.destination),
            ),
            FileError::ReadOnly => said(
                NodeErrorKind::ReadOnly,
                format!("'{}' is in a snapshot", spec.destination),
            )
            .next("snapshots can't be changed: choose a place outside of '.snapshot'"),
            FileError::Quota => file_error(error, doing).next(
                "a copy of a small file takes space; delete files or snapshots, or raise the quota",
            ),
            error => file_error(error, doing),
        }
        })?;
    Ok(ClonedFile {
        filesystem: name,
        source: spec.source,
        snapshot: spec.snapshot,
        path: spec.destination,
        size_bytes: cloned.attributes.size_bytes,
        used_bytes: cloned.attributes.used_bytes,
    })
}

impl RealNode {
    pub(in crate::node::real) async fn clone_fs_file(
        &self,
        filesystem: String,
        spec: FileCloneSpec,
    ) -> Result<ClonedFile, NodeError> {
        let FileCloneSpec {
            source,
            destination,
            ..
        } = &spec;
        let doing = format!("cloning '{source}' to '{destination}' in filesystem '{filesystem}'");
        let said = doing.clone();
        self.on_fs(filesystem, &doing, |files| async move {
            clone_file(files, spec, &said).await
        })
        .await
    }
}
