//! Which directories NFS clients may mount: each filesystem as `/NAME`, its snapshots as `/NAME@SNAPSHOT`, directories
//! of it that have rules of their own, and the node's volumes as `/.volumes`, if somebody has said to whom.
//!
//! A whole filesystem's export has number zero, a directory's one that the configuration says or makes of its path;
//! the filesystem's number is in every handle beside it. So handles hold whatever the configuration says of others, and
//! before and after.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use flagstone_fs::{
    Caller, FileError, FileKind, Files, FilesystemId, HasSnapshots, Node, WithSnapshots,
};
use flagstone_gateway::nfs3::{Clients, Exports, Listed, Network, Squash};
use flagstone_gateway::rpc::server::Visitor;
use flagstone_platform::Platform;
use flagstone_runtime::{IoStats, UringPlatform};

use super::counted::{Counted, FileCounters};
use super::settings::{slo_at, slo_in};
use super::shown::Shown;
use super::turns::{InTurns, TurnsAt};
use super::volumes::VolumeFiles;
use super::{CoreExport, CoreFilesystem};
use crate::node::real::core::CoreNode;
use crate::node::real::slo::terms_of;
use crate::node::{ExportOptions, VOLUMES_EXPORT};

/// Of a whole filesystem.
const NUMBER: u16 = 0;

/// Nobody's user and group, unless something else is said.
const NOBODY: (u32, u32) = (65534, 65534);

/// To whom each filesystem is exported.
pub(in crate::node::real) struct Rules(pub(in crate::node::real) Vec<ExportOptions>);

impl Rules {
    fn of(&self, filesystem: &str) -> ExportOptions {
        let is_it =
            |rules: &&ExportOptions| rules.filesystem == filesystem && rules.directory.is_empty();
        let found = self.0.iter().find(is_it).cloned();
        found.unwrap_or_else(|| ExportOptions {
            filesystem: filesystem.to_owned(),
            directory: Vec::new(),
            number: NUMBER,
            clients: this_machine(),
            read_only: false,
            // Nothing but this machine, and its users can say to be anybody anyway: ports are unprivileged.
            squash: Squash::None,
            anonymous: NOBODY,
        })
    }

    /// Of directories of a filesystem that have their own.
    fn below<'r>(&'r self, filesystem: &'r str) -> impl Iterator<Item = &'r ExportOptions> {
        let is_it = move |rules: &&ExportOptions| {
            rules.filesystem == filesystem && !rules.directory.is_empty()
        };
        self.0.iter().filter(is_it)
    }

    /// Of the directory with exactly this path.
    fn of_directory(&self, path: &str) -> Option<&ExportOptions> {
        let mut names = path.strip_prefix('/')?.split('/');
        let filesystem = names.next()?;
        let is_it = |rules: &&ExportOptions| {
            let directory = rules.directory.iter().map(String::as_str);
            rules.filesystem == filesystem
                && !rules.directory.is_empty()
                && directory.eq(names.clone())
        };
        self.0.iter().find(is_it)
    }

    /// To whom volumes are exported as files. Nobody has to be, so nobody is unless it is said.
    fn of_volumes(&self) -> Option<&ExportOptions> {
        let mut all = self.0.iter();
        all.find(|rules| rules.filesystem == VOLUMES_EXPORT)
    }
}

fn this_machine() -> Vec<Network> {
    let networks = [
        Network::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8),
        Network::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    ];
    networks.into_iter().flatten().collect()
}

/// The export of a filesystem that somebody has used.
pub(super) struct Known {
    pub(super) export: Rc<CoreExport>,
    /// Those of its directories that somebody has used, by their numbers.
    below: BTreeMap<u16, Rc<CoreExport>>,
    /// Whose turns its operations take: at the device that has its names, and at others that large files of it may lie on.
    pub(super) places: Rc<[TurnsAt<UringPlatform, IoStats>]>,
    /// What was done with it.
    pub(super) counters: Rc<FileCounters>,
    pub(super) device: usize,
    /// When somebody last did.
    pub(super) used_ns: Cell<u64>,
}

/// The exports as the NFS server of one core sees them.
#[derive(Clone)]
pub(in crate::node::real) struct CoreExports {
    pub(super) core: Rc<CoreNode>,
}

impl CoreExports {
    fn export(&self, files: CoreFilesystem) -> Result<Rc<CoreExport>, FileError> {
        let core = &self.core;
        let mut exports = core.files.exports.borrow_mut();
        let known = match exports.entry(files.id()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(self.make(files)?),
        };
        known.used_ns.set(core.platform.now().0);
        Ok(known.export.clone())
    }

    fn make(&self, files: CoreFilesystem) -> Result<Known, FileError> {
        let core = &self.core;
        let owned = core.files.places.borrow().clone();
        let home = owned.first().ok_or(FileError::Stopping)?;
        let slo = slo_in(&files.settings());
        let mut places = Vec::new();
        for (nth, place) in owned.iter().enumerate() {
            let (slo, limits) = terms_of(&slo_at(nth, &slo));
            let turns = core.turns.get(place.device).ok_or(FileError::Stopping)?;
            places.push(TurnsAt {
                tenant: turns.tenant(slo, limits),
                meter: place.io.clone(),
            });
        }
        let places: Rc<[_]> = places.into();
        let name = files.describe().name;
        let rules = core.files.rules.of(&name);
        let (root, platform) = (Node::live(files.root()), core.platform.clone());
        let files = WithSnapshots::new(files);
        let files = InTurns::new(files, platform.clone(), places.clone());
        let counters = Rc::new(FileCounters::default());
        let files = Counted::new(files, platform, counters.clone());
        let export = CoreExport {
            number: NUMBER,
            path: path_of(&name, None),
            root,
            clients: Clients::Only(rules.clients),
            read_only: rules.read_only,
            squash: rules.squash,
            anonymous: rules.anonymous,
            files: Shown::Filesystem(files),
        };
        Ok(Known {
            export: Rc::new(export),
            below: BTreeMap::new(),
            places,
            counters,
            device: home.device,
            used_ns: Cell::new(0),
        })
    }
}

impl CoreExports {
    /// The export of a directory, looked for once more: `None` if there is no such directory.
    async fn below(
        &self,
        whole: &CoreExport,
        rules: &ExportOptions,
    ) -> Result<Option<Rc<CoreExport>>, FileError> {
        // Who may mount it is said by its rules, not by the directories on the way.
        let everybody = Caller::default();
        let mut root = whole.root;
        for name in &rules.directory {
            let found = whole.files.lookup(&everybody, root, name.as_bytes());
            root = match found.await {
                Ok(found) if found.attributes.kind == FileKind::Directory => found.node,
                Ok(_) | Err(FileError::NotFound | FileError::NotDirectory) => return Ok(None),
                Err(error) => return Err(error),
            };
        }
        let export = Rc::new(CoreExport {
            number: rules.number,
            path: path_of_directory(rules),
            root,
            clients: Clients::Only(rules.clients.clone()),
            read_only: rules.read_only,
            squash: rules.squash,
            anonymous: rules.anonymous,
            files: whole.files.clone(),
        });
        let mut exports = self.core.files.exports.borrow_mut();
        if let Some(known) = exports.get_mut(&whole.files.id()) {
            known.below.insert(rules.number, export.clone());
        }
        Ok(Some(export))
    }

    /// The export with this number of a filesystem, of which the one of the whole is known.
    async fn numbered(
        &self,
        whole: Rc<CoreExport>,
        number: u16,
    ) -> Result<Option<Rc<CoreExport>>, FileError> {
        if number == NUMBER {
            return Ok(Some(whole));
        }
        let name = String::from_utf8_lossy(whole.path.get(1..).unwrap_or_default());
        let mut below = self.core.files.rules.below(&name);
        match below.find(|rules| rules.number == number) {
            Some(rules) => self.below(&whole, rules).await,
            None => Ok(None),
        }
    }

    /// The directory of volumes, if it is exported.
    fn volumes(&self) -> Result<Option<Rc<CoreExport>>, FileError> {
        let files = &self.core.files;
        if let Some(export) = &*files.volumes.borrow() {
            return Ok(Some(export.clone()));
        }
        let Some(rules) = files.rules.of_volumes() else {
            return Ok(None);
        };
        if files.stopping.get() {
            return Err(FileError::Stopping);
        }
        let shown = VolumeFiles::new(self.core.clone());
        let export = Rc::new(CoreExport {
            number: NUMBER,
            path: path_of(VOLUMES_EXPORT, None),
            root: Node::live(shown.root()),
            clients: Clients::Only(rules.clients.clone()),
            read_only: rules.read_only,
            squash: rules.squash,
            anonymous: rules.anonymous,
            files: Shown::Volumes(shown),
        });
        *files.volumes.borrow_mut() = Some(export.clone());
        Ok(Some(export))
    }
}

fn path_of(filesystem: &str, snapshot: Option<&str>) -> Vec<u8> {
    match snapshot {
        None => format!("/{filesystem}").into_bytes(),
        Some(snapshot) => format!("/{filesystem}@{snapshot}").into_bytes(),
    }
}

fn path_of_directory(rules: &ExportOptions) -> Vec<u8> {
    format!("/{}/{}", rules.filesystem, rules.directory.join("/")).into_bytes()
}

/// A filesystem, and a snapshot of it.
fn names_of(path: &[u8]) -> Option<(&str, Option<&str>)> {
    let path = std::str::from_utf8(path).ok()?.strip_prefix('/')?;
    let (filesystem, snapshot) = match path.split_once('@') {
        Some((filesystem, snapshot)) => (filesystem, Some(snapshot)),
        None => (path, None),
    };
    (!filesystem.is_empty() && !path.contains('/')).then_some((filesystem, snapshot))
}

impl Exports for CoreExports {
    type Files = Shown;

    async fn by_number(
        &self,
        filesystem: FilesystemId,
        number: u16,
    ) -> Result<Option<Rc<CoreExport>>, FileError> {
        if filesystem == VolumeFiles::ID {
            return match number {
                NUMBER => self.volumes(),
                _ => Ok(None),
            };
        }
        let known = {
            let exports = self.core.files.exports.borrow();
            let known = exports.get(&filesystem);
            known.map(|known| {
                known.used_ns.set(self.core.platform.now().0);
                (known.export.clone(), known.below.get(&number).cloned())
            })
        };
        let whole = match known {
            Some((whole, _)) if number == NUMBER => return Ok(Some(whole)),
            Some((_, Some(below))) => return Ok(Some(below)),
            Some((whole, None)) => whole,
            None => {
                let Some(all) = self.core.files.there(&self.core).await? else {
                    return Ok(None);
                };
                match all.open_filesystem(filesystem).await {
                    Ok(files) => self.export(files)?,
                    Err(FileError::NotFound) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        };
        self.numbered(whole, number).await
    }

    async fn by_path(&self, path: &[u8]) -> Result<Option<Rc<CoreExport>>, FileError> {
        let rules = &self.core.files.rules;
        let directory = std::str::from_utf8(path).ok();
        let directory = directory.and_then(|path| rules.of_directory(path));
        let (filesystem, snapshot) = match (directory, names_of(path)) {
            (Some(rules), _) => (rules.filesystem.as_str(), None),
            (None, Some(names)) => names,
            (None, None) => return Ok(None),
        };
        if filesystem == VOLUMES_EXPORT {
            // A snapshot is one volume's: `VOLUME@SNAPSHOT` in the directory.
            return match snapshot {
                None => self.volumes(),
                Some(_) => Ok(None),
            };
        }
        let Some(all) = self.core.files.there(&self.core).await? else {
            return Ok(None);
        };
        let files = match all.open_by_name(filesystem).await {
            Err(FileError::NotFound) => return Ok(None),
            found => found?,
        };
        let export = self.export(files)?;
        if let Some(rules) = directory {
            // Whoever mounts it gets the directory that has the name now.
            return self.below(&export, rules).await;
        }
        let Some(snapshot) = snapshot else {
            return Ok(Some(export));
        };
        // Its handles are those of the same export, at another time.
        let snapshots = match &export.files {
            Shown::Filesystem(files) => HasSnapshots::snapshots(files.files().files().inner()),
            Shown::Volumes(_) => Vec::new(),
        };
        let found = snapshots.into_iter().find(|info| info.name == snapshot);
        Ok(found.map(|info| {
            Rc::new(CoreExport {
                path: path_of(filesystem, Some(snapshot)),
                root: Node {
                    at: info.number,
                    ..export.root
                },
                read_only: true,
                ..CoreExport::clone(&export)
            })
        }))
    }

    fn seen_by(&self, export: &CoreExport, visitor: &Rc<Visitor>) -> Option<Shown> {
        match &export.files {
            Shown::Filesystem(_) => None,
            Shown::Volumes(volumes) => Some(Shown::Volumes(volumes.seen_by(visitor))),
        }
    }

    async fn list(&self) -> Vec<Listed> {
        let rules = &self.core.files.rules;
        let volumes = rules.of_volumes().map(|rules| Listed {
            path: path_of(VOLUMES_EXPORT, None),
            clients: Clients::Only(rules.clients.clone()),
        });
        let mut listed: Vec<Listed> = volumes.into_iter().collect();
        let Ok(Some(all)) = self.core.files.there(&self.core).await else {
            return listed;
        };
        for info in all.list().await.unwrap_or_default() {
            listed.push(Listed {
                path: path_of(&info.name, None),
                clients: Clients::Only(rules.of(&info.name).clients),
            });
            // Whether the directory is there is asked when it is mounted.
            listed.extend(rules.below(&info.name).map(|rules| Listed {
                path: path_of_directory(rules),
                clients: Clients::Only(rules.clients.clone()),
            }));
        }
        listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_filesystems_and_snapshots() {
        assert_eq!(names_of(b"/data"), Some(("data", None)));
        assert_eq!(names_of(b"/data@monday"), Some(("data", Some("monday"))));
        for path in ["", "/", "data", "/@monday", "/data/below", "/data@a/b"] {
            assert_eq!(names_of(path.as_bytes()), None, "{path}");
        }
        assert_eq!(names_of(&[b'/', 0xff]), None);
        assert_eq!(path_of("data", Some("monday")), b"/data@monday");
    }

    #[test]
    fn what_nothing_is_said_of_is_for_this_machine() {
        let open = ExportOptions {
            filesystem: "open".to_owned(),
            directory: Vec::new(),
            number: NUMBER,
            clients: vec!["10.0.0.0/8".parse().expect("a network")],
            read_only: true,
            squash: Squash::All,
            anonymous: (1, 2),
        };
        let inside = ExportOptions {
            directory: vec!["a".to_owned(), "b@c".to_owned()],
            number: 9,
            ..open.clone()
        };
        // Whatever comes first: a directory's rules aren't the filesystem's.
        let rules = Rules(vec![inside.clone(), open.clone()]);
        assert_eq!(rules.of("open"), open);
        assert_eq!(rules.of_directory("/open/a/b@c"), Some(&inside));
        assert_eq!(path_of_directory(&inside), b"/open/a/b@c");
        for path in [
            "/open",
            "/open/a",
            "/open/a/b@c/d",
            "/other/a/b@c",
            "open/a/b@c",
            "",
        ] {
            assert_eq!(rules.of_directory(path), None, "{path}");
        }
        let other = Clients::Only(rules.of("other").clients);
        let allows = |peer: &str| other.allow(peer.parse().ok());
        assert!(allows("127.0.0.1") && allows("127.9.9.9") && allows("::1"));
        assert!(!allows("10.0.0.1") && !allows("::2") && !other.allow(None));
        assert_eq!(rules.of_volumes(), None, "those of filesystems alone");
    }
}
