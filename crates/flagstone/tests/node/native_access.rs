//! Who is kept out of a volume by its address or its token, over the native protocol and NBD, and what the audit log
//! says of it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, Once};
use std::time::Duration;

use flagstone::node::{NodeOptions, Restrictions, RotateSpec, TokenKind};
use flagstone_wire::Status;
use flagstone_wire::operation::flag;

use crate::client;
use crate::native::client::Native;
use crate::native::{addresses, listening, token, volume};
use crate::support::Scene;
use crate::volume_files::exporting;

/// The audit log and the warnings of all nodes of this process. Tests know their lines by their volumes' names.
static AUDIT: Mutex<String> = Mutex::new(String::new());

struct Audit;

impl Write for Audit {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        if line.contains(" audit: ") || line.contains(" WARN ") {
            AUDIT.lock().expect("nobody panics").push_str(&line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// To be called before a node is started.
pub(crate) fn watch_audit() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(|| Audit)
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("no other test has one");
    });
}

/// Lines about a volume that say this.
pub(crate) fn told(volume: &str, what: &str) -> Vec<String> {
    let named = format!("volume=\"{volume}");
    let lines = AUDIT.lock().expect("nobody panics");
    let found = lines.lines();
    let found = found.filter(|line| line.contains(&named) && line.contains(what));
    found.map(str::to_owned).collect()
}

/// Refusals of one address have ten lines within a second. Those that come next are not too many behind this.
#[allow(
    clippy::disallowed_methods,
    reason = "the lines of a real node are counted in real time"
)]
fn wait_for_lines() {
    std::thread::sleep(Duration::from_millis(1100));
}

/// A node that listens on all addresses, and exports its volumes as files.
pub(crate) fn everywhere() -> Scene {
    watch_audit();
    Scene::with(|options| {
        everywhere_of(options);
        options.nbd_unix = Some(options.devices[0].path.with_extension("nbd"));
    })
}

pub(crate) fn everywhere_of(options: &mut NodeOptions) {
    exporting(options);
    let all = Some("0.0.0.0:0".parse().expect("an address"));
    (options.native, options.nbd, options.nfs) = (all, all, all);
}

pub(crate) fn restrict(scene: &Scene, volume: &str, from: &[&str], on: &[&str]) {
    let restrictions = Restrictions {
        allow_from: from.iter().map(|text| text.parse().expect(text)).collect(),
        allow_on: on.iter().map(|text| text.parse().expect(text)).collect(),
    };
    let done = scene.ask(|node| node.restrict_volume(volume.to_owned(), restrictions));
    done.expect("restricted");
}

/// What is allowed from where, on which address of the node that is connected to, and the rule if not. A client of
/// another loopback address than the first is itself the first one: the two ends differ.
pub(crate) type Case = (
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
    Option<&'static str>,
);

const PEER: Option<&str> = Some("rule=\"address\"");
const LOCAL: Option<&str> = Some("rule=\"local-address\"");

pub(crate) const CASES: [Case; 8] = [
    (&[], &[], "127.0.0.1", None),
    (&["10.0.0.0/8"], &[], "127.0.0.1", PEER),
    (&["127.0.0.0/8"], &[], "127.0.0.1", None),
    (&[], &["127.0.0.2"], "127.0.0.1", LOCAL),
    (&[], &["127.0.0.2"], "127.0.0.2", None),
    (&["127.0.0.1"], &[], "127.0.0.2", None),
    (&["127.0.0.2"], &[], "127.0.0.2", PEER),
    (&["127.0.0.1"], &["127.0.0.2"], "127.0.0.2", None),
];

pub(crate) fn port_of(text: &str) -> u16 {
    text.parse::<SocketAddr>().expect("an address").port()
}

pub(crate) fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address"), port)
}

#[test]
fn addresses_decide_who_opens_with_a_right_token() {
    let scene = everywhere();
    let key = volume(&scene, "by-address", None);
    let info = scene.ask(|node| node.info()).expect("its description");
    let port = port_of(&info.native_addresses[0]);
    for (from, on, to, rule) in CASES {
        restrict(&scene, "by-address", from, on);
        let before = told("by-address", "open refused").len();
        let answer = Native::connect(at(to, port)).open("by-address", &key, 0);
        let lines = told("by-address", "open refused").split_off(before);
        let Some(rule) = rule else {
            assert_eq!(answer.status(), Status::Ok, "{from:?} {on:?} {to}");
            assert!(lines.is_empty(), "{lines:?}");
            continue;
        };
        assert_eq!(answer.status(), Status::Denied, "{from:?} {on:?} {to}");
        let [line] = &lines[..] else {
            panic!("one line expected: {lines:?}");
        };
        let ends = format!("from=\"127.0.0.1\" on=\"{to}\"");
        for part in [
            rule,
            &ends,
            "token=1 client=\"test\"",
            "protocol=\"native\"",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(!line.contains(&key.0[2..10]), "{line}");
    }
    // What is open stays open.
    restrict(&scene, "by-address", &[], &[]);
    let mut native = Native::connect(at("127.0.0.1", port));
    let open = native.opened("by-address", &key, 0);
    restrict(&scene, "by-address", &["10.0.0.0/8"], &[]);
    assert_eq!(native.read(open, 0, 512).status(), Status::Ok);
}

const EXPORT_NAME: u32 = 1;
const LIST: u32 = 3;
const STRUCTURED_REPLY: u32 = 8;
const INFO: u32 = 6;
pub(crate) const GO: u32 = 7;
const LIST_META_CONTEXT: u32 = 9;

pub(crate) const ACK: u32 = 1;
const SERVER: u32 = 2;
pub(crate) const POLICY: u32 = 1 << 31 | 2;

/// A negotiation of NBD, option by option.
pub(crate) struct Negotiation<S>(S);

impl Negotiation<TcpStream> {
    pub(crate) fn connect(address: SocketAddr) -> Negotiation<TcpStream> {
        let stream = TcpStream::connect(address).expect("it listens");
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).expect("a time limit");
        Negotiation::greeted(stream)
    }
}

impl<S: Read + Write> Negotiation<S> {
    fn greeted(mut stream: S) -> Negotiation<S> {
        stream.read_exact(&mut [0; 18]).expect("a greeting");
        stream.write_all(&3u32.to_be_bytes()).expect("sent");
        Negotiation(stream)
    }

    fn send(&mut self, option: u32, data: &[u8]) {
        let len = data.len() as u32;
        let head = [&b"IHAVEOPT"[..], &option.to_be_bytes(), &len.to_be_bytes()].concat();
        self.0.write_all(&[&head, data].concat()).expect("sent");
    }

    /// Kinds and data of the replies to an option, the last one's included.
    fn ask(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(option, data);
        let mut replies = Vec::new();
        loop {
            let mut head = [0; 20];
            self.0.read_exact(&mut head).expect("a reply");
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four"));
            let (kind, mut data) = (number(12), vec![0; number(16) as usize]);
            self.0.read_exact(&mut data).expect("its data");
            replies.push((kind, data));
            if kind == ACK || kind & 1 << 31 != 0 {
                return replies;
            }
        }
    }

    /// The last reply to an option about an export.
    pub(crate) fn of(&mut self, option: u32, export: &str) -> u32 {
        let mut data = (export.len() as u32).to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        let counts = [0; 4];
        data.extend(&counts[..if option == LIST_META_CONTEXT { 4 } else { 2 }]);
        self.ask(option, &data).last().expect("a reply").0
    }

    pub(crate) fn list(&mut self) -> Vec<String> {
        let replies = self.ask(LIST, &[]).into_iter();
        let servers = replies.filter(|(kind, _)| *kind == SERVER);
        let name = |data: Vec<u8>| String::from_utf8_lossy(&data[4..]).into_owned();
        servers.map(|(_, data)| name(data)).collect()
    }
}

/// What a client is told that can't attach an export.
pub(crate) fn why_not_attached(address: SocketAddr, export: &str) -> String {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    data.extend([0; 2]);
    let replies = Negotiation::connect(address).ask(GO, &data);
    let (kind, text) = replies.last().expect("a reply");
    assert_ne!(*kind, ACK, "it is attached");
    String::from_utf8_lossy(text).into_owned()
}

#[test]
fn addresses_decide_who_gets_an_export() {
    let scene = everywhere();
    volume(&scene, "exported", None);
    let snapshot = "exported@mon".parse().expect("a snapshot");
    let taken = scene.ask(|node| node.create_snapshots(vec![snapshot]));
    taken.expect("taken");
    volume(&scene, "open-to-all", None);
    let port = scene.tcp.port();
    for (from, on, to, rule) in CASES {
        restrict(&scene, "exported", from, on);
        let case = format!("{from:?} {on:?} {to}");
        if rule.is_some() {
            wait_for_lines();
        }
        let before = told("exported", "open refused").len();
        for export in ["exported", "exported@mon"] {
            let wanted = if rule.is_some() { POLICY } else { ACK };
            let mut client = Negotiation::connect(at(to, port));
            assert_eq!(client.of(INFO, export), wanted, "{case}");
            assert_eq!(client.of(GO, export), wanted, "{case}");
            if rule.is_some() {
                // The connection goes on, and gets what it may have.
                assert_eq!(client.ask(STRUCTURED_REPLY, &[])[0].0, ACK);
                assert_eq!(client.of(LIST_META_CONTEXT, export), POLICY, "{case}");
                assert_eq!(client.of(GO, "open-to-all"), ACK, "{case}");
            }
            let mut client = Negotiation::connect(at(to, port));
            client.send(EXPORT_NAME, export.as_bytes());
            let answered = client.0.read_exact(&mut [0; 10]).is_ok();
            assert_eq!(answered, rule.is_none(), "{case}");
        }
        let listed = Negotiation::connect(at(to, port)).list();
        let is_listed = listed.iter().any(|name| name == "exported");
        assert_eq!(is_listed, rule.is_none(), "{case}");
        assert!(listed.iter().any(|name| name == "open-to-all"));
        let lines = told("exported", "open refused").split_off(before);
        assert_eq!(lines.len(), if rule.is_some() { 8 } else { 0 }, "{lines:?}");
        let ends = format!("from=\"127.0.0.1\" on=\"{to}\"");
        for line in lines {
            for part in [rule.unwrap_or_default(), &ends, "protocol=\"nbd\""] {
                assert!(line.contains(part), "{part} in {line}");
            }
        }
    }
    // What is open stays open; a Unix socket has no address, so it is in no network.
    let socket = scene.device_path().with_extension("nbd");
    let local = || Negotiation::greeted(UnixStream::connect(&socket).expect("it listens"));
    restrict(&scene, "exported", &[], &[]);
    let mut open = scene.attach("exported");
    assert_eq!(local().of(GO, "exported"), ACK);
    restrict(&scene, "exported", &["10.0.0.0/8"], &[]);
    assert_eq!(open.write(0, &[1; 512]), 0);
    assert_eq!(local().of(GO, "exported"), POLICY);
    restrict(&scene, "exported", &["0.0.0.0/0"], &[]);
    assert_eq!(local().of(GO, "exported"), POLICY);
}

/// Who goes on asking is thrown out, and doesn't fill the log, not with many connections either.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the lines of a real node are counted in real time"
)]
fn who_asks_in_vain_does_not_fill_the_log() {
    let scene = everywhere();
    volume(&scene, "asked-for", None);
    restrict(&scene, "asked-for", &["10.0.0.0/8"], &[]);
    let port = scene.tcp.port();
    let lines = || told("asked-for", "open refused");
    let connect = || Negotiation::connect(at("127.0.0.1", port));
    let began = std::time::Instant::now();
    let mut asking = connect();
    for _ in 0..7 {
        assert_eq!(asking.of(GO, "asked-for"), POLICY);
    }
    asking.send(EXPORT_NAME, b"asked-for");
    assert_eq!(asking.0.read(&mut [0; 1]).unwrap_or(0), 0, "closed");
    assert_eq!(lines().len(), 8);
    for _ in 0..20 {
        assert_eq!(connect().of(GO, "asked-for"), POLICY);
    }
    let (written, seconds) = (lines().len() as u64, began.elapsed().as_secs());
    assert!(written <= 10 * (seconds + 1), "{written} in {seconds} s");
    wait_for_lines();
    assert_eq!(connect().of(GO, "asked-for"), POLICY);
    // All are accounted for.
    let left_out = |line: &String| {
        let (_, count) = line.rsplit_once(" left_out=")?;
        count.parse::<u64>().ok()
    };
    let left_out: u64 = lines().iter().filter_map(left_out).sum();
    assert_eq!(lines().len() as u64 + left_out, 29, "{:?}", lines());
}

#[test]
fn the_first_refused_request_of_a_session_is_a_line() {
    let scene = everywhere();
    let owner = volume(&scene, "refusing", None);
    let (number, reader) = token(&scene, "refusing", TokenKind::Reader);
    let info = scene.ask(|node| node.info()).expect("its description");
    let address = at("127.0.0.1", port_of(&info.native_addresses[0]));
    let mut native = Native::connect(address);
    let open = native.opened("refusing", &reader, 0);
    assert_eq!(native.read(open, 0, 512).status(), Status::Ok);
    assert!(told("refusing", "request refused").is_empty());
    let lines = |rule: &str| {
        let found = told("refusing", "request refused").into_iter();
        let found: Vec<String> = found.filter(|line| line.contains(rule)).collect();
        for line in &found {
            let token = format!("token={number} ");
            let ends = "from=\"127.0.0.1\" on=\"127.0.0.1\"";
            for part in [&token, "client=\"test\"", ends, "protocol=\"native\""] {
                assert!(line.contains(part), "{part} in {line}");
            }
            for key in [&owner, &reader] {
                assert!(!line.contains(&key.0[2..10]), "{line}");
            }
        }
        found.len()
    };
    for _ in 0..3 {
        let written = native.write(open, 0, &[1; 512], 0);
        assert_eq!(written.status(), Status::ReadOnly);
    }
    assert_eq!(lines("rule=\"kind-of-token\""), 1);
    let revoked = scene.ask(|node| node.revoke_token("refusing".to_owned(), number));
    revoked.expect("revoked");
    for _ in 0..3 {
        assert_eq!(native.read(open, 0, 512).status(), Status::Denied);
        let written = native.write(open, 0, &[1; 512], 0);
        assert_eq!(written.status(), Status::Denied);
    }
    assert_eq!((lines("rule=\"token-revoked\""), lines("")), (1, 2));
    // Who has opened it for reading without need is refused writes, and breaks no rule.
    let mut native = Native::connect(address);
    let reading = native.opened("refusing", &owner, flag::READ_ONLY);
    let written = native.write(reading, 0, &[1; 512], 0);
    assert_eq!(written.status(), Status::ReadOnly);
    assert_eq!(lines(""), 2);
}

/// Somebody replaces a token that another one uses: who has the volume open with it doesn't lose it, whatever makes him open it again.
/// Once it is revoked he does, at once.
#[test]
fn a_client_goes_on_with_a_token_that_was_rotated() {
    watch_audit();
    let two_cores = |options: &mut NodeOptions| {
        options.cores = Some(2);
        listening(options);
    };
    let scene = Scene::start(2 << 30, two_cores).expect("a node");
    let old = volume(&scene, "rotating", Some(0));
    let mut native = Native::connect(addresses(&scene)[0]);
    let open = native.opened("rotating", &old, 0);
    let lines = |what: &str| told("rotating", what);
    let ending = || {
        let opened = lines("opened").into_iter();
        opened
            .filter(|line| line.contains("token_ends_ns="))
            .count()
    };
    assert_eq!((lines("opened").len(), ending()), (1, 0));
    let rotated = scene.ask(|node| {
        let spec = RotateSpec::default();
        node.rotate_token("rotating".to_owned(), 1, spec)
    });
    let new = rotated.expect("rotated").token;
    assert_eq!(native.write(open, 0, &[1; 512], 0).status(), Status::Ok);
    // In the same session it is told once, since the token has got an end.
    for _ in 0..2 {
        native.opened("rotating", &old, 0);
    }
    assert_eq!((lines("opened").len(), ending()), (2, 1));

    // The connection broke.
    drop(native);
    let mut native = Native::connect(addresses(&scene)[0]);
    let open = native.opened("rotating", &old, 0);
    assert_eq!(native.read(open, 0, 512).payload, [1; 512]);
    assert_eq!(ending(), 2);
    // Its journal went to another core, to which the client is sent.
    let handed_over = scene.ask(|node| node.hand_over_journal("main".to_owned(), 0, 1));
    handed_over.expect("is handed over");
    let there = native.open("rotating", &old, 0).moved_to();
    let mut native = Native::connect(there);
    let open = native.opened("rotating", &old, 0);
    assert_eq!(native.read(open, 0, 512).payload, [1; 512]);
    // The node was restarted.
    let scene = scene.restart(two_cores);
    let mut native = Native::connect(addresses(&scene)[0]);
    let open = native.opened("rotating", &old, 0);
    assert_eq!(native.read(open, 0, 512).payload, [1; 512]);
    assert_eq!(ending(), 4);
    assert!(lines("refused").is_empty());

    let revoked = scene.ask(|node| node.revoke_token("rotating".to_owned(), 1));
    revoked.expect("revoked");
    assert_eq!(native.read(open, 0, 512).status(), Status::Denied);
    assert_eq!(lines("request refused").len(), 1);
    let mut again = Native::connect(addresses(&scene)[0]);
    let refused = again.open("rotating", &old, 0);
    assert_eq!(refused.status(), Status::Denied);
    assert_eq!(lines("open refused").len(), 1);
    assert_eq!(again.open("rotating", &new, 0).status(), Status::Ok);

    // Who wants it at once has it: what is open stays open, and is not opened again.
    let open = again.opened("rotating", &new, 0);
    let at_once = RotateSpec {
        old_ends_in_s: 0,
        ends_in_s: None,
    };
    let rotated = scene.ask(|node| node.rotate_token("rotating".to_owned(), 2, at_once));
    rotated.expect("rotated");
    assert_eq!(again.read(open, 0, 512).payload, [1; 512]);
    let mut late = Native::connect(addresses(&scene)[0]);
    assert_eq!(late.open("rotating", &new, 0).status(), Status::Denied);
}

/// Who reads the log wants to know whose data it is.
#[test]
fn damaged_data_is_told_of_with_its_volume() {
    watch_audit();
    let scene = Scene::new();
    volume(&scene, "bitten", None);
    let data: Vec<u8> = (0..4096_u32).map(|at| (at * 7 % 251) as u8).collect();
    let mut client = scene.attach("bitten");
    assert_eq!(client.write_with(client::FUA, 8192, &data), 0);
    drop(client);
    let snapshot = "bitten@mon".parse().expect("a snapshot");
    let taken = scene.ask(|node| node.create_snapshots(vec![snapshot]));
    taken.expect("taken");
    let down = scene.down();
    let mut image = std::fs::read(down.device_path()).expect("read");
    let mut found = 0;
    for block in image.chunks_exact_mut(4096) {
        if *block == data[..] {
            block[9] ^= 1;
            found += 1;
        }
    }
    assert_eq!(found, 1);
    std::fs::write(down.device_path(), image).expect("written");
    let scene = down.up(|_| {});
    for (export, snapshot) in [("bitten", false), ("bitten@mon", true)] {
        let before = told("bitten", "do not match their checksum").len();
        let (error, _) = scene.attach(export).call(client::READ, 8192, 4096);
        assert_ne!(error, 0, "{export}");
        let lines = told("bitten", "do not match their checksum").split_off(before);
        let [line] = &lines[..] else {
            panic!("one line expected: {lines:?}");
        };
        assert!(line.contains("volume=\"bitten\""), "{line}");
        assert_eq!(line.contains("snapshot=\"mon\""), snapshot, "{line}");
    }
}
