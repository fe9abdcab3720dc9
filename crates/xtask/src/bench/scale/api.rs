//! Makes volumes over the HTTP API, on one connection: ten thousand commands would take minutes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// An answer longer than this is not one to a new volume.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 100;

/// A connection that is kept.
pub(super) struct Api {
    port: u16,
    key: String,
    stream: BufReader<TcpStream>,
}

impl Api {
    /// To the API on this port, with the key that is in a file.
    pub(super) fn connect(port: u16, key: &Path) -> Result<Api> {
        let shown = key.display();
        let key = fs::read_to_string(key).with_context(|| format!("reading {shown}"))?;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("connecting to the API on port {port}"))?;
        stream.set_nodelay(true).context("setting TCP_NODELAY")?;
        let limit = Some(ANSWER_LIMIT);
        stream.set_read_timeout(limit).context("a time limit")?;
        Ok(Api {
            port,
            key: key.trim().to_owned(),
            stream: BufReader::new(stream),
        })
    }

    /// Makes a volume, striped over so many cores if any are told, and returns its owner's token.
    pub(super) fn create_volume(
        &mut self,
        name: &str,
        size_bytes: u64,
        stripes: Option<u32>,
    ) -> Result<String> {
        let body = json!({ "name": name, "size_bytes": size_bytes, "stripes": stripes });
        let body = body.to_string();
        let head = format!(
            "POST /v1/volumes HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
             Authorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
            self.port,
            self.key,
            body.len()
        );
        let request = [head.as_bytes(), body.as_bytes()].concat();
        let sent = self.stream.get_mut().write_all(&request);
        sent.context("asking the API")?;
        let (status, text) = read_answer(&mut self.stream)?;
        ensure!(status == 201, "the API answered {status}: {text}");
        let made: Value = serde_json::from_str(&text).context("reading what the API says")?;
        let token = made["token"].as_str();
        Ok(token.context("the volume has no token")?.to_owned())
    }
}

/// Status and body of an answer that says how long it is.
fn read_answer(stream: &mut impl BufRead) -> Result<(u16, String)> {
    let mut line = String::new();
    let mut next = |line: &mut String| -> Result<()> {
        line.clear();
        let count = stream
            .by_ref()
            .take(ANSWER_BYTES_MAX as u64)
            .read_line(line);
        ensure!(
            count.context("reading from the API")? > 0,
            "the API hung up"
        );
        Ok(())
    };
    next(&mut line)?;
    let status = line.split_ascii_whitespace().nth(1);
    let status = status.and_then(|status| status.parse().ok());
    let status = status.with_context(|| format!("no answer of HTTP: {line}"))?;
    let mut bytes = None;
    for _ in 0..HEADERS_MAX {
        next(&mut line)?;
        if line.trim().is_empty() {
            let bytes = bytes.context("the API doesn't say how long its answer is")?;
            ensure!(bytes <= ANSWER_BYTES_MAX, "an answer of {bytes} bytes");
            let mut body = vec![0; bytes];
            stream
                .read_exact(&mut body)
                .context("reading from the API")?;
            return Ok((status, String::from_utf8_lossy(&body).into_owned()));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            bytes = value.trim().parse().ok();
        }
    }
    bail!("the API answers with too many headers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_its_end_and_no_further() {
        let mut text = &b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nx: y\r\n\r\n{}HTTP"[..];
        let answer = read_answer(&mut text).expect("an answer");
        assert_eq!(answer, (201, "{}".to_owned()));
        assert_eq!(text, b"HTTP");
        for wrong in [
            "",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        ] {
            assert!(read_answer(&mut wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
