//! Streams of snapshots through the API and the real binary: whole ones pass, all others leave nothing.

use std::io::{Read, Write};
use std::process::Stdio;

use flagstone::api::STREAM_TYPE;
use flagstone::exit::Exit;
use flagstone::node::StreamRun;
use flagstone_wire::stream::{Decoder, Event};

use crate::cli::{Ran, binary, fails, ran};
use crate::fake_streams::Streams;
use crate::support::{Served, TempDir, keyed, pause, serve, serve_with};

fn run_with(served: &Served, args: &[&str], input: &[u8]) -> Ran {
    let mut command = binary();
    command.args(args);
    served.aim(&mut command);
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    // One that refuses at once reads nothing.
    let _ = stdin.write_all(input);
    drop(stdin);
    ran(child.wait_with_output().expect("it ends"))
}

/// The bytes that a command writes.
fn bytes_of(served: &Served, args: &[&str]) -> Vec<u8> {
    let mut command = binary();
    command.args(args);
    served.aim(&mut command);
    let output = command.output().expect("the binary starts");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr, b"");
    output.stdout
}

/// A node with `vm-1@monday` and `vm-1@tuesday`.
fn served() -> Served {
    let served = serve();
    for args in [
        ["volume", "create", "vm-1", "--size=1M"].as_slice(),
        &["snapshot", "create", "vm-1@monday"],
        &["snapshot", "create", "vm-1@tuesday"],
    ] {
        bytes_of(&served, args);
    }
    served
}

fn streams<T>(served: &Served, look: impl FnOnce(&Streams) -> T) -> T {
    look(&served.node.state.lock().expect("not poisoned").streams)
}

fn abandoned(served: &Served) -> u32 {
    streams(served, |streams| streams.abandoned)
}

fn wait_until_abandoned(served: &Served, count: u32) {
    while abandoned(served) < count {
        pause(5);
    }
    assert_eq!(abandoned(served), count);
}

fn expected_runs() -> Vec<StreamRun> {
    vec![
        StreamRun::Data {
            offset_bytes: 0,
            bytes: vec![7; 4096],
        },
        StreamRun::Zeros {
            offset_bytes: 8192,
            len_bytes: 4096,
        },
    ]
}

/// Sends `vm-1@monday`: its exit code, and what it says is wrong.
fn send_to(served: &Served, out: Stdio, to: &str) -> Ran {
    let mut command = binary();
    command.args(["snapshot", "send", "vm-1@monday", "--to", to]);
    served.aim(&mut command);
    command.stdout(out).stderr(Stdio::piped());
    ran(command.output().expect("the binary starts"))
}

#[test]
fn who_does_not_take_all_of_a_stream_has_no_backup() {
    let served = served();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let sent = send_to(&served, writer.into(), "-");
    assert_eq!(sent.exit, i32::from(Exit::Internal.code()), "{}", sent.err);
    let said = "standard output did not take all of the stream";
    assert!(sent.err.contains(said), "{}", sent.err);

    let dir = TempDir::new("streams-full");
    let full = dir.path().join("full");
    std::os::unix::fs::symlink("/dev/full", &full).expect("a link");
    let sent = send_to(&served, Stdio::piped(), full.to_str().expect("text"));
    assert_eq!(sent.exit, i32::from(Exit::NoSpace.code()), "{}", sent.err);
    assert!(sent.err.contains("send it again"), "{}", sent.err);
    assert!(full.is_symlink(), "what takes a stream stays what it is");
}

/// Said before anything is sent, and nothing is made beside it.
#[test]
fn a_folder_takes_no_stream() {
    let served = served();
    let dir = TempDir::new("streams-folder");
    let folder = dir.path().join("backups");
    std::fs::create_dir(&folder).expect("a folder");
    let sent = send_to(&served, Stdio::piped(), folder.to_str().expect("text"));
    assert_eq!(sent.exit, i32::from(Exit::Usage.code()), "{}", sent.err);
    let said = "it is a folder\n  name the file that the stream shall become";
    assert!(sent.err.contains(said), "{}", sent.err);
    let left = std::fs::read_dir(dir.path()).expect("reads").count();
    assert_eq!(left, 1, "the folder alone");
}

#[test]
fn a_pipe_with_a_name_takes_a_stream_and_stays_a_pipe() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let served = served();
    let dir = TempDir::new("streams-fifo");
    let fifo = dir.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo starts").success());
    let mut reader = std::process::Command::new("cat");
    reader.arg(&fifo).stdout(Stdio::piped());
    let reader = reader.spawn().expect("cat starts");
    let sent = send_to(&served, Stdio::piped(), fifo.to_str().expect("text"));
    assert_eq!((sent.exit, sent.err.as_str()), (0, ""));
    let kind = std::fs::metadata(&fifo).expect("is there").file_type();
    assert!(kind.is_fifo(), "{kind:?}");
    assert_eq!(sent.out, "", "nothing is said where a stream may go");
    let passed = reader.wait_with_output().expect("ends").stdout;
    // The sentence would be behind the stream.
    let (mut piped, writer) = std::io::pipe().expect("a pipe");
    let sent = send_to(&served, writer.into(), "/dev/stdout");
    assert_eq!((sent.exit, sent.err.as_str()), (0, ""));
    let mut bytes = Vec::new();
    piped.read_to_end(&mut bytes).expect("reads");
    assert_eq!(bytes, passed);
    let file = dir.path().join("monday.fss");
    let sent = send_to(&served, Stdio::piped(), file.to_str().expect("text"));
    assert_eq!((sent.exit, sent.err.as_str()), (0, ""));
    assert_eq!(std::fs::read(&file).expect("reads"), passed);
    let mode = std::fs::metadata(&file).expect("is there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600, "nobody else's to read");
    // Through a link, beside what somebody has left there.
    let (link, linked) = (dir.path().join("link"), dir.path().join("linked.fss"));
    std::fs::write(&linked, "old").expect("is written");
    std::fs::write(dir.path().join("linked.fss.part"), "left").expect("is written");
    std::os::unix::fs::symlink(&linked, &link).expect("a link");
    let sent = send_to(&served, Stdio::piped(), link.to_str().expect("text"));
    assert_eq!((sent.exit, sent.err.as_str()), (0, ""));
    assert!(link.is_symlink());
    assert_eq!(std::fs::read(&linked).expect("reads"), passed);
    let mode = std::fs::metadata(&linked).expect("is there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
}

#[test]
fn a_snapshot_goes_through_a_pipe_and_through_files() {
    let served = served();
    let dir = TempDir::new("streams");
    let stream = bytes_of(&served, &["snapshot", "send", "vm-1@monday"]);
    let mut decoder = Decoder::default();
    decoder.push(&stream);
    let first = decoder.next_event().expect("good");
    assert!(
        matches!(&first, Some(Event::Header(header)) if header.snapshot == "monday"),
        "{first:?}"
    );
    while decoder.next_event().expect("good").is_some() {}
    assert_eq!(decoder.finish().expect("whole").data_bytes, 4096);

    let file = dir.path().join("tuesday.fss");
    let path = file.to_str().expect("text");
    let send = ["snapshot", "send", "vm-1@tuesday", "--since=vm-1@monday"];
    let said = bytes_of(&served, &[&send[..], &["--to", path]].concat());
    let said = String::from_utf8(said).expect("text");
    assert_eq!(said, format!("wrote 4 KiB of data to {path}\n"));
    assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 1);

    let whole = run_with(&served, &["snapshot", "receive", "copy"], &stream);
    assert_eq!(whole.err, "");
    assert_eq!(whole.out, "received copy@monday\n");
    let onto = ["snapshot", "receive", "copy@second", "--from", path];
    let said = bytes_of(&served, &[&onto[..], &["--force"]].concat());
    assert_eq!(said, b"received copy@second\n");
    streams(&served, |streams| {
        let names: Vec<&String> = streams.received.keys().collect();
        assert_eq!(names, ["copy@monday", "copy@second by force"]);
        for runs in streams.received.values() {
            assert_eq!(*runs, expected_runs());
        }
        assert_eq!(streams.abandoned, 0);
    });
}

#[test]
fn a_stream_that_is_not_whole_leaves_nothing() {
    let served = served();
    let stream = bytes_of(&served, &["snapshot", "send", "vm-1@monday"]);
    let receive = |bytes: &[u8]| run_with(&served, &["snapshot", "receive", "copy"], bytes);
    let cut = receive(&stream[..stream.len() - 1]);
    fails(&cut, Exit::Corrupt, "before its trailer");
    let mut damaged = stream.clone();
    damaged[600] ^= 1;
    fails(&receive(&damaged), Exit::Corrupt, "is damaged");
    let longer = [&stream[..], b"x"].concat();
    fails(&receive(&longer), Exit::Corrupt, "follows its end");
    assert_eq!(abandoned(&served), 3);
    // Nothing was begun.
    fails(&receive(b""), Exit::Corrupt, "ends after 0 bytes");
    fails(&receive(&[b'x'; 600]), Exit::Corrupt, "does not begin");
    assert_eq!(abandoned(&served), 3);
    fails(
        &run_with(&served, &["snapshot", "receive", "vm-1"], &stream),
        Exit::AlreadyExists,
        "there already is",
    );
    assert_eq!(abandoned(&served), 3);
    assert!(streams(&served, |streams| streams.received.is_empty()));
}

#[test]
fn a_client_that_goes_away_or_says_nothing_leaves_nothing() {
    let served = served();
    let stream = bytes_of(&served, &["snapshot", "send", "vm-1@monday"]);
    let head = format!(
        "POST /v1/volumes/copy/receive HTTP/1.1\r\nHost: localhost\r\nContent-Type: {STREAM_TYPE}\r\n\
         Transfer-Encoding: chunked\r\n\r\n{:x}\r\n",
        stream.len()
    );
    let mut connection = served.connect();
    connection.write_all(&keyed(head.as_bytes())).expect("sent");
    connection.write_all(&stream).expect("sent");
    // All of the stream is there, and not the end of the body.
    drop(connection);
    wait_until_abandoned(&served, 1);
    assert!(streams(&served, |streams| streams.received.is_empty()));

    let impatient = serve_with(|limits| {
        limits.stream_timeout = std::time::Duration::from_millis(50);
    });
    let mut connection = impatient.connect();
    connection.write_all(&keyed(head.as_bytes())).expect("sent");
    connection.write_all(&stream[..600]).expect("sent");
    wait_until_abandoned(&impatient, 1);
    drop(connection);
}

#[test]
fn only_streams_are_received() {
    let served = served();
    let request = |media_type: &str| {
        served.status(&format!(
            "POST /v1/volumes/copy/receive HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\
             Content-Type: {media_type}"
        ))
    };
    assert_eq!(request("text/plain"), 415, "what a web page could send");
    assert_eq!(request(STREAM_TYPE), 422);
}

#[test]
fn a_stream_that_the_node_cuts_off_becomes_no_file() {
    let served = served();
    bytes_of(&served, &["snapshot", "create", "vm-1@broken"]);
    let dir = TempDir::new("cut-off");
    let file = dir.path().join("broken.fss");
    let path = file.to_str().expect("text");
    let send = ["snapshot", "send", "vm-1@broken"];
    let cut = run_with(&served, &[&send[..], &["--to", path]].concat(), b"");
    fails(&cut, Exit::NotReachable, "did not send all of the stream");
    assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
    let missing = run_with(&served, &["snapshot", "send", "vm-1@no"], b"");
    fails(&missing, Exit::NotFound, "there is no such snapshot");
    let other = ["snapshot", "send", "vm-1@monday", "--since=vm-2@x"];
    fails(
        &run_with(&served, &other, b""),
        Exit::Usage,
        "another volume",
    );
    let from = ["snapshot", "receive", "copy", "--from", path];
    fails(&run_with(&served, &from, b""), Exit::NotFound, "reading");
}
