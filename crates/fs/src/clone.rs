//! Copies of files. Of one whose content is a dvol the copy is a clone of that: it takes the same time and no space,
//! whatever its size.

use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform};

use crate::attributes::SetAttributes;
use crate::change::{Change, Tried};
use crate::contents::{Piecewise, content_mut};
use crate::dot_snapshot::{SNAPSHOTS_NAME, WithSnapshots};
use crate::error::FileError;
use crate::files::{Caller, Created, Creation, FileId, New, Node, SnapshotNumber};
use crate::filesystem::{ATTEMPTS_MAX, Filesystem, Inner};
use crate::inode::{Body, Content, Inode};
use crate::object::Said;
use crate::objects::{OBJECT_MAX_BYTES, of_dvol};
use crate::permissions::{check_own_name, require_read};
use crate::promote::Making;
use crate::view::View;

/// The copy of a file that is not a dvol lies in blocks up to here: beside a new name one transaction takes so much
/// for certain. The copy of a larger one is a dvol.
const IN_BLOCKS_MAX_BYTES: u64 = 4 << 10;
/// What a dvol says of its file before that has a number.
const NOBODY: FileId = FileId {
    directory: 0,
    file: 0,
};

/// A file that is copied.
struct Source {
    /// What the copy gets of it.
    set: SetAttributes,
    copied: Copied,
}

/// What a copy is made of.
enum Copied {
    /// Bytes that one transaction can write.
    Bytes(IoBuf),
    /// A dvol that has them already: how many they are, and up to where it has more.
    Dvol { size_bytes: u64, cut_bytes: u64 },
}

impl<P: Platform> Filesystem<P> {
    /// Makes a file under a new name with the content of another one as it is now, or as it was in a snapshot. Of
    /// a large file nothing is copied. For who may read it and make names in the directory; a name that is there
    /// is [`FileError::Exists`]. The copy has the mode of the file, and is the caller's; of root, whose the file
    /// is. A directory is [`FileError::IsDirectory`], what is no regular file [`FileError::Invalid`]. Durable when
    /// this returns.
    pub async fn clone_file(
        &self,
        caller: &Caller,
        source: Node,
        directory: Node,
        name: &[u8],
    ) -> Result<Created, FileError> {
        check_own_name(name)?;
        if directory.at != SnapshotNumber::LIVE {
            return Err(FileError::ReadOnly);
        }
        let inner = &self.inner;
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 2 {
                inner.platform.yield_now().await;
            }
            let mut making = inner.begin_making();
            let source = match inner.copy_source(caller, source, &making).await {
                Err(Tried::Again) => continue,
                Err(Tried::For(error)) => return Err(error),
                Ok(source) => source,
            };
            inner.check_room_for_copy(&making)?;
            let created = inner.name_copy(caller, directory.file, name, &source, &making);
            let created = created.await?;
            making.is_named = true;
            inner.recount(making.dvol);
            return Ok(created);
        }
        Err(FileError::Later)
    }
}

impl<P: Platform> WithSnapshots<Filesystem<P>> {
    /// As [`Filesystem::clone_file`], where no file has the name of the directory of snapshots.
    pub async fn clone_file(
        &self,
        caller: &Caller,
        source: Node,
        directory: Node,
        name: &[u8],
    ) -> Result<Created, FileError> {
        if name == SNAPSHOTS_NAME {
            return Err(FileError::Exists);
        }
        let cloned = self.inner().clone_file(caller, source, directory, name);
        cloned.await
    }
}

impl<P: Platform> Inner<P> {
    /// Whether a copy that was made stays within the quota. One that shares everything takes nothing.
    fn check_room_for_copy(&self, making: &Making<P>) -> Result<(), FileError> {
        let quota = self.with_state(|state| state.superblock.quota_bytes);
        let more = self.bytes_of(making.dvol);
        match more > 0 && quota > 0 && self.used_bytes().saturating_add(more) > quota {
            true => Err(FileError::Quota),
            false => Ok(()),
        }
    }

    /// Takes a file's content; a large one is in the dvol that is being made then.
    async fn copy_source(
        self: &Rc<Self>,
        caller: &Caller,
        source: Node,
        making: &Making<P>,
    ) -> Result<Source, Tried> {
        let _entered = self.enter().await;
        // Nobody writes to it meanwhile.
        let _own = match source.at {
            SnapshotNumber::LIVE => self.locks.own(&[source.file.number()]).await,
            _ => Vec::new(),
        };
        let mut view = View::new(&self.tree, self.number_of(source.at)?);
        let inode = self.look_at(&mut view, source.file).await;
        self.store().wait(view.ticket()).await?;
        let inode = inode?;
        require_read(caller, &inode.attributes)?;
        let content = match &inode.body {
            Body::Regular { content, .. } => content,
            Body::Directory(_) => return Err(FileError::IsDirectory.into()),
            _ => return Err(FileError::Invalid.into()),
        };
        let copied = self.copy(&mut view, source, &inode, content, making);
        let owner = caller.is_root().then_some(&inode.attributes);
        Ok(Source {
            copied: copied.await?,
            set: SetAttributes {
                mode: Some(inode.attributes.mode),
                uid: owner.map(|owner| owner.uid),
                gid: owner.map(|owner| owner.gid),
                ..SetAttributes::default()
            },
        })
    }

    async fn copy(
        &self,
        view: &mut View<P>,
        source: Node,
        inode: &Inode,
        content: &Content,
        making: &Making<P>,
    ) -> Result<Copied, Tried> {
        let size_bytes = inode.attributes.size_bytes;
        if let Content::Object(object) = content {
            let found = match source.at {
                SnapshotNumber::LIVE => self.dvol(object.dvol),
                at => self.dvol_at(object.dvol, at.0),
            };
            let found = found.ok_or_else(|| self.not_there())?;
            // A copy lies beside its source, or it would share nothing.
            let engine = self.places.at(found.place);
            let new = self.new_dvol(making.dvol);
            let said = self.said_first(NOBODY, inode, found.place).encode();
            let clone = engine.clone_with(found.handle, new, said).await;
            // What it had for itself is in a layer now.
            self.recount(object.dvol);
            clone.map_err(of_dvol)?;
            if source.at != SnapshotNumber::LIVE {
                // Else it was written meanwhile, and kept before that.
                let now = self.dvol_at(object.dvol, source.at.0);
                if now.is_none_or(|now| now.handle != found.handle) {
                    return Err(Tried::Again);
                }
            }
            let cut_bytes = object.cut_bytes;
            return Ok(Copied::Dvol {
                size_bytes,
                cut_bytes,
            });
        }
        if size_bytes <= IN_BLOCKS_MAX_BYTES {
            let pieces = self
                .read_content(view, source.file, content, 0..size_bytes)
                .await?;
            let mut bytes = IoBuf::zeroed(size_bytes as usize);
            let mut at = 0;
            for piece in pieces {
                match piece {
                    crate::Piece::Zeros(len) => at += len as usize,
                    crate::Piece::Data(data) => {
                        bytes.bytes_mut()[at..at + data.len()].copy_from_slice(&data);
                        at += data.len();
                    }
                }
            }
            return Ok(Copied::Bytes(bytes));
        }
        let made = self.make_dvol(making, NOBODY, inode, 0).await?;
        let made = made.ok_or(FileError::NoSpace)?;
        self.copy_content(view, source.file, inode, made).await?;
        Ok(Copied::Dvol {
            size_bytes,
            cut_bytes: 0,
        })
    }

    async fn name_copy(
        &self,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
        source: &Source,
        making: &Making<P>,
    ) -> Result<Created, FileError> {
        let Source { set, copied } = source;
        let named = self.run(async |change| {
            let new = New::File(Creation::Guarded);
            let made = self.make(change, caller, directory, name, new, set, OBJECT_MAX_BYTES);
            let mut created = made.await?;
            let file = created.node.file;
            let inode = self.inode(change, file).await?;
            let inode = self.fill_copy(change, file, inode, copied, making).await?;
            created.attributes = inode.attributes;
            Ok(created)
        });
        named.await
    }

    /// Gives a file that was just made its content.
    async fn fill_copy(
        &self,
        change: &mut Change<P>,
        file: FileId,
        mut inode: Inode,
        copied: &Copied,
        making: &Making<P>,
    ) -> Result<Inode, Tried> {
        match copied {
            Copied::Bytes(data) => {
                inode.attributes.size_bytes = data.len() as u64;
                if !data.is_empty() {
                    let what = Piecewise {
                        offset_bytes: 0,
                        data,
                    };
                    let reached = self.write_content(change, file, &mut inode, what).await?;
                    if reached < data.len() as u64 {
                        return Err(FileError::Device.into());
                    }
                }
            }
            Copied::Dvol {
                size_bytes,
                cut_bytes,
            } => {
                let found = self.dvol(making.dvol).ok_or(Tried::Again)?;
                // Before its inode can be seen.
                let said = Said { file, ..found.said };
                let engine = self.places.at(found.place);
                let set = engine.set_attributes(found.handle, said.encode());
                set.await.map_err(of_dvol)?;
                inode = Inner::<P>::with_object(&inode, making.dvol);
                inode.attributes.size_bytes = *size_bytes;
                if let Content::Object(object) = content_mut(&mut inode) {
                    object.cut_bytes = *cut_bytes;
                }
            }
        }
        self.put_inode(change, file, &inode).await?;
        if let Some(object) = inode.object() {
            inode.attributes.used_bytes = self.dvol(object.dvol).map_or(0, |d| d.mapped_bytes);
        }
        Ok(inode)
    }
}
