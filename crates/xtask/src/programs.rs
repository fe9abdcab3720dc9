//! The programs that CI's steps run, built once for all of them.
//!
//! They are copied to a folder of their own: what cargo builds later takes the places of these in the build folder,
//! the simulator with planted bugs among it, while the steps run beside each other.

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

const PACKAGES: [&str; 3] = ["flagstone", "flagstone-sim", "flagstone-model"];
const SERVER: &str = "flagstone";
const SIMULATOR: &str = "flagstone-sim";
const JUDGE: &str = "crash-images";
const MODEL: &str = "flagstone-model";
const PLANTED: &str = "flagstone-sim-planted";

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
        // In one go: what they have in common is built once, and as the README's command wants it.
        self.cargo(say, &["--bins"])?;
        for name in [SERVER, SIMULATOR, JUDGE, MODEL] {
            self.keep(name, name)?;
        }
        let planted = [
            "--bin",
            SIMULATOR,
            "--features",
            "flagstone-sim/planted-bugs",
        ];
        self.cargo(say, &planted)?;
        self.keep(SIMULATOR, PLANTED)
    }

    fn cargo(&self, say: &Say, arguments: &[&str]) -> Result<()> {
        let mut cargo = repo::cargo(&self.root);
        cargo.args(["build", "--release"]);
        // All of them also where one is meant: else the libraries have fewer features, and are built again.
        for package in PACKAGES {
            cargo.args(["--package", package]);
        }
        cargo.args(arguments);
        let good = run_limited(cargo, BUILD_LIMIT, say, |_| ())?;
        ensure!(good, "the release build of {arguments:?} failed");
        Ok(())
    }

    fn keep(&self, built: &str, name: &str) -> Result<()> {
        let from = repo::target_dir(&self.root).join("release").join(built);
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

    pub(crate) fn simulator_with_planted_bugs(&self) -> Result<Command> {
        self.in_the_background(PLANTED)
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
