//! Serving a node in memory, and talking to it over raw sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use flagstone::api::{ApiLimits, ApiListener, ApiOptions, Keys, StopSwitch};
use flagstone::api_key::{HeldKey, Secret};
use flagstone::client::Client;

use crate::fake_node::FakeNode;

/// Longer than anything takes, shorter than anyone waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The keys of an API that is served here.
pub(crate) const API_KEY: &str = "a11c0de5a11c0de5a11c0de5a11c0de5a11c0de5a11c0de5a11c0de5a11c0de5";
pub(crate) const METRICS_KEY: &str =
    "5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed";

pub(crate) fn secret(digits: &str) -> Secret {
    Secret::parse(digits.as_bytes()).expect("a key")
}

/// Puts a key into a folder, as a node's.
pub(crate) fn put_key(dir: &Path, name: &str, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join(name);
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("changed");
}

/// A request with the key in its head.
pub(crate) fn keyed(request: &[u8]) -> Vec<u8> {
    let end = request.windows(2).position(|pair| pair == b"\r\n");
    let (line, rest) = request.split_at(end.expect("a first line"));
    let key = format!("\r\nAuthorization: Bearer {API_KEY}");
    [line, key.as_bytes(), rest].concat()
}

/// An API over a node in memory, on a thread of its own. Stops when dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) node: Arc<FakeNode>,
    pub(crate) stop: StopSwitch,
    /// Has the file of its key.
    dir: TempDir,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn serve() -> Served {
    serve_with(|_| {})
}

/// Serves with some limits changed.
pub(crate) fn serve_with(change: impl FnOnce(&mut ApiLimits)) -> Served {
    serve_as(|options| change(&mut options.limits))
}

/// Serves with some options changed.
pub(crate) fn serve_as(change: impl FnOnce(&mut ApiOptions)) -> Served {
    let mut options = ApiOptions::on("127.0.0.1:0".parse().expect("an address"));
    change(&mut options);
    let dir = TempDir::new("served");
    std::fs::write(dir.path().join("key"), API_KEY).expect("written");
    let keys = Keys {
        api: Some(HeldKey::fixed(secret(API_KEY))),
        metrics: Some(HeldKey::fixed(secret(METRICS_KEY))),
    };
    let (node, stop) = (Arc::new(FakeNode::new()), StopSwitch::default());
    let (serving, stopping) = (node.clone(), stop.clone());
    let (sender, receiver) = std::sync::mpsc::channel();
    let serve = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async move {
            let listener = ApiListener::bind(options).await.expect("port 0 is free");
            sender.send(listener.address()).expect("the test waits");
            listener.serve(serving, keys, stopping).await;
        });
    };
    let thread = std::thread::Builder::new().spawn(serve).expect("a thread");
    let address = receiver.recv().expect("it binds");
    Served {
        address,
        node,
        stop,
        dir,
        thread: Some(thread),
    }
}

impl Served {
    pub(crate) fn client(&self) -> Client {
        self.stranger().with_key(secret(API_KEY))
    }

    /// A client without a key.
    pub(crate) fn stranger(&self) -> Client {
        Client::new(self.address.to_string(), "the test")
    }

    /// Tells a command of the binary where it is, and its key.
    pub(crate) fn aim<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.args(["--api", &self.address.to_string()]);
        command.env("FLAGSTONE_API_KEY_FILE", self.key_file())
    }

    /// The file of its key.
    pub(crate) fn key_file(&self) -> PathBuf {
        self.dir.path().join("key")
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a time-out");
        stream
    }

    /// Sends bytes, reads all that comes back until the server closes.
    pub(crate) fn raw(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // A server that refuses early closes early; what it said still counts.
        let _ = stream.write_all(request);
        read_to_end(&mut stream)
    }

    /// The status of a request with the key whose head is given without its last empty line.
    pub(crate) fn status(&self, head: &str) -> u16 {
        let head = format!("{head}\r\nConnection: close\r\n\r\n");
        let answer = self.raw(&keyed(head.as_bytes()));
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        code.unwrap_or_else(|| panic!("no status in {answer:?}"))
    }

    /// Stops it and waits until it has.
    pub(crate) fn finish(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the API does not panic");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.finish();
        }
    }
}

pub(crate) fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset after the answer is fine: what arrived before it is there.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A folder that is removed when dropped.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new(what: &str) -> TempDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("flagstone-{what}-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        TempDir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Blocks this thread.
#[expect(
    clippy::disallowed_methods,
    reason = "tests wait for other processes and threads"
)]
pub(crate) fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
