//! The programs that CI's steps run, built once for all of them.
//!
//! They are copied to a folder of their own: what cargo builds later takes the places of these in the build folder while the
//! steps run beside each other.
//!
//! The simulator is the one with planted bugs, also where none is planted: another one would be all of the libraries built once more, and
//! their tests run the code without.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::repo;
use crate::say::Say;
use crate::steps::run_limited;

/// Building in release mode on two slow cores.
const BUILD_LIMIT: Duration = Duration::from_secs(25 * 60);
/// The lowest that there is: who runs beside has the processors whenever there is something to do.
const NICE: &str = "19";

const SHIPPED: [&str; 2] = ["flagstone", "flagstone-model"];
/// Those of the libraries they have in common would have fewer features without the others, and be built again.
const ALL: [&str; 3] = ["flagstone", "flagstone-sim", "flagstone-model"];
const PLANTED: [&str; 2] = ["--features", "flagstone-sim/planted-bugs"];
const SERVER: &str = "flagstone";
const SIMULATOR: &str = "flagstone-sim";
const JUDGE: &str = "crash-images";
const MODEL: &str = "flagstone-model";
/// What instructions are counted of: an example of the simulator's.
const COUNTED: &str = "served";

/// Where they are.
pub(crate) struct Programs {
    root: PathBuf,
    folder: PathBuf,
}

impl Programs {
    pub(crate) fn new(root: &Path) -> Programs {
        Programs {
            root: root.to_path_buf(),
            folder: repo::target_dir(root).join("ci"),
        }
    }

    /// Builds all of them. Until that has been done, none is there, also not that of a run before.
    pub(crate) fn build(&self, say: &Say) -> Result<()> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder).context("removing the programs of the last run")?;
        }
        fs::create_dir_all(&self.folder).context("making a folder for the programs")?;
        self.cargo(say, &SHIPPED, &["--bins"])?;
        for name in [SERVER, MODEL] {
            self.keep(name)?;
        }
        let planted = ["--bin", SIMULATOR, "--bin", JUDGE, "--example", COUNTED];
        self.cargo(say, &ALL, &[&planted[..], &PLANTED].concat())?;
        for name in [SIMULATOR, JUDGE] {
            self.keep(name)?;
        }
        self.keep_counted()
    }

    /// Builds what instructions are counted of, just as [`Programs::build`] does in CI, and nothing else.
    pub(crate) fn build_counted(&self) -> Result<PathBuf> {
        fs::create_dir_all(&self.folder).context("making a folder for the programs")?;
        let mut cargo = repo::cargo(&self.root);
        // As `.ci/run` has it.
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off");
        cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        let counted = [&["--example", COUNTED][..], &PLANTED].concat();
        self.run(cargo, &Say::plain(), &ALL, &counted)?;
        self.keep_counted()?;
        self.counted()
    }

    fn keep_counted(&self) -> Result<()> {
        let from = repo::target_dir(&self.root)
            .join("release/examples")
            .join(COUNTED);
        let copied = fs::copy(&from, self.folder.join(COUNTED));
        copied.with_context(|| format!("copying {}", from.display()))?;
        Ok(())
    }

    /// What instructions are counted of.
    pub(crate) fn counted(&self) -> Result<PathBuf> {
        self.find(COUNTED)
    }

    fn cargo(&self, say: &Say, packages: &[&str], arguments: &[&str]) -> Result<()> {
        self.run(repo::cargo(&self.root), say, packages, arguments)
    }

    fn run(
        &self,
        mut cargo: Command,
        say: &Say,
        packages: &[&str],
        arguments: &[&str],
    ) -> Result<()> {
        cargo.args(["build", "--release"]);
        for package in packages {
            cargo.args(["--package", package]);
        }
        cargo.args(arguments);
        let good = run_limited(cargo, BUILD_LIMIT, say, |_| ())?;
        ensure!(good, "the release build of {arguments:?} failed");
        Ok(())
    }

    fn keep(&self, name: &str) -> Result<()> {
        let from = repo::target_dir(&self.root).join("release").join(name);
        let copied = fs::copy(&from, self.folder.join(name));
        copied.with_context(|| format!("copying {}", from.display()))?;
        Ok(())
    }

    /// The server. An error if it wasn't built.
    pub(crate) fn server(&self) -> Result<PathBuf> {
        self.find(SERVER)
    }

    /// What judges crash images.
    pub(crate) fn judge(&self) -> Result<PathBuf> {
        self.find(JUDGE)
    }

    pub(crate) fn simulator(&self) -> Result<Command> {
        self.in_the_background(SIMULATOR)
    }

    pub(crate) fn model(&self) -> Result<Command> {
        self.in_the_background(MODEL)
    }

    fn find(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        ensure!(
            path.is_file(),
            "{name} was not built; see what was said of that"
        );
        std::path::absolute(&path).with_context(|| format!("looking for {}", path.display()))
    }

    /// What only computes, which takes whatever time the steps beside it leave.
    fn in_the_background(&self, name: &str) -> Result<Command> {
        let mut command = repo::command(&self.root, "nice");
        command.args(["-n", NICE]).arg(self.find(name)?);
        Ok(command)
    }
}
