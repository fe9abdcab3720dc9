//! Traces of devices, over the API and by the command.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use flagstone::client::ClientError;
use flagstone::exit::Exit;
use flagstone::node::*;
use flagstone_platform::Time;
use flagstone_platform::layers::{Layer, Layers, Operation, Outcome, Ticket};

use crate::cli::{binary, fails, good, run};
use crate::support::{Served, TempDir, serve};

/// Of the trace: more than an answer has.
const OPERATIONS: u64 = 1 << 14;

fn serve_traced() -> Served {
    let served = serve();
    let layers = Layers::new(&[Layer::Trace {
        operations: OPERATIONS,
    }]);
    served.node.state.lock().expect("whole").layers = Some(layers);
    served
}

/// The device is asked for something, of core 1, at this time.
fn ask(served: &Served, now: u64, operation: Operation) -> Ticket {
    let state = served.node.state.lock().expect("whole");
    let layers = state.layers.as_ref().expect("it is traced");
    layers.begin(Time(now), 1, operation).ticket
}

fn end(served: &Served, ticket: Ticket, now: u64, outcome: Outcome) {
    let state = served.node.state.lock().expect("whole");
    let layers = state.layers.as_ref().expect("it is traced");
    layers.end(ticket, Time(now), outcome);
}

fn write(offset_bytes: u64) -> Operation {
    Operation::Write {
        offset_bytes,
        len_bytes: 4096,
    }
}

/// A write, a flush that fails, a discard, and a read that is under way.
fn some(served: &Served) -> Ticket {
    let written = ask(served, 1_000, write(8192));
    end(served, written, 61_500, Outcome::Done);
    let flushed = ask(served, 70_000, Operation::Flush);
    end(served, flushed, 1_070_000, Outcome::Failed);
    let discard = Operation::Discard {
        offset_bytes: 1 << 30,
        len_bytes: 1 << 20,
    };
    let discarded = ask(served, 2_000_000, discard);
    end(served, discarded, 2_000_100, Outcome::Abandoned);
    let read = Operation::Read {
        offset_bytes: 4096,
        len_bytes: 16384,
    };
    ask(served, 3_000_000, read)
}

fn kind<T>(answer: Result<T, ClientError>) -> NodeErrorKind {
    match answer {
        Err(ClientError::Problem(problem)) => problem.kind,
        Err(other) => panic!("not a problem: {other}"),
        Ok(_) => panic!("it succeeded"),
    }
}

#[test]
fn a_trace_is_read_in_pages() {
    let served = serve_traced();
    let client = served.client();
    some(&served);
    let get = |query: &str| {
        let path = format!("/v1/devices/device/trace?{query}");
        client.get::<DeviceTrace>(&path)
    };
    let all = get("").expect("read");
    assert_eq!(
        (all.device.as_str(), all.operations_max),
        ("device", OPERATIONS)
    );
    assert_eq!((all.items.len(), all.next, all.missed), (4, 4, 0));
    let first = TracedOperation {
        number: 0,
        began_ns: 1_700_000_000_000_001_000,
        core: 1,
        kind: TracedKind::Write,
        offset_bytes: 8192,
        len_bytes: 4096,
        held_ns: 0,
        took_ns: Some(60_500),
        result: TracedResult::Done,
    };
    assert_eq!(all.items[0], first);
    let results: Vec<TracedResult> = all.items.iter().map(|item| item.result).collect();
    let (failed, abandoned) = (TracedResult::Failed, TracedResult::Abandoned);
    assert_eq!(
        results,
        [
            TracedResult::Done,
            failed,
            abandoned,
            TracedResult::UnderWay
        ]
    );
    let page = get("from=1&limit=2").expect("read");
    assert_eq!((page.items.as_slice(), page.next), (&all.items[1..3], 3));
    assert_eq!(get("last=1").expect("read").items, all.items[3..]);
    assert_eq!(get("last=0").expect("read").next, 4);
    for query in ["from=0&last=1", "limit=10001", "last=-1", "since=1"] {
        assert_eq!(kind(get(query)), NodeErrorKind::InvalidArgument, "{query}");
    }
    let of = |device: &str| client.get::<DeviceTrace>(&format!("/v1/devices/{device}/trace"));
    assert_eq!(kind(of("other")), NodeErrorKind::NotFound);
    served.node.state.lock().expect("whole").layers = None;
    assert_eq!(kind(of("device")), NodeErrorKind::NotFound);
}

#[test]
fn a_trace_as_people_and_fio_read_it() {
    let served = serve_traced();
    some(&served);
    insta::assert_snapshot!(good(&served, "device trace device"));
    let last = good(&served, "device trace device --last 2");
    assert_eq!(last.lines().count(), 3, "{last}");
    let fio = good(&served, "device trace device --format fio");
    let expected = "\
fio version 3 iolog
0 device add
0 device open
0 device write 8192 4096
69 device datasync 0 0
1999 device trim 1073741824 1048576
2999 device read 4096 16384
2999 device close
";
    assert_eq!(fio, expected);
    // A line each: programs read them as they come.
    let json = good(&served, "device trace device -o json");
    let items: Vec<TracedOperation> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let numbers: Vec<u64> = items.iter().map(|item| item.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    let both = run(&served, "device trace device --format fio -o json");
    fails(&both, Exit::Usage, "both -o json and --format fio");
    served.node.state.lock().expect("whole").layers = None;
    let none = run(&served, "device trace device");
    fails(&none, Exit::NotFound, "it has none");
}

/// More than an answer has, and more than is kept.
#[test]
fn a_long_trace_is_told_to_its_end() {
    let served = serve_traced();
    for at in 0..OPERATIONS + 5 {
        ask(&served, at, write(at * 4096));
    }
    let numbers = |args: &str| {
        let text = good(&served, args);
        let lines = text.lines().skip(1);
        let numbers = lines.map(|line| {
            let number = line.split_whitespace().next();
            number.expect("a number").parse().expect("a number")
        });
        numbers.collect::<Vec<u64>>()
    };
    let all = numbers("device trace device");
    assert_eq!(all, (5..OPERATIONS + 5).collect::<Vec<_>>());
    let last = numbers("device trace device --last 12000");
    assert_eq!(
        last,
        (OPERATIONS - 11_995..OPERATIONS + 5).collect::<Vec<_>>()
    );
}

/// What comes while somebody looks, each with its end.
#[test]
fn a_trace_is_followed() {
    let served = serve_traced();
    let under_way = some(&served);
    let mut command = binary();
    command.args("device trace device --follow --last 2".split_whitespace());
    served.aim(&mut command);
    command.stdout(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert!(next().contains("NUMBER"));
    let number = |line: String| line.split_whitespace().next().map(str::to_owned);
    assert_eq!(number(next()).as_deref(), Some("2"));
    // The read is waited for, and what came behind it.
    let behind = ask(&served, 4_000_000, write(0));
    end(&served, behind, 4_001_000, Outcome::Done);
    end(&served, under_way, 5_000_000, Outcome::Done);
    let read = next();
    assert!(read.ends_with("2000.0  done"), "{read}");
    assert_eq!(number(next()).as_deref(), Some("4"));
    // One that doesn't end is shown as it is.
    ask(&served, 6_000_000, write(4096));
    let hanging = next();
    assert!(hanging.ends_with("-  under way"), "{hanging}");
    child.kill().expect("it runs");
    child.wait().expect("it has ended");
}

/// fio does what the trace has, to another file than the device.
#[test]
fn fio_replays_a_trace() {
    let version = Command::new("fio").arg("--version").output();
    let Ok(version) = version else {
        assert!(
            std::env::var_os("FLAGSTONE_REQUIRE_TOOLS").is_none(),
            "fio is not installed; ./.ci/test installs it"
        );
        eprintln!("skipped: fio is not installed");
        return;
    };
    let served = serve_traced();
    for at in 0..30 {
        let (offset_bytes, len_bytes) = (at * 8192, 4096 << (at % 2));
        let operation = match at % 3 {
            0 => Operation::Read {
                offset_bytes,
                len_bytes,
            },
            1 => Operation::Write {
                offset_bytes,
                len_bytes,
            },
            _ => Operation::Flush,
        };
        ask(&served, at * 200_000, operation);
    }
    let dir = TempDir::new("replayed");
    let (log, disk) = (dir.path().join("log"), dir.path().join("disk"));
    let text = good(&served, "device trace device --format fio");
    std::fs::write(&log, text).expect("written");
    let file = std::fs::File::create(&disk).expect("made");
    file.set_len(1 << 20).expect("sparse");
    let mut fio = Command::new("fio");
    fio.args(["--name=replay", "--ioengine=psync", "--output-format=json"]);
    fio.arg(format!("--read_iolog={}", log.display()));
    fio.arg(format!("--replay_redirect={}", disk.display()));
    let ran = fio.current_dir(dir.path()).output().expect("fio runs");
    let (out, err) = (&ran.stdout, String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{version:?}: {err}");
    let said: serde_json::Value = serde_json::from_slice(out).expect("JSON");
    let job = &said["jobs"][0];
    let of = |kind: &str| {
        (
            job[kind]["total_ios"].as_u64(),
            job[kind]["io_bytes"].as_u64(),
        )
    };
    // Ten of each; reads are long at odd numbers, and so are writes.
    let bytes = |long: u64| Some((10 + long) * 4096);
    assert_eq!(of("read"), (Some(10), bytes(5)), "{said}");
    assert_eq!(of("write"), (Some(10), bytes(5)), "{said}");
    let syncs = &job["sync"]["lat_ns"]["N"];
    assert_eq!(syncs.as_u64(), Some(10), "{said}");
    // In as much time as it took then.
    assert!(job["job_runtime"].as_u64() >= Some(5), "{said}");
}
