//! Layers of a device as people write them: `ceiling reads=20000 bytes=1G`, `latency reads=100us jitter=20%`.

use std::fmt;
use std::str::FromStr;

use flagstone_platform::layers::{Layer, PerOperation};
use serde::de::{self, Deserialize, Deserializer};

use crate::size::Size;

/// A layer between a device and the node, for measuring and testing: the device seems slower, or worse, than it is.
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

/// Why a text is not a layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerError(String);

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LayerError {}

/// What follows the layer's name.
struct Words<'a> {
    text: &'a str,
    words: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn of(text: &'a str) -> Result<(&'a str, Words<'a>), LayerError> {
        let mut all = text.split_whitespace();
        let name = all.next().unwrap_or("");
        let mut words: Vec<(&str, &str)> = Vec::new();
        for word in all {
            let Some((key, value)) = word.split_once('=') else {
                return Err(wrong(
                    text,
                    &format!("'{word}' is not of the form NAME=VALUE"),
                ));
            };
            if words.iter().any(|(known, _)| *known == key) {
                return Err(wrong(text, &format!("{key} is there twice")));
            }
            words.push((key, value));
        }
        Ok((name, Words { text, words }))
    }

    /// Takes the value of a key out and reads it; the default if it isn't there.
    fn take<T: Default>(
        &mut self,
        key: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, LayerError> {
        let Some(at) = self.words.iter().position(|(known, _)| *known == key) else {
            return Ok(T::default());
        };
        let (_, value) = self.words.remove(at);
        read(value).map_err(|found| wrong(self.text, &format!("{key}={value}: {found}")))
    }

    fn take_four(
        &mut self,
        read: impl Fn(&str) -> Result<u64, String>,
    ) -> Result<PerOperation<u64>, LayerError> {
        Ok(PerOperation {
            reads: self.take("reads", &read)?,
            writes: self.take("writes", &read)?,
            flushes: self.take("flushes", &read)?,
            discards: self.take("discards", &read)?,
        })
    }

    /// Nothing is left that nobody asked for.
    fn end(self) -> Result<(), LayerError> {
        match self.words.first() {
            None => Ok(()),
            Some((key, _)) => Err(wrong(self.text, &format!("there is no {key} here"))),
        }
    }
}

fn wrong(text: &str, found: &str) -> LayerError {
    LayerError(format!(
        "'{text}' is not a layer: {found}; write for example 'ceiling reads=20000 writes=10000 flushes=2000 bytes=1G' \
         (a second), 'latency reads=80us writes=20us flushes=1ms jitter=20%' or 'errors reads=0.001 seed=7'"
    ))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| "expected a whole number".to_owned())
}

fn bytes(text: &str) -> Result<u64, String> {
    text.parse()
        .map(|size: Size| size.0)
        .map_err(|error| error.to_string())
}

/// Nanoseconds of `80us`, `1.5ms`, `2s`.
fn duration(text: &str) -> Result<u64, String> {
    let units = [
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
    ];
    let expected = || "expected a time such as 80us, 1.5ms or 2s".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let (_, factor) = units
        .into_iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(expected)?;
    let scaled = decimal(digits, factor).ok_or_else(expected)?;
    match scaled <= HOUR_NS {
        true => Ok(scaled),
        false => Err("more than an hour".to_owned()),
    }
}

const HOUR_NS: u64 = 3600 * 1_000_000_000;

/// A decimal number times a factor, rounded down. `None` if it is none, or too large.
fn decimal(text: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let number = whole.parse::<u64>().ok()?;
    let fraction = fraction.parse::<u64>().ok()?;
    let all = (u128::from(number) * scale + u128::from(fraction)) * u128::from(factor) / scale;
    u64::try_from(all).ok()
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

impl FromStr for LayerText {
    type Err = LayerError;

    fn from_str(text: &str) -> Result<LayerText, LayerError> {
        let (name, mut words) = Words::of(text)?;
        let layer = match name {
            "ceiling" => Layer::Ceiling {
                per_second: words.take_four(number)?,
                bytes_per_second: words.take("bytes", bytes)?,
            },
            "latency" => Layer::Latency {
                ns: words.take_four(duration)?,
                jitter_percent: words.take("jitter", percent)?,
                seed: words.take("seed", number)?,
            },
            "errors" => Layer::Errors {
                per_million: words.take_four(part)?,
                seed: words.take("seed", number)?,
            },
            "" => return Err(wrong(text, "it has no name")),
            name => return Err(wrong(text, &format!("there is no '{name}'"))),
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
        ] {
            let error = text.parse::<LayerText>().expect_err(text).to_string();
            assert!(error.contains(reason), "{error}");
            assert!(error.contains("write for example"), "{error}");
        }
    }
}
