//! Sizes as people write them: `10G`, `512M`, `1.5T`, or plain bytes.
//!
//! Units are binary: K is 1,024 bytes, M 1,024 K, and so on up to E. `10GiB` means the same as
//! `10G`. `10GB` is refused, because half of those who write it mean 10^9.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// The unit letters in order; each is 1,024 times the one before, K being 1,024 bytes.
const UNITS: &str = "KMGTPE";

/// A number of bytes that is read and written as people do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Size(pub u64);

/// Why a text is not a size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeError(String);

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SizeError {}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Size, SizeError> {
        let fail = |found: &str| {
            Err(SizeError(format!(
                "'{text}' is not a size: {found}; write for example 10G, 512M, 1.5T or a number \
                 of bytes (units are binary: 1K is 1024 bytes)"
            )))
        };
        if text.starts_with(['-', '+']) {
            return fail("a size has no sign");
        }
        let digits_end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits_end);
        let Some(shift) = unit_shift(unit) else {
            if unit.len() == 2 && unit.to_ascii_uppercase().ends_with('B') {
                return fail("'GB' and the like are read in two ways, so write G or GiB");
            }
            return fail("the unit is none of K, M, G, T, P and E");
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || (fraction.is_empty() && number.contains('.')) {
            return fail("it has no number");
        }
        if fraction.len() > 9 || fraction.contains('.') {
            return fail("its fraction is malformed or longer than nine digits");
        }
        // Exact in 128 bits: below 2^64 * 10^9 before the shift is checked.
        let Ok(scaled) = format!("{whole}{fraction}").parse::<u64>() else {
            return fail("the number is too large");
        };
        let bytes_scaled = u128::from(scaled) << shift;
        let scale = 10u128.pow(fraction.len() as u32);
        if bytes_scaled % scale != 0 {
            return fail("it is not a whole number of bytes");
        }
        match u64::try_from(bytes_scaled / scale) {
            Ok(bytes) => Ok(Size(bytes)),
            Err(_) => fail("it is 2^64 bytes or more"),
        }
    }
}

/// The power of two that a unit stands for: `""` and `"B"` are bytes, then `K`, `KiB`, ...
fn unit_shift(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return Some(0);
    }
    let letter = unit.strip_suffix("IB").unwrap_or(&unit);
    if letter.len() != 1 {
        return None;
    }
    let index = UNITS.find(letter)?;
    Some((index as u32 + 1) * 10)
}

/// Exact and short: the largest unit that leaves a whole number (`10G`, `1536M`, `1000`).
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = (self.0.trailing_zeros() / 10).min(UNITS.len() as u32);
        if self.0 == 0 || unit == 0 {
            return write!(f, "{}", self.0);
        }
        let letter = &UNITS[unit as usize - 1..unit as usize];
        write!(f, "{}{letter}", self.0 >> (unit * 10))
    }
}

/// For tables: three significant digits or so, rounded down, with the unit spelled out.
pub fn rounded(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = ((63 - bytes.leading_zeros()) / 10).min(UNITS.len() as u32);
    let letter = &UNITS[unit as usize - 1..unit as usize];
    let whole = bytes >> (unit * 10);
    let rest = bytes & ((1 << (unit * 10)) - 1);
    let tenth = (u128::from(rest) * 10) >> (unit * 10);
    if tenth == 0 || whole >= 100 {
        format!("{whole} {letter}iB")
    } else {
        format!("{whole}.{tenth} {letter}iB")
    }
}

/// In configuration files: a text like `"20G"`, or an integer of bytes.
impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"20G\", or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(de::Error::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes)
                    .map(Size)
                    .map_err(|_| de::Error::custom("a size is not negative"))
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

/// A number of things, the word in the plural unless there is one.
pub fn counted(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// A part of a whole: `62%`, `3.1%`, `0%`. What rounding has left below zero is nothing.
pub fn percent(part: f64) -> String {
    match part {
        part if part <= 0.0 => "0%".to_owned(),
        part if part > 0.0 && part < 0.0995 => format!("{:.1}%", part * 100.0),
        part => format!("{:.0}%", part * 100.0),
    }
}

/// A duration in three digits or so: `83us`, `1.2ms`, `340ms`, `2.0s`.
pub fn short_time(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    match us {
        us if us < 999.5 => format!("{us:.0}us"),
        us if us < 99_950.0 => format!("{:.1}ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        us => format!("{:.1}s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_have_no_sign() {
        for (part, text) in [
            (-0.0, "0%"),
            (0.0, "0%"),
            (-1e-9, "0%"),
            (0.031, "3.1%"),
            (0.62, "62%"),
            (1.5, "150%"),
        ] {
            assert_eq!(percent(part), text, "{part}");
        }
    }

    #[test]
    fn one_is_singular() {
        assert_eq!(counted(1, "core"), "1 core");
        assert_eq!(counted(0, "core"), "0 cores");
        assert_eq!(counted(2, "segment"), "2 segments");
    }

    #[test]
    fn reads_what_people_write() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("10G", 10 << 30),
            ("10g", 10 << 30),
            ("10GiB", 10 << 30),
            ("512M", 512 << 20),
            ("1.5T", 3 << 39),
            ("0.5K", 512),
            ("7B", 7),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_and_says_why() {
        let cases = [
            ("", "no number"),
            ("G", "no number"),
            ("1.G", "no number"),
            (".5G", "no number"),
            ("10GB", "two ways"),
            ("10X", "unit"),
            ("10 G", "unit"),
            ("-1", "no sign"),
            ("+1G", "no sign"),
            ("16E", "2^64"),
            ("18446744073709551616", "too large"),
            ("1.3", "whole number of bytes"),
            ("1.2.3G", "fraction"),
        ];
        for (text, why) in cases {
            let error = text.parse::<Size>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("10G, 512M"), "the next step: {error}");
        }
    }

    #[test]
    fn rounds_down_for_tables() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 30) - 1, "1023 MiB"),
            (10 << 30, "10 GiB"),
            (u64::MAX, "15.9 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(rounded(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(bytes: u64) {
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
            let even = bytes & !((1 << 30) - 1);
            prop_assert_eq!(Size(even).to_string().parse(), Ok(Size(even)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = text.parse::<Size>();
        }
    }
}
