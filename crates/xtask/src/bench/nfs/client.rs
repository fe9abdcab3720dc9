//! One connection with many calls in flight, from one thread.
//!
//! The client's own cost is small and the same for every server: calls are written side by side into one
//! buffer, which goes out before the client waits, and answers are read where they lie. Nothing is cached, and
//! no call is sent that the load did not ask for.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use super::wire::{Answer, Calls, Handle, Program, first_record, procedure};

/// A server that says nothing for so long is taken to be stuck.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// A megabyte of data for each of a few calls fits.
const RECEIVE_BYTES: usize = 8 << 20;
/// Slots of operations in flight; the low bits of a call's number say which is meant.
const SLOTS_MAX: usize = 256;

/// What an answer has led to.
pub(crate) enum Step {
    /// The operation goes on with the call that was written.
    Goes,
    /// It is done, and counts that much.
    Done(u64),
}

/// What is done over and over.
pub(crate) trait Work {
    /// Writes the first call of a slot's next operation. False if there is nothing left to do.
    fn start(&mut self, slot: usize, line: &mut Line) -> bool;

    /// Takes the answer to a slot's last call; an operation of several calls writes its next one.
    fn take(&mut self, slot: usize, answer: Answer, line: &mut Line) -> Result<Step>;
}

/// The calls of one connection.
pub(crate) struct Line {
    calls: Calls,
    next: u32,
}

impl Line {
    /// Writes one call of NFS for a slot.
    pub(crate) fn call(&mut self, slot: usize, number: u32, arguments: impl FnOnce(&mut Calls)) {
        self.call_program(slot, Program::Nfs, number, arguments);
    }

    fn call_program(
        &mut self,
        slot: usize,
        program: Program,
        procedure: u32,
        arguments: impl FnOnce(&mut Calls),
    ) {
        // No number comes twice: a server may answer a repeated one with what it gave the first time.
        self.next = self.next.wrapping_add(1);
        let number = self.next.wrapping_mul(SLOTS_MAX as u32) | slot as u32;
        let at = self.calls.begin(number, program, procedure);
        arguments(&mut self.calls);
        self.calls.end(at);
    }
}

/// What a load gave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) operations: u64,
    pub(crate) seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// A connection to a server.
pub(crate) struct Connection {
    stream: TcpStream,
    line: Line,
    received: Vec<u8>,
    from: usize,
    to: usize,
    joined: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("connecting to port {port}"))?;
        stream.set_nodelay(true).context("setting TCP_NODELAY")?;
        stream
            .set_read_timeout(Some(SILENCE_MAX))
            .context("setting a limit for answers")?;
        // A connection begins at a number that those before it are unlikely to have used.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let next = now.map_or(0, |since| since.subsec_nanos() ^ since.as_secs() as u32);
        Ok(Connection {
            stream,
            line: Line {
                calls: Calls::default(),
                next: next & 0x00ff_ffff,
            },
            received: vec![0; RECEIVE_BYTES],
            from: 0,
            to: 0,
            joined: Vec::new(),
        })
    }

    /// The handle of an export.
    pub(crate) fn mount(&mut self, path: &str) -> Result<Handle> {
        self.line
            .call_program(0, Program::Mount, procedure::MNT, |out| {
                out.opaque(path.as_bytes());
            });
        self.once(|mut answer| {
            answer.must_be_ok(&format!("mounting {path}"))?;
            answer.handle()
        })
    }

    /// One call, waited for.
    pub(crate) fn call<T>(
        &mut self,
        number: u32,
        arguments: impl FnOnce(&mut Calls),
        read: impl FnOnce(Answer) -> Result<T>,
    ) -> Result<T> {
        self.line.call(0, number, arguments);
        self.once(read)
    }

    fn once<T>(&mut self, read: impl FnOnce(Answer) -> Result<T>) -> Result<T> {
        self.send()?;
        loop {
            let bytes = &self.received[self.from..self.to];
            if let Some((record, len)) = first_record(bytes, &mut self.joined) {
                let (_, answer) = Answer::open(record)?;
                let result = read(answer);
                self.from += len;
                return result;
            }
            self.receive()?;
        }
    }

    /// Makes a directory.
    pub(crate) fn make_directory(&mut self, parent: &Handle, name: &str) -> Result<Handle> {
        let arguments = |out: &mut Calls| {
            out.opaque(&parent.0);
            out.opaque(name.as_bytes());
            out.attributes(0o755, None);
        };
        self.call(procedure::MKDIR, arguments, |mut answer| {
            answer.must_be_ok(&format!("making directory {name}"))?;
            answer.new_handle()
        })
    }

    /// Makes a file, or takes the one that is there.
    pub(crate) fn make_file(&mut self, parent: &Handle, name: &str) -> Result<Handle> {
        let arguments = |out: &mut Calls| {
            out.opaque(&parent.0);
            out.opaque(name.as_bytes());
            out.word(0);
            out.attributes(0o644, None);
        };
        self.call(procedure::CREATE, arguments, |mut answer| {
            answer.must_be_ok(&format!("making file {name}"))?;
            answer.new_handle()
        })
    }

    /// Makes stable what was written to a file.
    pub(crate) fn commit(&mut self, file: &Handle) -> Result<()> {
        let arguments = |out: &mut Calls| {
            out.opaque(&file.0);
            out.long(0);
            out.word(0);
        };
        self.call(procedure::COMMIT, arguments, |mut answer| {
            answer.must_be_ok("COMMIT")
        })
    }

    /// Keeps `depth` operations in flight until the time is over or nothing is left to do.
    pub(crate) fn run(
        &mut self,
        work: &mut dyn Work,
        depth: usize,
        limit: Option<Duration>,
    ) -> Result<Outcome> {
        ensure!(
            depth > 0 && depth <= SLOTS_MAX,
            "depth {depth} is not from 1 to {SLOTS_MAX}"
        );
        let began = Instant::now();
        let is_over = |now: Instant| limit.is_some_and(|limit| now - began >= limit);
        let mut started = vec![began; depth];
        let (mut in_flight, mut operations) = (0, 0);
        let mut latencies_ns: Vec<u64> = Vec::with_capacity(1 << 16);
        for slot in 0..depth {
            in_flight += usize::from(work.start(slot, &mut self.line));
        }
        while in_flight > 0 {
            self.send()?;
            self.receive()?;
            while let Some((record, len)) =
                first_record(&self.received[self.from..self.to], &mut self.joined)
            {
                let (number, answer) = Answer::open(record)?;
                let slot = number as usize % SLOTS_MAX;
                let step = work.take(slot, answer, &mut self.line)?;
                self.from += len;
                let Step::Done(units) = step else { continue };
                let now = Instant::now();
                operations += units;
                latencies_ns.push((now - started[slot]).as_nanos() as u64);
                started[slot] = now;
                if is_over(now) || !work.start(slot, &mut self.line) {
                    in_flight -= 1;
                }
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        ensure!(operations > 0, "nothing was done");
        latencies_ns.sort_unstable();
        let at = |part: f64| {
            let index = (latencies_ns.len() as f64 * part) as usize;
            latencies_ns.get(index).copied().unwrap_or_default() as f64 / 1e3
        };
        Ok(Outcome {
            operations,
            seconds,
            p50_us: at(0.5),
            p99_us: at(0.99),
        })
    }

    fn send(&mut self) -> Result<()> {
        if !self.line.calls.bytes.is_empty() {
            self.stream
                .write_all(&self.line.calls.bytes)
                .context("sending calls")?;
            self.line.calls.bytes.clear();
        }
        Ok(())
    }

    /// Waits for more bytes.
    fn receive(&mut self) -> Result<()> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.to == self.received.len() {
            self.received.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            ensure!(
                self.to < self.received.len(),
                "an answer is longer than {RECEIVE_BYTES} bytes"
            );
        }
        let count = self
            .stream
            .read(&mut self.received[self.to..])
            .context("waiting for an answer")?;
        if count == 0 {
            bail!("the server closed the connection");
        }
        self.to += count;
        Ok(())
    }
}
