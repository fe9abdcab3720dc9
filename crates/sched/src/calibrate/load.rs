//! Requests at random places of a device, so many in flight, for so long.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::sync::{Promise, promise};
use flagstone_platform::{BlockDevice, IoBuf, Platform, Time};
use flagstone_types::BLOCK_SIZE;

use crate::SECOND_NS;

/// Of a load's time, the part after which counting begins: a fifth.
const WARM_PART: u64 = 5;
/// Between the end of a flush and the next one: enough of them to tell what they cost, and no more, since one that costs
/// nothing would keep the core busy.
const FLUSH_PAUSE_NS: u64 = 1_000_000;

/// What a load asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Writes, and flushes one after the other beside them.
    WritesAndFlushes,
}

/// The part of a device that is used: `first` to `end`, in bytes, multiples of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Where it begins.
    pub first_bytes: u64,
    /// Where it ends.
    pub end_bytes: u64,
}

/// One load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Of what.
    pub ask: Ask,
    /// Bytes of each request, a multiple of 4 KiB; at least one block, and no more than the region has.
    pub len_bytes: u64,
    /// Requests in flight; at least 1. Of flushes there is one.
    pub depth: u32,
    /// For how long, in nanoseconds. The first fifth isn't counted.
    pub run_ns: u64,
}

/// What a load gave.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Which one.
    pub load: Load,
    /// Requests answered a second, flushes not among them.
    pub per_second: f64,
    /// Flushes answered a second.
    pub flushes_per_second: f64,
    /// The time that half of the requests took at most, in nanoseconds.
    pub p50_ns: u64,
    /// The time that 99 of a hundred took at most, in nanoseconds.
    pub p99_ns: u64,
}

/// What the tasks of a load share.
struct Shared {
    /// How long each request took that was answered while it was counted.
    took_ns: Vec<u64>,
    flushes: u64,
    /// The first that failed.
    failed: Option<io::Error>,
    /// Tasks that have not ended.
    running: u32,
    /// Kept when the last of them does.
    ended: Option<Promise<()>>,
}

struct Task<P, D> {
    platform: P,
    device: D,
    region: Region,
    load: Load,
    counted: Range<Time>,
    shared: Rc<RefCell<Shared>>,
}

impl Load {
    /// Puts it on a device and waits for its end. What is written is what `payload` has, which is at least as long as a request.
    /// Fails with the first error of the device.
    pub async fn run<P: Platform, D: BlockDevice>(
        self,
        platform: &P,
        device: &D,
        region: Region,
        payload: &IoBuf,
    ) -> io::Result<Measured> {
        self.check(region, payload)?;
        let (promise, ended) = promise();
        let flusher = u32::from(self.ask == Ask::WritesAndFlushes);
        let shared = Rc::new(RefCell::new(Shared {
            took_ns: Vec::new(),
            flushes: 0,
            failed: None,
            running: self.depth + flusher,
            ended: Some(promise),
        }));
        let now = platform.now();
        let counted = now.plus_ns(self.run_ns / WARM_PART)..now.plus_ns(self.run_ns);
        for _ in 0..self.depth {
            let task = Task {
                platform: platform.clone(),
                device: device.clone(),
                region,
                load: self,
                counted: counted.clone(),
                shared: Rc::clone(&shared),
            };
            let buf = match self.ask {
                Ask::Reads => platform.buffers().take(self.len_bytes as usize),
                _ => payload.slice(0..self.len_bytes as usize),
            };
            platform.spawn(async move { task.transfers(buf).await });
        }
        if flusher > 0 {
            let task = Task {
                platform: platform.clone(),
                device: device.clone(),
                region,
                load: self,
                counted: counted.clone(),
                shared: Rc::clone(&shared),
            };
            platform.spawn(async move { task.flushes().await });
        }
        // It can't be dropped before: the tasks hold it.
        let _ = ended.await;
        let mut shared = shared.borrow_mut();
        match shared.failed.take() {
            Some(error) => Err(error),
            None => Ok(self.measured(&mut shared, counted.end.since(counted.start))),
        }
    }

    fn check(&self, region: Region, payload: &IoBuf) -> io::Result<()> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let room = region.end_bytes.saturating_sub(region.first_bytes);
        if self.depth == 0 {
            return wrong("a load has at least one request in flight");
        }
        if self.len_bytes == 0 || !self.len_bytes.is_multiple_of(BLOCK_SIZE) {
            return wrong("requests are whole blocks of 4 KiB");
        }
        if self.len_bytes > room {
            return wrong("the region is smaller than one request");
        }
        if self.ask != Ask::Reads && (payload.len() as u64) < self.len_bytes {
            return wrong("there is less to write than one request");
        }
        Ok(())
    }

    fn measured(&self, shared: &mut Shared, counted_ns: u64) -> Measured {
        shared.took_ns.sort_unstable();
        let took_ns = &shared.took_ns;
        let percentile = |percent: usize| took_ns.get(took_ns.len() * percent / 100).copied();
        let a_second = |count: u64| count as f64 * SECOND_NS as f64 / counted_ns.max(1) as f64;
        Measured {
            load: *self,
            per_second: a_second(took_ns.len() as u64),
            flushes_per_second: a_second(shared.flushes),
            p50_ns: percentile(50).unwrap_or(0),
            p99_ns: percentile(99).unwrap_or(0),
        }
    }
}

impl<P: Platform, D: BlockDevice> Task<P, D> {
    async fn transfers(self, mut buf: IoBuf) {
        loop {
            let began = self.platform.now();
            if began >= self.counted.end || self.shared.borrow().failed.is_some() {
                return self.end();
            }
            let offset_bytes = self.place();
            let (back, result) = match self.load.ask {
                Ask::Reads => self.device.read(offset_bytes, buf).await,
                _ => self.device.write(offset_bytes, buf).await,
            };
            buf = back;
            let now = self.platform.now();
            let mut shared = self.shared.borrow_mut();
            match result {
                Ok(()) if self.counted.contains(&now) => shared.took_ns.push(now.since(began)),
                Ok(()) => {}
                Err(error) => shared.failed = shared.failed.take().or(Some(error)),
            }
        }
    }

    async fn flushes(self) {
        loop {
            if self.platform.now() >= self.counted.end || self.shared.borrow().failed.is_some() {
                return self.end();
            }
            let result = self.device.flush().await;
            let counts = self.counted.contains(&self.platform.now());
            {
                let mut shared = self.shared.borrow_mut();
                match result {
                    Ok(()) => shared.flushes += u64::from(counts),
                    Err(error) => shared.failed = shared.failed.take().or(Some(error)),
                }
            }
            self.platform.sleep_ns(FLUSH_PAUSE_NS).await;
        }
    }

    /// Any place of the region where a request begins at a multiple of its length.
    fn place(&self) -> u64 {
        let room = self.region.end_bytes - self.region.first_bytes;
        let places = room / self.load.len_bytes;
        self.region.first_bytes + self.platform.random_u64() % places * self.load.len_bytes
    }

    fn end(&self) {
        let mut shared = self.shared.borrow_mut();
        shared.running -= 1;
        if shared.running == 0
            && let Some(ended) = shared.ended.take()
        {
            ended.fulfil(());
        }
    }
}
