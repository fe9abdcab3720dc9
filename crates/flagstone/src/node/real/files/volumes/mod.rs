//! `/.volumes`: the node's volumes as files in one directory.
//!
//! Nothing is stored for it. A volume's dvol says what is in the file and how large it is; the names are the node's.
//! A file's number is the dvol's id, so its handle holds through restarts and renamings, and is stale when the volume
//! is gone. A volume may be on any core of the node: what is asked of it is passed on to that core, and the bytes are
//! copied on the way. `docs/protocols/nfs3.md` says what clients may do.

mod files;
mod owner;

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use flagstone_device::engine::join_all;
use flagstone_fs::{
    Attributes, Before, Caller, Changes, Cookie, FileError, FileId, FileKind, FilesystemId, Found,
    NAME_SIZE_BYTES, Node, SetAttributes, SetTime, SnapshotNumber, Timestamp,
};
use flagstone_gateway::rpc::server::Visitor;
use flagstone_platform::Platform;
use flagstone_types::{DvolId, LayerNo};

pub(in crate::node::real) use self::owner::dvol_of;
use self::owner::{Changed, Key, Look, Set};
use crate::node::real::access::{Origin, Rule};
use crate::node::real::core::{CoreNode, Unasked};
use crate::node::real::names::Place;

/// The only directory.
const ROOT: FileId = FileId {
    directory: 1,
    file: 0,
};

/// Key of the checksums in handles. It is no secret and need not be one: whoever may use the export may look up
/// every name in it.
const KEY: [u8; 16] = *b"flagstonevolumes";

/// Cookies of `.` and `..`. A volume's is the upper part of its id.
const SELF: u64 = 1;
const PARENT: u64 = 2;
const FIRST: u64 = 3;
/// Bits of an id that are not in the cookie, which clients take for a signed number.
const COOKIE_SHIFT: u32 = 65;

const DIRECTORY_MODE: u32 = 0o555;
const VOLUME_MODE: u32 = 0o600;
const READ_ONLY_MODE: u32 = 0o400;

/// The node's volumes, as a filesystem: those that a client may use from where it is. Others aren't there for it.
#[derive(Clone)]
pub(in crate::node::real) struct VolumeFiles {
    core: Rc<CoreNode>,
    visitor: Rc<Visitor>,
}

/// What was read, on its way to another core.
enum Part {
    Data(Vec<u8>),
    Zeros(u64),
}

/// The file of a volume. `None`: it would look like a directory; of ids drawn at random one in 2^64 does.
fn file_of(id: DvolId) -> Option<FileId> {
    let file = FileId {
        directory: (id.0 >> 64) as u64,
        file: id.0 as u64,
    };
    (file.file != 0).then_some(file)
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Directory,
    Volume(Key),
}

fn what(node: Node) -> Result<What, FileError> {
    let layer = match node.at {
        SnapshotNumber::LIVE => None,
        SnapshotNumber(number) => Some(LayerNo(number)),
    };
    match (node.file, layer) {
        (ROOT, None) => Ok(What::Directory),
        (FileId { file: 0, .. }, _) => Err(FileError::Stale),
        (FileId { directory, file }, layer) => Ok(What::Volume(Key {
            id: DvolId(u128::from(directory) << 64 | u128::from(file)),
            layer,
        })),
    }
}

fn cookie_of(id: DvolId) -> Cookie {
    Cookie(FIRST.max((id.0 >> COOKIE_SHIFT) as u64))
}

fn attributes_of(key: Key, look: &Look) -> Attributes {
    let changed = Timestamp::from_ns(look.changed_ns);
    let number = file_of(key.id).map_or(0, FileId::number);
    // A snapshot is another file than the volume.
    let layer = key.layer.map_or(0, |layer| u64::from(layer.0));
    Attributes {
        kind: FileKind::Regular,
        mode: match look.is_read_only {
            true => READ_ONLY_MODE,
            false => VOLUME_MODE,
        },
        links: 1,
        uid: 0,
        gid: 0,
        size_bytes: look.size_bytes,
        used_bytes: look.used_bytes,
        number: number ^ layer.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        accessed: changed,
        modified: changed,
        changed,
    }
}

fn changes_of(key: Key, changed: &Changed) -> Changes {
    let after = attributes_of(key, &changed.after);
    // Of a time when nobody has cached anything: the client is to look again.
    let never = Before {
        size_bytes: after.size_bytes,
        modified: Timestamp::default(),
        changed: Timestamp::default(),
    };
    let before = changed.before.map(|look| attributes_of(key, &look));
    Changes {
        before: before.as_ref().map_or(never, Before::from),
        after,
    }
}

fn unasked(error: Unasked) -> FileError {
    match error {
        Unasked::Busy => FileError::Later,
        Unasked::Stopped => FileError::Stopping,
    }
}

/// The bytes of a volume are root's.
fn require_root(caller: &Caller) -> Result<(), FileError> {
    match caller.uid {
        0 => Ok(()),
        _ => Err(FileError::Denied),
    }
}

impl VolumeFiles {
    /// In handles. Filesystems count theirs from 1 on.
    pub(super) const ID: FilesystemId = FilesystemId(u64::MAX);

    /// As somebody sees them who comes from nowhere.
    pub(super) fn new(core: Rc<CoreNode>) -> VolumeFiles {
        let visitor = Rc::default();
        VolumeFiles { core, visitor }
    }

    /// As this client sees them.
    pub(super) fn seen_by(&self, visitor: &Rc<Visitor>) -> VolumeFiles {
        VolumeFiles {
            core: self.core.clone(),
            visitor: visitor.clone(),
        }
    }

    /// Whether this client may use a volume now. NFS opens nothing, so it is asked with every call.
    fn check(&self, id: DvolId) -> Result<(), Rule> {
        self.core.access.check_volume(id, self.origin())
    }

    fn origin(&self) -> Origin {
        Origin {
            peer: self.visitor.peer,
            local: self.visitor.local,
            interface: self.visitor.interface,
        }
    }

    /// The same of a volume that it has asked for. If not, that is a line in the audit log, the first time in a connection.
    fn permits(&self, id: DvolId) -> bool {
        let checked = self.check(id);
        if let Err(rule) = checked
            && self.visitor.is_first(id.0)
        {
            let from = self.origin();
            let now = self.core.platform.now();
            self.core.access.tell_file_refused(id, from, rule, now);
        }
        checked.is_ok()
    }

    /// What a client asks for. A volume that it may not use is as one that was deleted, or else a client would go on with what it has
    /// cached of it. [rfc1813 2.6, NFS3ERR_STALE] or access to it has been revoked.
    fn asked(&self, node: Node) -> Result<What, FileError> {
        match what(node)? {
            What::Volume(key) if !self.permits(key.id) => Err(FileError::Stale),
            asked => Ok(asked),
        }
    }

    /// Has the core that has a volume do something with it.
    async fn with<R, F>(
        &self,
        key: Key,
        work: impl FnOnce(Rc<CoreNode>) -> F + Send + 'static,
    ) -> Result<R, FileError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, FileError>> + 'static,
    {
        match self.core_of(key)? {
            None => work(self.core.clone()).await,
            Some(core) => self.core.ask(core, work).await.map_err(unasked)?,
        }
    }

    /// The core that has a volume, if it isn't this one.
    fn core_of(&self, key: Key) -> Result<Option<usize>, FileError> {
        let (_, place) = self.core.names.place_of(key.id).ok_or(FileError::Stale)?;
        Ok((place.core != self.core.index).then_some(place.core))
    }

    async fn look(&self, key: Key) -> Result<Look, FileError> {
        self.with(key, move |core| async move { owner::look(&core, key) })
            .await
    }

    /// What volumes are like, each if it is there. Each core that has any is asked once.
    async fn looks(&self, keys: &[Key]) -> Vec<Option<Look>> {
        let mut looks = vec![None; keys.len()];
        let mut by_core: BTreeMap<usize, Vec<(usize, Key)>> = BTreeMap::new();
        for (index, key) in keys.iter().enumerate() {
            match self.core_of(*key) {
                Ok(None) => looks[index] = owner::look(&self.core, *key).ok(),
                Ok(Some(core)) => by_core.entry(core).or_default().push((index, *key)),
                Err(_) => {}
            }
        }
        let asked = by_core.into_iter().map(|(core, wanted)| {
            let work = move |core: Rc<CoreNode>| async move {
                let looks = wanted.into_iter();
                let looks = looks.map(|(index, key)| (index, owner::look(&core, key).ok()));
                looks.collect::<Vec<_>>()
            };
            self.core.ask(core, work)
        });
        for answered in join_all(asked).await {
            for (index, look) in answered.into_iter().flatten() {
                looks[index] = look;
            }
        }
        looks
    }

    fn directory(&self) -> Attributes {
        let core = &self.core;
        let (count, names) = core.names.count();
        let now_ns = core.platform.wall_clock_ns();
        // Which names a client sees depends on both.
        let mark = (names, core.access.changes());
        let changed_ns = core.files.volume_names.look(mark, core.started_ns, now_ns);
        let changed = Timestamp::from_ns(changed_ns);
        Attributes {
            kind: FileKind::Directory,
            mode: DIRECTORY_MODE,
            links: 2,
            uid: 0,
            gid: 0,
            size_bytes: count * NAME_SIZE_BYTES,
            used_bytes: 0,
            number: ROOT.number(),
            accessed: changed,
            modified: changed,
            changed,
        }
    }

    fn found_directory(&self) -> Found {
        Found {
            node: Node::live(ROOT),
            attributes: self.directory(),
        }
    }

    /// That it is the directory.
    async fn require_directory(&self, node: Node) -> Result<(), FileError> {
        match self.asked(node)? {
            What::Directory => Ok(()),
            What::Volume(key) => {
                self.look(key).await?;
                Err(FileError::NotDirectory)
            }
        }
    }

    /// A volume whose content is asked for.
    fn volume(&self, node: Node) -> Result<Key, FileError> {
        match self.asked(node)? {
            What::Directory => Err(FileError::IsDirectory),
            What::Volume(key) => Ok(key),
        }
    }

    /// A volume, or a snapshot of one, that is to be changed.
    fn changed_volume(&self, node: Node) -> Result<Key, FileError> {
        self.asked(node)?;
        match node.at {
            SnapshotNumber::LIVE => self.volume(node),
            _ => Err(FileError::ReadOnly),
        }
    }

    /// Up to `room` volumes from this id on that the client may use, and whether there are no others behind them.
    fn page(&self, from: DvolId, room: usize) -> (Vec<(String, Place)>, bool) {
        let (mut shown, mut from) = (Vec::new(), from);
        loop {
            let room = room - shown.len();
            // With one more it is known whether there is one.
            let mut page = self.core.names.page_by_id(from, room + 1);
            let is_end = page.len() <= room;
            page.truncate(room);
            let behind = page.last().and_then(|(_, place)| place.id.0.checked_add(1));
            page.retain(|(_, place)| file_of(place.id).is_some() && self.check(place.id).is_ok());
            let is_full = page.len() == room;
            shown.append(&mut page);
            match behind {
                // Those that it isn't shown leave room. A list without any that isn't the last would be asked for again and again.
                Some(behind) if !is_end && !is_full => from = DvolId(behind),
                _ => return (shown, is_end),
            }
        }
    }

    /// Finds `VOLUME`, or `VOLUME@SNAPSHOT`, as NBD calls them.
    async fn find(&self, name: &[u8]) -> Result<Found, FileError> {
        let name = std::str::from_utf8(name).map_err(|_| FileError::NotFound)?;
        let (volume, snapshot) = match name.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(snapshot.to_owned())),
            None => (name, None),
        };
        let place = self.core.names.find(volume).ok_or(FileError::NotFound)?;
        let file = file_of(place.id).ok_or(FileError::NotFound)?;
        if !self.permits(place.id) {
            return Err(FileError::NotFound);
        }
        let mut key = Key {
            id: place.id,
            layer: None,
        };
        if let Some(snapshot) = snapshot {
            let work = move |core: Rc<CoreNode>| async move {
                let layer = owner::layer(&core, key.id, &snapshot);
                layer.ok_or(FileError::NotFound)
            };
            key.layer = Some(self.with(key, work).await?);
        }
        let look = self.look(key).await.map_err(|error| match error {
            // It was deleted just now.
            FileError::Stale => FileError::NotFound,
            error => error,
        })?;
        let at = key
            .layer
            .map_or(SnapshotNumber::LIVE, |layer| SnapshotNumber(layer.0));
        Ok(Found {
            node: Node { file, at },
            attributes: attributes_of(key, &look),
        })
    }

    /// Which names there are is changed by `flagstone volume` alone.
    async fn refuse_change<T>(&self, directory: Node) -> Result<T, FileError> {
        self.require_directory(directory).await?;
        Err(FileError::NotOwner)
    }

    async fn set_volume(
        &self,
        caller: &Caller,
        key: Key,
        set: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Changes, FileError> {
        let now = attributes_of(key, &self.look(key).await?);
        if guard.is_some_and(|guard| guard != now.changed) {
            return Err(FileError::NotSame);
        }
        check_settable(&now, &set)?;
        require_root(caller)?;
        let set = Set {
            size_bytes: set.size_bytes,
            touch: set.modified == SetTime::Now || set.size_bytes.is_some(),
            guard_ns: guard.map(|_| ns_of(now.changed)),
        };
        let work = move |core| owner::set(core, key, set);
        let changed = self.with(key, work).await?;
        Ok(changes_of(key, &changed))
    }
}

fn ns_of(time: Timestamp) -> u64 {
    time.seconds.max(0).cast_unsigned() * 1_000_000_000 + u64::from(time.nanoseconds)
}

/// Refuses to set what isn't kept. What it is already may be said.
fn check_settable(now: &Attributes, set: &SetAttributes) -> Result<(), FileError> {
    let differs = |wanted: Option<u32>, there: u32| wanted.is_some_and(|wanted| wanted != there);
    let is_other = differs(set.mode, now.mode)
        || differs(set.uid, now.uid)
        || differs(set.gid, now.gid)
        || matches!(set.modified, SetTime::To(_))
        || matches!(set.accessed, SetTime::To(_));
    match is_other {
        true => Err(FileError::NotOwner),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_volume_and_its_cookie_goes_with_the_order_of_ids() {
        let ids = [1, 7 << 64, (1 << 66) | 5, u128::MAX - 1, u128::MAX];
        for id in ids.map(DvolId) {
            let Some(file) = file_of(id) else {
                assert_eq!(id.0 as u64, 0, "it would look like a directory");
                continue;
            };
            let key = Key { id, layer: None };
            assert_eq!(what(Node::live(file)), Ok(What::Volume(key)));
            assert_eq!(file.number(), id.0 as u64);
        }
        let cookies = ids.map(|id| cookie_of(DvolId(id)).0);
        assert!(cookies.is_sorted() && cookies[0] == FIRST);
        assert!(
            cookies[4] <= u64::MAX >> 1,
            "clients take it for a signed one"
        );
        assert_eq!(what(Node::live(ROOT)), Ok(What::Directory));
        let other = FileId {
            directory: 2,
            file: 0,
        };
        assert_eq!(what(Node::live(other)), Err(FileError::Stale));
    }
}
