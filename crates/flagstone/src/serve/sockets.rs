//! Whether the gateways' sockets can be opened, tried before anything is made.
//!
//! The cores open them for good once the node has started. A program that takes an address between
//! the two is noticed then.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::node::{NodeError, NodeErrorKind, NodeOptions};

/// Fails as starting the node would.
pub(super) fn check(options: &NodeOptions) -> Result<(), NodeError> {
    if let Some(address) = options.nbd {
        TcpListener::bind(address).map_err(|error| {
            let doing = format!("listening for NBD clients on {address}");
            NodeError::of_io(doing, &error).next("choose another address with --nbd, or port 0")
        })?;
    }
    if let Some(path) = &options.nbd_unix {
        check_unix(path).map_err(|error| {
            let doing = format!("listening for NBD clients on {}", path.display());
            NodeError::of_io(doing, &error)
                .next("choose another path with --nbd-unix")
                .next_for(
                    NodeErrorKind::NotFound,
                    "make its folder, or choose another path with --nbd-unix",
                )
        })?;
    }
    Ok(())
}

fn check_unix(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            UnixListener::bind(path)?;
            fs::remove_file(path)
        }
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            let text = "there is a file of that name, and it is not a socket";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => {
                let text = "another process listens on it";
                Err(io::Error::new(io::ErrorKind::AddrInUse, text))
            }
            // What a killed node left behind: it is replaced.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(error),
        },
    }
}
