//! Which node a command talks to.

use std::io;
use std::net::SocketAddrV6;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::api_key::{self, KeyUse, Secret};
use crate::client::Client;
use crate::config::{API_PORT, DIR_DEFAULT};
use crate::exit::{Exit, Failure};
use crate::node::{NodeError, NodeErrorKind};
use crate::node_file::{DirLock, NODE_FILE, NodeFile};

/// Names the folder, where `--dir` doesn't.
const DIR_VARIABLE: &str = "FLAGSTONE_DIR";

/// Names the file of the key, with `--api` and where `--api-key-file` doesn't.
const KEY_FILE_VARIABLE: &str = "FLAGSTONE_API_KEY_FILE";

/// How a command finds its node.
#[derive(Args, Clone, Debug)]
pub(super) struct TargetArgs {
    /// The folder of the node [env: FLAGSTONE_DIR] [default: ./flagstone-data]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Node")]
    dir: Option<PathBuf>,
    /// The address of the node's API, instead of looking into its folder
    #[arg(
        long,
        global = true,
        value_name = "ADDR:PORT",
        value_parser = parse_api_address,
        help_heading = "Node"
    )]
    api: Option<String>,
    /// The file of the API's key, a copy of api.key in the node's folder; with --dir that one is
    /// read unless this is given [env, with --api: FLAGSTONE_API_KEY_FILE]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Node")]
    api_key_file: Option<PathBuf>,
}

/// Checks the address of an API to call: a name, an IPv4 address or an IPv6 address in brackets, and
/// a port.
pub(super) fn parse_api_address(text: &str) -> Result<String, String> {
    let found = match text.rsplit_once(':') {
        _ if text.contains("://") => "it is a URL",
        None => "it has no port",
        Some(("", _)) => "it has no address",
        Some((_, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => {
            let (host, _) = text.rsplit_once(':').unwrap_or_default();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            match host.starts_with('[') {
                true if text.parse::<SocketAddrV6>().is_ok() => return Ok(text.to_owned()),
                true => "what is in brackets is no IPv6 address",
                false if host.contains(':') => "an IPv6 address needs brackets",
                false if host.chars().all(plain) => return Ok(text.to_owned()),
                false => "what is in front of the port is neither an address nor a name",
            }
        }
        Some(_) => "the port is no number from 1 to 65535",
    };
    Err(format!(
        "'{}' is not the address of an API: {found}; write ADDR:PORT, for example 127.0.0.1:{API_PORT}, \
         [::1]:{API_PORT} or storage-1:{API_PORT}",
        text.escape_debug()
    ))
}

/// The folder that the environment names, if it names one.
pub(super) fn dir_of_environment() -> Option<PathBuf> {
    path_of_environment(DIR_VARIABLE)
}

fn path_of_environment(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    path.map(PathBuf::from)
}

/// The key of the node that serves a folder. None if it asks for none, and if none serves it: what listens where a
/// node did that was killed may be anybody.
fn key_of_folder(dir: &Path) -> Result<Option<Secret>, NodeError> {
    if !DirLock::is_held(dir) {
        return Ok(None);
    }
    match api_key::load(dir, KeyUse::Api) {
        Err(error) if error.kind == NodeErrorKind::NotFound => Ok(None),
        loaded => loaded.map(Some),
    }
}

/// An option that names a node was given to a command that has no use for it.
pub(super) fn needs_no_node(command: &str, option: &str) -> Failure {
    Failure {
        exit: Exit::Usage,
        message: format!("`flagstone {command}` takes no {option}"),
        next_step: format!(
            "leave it out: this command needs no node; see `flagstone {} --help`",
            command.split(" --").next().unwrap_or(command)
        ),
    }
}

impl TargetArgs {
    /// Takes what was given in front of the command, where nothing was given behind it.
    pub(super) fn take(
        &mut self,
        dir: Option<PathBuf>,
        api: Option<String>,
        api_key_file: Option<PathBuf>,
    ) {
        // Whichever way of finding the node is said behind the command, it is the one that counts.
        if self.api.is_none() && self.dir.is_none() {
            self.api = api;
        }
        self.dir = self.dir.take().or(dir);
        self.api_key_file = self.api_key_file.take().or(api_key_file);
    }

    /// Refuses to be told of a node: the command needs none.
    pub(super) fn refuse(&self, command: &str) -> Result<(), Failure> {
        let given = [
            (self.dir.is_some(), "--dir"),
            (self.api.is_some(), "--api"),
            (self.api_key_file.is_some(), "--api-key-file"),
        ];
        match given.into_iter().find(|(is_given, _)| *is_given) {
            None => Ok(()),
            Some((_, option)) => Err(needs_no_node(command, option)),
        }
    }

    /// A client of the node, with its key.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        let client = self.client_without_key()?;
        let from_environment = || path_of_environment(KEY_FILE_VARIABLE);
        let file = self.api_key_file.clone();
        let key = match (file, &self.api) {
            (Some(file), _) => Some(api_key::read_given(&file)?),
            // The folder's key is never sent to an address that was typed.
            (None, Some(_)) => match from_environment() {
                Some(file) => Some(api_key::read_given(&file)?),
                None => None,
            },
            (None, None) => key_of_folder(&self.folder())?,
        };
        Ok(client.with_key(key))
    }

    fn client_without_key(&self) -> Result<Client, Failure> {
        if let Some(address) = &self.api {
            return Ok(Client::new(address, "--api"));
        }
        let dir = self.folder();
        let path = dir.join(NODE_FILE);
        let shown = path.display();
        match NodeFile::read(&dir) {
            Ok(file) => {
                let origin = format!("{shown}, process {}", file.pid);
                Ok(Client::new(file.api, origin))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure {
                exit: Exit::NotReachable,
                message: format!("finding the node: no node serves {}", dir.display()),
                next_step: format!(
                    "start one with `flagstone dev --dir {}`, or say which one is meant with --dir, \
                     FLAGSTONE_DIR or --api",
                    dir.display()
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
    pub(super) fn dir(&self) -> Option<PathBuf> {
        self.api.is_none().then(|| self.folder())
    }

    fn folder(&self) -> PathBuf {
        let given = self.dir.clone().or_else(dir_of_environment);
        given.unwrap_or_else(|| PathBuf::from(DIR_DEFAULT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_an_api() {
        for text in [
            "127.0.0.1:7878",
            "localhost:1",
            "storage-1.example.org:65535",
            "[::1]:7878",
        ] {
            assert_eq!(parse_api_address(text), Ok(text.to_owned()));
        }
        let refused = [
            ("foo", "no port"),
            ("", "no port"),
            (":7878", "no address"),
            ("127.0.0.1:", "no number from 1 to 65535"),
            ("127.0.0.1:0", "no number from 1 to 65535"),
            ("127.0.0.1:65536", "no number from 1 to 65535"),
            ("http://127.0.0.1:7878", "a URL"),
            ("::1:7878", "brackets"),
            ("[::x]:7878", "no IPv6 address"),
            ("a b:7878", "neither an address nor a name"),
            ("user@host:7878", "neither an address nor a name"),
        ];
        for (text, why) in refused {
            let error = parse_api_address(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("127.0.0.1:7878"), "{error}");
        }
    }
}
