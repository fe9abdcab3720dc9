//! Names of volumes and snapshots, and the `VOLUME@SNAPSHOT` notation.
//!
//! A name is 1 to 128 letters, digits, `-`, `_`, `.` and begins with a letter or digit. So it needs
//! no quoting in a shell, a URL, an NBD export name or a metric's label, `@` splits unambiguously,
//! and no name is `.` or `..`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// Why a text is not a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameError(String);

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NameError {}

/// Checks a volume's, snapshot's or device's name.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if fits && starts && name.chars().all(plain) {
        return Ok(());
    }
    let shown: String = name.chars().take(40).collect();
    let found = name.chars().count();
    if found > NAME_BYTES_MAX {
        return Err(NameError(format!(
            "'{}...' is not a name: it has {found} characters, and a name has {NAME_BYTES_MAX} at \
             most",
            shown.escape_debug()
        )));
    }
    Err(NameError(format!(
        "'{}' is not a name: a name is 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.', and \
         begins with a letter or digit",
        shown.escape_debug()
    )))
}

/// Whether a snapshot's name is of the form that schedules give: `auto-YYYYMMDDTHHMMSSZ`. Only they may give it.
pub fn is_of_schedule(snapshot: &str) -> bool {
    const FORM: &str = "auto-00000000T000000Z";
    let fits = |(found, form): (u8, u8)| match form {
        b'0' => found.is_ascii_digit(),
        form => found == form,
    };
    snapshot.len() == FORM.len() && snapshot.bytes().zip(FORM.bytes()).all(fits)
}

/// For the command line: a checked name.
pub fn parse_name(text: &str) -> Result<String, NameError> {
    if let Ok(snapshot) = text.parse::<SnapshotRef>() {
        return Err(NameError(format!(
            "'{snapshot}' is not a name: it stands for a snapshot; `flagstone snapshot show {snapshot}` \
             shows it, and `flagstone snapshot --help` says what else can be done with snapshots"
        )));
    }
    check_name(text)?;
    Ok(text.to_string())
}

/// A snapshot of a volume; `VOLUME@SNAPSHOT` in text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRef {
    /// The volume's name.
    pub volume: String,
    /// The snapshot's name within the volume.
    pub snapshot: String,
}

impl SnapshotRef {
    /// The snapshot `snapshot` of `volume`, both checked.
    pub fn new(volume: &str, snapshot: &str) -> Result<SnapshotRef, NameError> {
        check_name(volume)?;
        check_name(snapshot)?;
        Ok(SnapshotRef {
            volume: volume.to_string(),
            snapshot: snapshot.to_string(),
        })
    }
}

impl fmt::Display for SnapshotRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.volume, self.snapshot)
    }
}

impl FromStr for SnapshotRef {
    type Err = NameError;

    fn from_str(text: &str) -> Result<SnapshotRef, NameError> {
        match text.split_once('@') {
            Some((volume, snapshot)) => SnapshotRef::new(volume, snapshot),
            None => Err(NameError(format!(
                "'{}' names no snapshot: write VOLUME@SNAPSHOT",
                text.escape_debug()
            ))),
        }
    }
}

/// What can be copied: a volume as it is now (`VOLUME`), or a snapshot (`VOLUME@SNAPSHOT`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceRef {
    /// The volume's name.
    pub volume: String,
    /// The snapshot's name, or `None` for the volume as it is now.
    pub snapshot: Option<String>,
}

impl fmt::Display for SourceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.snapshot {
            Some(snapshot) => write!(f, "{}@{snapshot}", self.volume),
            None => f.write_str(&self.volume),
        }
    }
}

impl FromStr for SourceRef {
    type Err = NameError;

    fn from_str(text: &str) -> Result<SourceRef, NameError> {
        if text.contains('@') {
            let found: SnapshotRef = text.parse()?;
            return Ok(SourceRef {
                volume: found.volume,
                snapshot: Some(found.snapshot),
            });
        }
        check_name(text)?;
        Ok(SourceRef {
            volume: text.to_string(),
            snapshot: None,
        })
    }
}

/// Reads a list of snapshots as arguments: each `VOLUME@SNAPSHOT`, or just two words, the volume
/// and the snapshot.
pub fn snapshots_from_args(args: &[String]) -> Result<Vec<SnapshotRef>, NameError> {
    if let [volume, snapshot] = args
        && !volume.contains('@')
        && !snapshot.contains('@')
    {
        return Ok(vec![SnapshotRef::new(volume, snapshot)?]);
    }
    args.iter().map(|arg| arg.parse()).collect()
}

/// Reads one snapshot as arguments: `VOLUME@SNAPSHOT`, or the two as two words.
pub fn snapshot_from_args(args: &[String]) -> Result<SnapshotRef, NameError> {
    let mut found = snapshots_from_args(args)?.into_iter();
    match (found.next(), found.next()) {
        (Some(snapshot), None) => Ok(snapshot),
        _ => Err(NameError(format!(
            "'{}' is not one snapshot: write VOLUME@SNAPSHOT, or VOLUME SNAPSHOT",
            args.join(" ").escape_debug()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_need_no_quoting() {
        let longest = "a".repeat(NAME_BYTES_MAX);
        for name in ["a", "vm-1.disk_0", "0", longest.as_str()] {
            assert_eq!(check_name(name), Ok(()));
        }
        let too_long = "a".repeat(NAME_BYTES_MAX + 1);
        let error = check_name(&too_long).expect_err("too long").to_string();
        assert!(
            error.contains("129 characters") && error.contains("128 at most"),
            "{error}"
        );
        let bad = ["", ".", "..", "-a", "_a", "a/b", "a@b", "a b", "ä", "a\n"];
        for name in bad.into_iter().chain([too_long.as_str()]) {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn at_sign_splits() {
        let both = SnapshotRef::new("vol", "snap").expect("names");
        assert_eq!("vol@snap".parse(), Ok(both.clone()));
        assert_eq!(both.to_string(), "vol@snap");
        for text in ["vol", "vol@", "@snap", "a@b@c"] {
            assert!(text.parse::<SnapshotRef>().is_err(), "{text}");
        }
        let source: SourceRef = "vol".parse().expect("a volume");
        assert_eq!((source.snapshot, source.volume.as_str()), (None, "vol"));
    }

    #[test]
    fn names_of_schedules_have_one_form() {
        assert!(is_of_schedule("auto-20261124T231500Z"));
        for other in [
            "auto-20261124T231500",
            "auto-20261124T231500ZZ",
            "auto-20261124t231500Z",
            "Auto-20261124T231500Z",
            "auto-2026112aT231500Z",
            "auto-",
            "monday",
        ] {
            assert!(!is_of_schedule(other), "{other}");
        }
    }

    #[test]
    fn two_words_are_volume_and_snapshot() {
        let args = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
            snapshots_from_args(&words).map(|list| {
                let list: Vec<String> = list.iter().map(|s| s.to_string()).collect();
                list.join(" ")
            })
        };
        assert_eq!(args(&["a", "s"]), Ok("a@s".to_string()));
        assert_eq!(args(&["a@s"]), Ok("a@s".to_string()));
        assert_eq!(args(&["a@s", "b@t"]), Ok("a@s b@t".to_string()));
        assert!(args(&["a@s", "b"]).is_err());
        assert!(args(&["a", "b", "c"]).is_err());
    }
}
