//! SLOs and ceilings as people write them: `reads=5000,writes=1000`, `reads=80000 writes=50000 bytes=1G latency=1ms`.

use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer};

use crate::node::{DeviceCeiling, Rates, SloLimit};
use crate::words::{Words, WordsError, bytes, duration, number, positive};

impl FromStr for Rates {
    type Err = WordsError;

    fn from_str(text: &str) -> Result<Rates, WordsError> {
        let mut words = Words::of(
            text,
            "is not a floor",
            "'reads=5000,writes=1000', or 'none'",
        )?;
        let reads = words.take("reads", number)?;
        let writes = words.take("writes", number)?;
        let rates = Rates {
            reads: reads.unwrap_or(0),
            writes: writes.unwrap_or(0),
        };
        let nothing = words.wrong("it promises nothing");
        words.end()?;
        match rates == Rates::default() {
            true => Err(nothing),
            false => Ok(rates),
        }
    }
}

impl FromStr for SloLimit {
    type Err = WordsError;

    fn from_str(text: &str) -> Result<SloLimit, WordsError> {
        if text == "none" {
            return Ok(SloLimit::default());
        }
        let example = "'reads=2000,bytes=100M' (a second), or 'none'";
        let mut words = Words::of(text, "is not a limit", example)?;
        let limit = SloLimit {
            reads: words.take("reads", positive)?,
            writes: words.take("writes", positive)?,
            bytes: words.take("bytes", |text| match bytes(text)? {
                0 => Err("expected more than 0".to_owned()),
                bytes => Ok(bytes),
            })?,
        };
        let nothing = words.wrong("it limits nothing");
        words.end()?;
        match limit == SloLimit::default() {
            true => Err(nothing),
            false => Ok(limit),
        }
    }
}

impl FromStr for DeviceCeiling {
    type Err = WordsError;

    fn from_str(text: &str) -> Result<DeviceCeiling, WordsError> {
        let example = "'reads=80000 writes=50000 flushes=10000 bytes=1G latency=1ms'";
        let mut words = Words::of(text, "is not a ceiling", example)?;
        let reads = words.take("reads", positive)?;
        let writes = words.take("writes", positive)?;
        let (Some(reads), Some(writes)) = (reads, writes) else {
            return Err(words.wrong("reads and writes of 4 KiB a second have to be said"));
        };
        let ceiling = DeviceCeiling {
            reads,
            writes,
            flushes: words.take("flushes", number)?.unwrap_or(0),
            bytes: words.take("bytes", bytes)?.unwrap_or(0),
            latency_us: words.take("latency", duration)?.unwrap_or(0) / 1000,
        };
        words.end()?;
        Ok(ceiling)
    }
}

/// As the configuration has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CeilingText(pub DeviceCeiling);

impl FromStr for CeilingText {
    type Err = WordsError;

    fn from_str(text: &str) -> Result<CeilingText, WordsError> {
        text.parse().map(CeilingText)
    }
}

impl<'de> Deserialize<'de> for CeilingText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CeilingText, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_read_and_shown() {
        let floor: Rates = "reads=5000,writes=1000".parse().expect("a floor");
        assert_eq!((floor.reads, floor.writes), (5000, 1000));
        let writes: Rates = "writes=7".parse().expect("a floor");
        assert_eq!((writes.reads, writes.writes), (0, 7));
        let limit: SloLimit = "bytes=100M, reads=5".parse().expect("a limit");
        assert_eq!(limit.to_string(), "reads=5 bytes=104857600");
        assert_eq!("none".parse(), Ok(SloLimit::default()));
        assert_eq!(SloLimit::default().to_string(), "none");
        let text = "reads=80000 writes=50000 flushes=10000 bytes=1073741824 latency=1500us";
        let ceiling: DeviceCeiling = text.parse().expect("a ceiling");
        assert_eq!(ceiling.latency_us, 1500);
        assert_eq!(ceiling.to_string(), text);
        for (given, shown) in [
            ("2000us", "2ms"),
            ("2ms", "2ms"),
            ("1.5ms", "1500us"),
            ("1000ms", "1s"),
            ("1m", "60s"),
        ] {
            let text = format!("reads=1 writes=2 latency={given}");
            let ceiling: DeviceCeiling = text.parse().expect("a ceiling");
            let shown = format!("reads=1 writes=2 latency={shown}");
            assert_eq!(ceiling.to_string(), shown);
            assert_eq!(shown.parse(), Ok(ceiling));
        }
        let short: DeviceCeiling = "reads=1 writes=2".parse().expect("a ceiling");
        assert_eq!(short.to_string(), "reads=1 writes=2");
    }

    #[test]
    fn what_is_none_is_refused_with_its_reason() {
        fn refused<T: FromStr<Err = WordsError> + std::fmt::Debug>(text: &str, reason: &str) {
            let error = text.parse::<T>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.contains("write for example"), "{error}");
        }
        refused::<Rates>("", "it promises nothing");
        refused::<Rates>("reads=0", "it promises nothing");
        refused::<Rates>("read=5", "there is no read here");
        refused::<Rates>("reads=5 bytes=3", "there are no bytes here");
        refused::<Rates>("reads=-5", "reads=-5: expected a whole number");
        refused::<SloLimit>("", "it limits nothing");
        refused::<SloLimit>("reads=0", "expected more than 0");
        refused::<SloLimit>("bytes=0", "expected more than 0");
        refused::<SloLimit>("flushes=1", "there are no flushes here");
        refused::<DeviceCeiling>("reads=5", "have to be said");
        refused::<DeviceCeiling>("reads=5 writes=0", "expected more than 0");
        refused::<DeviceCeiling>("reads=5 writes=5 latency=2", "expected a time");
        refused::<DeviceCeiling>("reads=5 writes=5 writes=5", "writes is there twice");
        refused::<DeviceCeiling>("reads=5 writes=5 speed=5", "there is no speed here");
    }
}
