//! Flagstone's build, test and benchmark commands: `cargo xtask COMMAND`.
//!
//! Everything CI does is a command here, so that it can be repeated at a desk.

// The tools measure real programs in real time; the rules about clocks and threads protect code
// that must also run in the simulator.
#![allow(clippy::disallowed_methods)]

mod check;
mod process;
mod repo;
mod steps;
mod tidy;

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
    /// Which sections of which reference are cited where.
    Cites,
}

fn main() -> Result<()> {
    let root = repo::root()?;
    match Arguments::parse().command {
        Task::Check => check::check(&root),
        Task::Ci => check::ci(&root),
        Task::Test { packages } => check::test(&root, &packages),
        Task::Tidy => {
            let counts = tidy::run(&root)?;
            anyhow::ensure!(counts.failed == 0, "the house style is not kept; see above");
            Ok(())
        }
        Task::Cites => tidy::report_citations(&root),
    }
}
