//! A tenant: one connection of NBD that always has a number of requests in flight. ([`files`] has those of NFS.)
//!
//! A thread for each, which sends the next request as soon as one is answered. What it received is not looked at,
//! and what it writes is always the same, so that it takes as little of the machine as it can. Every answer is kept
//! with its time; what they come to is computed when all is over (`figures`).

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::SockRef;

use super::ahead;
use super::device::Device;
use super::files;
use crate::e2e::nbd::{Command, Connection, REPLY_MAGIC, request};

pub(super) const BLOCK_BYTES: u64 = 4096;
/// Several of the largest requests.
const RECEIVE_BYTES: usize = 1 << 20;
/// While the node takes no more and has no answer either.
const STUCK_PAUSE: Duration = Duration::from_micros(50);
/// A simple reply, without its data.
const HEAD_BYTES: usize = 16;
/// How large the requests are that fill a volume.
const FILL_BYTES: u64 = 1 << 20;
const FILL_DEPTH: u64 = 8;

/// What requests of a tenant are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mix {
    /// Of a hundred requests.
    pub(super) writes: u64,
    /// Blocks of a request: one of these by chance.
    pub(super) blocks: &'static [u64],
}

/// What a tenant uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Uses {
    /// A volume, over NBD.
    Volume,
    /// A file of a filesystem, over NFS.
    File,
    /// A volume that nobody has written to, from its beginning on, over NBD.
    New,
}

/// Where a node serves what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) nbd: u16,
    /// Zero if nobody uses it.
    pub(super) nfs: u16,
}

/// Someone who uses a volume, or a filesystem.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub(super) name: String,
    pub(super) uses: Uses,
    /// Parts of the device.
    pub(super) share: u32,
    /// The core that its volume is on.
    pub(super) core: u32,
    pub(super) mix: Mix,
    /// Requests in flight before and after the burst.
    pub(super) depth: usize,
    /// And while it lasts.
    pub(super) burst_depth: usize,
}

impl Tenant {
    /// Whether it is the one that bursts.
    pub(super) fn bursts(&self) -> bool {
        self.depth != self.burst_depth
    }

    fn wants_at(&self, at_ns: u64, clock: &Clock) -> usize {
        match at_ns {
            at if at >= clock.end_ns() => 0,
            at if at >= clock.burst_ns() && at < clock.burst_end_ns() => self.burst_depth,
            _ => self.depth,
        }
    }
}

/// When what happens. Times are nanoseconds since `start`; the figures begin after the warm-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) start: Instant,
    pub(super) warm_ns: u64,
    /// Before, while and after the burst: so long each.
    pub(super) third_ns: u64,
}

impl Clock {
    pub(super) fn burst_ns(&self) -> u64 {
        self.warm_ns + self.third_ns
    }

    pub(super) fn burst_end_ns(&self) -> u64 {
        self.warm_ns + 2 * self.third_ns
    }

    pub(super) fn end_ns(&self) -> u64 {
        self.warm_ns + 3 * self.third_ns
    }

    /// Sleeps until this time of the run.
    pub(super) fn wait_until(&self, at_ns: u64) {
        thread::sleep(Duration::from_nanos(at_ns.saturating_sub(self.now_ns())));
    }

    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// One request that was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    pub(super) at_ns: u64,
    pub(super) took_ns: u64,
    /// Of the device's time, by the ceiling that the node was given.
    pub(super) price_ns: u64,
}

/// Chance, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}

#[derive(Clone, Copy)]
struct Pending {
    sent_ns: u64,
    is_write: bool,
    blocks: u64,
}

/// Writes all of a volume, so that no read finds a hole.
pub(super) fn fill(port: u16, export: &str) -> Result<()> {
    let mut connection = Connection::open(port, export)?;
    let data = vec![0x5a; FILL_BYTES as usize];
    let mut at = 0;
    while at < connection.size_bytes {
        let end = (at + FILL_DEPTH * FILL_BYTES).min(connection.size_bytes);
        let places: Vec<u64> = (at..end).step_by(FILL_BYTES as usize).collect();
        connection
            .write_many(&places, &data)
            .with_context(|| format!("filling volume `{export}`"))?;
        at = end;
    }
    connection.flush().context("flushing a volume")?;
    connection.disconnect();
    Ok(())
}

/// Puts the tenants' loads on the node, each on the volume or filesystem of its name, and returns the answers of each.
pub(super) fn drive(
    ports: Ports,
    tenants: &[Tenant],
    device: &Device,
    file_bytes: u64,
    clock: Clock,
) -> Result<Vec<Vec<Answer>>> {
    thread::scope(|scope| {
        let threads: Vec<_> = tenants
            .iter()
            .enumerate()
            .map(|(number, tenant)| {
                scope.spawn(move || {
                    ahead::of_all_else();
                    let seed = 13 + number as u64;
                    match tenant.uses {
                        Uses::Volume | Uses::New => {
                            Driver::open(ports.nbd, tenant, device, clock, seed)?.run()
                        }
                        Uses::File => {
                            files::drive(ports.nfs, tenant, device, file_bytes, clock, seed)
                        }
                    }
                })
            })
            .collect();
        let answers = threads.into_iter().zip(tenants).map(|(thread, tenant)| {
            let name = &tenant.name;
            match thread.join() {
                Ok(answers) => answers.with_context(|| format!("the load on `{name}`")),
                Err(_) => bail!("the load on `{name}` panicked"),
            }
        });
        answers.collect()
    })
}

struct Driver<'a> {
    tenant: &'a Tenant,
    device: &'a Device,
    clock: Clock,
    random: Random,
    stream: TcpStream,
    volume_blocks: u64,
    /// Written for each write.
    payload: Vec<u8>,
    /// What is to be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    from: usize,
    to: usize,
    /// A reply whose data is not all here: its slot, and what is missing.
    open: Option<(usize, usize)>,
    slots: Vec<Option<Pending>>,
    free: Vec<usize>,
    in_flight: usize,
    /// Where a new volume is written next.
    next_block: u64,
    answers: Vec<Answer>,
}

impl<'a> Driver<'a> {
    fn open(
        port: u16,
        tenant: &'a Tenant,
        device: &'a Device,
        clock: Clock,
        seed: u64,
    ) -> Result<Driver<'a>> {
        let connection = Connection::open(port, &tenant.name)?;
        let volume_blocks = connection.size_bytes / BLOCK_BYTES;
        let largest = tenant.mix.blocks.iter().copied().max().unwrap_or(1);
        ensure!(
            volume_blocks > largest,
            "the volume has {volume_blocks} blocks, and requests of {largest} were asked for"
        );
        let slots = tenant.depth.max(tenant.burst_depth);
        Ok(Driver {
            tenant,
            device,
            clock,
            random: Random(seed),
            stream: connection.into_stream(),
            volume_blocks,
            payload: vec![0xa5; (largest * BLOCK_BYTES) as usize],
            out: Vec::new(),
            sent: 0,
            received: vec![0; RECEIVE_BYTES],
            from: 0,
            to: 0,
            open: None,
            slots: vec![None; slots],
            free: (0..slots).collect(),
            in_flight: 0,
            next_block: 0,
            answers: Vec::new(),
        })
    }

    fn run(mut self) -> Result<Vec<Answer>> {
        loop {
            let now_ns = self.clock.now_ns();
            self.ask(now_ns);
            if self.in_flight == 0 && now_ns < self.clock.burst_ns() {
                // It wants nothing yet.
                self.clock.wait_until(self.clock.burst_ns());
                continue;
            }
            if self.in_flight == 0 {
                let goodbye = request(0, Command::Disconnect as u16, 0, 0, 0);
                // Whether it hears that makes no difference.
                let _ = SockRef::from(&self.stream).send(&goodbye);
                return Ok(self.answers);
            }
            self.exchange()?;
            self.take(self.clock.now_ns())?;
        }
    }

    /// Writes down what it wants in flight and hasn't.
    fn ask(&mut self, now_ns: u64) {
        let wants = self.tenant.wants_at(now_ns, &self.clock);
        while self.in_flight < wants {
            let Some(slot) = self.free.pop() else { return };
            let mix = &self.tenant.mix;
            let is_write = self.random.below(100) < mix.writes;
            let choice = self.random.below(mix.blocks.len() as u64) as usize;
            let blocks = mix.blocks.get(choice).copied().unwrap_or(1);
            let first = match self.tenant.uses {
                Uses::New => {
                    let first = self.next_block % (self.volume_blocks - blocks);
                    self.next_block = first + blocks;
                    first
                }
                _ => self.random.below(self.volume_blocks - blocks),
            };
            let offset_bytes = first * BLOCK_BYTES;
            let (command, bytes) = match is_write {
                true => (Command::Write, blocks * BLOCK_BYTES),
                false => (Command::Read, blocks * BLOCK_BYTES),
            };
            let head = request(0, command as u16, slot as u64, offset_bytes, bytes as u32);
            self.out.extend(head);
            if is_write {
                self.out.extend(&self.payload[..bytes as usize]);
            }
            self.slots[slot] = Some(Pending {
                sent_ns: now_ns,
                is_write,
                blocks,
            });
            self.in_flight += 1;
        }
    }

    /// Sends what the node takes now, and waits until something has come. It doesn't wait while there is something to
    /// send: the node may take nothing before its own answers are read.
    fn exchange(&mut self) -> Result<()> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.to == self.received.len() {
            self.received.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        loop {
            let moved = self.send()?;
            let all_sent = self.out.is_empty();
            if !all_sent {
                self.stream
                    .set_nonblocking(true)
                    .context("changing a socket")?;
            }
            let received = self.stream.read(&mut self.received[self.to..]);
            if !all_sent {
                self.stream
                    .set_nonblocking(false)
                    .context("changing a socket")?;
            }
            match received {
                Ok(0) => bail!("the node has closed the connection"),
                Ok(count) => {
                    self.to += count;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !all_sent => {
                    if !moved {
                        thread::sleep(STUCK_PAUSE);
                    }
                }
                Err(error) => return Err(error).context("waiting for answers"),
            }
        }
    }

    /// Sends what can be sent without waiting. Whether that was anything.
    fn send(&mut self) -> Result<bool> {
        let mut moved = false;
        while self.sent < self.out.len() {
            let socket = SockRef::from(&self.stream);
            match socket.send_with_flags(&self.out[self.sent..], libc::MSG_DONTWAIT) {
                Ok(count) => {
                    self.sent += count;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("sending requests"),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(moved)
    }

    /// Takes all answers that are here.
    fn take(&mut self, now_ns: u64) -> Result<()> {
        loop {
            if let Some((slot, missing)) = self.open {
                let here = missing.min(self.to - self.from);
                self.from += here;
                if here < missing {
                    self.open = Some((slot, missing - here));
                    return Ok(());
                }
                self.open = None;
                self.done(slot, now_ns);
            }
            let Some(head) = self.received[self.from..self.to].first_chunk::<HEAD_BYTES>() else {
                return Ok(());
            };
            let (slot, missing) = self.read_head(*head)?;
            self.open = Some((slot, missing));
            self.from += HEAD_BYTES;
        }
    }

    /// Which slot a reply is for, and how much data comes behind it.
    fn read_head(&self, head: [u8; HEAD_BYTES]) -> Result<(usize, usize)> {
        let [a, b, c, d, e, f, g, h, handle @ ..] = head;
        ensure!(
            u32::from_be_bytes([a, b, c, d]) == REPLY_MAGIC,
            "what came is no reply"
        );
        let error = u32::from_be_bytes([e, f, g, h]);
        ensure!(error == 0, "the node answered with error {error}");
        let slot = usize::try_from(u64::from_be_bytes(handle)).unwrap_or(usize::MAX);
        let pending = self.slots.get(slot).copied().flatten();
        let pending = pending.with_context(|| format!("a reply to {slot}, never asked"))?;
        Ok(match pending.is_write {
            true => (slot, 0),
            false => (slot, (pending.blocks * BLOCK_BYTES) as usize),
        })
    }

    fn done(&mut self, slot: usize, now_ns: u64) {
        let Some(pending) = self.slots[slot].take() else {
            return;
        };
        self.free.push(slot);
        self.in_flight -= 1;
        self.answers.push(Answer {
            at_ns: now_ns,
            took_ns: now_ns.saturating_sub(pending.sent_ns),
            price_ns: self.device.price_ns(pending.is_write, pending.blocks),
        });
    }
}
