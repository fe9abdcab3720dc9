//! Calls of one kind, as many in flight as is asked for, and lists of directories.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::bench::nfs::client::{Connection, Line, Outcome, Step, Work};
use crate::bench::nfs::data::written;
use crate::bench::nfs::wire::{Answer, Calls, Handle, Stability, procedure};

/// What a list may take at a time, as Linux' client asks for it and more than that.
const LIST_BYTES: u32 = 64 << 10;

/// One call for each thing.
struct Each<I, N, C, T> {
    number: u32,
    things: N,
    arguments: C,
    take: T,
    in_flight: Vec<Option<I>>,
}

impl<I, N, C, T> Work for Each<I, N, C, T>
where
    N: Iterator<Item = I>,
    C: FnMut(&I, &mut Calls),
    T: FnMut(I, Answer) -> Result<()>,
{
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        let Some(thing) = self.things.next() else {
            return false;
        };
        line.call(slot, self.number, |out| (self.arguments)(&thing, out));
        if self.in_flight.len() <= slot {
            self.in_flight.resize_with(slot + 1, || None);
        }
        self.in_flight[slot] = Some(thing);
        true
    }

    fn take(&mut self, slot: usize, answer: Answer, _line: &mut Line) -> Result<Step> {
        let thing = self.in_flight[slot].take();
        (self.take)(thing.context("an answer to nothing")?, answer)?;
        Ok(Step::Done(1))
    }
}

fn each<I>(
    connection: &mut Connection,
    depth: usize,
    number: u32,
    things: impl Iterator<Item = I>,
    arguments: impl FnMut(&I, &mut Calls),
    take: impl FnMut(I, Answer) -> Result<()>,
) -> Result<Outcome> {
    let mut work = Each {
        number,
        things,
        arguments,
        take,
        in_flight: Vec::new(),
    };
    connection.run(&mut work, depth, None)
}

fn place(directory: &Handle, name: &str, out: &mut Calls) {
    out.opaque(&directory.0);
    out.opaque(name.as_bytes());
}

/// Makes files that are not there yet; shows the handle of each.
pub(super) fn create(
    connection: &mut Connection,
    directory: &Handle,
    names: impl Iterator<Item = String>,
    depth: usize,
    mut made: impl FnMut(&str, Handle),
) -> Result<Outcome> {
    let arguments = |name: &String, out: &mut Calls| {
        place(directory, name, out);
        // Guarded.
        out.word(1);
        out.attributes(0o644, None);
    };
    each(
        connection,
        depth,
        procedure::CREATE,
        names,
        arguments,
        |name, mut answer| {
            answer.must_be_ok(&format!("CREATE of {name}"))?;
            made(&name, answer.new_handle()?);
            Ok(())
        },
    )
}

pub(super) fn remove(
    connection: &mut Connection,
    directory: &Handle,
    names: impl Iterator<Item = String>,
    depth: usize,
) -> Result<Outcome> {
    let arguments = |name: &String, out: &mut Calls| place(directory, name, out);
    each(
        connection,
        depth,
        procedure::REMOVE,
        names,
        arguments,
        |name, mut answer| answer.must_be_ok(&format!("REMOVE of {name}")),
    )
}

pub(super) fn look_up(
    connection: &mut Connection,
    directory: &Handle,
    names: impl Iterator<Item = String>,
    depth: usize,
) -> Result<Outcome> {
    let arguments = |name: &String, out: &mut Calls| place(directory, name, out);
    each(
        connection,
        depth,
        procedure::LOOKUP,
        names,
        arguments,
        |name, mut answer| {
            answer.must_be_ok(&format!("LOOKUP of {name}"))?;
            answer.handle().map(drop)
        },
    )
}

/// The handle of one name, or the status that says why not.
pub(super) fn look_up_one(
    connection: &mut Connection,
    directory: &Handle,
    name: &str,
) -> Result<Result<Handle, u32>> {
    connection.call(
        procedure::LOOKUP,
        |out| place(directory, name, out),
        |mut answer| match answer.word()? {
            0 => Ok(Ok(answer.handle()?)),
            status => Ok(Err(status)),
        },
    )
}

/// The status of a GETATTR.
pub(super) fn status_of(connection: &mut Connection, file: &Handle) -> Result<u32> {
    connection.call(
        procedure::GETATTR,
        |out| out.opaque(&file.0),
        |mut answer| answer.word(),
    )
}

/// Writes that are stable when answered: file, place and bytes.
pub(super) fn write(
    connection: &mut Connection,
    writes: impl Iterator<Item = (Handle, u64, Vec<u8>)>,
    depth: usize,
) -> Result<Outcome> {
    let arguments = |(file, place, data): &(Handle, u64, Vec<u8>), out: &mut Calls| {
        out.opaque(&file.0);
        out.long(*place);
        out.word(data.len() as u32);
        out.word(Stability::FileSync as u32);
        out.opaque(data);
    };
    each(
        connection,
        depth,
        procedure::WRITE,
        writes,
        arguments,
        |(_, _, data), mut answer| written(&mut answer, data.len() as u64, Stability::FileSync),
    )
}

/// Reads of what is known to be there: file, place and bytes.
pub(super) fn read(
    connection: &mut Connection,
    reads: impl Iterator<Item = (Handle, u64, Vec<u8>)>,
    depth: usize,
) -> Result<Outcome> {
    let arguments = |(file, place, expected): &(Handle, u64, Vec<u8>), out: &mut Calls| {
        out.opaque(&file.0);
        out.long(*place);
        out.word(expected.len() as u32);
    };
    each(
        connection,
        depth,
        procedure::READ,
        reads,
        arguments,
        |(_, place, expected), mut answer| {
            answer.must_be_ok("READ")?;
            answer.skip_attributes()?;
            let (_count, _at_end) = (answer.word()?, answer.word()?);
            let found = answer.opaque()?;
            ensure!(
                found == expected,
                "a READ at {place} gave {} bytes that are not the {} which were written: {:02x?} in place of {:02x?}",
                found.len(),
                expected.len(),
                &found[..found.len().min(16)],
                &expected[..expected.len().min(16)]
            );
            Ok(())
        },
    )
}

/// Lists a whole directory, one call after the other, and shows each name but `.` and `..`. Returns how many there
/// were, and how many seconds it took.
pub(super) fn list(
    connection: &mut Connection,
    directory: &Handle,
    is_plus: bool,
    mut show: impl FnMut(&[u8]) -> Result<()>,
) -> Result<(u64, f64)> {
    let began = Instant::now();
    let (mut cookie, mut verifier, mut shown) = (0, 0, 0);
    let number = match is_plus {
        true => procedure::READDIRPLUS,
        false => procedure::READDIR,
    };
    loop {
        let arguments = |out: &mut Calls| {
            out.opaque(&directory.0);
            out.long(cookie);
            out.long(verifier);
            if is_plus {
                // Of names alone.
                out.word(LIST_BYTES / 2);
            }
            out.word(LIST_BYTES);
        };
        let mut count = 0;
        let (last, found_verifier, is_end) = connection.call(number, arguments, |mut answer| {
            answer.must_be_ok("listing a directory")?;
            answer.skip_attributes()?;
            let verifier = answer.long()?;
            let (entries, last, is_end) = answer.each_entry(is_plus, |name| {
                if name != b"." && name != b".." {
                    count += 1;
                    show(name)?;
                }
                Ok(())
            })?;
            ensure!(
                entries > 0 || is_end,
                "a listing gave no entry and isn't at its end"
            );
            Ok((last, verifier, is_end))
        })?;
        shown += count;
        if is_end {
            return Ok((shown, began.elapsed().as_secs_f64()));
        }
        (cookie, verifier) = (last, found_verifier);
    }
}
