//! Who may talk to the API: not web pages.
//!
//! Where no key is asked for, a page in the operator's browser is the attacker to keep out (and elsewhere nothing
//! that a browser sends is meant for us): it can
//! send requests to loopback, and with DNS rebinding (its own name suddenly resolving to 127.0.0.1)
//! it can even read the answers. Browsers betray both: what a page sends carries `Origin` or
//! `Sec-Fetch-Site`, and a rebound request carries the attacker's name as `Host`. So requests
//! with either are refused, and `Host` has to be an address or a name that the operator allowed.
//!
//! The port in `Host` is not compared: rebinding needs a name, and forwarded ports are honest use.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, StatusCode, Uri, header};

use super::problem::ApiError;
use crate::node::{NodeError, NodeErrorKind};

/// What a request has to look like to be served.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The API listens on loopback only, so only loopback addresses reach it honestly.
    loopback_only: bool,
    /// Host names besides `localhost`, in lower case.
    allowed_hosts: Vec<String>,
}

impl Guard {
    /// The rules for an API that listens on `address`.
    pub fn new(address: SocketAddr, allowed_hosts: &[String]) -> Guard {
        Guard {
            loopback_only: address.ip().is_loopback(),
            allowed_hosts: allowed_hosts
                .iter()
                .map(|host| host.to_ascii_lowercase())
                .collect(),
        }
    }

    /// Checks a request's head.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if headers.contains_key(header::ORIGIN) {
            return Err(refusal(
                "requests from web pages (with an Origin) are not served",
            ));
        }
        if let Some(site) = headers.get("sec-fetch-site")
            && site != "none"
        {
            return Err(refusal(
                "requests from web pages (Sec-Fetch-Site) are not served",
            ));
        }
        // [rfc9112 3.2] exactly one Host; the authority of an absolute target takes precedence, so
        // both have to be good.
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(bad_request("exactly one Host header is expected"));
        };
        let host = host.to_str().unwrap_or_default();
        let target = uri.authority().map(|authority| authority.as_str());
        for name in [Some(host), target].into_iter().flatten() {
            if !self.is_host_allowed(name) {
                let found = format!(
                    "the request is for host '{}', which this node does not answer to",
                    name.escape_debug()
                );
                let error = NodeError::new(NodeErrorKind::Refused, DOING, found).next(
                    "use the address the API listens on, or add the name to api.allowed_hosts",
                );
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn is_host_allowed(&self, host: &str) -> bool {
        let Some(name) = host_name(host) else {
            return false;
        };
        let name = name.to_ascii_lowercase();
        if let Ok(address) = name.parse::<IpAddr>() {
            return !self.loopback_only || address.to_canonical().is_loopback();
        }
        name == "localhost" || self.allowed_hosts.contains(&name)
    }
}

/// The name or address in `name`, `name:port`, `[v6]` or `[v6]:port`.
fn host_name(host: &str) -> Option<&str> {
    let (name, port) = if let Some(rest) = host.strip_prefix('[') {
        let (name, rest) = rest.split_once(']')?;
        (
            name,
            rest.strip_prefix(':').or(rest.is_empty().then_some("0"))?,
        )
    } else {
        host.split_once(':').unwrap_or((host, "0"))
    };
    let is_port = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    (is_port && !name.is_empty()).then_some(name)
}

const DOING: &str = "accepting the request";

fn refusal(found: &str) -> ApiError {
    NodeError::new(NodeErrorKind::Refused, DOING, found)
        .next("use the command line or another program")
        .into()
}

fn bad_request(found: &str) -> ApiError {
    let error = NodeError::new(NodeErrorKind::InvalidArgument, DOING, found);
    ApiError::with_status(StatusCode::BAD_REQUEST, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(address: &str, allowed: &[&str]) -> Guard {
        let allowed: Vec<String> = allowed.iter().map(|host| host.to_string()).collect();
        Guard::new(address.parse().expect("an address"), &allowed)
    }

    #[test]
    fn loopback_answers_to_loopback_only() {
        let guard = guard("127.0.0.1:7878", &["Node1.example"]);
        let good = [
            "127.0.0.1:7878",
            "127.0.0.1",
            "localhost:7878",
            "LOCALHOST",
            "[::1]:7878",
            "[::ffff:127.0.0.1]",
            "127.0.0.1:9000",
            "node1.example:7878",
        ];
        let bad = [
            "",
            ":7878",
            "evil.example:7878",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "10.0.0.1:7878",
            "0.0.0.0:7878",
            "127.0.0.1:",
            "127.0.0.1:x",
            "[::1",
            "[::1]x",
            "user@localhost",
            "::1",
        ];
        for host in good {
            assert!(guard.is_host_allowed(host), "{host}");
        }
        for host in bad {
            assert!(!guard.is_host_allowed(host), "{host}");
        }
    }

    #[test]
    fn an_open_address_answers_to_addresses_not_to_names() {
        let guard = guard("0.0.0.0:7878", &[]);
        assert!(guard.is_host_allowed("10.0.0.1:7878"));
        assert!(guard.is_host_allowed("[fd00::1]:7878"));
        assert!(!guard.is_host_allowed("rebound.example:7878"));
    }

    #[test]
    fn an_absolute_target_is_checked_too() {
        let guard = guard("127.0.0.1:7878", &[]);
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "localhost".parse().expect("a value"));
        let uri = |text: &str| text.parse::<Uri>().expect("a target");
        assert!(guard.check(&uri("/v1/node"), &headers).is_ok());
        assert!(
            guard
                .check(&uri("http://localhost/v1/node"), &headers)
                .is_ok()
        );
        assert!(
            guard
                .check(&uri("http://evil.example/v1/node"), &headers)
                .is_err()
        );
        headers.append(header::HOST, "localhost".parse().expect("a value"));
        assert!(
            guard.check(&uri("/v1/node"), &headers).is_err(),
            "two hosts"
        );
        assert!(
            guard.check(&uri("/v1/node"), &HeaderMap::new()).is_err(),
            "none"
        );
    }
}
