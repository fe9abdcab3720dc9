//! Contents of files that are not dvols: in the inode, or in blocks of the page store. [fss 4: block layout]
//!
//! Blocks are small where a file begins and larger behind, so that a small file takes little and a large one has
//! few keys. Each key says which pages of its block were written; the others are holes and take no space. Bytes
//! of a page behind the file's end are zero, so that a file that grows again has zeros there.
//!
//! A block belongs to one version of one key. If a snapshot needs that, a change goes to another block.

use std::ops::Range;

use flagstone_device::engine::{Piece, Pieces};
use flagstone_pagestore::{BlockPtr, ExtentId, OwnerId, PARTS_MAX, PagePtr, RangeWrite};
use flagstone_platform::buf::BUFFER_ALIGN;
use flagstone_platform::{IoBuf, Platform};

use crate::change::{Change, Later, Tried};
use crate::codec::{Decoder, Encoder};
use crate::error::FileError;
use crate::files::FileId;
use crate::filesystem::{Inner, decoded};
use crate::inode::{Body, Content, INLINE_MAX_BYTES, Inode};
use crate::key;
use crate::superblock::Usage;
use crate::view::View;

/// Bytes of a page: what is written at once, and what a hole is made of.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Bytes of the blocks that a file begins with; all further ones are like the last.
pub(crate) const BLOCK_SIZES: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Bytes that one transaction writes, at most. A small device takes no more.
pub(crate) const CHUNK_MAX_BYTES: u64 = 256 << 10;
/// Parts that the caller of a write adds: the inode, what keeps its old version, what is counted.
const PARTS_OF_CALLER: usize = 3;
/// Parts that giving back a block takes, at most: its key, what keeps it, itself.
const PARTS_PER_FREED: usize = 3;

/// The extents that blocks of each size are in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents(pub(crate) [ExtentId; BLOCK_SIZES.len()]);

/// A block of a file: which it is of [`BLOCK_SIZES`], and the bytes of the file in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    size: usize,
    start: u64,
    end: u64,
}

/// The block that an offset of a file is in.
fn place_of(offset_bytes: u64) -> Place {
    let mut start = 0;
    for (size, bytes) in BLOCK_SIZES.into_iter().enumerate() {
        let end = start + bytes;
        if offset_bytes < end {
            return Place { size, start, end };
        }
        start = end;
    }
    let size = BLOCK_SIZES.len() - 1;
    let bytes = BLOCK_SIZES[size];
    let start = start + (offset_bytes - start) / bytes * bytes;
    let end = start + bytes;
    Place { size, start, end }
}

/// Where the block begins that an offset of a file is in, and its bytes.
pub(crate) fn block_start_and_size(offset_bytes: u64) -> (u64, u64) {
    let place = place_of(offset_bytes);
    (place.start, place.end - place.start)
}

/// Which of [`BLOCK_SIZES`] the block has that an offset is in.
pub(crate) fn block_size_index(offset_bytes: u64) -> usize {
    place_of(offset_bytes).size
}

/// What a block's key says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockValue {
    pub(crate) block: BlockPtr,
    /// Bit for bit the pages that were written.
    pub(crate) written: u64,
}

impl BlockValue {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.0.extend(self.block.0.encode());
        out.u64(self.written);
        out.0
    }

    pub(crate) fn decode(value: &[u8]) -> Option<BlockValue> {
        let mut value = Decoder(value);
        let block = BlockPtr(PagePtr::decode(&value.take::<32>()?).ok()?);
        let written = value.u64()?;
        value.end()?;
        Some(BlockValue { block, written })
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.written.count_ones()) * PAGE_BYTES
    }

    pub(crate) fn page(&self, page: u64) -> PagePtr {
        self.block.0.with_page(self.block.0.page + page)
    }
}

fn pages_mask(pages: Range<u64>) -> u64 {
    let below = |count: u64| {
        if count >= 64 {
            u64::MAX
        } else {
            (1 << count) - 1
        }
    };
    below(pages.end) & !below(pages.start)
}

/// What is to be written to a file.
pub(crate) struct Piecewise<'a> {
    pub(crate) offset_bytes: u64,
    pub(crate) data: &'a IoBuf,
}

impl<P: Platform> Inner<P> {
    fn owner(&self) -> OwnerId {
        OwnerId(self.keys.0.0)
    }

    /// Reads bytes of a file, all of them before its end.
    pub(crate) async fn read_content(
        &self,
        view: &mut View<P>,
        file: FileId,
        content: &Content,
        range: Range<u64>,
    ) -> Result<Pieces, Tried> {
        let mut pieces = Pieces::new();
        if range.is_empty() {
            return Ok(pieces);
        }
        if let Content::Object(object) = content {
            // The live one is read by those who have it in memory.
            return self.read_kept(object.dvol, view.at(), range).await;
        }
        if let Content::Inline(bytes) = content {
            let (from, to) = (range.start as usize, range.end as usize);
            let part = decoded(bytes.get(from..to), "a file's content")?;
            pieces.push(Piece::Data(IoBuf::copy_of(part).into()));
            return Ok(pieces);
        }
        let from = self.keys.block(file, place_of(range.start).start);
        let to = self.keys.block(file, range.end);
        let mut at = range.start;
        for (key, value) in view.scan(&from, &to, usize::MAX).await? {
            let start = decoded(key::last_number(&key), "a block's key")?;
            let block = decoded(BlockValue::decode(&value), "a block of a file")?;
            let place = place_of(start);
            push_hole(&mut pieces, at, start.max(at));
            at = at.max(start);
            let end = range.end.min(place.end);
            while at < end {
                let page = (at - start) / PAGE_BYTES;
                let is_written = |page: u64| block.written >> page & 1 == 1;
                let same = |page: &u64| is_written(*page) == is_written((at - start) / PAGE_BYTES);
                let last = (page..(end - start).div_ceil(PAGE_BYTES)).take_while(same);
                let run_end = end.min(start + (page + last.count() as u64) * PAGE_BYTES);
                if is_written(page) {
                    let (found, ticket) = self
                        .store()
                        .read_range(block.block.0, at - start, run_end - at)
                        .await?;
                    view.note(ticket);
                    pieces.extend(found);
                } else {
                    push_hole(&mut pieces, at, run_end);
                }
                at = run_end;
            }
        }
        push_hole(&mut pieces, at, range.end);
        Ok(pieces)
    }

    /// A page of a block, zeros if it was never written.
    async fn read_page(
        &self,
        change: &mut Change<P>,
        block: Option<BlockValue>,
        page: u64,
    ) -> Result<IoBuf, Tried> {
        let written = block.filter(|block| block.written >> page & 1 == 1);
        let Some(block) = written else {
            return Ok(IoBuf::zeroed(PAGE_BYTES as usize));
        };
        let read = self.store().read(block.page(page)).await?;
        change.note(read.ticket);
        Ok(read.data)
    }

    async fn block(&self, change: &mut Change<P>, key: &[u8]) -> Result<Option<BlockValue>, Tried> {
        let value = change.get(key).await?;
        let block = value.map(|value| decoded(BlockValue::decode(value), "a block of a file"));
        block.transpose()
    }

    /// Writes whole pages of the block at `place`, and nothing else of it.
    async fn write_pages(
        &self,
        change: &mut Change<P>,
        (file, inode): (FileId, &mut Inode),
        place: Place,
        first: u64,
        data: IoBuf,
    ) -> Result<(), Tried> {
        let key = self.keys.block(file, place.start);
        let old = self.block(change, &key).await?;
        let mask = pages_mask(first..first + data.len() as u64 / PAGE_BYTES);
        let in_place = old.filter(|_| !change.is_kept(&key));
        let (new, first, data) = match (in_place, old) {
            (Some(old), _) => {
                let written = old.written | mask;
                (BlockValue { written, ..old }, first, data)
            }
            (None, kept) => {
                let owner = self.owner();
                let block = change.allocate(self.extents.0[place.size], owner).await?;
                let written = mask;
                let new = BlockValue { block, written };
                match kept {
                    Some(kept) => self.with_kept(change, kept, new, first, data).await?,
                    None => (new, first, data),
                }
            }
        };
        let first = new.page(first);
        change.write_range(RangeWrite { first, data });
        let old_bytes = old.map_or(0, |old| old.bytes());
        inode.attributes.used_bytes = (inode.attributes.used_bytes + new.bytes()) - old_bytes;
        // What a snapshot keeps stays counted.
        let replaced = in_place.map_or(0, |old| old.bytes());
        change.count(Usage {
            files: 0,
            bytes: new.bytes().cast_signed() - replaced.cast_signed(),
        });
        if in_place != Some(new) {
            change.put_block(&key, new.encode()).await?;
        }
        Ok(())
    }

    /// A block that a snapshot keeps is replaced by `new`: what else it holds comes along, from its first
    /// page that was written to its last.
    async fn with_kept(
        &self,
        change: &mut Change<P>,
        kept: BlockValue,
        new: BlockValue,
        first: u64,
        data: IoBuf,
    ) -> Result<(BlockValue, u64, IoBuf), Tried> {
        let all = kept.written | new.written;
        let pages = u64::from(all.trailing_zeros())..64 - u64::from(all.leading_zeros());
        let end = first + data.len() as u64 / PAGE_BYTES;
        if pages == (first..end) {
            return Ok((new, first, data));
        }
        let mut copy = IoBuf::zeroed(((pages.end - pages.start) * PAGE_BYTES) as usize);
        for page in pages.clone() {
            let at = ((page - pages.start) * PAGE_BYTES) as usize;
            let into = at..at + PAGE_BYTES as usize;
            if (first..end).contains(&page) {
                let from = ((page - first) * PAGE_BYTES) as usize;
                let part = &data[from..from + PAGE_BYTES as usize];
                copy.bytes_mut()[into].copy_from_slice(part);
            } else if kept.written >> page & 1 == 1 {
                let old = self.read_page(change, Some(kept), page).await?;
                copy.bytes_mut()[into].copy_from_slice(&old);
            }
        }
        let written = pages_mask(pages.clone());
        Ok((BlockValue { written, ..new }, pages.start, copy))
    }

    /// Writes bytes to a file, as many as fit one transaction. Returns up to where. Size, times and mode are the
    /// caller's, and that nothing is left behind the end of what was cut.
    pub(crate) async fn write_content(
        &self,
        change: &mut Change<P>,
        file: FileId,
        inode: &mut Inode,
        what: Piecewise<'_>,
    ) -> Result<u64, Tried> {
        let end = what.offset_bytes + what.data.len() as u64;
        let mut inline = None;
        match content_mut(inode) {
            Content::Inline(bytes) if end <= INLINE_MAX_BYTES as u64 => {
                let from = what.offset_bytes as usize;
                bytes.resize(bytes.len().max(end as usize), 0);
                bytes[from..end as usize].copy_from_slice(what.data);
                return Ok(end);
            }
            content @ Content::Inline(_) => {
                let new = Content::Blocks { cut_bytes: 0 };
                if let Content::Inline(bytes) = std::mem::replace(content, new) {
                    inline = Some(bytes).filter(|bytes| !bytes.is_empty());
                }
            }
            Content::Blocks { .. } => {}
            // Whoever writes to those doesn't come here.
            Content::Object(_) => return Err(Tried::Again),
        }
        if let Some(bytes) = &inline
            && what.offset_bytes >= BLOCK_SIZES[0]
        {
            self.write_first(change, file, inode, bytes).await?;
            inline = None;
        }
        let chunk_end = end.min(what.offset_bytes + CHUNK_MAX_BYTES);
        let mut at = what.offset_bytes;
        while at < chunk_end {
            let place = place_of(at);
            let key = self.keys.block(file, place.start);
            let old = self.block(change, &key).await?;
            let parts = match old {
                None => 3,
                Some(_) if change.is_kept(&key) => 4,
                Some(_) => 3,
            };
            if change.parts() + parts + PARTS_OF_CALLER > PARTS_MAX {
                break;
            }
            let part_end = chunk_end.min(place.end);
            let from = (at - what.offset_bytes) as usize;
            let data = what.data.slice(from..from + (part_end - at) as usize);
            let start = at - place.start;
            self.write_block(
                change,
                (file, &mut *inode),
                place,
                start,
                data,
                inline.take(),
            )
            .await?;
            at = part_end;
        }
        Ok(at)
    }

    /// Writes bytes of one block, from `start` of it on. `inline` is what its first page held so far, if that
    /// was in the inode.
    async fn write_block(
        &self,
        change: &mut Change<P>,
        (file, inode): (FileId, &mut Inode),
        place: Place,
        start: u64,
        data: IoBuf,
        inline: Option<Vec<u8>>,
    ) -> Result<(), Tried> {
        let end = start + data.len() as u64;
        let pages = start / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        // What comes from a client may begin anywhere in its buffer.
        let is_aligned = data.as_ptr().addr().is_multiple_of(BUFFER_ALIGN);
        let is_whole =
            is_aligned && start.is_multiple_of(PAGE_BYTES) && end.is_multiple_of(PAGE_BYTES);
        if is_whole {
            return self
                .write_pages(change, (file, inode), place, pages.start, data)
                .await;
        }
        let key = self.keys.block(file, place.start);
        let old = self.block(change, &key).await?;
        let mut merged = IoBuf::zeroed(((pages.end - pages.start) * PAGE_BYTES) as usize);
        let bytes = merged.bytes_mut();
        if !start.is_multiple_of(PAGE_BYTES) {
            let page = self.read_page(change, old, pages.start).await?;
            bytes[..PAGE_BYTES as usize].copy_from_slice(&page);
        }
        if !end.is_multiple_of(PAGE_BYTES)
            && (start.is_multiple_of(PAGE_BYTES) || pages.end - pages.start > 1)
        {
            let page = self.read_page(change, old, pages.end - 1).await?;
            let at = bytes.len() - PAGE_BYTES as usize;
            bytes[at..].copy_from_slice(&page);
        }
        if let Some(inline) = inline {
            bytes[..inline.len()].copy_from_slice(&inline);
        }
        let at = (start - pages.start * PAGE_BYTES) as usize;
        bytes[at..at + data.len()].copy_from_slice(&data);
        self.write_pages(change, (file, inode), place, pages.start, merged)
            .await
    }

    /// Writes the first page of a file that has no blocks yet.
    async fn write_first(
        &self,
        change: &mut Change<P>,
        file: FileId,
        inode: &mut Inode,
        bytes: &[u8],
    ) -> Result<(), Tried> {
        let mut page = IoBuf::zeroed(bytes.len().next_multiple_of(PAGE_BYTES as usize));
        page.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        self.write_pages(change, (file, inode), place_of(0), 0, page)
            .await
    }

    /// The content of a new file that is too long for the inode, a page at most.
    pub(crate) async fn write_new(
        &self,
        change: &mut Change<P>,
        file: FileId,
        inode: &mut Inode,
        bytes: &[u8],
    ) -> Result<(), Tried> {
        self.write_first(change, file, inode, bytes).await
    }

    /// The content of a new file that has a size.
    pub(crate) fn resize_new(&self, inode: &mut Inode) {
        let size_bytes = inode.attributes.size_bytes;
        *content_mut(inode) = match size_bytes <= INLINE_MAX_BYTES as u64 {
            true => Content::Inline(vec![0; size_bytes as usize]),
            false => Content::Blocks { cut_bytes: 0 },
        };
    }

    /// Cuts a file or extends it with zeros. The size itself is the caller's.
    pub(crate) async fn resize(
        &self,
        change: &mut Change<P>,
        file: FileId,
        inode: &mut Inode,
        size_bytes: u64,
    ) -> Result<(), Tried> {
        self.check_cut(change, file, inode).await?;
        let old_bytes = inode.attributes.size_bytes;
        match content_mut(inode) {
            Content::Object(object) => {
                if size_bytes < old_bytes {
                    object.cut_bytes = old_bytes;
                    change.later.push(Later::Cut(file));
                }
                return Ok(());
            }
            Content::Inline(bytes) if size_bytes <= INLINE_MAX_BYTES as u64 => {
                bytes.resize(size_bytes as usize, 0);
                return Ok(());
            }
            content @ Content::Inline(_) => {
                let new = Content::Blocks { cut_bytes: 0 };
                if let Content::Inline(bytes) = std::mem::replace(content, new)
                    && !bytes.is_empty()
                {
                    self.write_first(change, file, inode, &bytes).await?;
                }
                return Ok(());
            }
            Content::Blocks { .. } if size_bytes >= old_bytes => return Ok(()),
            Content::Blocks { .. } => {}
        }
        self.cut_block(change, file, inode, size_bytes).await?;
        let is_done = self
            .free_blocks(change, file, Some(&mut *inode), size_bytes)
            .await?;
        *content_mut(inode) = match is_done {
            true if size_bytes == 0 => Content::Inline(Vec::new()),
            true => Content::Blocks { cut_bytes: 0 },
            false => Content::Blocks {
                cut_bytes: old_bytes,
            },
        };
        Ok(())
    }

    /// Nothing remains of the block in which a file is to end of what is behind that.
    async fn cut_block(
        &self,
        change: &mut Change<P>,
        file: FileId,
        inode: &mut Inode,
        size_bytes: u64,
    ) -> Result<(), Tried> {
        let place = place_of(size_bytes);
        let in_block = size_bytes - place.start;
        if in_block == 0 {
            return Ok(());
        }
        let key = self.keys.block(file, place.start);
        let Some(old) = self.block(change, &key).await? else {
            return Ok(());
        };
        let page = in_block / PAGE_BYTES;
        let tail = (in_block % PAGE_BYTES) as usize;
        if tail > 0 && old.written >> page & 1 == 1 {
            let mut data = IoBuf::copy_of(&self.read_page(change, Some(old), page).await?);
            data.bytes_mut()[tail..].fill(0);
            self.write_pages(change, (file, &mut *inode), place, page, data)
                .await?;
        }
        let Some(now) = self.block(change, &key).await? else {
            return Ok(());
        };
        let kept = now.written & pages_mask(0..in_block.div_ceil(PAGE_BYTES));
        let cut = BlockValue {
            written: kept,
            ..now
        };
        if cut == now {
            return Ok(());
        }
        let less = now.bytes() - cut.bytes();
        inode.attributes.used_bytes -= less;
        if change.is_kept(&key) && now.block == old.block {
            // The block is the snapshot's; what remains of it goes to another one.
            let pages = 0..in_block.div_ceil(PAGE_BYTES);
            let mut data = IoBuf::zeroed((pages.end * PAGE_BYTES) as usize);
            for page in pages {
                let at = (page * PAGE_BYTES) as usize;
                let old = self.read_page(change, Some(cut), page).await?;
                data.bytes_mut()[at..at + PAGE_BYTES as usize].copy_from_slice(&old);
            }
            inode.attributes.used_bytes -= cut.bytes();
            let owner = self.owner();
            let block = change.allocate(self.extents.0[place.size], owner).await?;
            let written = pages_mask(0..data.len() as u64 / PAGE_BYTES);
            let new = BlockValue { block, written };
            let first = new.page(0);
            change.write_range(RangeWrite { first, data });
            inode.attributes.used_bytes += new.bytes();
            change.count(Usage {
                files: 0,
                bytes: new.bytes().cast_signed(),
            });
            return change.put_block(&key, new.encode()).await;
        }
        change.count(Usage {
            files: 0,
            bytes: -less.cast_signed(),
        });
        change.put_block(&key, cut.encode()).await
    }

    /// Gives back blocks that begin at an offset or behind it, as many as fit the transaction. True if none
    /// are left.
    pub(crate) async fn free_blocks(
        &self,
        change: &mut Change<P>,
        file: FileId,
        mut inode: Option<&mut Inode>,
        from_bytes: u64,
    ) -> Result<bool, Tried> {
        let (from, to) = self.keys.blocks(file, from_bytes);
        let mut view = View::new(&self.tree, u32::MAX);
        let blocks = view.scan(&from, &to, PARTS_MAX).await?;
        change.note(view.ticket());
        let count = blocks.len();
        // What the caller still adds: the inode, what is counted, an answer that is kept, that its client called.
        let parts_max = PARTS_MAX - 5 - PARTS_PER_FREED;
        for (key, _) in blocks {
            if change.parts() > parts_max {
                return Ok(false);
            }
            let Some(block) = self.block(change, &key).await? else {
                return Err(Tried::Again);
            };
            let is_kept = change.is_kept(&key);
            change.delete_block(&key).await?;
            if let Some(inode) = &mut inode {
                inode.attributes.used_bytes -= block.bytes();
            }
            if !is_kept {
                change.free(block.block);
                change.count(Usage {
                    files: 0,
                    bytes: -block.bytes().cast_signed(),
                });
            }
        }
        Ok(count < PARTS_MAX)
    }

    /// What an earlier cut has left behind the end is given back first. Whoever asks has the file to himself.
    pub(crate) async fn check_cut(
        &self,
        change: &Change<P>,
        file: FileId,
        inode: &Inode,
    ) -> Result<(), Tried> {
        match inode.content() {
            Some(Content::Blocks { cut_bytes: 1.. }) => {}
            Some(Content::Object(content)) if content.cut_bytes > 0 => {
                // As it survives power loss: before that nothing is given back.
                if let Some(object) = self.object(file).await? {
                    Box::pin(self.finish_cut(&object)).await?;
                }
                return Err(Tried::Again);
            }
            Some(_) => return Ok(()),
            None => return Err(FileError::Invalid.into()),
        }
        // Apart, so that who finds nothing to give back carries no room for this.
        Box::pin(self.cut_again(change.fresh(), file)).await?;
        Err(Tried::Again)
    }

    /// One step of what an earlier cut has left.
    async fn cut_again(&self, mut step: Change<P>, file: FileId) -> Result<(), Tried> {
        let mut inode = self.inode(&mut step, file).await?;
        let size_bytes = inode.attributes.size_bytes;
        // Also what lies behind the end in the block that has it.
        self.cut_block(&mut step, file, &mut inode, size_bytes)
            .await?;
        if self
            .free_blocks(&mut step, file, Some(&mut inode), size_bytes)
            .await?
        {
            *content_mut(&mut inode) = Content::Blocks { cut_bytes: 0 };
        }
        self.put_inode(&mut step, file, &inode).await?;
        self.commit_step(step).await.map(drop)
    }

    /// A file has no name any more.
    pub(crate) async fn give_up(
        &self,
        change: &mut Change<P>,
        file: FileId,
        inode: &Inode,
    ) -> Result<(), Tried> {
        change.delete(&self.keys.inode(file)).await?;
        if let Some(object) = inode.object() {
            self.objects.forget(file);
            change.later.push(Later::Sweep(object.dvol));
        }
        let has_blocks = matches!(inode.content(), Some(Content::Blocks { .. }));
        if has_blocks && !self.free_blocks(change, file, None, 0).await? {
            // The rest goes in transactions of its own, whatever happens meanwhile.
            change.put_plain(&self.keys.orphan(file), &[])?;
            change.leaves_orphan = true;
        }
        Ok(())
    }
}

/// The content of a file that has one.
pub(crate) fn content_mut(inode: &mut Inode) -> &mut Content {
    match &mut inode.body {
        Body::Regular { content, .. } | Body::Link(content) => content,
        _ => unreachable!("only files with content are written to and cut"),
    }
}

fn push_hole(pieces: &mut Pieces, from: u64, to: u64) {
    if to > from {
        pieces.push(Piece::Zeros(to - from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_each_other_without_gaps_and_grow() {
        let mut at = 0;
        let mut sizes = Vec::new();
        while at < 1 << 20 {
            let place = place_of(at);
            assert_eq!(place.start, at);
            assert_eq!(place_of(place.end - 1), place);
            sizes.push(place.end - place.start);
            at = place.end;
        }
        assert!(sizes.is_sorted());
        assert_eq!(sizes[..4], BLOCK_SIZES);
        assert_eq!(sizes.len(), 7);
        assert_eq!(place_of(u64::MAX >> 1).size, 3);
    }

    #[test]
    fn masks_of_pages() {
        assert_eq!(pages_mask(0..64), u64::MAX);
        assert_eq!(pages_mask(1..3), 0b110);
        assert_eq!(pages_mask(63..64), 1 << 63);
        assert_eq!(pages_mask(5..5), 0);
    }
}
