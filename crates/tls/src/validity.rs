//! From when to when a certificate is good, read from its DER: rustls judges only the certificates of others.

use crate::settings::{SettingsError, certificates};

/// From when to when a certificate is good, in seconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// Not before.
    pub from_s: i64,
    /// Not after.
    pub until_s: i64,
}

/// That of the first certificate of a PEM text. `None` if it doesn't say so in the usual way.
pub fn validity(certificate: &[u8]) -> Result<Option<Validity>, SettingsError> {
    let all = certificates(certificate)?;
    Ok(all.first().and_then(|first| of_der(first)))
}

/// [rfc5280 4.1] `Certificate` holds `TBSCertificate`, which holds the version, the serial number, the algorithm, the
/// issuer, the validity and more, in this order.
fn of_der(certificate: &[u8]) -> Option<Validity> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    // The first version doesn't name itself.
    if let Some((_, behind)) = element(rest, VERSION) {
        rest = behind;
    }
    const INTEGER: u8 = 0x02;
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        (_, rest) = element(rest, tag)?;
    }
    let (validity, _) = element(rest, SEQUENCE)?;
    let (from_s, rest) = time(validity)?;
    let (until_s, _) = time(rest)?;
    Some(Validity { from_s, until_s })
}

/// What is in an element with this tag, and what is behind it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let (&len, rest) = rest.split_first()?;
    if first != tag {
        return None;
    }
    let (len, rest) = match len {
        0..=0x7f => (usize::from(len), rest),
        // Long lengths say first how many bytes they have; four hold what a certificate can have.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(len & 0x7f))?;
            let len = digits
                .iter()
                .fold(0, |len, &digit| len << 8 | usize::from(digit));
            (len, rest)
        }
        _ => return None,
    };
    rest.split_at_checked(len)
}

/// A time in seconds since 1970, and what is behind it. [rfc5280 4.1.2.5]
fn time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;
    let (text, rest, year_digits) = match element(bytes, UTC_TIME) {
        Some((text, rest)) => (text, rest, 2),
        None => {
            let (text, rest) = element(bytes, GENERALIZED_TIME)?;
            (text, rest, 4)
        }
    };
    let (digits, end) = text.split_at_checked(year_digits + 10)?;
    if end != b"Z" || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |from: usize, len: usize| {
        let digits = &digits[from..from + len];
        digits
            .iter()
            .fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'))
    };
    let mut year = number(0, year_digits);
    if year_digits == 2 {
        // Two digits mean 1950 to 2049.
        year += if year < 50 { 2000 } else { 1900 };
    }
    let at = |place: usize| number(year_digits + 2 * place, 2);
    let (month, day) = (at(0), at(1));
    let seconds = (at(2) * 60 + at(3)) * 60 + at(4);
    (1..=12).contains(&month).then_some(())?;
    Some((days_since_1970(year, month, day) * 86_400 + seconds, rest))
}

/// Days from 1970-01-01 to a day of the Gregorian calendar. Years are counted from March, so that the day which some
/// of them have more is their last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let months = (month + 9) % 12;
    let day_of_year = (153 * months + 2) / 5 + day - 1;
    let days = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    days + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_as_in_the_calendar() {
        assert_eq!(days_since_1970(1970, 1, 1), 0);
        assert_eq!(days_since_1970(1969, 12, 31), -1);
        assert_eq!(days_since_1970(2000, 2, 29), 11_016);
        assert_eq!(days_since_1970(2026, 11, 25), 20_782);
        assert_eq!(days_since_1970(2100, 3, 1), 47_541);
    }

    #[test]
    fn both_ways_to_write_a_time_are_read() {
        let utc = b"\x17\x0d261125213005Zrest";
        assert_eq!(time(utc), Some((1_795_642_205, &b"rest"[..])));
        let general = b"\x18\x0f20261125213005Z";
        assert_eq!(time(general), Some((1_795_642_205, &b""[..])));
        assert_eq!(
            time(b"\x17\x0d991231235959Z").map(|(at, _)| at),
            Some(946_684_799)
        );
        for bad in [
            &b"\x17\x0d261325213005Z"[..],
            b"\x17\x0d26112521300xZ",
            b"\x17\x0b2611252130Z",
            b"\x17\x0d261125",
            b"\x05\x00",
            b"",
        ] {
            assert_eq!(time(bad), None);
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_validity() {
        for bad in [
            &b""[..],
            b"\x30",
            b"\x30\x80",
            b"\x30\x84\xff\xff\xff\xff",
            b"\x30\x03\x30\x01\x02",
        ] {
            assert_eq!(of_der(bad), None);
        }
    }
}
