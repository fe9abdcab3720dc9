//! The keys of the HTTP API: who has one may ask.
//!
//! A key is 32 random bytes, 64 hexadecimal digits in a file of the node's folder. `api.key` opens
//! everything, `metrics.key` the metrics alone. Invariants: a key that is there is never replaced but by
//! [`rotate`]; no key is shown by `Debug`, in an error or in the log; a file that can't be trusted (others
//! may read it, it is no key) is never taken, and while a node runs never ends the key it had before.

mod file;
mod held;

use std::fmt;
use std::io;

use flagstone_wire::proof::{KEY_BYTES, Key};

pub use file::{MadeKey, load, load_or_make, read_given, rotate};
pub use held::HeldKey;

/// Digits of a key in a file and in a request.
pub const KEY_DIGITS: usize = 2 * KEY_BYTES;

/// Bytes of a key's file at most; whoever writes more there means something else.
const FILE_BYTES_MAX: u64 = 4 << 10;

/// A key. `Debug` doesn't show it, and there is no `Display`.
#[derive(Clone)]
pub struct Secret(Key);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Draws one. Fails if the system has no randomness.
    pub fn random() -> io::Result<Secret> {
        let mut bytes = [0; KEY_BYTES];
        flagstone_runtime::fill_random(&mut bytes)?;
        Ok(Secret(Key(bytes)))
    }

    /// Reads 64 hexadecimal digits, large or small, and nothing else.
    pub fn parse(digits: &[u8]) -> Option<Secret> {
        let (pairs, rest) = digits.as_chunks::<2>();
        if pairs.len() != KEY_BYTES || !rest.is_empty() {
            return None;
        }
        let value = |digit: u8| (digit as char).to_digit(16);
        let mut bytes = [0; KEY_BYTES];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = (value(*high)? << 4 | value(*low)?) as u8;
        }
        Some(Secret(Key(bytes)))
    }

    /// Whether both are the same. Takes as long wherever they differ.
    pub fn is(&self, other: &Secret) -> bool {
        self.0.is_same(&other.0)
    }

    /// As it is written in files and sent. Not for logs, arguments or messages.
    pub fn digits(&self) -> String {
        self.0.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What a key opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyUse {
    /// Everything.
    Api,
    /// `/metrics` alone.
    Metrics,
}

impl KeyUse {
    /// The file's name within the folder of its node.
    pub fn file_name(self) -> &'static str {
        match self {
            KeyUse::Api => "api.key",
            KeyUse::Metrics => "metrics.key",
        }
    }

    /// Whose key it is, for messages.
    pub fn title(self) -> &'static str {
        match self {
            KeyUse::Api => "the API's key",
            KeyUse::Metrics => "the key of the metrics",
        }
    }

    /// The command that replaces it.
    fn rotation(self) -> &'static str {
        match self {
            KeyUse::Api => "flagstone node rotate-api-key",
            KeyUse::Metrics => "flagstone node rotate-api-key --metrics",
        }
    }

    /// What its file's mode may have at most. Prometheus is usually another user.
    fn mode_max(self) -> u32 {
        match self {
            KeyUse::Api => 0o600,
            KeyUse::Metrics => 0o640,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_digits_and_the_same_one_only_if_all_are() {
        let digits = "0123456789abcdef".repeat(4);
        let secret = Secret::parse(digits.as_bytes()).expect("a key");
        assert_eq!(secret.digits(), digits);
        let large = Secret::parse(digits.to_uppercase().as_bytes()).expect("the same");
        assert!(secret.is(&large));
        for at in [0, 1, 31, 63] {
            let mut other = digits.clone().into_bytes();
            other[at] = if other[at] == b'7' { b'8' } else { b'7' };
            let other = Secret::parse(&other).expect("a key");
            assert!(!secret.is(&other) && !other.is(&secret), "digit {at}");
        }
        for wrong in [
            "",
            &digits[1..],
            &format!("{digits}0"),
            &format!("{digits}\n"),
            &format!("+{}", &digits[1..]),
            &format!("g{}", &digits[1..]),
            &format!("é{}", &digits[2..]),
        ] {
            assert!(Secret::parse(wrong.as_bytes()).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn drawn_ones_differ_and_debug_shows_none() {
        let (one, other) = (Secret::random(), Secret::random());
        let (one, other) = (one.expect("drawn"), other.expect("drawn"));
        assert!(!one.is(&other));
        assert_eq!(
            format!("{one:?} {:#?}", Some(&other)).matches("..").count(),
            2
        );
    }
}
