//! Tokens of volumes, as the control side speaks of them.
//!
//! Who has a token's key may open its volume over the native protocol (`docs/protocols/native.md`, "Access"). A key
//! is in one answer only: that of the call that made the token. `Debug` of what holds one doesn't show it.

use std::fmt;
use std::net::IpAddr;

use flagstone_gateway::nfs3::Network;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::VolumeInfo;

/// Tokens that a volume has at most, those that have ended or were revoked and are still listed included.
pub const TOKENS_MAX: usize = 32;

/// For how long a token that was rotated still opens its volume unless told otherwise, in seconds: a day, in which whoever uses it
/// is given the new one. A client that loses its connection meanwhile, or is sent to another core, opens the volume again with it.
pub const ROTATION_OVERLAP_S: u64 = 24 * 3600;

/// Bytes of a token's label at most.
pub const TOKEN_LABEL_BYTES_MAX: usize = 32;

/// Networks, and addresses of the node, that a volume may be restricted to at most.
pub const RESTRICTIONS_MAX: usize = 24;

/// From where, and on which addresses of the node, a volume may be used: over the native protocol, NBD and NFS.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Restrictions {
    /// The networks that clients have to be in one of; none: they may be anywhere.
    #[serde(with = "networks_text")]
    #[schema(value_type = Vec<String>, example = json!(["10.1.0.0/16", "2001:db8::/32"]))]
    pub allow_from: Vec<Network>,
    /// The addresses of the node that they have to connect to one of, and so the interface or VLAN they come by; none: any.
    #[schema(value_type = Vec<String>, example = json!(["10.1.0.1"]))]
    pub allow_on: Vec<IpAddr>,
}

/// As people read it.
impl fmt::Display for Restrictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        for network in &self.allow_from {
            write!(
                f,
                "{before}{}{network}",
                if before.is_empty() { "from " } else { "" }
            )?;
            before = " ";
        }
        for (index, local) in self.allow_on.iter().enumerate() {
            let on = match (index, before) {
                (0, "") => "on ",
                (0, _) => ", on ",
                _ => " ",
            };
            write!(f, "{on}{local}")?;
        }
        match self.allow_from.is_empty() && self.allow_on.is_empty() {
            true => f.write_str("none"),
            false => Ok(()),
        }
    }
}

mod networks_text {
    use flagstone_gateway::nfs3::Network;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        networks: &[Network],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(networks.iter().map(ToString::to_string))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Network>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let networks = texts.iter().map(|text| text.parse());
        networks.collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}

/// What a token allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// Everything: also snapshots, rolling back and resizing.
    Owner,
    /// Reading, writing, flushing.
    Writer,
    /// Reading.
    Reader,
}

impl fmt::Display for TokenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenKind::Owner => "owner",
            TokenKind::Writer => "writer",
            TokenKind::Reader => "reader",
        })
    }
}

/// Whether a volume can be opened with a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// It can.
    Valid,
    /// Not any more; what was opened before stays open.
    Ended,
    /// Not any more; requests on what was opened before are refused, too.
    Revoked,
}

impl fmt::Display for TokenState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenState::Valid => "valid",
            TokenState::Ended => "ended",
            TokenState::Revoked => "revoked",
        })
    }
}

/// A token as a client is given it: its number, `-`, and its key in 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct TokenText(pub String);

impl TokenText {
    /// The text of the token with this number and key.
    pub fn new(number: u32, key: &[u8]) -> TokenText {
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        TokenText(format!("{number}-{digits}"))
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenText(..)")
    }
}

/// A token to be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenSpec {
    /// What it allows.
    pub kind: TokenKind,
    /// After how many seconds it ends; without it, never.
    #[serde(default)]
    pub ends_in_s: Option<u64>,
    /// For people: at most 32 bytes, no control characters.
    #[serde(default)]
    pub label: String,
}

/// How a token is to be replaced.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateSpec {
    /// After how many seconds the old one ends; 0: at once. If it would have ended before, it does. Until then clients that have the
    /// volume open with it can open it again, as they must when they lose their connection. Without it, a day.
    #[serde(default = "rotation_overlap_s")]
    #[schema(default = 86_400)]
    pub old_ends_in_s: u64,
    /// After how many seconds the new one ends; without it, never.
    #[serde(default)]
    pub ends_in_s: Option<u64>,
}

impl Default for RotateSpec {
    fn default() -> Self {
        RotateSpec {
            old_ends_in_s: ROTATION_OVERLAP_S,
            ends_in_s: None,
        }
    }
}

fn rotation_overlap_s() -> u64 {
    ROTATION_OVERLAP_S
}

/// A token, without its key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Its number, by which it is named. Never given twice for a volume.
    #[schema(example = 1)]
    pub number: u32,
    /// What it allows.
    pub kind: TokenKind,
    /// For people.
    pub label: String,
    /// Whether the volume can be opened with it.
    pub state: TokenState,
    /// When it was made: nanoseconds since 1970-01-01 UTC.
    pub created_ns: u64,
    /// When it ends, or has; null: never.
    pub ends_ns: Option<u64>,
    /// When it was revoked; null: it was not.
    pub revoked_ns: Option<u64>,
    /// How often the volume is open with it now.
    pub open_count: u32,
}

/// All tokens of a volume, by number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// The tokens.
    pub items: Vec<TokenInfo>,
}

/// A token that was made, with its key: the only time that it is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// What it is.
    #[serde(flatten)]
    pub info: TokenInfo,
    /// The token itself.
    #[schema(example = "2-6f1c...")]
    pub token: TokenText,
}

/// A volume that was created, with the token of its owner: the only time that it is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CreatedVolume {
    /// The volume.
    #[serde(flatten)]
    pub volume: VolumeInfo,
    /// Its first token, which allows everything. Null from a node that makes none.
    #[serde(default)]
    #[schema(example = "1-6f1c...")]
    pub token: Option<TokenText>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restrictions_are_texts() {
        let all = [
            ("none", r#"{"allow_from":[],"allow_on":[]}"#),
            (
                "from 10.1.0.0/16 2001:db8::/32",
                r#"{"allow_from":["10.1.0.0/16","2001:db8::/32"],"allow_on":[]}"#,
            ),
            (
                "on 10.0.0.1 ::1",
                r#"{"allow_from":[],"allow_on":["10.0.0.1","::1"]}"#,
            ),
            (
                "from 10.1.2.3/32, on 10.0.0.1",
                r#"{"allow_from":["10.1.2.3/32"],"allow_on":["10.0.0.1"]}"#,
            ),
        ];
        for (words, json) in all {
            let read: Restrictions = serde_json::from_str(json).expect(json);
            assert_eq!(read.to_string(), words);
            assert_eq!(serde_json::to_string(&read).expect(words), json);
        }
        for bad in [
            r#"{"allow_from":["10.0.0.0/33"],"allow_on":[]}"#,
            r#"{"allow_from":[],"allow_on":["eth0"]}"#,
        ] {
            serde_json::from_str::<Restrictions>(bad).expect_err(bad);
        }
    }

    /// Who says nothing locks out nobody who has the volume open.
    #[test]
    fn a_token_that_is_rotated_ends_a_day_later_unless_told_otherwise() {
        let read = |json: &str| serde_json::from_str::<RotateSpec>(json).expect(json);
        assert_eq!(read("{}").old_ends_in_s, 86_400);
        assert_eq!(read("{}"), RotateSpec::default());
        assert_eq!(read(r#"{"old_ends_in_s":0}"#).old_ends_in_s, 0);
    }

    #[test]
    fn a_token_is_text_that_debug_hides() {
        let mut key = [0xab; 32];
        key[0] = 0x01;
        let text = TokenText::new(7, &key);
        assert_eq!(text.0, format!("7-01{}", "ab".repeat(31)));
        assert_eq!(text.0.len(), 2 + 64);
        assert!(!format!("{text:?}").contains("ab"), "{text:?}");
    }
}
