//! The client.

use std::sync::Arc;

use flagstone_client::{Error, OpenHow, Options, Target, Token};
use flagstone_tls::ClientTls;

use crate::thread::{Security, Thread};
use crate::volume::Volume;

/// Opens volumes. A cheap handle, for any number of threads; when the last one and all volumes are
/// dropped, its connections and its thread end, and the drop waits for that.
#[derive(Clone)]
pub struct Client {
    thread: Arc<Thread>,
}

impl Client {
    /// Starts a client: its thread. It connects when a volume is opened, so this waits for no server. Fails with
    /// [`Cause::Invalid`](crate::Cause::Invalid) if `options` has no address, and with
    /// [`Cause::NotRunning`](crate::Cause::NotRunning) if the thread can't be started, as without io_uring.
    pub fn start(options: Options) -> Result<Client, Error> {
        Client::start_with(options, Security::Plain)
    }

    /// The same with TLS: all servers show a certificate for the name that `tls` has. One that shows another is
    /// tried again, and whoever waits is told why when the time is over.
    pub fn start_tls(options: Options, tls: ClientTls) -> Result<Client, Error> {
        Client::start_with(options, Security::Tls(tls))
    }

    /// The same with TLS: each server shows a certificate for its address; the name that `tls` has is not
    /// looked at.
    pub fn start_tls_by_address(options: Options, tls: ClientTls) -> Result<Client, Error> {
        Client::start_with(options, Security::TlsByAddress(tls))
    }

    fn start_with(options: Options, security: Security) -> Result<Client, Error> {
        let thread = Arc::new(Thread::start(options, security)?);
        Ok(Client { thread })
    }

    /// Opens a volume with a token of it. Waits, for [`Options::call_timeout_ns`] at most, for a server
    /// that can be reached. What that refuses (wrong token, no such volume or snapshot) is final.
    pub fn open(&self, target: Target, token: &Token, how: OpenHow) -> Result<Volume, Error> {
        let (asked, token) = (target.clone(), token.clone());
        let key = self.thread.call(
            false,
            || format!("opening {target}"),
            move |desk| {
                let (client, keep) = (desk.client.clone(), desk.keeper());
                async move { client.open(asked, token, how).await.map(keep) }
            },
        )?;
        Ok(Volume::new(self.thread.clone(), key, target))
    }

    /// Ends all connections at once, for all who have a handle. Calls that wait fail with
    /// [`Cause::Closed`](crate::Cause::Closed), and so do later ones; what was on its way may have been carried out. Waits for the thread
    /// alone. The thread itself goes on until the last handle is dropped.
    pub fn stop(&self) {
        let stopped = self.thread.call(
            false,
            || "stopping a client".to_owned(),
            |desk| {
                desk.client.stop();
                async { Ok(()) }
            },
        );
        // It fails only if the thread has ended, and all connections with it.
        drop(stopped);
    }
}
