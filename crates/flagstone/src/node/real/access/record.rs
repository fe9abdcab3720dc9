//! What the device holds of a volume's tokens and restrictions: a record of one block for each volume that has any.
//!
//! The bytes are described in `docs/formats/tokens.md`. Encoding is canonical: what decodes is what would be encoded.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use flagstone_gateway::nfs3::Network;
use flagstone_types::checksum::crc32c;
use flagstone_types::{BLOCK_SIZE, DvolId};
use flagstone_wire::proof::{KEY_BYTES, Key};

use crate::node::{
    RESTRICTIONS_MAX, TOKEN_LABEL_BYTES_MAX, TOKENS_MAX, TokenInfo, TokenKind, TokenState,
};

/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = BLOCK_SIZE as usize;

const MAGIC: [u8; 4] = *b"FSTK";
const VERSION: u8 = 1;

const VERSION_AT: usize = 4;
const COUNTS_AT: usize = 5;
const VOLUME_AT: usize = 8;
const NEXT_AT: usize = 24;
const CRC_AT: usize = 60;
const TOKENS_AT: usize = 64;
const TOKEN_BYTES: usize = 64 + TOKEN_LABEL_BYTES_MAX;
const NETWORKS_AT: usize = TOKENS_AT + TOKENS_MAX * TOKEN_BYTES;
const ADDRESS_BYTES: usize = 20;
const LOCALS_AT: usize = NETWORKS_AT + RESTRICTIONS_MAX * ADDRESS_BYTES;

const _: () = assert!(LOCALS_AT + RESTRICTIONS_MAX * ADDRESS_BYTES == RECORD_BYTES);

/// What those who have opened a volume with a token share with the table. Not on the device.
#[derive(Default, Debug)]
pub(super) struct Live {
    /// Their requests are refused from now on.
    pub(super) revoked: AtomicBool,
    /// How many there are.
    pub(super) opens: AtomicU32,
}

/// A token of a volume.
#[derive(Clone, Debug)]
pub(super) struct Token {
    /// From 1 on.
    pub(super) number: u32,
    pub(super) kind: TokenKind,
    pub(super) key: Key,
    pub(super) created_ns: u64,
    /// Zero for never.
    pub(super) ends_ns: u64,
    /// Zero if it was not.
    pub(super) revoked_ns: u64,
    pub(super) label: String,
    pub(super) live: Arc<Live>,
}

impl Token {
    pub(super) fn state(&self, now_ns: u64) -> TokenState {
        match (self.revoked_ns, self.ends_ns) {
            (1.., _) => TokenState::Revoked,
            (0, 1..) if self.ends_ns <= now_ns => TokenState::Ended,
            _ => TokenState::Valid,
        }
    }

    pub(super) fn info(&self, now_ns: u64) -> TokenInfo {
        let told = |ns: u64| Some(ns).filter(|&ns| ns > 0);
        TokenInfo {
            number: self.number,
            kind: self.kind,
            label: self.label.clone(),
            state: self.state(now_ns),
            created_ns: self.created_ns,
            ends_ns: told(self.ends_ns),
            revoked_ns: told(self.revoked_ns),
            open_count: self.live.opens.load(Ordering::Relaxed),
        }
    }
}

/// Tokens and restrictions of a volume.
#[derive(Clone, Debug)]
pub(in crate::node::real) struct Record {
    pub(super) volume: DvolId,
    /// The number of the next token: none is given twice.
    pub(super) next_number: u32,
    /// In ascending order of their numbers.
    pub(super) tokens: Vec<Token>,
    /// Networks that it may be opened from; none: from everywhere.
    pub(super) networks: Vec<Network>,
    /// Addresses of the node that it may be opened on; none: on all.
    pub(super) locals: Vec<IpAddr>,
    /// It stands for one that can't be read: see [`Record::lost`]. Not on the device.
    pub(super) is_lost: bool,
}

/// Why a block is no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node::real) enum BadRecord {
    /// There is something else.
    NoRecord,
    /// It is of a version that this program doesn't know.
    Version(u8),
    /// Its bytes don't match its checksum, or can't have been written like that.
    Damaged,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRecord::NoRecord => f.write_str("expected a record of tokens, found something else"),
            BadRecord::Version(found) => write!(
                f,
                "expected a record of tokens of version {VERSION}, found version {found}: it was written by a newer \
                 program"
            ),
            BadRecord::Damaged => f.write_str(
                "expected a record of tokens, found one that doesn't match its checksum or contradicts itself",
            ),
        }
    }
}

impl Record {
    /// That of a volume that has no tokens yet.
    pub(super) fn new(volume: DvolId) -> Record {
        Record {
            volume,
            next_number: 1,
            tokens: Vec::new(),
            networks: Vec::new(),
            locals: Vec::new(),
            is_lost: false,
        }
    }

    /// That of a volume whose record can't be read. It has no tokens, and is restricted to an address that nobody has: also when a
    /// token is made for it, or it is moved, and the record is written as it is. So it stays closed until it is restricted anew.
    pub(super) fn lost(volume: DvolId) -> Record {
        let nobody = Network::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 32);
        Record {
            networks: nobody.into_iter().collect(),
            is_lost: true,
            ..Record::new(volume)
        }
    }

    /// Whether it lets the same addresses in.
    pub(super) fn is_restricted_as(&self, other: &Record) -> bool {
        (&self.networks, &self.locals) == (&other.networks, &other.locals)
    }

    /// A token by which it can be opened and written now.
    pub(in crate::node::real) fn a_writer(&self, now_ns: u64) -> Option<(u32, Key)> {
        let of_use = |token: &&Token| {
            token.kind != TokenKind::Reader && token.state(now_ns) == TokenState::Valid
        };
        let found = self.tokens.iter().find(of_use)?;
        Some((found.number, found.key.clone()))
    }

    /// Whether it may be opened from some addresses only, or on some.
    pub(in crate::node::real) fn is_restricted(&self) -> bool {
        !self.networks.is_empty() || !self.locals.is_empty()
    }

    /// The token with this number.
    pub(super) fn token(&self, number: u32) -> Option<&Token> {
        self.tokens.iter().find(|token| token.number == number)
    }

    /// The block that stands for it. Whoever changes a record keeps to the limits.
    pub(super) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        assert!(self.tokens.len() <= TOKENS_MAX);
        assert!(self.networks.len().max(self.locals.len()) <= RESTRICTIONS_MAX);
        put(&mut out, 0, &MAGIC);
        out[VERSION_AT] = VERSION;
        let counts = [&self.tokens.len(), &self.networks.len(), &self.locals.len()];
        put(&mut out, COUNTS_AT, &counts.map(|&count| count as u8));
        put(&mut out, VOLUME_AT, &self.volume.0.to_le_bytes());
        put(&mut out, NEXT_AT, &self.next_number.to_le_bytes());
        for (index, token) in self.tokens.iter().enumerate() {
            let at = TOKENS_AT + index * TOKEN_BYTES;
            put_token(&mut out[at..at + TOKEN_BYTES], token);
        }
        for (index, network) in self.networks.iter().enumerate() {
            let at = NETWORKS_AT + index * ADDRESS_BYTES;
            put_address(&mut out[at..], network.address());
            out[at + 1] = network.prefix_bits();
        }
        for (index, local) in self.locals.iter().enumerate() {
            put_address(&mut out[LOCALS_AT + index * ADDRESS_BYTES..], *local);
        }
        let crc = crc32c(&out);
        put(&mut out, CRC_AT, &crc.to_le_bytes());
        out
    }

    /// What a block stands for.
    pub(super) fn decode(block: &[u8]) -> Result<Record, BadRecord> {
        let Ok(block) = <&[u8; RECORD_BYTES]>::try_from(block) else {
            return Err(BadRecord::NoRecord);
        };
        if block[..4] != MAGIC {
            return Err(BadRecord::NoRecord);
        }
        let mut unsealed = *block;
        put(&mut unsealed, CRC_AT, &[0; 4]);
        if crc32c(&unsealed) != u32::from_le_bytes(array(block, CRC_AT)) {
            return Err(BadRecord::Damaged);
        }
        if block[VERSION_AT] != VERSION {
            return Err(BadRecord::Version(block[VERSION_AT]));
        }
        let record = Record::read(block).ok_or(BadRecord::Damaged)?;
        // Whatever of it was not looked at, or was read as something else, is not what is written.
        if record.encode() != *block {
            return Err(BadRecord::Damaged);
        }
        Ok(record)
    }

    fn read(block: &[u8; RECORD_BYTES]) -> Option<Record> {
        let [tokens, networks, locals] = array(block, COUNTS_AT).map(usize::from);
        if tokens > TOKENS_MAX || networks.max(locals) > RESTRICTIONS_MAX {
            return None;
        }
        let mut record = Record::new(DvolId(u128::from_le_bytes(array(block, VOLUME_AT))));
        record.next_number = u32::from_le_bytes(array(block, NEXT_AT));
        let mut least = 1;
        for index in 0..tokens {
            let token = take_token(&block[TOKENS_AT + index * TOKEN_BYTES..])?;
            if !(least..record.next_number).contains(&token.number) {
                return None;
            }
            least = token.number + 1;
            record.tokens.push(token);
        }
        for index in 0..networks {
            let at = NETWORKS_AT + index * ADDRESS_BYTES;
            let network = Network::new(take_address(&block[at..])?, block[at + 1]);
            record.networks.push(network?);
        }
        for index in 0..locals {
            let local = take_address(&block[LOCALS_AT + index * ADDRESS_BYTES..])?;
            record.locals.push(local);
        }
        Some(record)
    }
}

/// Whether a text can be a token's label.
pub(super) fn is_label(text: &str) -> bool {
    text.len() <= TOKEN_LABEL_BYTES_MAX && !text.chars().any(char::is_control)
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn array<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[at..at + N]);
    bytes
}

fn put_token(out: &mut [u8], token: &Token) {
    put(out, 0, &token.number.to_le_bytes());
    out[4] = match token.kind {
        TokenKind::Owner => 1,
        TokenKind::Writer => 2,
        TokenKind::Reader => 3,
    };
    out[5] = token.label.len() as u8;
    put(out, 8, &token.created_ns.to_le_bytes());
    put(out, 16, &token.ends_ns.to_le_bytes());
    put(out, 24, &token.revoked_ns.to_le_bytes());
    put(out, 32, &token.key.0);
    put(out, 32 + KEY_BYTES, token.label.as_bytes());
}

fn take_token(bytes: &[u8]) -> Option<Token> {
    let kind = match bytes[4] {
        1 => TokenKind::Owner,
        2 => TokenKind::Writer,
        3 => TokenKind::Reader,
        _ => return None,
    };
    let label_at = 32 + KEY_BYTES;
    let label = bytes[label_at..TOKEN_BYTES].get(..usize::from(bytes[5]))?;
    let label = std::str::from_utf8(label).ok()?;
    let revoked_ns = u64::from_le_bytes(array(bytes, 24));
    let token = Token {
        number: u32::from_le_bytes(array(bytes, 0)),
        kind,
        key: Key(array(bytes, 32)),
        created_ns: u64::from_le_bytes(array(bytes, 8)),
        ends_ns: u64::from_le_bytes(array(bytes, 16)),
        revoked_ns,
        label: label.to_owned(),
        live: Arc::default(),
    };
    token.live.revoked.store(revoked_ns > 0, Ordering::Relaxed);
    is_label(label).then_some(token)
}

fn put_address(out: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            out[0] = 4;
            put(out, 4, &address.octets());
        }
        IpAddr::V6(address) => {
            out[0] = 6;
            put(out, 4, &address.octets());
        }
    }
}

fn take_address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes[0] {
        4 => Some(IpAddr::V4(Ipv4Addr::from(array::<4>(bytes, 4)))),
        6 => Some(IpAddr::V6(Ipv6Addr::from(array::<16>(bytes, 4)))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn example() -> Record {
        let token = |number: u32, kind, ends_ns, revoked_ns, label: &str| Token {
            number,
            kind,
            key: Key([number as u8; KEY_BYTES]),
            created_ns: 0x0102_0304_0506_0708,
            ends_ns,
            revoked_ns,
            label: label.to_owned(),
            live: Arc::default(),
        };
        Record {
            volume: DvolId(0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00),
            next_number: 10,
            tokens: vec![
                token(1, TokenKind::Owner, 0, 0, ""),
                token(2, TokenKind::Writer, 5, 0, "host-7"),
                token(9, TokenKind::Reader, 0, 6, &"x".repeat(32)),
            ],
            networks: ["10.1.0.0/16", "2001:db8::/32"]
                .map(|text| text.parse().expect(text))
                .to_vec(),
            locals: ["10.1.2.3", "::1"]
                .map(|text| text.parse().expect(text))
                .to_vec(),
            is_lost: false,
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for record in [Record::new(DvolId(7)), example()] {
            let block = record.encode();
            let found = Record::decode(&block).expect("a record");
            let told = |record: &Record| {
                let tokens = record.tokens.iter();
                let tokens: Vec<_> = tokens
                    .map(|t| (t.number, t.kind, t.label.clone()))
                    .collect();
                (
                    record.volume,
                    record.next_number,
                    tokens,
                    record.locals.clone(),
                )
            };
            assert_eq!(told(&found), told(&record));
            assert_eq!(found.encode(), block);
        }
        let found = Record::decode(&example().encode()).expect("a record");
        let states = found.tokens.iter().map(|token| token.state(5));
        let states: Vec<TokenState> = states.collect();
        assert_eq!(
            states,
            [TokenState::Valid, TokenState::Ended, TokenState::Revoked]
        );
        let revoked = |token: &Token| token.live.revoked.load(Ordering::Relaxed);
        let revoked: Vec<bool> = found.tokens.iter().map(revoked).collect();
        assert_eq!(revoked, [false, false, true]);
    }

    #[test]
    fn bytes_on_the_device_are_these() {
        let block = example().encode();
        assert_eq!(&block[..8], b"FSTK\x01\x03\x02\x02");
        assert_eq!((block[8], block[23], block[24]), (0x00, 0x11, 10));
        let second = &block[64 + 96..];
        assert_eq!(&second[..8], &[2, 0, 0, 0, 2, 6, 0, 0]);
        assert_eq!((second[8], second[16], second[24]), (0x08, 5, 0));
        assert_eq!(&second[32..64], &[2; 32]);
        assert_eq!(&second[64..71], b"host-7\0");
        assert_eq!(&block[3136..3144], &[4, 16, 0, 0, 10, 1, 0, 0]);
        assert_eq!(&block[3156..3162], &[6, 32, 0, 0, 0x20, 0x01]);
        assert_eq!(&block[3616..3624], &[4, 0, 0, 0, 10, 1, 2, 3]);
        assert_eq!(block[3616 + 39], 1);
    }

    #[test]
    fn a_flipped_bit_is_noticed_wherever_it_is() {
        let good = example().encode();
        for bit in 0..RECORD_BYTES * 8 {
            let mut block = good;
            block[bit / 8] ^= 1 << (bit % 8);
            let found = Record::decode(&block).expect_err("it is another block");
            let expected = if bit < 32 {
                BadRecord::NoRecord
            } else {
                BadRecord::Damaged
            };
            assert_eq!(found, expected, "bit {bit}");
        }
        for len in [0, 3, 64, RECORD_BYTES - 1] {
            let found = Record::decode(&good[..len]).expect_err("it is too short");
            assert_eq!(found, BadRecord::NoRecord);
        }
    }

    /// With the right checksum: what else could be wrong with a record.
    #[test]
    fn what_contradicts_itself_is_refused() {
        let sealed = |change: &dyn Fn(&mut [u8; RECORD_BYTES])| {
            let mut block = example().encode();
            change(&mut block);
            put(&mut block, CRC_AT, &[0; 4]);
            let crc = crc32c(&block);
            put(&mut block, CRC_AT, &crc.to_le_bytes());
            Record::decode(&block).map(drop)
        };
        assert_eq!(sealed(&|_| {}), Ok(()));
        assert_eq!(sealed(&|b| b[4] = 2), Err(BadRecord::Version(2)));
        type Change = dyn Fn(&mut [u8; RECORD_BYTES]);
        let bad: [&Change; 14] = [
            &|b| b[5] = 33,
            &|b| b[5] = 2,
            &|b| b[6] = 25,
            &|b| b[7] = 255,
            &|b| b[24] = 9,
            &|b| b[64] = 0,
            &|b| b[64] = 2,
            &|b| b[68] = 0,
            &|b| b[64 + 96 + 5] = 33,
            &|b| b[64 + 96 + 64] = 0xff,
            &|b| b[64 + 96 + 64] = 0x07,
            &|b| b[3137] = 33,
            &|b| b[3616] = 5,
            &|b| b[40] = 1,
        ];
        for (index, change) in bad.iter().enumerate() {
            assert_eq!(sealed(change), Err(BadRecord::Damaged), "change {index}");
        }
    }

    #[test]
    fn any_bytes_are_refused_or_a_record() {
        let mut seed = 1_u64;
        for _ in 0..2000 {
            let mut block = example().encode();
            for _ in 0..8 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 32) as usize % RECORD_BYTES;
                block[at] = (seed >> 56) as u8;
            }
            put(&mut block, CRC_AT, &[0; 4]);
            let crc = crc32c(&block);
            put(&mut block, CRC_AT, &crc.to_le_bytes());
            if let Ok(record) = Record::decode(&block) {
                assert_eq!(record.encode(), block);
            }
        }
    }

    #[test]
    fn keys_are_not_shown() {
        let mut record = example();
        record.tokens[0].key = Key([0xAB; KEY_BYTES]);
        let shown = format!("{record:?}");
        assert!(!shown.contains("171") && !shown.contains("abab"), "{shown}");
    }
}
