//! Flagstone's build, test and benchmark commands: `cargo xtask COMMAND`.
//!
//! Everything CI does is a command here, so that it can be repeated at a desk.

// The tools measure real programs in real time; the rules about clocks and threads protect code
// that must also run in the simulator.
#![allow(clippy::disallowed_methods)]

mod api;
mod bench;
mod check;
mod daemon;
mod e2e;
mod forward;
mod fuzz;
mod instructions;
mod process;
mod profile;
mod programs;
mod repo;
mod room;
mod say;
mod steps;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Flagstone's build, test and benchmark commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, lints, house style, unit tests: before every commit, under two minutes warm.
    Check,
    /// Everything CI runs.
    Ci,
    /// All tests of the workspace or of the named packages.
    Test {
        /// Packages such as `flagstone-device`; none for all.
        packages: Vec<String>,
    },
    /// House style only: arrows, sizes, banned words, citations.
    Tidy,
    /// Run the simulator; a failure ends with the line that repeats it.
    Sim(forward::SimArguments),
    /// Explore the model of the journal; further arguments go to `flagstone-model`.
    Model {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Fuzz the decoders; without a name, list them.
    Fuzz(fuzz::Arguments),
    /// Benchmarks beside peers, in one run.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Write down how the program runs under load, for release builds to be made by. Takes some twenty minutes.
    Profile,
    /// How many instructions a server spends on a request, beside what was recorded.
    Instructions(instructions::Arguments),
    /// The built binary with real clients and real crashes.
    E2e(e2e::Arguments),
    /// What `e2e kernel` runs inside its guest.
    #[command(hide = true)]
    InGuest(e2e::history::Arguments),
    /// Which sections of which reference are cited where.
    Cites,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        // What failed was printed where it failed.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// True if nothing that was checked failed.
fn run(task: Task) -> Result<bool> {
    // It may read no folder but those that it is given.
    if let Task::InGuest(arguments) = &task {
        return e2e::history::run(arguments);
    }
    let root = repo::root()?;
    let done = |()| true;
    match task {
        Task::Check => Ok(check::check(&root)),
        Task::Ci => Ok(check::ci(&root)),
        Task::Test { packages } => Ok(check::test(&root, &packages)),
        Task::Tidy => Ok(tidy::run(&root)?.failed == 0),
        Task::Sim(arguments) => forward::sim(&root, &arguments),
        Task::Model { arguments } => Ok(forward::model(&root, &arguments).status()?.success()),
        Task::Fuzz(arguments) => fuzz::run(&root, &arguments).map(done),
        Task::Profile => profile::run(&root).map(done),
        Task::Instructions(arguments) => instructions::run(&root, &arguments),
        Task::E2e(arguments) => e2e::run(&root, &arguments),
        Task::InGuest(_) => unreachable!("done above"),
        Task::Bench(bench) => bench::run(&root, bench).map(done),
        Task::Cites => tidy::report_citations(&root).map(done),
    }
}
