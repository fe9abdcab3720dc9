//! Copies of files. Of one whose content is a dvol the copy is a clone of that: it takes the same time and no space,
//! whatever its size.

use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform};

use crate::attributes::SetAttributes;
use crate::change::{Change, Tried};
use crate::contents::{Piecewise, content_mut};
use crate::error::FileError;
use crate::files::{Caller, Created, Creation, FileId, New, Node, SnapshotNumber};
use crate::filesystem::{ATTEMPTS_MAX, Filesystem, Inner, decoded};
use crate::inode::{Content, Inode};
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
    /// is [`FileError::Exists`]. The copy is the caller's, and has the mode of the file. Durable when this
    /// returns.
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
            let (mode, copied) = match inner.copy_source(caller, source, &making).await {
                Err(Tried::Again) => continue,
                Err(Tried::For(error)) => return Err(error),
                Ok(copied) => copied,
            };
            let created = inner.name_copy(caller, directory.file, name, mode, &copied, &making);
            let created = created.await?;
            making.is_named = true;
            inner.recount(making.dvol);
            return Ok(created);
        }
        Err(FileError::Later)
    }
}

impl<P: Platform> Inner<P> {
    /// Takes a file's content; a large one is in the dvol that is being made then. Also gives its mode.
    async fn copy_source(
        self: &Rc<Self>,
        caller: &Caller,
        source: Node,
        making: &Making<P>,
    ) -> Result<(u32, Copied), Tried> {
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
        let mode = inode.attributes.mode;
        let size_bytes = inode.attributes.size_bytes;
        let content = decoded(inode.content(), "a regular file")?;
        if let Content::Object(object) = content {
            let found = match source.at {
                SnapshotNumber::LIVE => self.dvol(object.dvol),
                at => self.dvol_at(object.dvol, at.0),
            };
            let found = found.ok_or(Tried::Again)?;
            let new = self.new_dvol(making.dvol);
            let said = self.said_first(NOBODY, &inode).encode();
            let clone = self.engine.clone_with(found.handle, new, said).await;
            clone.map_err(of_dvol)?;
            if source.at != SnapshotNumber::LIVE {
                // Else it was written meanwhile, and kept before that.
                let now = self.dvol_at(object.dvol, source.at.0);
                if now.is_none_or(|now| now.handle != found.handle) {
                    return Err(Tried::Again);
                }
            }
            let cut_bytes = object.cut_bytes;
            let copied = Copied::Dvol {
                size_bytes,
                cut_bytes,
            };
            return Ok((mode, copied));
        }
        if size_bytes <= IN_BLOCKS_MAX_BYTES {
            let pieces = self
                .read_content(&mut view, source.file, content, 0..size_bytes)
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
            return Ok((mode, Copied::Bytes(bytes)));
        }
        let said = self.said_first(NOBODY, &inode).encode();
        let new = self.new_dvol(making.dvol);
        let made = self.engine.create_with(new, said).await.map_err(of_dvol)?;
        self.copy_content(&mut view, source.file, &inode, made)
            .await?;
        let copied = Copied::Dvol {
            size_bytes,
            cut_bytes: 0,
        };
        Ok((mode, copied))
    }

    async fn name_copy(
        &self,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
        mode: u32,
        copied: &Copied,
        making: &Making<P>,
    ) -> Result<Created, FileError> {
        let set = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        let named = self.run(async |change| {
            let new = New::File(Creation::Guarded);
            let made = self.make(change, caller, directory, name, new, &set, OBJECT_MAX_BYTES);
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
                let set = self.engine.set_attributes(found.handle, said.encode());
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
