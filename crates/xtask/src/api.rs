//! What is asked of a node's API without a program of its own: the command line takes a processor for some 6 ms each time
//! (`perf stat` of one that finds no node), which is nothing beside a test and is to be left out of a measurement.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::daemon::Node;

/// Longer than a node under load takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who asks a node.
pub(crate) struct Api {
    port: u16,
    key: String,
}

impl Api {
    /// Of a node that runs.
    pub(crate) fn of(node: &Node) -> Result<Api> {
        let path = node.options.dir.join("api.key");
        let key =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Api {
            port: node.api_port,
            key: key.trim().to_owned(),
        })
    }

    /// What it answers, which has to be a success, and JSON unless it is nothing.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let asked = || format!("{method} {path} of the node's API");
        let answer = self.exchange(method, path, body).with_context(asked)?;
        json_of(&answer).with_context(asked)
    }

    /// A series of its metrics, with all its labels, added up.
    pub(crate) fn metric(&self, name: &str) -> Result<f64> {
        self.metric_with(name, "")
    }

    /// The same, of those alone that have a label, such as `op="read"`.
    pub(crate) fn metric_with(&self, name: &str, label: &str) -> Result<f64> {
        let asked = || format!("asking the node for its metric {name} {label}");
        let answer = self.exchange("GET", "/metrics?volumes=false", None);
        let answer = answer.with_context(asked)?;
        metric_of(body_of(&answer).with_context(asked)?, name, label).with_context(asked)
    }

    fn exchange(&self, method: &str, path: &str, body: Option<&Value>) -> Result<String> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.port,
            self.key,
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

/// The body of an answer that was sent in one piece.
fn body_of(answer: &str) -> Result<&str> {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("the answer has no end of its head: {answer:?}"))?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if !status.starts_with('2') {
        bail!("it answered {status}: {body}");
    }
    Ok(body)
}

/// In the text that Prometheus reads.
fn metric_of(text: &str, name: &str, label: &str) -> Result<f64> {
    let mut sum = None;
    for line in text.lines() {
        let rest = line.strip_prefix(name);
        let Some(rest) = rest.filter(|rest| rest.starts_with(['{', ' '])) else {
            continue;
        };
        if !rest.contains(label) {
            continue;
        }
        let value = rest.rsplit(' ').next().unwrap_or_default();
        let value: f64 = value
            .parse()
            .with_context(|| format!("`{line}` has no number"))?;
        sum = Some(sum.unwrap_or(0.0) + value);
    }
    sum.context("there is none")
}

fn json_of(answer: &str) -> Result<Value> {
    let body = body_of(answer)?;
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(body).with_context(|| format!("the answer is no JSON: {body:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_that_of_all_labels_and_of_no_longer_name() {
        let text = "# HELP a_total b\na_total{x=\"1\"} 1.5\na_total{x=\"2 3\"} 2\na_total_more 9\nb 4e-3\n";
        assert_eq!(metric_of(text, "a_total", "").expect("two"), 3.5);
        assert_eq!(metric_of(text, "a_total", "x=\"1\"").expect("one"), 1.5);
        assert_eq!(metric_of(text, "b", "").expect("one"), 0.004);
        assert!(metric_of(text, "a", "").is_err());
        assert!(metric_of(text, "a_total", "x=\"3\"").is_err());
        assert!(metric_of("a x\n", "a", "").is_err());
    }

    #[test]
    fn answers_are_taken_apart() {
        let ok = json_of("HTTP/1.1 202 Accepted\r\nA: b\r\n\r\n{\"state\":\"running\"}");
        assert_eq!(ok.expect("one")["state"], "running");
        let nothing = json_of("HTTP/1.1 204 No Content\r\n\r\n").expect("a success");
        assert!(nothing.is_null());
        for (answer, says) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n{\"title\":\"no\"}", "404"),
            ("HTTP/1.1 200 OK\r\n\r\n<html>", "no JSON"),
            ("HTTP/1.1 200 OK\r\n", "no end"),
        ] {
            let error = json_of(answer).expect_err(answer).to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
