//! Which node a command talks to.

use std::io;
use std::net::SocketAddrV6;
use std::path::PathBuf;

use clap::Args;

use crate::client::Client;
use crate::config::{API_PORT, DIR_DEFAULT};
use crate::exit::{Exit, Failure};
use crate::node_file::{NODE_FILE, NodeFile};

/// Names the folder, where `--dir` doesn't.
const DIR_VARIABLE: &str = "FLAGSTONE_DIR";

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
    let dir = std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty());
    dir.map(PathBuf::from)
}

impl TargetArgs {
    /// Takes what was given in front of the command, where nothing was given behind it.
    pub(super) fn take(&mut self, dir: Option<PathBuf>, api: Option<String>) {
        // Whichever way of finding the node is said behind the command, it is the one that counts.
        if self.api.is_none() && self.dir.is_none() {
            self.api = api;
        }
        self.dir = self.dir.take().or(dir);
    }

    /// A client of the node.
    pub(super) fn client(&self) -> Result<Client, Failure> {
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
