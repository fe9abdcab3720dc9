//! NBD as the load speaks it: simple replies.

use anyhow::{Context, Result, ensure};

use super::load::{Ask, Line, Protocol, prepare};
use crate::e2e::nbd::{Command, Connection, REPLY_MAGIC, request};

/// A simple reply, without its data.
const HEAD_BYTES: usize = 16;

/// Remembers how long the reads in flight are: a reply doesn't say.
#[derive(Default)]
pub(super) struct Nbd {
    follow_bytes: Vec<usize>,
}

/// Connects to an export.
pub(super) fn open(port: u16, export: &str, seed: u64) -> Result<Line<Nbd>> {
    let connection = Connection::open(port, export)?;
    let stream = connection.into_stream();
    prepare(&stream)?;
    Ok(Line::new(stream, Nbd::default(), seed))
}

impl Protocol for Nbd {
    const HEAD_BYTES: usize = HEAD_BYTES;

    fn put(&mut self, ask: &Ask, data: &[u8], out: &mut Vec<u8>) {
        let (command, follow_bytes) = match ask.is_write {
            true => (Command::Write, 0),
            false => (Command::Read, ask.len_bytes as usize),
        };
        if self.follow_bytes.len() <= ask.slot {
            self.follow_bytes.resize(ask.slot + 1, 0);
        }
        self.follow_bytes[ask.slot] = follow_bytes;
        let slot = ask.slot as u64;
        let head = request(0, command as u16, slot, ask.offset_bytes, ask.len_bytes);
        out.extend(head);
        out.extend(data);
    }

    fn read_head(&mut self, head: &[u8]) -> Result<(usize, usize)> {
        let head: [u8; HEAD_BYTES] = head.try_into().context("the head of a reply")?;
        let [a, b, c, d, e, f, g, h, handle @ ..] = head;
        ensure!(
            u32::from_be_bytes([a, b, c, d]) == REPLY_MAGIC,
            "what came is no reply"
        );
        let error = u32::from_be_bytes([e, f, g, h]);
        ensure!(error == 0, "the server answered with error {error}");
        let slot = usize::try_from(u64::from_be_bytes(handle)).unwrap_or(usize::MAX);
        let follow_bytes = self.follow_bytes.get(slot).copied();
        Ok((slot, follow_bytes.context("a reply to what nobody asked")?))
    }
}
