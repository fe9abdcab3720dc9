//! A volume in memory, quick enough to measure the gateway with: blocks are kept as buffers.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use flagstone_gateway::volume::{
    AllocationExtent, ChangedExtent, Payload, Piece, Stability, Volume, VolumeError,
};
use flagstone_platform::{BufferPool, IoBuf};
use flagstone_types::{BLOCK_SIZE, Lsn};

const BLOCK: usize = BLOCK_SIZE as usize;

/// A block and the LSN of its last change. `None`: reads as zeros.
type Block = (Option<IoBuf>, u64);

#[derive(Clone)]
pub struct RamVolume {
    inner: Rc<Inner>,
}

struct Inner {
    size_bytes: u64,
    blocks: RefCell<Vec<Block>>,
    lsn: Cell<u64>,
    read_only: bool,
    buffers: BufferPool,
}

impl RamVolume {
    pub fn new(size_bytes: u64, buffers: BufferPool) -> RamVolume {
        let blocks = vec![(None, 0); size_bytes.div_ceil(BLOCK_SIZE) as usize];
        RamVolume::with(size_bytes, blocks, 0, false, buffers)
    }

    fn with(
        size_bytes: u64,
        blocks: Vec<Block>,
        lsn: u64,
        read_only: bool,
        buffers: BufferPool,
    ) -> RamVolume {
        let (blocks, lsn) = (RefCell::new(blocks), Cell::new(lsn));
        RamVolume {
            inner: Rc::new(Inner {
                size_bytes,
                blocks,
                lsn,
                read_only,
                buffers,
            }),
        }
    }

    /// The volume as it is now, read-only. Blocks are shared until they are overwritten.
    pub fn snapshot(&self) -> RamVolume {
        let blocks = self.inner.blocks.borrow().clone();
        let buffers = self.inner.buffers.clone();
        RamVolume::with(self.inner.size_bytes, blocks, self.lsn().0, true, buffers)
    }

    pub fn lsn(&self) -> Lsn {
        Lsn(self.inner.lsn.get())
    }

    /// Blocks and parts of blocks of a range: (block, bytes within it).
    fn parts(offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = (usize, Range<usize>)> {
        let end = offset_bytes + len_bytes;
        let mut at = offset_bytes;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let block = at / BLOCK_SIZE;
                let next = end.min((block + 1) * BLOCK_SIZE);
                let start = (at % BLOCK_SIZE) as usize;
                let part = start..start + (next - at) as usize;
                at = next;
                (block as usize, part)
            })
        })
    }

    fn begin_change(&self, offset_bytes: u64, len_bytes: u64) -> Result<u64, VolumeError> {
        if self.inner.read_only {
            return Err(VolumeError::ReadOnly);
        }
        self.check(offset_bytes, len_bytes)?;
        self.inner.lsn.set(self.inner.lsn.get() + 1);
        Ok(self.inner.lsn.get())
    }

    fn check(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), VolumeError> {
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= self.inner.size_bytes => Ok(()),
            _ => Err(VolumeError::OutOfRange),
        }
    }

    /// Replaces a part of a block.
    fn patch(&self, block: &mut Block, part: Range<usize>, change: impl FnOnce(&mut [u8])) {
        let mut new = self.inner.buffers.take(BLOCK);
        match &block.0 {
            Some(old) => new.bytes_mut().copy_from_slice(old),
            None => new.bytes_mut().fill(0),
        }
        change(&mut new.bytes_mut()[part]);
        block.0 = Some(new);
    }

    fn zero(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), VolumeError> {
        let lsn = self.begin_change(offset_bytes, len_bytes)?;
        let mut blocks = self.inner.blocks.borrow_mut();
        for (index, part) in RamVolume::parts(offset_bytes, len_bytes) {
            let block = &mut blocks[index];
            if part.len() == BLOCK {
                block.0 = None;
            } else if block.0.is_some() {
                self.patch(block, part, |bytes| bytes.fill(0));
            }
            block.1 = lsn;
        }
        Ok(())
    }

    fn runs(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
        of: impl Fn(&Block) -> bool,
    ) -> Result<Vec<(u64, bool)>, VolumeError> {
        self.check(offset_bytes, len_bytes)?;
        let blocks = self.inner.blocks.borrow();
        let mut runs: Vec<(u64, bool)> = Vec::new();
        for (index, part) in RamVolume::parts(offset_bytes, len_bytes) {
            let value = of(&blocks[index]);
            let full = runs.len() == extents_max;
            match runs.last_mut() {
                Some((len, last)) if *last == value => *len += part.len() as u64,
                _ if full => break,
                _ => runs.push((part.len() as u64, value)),
            }
        }
        Ok(runs)
    }
}

impl Volume for RamVolume {
    fn size_bytes(&self) -> Option<u64> {
        Some(self.inner.size_bytes)
    }

    fn is_read_only(&self) -> bool {
        self.inner.read_only
    }

    async fn read(&self, offset_bytes: u64, len_bytes: u32) -> Result<Payload, VolumeError> {
        self.check(offset_bytes, u64::from(len_bytes))?;
        let blocks = self.inner.blocks.borrow();
        let mut payload = Payload::new();
        let parts = RamVolume::parts(offset_bytes, u64::from(len_bytes));
        for (index, part) in parts {
            match (&blocks[index].0, payload.last_mut()) {
                (Some(block), _) => payload.push(Piece::Data(block.slice(part))),
                (None, Some(Piece::Zeros(zeros))) => *zeros += part.len() as u64,
                (None, _) => payload.push(Piece::Zeros(part.len() as u64)),
            }
        }
        Ok(payload)
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        _stability: Stability,
    ) -> Result<(), VolumeError> {
        let lsn = self.begin_change(offset_bytes, data.len() as u64)?;
        let mut blocks = self.inner.blocks.borrow_mut();
        let mut from = 0;
        for (index, part) in RamVolume::parts(offset_bytes, data.len() as u64) {
            let bytes = from..from + part.len();
            from = bytes.end;
            let block = &mut blocks[index];
            if part.len() == BLOCK {
                block.0 = Some(data.slice(bytes));
            } else {
                self.patch(block, part, |old| old.copy_from_slice(&data[bytes]));
            }
            block.1 = lsn;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        _stability: Stability,
    ) -> Result<(), VolumeError> {
        self.zero(offset_bytes, len_bytes)
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        _keep_allocated: bool,
        _stability: Stability,
    ) -> Result<(), VolumeError> {
        self.zero(offset_bytes, len_bytes)
    }

    async fn allocation(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        let runs = self.runs(offset_bytes, len_bytes, extents_max, |block| {
            block.0.is_some()
        })?;
        let extent = |(len_bytes, allocated)| AllocationExtent {
            len_bytes,
            allocated,
        };
        Ok(runs.into_iter().map(extent).collect())
    }

    async fn changed_since(
        &self,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        let runs = self.runs(offset_bytes, len_bytes, extents_max, |block| {
            block.1 > since.0
        })?;
        let extent = |(len_bytes, changed)| ChangedExtent { len_bytes, changed };
        Ok(runs.into_iter().map(extent).collect())
    }
}
