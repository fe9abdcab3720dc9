//! A node's life: `dev` and `serve` over a node in memory, in a process of their own, so that
//! signals are real ones.
//!
//! The child is this test binary again, running [`child`] with its command line in the environment.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flagstone::api_key::{self, KeyUse};
use flagstone::client::Client;
use flagstone::exit::Exit;
use flagstone::node::*;
use flagstone::node_file::{DirLock, NodeFile};
use flagstone::offline::{FormatOptions, FormatReport};
use flagstone::serve::Backend;

use crate::fake_node::FakeNode;
use crate::support::{TempDir, pause};

const ARGS: &str = "FLAGSTONE_TEST_SERVE_ARGS";

/// Not a test: what the child does. Ignored, and without its environment it does nothing.
#[test]
#[ignore = "the child of the other tests"]
fn child() {
    let Ok(args) = std::env::var(ARGS) else {
        return;
    };
    let backend = Backend { start, format };
    let exit = flagstone::cli::run(args.split_whitespace(), backend, &mut std::io::stdout());
    std::process::exit(i32::from(exit.code()));
}

/// Starts a node in memory. Its device has to exist, as a real one's.
fn start(options: NodeOptions) -> Result<Arc<dyn Node>, NodeError> {
    let device = &options.devices[0].path;
    let doing = format!("opening device {}", device.display());
    let Ok(content) = std::fs::read_to_string(device) else {
        let error = NodeError::new(NodeErrorKind::NotFound, doing, "there is no such file");
        return Err(error.next("format it first"));
    };
    if content == "slow" {
        pause(600_000);
    }
    let node = FakeNode {
        options: Some(options),
        ..FakeNode::new()
    };
    node.starting.store(3, Ordering::Relaxed);
    if content == "stuck" {
        return Ok(Arc::new(Stuck(node)));
    }
    Ok(Arc::new(node))
}

fn format(path: &Path, options: &FormatOptions) -> Result<FormatReport, NodeError> {
    assert!(!path.exists(), "dev formats nothing that is there");
    std::fs::write(path, "formatted").expect("written");
    Ok(FormatReport {
        id: "0".repeat(32),
        size_bytes: options.size_bytes.expect("dev says a size"),
        format_version: 1,
        segments: 8,
        warning: None,
    })
}

/// A node whose shutdown never ends.
struct Stuck(FakeNode);

macro_rules! forward {
    ($($method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $method(&self, $($arg: $type),*) -> NodeFuture<'_, $answer> {
            self.0.$method($($arg),*)
        })*
    };
}

use flagstone::name::{SnapshotRef, SourceRef};

impl Node for Stuck {
    forward! {
        create_volume(spec: VolumeSpec) -> CreatedVolume;
        create_token(volume: String, spec: TokenSpec) -> NewToken;
        restrict_volume(name: String, restrictions: Restrictions) -> VolumeInfo;
        list_tokens(volume: String) -> TokenList;
        revoke_token(volume: String, number: u32) -> TokenInfo;
        rotate_token(volume: String, number: u32, spec: RotateSpec) -> NewToken;
        list_volumes(query: PageQuery) -> VolumePage;
        show_volume(name: String) -> VolumeInfo;
        resize_volume(name: String, size_bytes: u64, allow_data_loss: bool) -> VolumeInfo;
        rename_volume(name: String, new_name: String) -> VolumeInfo;
        delete_volume(name: String, with_snapshots: bool) -> ();
        clone_volume(source: SourceRef, new_name: String) -> VolumeInfo;
        rollback_volume(snapshot: SnapshotRef) -> VolumeInfo;
        check_departure(name: String) -> VolumeInfo;
        promise_arrival(spec: ArrivalSpec) -> Arrival;
        give_back_arrival(number: u32) -> ArrivingVolume;
        move_volume(name: String, spec: MoveSpec) -> MoveInfo;
        show_move(name: String) -> MoveInfo;
        cancel_move(name: String) -> MoveInfo;
        limit_move(name: String, limit_bytes: Option<u64>) -> MoveInfo;
        force_move(name: String, word: MoveWord) -> ForcedMove;
        set_reservation(name: String, reserve: Reservation) -> VolumeInfo;
        set_slo(name: String, slo: Slo, oversubscribe: bool) -> VolumeInfo;
        set_snapshot_schedule(name: String, schedule: Option<SnapshotSchedule>) -> VolumeInfo;
        set_schedule(device: String, schedule: Schedule) -> DeviceInfo;
        create_snapshots(snapshots: Vec<SnapshotRef>) -> Vec<SnapshotInfo>;
        list_snapshots(query: SnapshotQuery) -> SnapshotPage;
        show_snapshot(snapshot: SnapshotRef) -> SnapshotInfo;
        delete_snapshot(snapshot: SnapshotRef) -> ();
        rename_snapshot(snapshot: SnapshotRef, new_name: String) -> SnapshotInfo;
        open_stream(snapshot: SnapshotRef, since: Option<String>) -> StreamSource;
        read_stream(source: StreamSource, from_bytes: u64) -> StreamPart;
        begin_receive(spec: ReceiveSpec) -> ReceiveId;
        receive_part(id: ReceiveId, runs: Vec<StreamRun>) -> ();
        finish_receive(id: ReceiveId) -> SnapshotInfo;
        abandon_receive(id: ReceiveId) -> ();
        create_filesystem(spec: FilesystemSpec) -> FilesystemInfo;
        list_filesystems(query: PageQuery) -> FilesystemPage;
        show_filesystem(name: String) -> FilesystemInfo;
        change_filesystem(name: String, changes: FilesystemChanges) -> FilesystemInfo;
        set_image_store(filesystem: String, spec: ImageStoreSpec) -> FilesystemInfo;
        delete_filesystem(name: String, with_snapshots: bool, even_if_used: bool) -> ();
        roll_back_filesystem(filesystem: String, snapshot: String) -> FilesystemInfo;
        check_filesystems(name: Option<String>) -> FilesystemCheck;
        clone_file(filesystem: String, spec: FileCloneSpec) -> ClonedFile;
        create_filesystem_snapshot(filesystem: String, name: String) -> FilesystemSnapshotInfo;
        list_filesystem_snapshots(filesystem: String) -> FilesystemSnapshotPage;
        delete_filesystem_snapshot(filesystem: String, name: String) -> ();
        list_devices() -> Vec<DeviceInfo>;
        show_device(device: String) -> DeviceInfo;
        list_journals(device: String) -> Vec<JournalInfo>;
        hand_over_journal(device: String, journal: u16, core: u32) -> HandedOverJournal;
        read_trace(device: String, query: TraceQuery) -> DeviceTrace;
        start_scrub(device: String) -> ScrubStatus;
        scrub_status(device: String) -> ScrubStatus;
        info() -> NodeInfo;
        metrics() -> MetricsSnapshot;
        look() -> Look;
    }

    fn shutdown(&self) -> NodeFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// A child that serves.
pub(crate) struct Node1 {
    pub(crate) child: Child,
    out: BufReader<std::process::ChildStdout>,
}

pub(crate) fn launch(args: &str) -> Node1 {
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args([
            "serve::child",
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ARGS, format!("flagstone {args}"))
        .env_remove("FLAGSTONE_DIR")
        .env_remove("FLAGSTONE_LOG")
        .env_remove("FLAGSTONE_API_KEY_FILE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    Node1 { child, out }
}

impl Node1 {
    /// Its output up to and with the line that begins with `ready`.
    pub(crate) fn until_ready(&mut self) -> String {
        let mut text = String::new();
        loop {
            let mut line = String::new();
            let count = self.out.read_line(&mut line).expect("text");
            assert!(
                count > 0,
                "it ended before it was ready: {text}{}",
                self.errors()
            );
            // The test harness of the child talks, too.
            if line.starts_with("running ") || line == "\n" {
                continue;
            }
            text += &line;
            if line.starts_with("ready") {
                return text;
            }
        }
    }

    pub(crate) fn errors(&mut self) -> String {
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().expect("piped");
        stderr.read_to_string(&mut text).expect("text");
        text
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill")
            .args(["-s", name, &pid])
            .status()
            .expect("kill runs");
        assert!(status.success());
    }

    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Node1 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) const ANY_PORT: &str = "--api 127.0.0.1:0 --nbd 127.0.0.1:0 --nfs 127.0.0.1:0";

pub(crate) fn client(dir: &TempDir) -> Client {
    let file = NodeFile::read(dir.path()).expect("node.json is there once it is ready");
    let key = api_key::load(dir.path(), KeyUse::Api).expect("its key is there, too");
    Client::new(file.api, "node.json").with_key(key)
}

#[test]
fn dev_creates_what_is_missing_once() {
    let dir = TempDir::new("dev");
    let args = format!("dev --dir {} --size 5G {ANY_PORT}", dir.path().display());
    let mut node = launch(&args);
    let text = node.until_ready();
    assert!(text.contains("created "), "{text}");
    assert!(text.contains("(5 GiB)"), "{text}");
    for line in [
        "qemu-img convert",
        "qemu-system-x86_64",
        "nbd-client",
        "nbdcopy",
        "fio ",
        "sudo mount -t nfs -o port=12049,mountport=12049,vers=3,tcp,nolock 127.0.0.1:/demo-files /mnt",
        "nfs-ls 'nfs://127.0.0.1/demo-files?version=3&nfsport=12049&mountport=12049'",
        "flagstone fs create NAME",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let file = NodeFile::read(dir.path()).expect("written");
    assert_eq!(file.pid, node.child.id());
    let ready = text.lines().last().expect("a line");
    assert!(
        ready.starts_with(&format!("ready api={} nbd=", file.api)),
        "{ready}"
    );
    assert!(!file.api.ends_with(":0"), "the real port");
    let demo: VolumeInfo = client(&dir).get("/v1/volumes/demo").expect("there");
    assert_eq!(demo.size_bytes, 1 << 30);
    let files = client(&dir).get::<FilesystemInfo>("/v1/filesystems/demo-files");
    files.expect("there");
    // Told once, when it is made: here it is kept, and the output says where.
    let path = dir.path().join("demo.token");
    let told = format!(
        "its owner's token, for the native protocol, is in {}",
        path.display()
    );
    assert!(text.contains(&told), "{text}");
    let token = std::fs::read_to_string(&path).expect("kept");
    assert_eq!(token.trim_end(), crate::fake_tokens::text(1).0);
    assert!(!text.contains(token.trim_end()), "{text}");
    let mode = std::fs::metadata(&path)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    node.signal("TERM");
    assert_eq!(node.exit_code(), Some(0));
    assert!(!dir.path().join("node.json").exists());
    assert!(!dir.path().join("demo.pending").exists());
    assert!(!DirLock::is_held(dir.path()));

    // The second time nothing is created: the node in memory has forgotten the volume, and it is
    // not made again.
    let mut node = launch(&args);
    let text = node.until_ready();
    assert!(!text.contains("created "), "{text}");
    let page: VolumePage = client(&dir).get("/v1/volumes").expect("listed");
    assert!(page.items.is_empty());
    assert!(
        text.contains("no filesystem yet; to make one: flagstone fs create"),
        "{text}"
    );
    node.signal("INT");
    assert_eq!(node.exit_code(), Some(0));
}

/// It would add to the device what nobody can use.
#[test]
fn without_nfs_dev_makes_no_filesystem() {
    let dir = TempDir::new("no-nfs");
    let ports = "--api 127.0.0.1:0 --nbd 127.0.0.1:0 --nfs none";
    let mut node = launch(&format!("dev --dir {} {ports}", dir.path().display()));
    let text = node.until_ready();
    assert!(!text.contains("filesystem"), "{text}");
    assert!(!text.contains(" nfs="), "{text}");
    let page: FilesystemPage = client(&dir).get("/v1/filesystems").expect("listed");
    assert!(page.items.is_empty());
}

#[test]
fn dev_finishes_what_a_crash_interrupted() {
    let dir = TempDir::new("half");
    // Killed while formatting, and again between the device and its first volume.
    std::fs::write(dir.path().join("device.img.new"), "half").expect("written");
    std::fs::write(dir.path().join("demo.pending"), "").expect("written");
    std::fs::write(dir.path().join("node.json"), "{}").expect("written");
    let mut node = launch(&format!("dev --dir {} {ANY_PORT}", dir.path().display()));
    node.until_ready();
    let _: VolumeInfo = client(&dir).get("/v1/volumes/demo").expect("there");
    assert!(dir.path().join("demo.token").exists());
    assert!(!dir.path().join("device.img.new").exists());
}

#[test]
fn a_folder_has_one_node() {
    let dir = TempDir::new("one");
    let args = format!("dev --dir {} {ANY_PORT}", dir.path().display());
    let mut first = launch(&args);
    first.until_ready();
    let mut second = launch(&args);
    assert_eq!(second.exit_code(), Some(i32::from(Exit::Busy.code())));
    let errors = second.errors();
    let waiting = format!("another node (process {}) serves", first.child.id());
    let (told, failed) = (
        errors.find(&waiting),
        errors.find("another node serves this folder"),
    );
    assert!(told.is_some() && told < failed, "{errors}");
    let _: NodeInfo = client(&dir)
        .get("/v1/node")
        .expect("the first is not disturbed");
    // A killed node's folder is free again, whatever it left behind.
    first.signal("KILL");
    assert_eq!(first.exit_code(), None);
    let mut third = launch(&args);
    third.until_ready();
}

#[test]
fn serve_formats_nothing() {
    let dir = TempDir::new("serve");
    let device = dir.path().join("disk.img");
    let common = format!("--dir {} {ANY_PORT}", dir.path().display());
    let args = format!("serve --device {} {common}", device.display());
    let mut node = launch(&args);
    assert_eq!(node.exit_code(), Some(i32::from(Exit::NotFound.code())));
    assert!(node.errors().contains("format it first"));
    assert!(!device.exists());
    std::fs::write(&device, "formatted").expect("written");
    let mut node = launch(&args);
    let text = node.until_ready();
    let create = "no volume yet; to make one: flagstone volume create NAME";
    assert!(text.contains(create), "{text}");
    assert!(!text.contains("nbd-client"), "nothing to attach: {text}");
    client(&dir)
        .call("POST", "/v1/node/stop")
        .expect("accepted");
    assert_eq!(node.exit_code(), Some(0), "stopped by a request");
    // The same from a file, with an option that overrides it.
    let config = dir.path().join("flagstone.toml");
    let socket = dir.path().join("nbd.sock");
    let text = format!(
        "[nbd]\nunix = \"{}\"\n[[device]]\npath = \"{}\"\n[api]\nlisten = \"10.255.255.1:1\"\n",
        socket.display(),
        device.display()
    );
    std::fs::write(&config, text).expect("written");
    let mut node = launch(&format!("serve --config {} {common}", config.display()));
    let text = node.until_ready();
    assert!(
        text.contains(&format!("nbd-unix={}", socket.display())),
        "{text}"
    );
    node.signal("TERM");
    assert_eq!(node.exit_code(), Some(0));
    let mut node = launch(&format!("serve {common}"));
    assert_eq!(
        node.exit_code(),
        Some(i32::from(Exit::Usage.code())),
        "no device"
    );
}

#[test]
fn remote_and_taken_addresses_are_refused_before_anything_is_made() {
    let dir = TempDir::new("address");
    let shown = dir.path().display();
    let mut node = launch(&format!("dev --dir {shown} --api 0.0.0.0:0"));
    assert_eq!(node.exit_code(), Some(i32::from(Exit::Refused.code())));
    assert!(node.errors().contains("--allow-remote-api"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken
        .local_addr()
        .map(|address| (address, taken))
        .expect("bound");
    let mut node = launch(&format!("dev --dir {shown} --api {}", taken.0));
    assert_eq!(node.exit_code(), Some(i32::from(Exit::Busy.code())));
    assert!(node.errors().contains("choose another address with --api"));
    assert!(!dir.path().join("device.img").exists());
    let mut node = launch(&format!(
        "dev --dir {shown} --api 0.0.0.0:0 --allow-remote-api"
    ));
    node.until_ready();
}

#[test]
fn signals_before_ready_and_twice() {
    let dir = TempDir::new("signals");
    let device = dir.path().join("disk.img");
    let args = format!(
        "serve --device {} --dir {} {ANY_PORT} --log-level info",
        device.display(),
        dir.path().display()
    );
    // While the node starts, one signal is enough.
    std::fs::write(&device, "slow").expect("written");
    let mut node = launch(&args);
    while !DirLock::is_held(dir.path()) {
        pause(10);
    }
    // The lock is taken a moment before signals are caught; either way the process ends.
    node.signal("TERM");
    let code = node.exit_code();
    assert!(code == Some(128 + 15) || code.is_none(), "{code:?}");
    // A node that doesn't stop: the second signal ends it.
    std::fs::write(&device, "stuck").expect("written");
    let mut node = launch(&args);
    node.until_ready();
    node.signal("TERM");
    let mut log = String::new();
    let mut errors = BufReader::new(node.child.stderr.take().expect("piped"));
    while !log.contains("stopping") {
        assert!(errors.read_line(&mut log).expect("text") > 0, "{log}");
    }
    assert!(
        node.child.try_wait().expect("known").is_none(),
        "it waits for the node"
    );
    node.signal("INT");
    assert_eq!(node.exit_code(), Some(128 + 2));
}

#[test]
fn log_lines_as_json() {
    let dir = TempDir::new("log");
    let args = format!(
        "dev --dir {} {ANY_PORT} --log-format json --log-level info",
        dir.path().display()
    );
    let mut node = launch(&args);
    node.until_ready();
    let client = client(&dir);
    client.call("DELETE", "/v1/volumes/demo").expect("deleted");
    node.signal("TERM");
    assert_eq!(node.exit_code(), Some(0));
    let log = node.errors();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let request = lines
        .iter()
        .find(|line| line["message"] == "request")
        .expect("logged");
    assert_eq!(
        (&request["method"], &request["status"]),
        (&"DELETE".into(), &204.into())
    );
    assert_eq!(request["path"], "/v1/volumes/demo");
    assert!(lines.iter().any(|line| line["message"] == "stopped"));
    assert!(
        log.contains("registered buffers are off"),
        "notices are logged"
    );
}
