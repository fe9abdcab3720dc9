//! Who may ask: with the key, without it, and with a wrong one.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use flagstone::api::problem::Problem;
use flagstone::api::{ApiListener, ApiOptions, Authentication, BindError, MetricsAccess};
use flagstone::node::NodeErrorKind;
use serde_json::Value;

use crate::support::{
    API_KEY, METRICS_KEY, Served, keyed, pause, read_to_end, serve, serve_as, serve_with,
};

/// What needs no key.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Every operation of the description, as method and path, and what is served beside them.
fn operations() -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(&flagstone::api::openapi::document()).expect("JSON");
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let mut path = path.clone();
        for name in ["name", "volume", "snapshot", "device"] {
            path = path.replace(&format!("{{{name}}}"), "vm-1");
        }
        let path = path.replace("{number}", "1").replace("{journal}", "1");
        assert!(!path.contains('{'), "{path}");
        for method in methods.as_object().expect("methods").keys() {
            operations.push((method.to_uppercase(), path.clone()));
        }
    }
    assert!(operations.len() >= 50, "{}", operations.len());
    for (method, path) in [("GET", "/openapi.json"), ("GET", "/"), ("PUT", "/nothing")] {
        operations.push((method.to_owned(), path.to_owned()));
    }
    operations
}

fn headers(values: &[&str]) -> String {
    let line = |value: &&str| format!("Authorization: {value}\r\n");
    values.iter().map(line).collect()
}

fn request(method: &str, path: &str, keys: &[&str]) -> String {
    // What each would take, as far as a body can be taken by all: it must not even be read.
    let body = r#"{"name":"made","size_bytes":4096}"#;
    let (length, body) = match method {
        "GET" => (String::new(), ""),
        _ => (format!("Content-Length: {}\r\n", body.len()), body),
    };
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{}{length}\r\n{body}",
        headers(keys)
    )
}

fn problem(answer: &str) -> Problem {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    serde_json::from_str(body).expect("a problem")
}

/// Checks a refusal, which ends its connection.
#[track_caller]
fn is_refusal(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    let head = answer.to_lowercase();
    assert!(
        head.contains("\r\nwww-authenticate: bearer\r\n"),
        "{answer}"
    );
    assert!(head.contains("\r\nconnection: close\r\n"), "{answer}");
    let problem = problem(answer);
    assert_eq!(problem.kind, NodeErrorKind::Unauthenticated);
    assert_eq!(problem.type_uri, "urn:flagstone:problem:unauthenticated");
    for way in [
        "api.key",
        "--api-key-file",
        "FLAGSTONE_API_KEY_FILE",
        "Authorization: Bearer",
    ] {
        assert!(problem.next_step.contains(way), "{way}: {answer}");
    }
}

fn with_volume(served: &Served) {
    let body = r#"{"name":"vm-1","size_bytes":1073741824}"#;
    let length = body.len();
    let request = format!(
        "POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let answer = served.raw(&keyed(request.as_bytes()));
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
}

/// All that can be seen of a node with the key.
fn seen(served: &Served) -> Vec<String> {
    let client = served.client();
    [
        "/v1/volumes",
        "/v1/snapshots",
        "/v1/filesystems",
        "/v1/devices",
    ]
    .map(|path| client.get_text(path).expect(path))
    .into()
}

#[test]
fn without_the_key_no_route_answers_and_none_changes_anything() {
    let served = serve();
    with_volume(&served);
    let before = seen(&served);
    let calls = || served.node.calls.load(std::sync::atomic::Ordering::Relaxed);
    let called = calls();
    let almost = format!("{}6", &API_KEY[..63]);
    let wrong = [
        vec![],
        vec![format!("Bearer {almost}")],
        vec![format!("Bearer {}", "0".repeat(64))],
    ];
    // Beside each other: each refusal is held back.
    let operations = operations();
    for keys in &wrong {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let open = |(method, path): &(String, String)| {
            let mut stream = served.connect();
            let sent = stream.write_all(request(method, path, &keys).as_bytes());
            sent.expect("sent");
            (method.clone(), path.clone(), stream)
        };
        // No more than there are places: others would push them out.
        for some in operations.chunks(32) {
            let streams: Vec<_> = some
                .iter()
                .filter(|(_, path)| !PROBES.contains(&path.as_str()))
                .map(open)
                .collect();
            for (method, path, mut stream) in streams {
                let answer = read_to_end(&mut stream);
                assert!(!answer.is_empty(), "{method} {path}");
                is_refusal(&answer);
            }
        }
    }
    assert_eq!(calls(), called, "the node is not even asked");
    assert!(!served.stop.is_stopped());
    assert_eq!(seen(&served), before);
}

#[test]
fn probes_need_no_key_and_mind_none() {
    let served = serve();
    for path in PROBES {
        served.stranger().get_text(path).expect(path);
        for keys in [vec![], vec!["Bearer x"], vec!["Basic eDp5", "Bearer x"]] {
            let request =
                request("GET", path, &keys).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
            let answer = served.raw(request.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    }
    for path in [
        "/healthz/",
        "/%68ealthz",
        "/healthz/../v1/volumes",
        "//healthz",
        "/READYZ",
    ] {
        is_refusal(&served.raw(request("GET", path, &[]).as_bytes()));
    }
    // Nor does anything else than the path count.
    let answer = served.raw(request("DELETE", "/healthz", &[]).as_bytes());
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
}

#[test]
fn one_right_key_is_let_in_and_two_headers_are_not() {
    let served = serve();
    let right = format!("Bearer {API_KEY}");
    assert_eq!(
        served.status("GET /v1/volumes HTTP/1.1\r\nHost: localhost"),
        200
    );
    let other = format!("Bearer {METRICS_KEY}");
    let basic = format!("Basic {API_KEY}");
    for keys in [
        vec![right.as_str(), &right],
        vec![&right, &other],
        vec![&other, &right],
        vec![&basic],
        vec![API_KEY],
        vec!["Bearer"],
        vec![""],
    ] {
        is_refusal(&served.raw(request("GET", "/v1/volumes", &keys).as_bytes()));
    }
    // A key is nowhere else.
    let path = format!("/v1/volumes?key={API_KEY}");
    is_refusal(&served.raw(request("GET", &path, &[]).as_bytes()));
}

#[test]
fn the_key_of_the_metrics_opens_them_alone() {
    let served = serve();
    let metrics = format!("Bearer {METRICS_KEY}");
    for (method, path) in operations() {
        if PROBES.contains(&path.as_str()) || method != "GET" {
            continue;
        }
        let request = request(&method, &path, &[&metrics]);
        if path == "/metrics" {
            let request = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
            let answer = served.raw(request.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            continue;
        }
        is_refusal(&served.raw(request.as_bytes()));
    }
    served
        .client()
        .get_text("/metrics")
        .expect("the API's opens them, too");
    let refused = served.stranger().get_text("/metrics").expect_err("no key");
    assert!(
        refused.next_step().contains("metrics.key"),
        "{}",
        refused.next_step()
    );

    let open = serve_as(|options| options.metrics = MetricsAccess::Open);
    open.stranger().get_text("/metrics").expect("open");
    open.stranger()
        .get_text("/v1/volumes")
        .expect_err("nothing else");
}

#[test]
fn an_open_api_says_so() {
    let served = serve_as(|options| options.authentication = Authentication::None);
    let info = served.stranger().get_text("/v1/node").expect("open");
    assert!(info.contains("asks for no key"), "{info}");
    let info = serve().client().get_text("/v1/node").expect("with the key");
    assert!(!info.contains("asks for no key"), "{info}");
}

/// Whoever asks for it, not only the configuration.
#[test]
fn an_open_api_is_not_served_to_other_machines() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        for (address, is_served) in [
            ("127.0.0.1:0", true),
            ("[::1]:0", true),
            ("0.0.0.0:0", false),
            ("[::]:0", false),
            ("192.0.2.1:0", false),
        ] {
            let mut options = ApiOptions::on(address.parse().expect("an address"));
            assert_eq!(
                options.authentication,
                Authentication::Key,
                "unless said otherwise"
            );
            options.authentication = Authentication::None;
            options.allow_remote = true;
            match ApiListener::bind(options).await {
                Err(BindError::Open(_)) => assert!(!is_served, "{address}"),
                Err(BindError::Address(..)) => assert!(is_served, "no IPv6 here: {address}"),
                other => assert!(is_served && other.is_ok(), "{address}: {other:?}"),
            }
        }
    });
}

/// Web pages are refused as before, and not told whether they have the key.
#[test]
fn the_origin_is_looked_at_first() {
    let served = serve();
    let request =
        "GET /v1/volumes HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nConnection: close\r\n\r\n";
    let answer = served.raw(request.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

/// Its body may be of any length and never come.
#[test]
fn a_body_is_not_waited_for() {
    let served = serve_with(|limits| limits.body_timeout = Duration::from_secs(3600));
    let mut stream = served.connect();
    let head = "POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 1000000\r\n\r\n{";
    stream.write_all(head.as_bytes()).expect("sent");
    is_refusal(&read_to_end(&mut stream));
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time of this machine is what is looked at"
)]
fn now() -> Instant {
    Instant::now()
}

#[test]
fn a_refusal_is_held_back_and_a_right_key_is_not() {
    let served = serve();
    let started = now();
    is_refusal(&served.raw(request("GET", "/v1/volumes", &[]).as_bytes()));
    assert!(started.elapsed() >= Duration::from_millis(100));
    // As many as are refused beside it, it is answered while they are still held back.
    let mut refused: Vec<TcpStream> = (0..32).map(|_| served.connect()).collect();
    for stream in &mut refused {
        let request = request("GET", "/v1/volumes", &["Bearer x"]);
        stream.write_all(request.as_bytes()).expect("sent");
    }
    served.client().get_text("/v1/volumes").expect("answered");
    for stream in &mut refused {
        is_refusal(&read_to_end(stream));
    }
}

/// All places taken by clients with a wrong key that come again and again, and one more that has the right one.
#[test]
fn refused_clients_do_not_keep_one_with_the_key_out() {
    let served = serve_with(|limits| {
        limits.connections_max = 64;
        // Those that merely wait never give way here; those that were refused must.
        limits.give_way_after = Duration::from_secs(3600);
    });
    let text = request("GET", "/v1/volumes", &["Bearer x"]);
    let mut refused = Vec::new();
    for round in 0..4 {
        for _ in 0..64 {
            let mut stream = served.connect();
            // Some have been dropped already.
            let _ = stream.write_all(text.as_bytes());
            refused.push(stream);
        }
        let listed = served.client().get_text("/v1/volumes");
        listed.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    // They don't read their answers, nor close: the server does.
    pause(300);
    for stream in &mut refused {
        let answer = read_to_end(stream);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 401 "),
            "{answer}"
        );
    }
}

#[test]
fn clients_and_errors_do_not_show_the_key() {
    let served = serve();
    let client = served.client();
    let shown = format!("{client:?} {:#?}", client);
    assert!(
        shown.contains("Secret(..)") && !shown.contains(API_KEY),
        "{shown}"
    );
    for path in ["/v1/volumes/none", "/v1/volumes?limit=0"] {
        let error = client.get_text(path).expect_err(path);
        assert!(!format!("{error} {error:?} {}", error.next_step()).contains(API_KEY));
    }
}
