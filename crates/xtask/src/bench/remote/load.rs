//! The load: one connection that always has a number of requests in flight, whatever the protocol.
//!
//! All servers get the same loop, the same socket options and the same places, so that what differs is the server and its
//! protocol. Between two calls of [`Line::drive`] nothing is in flight. Bytes that were read are not looked at, and what is
//! written is always the same: the client shall take as little of the machine as it can.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::SockRef;

/// The largest request.
pub(in crate::bench) const REQUEST_MAX_BYTES: usize = 1 << 20;
/// Several of the largest replies of the small points, and one of the largest.
const RECEIVE_BYTES: usize = 2 << 20;
/// While the server takes no more and has no answer either.
const STUCK_PAUSE: Duration = Duration::from_micros(50);
/// A server that is silent for so long has failed.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::bench) struct Ask {
    /// Names it until it is answered; below the depth.
    pub(in crate::bench) slot: usize,
    /// Which of the volumes of this connection.
    pub(in crate::bench) place: usize,
    pub(in crate::bench) is_write: bool,
    pub(in crate::bench) offset_bytes: u64,
    pub(in crate::bench) len_bytes: u32,
}

/// How requests and replies look. Replies come in any order.
pub(in crate::bench) trait Protocol {
    /// Bytes of a reply in front of its data.
    const HEAD_BYTES: usize;

    /// False while so much is unanswered that the protocol allows no more.
    fn may_ask(&self) -> bool {
        true
    }

    /// Appends a request. `data` has as many bytes as are to be written, none for a read.
    fn put(&mut self, ask: &Ask, data: &[u8], out: &mut Vec<u8>);

    /// The slot that a reply is for, and how many bytes follow its head.
    ///
    /// # Errors
    /// What came is no reply, or says that the request failed.
    fn read_head(&mut self, head: &[u8]) -> Result<(usize, usize)>;
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::bench) struct Shape {
    pub(in crate::bench) is_write: bool,
    pub(in crate::bench) len_bytes: u32,
    /// Requests in flight.
    pub(in crate::bench) depth: usize,
    /// Volumes that are used, by chance.
    pub(in crate::bench) places: usize,
    /// How much of each, from its beginning.
    pub(in crate::bench) span_bytes: u64,
}

/// What it came to.
#[derive(Clone, Debug, Default)]
pub(in crate::bench) struct Driven {
    /// Of each request, in no order, in nanoseconds.
    pub(in crate::bench) latencies_ns: Vec<u32>,
    pub(in crate::bench) seconds: f64,
}

impl Driven {
    /// Requests a second.
    pub(in crate::bench) fn rate(&self) -> f64 {
        match self.seconds > 0.0 {
            true => self.latencies_ns.len() as f64 / self.seconds,
            false => 0.0,
        }
    }

    /// A percentile of the latency, in microseconds. Puts the latencies in order.
    pub(in crate::bench) fn percentile_us(&mut self, percent: usize) -> f64 {
        self.latencies_ns.sort_unstable();
        let last = self.latencies_ns.len().saturating_sub(1);
        let found = self.latencies_ns.get(last * percent / 100);
        found.map_or(0.0, |ns| f64::from(*ns) / 1000.0)
    }
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

/// A socket as all protocols here have it.
pub(in crate::bench) fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .with_context(|| format!("connecting to port {port}"))?;
    prepare(&stream)?;
    Ok(stream)
}

/// The options that every socket of the benchmark has.
pub(in crate::bench) fn prepare(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true).context("setting TCP_NODELAY")?;
    let limit = Some(ANSWER_LIMIT);
    stream.set_read_timeout(limit).context("a time limit")?;
    stream.set_write_timeout(limit).context("a time limit")
}

/// A connection that is ready for requests.
pub(in crate::bench) struct Line<P> {
    stream: TcpStream,
    protocol: P,
    random: Random,
    /// Written by each write.
    payload: Vec<u8>,
    /// What is to be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    from: usize,
    to: usize,
    /// A reply whose data is not all here: its slot, and what is missing.
    open: Option<(usize, usize)>,
    /// When what each slot has in flight was sent.
    slots: Vec<Option<Instant>>,
    free: Vec<usize>,
}

impl<P: Protocol> Line<P> {
    pub(in crate::bench) fn new(stream: TcpStream, protocol: P, seed: u64) -> Line<P> {
        Line {
            stream,
            protocol,
            random: Random(seed),
            payload: vec![0x5a; REQUEST_MAX_BYTES],
            out: Vec::new(),
            sent: 0,
            received: vec![0; RECEIVE_BYTES],
            from: 0,
            to: 0,
            open: None,
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Keeps requests in flight for so long, and takes the last answer.
    pub(in crate::bench) fn drive(&mut self, shape: &Shape, lasts: Duration) -> Result<Driven> {
        let places = shape.span_bytes / u64::from(shape.len_bytes.max(1));
        ensure!(places > 0, "the span holds no request of this size");
        let start = Instant::now();
        let end = start + lasts;
        let ask = |random: &mut Random, now: Instant| {
            (now < end).then(|| Ask {
                slot: 0,
                place: random.below(shape.places as u64) as usize,
                is_write: shape.is_write,
                offset_bytes: random.below(places) * u64::from(shape.len_bytes),
                len_bytes: shape.len_bytes,
            })
        };
        let latencies_ns = self.run(shape.depth, ask)?;
        Ok(Driven {
            latencies_ns,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Writes all of the span of each place, so that no read finds a hole.
    pub(in crate::bench) fn fill(&mut self, places: usize, span_bytes: u64) -> Result<()> {
        let len_bytes = span_bytes.min(REQUEST_MAX_BYTES as u64);
        ensure!(
            len_bytes > 0 && span_bytes.is_multiple_of(len_bytes),
            "a span of {span_bytes} bytes"
        );
        let mut next = (0, 0);
        let ask = |_: &mut Random, _: Instant| {
            let (place, offset_bytes) = next;
            next = match offset_bytes + len_bytes < span_bytes {
                true => (place, offset_bytes + len_bytes),
                false => (place + 1, 0),
            };
            (place < places).then_some(Ask {
                slot: 0,
                place,
                is_write: true,
                offset_bytes,
                len_bytes: len_bytes as u32,
            })
        };
        // Few of the largest: what may be in flight is limited in bytes, too.
        let depth = ((4 << 20) / len_bytes).clamp(1, 32) as usize;
        self.run(depth, ask).map(drop)
    }

    /// Asks whatever `next` says, its slot apart, until that has nothing more to say. Returns how long each took.
    fn run(
        &mut self,
        depth: usize,
        mut next: impl FnMut(&mut Random, Instant) -> Option<Ask>,
    ) -> Result<Vec<u32>> {
        self.slots = vec![None; depth];
        self.free = (0..depth).rev().collect();
        let mut latencies_ns = Vec::with_capacity(1 << 16);
        let mut over = false;
        loop {
            let now = Instant::now();
            while !over && !self.free.is_empty() && self.protocol.may_ask() {
                match next(&mut self.random, now) {
                    None => over = true,
                    Some(ask) => self.put(ask, now),
                }
            }
            if self.free.len() == depth {
                return Ok(latencies_ns);
            }
            self.exchange()?;
            self.take(Instant::now(), &mut latencies_ns)?;
        }
    }

    fn put(&mut self, ask: Ask, now: Instant) {
        let Some(slot) = self.free.pop() else { return };
        let ask = Ask { slot, ..ask };
        let data = match ask.is_write {
            true => self.payload.get(..ask.len_bytes as usize),
            false => None,
        };
        self.protocol
            .put(&ask, data.unwrap_or_default(), &mut self.out);
        self.slots[slot] = Some(now);
    }

    /// Sends what the server takes now, and waits until something has come. It doesn't wait while there is something to
    /// send: the server may take nothing before its own answers are read.
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
                let changed = self.stream.set_nonblocking(true);
                changed.context("changing a socket")?;
            }
            let received = self.stream.read(&mut self.received[self.to..]);
            if !all_sent {
                let changed = self.stream.set_nonblocking(false);
                changed.context("changing a socket")?;
            }
            match received {
                Ok(0) => bail!("the server has closed the connection"),
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
    fn take(&mut self, now: Instant, latencies_ns: &mut Vec<u32>) -> Result<()> {
        loop {
            if let Some((slot, missing)) = self.open {
                let here = missing.min(self.to - self.from);
                self.from += here;
                if here < missing {
                    self.open = Some((slot, missing - here));
                    return Ok(());
                }
                self.open = None;
                let sent = self.slots.get_mut(slot).and_then(Option::take);
                let sent = sent.with_context(|| format!("a reply to {slot}, never asked"))?;
                self.free.push(slot);
                let took_ns = now.saturating_duration_since(sent).as_nanos();
                latencies_ns.push(u32::try_from(took_ns).unwrap_or(u32::MAX));
            }
            let Some(head) = self.received[self.from..self.to].get(..P::HEAD_BYTES) else {
                return Ok(());
            };
            self.open = Some(self.protocol.read_head(head)?);
            self.from += P::HEAD_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_latencies() {
        let mut driven = Driven {
            latencies_ns: (1..=100).rev().map(|us| us * 1000).collect(),
            seconds: 2.0,
        };
        assert_eq!(driven.percentile_us(50), 50.0);
        assert_eq!(driven.percentile_us(99), 99.0);
        assert_eq!(driven.rate(), 50.0);
        assert_eq!(Driven::default().percentile_us(50), 0.0);
        assert_eq!(Driven::default().rate(), 0.0);
    }
}
