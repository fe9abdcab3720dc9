//! A tenant that uses a filesystem: one connection of NFS that reads and writes blocks of a large file, at random places and each write
//! stable, with a fixed number of calls in flight in each third.

use std::time::Duration;

use anyhow::{Context, Result};

use super::device::Device;
use super::load::{Answer, BLOCK_BYTES, Clock, Tenant};
use crate::bench::nfs::client::{Connection, Line, Step, Work};
use crate::bench::nfs::data::{Random, written};
use crate::bench::nfs::wire::{self, Handle, Stability, procedure};
use crate::daemon::Node;

/// In the filesystem's topmost directory.
const FILE: &str = "file";
const FILL_BYTES: u64 = 1 << 20;
const FILL_DEPTH: usize = 8;

/// Has the node hold next to nothing of files in memory: what is read is to come from the device, as with volumes.
pub(super) const ARGUMENTS: [&str; 2] = ["--block-cache", "1M"];

/// Makes the filesystem, and a file of so many bytes without holes.
pub(super) fn prepare(node: &Node, tenant: &Tenant, bytes: u64) -> Result<()> {
    let share = tenant.share.to_string();
    node.run(&["fs", "create", &tenant.name, "--share", &share])?;
    let port = port_of(node)?;
    let mut connection = Connection::open(port)?;
    let top = connection.mount(&path_of(tenant))?;
    let file = connection.make_file(&top, FILE)?;
    let mut fill = Fill {
        file: &file,
        payload: vec![0x5a; FILL_BYTES as usize],
        next: 0,
        bytes,
    };
    connection
        .run(&mut fill, FILL_DEPTH, None)
        .with_context(|| format!("filling a file of filesystem `{}`", tenant.name))?;
    connection.commit(&file)
}

pub(super) fn port_of(node: &Node) -> Result<u16> {
    node.nfs_port.context("the node serves no NFS")
}

fn path_of(tenant: &Tenant) -> String {
    format!("/{}", tenant.name)
}

/// Puts the tenant's load on its file, and returns the answers. Between two thirds its calls in flight are answered before
/// others are sent.
pub(super) fn drive(
    port: u16,
    tenant: &Tenant,
    device: &Device,
    bytes: u64,
    clock: Clock,
    seed: u64,
) -> Result<Vec<Answer>> {
    let mut connection = Connection::open(port)?;
    let top = connection.mount(&path_of(tenant))?;
    let file = connection.make_file(&top, FILE)?;
    let largest = tenant.mix.blocks.iter().copied().max().unwrap_or(1);
    let mut load = Load {
        file: &file,
        tenant,
        device,
        clock,
        random: Random::new(seed),
        blocks: bytes / BLOCK_BYTES,
        payload: vec![0xa5; (largest * BLOCK_BYTES) as usize],
        sent: Vec::new(),
        answers: Vec::new(),
    };
    let thirds = [
        (tenant.depth, clock.burst_ns()),
        (tenant.burst_depth, clock.burst_end_ns()),
        (tenant.depth, clock.end_ns()),
    ];
    for (depth, until_ns) in thirds {
        let left = Duration::from_nanos(until_ns.saturating_sub(clock.now_ns()));
        connection.run(&mut load, depth, Some(left))?;
    }
    Ok(load.answers)
}

fn put_write(out: &mut wire::Calls, file: &Handle, at: u64, data: &[u8], stability: Stability) {
    out.opaque(&file.0);
    out.long(at);
    out.word(data.len() as u32);
    out.word(stability as u32);
    out.opaque(data);
}

/// Writes all of the file, once.
struct Fill<'a> {
    file: &'a Handle,
    payload: Vec<u8>,
    next: u64,
    bytes: u64,
}

impl Work for Fill<'_> {
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        if self.next >= self.bytes {
            return false;
        }
        let at = self.next;
        self.next += FILL_BYTES;
        let (file, data) = (self.file, &self.payload);
        line.call(slot, procedure::WRITE, |out| {
            put_write(out, file, at, data, Stability::Unstable);
        });
        true
    }

    fn take(&mut self, _: usize, mut answer: wire::Answer, _: &mut Line) -> Result<Step> {
        written(&mut answer, FILL_BYTES, Stability::Unstable)?;
        Ok(Step::Done(1))
    }
}

#[derive(Clone, Copy, Default)]
struct Sent {
    at_ns: u64,
    is_write: bool,
    blocks: u64,
}

struct Load<'a> {
    file: &'a Handle,
    tenant: &'a Tenant,
    device: &'a Device,
    clock: Clock,
    random: Random,
    /// Of the file.
    blocks: u64,
    payload: Vec<u8>,
    /// Of each slot's last call.
    sent: Vec<Sent>,
    answers: Vec<Answer>,
}

impl Work for Load<'_> {
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        let mix = &self.tenant.mix;
        let is_write = self.random.below(100) < mix.writes;
        let choice = self.random.below(mix.blocks.len() as u64) as usize;
        let blocks = mix.blocks.get(choice).copied().unwrap_or(1);
        let at = self.random.below(self.blocks - blocks) * BLOCK_BYTES;
        if self.sent.len() <= slot {
            self.sent.resize(slot + 1, Sent::default());
        }
        self.sent[slot] = Sent {
            at_ns: self.clock.now_ns(),
            is_write,
            blocks,
        };
        let len = (blocks * BLOCK_BYTES) as usize;
        let (file, data) = (self.file, &self.payload[..len]);
        match is_write {
            true => line.call(slot, procedure::WRITE, |out| {
                put_write(out, file, at, data, Stability::FileSync);
            }),
            false => line.call(slot, procedure::READ, |out| {
                out.opaque(&file.0);
                out.long(at);
                out.word(len as u32);
            }),
        }
        true
    }

    fn take(&mut self, slot: usize, mut answer: wire::Answer, _: &mut Line) -> Result<Step> {
        let sent = self.sent[slot];
        match sent.is_write {
            true => written(&mut answer, sent.blocks * BLOCK_BYTES, Stability::FileSync)?,
            false => answer.must_be_ok("READ")?,
        }
        let now_ns = self.clock.now_ns();
        self.answers.push(Answer {
            at_ns: now_ns,
            took_ns: now_ns.saturating_sub(sent.at_ns),
            price_ns: self.device.price_ns(sent.is_write, sent.blocks),
        });
        Ok(Step::Done(1))
    }
}
