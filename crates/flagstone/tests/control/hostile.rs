//! Clients that are no friends: web pages, floods, half-sent requests.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use flagstone::api::problem::Problem;

use crate::support::{Served, keyed, pause, read_to_end, serve, serve_with};

#[test]
fn web_pages_are_refused() {
    let served = serve();
    let host = format!("Host: {}", served.address);
    let get = |headers: &str| served.status(&format!("GET /v1/volumes HTTP/1.1\r\n{headers}"));
    assert_eq!(get(&host), 200);
    assert_eq!(get("Host: localhost"), 200);
    assert_eq!(get("Host: evil.example"), 403);
    assert_eq!(
        get(&format!("Host: evil.example:{}", served.address.port())),
        403
    );
    assert_eq!(get(&format!("{host}\r\nOrigin: http://evil.example")), 403);
    assert_eq!(get(&format!("{host}\r\nOrigin: null")), 403);
    assert_eq!(
        get(&format!("{host}\r\nOrigin: http://{}", served.address)),
        403
    );
    assert_eq!(get(&format!("{host}\r\nSec-Fetch-Site: cross-site")), 403);
    assert_eq!(
        get(&format!("{host}\r\nSec-Fetch-Site: none")),
        200,
        "typed by a person"
    );
    assert_eq!(get("X: y"), 400, "no host");
    assert_eq!(get(&format!("{host}\r\n{host}")), 400, "two hosts");
    assert_eq!(served.status("GET /healthz HTTP/1.0"), 400, "no host");
    // A preflight, and every path, existing or not.
    let preflight =
        format!("OPTIONS /v1/volumes HTTP/1.1\r\n{host}\r\nOrigin: http://evil.example");
    assert_eq!(served.status(&preflight), 403);
    for path in ["/healthz", "/metrics", "/openapi.json", "/nothing"] {
        assert_eq!(
            served.status(&format!("GET {path} HTTP/1.1\r\nHost: evil.example")),
            403
        );
    }
    let absolute = "GET http://evil.example/v1/volumes HTTP/1.1\r\nHost: localhost";
    assert_eq!(served.status(absolute), 403);
}

#[test]
fn refused_requests_change_nothing() {
    let served = serve();
    let body = r#"{"name":"a","size_bytes":1}"#;
    let post = |headers: &str| {
        served.status(&format!(
            "POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\n{headers}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        ))
    };
    assert_eq!(
        post("Content-Type: application/json\r\nOrigin: http://evil.example"),
        403
    );
    // What a form on a web page can send without asking first.
    assert_eq!(post("Content-Type: text/plain"), 415);
    assert_eq!(post("Content-Type: application/x-www-form-urlencoded"), 415);
    assert!(
        served
            .node
            .state
            .lock()
            .expect("not poisoned")
            .volumes
            .is_empty()
    );
    assert_eq!(post("Content-Type: application/json; charset=utf-8"), 201);
}

#[test]
fn large_bodies_are_refused() {
    let served = serve();
    let head = "POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    // Announced.
    let announced = format!("{head}\r\nContent-Length: 1099511627776");
    assert_eq!(served.status(&announced), 413);
    // Sent.
    let mut request = format!("{head}\r\nContent-Length: 3000000\r\n\r\n").into_bytes();
    request.resize(request.len() + 3_000_000, b' ');
    assert_status(&served.raw(&keyed(&request)), 413);
    // Sent in chunks, without saying how much.
    let mut request = format!("{head}\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
    for _ in 0..40 {
        request.extend_from_slice(b"10000\r\n");
        request.resize(request.len() + 0x10000, b' ');
        request.extend_from_slice(b"\r\n");
    }
    assert_status(&served.raw(&keyed(&request)), 413);
    is_alive(&served);
}

/// The answer's status; nothing at all is accepted too, because a server that closes while its
/// client still sends may have its answer overtaken by a reset.
fn assert_status(answer: &str, status: u16) {
    let expected = format!("HTTP/1.1 {status} ");
    assert!(
        answer.is_empty() || answer.starts_with(&expected),
        "{answer:.200}"
    );
}

#[test]
fn large_heads_are_refused() {
    let served = serve();
    let long = format!(
        "GET /v1/volumes HTTP/1.1\r\nHost: localhost\r\nX: {}",
        "x".repeat(100_000)
    );
    assert_status(
        &served.raw(&keyed(format!("{long}\r\n\r\n").as_bytes())),
        431,
    );
    let many = "X: y\r\n".repeat(1000);
    let many = format!("GET /v1/volumes HTTP/1.1\r\nHost: localhost\r\n{many}\r\n");
    assert_status(&served.raw(&keyed(many.as_bytes())), 431);
    let path = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(100_000)
    );
    assert_status(&served.raw(&keyed(path.as_bytes())), 431);
    is_alive(&served);
}

#[test]
fn garbage_is_answered_or_dropped() {
    let served = serve();
    let cases: [&[u8]; 6] = [
        b"\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"NBDMAGICIHAVEOPT\x00\x00\x00\x01\r\n\r\n",
        b"GET /v1/volumes HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /v1/volumes\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    ];
    for request in cases {
        let mut stream = served.connect();
        let _ = stream.write_all(request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = read_to_end(&mut stream);
        assert!(!answer.contains(" 200 "), "{request:?}: {answer}");
    }
    let body = b"{\"name\":\"a\",\"size_bytes\":1";
    let head = "POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    let deep = format!(
        "{head}\r\nContent-Length: 200000\r\nConnection: close\r\n\r\n{}",
        "[".repeat(200_000)
    );
    assert_status(&served.raw(&keyed(deep.as_bytes())), 400);
    let cut = format!(
        "{head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let cut = [cut.as_bytes(), body].concat();
    assert_status(&served.raw(&keyed(&cut)), 400);
    is_alive(&served);
}

#[test]
fn connections_that_say_nothing_end() {
    let served = serve_with(|limits| {
        limits.connections_max = 9;
        limits.head_timeout = Duration::from_millis(300);
        limits.body_timeout = Duration::from_millis(300);
    });
    let mut silent: Vec<TcpStream> = (0..8).map(|_| served.connect()).collect();
    // Half a head, half a body, an answered connection kept open: all have to end by themselves.
    silent[0].write_all(b"GET /v1/vol").expect("sent");
    silent[1]
        .write_all(&keyed(
            b"POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
              Content-Length: 100\r\n\r\n{",
        ))
        .expect("sent");
    silent[2]
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("sent");
    is_alive(&served);
    let answers: Vec<String> = silent.iter_mut().map(read_to_end).collect();
    assert!(answers[1].starts_with("HTTP/1.1 408 "), "{:?}", answers[1]);
    assert!(answers[2].starts_with("HTTP/1.1 200 "), "{:?}", answers[2]);
}

/// All places taken by clients that send nothing, half a head or half a body, without a time-out.
#[test]
fn a_whole_request_finds_a_place_among_silent_clients() {
    let served = serve_with(|limits| {
        limits.connections_max = 4;
        limits.give_way_after = Duration::from_millis(10);
        limits.head_timeout = Duration::from_secs(3600);
        limits.body_timeout = Duration::from_secs(3600);
    });
    let half = keyed(
        b"POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
          Content-Length: 100\r\n\r\n{",
    );
    let starts: [&[u8]; 3] = [b"", b"GET /v1/vol", &half];
    let mut silent: Vec<TcpStream> = (0..64).map(|_| served.connect()).collect();
    for (stream, start) in silent.iter_mut().zip(starts.iter().cycle()) {
        // Some have been dropped already.
        let _ = stream.write_all(start);
    }
    for _ in 0..8 {
        is_alive(&served);
    }
}

/// More honest clients than places, all of which connect before any has sent its request.
#[test]
fn a_crowd_of_clients_waits_for_its_turn() {
    let served = serve_with(|limits| {
        limits.connections_max = 4;
        limits.give_way_after = Duration::from_secs(3600);
    });
    let mut clients: Vec<TcpStream> = (0..32).map(|_| served.connect()).collect();
    // Who is dropped for another that comes is so before long.
    pause(100);
    for stream in &mut clients {
        let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        // Fails if it was dropped; then there is no answer either.
        let _ = stream.write_all(request);
    }
    for (number, stream) in clients.iter_mut().enumerate() {
        let answer = read_to_end(stream);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{number}: {answer:?}");
    }
}

#[test]
fn what_is_no_request_is_answered_with_a_problem() {
    let served = serve();
    let long = "x".repeat(100_000);
    let heads: [(u16, String); 6] = [
        (
            431,
            format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {long}"),
        ),
        (431, format!("GET /{long} HTTP/1.1\r\nHost: localhost")),
        (
            400,
            "GET /v1/volumes HTTP/1.1\r\nHost: localhost\r\nBad Header: x".to_owned(),
        ),
        (
            400,
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x".to_owned(),
        ),
        (
            404,
            "GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close".to_owned(),
        ),
        (
            405,
            "PUT /v1/volumes HTTP/1.1\r\nHost: localhost\r\nConnection: close".to_owned(),
        ),
    ];
    for (status, head) in heads {
        let answer = served.raw(&keyed(format!("{head}\r\n\r\n").as_bytes()));
        assert_status(&answer, status);
        if answer.is_empty() {
            continue;
        }
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains("application/problem+json"), "{head}");
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{head}"
        );
        let problem: Problem = serde_json::from_str(body).expect("a problem");
        assert_eq!(problem.status, status);
        assert!(!problem.next_step.is_empty(), "{body}");
    }
}

#[test]
fn a_wrong_field_is_answered_with_what_to_do() {
    let served = serve();
    let bodies = [
        r#"{"name":"a"}"#,
        r#"{"name":"a","size_bytes":"x"}"#,
        r#"{"name":"a","size_bytes":1,"colour":"red"}"#,
        r#"{"name":"a@b","size_bytes":1}"#,
        "{",
    ];
    for body in bodies {
        let answer = served.raw(&keyed(
            format!(
                "POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        ));
        assert_status(&answer, 400);
        let (_, problem) = answer.split_once("\r\n\r\n").expect("a head");
        let problem: Problem = serde_json::from_str(problem).expect("a problem");
        assert!(!problem.next_step.is_empty(), "{body}: {}", problem.detail);
    }
}

#[test]
fn a_stop_does_not_wait_for_silent_clients() {
    let mut served = serve_with(|limits| {
        limits.drain_timeout = Duration::from_millis(200);
        limits.head_timeout = Duration::from_secs(3600);
    });
    let mut half = served.connect();
    half.write_all(b"GET /v1/vol").expect("sent");
    let idle = served.connect();
    is_alive(&served);
    served.finish();
    assert_eq!(read_to_end(&mut half), "");
    drop(idle);
}

fn is_alive(served: &Served) {
    let text = served
        .client()
        .get_text("/healthz")
        .expect("the API still answers");
    assert_eq!(text, "ok\n");
}
