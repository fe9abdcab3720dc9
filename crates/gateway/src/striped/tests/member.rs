//! A member in memory that answers when it is told to, fails when it is told to, and remembers what it was
//! asked for; and what drives futures by hand.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use flagstone_platform::IoBuf;
use flagstone_platform::sync::{Promise, promise};
use flagstone_types::Lsn;

use crate::striped::{Layout, Striped};
use crate::volume::{
    AllocationExtent, ChangedExtent, Payload, Piece, Stability, Volume, VolumeError,
};

pub(super) const BLOCK: u64 = 4096;

/// What a member was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Read(u64, u32),
    Write(u64, u64, Stability),
    Flush,
    Deallocate(u64, u64, Stability),
    WriteZeroes(u64, u64, bool, Stability),
    Allocation(u64, u64, usize),
}

/// What all members of a volume tell: member, what it was asked for, in the order in which they began.
pub(super) type Log = Rc<RefCell<Vec<(usize, Call)>>>;

pub(super) struct Memory {
    number: usize,
    pub(super) size_bytes: u64,
    /// Those that take space.
    pub(super) blocks: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// Every block takes space, also those that aren't there.
    pub(super) solid: Cell<bool>,
    pub(super) read_only: Cell<bool>,
    pub(super) log: Log,
    /// Each operation waits until it is told to go on.
    pub(super) held: Cell<bool>,
    waiting: RefCell<Vec<Option<Promise<()>>>>,
    /// Operations that have ended.
    pub(super) ended: Cell<usize>,
    /// How often an operation that waits was polled.
    pub(super) polls: Cell<usize>,
    /// The next operations fail like this, or don't.
    pub(super) failures: RefCell<VecDeque<Option<VolumeError>>>,
    /// Reads return so many bytes more, or fewer.
    pub(super) wrong_by: Cell<i64>,
    /// Nothing is told of what is allocated.
    pub(super) mute: Cell<bool>,
    /// Extents in an answer at most, whatever is asked for.
    pub(super) extents_max: Cell<usize>,
    /// Data of the last write, as it came.
    pub(super) written: RefCell<Vec<IoBuf>>,
    /// Data of the last read, as it left.
    pub(super) read: RefCell<Option<IoBuf>>,
}

#[derive(Clone)]
pub(super) struct Member(Rc<Memory>);

impl std::ops::Deref for Member {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.0
    }
}

impl Member {
    pub(super) fn new(number: usize, size_bytes: u64, log: &Log) -> Member {
        Member(Rc::new(Memory {
            number,
            size_bytes,
            blocks: RefCell::default(),
            solid: Cell::new(false),
            read_only: Cell::new(false),
            log: log.clone(),
            held: Cell::new(false),
            waiting: RefCell::default(),
            ended: Cell::new(0),
            polls: Cell::new(0),
            failures: RefCell::default(),
            wrong_by: Cell::new(0),
            mute: Cell::new(false),
            extents_max: Cell::new(usize::MAX),
            written: RefCell::default(),
            read: RefCell::default(),
        }))
    }

    /// Lets the `nth` operation that was ever held go on.
    pub(super) fn release(&self, nth: usize) {
        let promise = self.waiting.borrow_mut()[nth].take();
        promise.expect("it waits").fulfil(());
    }

    async fn begin(&self, call: Call) -> Result<(), VolumeError> {
        self.log.borrow_mut().push((self.number, call));
        let failure = self.failures.borrow_mut().pop_front().flatten();
        if self.held.get() {
            let (promise, awaited) = promise();
            self.waiting.borrow_mut().push(Some(promise));
            let mut awaited = std::pin::pin!(awaited);
            std::future::poll_fn(|cx| {
                self.polls.set(self.polls.get() + 1);
                awaited.as_mut().poll(cx)
            })
            .await;
        }
        self.ended.set(self.ended.get() + 1);
        match failure {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn check(&self, offset: u64, len: u64) {
        let end = offset.checked_add(len).expect("fits");
        assert!(end <= self.size_bytes, "a member is asked for what it has");
    }

    /// Blocks of a range and the bytes of it within each.
    fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
        let end = offset + len;
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        blocks.filter(move |_| len > 0).map(move |block| {
            let (low, high) = (block * BLOCK, (block + 1) * BLOCK);
            let part = offset.max(low) - low..end.min(high) - low;
            (block, part.start as usize..part.end as usize)
        })
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        let mut at = 0;
        for (block, part) in Member::parts(offset, bytes.len() as u64) {
            let mut blocks = self.blocks.borrow_mut();
            let block = blocks.entry(block).or_insert_with(|| vec![0; 4096]);
            let len = part.len();
            block[part].copy_from_slice(&bytes[at..at + len]);
            at += len;
        }
    }

    /// Frees whole blocks and fills parts with zeros.
    fn clear(&self, offset: u64, len: u64) {
        let end = offset + len;
        let mut blocks = self.blocks.borrow_mut();
        blocks.retain(|block, bytes| {
            let start = block * BLOCK;
            let (from, to) = (offset.max(start), end.min(start + BLOCK));
            if from < to {
                bytes[(from - start) as usize..(to - start) as usize].fill(0);
            }
            from >= to || to - from < BLOCK
        });
    }
}

impl Volume for Member {
    fn size_bytes(&self) -> Option<u64> {
        Some(self.size_bytes)
    }

    fn is_read_only(&self) -> bool {
        self.read_only.get()
    }

    async fn read(&self, offset_bytes: u64, len_bytes: u32) -> Result<Payload, VolumeError> {
        self.begin(Call::Read(offset_bytes, len_bytes)).await?;
        self.check(offset_bytes, len_bytes.into());
        let mut payload = Payload::new();
        for (block, part) in Member::parts(offset_bytes, len_bytes.into()) {
            let blocks = self.blocks.borrow();
            payload.push(match blocks.get(&block) {
                Some(bytes) => {
                    let data = IoBuf::copy_of(&bytes[part]);
                    *self.read.borrow_mut() = Some(data.clone());
                    Piece::Data(data)
                }
                None => Piece::Zeros(part.len() as u64),
            });
            payload.push(Piece::Zeros(0));
        }
        match self.wrong_by.get() {
            0 => {}
            more @ 1.. => payload.push(Piece::Zeros(more as u64)),
            fewer => {
                let data = IoBuf::zeroed((i64::from(len_bytes) + fewer) as usize);
                payload = [Piece::Data(data)].into_iter().collect();
            }
        }
        Ok(payload)
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        assert_eq!(
            data.as_ptr() as u64 % BLOCK,
            offset_bytes % BLOCK,
            "whole blocks are aligned in memory"
        );
        let len = data.len() as u64;
        self.begin(Call::Write(offset_bytes, len, stability))
            .await?;
        self.check(offset_bytes, len);
        self.put(offset_bytes, &data);
        self.written.borrow_mut().push(data);
        Ok(())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        self.begin(Call::Flush).await
    }

    async fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        self.begin(Call::Deallocate(offset_bytes, len_bytes, stability))
            .await?;
        self.check(offset_bytes, len_bytes);
        self.clear(offset_bytes, len_bytes);
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_allocated: bool,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let call = Call::WriteZeroes(offset_bytes, len_bytes, keep_allocated, stability);
        self.begin(call).await?;
        self.check(offset_bytes, len_bytes);
        self.clear(offset_bytes, len_bytes);
        if keep_allocated {
            self.put(offset_bytes, &vec![0; len_bytes as usize]);
        }
        Ok(())
    }

    async fn allocation(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        let call = Call::Allocation(offset_bytes, len_bytes, extents_max);
        self.begin(call).await?;
        self.check(offset_bytes, len_bytes);
        assert!(len_bytes > 0 && extents_max > 0);
        let (mut at, end) = (offset_bytes, offset_bytes + len_bytes);
        let mut extents: Vec<AllocationExtent> = Vec::new();
        let mut push = |allocated, len_bytes| match extents.last_mut() {
            Some(last) if last.allocated == allocated => last.len_bytes += len_bytes,
            _ if len_bytes > 0 => extents.push(AllocationExtent {
                len_bytes,
                allocated,
            }),
            _ => {}
        };
        let blocks = self.blocks.borrow();
        for (&block, _) in blocks.range(at / BLOCK..end.div_ceil(BLOCK)) {
            let start = (block * BLOCK).max(at);
            let next = ((block + 1) * BLOCK).min(end);
            push(self.solid.get(), start - at);
            push(true, next - start);
            at = next;
        }
        push(self.solid.get(), end - at);
        extents.truncate(extents_max.min(self.extents_max.get()));
        if self.mute.get() {
            extents.clear();
        }
        Ok(extents)
    }

    async fn changed_since(
        &self,
        _since: Lsn,
        _offset_bytes: u64,
        _len_bytes: u64,
        _extents_max: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        panic!("no member is asked what changed");
    }
}

/// A volume in memory with its members.
pub(super) struct Stage {
    pub(super) volume: Striped<Member>,
    pub(super) members: Vec<Member>,
    pub(super) size: Rc<Cell<Option<u64>>>,
    pub(super) log: Log,
}

impl Stage {
    /// Members are longer than they need by `longer_bytes`.
    pub(super) fn new(layout: Layout, size_bytes: u64, longer_bytes: u64) -> Stage {
        let log = Log::default();
        let member = |number| {
            let needed = layout.member_size_bytes(number, size_bytes);
            Member::new(number, needed + longer_bytes, &log)
        };
        let members: Vec<Member> = (0..layout.members()).map(member).collect();
        let size = Rc::new(Cell::new(Some(size_bytes)));
        let asked = size.clone();
        let volume = Striped::new(layout, members.clone(), move || asked.get());
        Stage {
            volume: volume.expect("as many as there are"),
            members,
            size,
            log,
        }
    }

    pub(super) fn hold(&self) {
        for member in &self.members {
            member.held.set(true);
        }
    }

    /// What the members were asked for since this was last called.
    pub(super) fn calls(&self) -> Vec<(usize, Call)> {
        std::mem::take(&mut self.log.borrow_mut())
    }
}

/// Counts how often it was woken.
#[derive(Default)]
pub(super) struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Wakes {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A future that is polled by hand.
pub(super) struct Driven<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    pub(super) wakes: Arc<Wakes>,
}

impl<'a, T> Driven<'a, T> {
    pub(super) fn new(future: impl Future<Output = T> + 'a) -> Driven<'a, T> {
        Driven {
            future: Box::pin(future),
            wakes: Arc::default(),
        }
    }

    pub(super) fn poll(&mut self) -> Option<T> {
        let waker = Waker::from(self.wakes.clone());
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}

/// What a future returns that waits for nothing.
pub(super) fn now<T>(future: impl Future<Output = T>) -> T {
    Driven::new(future).poll().expect("nothing to wait for")
}

/// Bytes of what was read.
pub(super) fn bytes_of(payload: &Payload) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in payload {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeros(len) => bytes.resize(bytes.len() + *len as usize, 0),
        }
    }
    bytes
}

/// Numbers that look random, and are the same each time (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which isn't zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn layout(&mut self) -> Layout {
        let members = 2 + self.below(15) as usize;
        Layout::new(members, (64 << 10) << self.below(9)).expect("a possible one")
    }
}
