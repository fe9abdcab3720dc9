//! The API's socket, and whether those of the gateways can be opened, before anything is made.
//!
//! The cores open theirs for good once the node has started. A program that takes an address between
//! the two is noticed then.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::api::{ApiListener, ApiOptions, BindError};
use crate::node::{NodeError, NodeErrorKind, NodeOptions};

/// How long an address may be taken by a node that has ended. Its sockets are closed by the kernel only
/// when the I/O that it had under way is over.
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_millis(50);

/// Opens the API's socket, when it becomes free if it is in use.
pub(super) async fn open_api(options: ApiOptions) -> Result<ApiListener, BindError> {
    let place = options.address.to_string();
    let is_taken = |error: &BindError| match error {
        BindError::Address(_, error) => error.kind() == io::ErrorKind::AddrInUse,
        BindError::Remote(_) | BindError::Open(_) => false,
    };
    wait_for(&place, TRIES, is_taken, async || {
        ApiListener::bind(options.clone()).await
    })
    .await
}

/// Fails as starting the node would.
pub(super) async fn check(options: &NodeOptions) -> Result<(), NodeError> {
    if let Some(address) = options.nbd {
        let waited = wait_for(&address.to_string(), TRIES, is_in_use, async || {
            check_tcp(address)
        })
        .await;
        waited.map_err(|error| {
            let doing = format!("listening for NBD clients on {address}");
            NodeError::of_io(doing, &error).next("choose another address with --nbd, or port 0")
        })?;
    }
    if let Some(address) = options.native {
        let waited = wait_for(&address.to_string(), TRIES, is_in_use, async || {
            check_tcp(address)
        })
        .await;
        waited.map_err(|error| {
            let doing = format!("listening for clients of the native protocol on {address}");
            NodeError::of_io(doing, &error)
                .next("choose another address with --native, port 0 for any, or 'none' for nowhere")
        })?;
    }
    if let Some(address) = options.nfs {
        let waited = wait_for(&address.to_string(), TRIES, is_in_use, async || {
            check_tcp(address)
        })
        .await;
        waited.map_err(|error| {
            let doing = format!("listening for NFS clients on {address}");
            NodeError::of_io(doing, &error)
                .next("choose another address with --nfs, port 0 for any, or 'none' for nowhere")
        })?;
    }
    if let Some(path) = &options.nbd_unix {
        let place = path.display().to_string();
        let waited = wait_for(&place, TRIES, is_in_use, async || check_unix(path)).await;
        waited.map_err(|error| {
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

/// Tries to listen until the place is free, at most `tries` times more.
async fn wait_for<T, E>(
    place: &str,
    tries: u32,
    is_taken: impl Fn(&E) -> bool,
    listen: impl AsyncFn() -> Result<T, E>,
) -> Result<T, E> {
    for tried in 0..tries {
        match listen().await {
            Err(error) if is_taken(&error) => {}
            done => return done,
        }
        if tried == 0 {
            let seconds = (PAUSE * tries).as_secs();
            tracing::warn!("{place} is in use: waiting up to {seconds} s for it");
        }
        tokio::time::sleep(PAUSE).await;
    }
    listen().await
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

fn check_tcp(address: SocketAddr) -> io::Result<()> {
    TcpListener::bind(address).map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(future)
    }

    fn taken() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        (listener, address)
    }

    /// As a node that was killed with I/O under way does.
    #[test]
    fn an_address_that_becomes_free_is_waited_for() {
        let (listener, address) = taken();
        block_on(async move {
            let freeing = async {
                tokio::time::sleep(PAUSE * 2).await;
                drop(listener);
            };
            let waiting =
                async { wait_for("it", TRIES, is_in_use, async || check_tcp(address)).await };
            let (checked, ()) = tokio::join!(waiting, freeing);
            checked.expect("it is free now");
        });
    }

    #[test]
    fn that_of_the_api_is_waited_for_too() {
        let (listener, address) = taken();
        block_on(async move {
            let freeing = async {
                tokio::time::sleep(PAUSE * 2).await;
                drop(listener);
            };
            let (opened, ()) = tokio::join!(open_api(ApiOptions::on(address)), freeing);
            assert_eq!(opened.expect("it is free now").address(), address);
        });
    }

    #[test]
    fn an_address_that_stays_taken_is_refused() {
        let (_listener, address) = taken();
        let waiting = wait_for("it", 2, is_in_use, async || check_tcp(address));
        let error = block_on(waiting).expect_err("is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
