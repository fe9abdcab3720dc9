//! Who may ask: whoever has the key.
//!
//! A request without the right one is refused before its body is read or the node is called. The refusal is
//! held back for a moment and ends its connection, so that guessing costs whoever does it and not the node;
//! who has the right key never waits for who has a wrong one (`crowd.rs`). What was sent instead
//! of a key is never logged.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use flagstone_platform::Time;
use serde::Deserialize;
use tokio::time::Instant;

use super::crowd::Member;
use super::problem::ApiError;
use crate::api_key::{HeldKey, Secret};
use crate::audit::{LINES_MAX, Lines};
use crate::node::{NodeError, NodeErrorKind};

/// For how long a refusal is held back.
const HELD_BACK: Duration = Duration::from_millis(100);

/// What a probe may ask without a key. What restarts a node should not have to hold the right to delete its volumes.
pub(super) const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// What the key of the metrics opens.
pub(super) const METRICS_PATH: &str = "/metrics";

/// Bytes of a path that stand in the log.
const PATH_SHOWN_BYTES: usize = 200;

/// Whether requests need a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Authentication {
    /// They do.
    #[default]
    Key,
    /// They don't. For loopback only.
    None,
}

/// Whether scrapes of the metrics need a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricsAccess {
    /// They do: their own or that of the API.
    #[default]
    Key,
    /// They don't.
    Open,
}

/// The keys that open an API. One that is missing opens nothing.
#[derive(Debug, Default)]
pub struct Keys {
    /// Opens everything.
    pub api: Option<HeldKey>,
    /// Opens the metrics.
    pub metrics: Option<HeldKey>,
}

/// Who sent a request.
#[derive(Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// What a request lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lack {
    Missing,
    Wrong,
}

/// Lets requests in that have the right key.
pub(super) struct Door {
    pub(super) authentication: Authentication,
    pub(super) metrics: MetricsAccess,
    pub(super) keys: Keys,
    /// When it was made: lines are counted from then on.
    since: Instant,
    lines: Mutex<Lines>,
}

impl Door {
    pub(super) fn new(authentication: Authentication, metrics: MetricsAccess, keys: Keys) -> Door {
        Door {
            authentication,
            metrics,
            keys,
            since: Instant::now(),
            lines: Mutex::new(Lines::new(LINES_MAX)),
        }
    }

    /// Takes the key out of the request, so that nothing behind this can show it, and lets the request in. Or
    /// returns the refusal, when it is time to send it.
    pub(super) async fn admit(&self, request: &mut Request) -> Result<(), Response> {
        let path = request.uri().path();
        let checked = self.check(path, request.headers());
        request.headers_mut().remove(header::AUTHORIZATION);
        let Err(lack) = checked else {
            return Ok(());
        };
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
        self.log(peer, request.method(), request.uri().path(), lack);
        let response = refusal(request.uri().path(), lack);
        if let Some(member) = request.extensions().get::<Arc<Member>>() {
            member.is_refused();
        }
        tokio::time::sleep(HELD_BACK).await;
        Err(response)
    }

    fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Lack> {
        let is_metrics = path == METRICS_PATH;
        if self.authentication == Authentication::None
            || OPEN_PATHS.contains(&path)
            || is_metrics && self.metrics == MetricsAccess::Open
        {
            return Ok(());
        }
        let offered = offered(headers)?;
        let opens = |key: &Option<HeldKey>| key.as_ref().is_some_and(|key| key.accepts(&offered));
        match opens(&self.keys.api) || is_metrics && opens(&self.keys.metrics) {
            true => Ok(()),
            false => Err(Lack::Wrong),
        }
    }

    fn log(&self, peer: Option<SocketAddr>, method: &Method, path: &str, lack: Lack) {
        let now = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left_out) = lines.line(Time(now)) else {
            return;
        };
        // Named as for the other protocols.
        let rule = match lack {
            Lack::Missing => "missing-key",
            Lack::Wrong => "wrong-key",
        };
        let from = peer.map(|peer| peer.ip().to_canonical().to_string());
        let (protocol, method) = ("api", method.as_str());
        // Whatever is not ASCII is escaped in a path, but the library lets some of it pass.
        let path = String::from_utf8_lossy(&path.as_bytes()[..path.len().min(PATH_SHOWN_BYTES)]);
        let path = path.as_ref();
        let left_out = Some(left_out).filter(|&lines| lines > 0);
        tracing::info!(target: "audit", protocol, from, method, path, rule, left_out, "request refused");
    }
}

/// The key that a request has. [rfc9110 11.6.2]
fn offered(headers: &HeaderMap) -> Result<Secret, Lack> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(Lack::Missing)?;
    if values.next().is_some() {
        return Err(Lack::Wrong);
    }
    let (scheme, rest) = value
        .as_bytes()
        .split_at_checked("Bearer ".len())
        .ok_or(Lack::Wrong)?;
    if !scheme.eq_ignore_ascii_case(b"Bearer ") {
        return Err(Lack::Wrong);
    }
    Secret::parse(rest.trim_ascii()).ok_or(Lack::Wrong)
}

fn refusal(path: &str, lack: Lack) -> Response {
    let found = match lack {
        Lack::Missing => "the request has no key",
        Lack::Wrong => "the request's key is not the one that this node has",
    };
    let of_metrics = match path {
        METRICS_PATH => " (or metrics.key)",
        _ => "",
    };
    let error = NodeError::new(
        NodeErrorKind::Unauthenticated,
        "accepting the request",
        found,
    );
    let error = error.next(format!(
        "the key is in the file api.key{of_metrics} in the node's folder: commands read it there with --dir, or name a \
         copy with --api-key-file or FLAGSTONE_API_KEY_FILE; other programs send `Authorization: Bearer KEY`"
    ));
    let mut response = ApiError::from(error).into_response();
    let headers = response.headers_mut();
    // [rfc9110 11.6.1]
    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(digit: &str) -> Secret {
        let digits = digit.repeat(crate::api_key::KEY_DIGITS);
        Secret::parse(digits.as_bytes()).expect("a key")
    }

    fn door(authentication: Authentication, metrics: MetricsAccess) -> Door {
        let keys = Keys {
            api: Some(HeldKey::fixed(key("a"))),
            metrics: Some(HeldKey::fixed(key("b"))),
        };
        Door::new(authentication, metrics, keys)
    }

    fn sent(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().expect("a value"));
        }
        headers
    }

    fn bearer(digit: &str) -> HeaderMap {
        sent(&[&format!("Bearer {}", key(digit).digits())])
    }

    #[test]
    fn each_key_opens_what_it_is_for() {
        let door = door(Authentication::Key, MetricsAccess::Key);
        let paths = [
            "/v1/volumes",
            "/openapi.json",
            "/",
            "/metrics/",
            "/healthz/x",
            "",
        ];
        for path in paths {
            assert_eq!(door.check(path, &HeaderMap::new()), Err(Lack::Missing));
            assert_eq!(door.check(path, &bearer("a")), Ok(()), "{path}");
            assert_eq!(door.check(path, &bearer("b")), Err(Lack::Wrong), "{path}");
        }
        assert_eq!(
            door.check("/metrics", &HeaderMap::new()),
            Err(Lack::Missing)
        );
        assert_eq!(door.check("/metrics", &bearer("a")), Ok(()));
        assert_eq!(door.check("/metrics", &bearer("b")), Ok(()));
        assert_eq!(door.check("/metrics", &bearer("c")), Err(Lack::Wrong));
        for path in OPEN_PATHS {
            assert_eq!(door.check(path, &HeaderMap::new()), Ok(()), "{path}");
        }
    }

    #[test]
    fn what_is_open_needs_none_and_without_keys_nothing_else_is() {
        let none = HeaderMap::new();
        let open = door(Authentication::Key, MetricsAccess::Open);
        assert_eq!(open.check("/metrics", &none), Ok(()));
        assert_eq!(open.check("/v1/volumes", &none), Err(Lack::Missing));
        let open = door(Authentication::None, MetricsAccess::Key);
        assert_eq!(open.check("/metrics", &none), Ok(()));
        assert_eq!(open.check("/v1/volumes", &none), Ok(()));
        let shut = Door::new(Default::default(), Default::default(), Keys::default());
        for path in ["/metrics", "/v1/volumes"] {
            assert_eq!(shut.check(path, &bearer("a")), Err(Lack::Wrong), "{path}");
        }
    }

    #[test]
    fn what_is_sent_has_to_be_one_key() {
        let right = key("a").digits();
        let offers = |values: &[&str]| match offered(&sent(values)) {
            Ok(secret) => secret.is(&key("a")),
            Err(lack) => {
                assert_eq!(lack, Lack::Wrong, "{values:?}");
                false
            }
        };
        let good = ["Bearer KEY", "bearer KEY", "BEARER  KEY ", "Bearer KEY"];
        for value in good {
            assert!(offers(&[&value.replace("KEY", &right)]), "{value}");
        }
        let bad = [
            "",
            "KEY",
            "Basic KEY",
            "Bearer",
            "Bearer ",
            "BearerKEY",
            "Bearer=KEY",
            "Bearer KEYa",
            "Bearer \"KEY\"",
            "Bearer KEY, Bearer KEY",
            "Bearer KEY x",
        ];
        for value in bad {
            assert!(!offers(&[&value.replace("KEY", &right)]), "{value}");
        }
        let value = format!("Bearer {right}");
        assert!(!offers(&[&value, &value]), "two of them");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        for (path, lack) in [("/metrics", Lack::Missing), ("/v1/node", Lack::Wrong)] {
            let response = refusal(path, lack);
            assert_eq!(response.status(), 401);
            assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
            assert_eq!(response.headers()[header::CONNECTION], "close");
        }
    }
}
