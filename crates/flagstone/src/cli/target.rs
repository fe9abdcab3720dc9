//! Which node a command talks to.

use std::io;
use std::path::PathBuf;

use clap::Args;

use crate::client::Client;
use crate::config::DIR_DEFAULT;
use crate::exit::{Exit, Failure};
use crate::node_file::{NODE_FILE, NodeFile};

/// How a command finds its node.
#[derive(Args, Clone, Debug)]
pub(super) struct TargetArgs {
    /// The folder of the node
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "FLAGSTONE_DIR",
        default_value = DIR_DEFAULT,
        help_heading = "Node"
    )]
    dir: PathBuf,
    /// The address of the node's API, instead of looking into its folder
    #[arg(long, global = true, value_name = "ADDR:PORT", help_heading = "Node")]
    api: Option<String>,
}

impl TargetArgs {
    /// A client of the node.
    pub(super) fn client(&self) -> Result<Client, Failure> {
        if let Some(address) = &self.api {
            return Ok(Client::new(address, "--api"));
        }
        let path = self.dir.join(NODE_FILE);
        let shown = path.display();
        match NodeFile::read(&self.dir) {
            Ok(file) => {
                let origin = format!("{shown}, process {}", file.pid);
                Ok(Client::new(file.api, origin))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure {
                exit: Exit::NotReachable,
                message: format!("finding the node: no node serves {}", self.dir.display()),
                next_step: format!(
                    "start one with `flagstone dev --dir {}`, or say which one is meant with --dir, \
                     FLAGSTONE_DIR or --api",
                    self.dir.display()
                ),
            }),
            Err(error) => {
                let (exit, next_step) = match error.kind() {
                    io::ErrorKind::PermissionDenied => (
                        Exit::Refused,
                        "the file is its owner's only: run the command as that user, or use --api",
                    ),
                    io::ErrorKind::NotADirectory => (
                        Exit::Usage,
                        "--dir and FLAGSTONE_DIR name the folder of a node, and this is a file",
                    ),
                    _ => (Exit::NotReachable, "restart the node, or use --api"),
                };
                Err(Failure {
                    exit,
                    message: format!("finding the node: reading {shown}: {error}"),
                    next_step: next_step.to_string(),
                })
            }
        }
    }

    /// The folder, if that is how the node is found.
    pub(super) fn dir(&self) -> Option<&PathBuf> {
        self.api.is_none().then_some(&self.dir)
    }
}
