//! The command line: reads arguments, calls the node's API (or reads a device offline), prints.
//!
//! Scripts rely on names, options, JSON and exit codes: they change only by addition.

mod device;
mod explain;
mod fs;
mod leading;
mod listing;
mod misc;
mod moves;
mod node;
mod offline;
mod progress;
mod schedule;
mod series;
mod serve;
mod slo;
mod snapshot;
mod streams;
mod target;
mod token;
mod top;
mod volume;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::api::BindError;
use crate::client::ClientError;
use crate::config::{Config, ConfigError, LogFormat};
use crate::exit::{self, Exit, Failure};
use crate::log;
use crate::name::{NameError, SnapshotRef, snapshot_from_args};
use crate::node::{NodeError, NodeErrorKind};
use crate::output::{Format, Output};
use crate::serve::Backend;

/// Shared flash storage for virtual machines, in one binary.
///
/// A node serves volumes and filesystems on its devices: files, partitions or SSDs. Both are thin,
/// checksummed, crash-safe, and can be snapshotted in an instant. Clients attach volumes over NBD and
/// mount filesystems over NFS.
#[derive(Parser, Debug)]
#[command(
    name = "flagstone",
    version,
    after_help = "`flagstone help` and `flagstone COMMAND --help` say more, with examples.",
    after_long_help = long_help()
)]
pub struct Cli {
    #[command(flatten)]
    leading: leading::LeadingArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: Command,
}

/// What is logged, and how.
#[derive(Args, Debug)]
struct LogArgs {
    /// How log lines on standard error look [default: text, or what the configuration says]
    #[arg(long, global = true, value_name = "FORMAT", help_heading = "Log")]
    log_format: Option<LogFormat>,
    /// What is logged: error, warn, info, debug, trace, or per module as in
    /// info,flagstone_device=debug [default: info when serving, else warn]
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "FLAGSTONE_LOG",
        help_heading = "Log"
    )]
    log_level: Option<String>,
}

/// How results are printed.
#[derive(Args, Clone, Copy, Debug)]
struct OutputArgs {
    /// Tables for people, or the API's JSON for programs [default: table]
    #[arg(short = 'o', long = "output", global = true, value_name = "FORMAT")]
    output: Option<Format>,
}

impl OutputArgs {
    fn format(&self) -> Format {
        self.output.unwrap_or_default()
    }
}

/// One snapshot, as one word or two.
#[derive(Args, Debug)]
struct SnapshotArg {
    /// The snapshot
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    snapshot: String,
    /// Its name, if the first word is the volume's alone
    #[arg(value_name = "SNAPSHOT")]
    name: Option<String>,
}

impl SnapshotArg {
    fn read(&self) -> Result<SnapshotRef, NameError> {
        let words = [Some(&self.snapshot), self.name.as_ref()];
        let words: Vec<String> = words.into_iter().flatten().cloned().collect();
        snapshot_from_args(&words)
    }
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Start a node in a folder, creating what is missing: the quickest way to try it
    Dev(serve::DevArgs),
    /// Start a node from a configuration or on named devices; formats nothing
    Serve(serve::ServeArgs),
    /// Create, list, resize, clone, roll back and delete volumes
    Volume(volume::VolumeArgs),
    /// Take, list and delete snapshots
    Snapshot(snapshot::SnapshotArgs),
    /// Create, list and check filesystems, and take snapshots of them
    Fs(fs::FsArgs),
    /// Show, scrub and format devices
    Device(device::DeviceArgs),
    /// Show a node, its metrics, or stop it
    Node(node::NodeArgs),
    Top(top::TopArgs),
    Explain(explain::ExplainArgs),
    /// Describe what is on a device; changes nothing
    Inspect(offline::InspectArgs),
    /// Check a device that no node serves; changes nothing
    Verify(offline::VerifyArgs),
    /// Print or check a configuration file
    Config(misc::ConfigArgs),
    /// Print the OpenAPI description of the HTTP API
    Openapi,
    /// Print a script that completes commands in your shell
    Completions(misc::CompletionsArgs),
}

fn long_help() -> String {
    format!(
        "\
Getting started:
  flagstone dev                                    a node in ./flagstone-data, with volume 'demo'
  flagstone volume create vm-1 --size 10G          (in another terminal)
  qemu-img convert -n -O raw disk.qcow2 nbd://127.0.0.1:10809/vm-1
  flagstone snapshot create vm-1@installed
  flagstone volume clone vm-1@installed vm-2
  flagstone volume list
  flagstone fs create data                         prints how to mount it

Finding the node:
  Commands read DIR/node.json, which a node writes while it serves. DIR is --dir, else the
  environment variable FLAGSTONE_DIR, else ./flagstone-data. --api ADDR:PORT needs no folder.
  Both, and -o, can stand in front of the command or behind it. Commands that need no node
  (inspect, verify, fs check --device, config, completions, openapi) take neither --dir nor --api.

The key:
  The API asks for a key, which the node makes and keeps in DIR/api.key. Commands that find the
  node by its folder read it there. With --api they read the file that --api-key-file names, else
  the one that FLAGSTONE_API_KEY_FILE names; with neither they send none.

Sizes:
  512M, 20G, 1.5T, or a number of bytes. Units are binary: 1K is 1024 bytes.

Exit codes:
{}
  A second SIGTERM or Ctrl-C ends a serving node at once, with 128 + the signal's number.",
        exit::help_table()
    )
}

/// The binary's `main`.
pub fn main() -> ExitCode {
    let mut out = BufWriter::new(io::stdout());
    let exit = run(std::env::args_os(), Backend::real(), &mut out);
    match out.flush() {
        Err(error) if exit == Exit::Ok && error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "error: writing to standard output: {error}");
            Exit::Internal.into()
        }
        _ => exit.into(),
    }
}

/// Runs one command line. Results go to `out`, failures to standard error.
pub fn run<I, T>(args: I, backend: Backend, out: &mut dyn Write) -> Exit
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let mut cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && wants_json(&args) => {
            report(&usage_failure(&error), Format::Json);
            return Exit::Usage;
        }
        Err(error) => {
            // Help and version are "errors" that go to standard output.
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Ok
            };
        }
    };
    if let Err(failure) = cli.command.take(std::mem::take(&mut cli.leading)) {
        let is_json = wants_json(&args);
        report(&failure, if is_json { Format::Json } else { Format::Table });
        return failure.exit;
    }
    let format = cli.command.format();
    match dispatch(cli, backend, out) {
        Ok(exit) => exit,
        Err(error) if is_closed_output(&error) => Exit::Ok,
        Err(error) => {
            let failure = describe(&error);
            report(&failure, format);
            failure.exit
        }
    }
}

/// True if the arguments ask for JSON, whatever else is wrong with them.
fn wants_json(args: &[OsString]) -> bool {
    let mut before = None;
    args.iter().map(|arg| arg.to_str()).any(|arg| {
        let value = match (before, arg) {
            (Some("-o" | "--output"), value) => value,
            (_, Some(arg)) => arg
                .strip_prefix("--output=")
                .or_else(|| arg.strip_prefix("-o=").or_else(|| arg.strip_prefix("-o"))),
            _ => None,
        };
        before = arg;
        value == Some("json")
    })
}

/// What is wrong with the arguments, and behind the first empty line what would be right.
fn usage_failure(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    Failure {
        exit: Exit::Usage,
        message: message.trim_start_matches("error: ").trim().to_owned(),
        next_step: rest.trim().to_owned(),
    }
}

fn dispatch(cli: Cli, backend: Backend, out: &mut dyn Write) -> anyhow::Result<Exit> {
    match cli.command {
        Command::Dev(args) => {
            let plan = args.plan()?;
            start_log(&cli.log, Some(&plan.config))?;
            crate::serve::run(plan, backend, out)?;
            return Ok(Exit::Ok);
        }
        Command::Serve(args) => {
            let plan = args.plan()?;
            start_log(&cli.log, Some(&plan.config))?;
            crate::serve::run(plan, backend, out)?;
            return Ok(Exit::Ok);
        }
        _ => start_log(&cli.log, None)?,
    }
    let format = cli.command.format();
    let output = &mut Output { format, out };
    match cli.command {
        Command::Dev(_) | Command::Serve(_) => unreachable!("handled above"),
        Command::Volume(args) => volume::run(args, output)?,
        Command::Snapshot(args) => snapshot::run(args, output)?,
        Command::Fs(args) => return fs::run(args, output),
        Command::Device(args) => return device::run(args, backend, output),
        Command::Node(args) => node::run(args, output)?,
        Command::Top(args) => top::run(&args, output)?,
        Command::Explain(args) => explain::run(&args, output)?,
        Command::Inspect(args) => offline::inspect(&args, output)?,
        Command::Verify(args) => return offline::verify(&args, output),
        Command::Config(args) => misc::config(&args, output)?,
        Command::Openapi => write!(output.out, "{}", crate::api::openapi::document())?,
        Command::Completions(args) => misc::completions(&args, output)?,
    }
    Ok(Exit::Ok)
}

impl Command {
    fn format(&self) -> Format {
        match self {
            Command::Volume(args) => args.output.format(),
            Command::Snapshot(args) => args.output.format(),
            Command::Fs(args) => args.output.format(),
            Command::Device(args) => args.output.format(),
            Command::Node(args) => args.output.format(),
            Command::Top(args) => args.output.format(),
            Command::Explain(args) => args.output.format(),
            Command::Inspect(args) => args.output.format(),
            Command::Verify(args) => args.output.format(),
            _ => Format::Table,
        }
    }
}

fn start_log(args: &LogArgs, config: Option<&Config>) -> Result<(), Failure> {
    let format = args.log_format.or(config.map(|config| config.log.format));
    let level = args.log_level.as_deref();
    let level = level.or(config.map(|config| config.log.level.as_str()));
    log::start(format.unwrap_or_default(), level.unwrap_or("warn")).map_err(|message| Failure {
        exit: Exit::Usage,
        message,
        next_step: String::new(),
    })
}

/// `flagstone volume list | head`: the reader has seen enough.
fn is_closed_output(error: &anyhow::Error) -> bool {
    let io_error = error.downcast_ref::<io::Error>();
    io_error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The exit code and the words for an error, whichever module it comes from.
fn describe(error: &anyhow::Error) -> Failure {
    let mut exit = Exit::Internal;
    let mut next_step = String::new();
    if let Some(failure) = error.downcast_ref::<Failure>() {
        (exit, next_step) = (failure.exit, failure.next_step.clone());
    } else if let Some(node) = error.downcast_ref::<NodeError>() {
        let message = format!("{}: {}", node.doing, node.found);
        return Failure {
            exit: node.kind.exit(),
            message,
            next_step: node.next_step.clone(),
        };
    } else if let Some(client) = error.downcast_ref::<ClientError>() {
        (exit, next_step) = (client.exit(), client.next_step().to_string());
    } else if let Some(bind) = error.downcast_ref::<BindError>() {
        exit = match bind {
            BindError::Remote(_) | BindError::Open(_) => Exit::Refused,
            BindError::Address(_, error) => NodeErrorKind::of_io(error).exit(),
        };
    } else if let Some(config) = error.downcast_ref::<ConfigError>() {
        exit = config.exit();
    } else if error.is::<NameError>() {
        exit = Exit::Usage;
    } else if let Some(error) = error.chain().find_map(|e| e.downcast_ref::<io::Error>()) {
        exit = NodeErrorKind::of_io(error).exit();
    }
    // The alternate form shows what the error was caused by.
    Failure {
        exit,
        message: format!("{error:#}"),
        next_step,
    }
}

fn report(failure: &Failure, format: Format) {
    // Who doesn't read it still gets the exit code.
    let mut stderr = io::stderr();
    if format == Format::Json {
        let line = serde_json::json!({
            "error": failure.message,
            "next_step": failure.next_step,
            "exit_code": failure.exit.code(),
        });
        let _ = writeln!(stderr, "{line}");
        return;
    }
    let _ = writeln!(stderr, "error: {}", failure.message);
    if !failure.next_step.is_empty() {
        let _ = writeln!(stderr, "  {}", failure.next_step);
    }
}

#[cfg(test)]
mod tests;
