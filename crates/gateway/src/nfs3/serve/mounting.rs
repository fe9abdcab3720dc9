//! MOUNT: from a path to a handle. [rfc1813 5]
//!
//! Who has mounted what is not kept: clients forget to say when they leave, a restart would forget it, and
//! nothing depends on it. So DUMP has nothing to say, and UMNT nothing to do.

use std::net::IpAddr;
use std::rc::Rc;

use flagstone_fs::{Caller, FileError, FileKind, Files};
use flagstone_platform::Platform;

use super::Target;
use crate::nfs3::exports::{Clients, Export, Exports};
use crate::nfs3::mount::{
    Arguments, MountError, put_export, put_exports_end, put_mount_failed, put_mounted, put_mounts,
};
use crate::nfs3::retry::retry;
use crate::nfs3::service::NfsService;
use crate::nfs3::status::mount_status_of;
use crate::nfs3::wire::attributes::RawHandle;
use crate::rpc::server::Visitor;
use crate::xdr::Writer;

/// The longest list of exports, in bytes. What doesn't fit is left out.
pub(crate) const EXPORTS_BYTES_MAX: usize = 1 << 20;

/// Carries a call out and writes its result. False if it failed.
pub(crate) async fn carry_out<P: Platform, E: Exports>(
    service: &NfsService<P, E>,
    visitor: &Rc<Visitor>,
    arguments: &Arguments<'_>,
    out: &mut Vec<u8>,
) -> bool {
    match arguments {
        Arguments::Null | Arguments::Unmount(_) | Arguments::UnmountAll => true,
        Arguments::Dump => {
            put_mounts(&mut Writer::new(out), std::iter::empty());
            true
        }
        Arguments::Export => {
            put_list(service, out).await;
            true
        }
        Arguments::Mount(path) => match mount(service, visitor, path).await {
            Ok(target) => {
                put_mounted(&mut Writer::new(out), RawHandle(&target.handle()));
                true
            }
            Err(error) => {
                put_mount_failed(&mut Writer::new(out), error);
                false
            }
        },
    }
}

async fn put_list<P: Platform, E: Exports>(service: &NfsService<P, E>, out: &mut Vec<u8>) {
    let start = out.len();
    for listed in service.exports.list().await {
        let before = out.len();
        let networks: Vec<String> = match &listed.clients {
            Clients::Anyone => Vec::new(),
            Clients::Only(networks) => networks.iter().map(ToString::to_string).collect(),
        };
        let groups = networks.iter().map(String::as_bytes);
        put_export(&mut Writer::new(out), &listed.path, groups);
        if out.len() - start > EXPORTS_BYTES_MAX {
            out.truncate(before);
            break;
        }
    }
    put_exports_end(&mut Writer::new(out));
}

/// The directory of a path: the longest export that is a beginning of it, and from there name by name. Links
/// are not followed: they are the client's.
async fn mount<P: Platform, E: Exports>(
    service: &NfsService<P, E>,
    visitor: &Rc<Visitor>,
    path: &[u8],
) -> Result<Target<E::Files>, MountError> {
    let names = names_of(path)?;
    let (export, below) = find_export(service, &names).await?;
    if !export.clients.allow(visitor.peer) {
        warn_refused(service, visitor.peer, path);
        return Err(MountError::Access);
    }
    let mut target = Target::of_export(&service.exports, export, visitor);
    let attributes = later(service, || target.files().attributes(target.node)).await?;
    let mut kind = attributes.kind;
    // Who may mount is said by the export. What may be seen is asked when it is looked at.
    let everybody = Caller::default();
    for name in below {
        if kind != FileKind::Directory {
            return Err(MountError::NotDir);
        }
        let operation = || target.files().lookup(&everybody, target.node, name);
        let found = later(service, operation).await?;
        kind = found.attributes.kind;
        target = target.other(found.node);
    }
    match kind {
        FileKind::Directory => Ok(target),
        _ => Err(MountError::NotDir),
    }
}

fn warn_refused<P: Platform, E: Exports>(
    service: &NfsService<P, E>,
    peer: Option<IpAddr>,
    path: &[u8],
) {
    let Some(left_out) = service.refusals.note(service.platform.now()) else {
        return;
    };
    let peer = peer.map_or_else(|| "an unknown address".to_owned(), |peer| peer.to_string());
    tracing::warn!(
        peer,
        path = %path.escape_ascii(),
        left_out,
        "mounting was refused: no rule of this export has the address; if it may mount it, add it to the \
         clients of the export's section in the configuration and start the node again"
    );
}

async fn later<P: Platform, E: Exports, T, R: Future<Output = Result<T, FileError>>>(
    service: &NfsService<P, E>,
    operation: impl FnMut() -> R,
) -> Result<T, MountError> {
    let deadline_ns = service.options.retry_ms.saturating_mul(1_000_000);
    let count = || service.counters.borrow_mut().retried += 1;
    let gate = (&service.congestion, None);
    retry(&service.platform, gate, deadline_ns, operation, count)
        .await
        .map_err(mount_status_of)
}

/// The names in a path. It must begin with a slash; one more or less doesn't matter.
fn names_of(path: &[u8]) -> Result<Vec<&[u8]>, MountError> {
    if path.first() != Some(&b'/') {
        return Err(MountError::NoEnt);
    }
    let names = path.split(|byte| *byte == b'/');
    let names = names.filter(|name| !name.is_empty() && *name != b".");
    let names: Vec<&[u8]> = names.collect();
    // Nothing is above an export.
    let is_bad = |name: &&[u8]| *name == b".." || name.contains(&0);
    match names.iter().any(is_bad) {
        true => Err(MountError::NoEnt),
        false => Ok(names),
    }
}

type Found<'n, F> = (Rc<Export<F>>, &'n [&'n [u8]]);

async fn find_export<'n, P: Platform, E: Exports>(
    service: &NfsService<P, E>,
    names: &'n [&'n [u8]],
) -> Result<Found<'n, E::Files>, MountError> {
    for count in (0..=names.len()).rev() {
        let (above, below) = names.split_at(count);
        let mut path = vec![b'/'];
        path.extend_from_slice(&above.join(&b'/'));
        if let Some(export) = later(service, || service.exports.by_path(&path)).await? {
            return Ok((export, below));
        }
    }
    Err(MountError::NoEnt)
}
