//! Deleting filesystems.
//!
//! NFS clients don't say that they have something mounted: what is known is when one last asked for anything.

use std::rc::Rc;

use flagstone_fs::{FileError, Files, FilesystemId};
use flagstone_platform::Platform;

use super::errors::{file_error, no_such_filesystem};
use super::{CORE, CoreFilesystem};
use crate::node::real::RealNode;
use crate::node::real::core::CoreNode;
use crate::node::{NodeError, NodeErrorKind};
use crate::size::counted;

/// Whoever has used a filesystem so lately is taken to go on doing so.
const LATELY_NS: u64 = 60_000_000_000;

/// Refuses what would take something from somebody who hasn't said so.
fn check_unused(
    core: &CoreNode,
    files: &CoreFilesystem,
    (with_snapshots, even_if_used): (bool, bool),
    doing: &str,
) -> Result<(), NodeError> {
    let found = files.describe();
    let name = &found.name;
    if found.snapshots > 0 && !with_snapshots {
        let has = format!("it has {}", counted(found.snapshots, "snapshot"));
        return Err(
            NodeError::new(NodeErrorKind::HasSnapshots, doing, has).next(format!(
                "see `flagstone fs snapshot list {name}`; --with-snapshots deletes them, too"
            )),
        );
    }
    let exports = core.files.exports.borrow();
    let Some(known) = exports.get(&files.id()) else {
        return Ok(());
    };
    let since_ns = core.platform.now().0.saturating_sub(known.used_ns.get());
    if even_if_used || since_ns >= LATELY_NS {
        return Ok(());
    }
    let ago = counted(since_ns / 1_000_000_000, "second");
    let used = format!("an NFS client used it {ago} ago, so it seems to be mounted");
    Err(NodeError::new(NodeErrorKind::Busy, doing, used).next(
        "unmount it and try again a minute later, or delete it with --force: its clients find \
         that their files are gone (ESTALE)",
    ))
}

async fn delete(
    core: Rc<CoreNode>,
    name: String,
    confirmed: (bool, bool),
    doing: String,
) -> Result<FilesystemId, NodeError> {
    let failed = |error| match error {
        FileError::NotFound => no_such_filesystem(&name, &doing),
        error => file_error(error, &doing),
    };
    let all = core.files.there(&core).await.map_err(failed)?;
    let all = all.ok_or_else(|| no_such_filesystem(&name, &doing))?;
    let files = all.open_by_name(&name).await.map_err(failed)?;
    check_unused(&core, &files, confirmed, &doing)?;
    all.delete(files.id()).await.map_err(failed)?;
    core.files.exports.borrow_mut().remove(&files.id());
    tracing::info!(
        filesystem = name,
        "deleted; what it held is given back in the background"
    );
    Ok(files.id())
}

impl RealNode {
    pub(in crate::node::real) async fn delete_fs(
        &self,
        name: String,
        with_snapshots: bool,
        even_if_used: bool,
    ) -> Result<(), NodeError> {
        let doing = format!("deleting filesystem '{name}'");
        let said = doing.clone();
        let deleted = self.on_core(CORE, &doing, move |core| async move {
            delete(core, name, (with_snapshots, even_if_used), said).await
        });
        let id = deleted.await??;
        self.forget_floor(id.into());
        Ok(())
    }
}
