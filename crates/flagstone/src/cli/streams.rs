//! `flagstone snapshot send` and `receive`.
//!
//! Both read the stream while it passes: for the progress, and so that `send` fails if what it wrote isn't whole.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use flagstone_wire::stream::{Decoder, Event, StreamError, StreamHeader, Totals};

use super::progress::Bar;
use super::snapshot::path_of;
use crate::api::STREAM_TYPE;
use crate::client::{Client, query_value};
use crate::exit::{Exit, Failure};
use crate::name::{SnapshotRef, SourceRef, parse_name};
use crate::node::{NodeErrorKind, SnapshotInfo};
use crate::output::Output;
use crate::size::rounded;

pub(super) const SEND_EXAMPLES: &str = "\
Examples:
  flagstone snapshot send vm-1@monday --to monday.fss
  flagstone snapshot send vm-1@tuesday --since vm-1@monday --to tuesday.fss
  flagstone snapshot send vm-1@monday | ssh backup flagstone snapshot receive vm-1";

pub(super) const RECEIVE_EXAMPLES: &str = "\
Examples:
  flagstone snapshot receive copy --from monday.fss       a new volume, with snapshot copy@monday
  flagstone snapshot receive copy --from tuesday.fss      what changed; the volume still is as on monday
  flagstone snapshot receive copy@second --from tuesday.fss
  zstd -d < monday.fss.zst | flagstone snapshot receive copy";

/// Which snapshot to send, and where to.
#[derive(Args, Debug)]
pub(super) struct SendArgs {
    /// The snapshot
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    snapshot: SnapshotRef,
    /// Only what changed since this older snapshot of the same volume (VOLUME@ may be left out)
    #[arg(long, value_name = "VOLUME@OLDER")]
    since: Option<String>,
    /// The file to write; it appears under this name when it is whole. A pipe is written as it
    /// is; '-' is standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    to: PathBuf,
}

/// What to receive, and as what.
#[derive(Args, Debug)]
pub(super) struct ReceiveArgs {
    /// The volume, and what its snapshot shall be called if not as in the stream
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    volume: SourceRef,
    /// The file to read; '-' is standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    from: PathBuf,
    /// Roll the volume back to the snapshot where the stream begins, if it was changed since
    #[arg(long)]
    force: bool,
    /// The device for a new volume, by name or id [default: the node chooses]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// The core for a new volume [default: the node chooses]
    #[arg(long, value_name = "CORE")]
    core: Option<u32>,
}

fn usage(message: &str, next_step: &str) -> Failure {
    Failure {
        exit: Exit::Usage,
        message: message.to_owned(),
        next_step: next_step.to_owned(),
    }
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl SendArgs {
    /// Refuses what needs no node to be refused.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.older()?;
        if is_standard(&self.to) && io::stdout().is_terminal() {
            let message = format!(
                "sending snapshot '{}': standard output is a terminal, and a stream is no text",
                self.snapshot
            );
            let next = "name a file with --to, or pipe it into another program";
            return Err(usage(&message, next).into());
        }
        Ok(())
    }

    /// The name of the older snapshot.
    fn older(&self) -> anyhow::Result<Option<String>> {
        let Some(since) = &self.since else {
            return Ok(None);
        };
        if !since.contains('@') {
            return Ok(Some(parse_name(since)?));
        }
        let older: SnapshotRef = since.parse()?;
        if older.volume == self.snapshot.volume {
            return Ok(Some(older.snapshot));
        }
        let message = format!(
            "sending snapshot '{}': --since names a snapshot of another volume, '{older}'",
            self.snapshot
        );
        let next = "name an older snapshot of the same volume";
        Err(usage(&message, next).into())
    }
}

impl ReceiveArgs {
    /// Refuses what needs no node to be refused.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if is_standard(&self.from) && io::stdin().is_terminal() {
            let message = format!(
                "receiving volume '{}': standard input is a terminal",
                self.volume.volume
            );
            let next = "name a file with --from, or pipe a stream into it";
            return Err(usage(&message, next).into());
        }
        Ok(())
    }
}

/// Reads a stream as it passes.
struct Watch {
    decoder: Decoder,
    bar: Bar,
    header: Option<Box<StreamHeader>>,
    verb: &'static str,
}

impl Watch {
    fn new(verb: &'static str) -> Watch {
        Watch {
            decoder: Decoder::default(),
            bar: Bar::new(verb),
            header: None,
            verb,
        }
    }

    fn pass(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.decoder.push(bytes);
        while let Some(event) = self.decoder.next_event()? {
            if let Event::Header(header) = event {
                let name = format!("{} {}@{}", self.verb, header.volume, header.snapshot);
                self.bar.name(&name);
                self.header = Some(header);
            }
        }
        let totals = self.decoder.totals();
        match &self.header {
            Some(header) if header.expected_bytes > 0 => {
                self.bar.show(totals.data_bytes, header.expected_bytes);
            }
            // How much changed nobody knows before: how far it is in the volume tells something.
            Some(header) => self.bar.show(totals.end_bytes, header.size_bytes),
            None => {}
        }
        Ok(())
    }
}

/// A file that gets its name when it is whole, or what takes the stream as it comes: standard output, a pipe, a tape.
enum Sink<'a> {
    Standard(&'a mut dyn Write),
    Passing {
        file: File,
        path: &'a Path,
    },
    File {
        file: File,
        part: PathBuf,
        path: PathBuf,
    },
}

impl<'a> Sink<'a> {
    fn open(path: &'a Path, standard: &'a mut dyn Write) -> anyhow::Result<Sink<'a>> {
        if is_standard(path) {
            return Ok(Sink::Standard(standard));
        }
        // What follows the link is asked: `/dev/stdout` is one, and so may be the name of a pipe.
        let kind = fs::metadata(path).map(|found| found.file_type());
        if kind.as_ref().is_ok_and(|kind| kind.is_block_device()) {
            return Err(on_a_disk(path).into());
        }
        if kind.as_ref().is_ok_and(|kind| kind.is_dir()) {
            let message = format!("writing {}: it is a folder", path.display());
            return Err(usage(&message, "name the file that the stream shall become").into());
        }
        if kind.is_ok_and(|kind| !kind.is_file()) {
            // Never made anew, and never given another name: others know it by this one.
            let file = File::options().write(true).open(path);
            let file = file.with_context(|| format!("writing {}", path.display()))?;
            return Ok(Sink::Passing { file, path });
        }
        // A link stays one, and what it leads to gets the stream: `/dev/stdout` leads to the file that a shell has opened.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        // What an earlier one has left may be anybody's to read, and a stream is what the volume is.
        let _ = fs::remove_file(&part);
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&part);
        let file = file.with_context(|| format!("writing {}", part.display()))?;
        Ok(Sink::File { file, part, path })
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Sink::Standard(out) => out
                .write_all(bytes)
                .map_err(|error| not_taken("standard output", &error))?,
            Sink::Passing { file, path } => {
                let written = file.write_all(bytes);
                written.map_err(|error| not_taken(&path.display().to_string(), &error))?;
            }
            Sink::File { file, part, .. } => {
                let written = file.write_all(bytes);
                written.with_context(|| format!("writing {}", part.display()))?;
            }
        }
        Ok(())
    }

    /// All of it was written.
    fn finish(self) -> anyhow::Result<()> {
        match self {
            Sink::Standard(out) => out
                .flush()
                .map_err(|error| not_taken("standard output", &error))?,
            // There is nothing that could be synced in a pipe; what a tape says of it was said when it was written.
            Sink::Passing { .. } => {}
            Sink::File { file, part, path } => {
                let kept = file.sync_all().and_then(|()| fs::rename(&part, &path));
                kept.with_context(|| format!("writing {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Only a part was written.
    fn give_up(self) {
        if let Sink::File { part, .. } = self {
            // What is left of it has another name than was asked for.
            let _ = fs::remove_file(part);
        }
    }
}

pub(super) fn send(
    client: &Client,
    args: &SendArgs,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let mut path = format!("{}/stream", path_of(&args.snapshot));
    if let Some(older) = args.older()? {
        path += &format!("?since={}", query_value(&older));
    }
    let mut stream = client.get_stream(&path)?;
    let mut sink = Sink::open(&args.to, output.out)?;
    let sent = pass_on(&mut stream, &mut sink);
    match sent {
        Ok(totals) => {
            // In the stream itself, which may be what `--to` names, it would be damage.
            let is_file = matches!(sink, Sink::File { .. });
            sink.finish()?;
            if is_file {
                let sentence = format!(
                    "wrote {} of data to {}",
                    rounded(totals.data_bytes),
                    args.to.display()
                );
                output.sentence(&sentence)?;
            }
            Ok(())
        }
        Err(error) => {
            sink.give_up();
            Err(error.context(format!("sending snapshot '{}'", args.snapshot)))
        }
    }
}

fn pass_on(stream: &mut dyn Read, sink: &mut Sink<'_>) -> anyhow::Result<Totals> {
    const PIECE_BYTES: usize = 256 << 10;
    let mut watch = Watch::new("sending");
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(cut_off(&error).into()),
        };
        watch
            .pass(&piece[..read])
            .map_err(|error| damaged(&error))?;
        sink.write(&piece[..read])?;
    }
    Ok(watch.decoder.finish().map_err(|error| damaged(&error))?)
}

/// A reader that goes away has no whole stream, unlike one of a list, which has seen enough.
fn not_taken(what: &str, error: &io::Error) -> Failure {
    let kind = NodeErrorKind::of_io(error);
    Failure {
        exit: kind.exit(),
        message: format!("{what} did not take all of the stream ({error})"),
        next_step: "what was written is no backup: see to the program or device that it went to, and send it again"
            .to_owned(),
    }
}

fn on_a_disk(path: &Path) -> Failure {
    let message = format!(
        "writing {}: it is a disk, and a stream that ends before the disk does can't be told from what is behind it",
        path.display()
    );
    usage(
        &message,
        "name a file, or pipe the stream into a program that writes disks",
    )
}

fn cut_off(error: &io::Error) -> Failure {
    Failure {
        exit: Exit::NotReachable,
        message: format!("the node did not send all of the stream ({error})"),
        next_step: "what was written is no backup: see the node's log, and send it again"
            .to_owned(),
    }
}

fn damaged(error: &StreamError) -> Failure {
    Failure {
        exit: Exit::Corrupt,
        message: format!("what came from the node is not a whole stream: {error}"),
        next_step: "what was written is no backup: send it again".to_owned(),
    }
}

/// A source whose stream is watched while somebody else reads it.
struct Watched<'a> {
    source: &'a mut dyn Read,
    watch: Watch,
}

impl Read for Watched<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(out)?;
        // What is wrong with it the node says, which has to know it anyway.
        let _ = self.watch.pass(&out[..read]);
        Ok(read)
    }
}

pub(super) fn receive(
    client: &Client,
    args: &ReceiveArgs,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let volume = &args.volume.volume;
    let mut file;
    let mut standard;
    let source: &mut dyn Read = if is_standard(&args.from) {
        standard = io::stdin().lock();
        &mut standard
    } else {
        let opened = File::open(&args.from);
        file = opened.with_context(|| format!("reading {}", args.from.display()))?;
        &mut file
    };
    let mut queries = Vec::new();
    if let Some(snapshot) = &args.volume.snapshot {
        queries.push(format!("snapshot={}", query_value(snapshot)));
    }
    if args.force {
        queries.push("force=true".to_owned());
    }
    if let Some(device) = &args.device {
        queries.push(format!("device={}", query_value(device)));
    }
    if let Some(core) = args.core {
        queries.push(format!("core={core}"));
    }
    let mut path = format!("/v1/volumes/{volume}/receive");
    if !queries.is_empty() {
        path += &format!("?{}", queries.join("&"));
    }
    let mut watched = Watched {
        source,
        watch: Watch::new("receiving"),
    };
    let received = client.post_stream(&path, STREAM_TYPE, &mut watched)?;
    drop(watched);
    let info: SnapshotInfo = received.with_context(|| {
        let from = args.from.display();
        format!("receiving volume '{volume}': reading {from}; nothing of it is left on the node")
    })?;
    let sentence = format!("received {}@{}", info.volume, info.name);
    output.outcome(&info, &sentence)?;
    Ok(())
}
