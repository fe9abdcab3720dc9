//! The directory of volumes as gateways see it: what [`Files`] asks, answered by what the volumes' cores say.

use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::engine::{Piece, Pieces, SIZE_MAX_BYTES};
use flagstone_fs::{
    AccessMask, Attributes, Caller, Changes, Cookie, Created, Creation, Entry, FileError, FileId,
    FileKind, FileRead, Files, FilesystemId, Found, Listing, New, Node, SetAttributes, SetTime,
    SnapshotNumber, Space, Stability, Timestamp, Written,
};
use flagstone_platform::IoBuf;
use flagstone_types::DvolId;

use super::owner::{self, Key, Room};
use super::{
    COOKIE_SHIFT, FIRST, KEY, PARENT, Part, ROOT, SELF, VOLUME_MODE, VolumeFiles, What,
    attributes_of, changes_of, check_settable, cookie_of, file_of, require_root, unasked,
};
use crate::node::real::core::CoreNode;

impl Files for VolumeFiles {
    fn id(&self) -> FilesystemId {
        VolumeFiles::ID
    }

    fn root(&self) -> FileId {
        ROOT
    }

    fn secret(&self) -> [u8; 16] {
        KEY
    }

    fn size_max_bytes(&self) -> u64 {
        SIZE_MAX_BYTES
    }

    async fn attributes(&self, node: Node) -> Result<Attributes, FileError> {
        match self.asked(node)? {
            What::Directory => Ok(self.directory()),
            What::Volume(key) => Ok(attributes_of(key, &self.look(key).await?)),
        }
    }

    async fn access(
        &self,
        caller: &Caller,
        node: Node,
        wanted: AccessMask,
    ) -> Result<(AccessMask, Attributes), FileError> {
        let attributes = self.attributes(node).await?;
        let is_directory = attributes.kind == FileKind::Directory;
        let is_root = caller.uid == 0;
        let may_write = !is_directory && is_root && attributes.mode == VOLUME_MODE;
        let granted = AccessMask {
            read: wanted.read && (is_directory || is_root),
            lookup: wanted.lookup && is_directory,
            modify: wanted.modify && may_write,
            extend: wanted.extend && may_write,
            delete: false,
            execute: false,
        };
        Ok((granted, attributes))
    }

    async fn lookup(&self, _: &Caller, directory: Node, name: &[u8]) -> Result<Found, FileError> {
        self.require_directory(directory).await?;
        match name {
            b"." | b".." => Ok(self.found_directory()),
            name => self.find(name).await,
        }
    }

    async fn read_link(&self, _: &Caller, node: Node) -> Result<(Vec<u8>, Attributes), FileError> {
        self.attributes(node).await?;
        Err(FileError::Invalid)
    }

    async fn read(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<FileRead, FileError> {
        let key = self.volume(node)?;
        let elsewhere = self.core_of(key)?;
        require_root(caller)?;
        let (pieces, look) = match elsewhere {
            None => owner::read(self.core.clone(), key, offset_bytes, len_bytes).await?,
            Some(core) => {
                let work = move |core| async move {
                    let read = owner::read(core, key, offset_bytes, len_bytes);
                    let (pieces, look) = read.await?;
                    let parts = pieces.into_iter().map(|piece| match piece {
                        Piece::Data(buf) => Part::Data(buf.to_vec()),
                        Piece::Zeros(len_bytes) => Part::Zeros(len_bytes),
                    });
                    Ok((parts.collect::<Vec<_>>(), look))
                };
                let (parts, look) = self.core.ask(core, work).await.map_err(unasked)??;
                let pieces = parts.into_iter().map(|part| match part {
                    Part::Data(bytes) => Piece::Data(IoBuf::copy_of(&bytes).into()),
                    Part::Zeros(len_bytes) => Piece::Zeros(len_bytes),
                });
                (pieces.collect::<Pieces>(), look)
            }
        };
        Ok(FileRead {
            pieces,
            is_end: offset_bytes.saturating_add(u64::from(len_bytes)) >= look.size_bytes,
            attributes: attributes_of(key, &look),
        })
    }

    async fn write(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Written, FileError> {
        let key = self.changed_volume(node)?;
        let elsewhere = self.core_of(key)?;
        require_root(caller)?;
        let (changed, verifier) = match elsewhere {
            None => {
                let core = self.core.clone();
                let changed = owner::write(core, key, offset_bytes, data, stability).await?;
                (changed, self.core.life)
            }
            Some(core) => {
                let bytes = data.to_vec();
                drop(data);
                let work = move |core: Rc<CoreNode>| async move {
                    let (life, data) = (core.life, IoBuf::copy_of(&bytes));
                    drop(bytes);
                    let changed = owner::write(core, key, offset_bytes, data, stability).await?;
                    Ok((changed, life))
                };
                self.core.ask(core, work).await.map_err(unasked)??
            }
        };
        Ok(Written {
            changes: changes_of(key, &changed),
            stability,
            verifier,
        })
    }

    async fn commit(&self, caller: &Caller, node: Node) -> Result<Written, FileError> {
        let key = self.changed_volume(node)?;
        self.core_of(key)?;
        require_root(caller)?;
        let work = move |core: Rc<CoreNode>| async move {
            let life = core.life;
            Ok((owner::commit(core, key).await?, life))
        };
        let (look, verifier) = self.with(key, work).await?;
        let after = attributes_of(key, &look);
        Ok(Written {
            changes: Changes {
                before: (&after).into(),
                after,
            },
            stability: Stability::Stable,
            verifier,
        })
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        node: Node,
        set: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Changes, FileError> {
        let asked = self.asked(node)?;
        if node.at != SnapshotNumber::LIVE {
            return Err(FileError::ReadOnly);
        }
        match asked {
            What::Volume(key) => self.set_volume(caller, key, set, guard).await,
            What::Directory => {
                let now = self.directory();
                if guard.is_some_and(|guard| guard != now.changed) {
                    return Err(FileError::NotSame);
                }
                let is_time = set.modified != SetTime::Keep || set.accessed != SetTime::Keep;
                if set.size_bytes.is_some() || is_time {
                    return Err(FileError::NotOwner);
                }
                check_settable(&now, &set)?;
                Ok(Changes {
                    before: (&now).into(),
                    after: now,
                })
            }
        }
    }

    async fn make(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        new: New<'_>,
        set: SetAttributes,
    ) -> Result<Created, FileError> {
        self.require_directory(directory).await?;
        let found = match self.find(name).await {
            Err(FileError::NotFound) => return Err(FileError::NotOwner),
            found => found?,
        };
        let New::File(Creation::Unchecked) = new else {
            return Err(FileError::Exists);
        };
        let mut attributes = found.attributes;
        if set.size_bytes.is_some() {
            let size = SetAttributes {
                size_bytes: set.size_bytes,
                ..SetAttributes::default()
            };
            let changes = self.set_attributes(caller, found.node, size, None);
            attributes = changes.await?.after;
        }
        let directory = self.directory();
        Ok(Created {
            node: found.node,
            attributes,
            directory: Changes {
                before: (&directory).into(),
                after: directory,
            },
        })
    }

    async fn remove(&self, _: &Caller, directory: Node, name: &[u8]) -> Result<Changes, FileError> {
        self.require_directory(directory).await?;
        self.find(name).await?;
        self.refuse_change(directory).await
    }

    async fn remove_directory(
        &self,
        _: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        self.require_directory(directory).await?;
        self.find(name).await?;
        Err(FileError::NotDirectory)
    }

    async fn rename(
        &self,
        _: &Caller,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
    ) -> Result<(Changes, Changes), FileError> {
        self.require_directory(from.0).await?;
        self.require_directory(to.0).await?;
        self.find(from.1).await?;
        self.refuse_change(to.0).await
    }

    async fn link(
        &self,
        _: &Caller,
        node: Node,
        directory: Node,
        _: &[u8],
    ) -> Result<(Attributes, Changes), FileError> {
        self.attributes(node).await?;
        self.refuse_change(directory).await
    }

    async fn list(
        &self,
        _: &Caller,
        directory: Node,
        behind: Cookie,
        count: usize,
        with_attributes: bool,
    ) -> Result<Listing, FileError> {
        self.require_directory(directory).await?;
        if behind.0 > u64::MAX >> 1 {
            return Err(FileError::BadCookie);
        }
        let this = self.found_directory();
        let mut entries = Vec::new();
        for (cookie, name) in [(SELF, &b"."[..]), (PARENT, b"..")] {
            if cookie > behind.0 && entries.len() < count {
                entries.push(Entry {
                    cookie: Cookie(cookie),
                    name: name.to_vec(),
                    node: this.node,
                    attributes: with_attributes.then_some(this.attributes),
                });
            }
        }
        let from = match behind.0 {
            0..FIRST => 0,
            // At most behind the last id there is.
            behind => u128::from(behind + 1).saturating_mul(1 << COOKIE_SHIFT),
        };
        let room = count - entries.len();
        let (page, is_end) = self.page(DvolId(from), room);
        let keys: Vec<Key> = page
            .iter()
            .map(|(_, place)| Key {
                id: place.id,
                layer: None,
            })
            .collect();
        let looks = match with_attributes {
            true => self.looks(&keys).await,
            false => vec![None; keys.len()],
        };
        for (((name, place), key), look) in page.into_iter().zip(keys).zip(looks) {
            let Some(file) = file_of(place.id) else {
                continue;
            };
            entries.push(Entry {
                cookie: cookie_of(place.id),
                name: name.into_bytes(),
                node: Node::live(file),
                attributes: look.map(|look| attributes_of(key, &look)),
            });
        }
        Ok(Listing {
            entries,
            is_end,
            directory: this.attributes,
        })
    }

    async fn space(&self) -> Result<Space, FileError> {
        let mut devices: BTreeMap<usize, Room> = BTreeMap::new();
        let mut add = |rooms: Vec<(usize, Room)>| {
            for (device, room) in rooms {
                devices.entry(device).or_default().add(room);
            }
        };
        add(owner::rooms(&self.core));
        for core in (0..self.core.cores()).filter(|core| *core != self.core.index) {
            let work = |core: Rc<CoreNode>| async move { owner::rooms(&core) };
            add(self.core.ask(core, work).await.map_err(unasked)?);
        }
        let rooms = devices.values();
        let (files, _) = self.core.names.count();
        Ok(Space {
            total_bytes: rooms.clone().map(|room| room.total_bytes).sum(),
            free_bytes: rooms.map(Room::free_bytes).sum(),
            files,
            // Names are not made here.
            free_files: Some(0),
        })
    }
}
