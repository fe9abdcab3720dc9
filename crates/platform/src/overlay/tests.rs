//! Against a plain array: whatever is done, it reads as the array does, and the device below stays what it was.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use flagstone_types::BLOCK_SIZE;

use super::kept::PLACE_BYTES;
use super::*;

const BLOCK: u64 = BLOCK_SIZE;

/// A device in memory that answers when it is asked the second time.
#[derive(Clone)]
struct Ram {
    bytes: Rc<Vec<u8>>,
    /// Offset of a sector that can't be read.
    bad: Option<u64>,
    reads: Rc<Cell<u64>>,
}

impl Ram {
    fn new(bytes: Vec<u8>) -> Ram {
        Ram {
            bytes: Rc::new(bytes),
            bad: None,
            reads: Rc::default(),
        }
    }
}

impl BlockDevice for Ram {
    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(
        &self,
        offset_bytes: u64,
        mut buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let device = self.clone();
        async move {
            later().await;
            device.reads.set(device.reads.get() + 1);
            let (at, len) = (offset_bytes as usize, buf.len());
            let range = offset_bytes..offset_bytes + len as u64;
            if device.bad.is_some_and(|bad| range.contains(&bad)) {
                return (buf, Err(io::Error::other("a bad sector")));
            }
            buf.bytes_mut().copy_from_slice(&device.bytes[at..at + len]);
            (buf, Ok(()))
        }
    }

    fn write(&self, _: u64, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        ready((buf, Err(read_only())))
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static {
        ready(Err(read_only()))
    }

    fn discard(&self, _: u64, _: u64) -> impl Future<Output = io::Result<()>> + 'static {
        ready(Err(read_only()))
    }

    fn preallocate(&self, _: u64, _: u64) -> impl Future<Output = io::Result<()>> + 'static {
        ready(Err(read_only()))
    }

    fn is_allocated(&self, _: u64, _: u64) -> bool {
        false
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "it is only read")
}

/// Is ready the second time.
async fn later() {
    let mut is_new = true;
    std::future::poll_fn(|_| match std::mem::take(&mut is_new) {
        true => Poll::Pending,
        false => Poll::Ready(()),
    })
    .await;
}

/// Runs futures in turn, each one step at a time, until all have ended.
fn run_all<T>(futures: Vec<Pin<Box<dyn Future<Output = T>>>>) -> Vec<T> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut running: Vec<_> = futures.into_iter().map(|f| (Some(f), None)).collect();
    for _ in 0..10_000 {
        for (future, output) in &mut running {
            if let Some(running) = future
                && let Poll::Ready(done) = running.as_mut().poll(&mut cx)
            {
                (*future, *output) = (None, Some(done));
            }
        }
        if running.iter().all(|(_, output)| output.is_some()) {
            return running.into_iter().filter_map(|(_, done)| done).collect();
        }
    }
    panic!("it goes on");
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut cx = Context::from_waker(Waker::noop());
    let mut future = pin!(future);
    for _ in 0..10_000 {
        if let Poll::Ready(done) = future.as_mut().poll(&mut cx) {
            return done;
        }
    }
    panic!("it goes on");
}

fn read(device: &Overlay<Ram>, offset_bytes: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut buf = IoBuf::zeroed(len);
    // What was in the buffer before must not shine through.
    buf.bytes_mut().fill(0xee);
    let (buf, result) = run(device.read(offset_bytes, buf));
    result.map(|()| buf.to_vec())
}

fn write(device: &Overlay<Ram>, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
    run(device.write(offset_bytes, IoBuf::copy_of(bytes))).1
}

/// Numbers that look drawn and are the same each time.
struct Drawn(u64);

impl Drawn {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }

    /// A range of whole sectors, of some blocks at most.
    fn range(&mut self, size_bytes: u64) -> Range<u64> {
        let sectors = size_bytes / SECTOR_BYTES;
        let (mut start, mut len) = (self.below(sectors), 1 + self.below(30));
        if self.below(3) == 0 {
            // Whole blocks.
            (start, len) = (start / 8 * 8, len.div_ceil(8) * 8);
        }
        let end = (start + len).min(sectors);
        start * SECTOR_BYTES..end * SECTOR_BYTES
    }
}

/// What the device should be, and what it is.
struct Pair {
    device: Overlay<Ram>,
    array: Vec<u8>,
}

impl Pair {
    fn compare(&self, range: Range<u64>, what: &str) {
        let found = read(
            &self.device,
            range.start,
            (range.end - range.start) as usize,
        );
        let wanted = &self.array[range.start as usize..range.end as usize];
        assert!(found.expect("reads") == wanted, "{what}: {range:?}");
    }

    /// What is to be written there: drawn, zeros, or what is there below.
    fn data(&self, drawn: &mut Drawn, below: &[u8], range: &Range<u64>) -> Vec<u8> {
        let place = range.start as usize..range.end as usize;
        match drawn.below(4) {
            0 => vec![0; place.len()],
            1 => below[place].to_vec(),
            _ => drawn.bytes(place.len()),
        }
    }

    fn put(&mut self, range: &Range<u64>, data: &[u8]) {
        self.array[range.start as usize..range.end as usize].copy_from_slice(data);
    }
}

#[test]
fn whatever_is_done_it_reads_as_an_array_does() {
    for seed in 1..=300_u64 {
        let mut drawn = Drawn(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Its last block may be a part of one.
        let size_bytes = (8 + drawn.below(100)) * SECTOR_BYTES;
        let below = drawn.bytes(size_bytes as usize);
        let ram = Ram::new(below.clone());
        let mut pair = Pair {
            device: Overlay::new(ram.clone(), u64::MAX),
            array: below.clone(),
        };
        for step in 0..80 {
            let what = format!("seed {seed}, step {step}");
            let range = drawn.range(size_bytes);
            match drawn.below(8) {
                0..4 => {
                    let data = pair.data(&mut drawn, &below, &range);
                    write(&pair.device, range.start, &data).expect("writes");
                    pair.put(&range, &data);
                }
                4 => {
                    let done = run(pair.device.discard(range.start, range.end - range.start));
                    done.expect("forgets");
                    let first = range.start.next_multiple_of(BLOCK);
                    let end = match range.end == size_bytes {
                        true => range.end,
                        false => range.end / BLOCK * BLOCK,
                    };
                    if first < end {
                        pair.put(&(first..end), &vec![0; (end - first) as usize]);
                    }
                }
                5 => run(pair.device.flush()).expect("flushes"),
                _ => pair.compare(range, &what),
            }
            if drawn.below(10) == 0 {
                pair.compare(0..size_bytes, &what);
            }
        }
        pair.compare(0..size_bytes, &format!("seed {seed}, in the end"));
        assert!(*ram.bytes == below, "the device below is what it was");
    }
}

/// Of writes that are under way at the same time, each to its own sectors, perhaps of the same block, none undoes another.
#[test]
fn writes_side_by_side_are_all_there() {
    for seed in 1..=300_u64 {
        let mut drawn = Drawn(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let size_bytes = 6 * BLOCK + 3 * SECTOR_BYTES;
        let below = drawn.bytes(size_bytes as usize);
        let mut pair = Pair {
            device: Overlay::new(Ram::new(below.clone()), u64::MAX),
            array: below.clone(),
        };
        for _ in 0..6 {
            let mut at = 0;
            let mut writes: Vec<Pin<Box<dyn Future<Output = bool>>>> = Vec::new();
            while at < size_bytes {
                let len = (1 + drawn.below(12)) * SECTOR_BYTES;
                let range = at..(at + len).min(size_bytes);
                at = range.end;
                if drawn.below(3) == 0 {
                    continue;
                }
                let data = pair.data(&mut drawn, &below, &range);
                pair.put(&range, &data);
                let write = pair.device.write(range.start, IoBuf::copy_of(&data));
                writes.push(Box::pin(async move { write.await.1.is_ok() }));
            }
            assert!(run_all(writes).into_iter().all(|is_done| is_done));
            pair.compare(0..size_bytes, &format!("seed {seed}"));
        }
    }
}

#[test]
fn only_what_differs_takes_memory() {
    let below = Drawn(7).bytes(100 * BLOCK as usize);
    let device = Overlay::new(Ram::new(below.clone()), u64::MAX);
    write(&device, 0, &below).expect("writes");
    assert_eq!(device.kept_bytes(), 0, "it is all there already");
    let mut changed = below.clone();
    changed[5 * BLOCK as usize] ^= 1;
    write(&device, 0, &changed).expect("writes");
    assert_eq!(device.kept_bytes(), BLOCK + PLACE_BYTES);
    assert_eq!(read(&device, 0, changed.len()).expect("reads"), changed);
    // Again over what is kept: it is what counts, whatever lies below.
    write(&device, 5 * BLOCK, &below[5 * BLOCK as usize..][..512]).expect("writes");
    assert_eq!(read(&device, 0, below.len()).expect("reads"), below);
    write(&device, 0, &vec![0; below.len()]).expect("writes");
    assert_eq!(device.kept_bytes(), 100 * PLACE_BYTES);
    assert!(
        read(&device, 0, below.len())
            .expect("reads")
            .iter()
            .all(|b| *b == 0)
    );
}

#[test]
fn it_never_takes_more_memory_than_it_may() {
    let max_bytes = 10 * (BLOCK + PLACE_BYTES);
    let below = vec![1; 100 * BLOCK as usize];
    let device = Overlay::new(Ram::new(below.clone()), max_bytes);
    write(&device, 0, &vec![2; 10 * BLOCK as usize]).expect("writes");
    assert!(!device.is_full());
    let refused = write(&device, 50 * BLOCK, &[2; 4096]).expect_err("there is no room");
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert!(device.is_full());
    // What is there can be written again, and what is a part of it.
    write(&device, 0, &vec![3; 10 * BLOCK as usize]).expect("writes");
    write(&device, BLOCK, &[4; 512]).expect("writes");
    run(device.discard(0, 100 * BLOCK)).expect("a hint is no promise");
    assert_eq!(read(&device, 0, 512).expect("reads"), [3; 512]);
    assert_eq!(device.kept_bytes(), max_bytes);
    // Zeros make room.
    write(&device, 0, &[0; 8192]).expect("writes");
    write(&device, 50 * BLOCK, &[5; 4096]).expect("writes");
    assert_eq!(read(&device, 50 * BLOCK, 4096).expect("reads"), [5; 4096]);
}

#[test]
fn what_was_written_can_be_read_where_the_device_below_can_not() {
    let bad = 3 * BLOCK + 512;
    let ram = Ram {
        bad: Some(bad),
        ..Ram::new(vec![1; 8 * BLOCK as usize])
    };
    let device = Overlay::new(ram.clone(), u64::MAX);
    read(&device, 3 * BLOCK, 4096).expect_err("it is bad");
    read(&device, bad, 512).expect_err("it still is");
    let (count, first) = device.failed_reads();
    let first = first.expect("one failed");
    assert_eq!(count, 2);
    assert_eq!((first.offset_bytes, first.len_bytes), (3 * BLOCK, BLOCK));
    assert_eq!(first.error, "a bad sector");
    write(&device, bad, &[7; 512]).expect("writes");
    let block = read(&device, 2 * BLOCK, 8192).expect("only the bad sector is needed from here");
    assert!(block[..4096 + 512].iter().all(|b| *b == 1));
    assert!(block[4096 + 512..4096 + 1024].iter().all(|b| *b == 7));
    assert!(block[4096 + 1024..].iter().all(|b| *b == 1));
    // All of a block that can't be compared.
    let other = Overlay::new(ram.clone(), u64::MAX);
    write(&other, 3 * BLOCK, &[1; 4096]).expect("writes");
    assert_eq!(read(&other, 3 * BLOCK, 4096).expect("reads"), [1; 4096]);
    assert_eq!(other.failed_reads(), (0, None), "nobody asked for it");
    let reads = ram.reads.get();
    read(&other, 3 * BLOCK, 4096).expect("reads");
    assert_eq!(ram.reads.get(), reads, "it isn't asked in vain");
}

#[test]
fn what_is_no_place_of_the_device_is_refused() {
    let device = Overlay::new(Ram::new(vec![0; 8 * BLOCK as usize + 512]), u64::MAX);
    let end = device.size_bytes();
    let refused = |offset: u64, len: usize| {
        let kinds = [
            read(&device, offset, len).expect_err("refused").kind(),
            write(&device, offset, &vec![1; len])
                .expect_err("refused")
                .kind(),
            run(device.discard(offset, len as u64))
                .expect_err("refused")
                .kind(),
            run(device.preallocate(offset, len as u64))
                .expect_err("refused")
                .kind(),
        ];
        assert_eq!(kinds, [io::ErrorKind::InvalidInput; 4], "{len} at {offset}");
    };
    refused(end, 512);
    refused(end - 512, 1024);
    refused(u64::MAX - 511, 512);
    refused(1, 512);
    refused(0, 100);
    assert_eq!(device.kept_bytes(), 0);
    write(&device, end - 512, &[9; 512]).expect("the last sector");
    assert_eq!(read(&device, end - 512, 512).expect("reads"), [9; 512]);
    assert_eq!(read(&device, end, 0).expect("nothing"), [0; 0]);
    let gathered = [IoBuf::copy_of(&[1; 512]), IoBuf::copy_of(&[2; 1024])];
    let done = run(device.write_gathered(BLOCK - 512, gathered.to_vec())).1;
    done.expect("writes");
    let found = read(&device, BLOCK - 512, 1536).expect("reads");
    assert_eq!((found[511], found[512], found[1535]), (1, 2, 2));
    assert!(device.is_allocated(0, end));
}
