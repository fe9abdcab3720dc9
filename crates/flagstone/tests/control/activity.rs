//! What goes on, as the API and `flagstone top` show it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use flagstone::exit::Exit;
use flagstone::node::*;
use flagstone_types::{DvolId, LatencyHistogram};
use serde_json::Value;

use crate::cli::{binary, fails, ran};
use crate::support::{Served, pause, serve};

const MS: u64 = 1_000_000;

fn marked(operations: u64) -> IoMark {
    let mut latency = LatencyHistogram::new();
    (0..operations).for_each(|_| latency.record(MS));
    IoMark {
        operations,
        bytes: operations * 4096,
        errors: Vec::new(),
        latency: latency.mark(),
    }
}

/// A node with so many volumes, each of which did so many reads times its number, plus one, by that second.
fn look(volumes: u64, second: u64, reads: u64) -> Look {
    let volume = |number: u64| {
        let name = format!("vm-{number:05}");
        VolumeLook {
            read: marked(reads * (number + 1) * second),
            ..VolumeLook::new(DvolId(u128::from(number)), name, 0, Slo::default())
        }
    };
    let facts = DeviceFacts {
        name: "device".to_owned(),
        ..DeviceFacts::default()
    };
    Look {
        wall_ns: 1_700_000_000_000_000_000 + second * 1000 * MS,
        devices: vec![facts],
        cores: vec![CoreLook {
            at_ns: second * 1000 * MS,
            busy_ns: second * 250 * MS,
            volumes: (0..volumes).map(volume).collect(),
            ..CoreLook::default()
        }],
    }
}

/// A node that is found so, one after the other; at last it stays as it is.
fn serve_looks(looks: impl IntoIterator<Item = Look>) -> Served {
    let served = serve();
    let mut found = served.node.looks.lock().expect("no test panics with it");
    found.extend(looks);
    drop(found);
    served
}

fn looks_left(served: &Served) -> usize {
    let looks = served.node.looks.lock();
    looks.expect("no test panics with it").len()
}

/// `flagstone top ARGS --api ADDRESS`.
fn top(served: &Served, args: &str) -> Command {
    let mut command = binary();
    command.arg("top").args(args.split_whitespace());
    served.aim(&mut command);
    command
}

#[test]
fn activity_is_what_happened_between_two_looks() {
    let served = serve_looks([look(3, 1, 10), look(3, 2, 10)]);
    let client = served.client();
    let found: Activity = client
        .get("/v1/activity?for_ms=100&sort=used&limit=2&prefix=vm-0000")
        .expect("looked");
    assert_eq!(found.interval_ns, 1000 * MS);
    assert_eq!(found.active_count, 3);
    let rates: Vec<_> = found
        .volumes
        .iter()
        .map(|volume| (volume.name.as_str(), volume.read.per_second))
        .collect();
    assert_eq!(rates, [("vm-00002", 30.0), ("vm-00001", 20.0)]);
    assert_eq!(found.cores[0].busy, 0.25);
    assert_eq!(found.devices[0].users[0].volume, "vm-00002");
}

#[test]
fn wrong_queries_are_refused() {
    let served = serve();
    for query in [
        "for_ms=99",
        "for_ms=30001",
        "limit=501",
        "limit=-1",
        "sort=size",
        "interval=1",
    ] {
        let path = format!("/v1/activity?{query}");
        let refused = served.client().get::<Activity>(&path);
        let refused = refused.expect_err(query);
        assert_eq!(refused.exit(), Exit::Usage, "{query}: {refused}");
    }
}

/// However many there are, the answer has as many as were asked for.
#[test]
fn ten_thousand_busy_volumes_are_a_short_answer() {
    let served = serve_looks([look(10_000, 1, 0), look(10_000, 2, 1)]);
    let text = served
        .client()
        .get_text("/v1/activity?for_ms=100")
        .expect("looked");
    assert!(text.len() < 30_000, "{} bytes", text.len());
    let found: Activity = serde_json::from_str(&text).expect("what it says it is");
    assert_eq!((found.active_count, found.volumes.len()), (10_000, 20));
}

/// Also one that would still look for half a minute.
#[test]
fn a_node_that_stops_waits_for_no_look() {
    let mut served = serve_looks([look(1, 1, 1), look(1, 2, 1), look(1, 3, 1)]);
    let client = served.client().without_retries();
    let asking = std::thread::Builder::new()
        .spawn(move || client.get::<Activity>("/v1/activity?for_ms=30000"))
        .expect("a thread");
    while looks_left(&served) > 2 {
        pause(5);
    }
    served.finish();
    let answer = asking.join().expect("no panic").expect_err("it stopped");
    assert_eq!(answer.exit(), Exit::NotReachable);
    assert!(answer.to_string().contains("is stopping"), "{answer}");
    assert_eq!(looks_left(&served), 2, "it did not look again");
}

#[test]
fn top_prints_lines_where_there_is_no_terminal() {
    let served = serve_looks([look(3, 1, 10), look(3, 2, 10)]);
    let shown = ran(
        top(&served, "--once --interval 100ms --sort iops --limit 2")
            .output()
            .expect("it starts"),
    );
    assert_eq!((shown.exit, shown.err.as_str()), (0, ""));
    let lines: Vec<&str> = shown.out.lines().collect();
    assert!(lines[0].contains("3 volumes at work"), "{}", shown.out);
    assert!(lines[1].ends_with("cores busy: 0 25%"), "{}", lines[1]);
    assert_eq!(lines[2], "device device: no ceiling");
    assert!(lines[3].starts_with("  reads 0/s p99 -"), "{}", lines[3]);
    assert_eq!(lines[4], "  load: vm-00002 50%, vm-00001 33%, vm-00000 17%");
    assert!(lines[6].starts_with("VOLUME"), "{}", lines[6]);
    assert!(lines[7].starts_with("vm-00002"), "{}", lines[7]);
    assert!(lines[8].starts_with("vm-00001"), "{}", lines[8]);
    assert_eq!(lines[9..], ["and 1 more"]);
    assert!(!shown.out.contains('\x1b'), "{}", shown.out);
}

#[test]
fn top_prints_an_object_for_each_interval() {
    let looks = (1..=4).map(|second| look(1, second, second));
    let served = serve_looks(looks);
    let shown = ran(top(&served, "-o json --count 2 --interval 100ms")
        .output()
        .expect("it starts"));
    assert_eq!((shown.exit, shown.err.as_str()), (0, ""));
    let rates: Vec<f64> = shown
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect(line))
        .map(|value| value["volumes"][0]["read"]["per_second"].as_f64())
        .map(|rate| rate.expect("a number"))
        .collect();
    // From 1 x 1 to 2 x 2, and from 3 x 3 to 4 x 4.
    assert_eq!(rates, [3.0, 7.0]);
}

fn spawn(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

#[test]
fn top_ends_when_nobody_reads_it() {
    let served = serve_looks((1..=50).map(|second| look(1, second, 1)));
    let mut child = spawn(top(&served, "-o json --interval 100ms"));
    let mut line = String::new();
    let mut reader = BufReader::new(child.stdout.take().expect("piped"));
    reader.read_line(&mut line).expect("a line");
    assert!(line.starts_with('{'), "{line}");
    drop(reader);
    let ended = ran(child.wait_with_output().expect("it ends"));
    assert_eq!((ended.exit, ended.err.as_str()), (0, ""));
}

#[test]
fn top_ends_when_it_is_interrupted() {
    for signal in ["INT", "TERM"] {
        let served = serve_looks([look(1, 1, 1), look(1, 2, 1), look(1, 3, 1)]);
        let child = spawn(top(&served, "--interval 30s"));
        while looks_left(&served) > 2 {
            pause(5);
        }
        let status = Command::new("kill")
            .args([&format!("-{signal}"), &child.id().to_string()])
            .status();
        assert!(status.expect("kill runs").success());
        let ended = ran(child.wait_with_output().expect("it ends"));
        assert_eq!((ended.exit, ended.err.as_str()), (0, ""), "{signal}");
    }
}

#[test]
fn top_says_what_is_wrong() {
    let mut served = serve();
    served.finish();
    let gone = ran(top(&served, "--once").output().expect("it starts"));
    fails(&gone, Exit::NotReachable, "talking to the node");
}

/// A look at a node with one volume, that exists.
fn served_with_volume() -> Served {
    let served = serve_looks([look(1, 1, 100), look(1, 2, 100)]);
    let spec = serde_json::json!({"name": "vm-00000", "size_bytes": 4096, "core": 0});
    let created = served
        .client()
        .send::<VolumeInfo>("POST", "/v1/volumes", &spec);
    created.expect("created");
    served
}

/// `flagstone explain ARGS --api ADDRESS`.
fn explain(served: &Served, args: &str) -> crate::cli::Ran {
    let mut command = binary();
    command.arg("explain").args(args.split_whitespace());
    served.aim(&mut command);
    ran(command.output().expect("it starts"))
}

#[test]
fn a_volume_is_explained() {
    let shown = explain(&served_with_volume(), "vm-00000 --for 100ms");
    assert_eq!((shown.exit, shown.err.as_str()), (0, ""));
    let lines: Vec<&str> = shown.out.lines().collect();
    let expected = "volume vm-00000 on device device, core 0, over 1.0s: 100.0 reads/s of 1.0ms";
    assert!(lines[0].starts_with(expected), "{}", shown.out);
    assert!(
        shown.out.contains("75%   750us  nothing that is counted"),
        "{}",
        shown.out
    );
    let served = served_with_volume();
    let found = explain(&served, "vm-00000 --for 100ms -o json");
    let found: Explanation = serde_json::from_str(&found.out).expect("what the API says");
    let kinds: Vec<_> = found.causes.iter().map(|cause| cause.kind).collect();
    assert_eq!(kinds, [CauseKind::Rest, CauseKind::Node]);
    assert_eq!(found.volume.name, "vm-00000");
}

#[test]
fn what_cannot_be_explained_is_refused() {
    let served = served_with_volume();
    let unknown = explain(&served, "nobody --for 100ms");
    fails(&unknown, Exit::NotFound, "there is no such volume");
    let path = "/v1/volumes/vm-00000/explanation?for_ms=99";
    let refused = served.client().get::<Explanation>(path);
    assert_eq!(refused.expect_err("too short").exit(), Exit::Usage);
    assert_eq!(looks_left(&served), 2, "nobody looked");
}
