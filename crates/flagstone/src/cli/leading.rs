//! Options that can stand in front of the command as well as behind it.
//!
//! They aren't global options of the argument parser: those would be taken, and shown in the help, by
//! commands that have no use for them, and `dev` and `serve` have a `--dir` and an `--api` of their
//! own. What is said behind the command counts.

use std::path::PathBuf;

use clap::Args;

use super::Command;
use super::target::{needs_no_node, parse_api_address};
use crate::exit::{Exit, Failure};
use crate::output::Format;

/// What was given in front of the command.
#[derive(Args, Clone, Default, Debug)]
pub(super) struct LeadingArgs {
    /// Tables for people, or JSON for programs [default: table]
    #[arg(
        id = "leading_output",
        short = 'o',
        long = "output",
        value_name = "FORMAT"
    )]
    output: Option<Format>,
    /// The folder of the node [env: FLAGSTONE_DIR] [default: ./flagstone-data]
    #[arg(
        id = "leading_dir",
        long = "dir",
        value_name = "DIR",
        help_heading = "Node"
    )]
    dir: Option<PathBuf>,
    /// The address of the node's API
    #[arg(
        id = "leading_api",
        long = "api",
        value_name = "ADDR:PORT",
        help_heading = "Node"
    )]
    api: Option<String>,
    /// With --api, the file of the API's key [env: FLAGSTONE_API_KEY_FILE]
    #[arg(
        id = "leading_api_key_file",
        long = "api-key-file",
        value_name = "FILE",
        help_heading = "Node"
    )]
    api_key_file: Option<PathBuf>,
}

impl LeadingArgs {
    /// Refuses what is left: the command has no use for it.
    fn nothing_left(self, command: &str) -> Result<(), Failure> {
        let left = [
            (self.output.is_some(), "-o"),
            (self.dir.is_some(), "--dir"),
            (self.api.is_some(), "--api"),
            (self.api_key_file.is_some(), "--api-key-file"),
        ];
        match left.into_iter().find(|(is_given, _)| *is_given) {
            None => Ok(()),
            Some((_, "-o")) => Err(Failure {
                exit: Exit::Usage,
                message: format!("`flagstone {command}` takes no -o"),
                next_step: format!("leave it out; see `flagstone {command} --help`"),
            }),
            Some((_, option)) => Err(needs_no_node(command, option)),
        }
    }
}

fn wrong_api(why: String) -> Failure {
    Failure {
        exit: Exit::Usage,
        message: format!("reading --api: {why}"),
        next_step: String::new(),
    }
}

impl Command {
    /// Takes what was given in front of the command as if it had been given behind it. Refuses what
    /// the command doesn't have.
    pub(super) fn take(&mut self, mut leading: LeadingArgs) -> Result<(), Failure> {
        let (target, output) = match self {
            Command::Volume(args) => (Some(&mut args.target), Some(&mut args.output)),
            Command::Snapshot(args) => (Some(&mut args.target), Some(&mut args.output)),
            Command::Fs(args) => (Some(&mut args.target), Some(&mut args.output)),
            Command::Device(args) => (Some(&mut args.target), Some(&mut args.output)),
            Command::Node(args) => (Some(&mut args.target), Some(&mut args.output)),
            Command::Top(args) => (Some(&mut args.target), Some(&mut args.output)),
            Command::Explain(args) => (Some(&mut args.target), Some(&mut args.output)),
            Command::Inspect(args) => (None, Some(&mut args.output)),
            Command::Verify(args) => (None, Some(&mut args.output)),
            Command::Dev(_)
            | Command::Serve(_)
            | Command::Config(_)
            | Command::Openapi
            | Command::Completions(_) => (None, None),
        };
        if let Some(output) = output {
            output.output = output.output.or(leading.output.take());
        }
        if let Some(target) = target {
            let api = leading.api.take().map(|text| parse_api_address(&text));
            let api = api.transpose().map_err(wrong_api)?;
            target.take(leading.dir.take(), api, leading.api_key_file.take());
        }
        let taken = match self {
            Command::Dev(args) => args.take(leading.dir.take(), leading.api.take()),
            Command::Serve(args) => args.take(leading.dir.take(), leading.api.take()),
            _ => Ok(()),
        };
        taken.map_err(|error| wrong_api(error.to_string()))?;
        leading.nothing_left(self.name())
    }

    fn name(&self) -> &'static str {
        match self {
            Command::Dev(_) => "dev",
            Command::Serve(_) => "serve",
            Command::Volume(_) => "volume",
            Command::Snapshot(_) => "snapshot",
            Command::Fs(_) => "fs",
            Command::Device(_) => "device",
            Command::Node(_) => "node",
            Command::Top(_) => "top",
            Command::Explain(_) => "explain",
            Command::Inspect(_) => "inspect",
            Command::Verify(_) => "verify",
            Command::Config(_) => "config",
            Command::Openapi => "openapi",
            Command::Completions(_) => "completions",
        }
    }
}
