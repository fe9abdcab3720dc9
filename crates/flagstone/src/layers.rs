//! Layers of a device as people write them: `ceiling reads=20000 bytes=1G`, `latency reads=100us jitter=20%`, `trace`.

use std::fmt;
use std::str::FromStr;

use flagstone_platform::layers::{Layer, PLACE_BYTES, PerOperation};
use serde::de::{self, Deserialize, Deserializer};

use crate::words::{Words, WordsError, bytes, decimal, duration, number};

/// A layer between a device and the node. For measuring and testing: the device seems slower, or worse, than it is. Or a trace, which
/// changes nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerText {
    /// What it does.
    pub layer: Layer,
    text: String,
}

impl fmt::Display for LayerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Operations that a trace keeps unless it is said how many: 4 MiB.
pub const TRACE_OPERATIONS_DEFAULT: u64 = 1 << 16;

/// The fewest and most that it may keep: 64 KiB, 1 GiB.
const TRACE_OPERATIONS_MIN: u64 = 1 << 10;
const TRACE_OPERATIONS_MAX: u64 = 1 << 24;

const EXAMPLE: &str = "'ceiling reads=20000 writes=10000 flushes=2000 bytes=1G' (a second), 'latency reads=80us \
                       writes=20us flushes=1ms jitter=20%', 'errors reads=0.001 seed=7' or 'trace operations=65536'";

fn take<T: Default>(
    words: &mut Words<'_>,
    key: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, WordsError> {
    words.take(key, read).map(Option::unwrap_or_default)
}

fn take_four(
    words: &mut Words<'_>,
    read: impl Fn(&str) -> Result<u64, String>,
) -> Result<PerOperation<u64>, WordsError> {
    Ok(PerOperation {
        reads: take(words, "reads", &read)?,
        writes: take(words, "writes", &read)?,
        flushes: take(words, "flushes", &read)?,
        discards: take(words, "discards", &read)?,
    })
}

fn percent(text: &str) -> Result<u64, String> {
    let text = text.strip_suffix('%').unwrap_or(text);
    match text.parse() {
        Ok(percent) if percent <= 100 => Ok(percent),
        _ => Err("expected hundredths from 0% to 100%".to_owned()),
    }
}

/// Of a million, from a part of one.
fn part(text: &str) -> Result<u64, String> {
    match decimal(text, 1_000_000) {
        Some(of_a_million) if of_a_million <= 1_000_000 => Ok(of_a_million),
        _ => Err("expected a part from 0 to 1, such as 0.001".to_owned()),
    }
}

/// How many operations a trace keeps.
fn operations(text: &str) -> Result<u64, String> {
    match number(text)? {
        number @ TRACE_OPERATIONS_MIN..=TRACE_OPERATIONS_MAX => Ok(number),
        _ => Err(format!(
            "expected {TRACE_OPERATIONS_MIN} to {TRACE_OPERATIONS_MAX}, of {PLACE_BYTES} bytes of memory each"
        )),
    }
}

impl FromStr for LayerText {
    type Err = WordsError;

    fn from_str(text: &str) -> Result<LayerText, WordsError> {
        let trimmed = text.trim_start();
        let (name, rest) = trimmed
            .split_once(char::is_whitespace)
            .unwrap_or((trimmed, ""));
        let mut words = Words::behind(text, rest, "is not a layer", EXAMPLE)?;
        let layer = match name {
            "ceiling" => Layer::Ceiling {
                per_second: take_four(&mut words, number)?,
                bytes_per_second: take(&mut words, "bytes", bytes)?,
            },
            "latency" => Layer::Latency {
                ns: take_four(&mut words, duration)?,
                jitter_percent: take(&mut words, "jitter", percent)?,
                seed: take(&mut words, "seed", number)?,
            },
            "errors" => Layer::Errors {
                per_million: take_four(&mut words, part)?,
                seed: take(&mut words, "seed", number)?,
            },
            "trace" => Layer::Trace {
                operations: words
                    .take("operations", operations)?
                    .unwrap_or(TRACE_OPERATIONS_DEFAULT),
            },
            "" => return Err(words.wrong("it has no name")),
            name => return Err(words.wrong(&format!("there is no '{name}'"))),
        };
        words.end()?;
        Ok(LayerText {
            layer,
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
        })
    }
}

impl<'de> Deserialize<'de> for LayerText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LayerText, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(text: &str) -> Layer {
        text.parse::<LayerText>().expect(text).layer
    }

    #[test]
    fn layers_as_people_write_them() {
        assert_eq!(
            layer(" ceiling  reads=20000 writes=10000 flushes=2000 discards=1 bytes=1G "),
            Layer::Ceiling {
                per_second: PerOperation {
                    reads: 20_000,
                    writes: 10_000,
                    flushes: 2000,
                    discards: 1,
                },
                bytes_per_second: 1 << 30,
            }
        );
        assert_eq!(
            layer("latency reads=80us writes=1.5ms flushes=2s discards=7ns jitter=20% seed=5"),
            Layer::Latency {
                ns: PerOperation {
                    reads: 80_000,
                    writes: 1_500_000,
                    flushes: 2_000_000_000,
                    discards: 7,
                },
                jitter_percent: 20,
                seed: 5,
            }
        );
        assert_eq!(
            layer("errors writes=0.001 flushes=1"),
            Layer::Errors {
                per_million: PerOperation {
                    writes: 1000,
                    flushes: 1_000_000,
                    ..PerOperation::default()
                },
                seed: 0,
            }
        );
        let trace = |operations| Layer::Trace { operations };
        assert_eq!(layer("trace"), trace(65_536));
        assert_eq!(layer("trace operations=1024"), trace(1024));
        assert_eq!(layer("trace operations=16777216"), trace(1 << 24));
        let shown: LayerText = " errors   seed=1 ".parse().expect("is one");
        assert_eq!(shown.to_string(), "errors seed=1");
    }

    #[test]
    fn what_is_none_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "it has no name"),
            ("slow", "there is no 'slow'"),
            ("ceiling reads", "'reads' is not of the form"),
            ("ceiling reads=-1", "reads=-1: expected a whole number"),
            ("ceiling reads=1 reads=2", "reads is there twice"),
            ("ceiling jitter=1", "there is no jitter here"),
            ("ceiling bytes=1GB", "bytes=1GB: "),
            ("latency reads=5", "reads=5: expected a time"),
            ("latency reads=us", "expected a time"),
            ("latency reads=1.us", "expected a time"),
            ("latency reads=2e3s", "expected a time"),
            ("latency reads=3601s", "more than an hour"),
            ("latency reads=99999999999999999999s", "expected a time"),
            ("latency jitter=101%", "from 0% to 100%"),
            ("errors reads=1.1", "from 0 to 1"),
            ("errors reads=1%", "from 0 to 1"),
            ("trace operations=1023", "expected 1024 to 16777216"),
            ("trace operations=16777217", "of 64 bytes of memory each"),
            ("trace reads=5", "there are no reads here"),
        ] {
            let error = text.parse::<LayerText>().expect_err(text).to_string();
            assert!(error.contains(reason), "{error}");
            assert!(error.contains("write for example"), "{error}");
        }
    }
}
