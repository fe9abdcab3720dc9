//! Texts of the form `NAME=VALUE NAME=VALUE`, as options and configuration have them.

use crate::size::Size;

/// What is wrong with such a text, and what it should look like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WordsError(pub(crate) String);

impl std::fmt::Display for WordsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WordsError {}

/// The words of a text, each to be taken once.
pub(crate) struct Words<'a> {
    text: &'a str,
    /// "is not a layer", "is not a ceiling".
    is_not: &'static str,
    /// What to write instead.
    example: &'static str,
    words: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    /// Of a text without anything in front. A comma separates as well as a space.
    pub(crate) fn of(
        text: &'a str,
        is_not: &'static str,
        example: &'static str,
    ) -> Result<Words<'a>, WordsError> {
        Words::behind(text, text, is_not, example)
    }

    /// Those of `rest`, which is a part of `text`.
    pub(crate) fn behind(
        text: &'a str,
        rest: &'a str,
        is_not: &'static str,
        example: &'static str,
    ) -> Result<Words<'a>, WordsError> {
        let mut found = Words {
            text,
            is_not,
            example,
            words: Vec::new(),
        };
        let is_between = |c: char| c == ',' || c.is_whitespace();
        for word in rest.split(is_between).filter(|word| !word.is_empty()) {
            let Some((key, value)) = word.split_once('=') else {
                return Err(found.wrong(&format!("'{word}' is not of the form NAME=VALUE")));
            };
            if found.words.iter().any(|(known, _)| *known == key) {
                return Err(found.wrong(&format!("{key} is there twice")));
            }
            found.words.push((key, value));
        }
        Ok(found)
    }

    /// An error about the whole text.
    pub(crate) fn wrong(&self, found: &str) -> WordsError {
        let Words {
            text,
            is_not,
            example,
            ..
        } = self;
        WordsError(format!(
            "'{text}' {is_not}: {found}; write for example {example}"
        ))
    }

    /// Takes the value of a key out and reads it. `None` if it isn't there.
    pub(crate) fn take<T>(
        &mut self,
        key: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, WordsError> {
        let Some(at) = self.words.iter().position(|(known, _)| *known == key) else {
            return Ok(None);
        };
        let (_, value) = self.words.remove(at);
        let value = read(value).map_err(|found| self.wrong(&format!("{key}={value}: {found}")));
        value.map(Some)
    }

    /// Nothing is left that nobody asked for.
    pub(crate) fn end(self) -> Result<(), WordsError> {
        match self.words.first() {
            None => Ok(()),
            Some((key, _)) => {
                let is = if key.ends_with('s') { "are" } else { "is" };
                Err(self.wrong(&format!("there {is} no {key} here")))
            }
        }
    }
}

pub(crate) fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| "expected a whole number".to_owned())
}

/// Of what can't be zero.
pub(crate) fn positive(text: &str) -> Result<u64, String> {
    match number(text)? {
        0 => Err("expected more than 0".to_owned()),
        number => Ok(number),
    }
}

pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    text.parse()
        .map(|size: Size| size.0)
        .map_err(|error| error.to_string())
}

/// Nanoseconds of `80us`, `1.5ms`, `2s`, `1m`: an hour at most.
pub(crate) fn duration(text: &str) -> Result<u64, String> {
    match any_duration(text)? {
        ns if ns <= HOUR_NS => Ok(ns),
        _ => Err("more than an hour".to_owned()),
    }
}

/// The same, however long.
pub(crate) fn any_duration(text: &str) -> Result<u64, String> {
    let units = [
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", HOUR_NS),
        ("d", 24 * HOUR_NS),
    ];
    let expected = || "expected a time such as 80us, 1.5ms or 2s".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let (_, factor) = units
        .into_iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(expected)?;
    decimal(digits, factor).ok_or_else(expected)
}

const HOUR_NS: u64 = 3600 * 1_000_000_000;

/// A decimal number times a factor, rounded down. `None` if it is none, or too large.
pub(crate) fn decimal(text: &str, factor: u64) -> Option<u64> {
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
