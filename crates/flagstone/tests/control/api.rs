//! The API through its socket, with the client that commands use.

use std::sync::atomic::Ordering;
use std::time::Duration;

use flagstone::api::requests::*;
use flagstone::client::{Client, ClientError};
use flagstone::name::SnapshotRef;
use flagstone::node::*;
use serde::de::DeserializeOwned;

use crate::support::{keyed, pause, serve, serve_with};

fn create(client: &Client, name: &str, size_bytes: u64) -> Result<VolumeInfo, ClientError> {
    client.send("POST", "/v1/volumes", &spec(name, size_bytes))
}

fn spec(name: &str, size_bytes: u64) -> VolumeSpec {
    VolumeSpec {
        name: name.to_string(),
        size_bytes,
        reserve: Reservation::None,
        device: None,
        core: None,
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo: Default::default(),
        oversubscribe: false,
    }
}

fn kind<T>(answer: Result<T, ClientError>) -> NodeErrorKind {
    match answer {
        Err(ClientError::Problem(problem)) => problem.kind,
        Err(other) => panic!("not a problem: {other}"),
        Ok(_) => panic!("it succeeded"),
    }
}

#[test]
fn a_volume_from_creation_to_deletion() {
    let served = serve();
    let client = served.client();
    let created = create(&client, "a", 10 << 30).expect("created");
    assert_eq!((created.name.as_str(), created.size_bytes), ("a", 10 << 30));
    assert_eq!(
        client.get::<VolumeInfo>("/v1/volumes/a").expect("shown"),
        created
    );
    assert_eq!(kind(create(&client, "a", 1)), NodeErrorKind::AlreadyExists);
    assert_eq!(
        kind(client.get::<VolumeInfo>("/v1/volumes/b")),
        NodeErrorKind::NotFound
    );

    let resize = |size_bytes, allow_data_loss| {
        let request = ResizeRequest {
            size_bytes,
            allow_data_loss,
        };
        client.send::<VolumeInfo>("POST", "/v1/volumes/a/resize", &request)
    };
    assert_eq!(resize(20 << 30, false).expect("grown").size_bytes, 20 << 30);
    assert_eq!(kind(resize(1 << 30, false)), NodeErrorKind::Refused);
    assert_eq!(resize(1 << 30, true).expect("shrunk").size_bytes, 1 << 30);

    let reserve = |reserve| {
        let request = ReserveRequest { reserve };
        client.send::<VolumeInfo>("PUT", "/v1/volumes/a/reservation", &request)
    };
    assert_eq!(
        reserve(Reservation::Full).expect("reserved").reserved_bytes,
        1 << 30
    );
    assert_eq!(
        kind(reserve(Reservation::Bytes(1 << 50))),
        NodeErrorKind::NoSpace
    );
    assert_eq!(
        reserve(Reservation::Bytes(4096))
            .expect("reserved")
            .reserved_bytes,
        4096
    );

    let rename = RenameRequest {
        new_name: "b".to_string(),
    };
    let renamed: VolumeInfo = client
        .send("POST", "/v1/volumes/a/rename", &rename)
        .expect("renamed");
    assert_eq!((renamed.name.as_str(), &renamed.id), ("b", &created.id));
    client.call("DELETE", "/v1/volumes/b").expect("deleted");
    let page: VolumePage = client.get("/v1/volumes").expect("listed");
    assert!(page.items.is_empty());
}

fn take(client: &Client, names: &[&str]) -> Result<SnapshotGroup, ClientError> {
    let parse = |name: &&str| name.parse().expect("a snapshot's name");
    let snapshots: Vec<SnapshotRef> = names.iter().map(parse).collect();
    client.send("POST", "/v1/snapshots", &SnapshotRequest { snapshots })
}

fn snapshots(client: &Client, query: &str) -> SnapshotPage {
    client
        .get(&format!("/v1/snapshots?{query}"))
        .expect("listed")
}

#[test]
fn snapshots_in_one_instant() {
    let served = serve();
    let client = served.client();
    for name in ["data", "log"] {
        create(&client, name, 1 << 30).expect("created");
    }
    let group = take(&client, &["log@t1", "data@t1"]).expect("taken");
    let volumes: Vec<&str> = group
        .items
        .iter()
        .map(|info| info.volume.as_str())
        .collect();
    assert_eq!(volumes, ["log", "data"], "in the order of the request");
    // All or none: one name is taken, so the other must not be there afterwards.
    let again = take(&client, &["log@t2", "data@t1"]);
    assert_eq!(kind(again), NodeErrorKind::AlreadyExists);
    let t2 = client.get::<SnapshotInfo>("/v1/snapshots/log/t2");
    assert_eq!(kind(t2), NodeErrorKind::NotFound);
    assert_eq!(kind(take(&client, &[])), NodeErrorKind::InvalidArgument);

    assert_eq!(snapshots(&client, "volume=log").items.len(), 1);
    assert_eq!(
        snapshots(&client, "limit=1").next.as_deref(),
        Some("data@t1")
    );
    let page = snapshots(&client, "limit=1&after=data%40t1");
    assert_eq!((page.items[0].volume.as_str(), page.next), ("log", None));
    let wrong = client.get::<SnapshotPage>("/v1/snapshots?after=data");
    assert_eq!(kind(wrong), NodeErrorKind::InvalidArgument);

    let rename = RenameRequest {
        new_name: "t3".into(),
    };
    let renamed: SnapshotInfo = client
        .send("POST", "/v1/snapshots/log/t1/rename", &rename)
        .expect("renamed");
    assert_eq!(renamed.name, "t3");
    assert_eq!(
        kind(client.call("DELETE", "/v1/volumes/log")),
        NodeErrorKind::HasSnapshots
    );
    client
        .call("DELETE", "/v1/volumes/log?with_snapshots=true")
        .expect("deleted");
}

#[test]
fn clones_and_rollback() {
    let served = serve();
    let client = served.client();
    create(&client, "data", 1 << 30).expect("created");
    take(&client, &["data@t1"]).expect("taken");
    let clone = |new_name: &str, snapshot: Option<&str>| {
        let request = CloneRequest {
            new_name: new_name.to_string(),
            snapshot: snapshot.map(str::to_string),
        };
        client.send::<VolumeInfo>("POST", "/v1/volumes/data/clone", &request)
    };
    let origin = clone("copy", Some("t1")).expect("cloned").origin;
    assert_eq!(origin.as_deref(), Some("data@t1"));
    let origin = clone("copy2", None).expect("cloned").origin;
    assert_eq!(origin.as_deref(), Some("data"));
    assert_eq!(kind(clone("copy3", Some("t9"))), NodeErrorKind::NotFound);

    let request = ResizeRequest {
        size_bytes: 2 << 30,
        allow_data_loss: false,
    };
    client
        .send::<VolumeInfo>("POST", "/v1/volumes/data/resize", &request)
        .expect("grown");
    let request = RollbackRequest {
        snapshot: "t1".into(),
    };
    let back: VolumeInfo = client
        .send("POST", "/v1/volumes/data/rollback", &request)
        .expect("rolled back");
    assert_eq!(back.size_bytes, 1 << 30);

    // Its clone does not keep it in the list.
    client
        .call("DELETE", "/v1/snapshots/data/t1")
        .expect("deleted");
    assert!(snapshots(&client, "volume=data").items.is_empty());
}

#[test]
fn ten_thousand_volumes_in_pages() {
    let served = serve();
    {
        let mut state = served.node.state.lock().expect("not poisoned");
        for number in 0..10_000 {
            state
                .create(spec(&format!("vol-{number:05}"), 1 << 30))
                .expect("created");
        }
    }
    let client = served.client();
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("/v1/volumes?limit=3000&after={after}");
        let page: VolumePage = client.get(&path).expect("a page");
        assert!(page.items.len() <= 3000);
        names.extend(page.items.into_iter().map(|volume| volume.name));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(names.len(), 10_000);
    assert!(names.is_sorted());
    names.dedup();
    assert_eq!(names.len(), 10_000);
    let page: VolumePage = client.get("/v1/volumes?limit=10000").expect("one page");
    assert_eq!((page.items.len(), page.next), (10_000, None));
    let page: VolumePage = client.get("/v1/volumes?prefix=vol-0123").expect("a prefix");
    assert_eq!(page.items.len(), 10);
    for limit in ["0", "10001", "-1", "x"] {
        let answer = client.get::<VolumePage>(&format!("/v1/volumes?limit={limit}"));
        assert_eq!(kind(answer), NodeErrorKind::InvalidArgument, "{limit}");
    }
}

#[test]
fn devices_and_scrub() {
    let served = serve();
    let client = served.client();
    let page: DevicePage = client.get("/v1/devices").expect("listed");
    let by_id: DeviceInfo = client
        .get(&format!("/v1/devices/{}", page.items[0].id))
        .expect("shown");
    assert_eq!(by_id, page.items[0]);
    assert_eq!(
        kind(client.get::<DeviceInfo>("/v1/devices/other")),
        NodeErrorKind::NotFound
    );
    let started: ScrubStatus = client
        .post_empty("/v1/devices/device/scrub")
        .expect("started");
    assert_eq!(started.state, ScrubState::Running);
    let status: ScrubStatus = client.get("/v1/devices/device/scrub").expect("shown");
    assert!(status.checked_bytes > started.checked_bytes);
}

#[test]
fn journals_and_who_serves_them() {
    let served = serve();
    let client = served.client();
    let cores = || {
        let page: JournalPage = client.get("/v1/devices/device/journals").expect("listed");
        page.items.iter().map(|one| one.core).collect::<Vec<_>>()
    };
    assert_eq!(cores(), [0, 0]);
    let hand_over = |path: &str, core: u32| -> Result<HandedOverJournal, ClientError> {
        client.send("POST", path, &HandOverSpec { core })
    };
    let moved = hand_over("/v1/devices/device/journals/1/hand-over", 1).expect("handed over");
    assert_eq!((moved.journal, moved.from_core, moved.core), (1, 0, 1));
    assert_eq!(cores(), [0, 1]);
    // Whoever repeats it is answered as whoever was first.
    let again = hand_over("/v1/devices/device/journals/1/hand-over", 1).expect("is there");
    assert_eq!((again.from_core, again.core, again.held_us), (1, 1, 0));
    for (path, expected) in [
        (
            "/v1/devices/device/journals/0/hand-over",
            NodeErrorKind::InvalidArgument,
        ),
        (
            "/v1/devices/device/journals/7/hand-over",
            NodeErrorKind::NotFound,
        ),
        (
            "/v1/devices/other/journals/1/hand-over",
            NodeErrorKind::NotFound,
        ),
        (
            "/v1/devices/device/journals/70000/hand-over",
            NodeErrorKind::InvalidArgument,
        ),
        (
            "/v1/devices/device/journals/x/hand-over",
            NodeErrorKind::InvalidArgument,
        ),
    ] {
        assert_eq!(kind(hand_over(path, 1)), expected, "{path}");
    }
}

#[test]
fn health_readiness_and_stop() {
    let mut served = serve();
    served.node.starting.store(2, Ordering::Relaxed);
    let client = served.client();
    assert_eq!(client.get_text("/healthz").expect("healthy"), "ok\n");
    assert_eq!(kind(client.get_text("/readyz")), NodeErrorKind::Unavailable);
    let info: NodeInfo = client.get("/v1/node").expect("shown");
    assert_eq!(info.state, NodeState::Starting);
    assert_eq!(info.api_address, served.address.to_string());
    assert_eq!(client.get_text("/readyz").expect("ready"), "ready\n");
    assert!(!served.stop.is_stopped());
    client.call("POST", "/v1/node/stop").expect("accepted");
    assert!(served.stop.is_stopped());
    served.finish();
    let answer = client.get_text("/healthz");
    assert!(matches!(answer, Err(ClientError::NotReachable { .. })));
}

#[test]
fn bodies_are_read_strictly() {
    let served = serve();
    let client = served.client();
    let send = |body: serde_json::Value| {
        let answer = client.send::<serde_json::Value>("POST", "/v1/volumes", &body);
        match answer {
            Err(ClientError::Problem(problem)) => *problem,
            other => panic!("expected a problem, found {other:?}"),
        }
    };
    let misspelled = send(serde_json::json!({"name": "a", "size_bytes": 1, "reserved": "full"}));
    assert_eq!(
        (misspelled.kind, misspelled.status),
        (NodeErrorKind::InvalidArgument, 400)
    );
    assert!(
        misspelled.detail.contains("unknown field `reserved`"),
        "{}",
        misspelled.detail
    );
    assert_eq!(
        misspelled.type_uri,
        "urn:flagstone:problem:invalid_argument"
    );
    for body in [
        serde_json::json!({"name": "a"}),
        serde_json::json!({"name": "../etc", "size_bytes": 1}),
        serde_json::json!({"name": "a", "size_bytes": -1}),
        serde_json::json!([]),
    ] {
        assert_eq!(
            send(body.clone()).kind,
            NodeErrorKind::InvalidArgument,
            "{body}"
        );
    }
    let query = client.get::<VolumePage>("/v1/volumes?prefiks=a");
    assert_eq!(kind(query), NodeErrorKind::InvalidArgument);
    let missing = client.get::<VolumeInfo>("/v1/volume");
    assert_eq!(kind(missing), NodeErrorKind::NotFound);
    let strange = client.get::<VolumeInfo>("/v1/volumes/a%2Fb");
    assert_eq!(kind(strange), NodeErrorKind::InvalidArgument);
    let method = client.call("PATCH", "/v1/volumes");
    assert_eq!(kind(method), NodeErrorKind::InvalidArgument);
}

#[test]
fn a_panic_in_the_node_is_an_answer() {
    let served = serve();
    let client = served.client();
    assert_eq!(kind(create(&client, "panic", 1)), NodeErrorKind::Internal);
    create(&client, "after", 1).expect("the API goes on");
}

#[test]
fn a_slow_answer_is_given_up_but_carried_out() {
    let served = serve_with(|limits| limits.call_timeout = Duration::from_millis(50));
    let client = served.client();
    let Err(ClientError::Problem(problem)) = create(&client, "slow", 1) else {
        panic!("it should not have been answered in time");
    };
    assert_eq!(
        (problem.kind, problem.status),
        (NodeErrorKind::Unavailable, 504)
    );
    assert!(problem.next_step.contains("may still happen"));
    wait_for(&served, "slow");
}

#[test]
fn a_change_outlives_its_client() {
    let served = serve();
    let mut stream = served.connect();
    let body = serde_json::to_string(&spec("slow", 1)).expect("JSON");
    let head = "POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    std::io::Write::write_all(&mut stream, &keyed(request.as_bytes())).expect("sent");
    // Long enough for the request to be read, too short for it to be answered.
    pause(100);
    drop(stream);
    wait_for(&served, "slow");
}

/// Waits until the volume is there.
fn wait_for(served: &crate::support::Served, name: &str) {
    for _ in 0..300 {
        if served
            .node
            .state
            .lock()
            .expect("not poisoned")
            .volumes
            .contains_key(name)
        {
            return;
        }
        pause(100);
    }
    panic!("volume '{name}' was never created");
}

#[test]
fn too_many_calls_are_refused_not_queued() {
    let served = serve_with(|limits| limits.calls_max = 1);
    let client = served.client();
    let slow = client.clone();
    // Either side may find the other's call under way; the slow one tries until it gets through.
    let create_slowly = move || while create(&slow, "slow", 1).is_err() {};
    let thread = std::thread::Builder::new()
        .spawn(create_slowly)
        .expect("a thread");
    let mut refused = false;
    while !thread.is_finished() {
        refused |= match client.get::<VolumePage>("/v1/volumes") {
            Err(ClientError::Problem(problem)) => problem.kind == NodeErrorKind::Unavailable,
            _ => false,
        };
        pause(10);
    }
    thread.join().expect("no panic");
    assert!(refused, "the second call ran beside the first");
    client.get::<VolumePage>("/v1/volumes").expect("free again");
}

/// Compiles only if the answers can be read back by programs that have just the JSON.
#[test]
fn answers_tolerate_new_fields() {
    fn reads<T: DeserializeOwned>(mut value: serde_json::Value) {
        value["a_field_of_tomorrow"] = 1.into();
        serde_json::from_value::<T>(value)
            .map(|_| ())
            .expect("unknown fields are ignored");
    }
    let served = serve();
    let client = served.client();
    create(&client, "a", 1).expect("created");
    reads::<VolumeInfo>(client.get("/v1/volumes/a").expect("shown"));
    reads::<DeviceInfo>(client.get("/v1/devices/device").expect("shown"));
    reads::<NodeInfo>(client.get("/v1/node").expect("shown"));
}
