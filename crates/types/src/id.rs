//! Identifiers. Each is its own type so that one can't be passed for another.

use std::fmt;
use std::str::FromStr;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseIdError;

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id is 32 hexadecimal digits")
    }
}

impl std::error::Error for ParseIdError {}

macro_rules! id128 {
    ($name:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u128);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(ParseIdError);
                }
                u128::from_str_radix(text, 16)
                    .map($name)
                    .map_err(|_| ParseIdError)
            }
        }
    };
}

id128!(
    DvolId,
    "The 128-bit id of a dvol, drawn at random when it is created. [decibel 4.3]"
);
id128!(
    DeviceId,
    "The 128-bit id of a device, drawn at random when it is formatted."
);

/// A layer's number in its journal, from 1 on. Numbers only grow, so along any chain of layers a block's
/// birth is compared with `<`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LayerNo(pub u32);

impl fmt::Debug for LayerNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.0)
    }
}

/// A place in a journal's catalogue. Reused after its record is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Slot(pub u32);

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}
