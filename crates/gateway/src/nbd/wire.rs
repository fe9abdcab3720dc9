//! Numbers and byte layouts of the NBD protocol: constants, request headers in, reply headers out.
//!
//! Pure: no I/O, no allocation. All numbers on the wire are big-endian. Citations such as
//! `[nbd "Request message"]` name the heading in the protocol's public description; `[nbd-ext ..]`
//! the same in its branch on extended headers.

/// First eight bytes a server sends. [nbd "Newstyle negotiation"]
pub const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Follows [`SERVER_MAGIC`], and begins each option a client sends.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins each reply to an option. [nbd "Fixed newstyle negotiation"]
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins a compact request. [nbd "Request message"]
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins an extended request. [nbd-ext "Request message"]
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Begins a simple reply. [nbd "Simple reply message"]
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a structured reply chunk. [nbd "Structured reply chunk message"]
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Begins an extended reply chunk. [nbd-ext "Extended reply chunk message"]
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// The longest payload of one request or reply, in bytes; what clients may assume when nothing
/// else was negotiated. [nbd "Size constraints"]
pub const PAYLOAD_MAX_BYTES: u32 = 32 << 20;
/// The longest string (names, queries, messages), in bytes. [nbd "Conventions"]
pub const STRING_MAX_BYTES: usize = 4096;
/// Zeros that end the reply to `EXPORT_NAME`, unless the client asked to leave them out.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;
/// Length of an option's header, in bytes.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Length of a compact request's header, in bytes.
pub const REQUEST_BYTES: usize = 28;
/// Length of an extended request's header, in bytes.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Length of a simple reply without its data, in bytes.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Length of a structured chunk's header, in bytes.
pub const STRUCTURED_REPLY_BYTES: usize = 20;
/// Length of an extended chunk's header, in bytes.
pub const EXTENDED_REPLY_BYTES: usize = 32;

/// Handshake flags of the server; the client answers with the same bits in 32 bits.
/// [nbd "Handshake flags"]
pub mod handshake {
    /// Options other than `EXPORT_NAME` work and are answered.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The padding after `EXPORT_NAME` can be left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: what an export can do. [nbd "Transmission flags"]
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Every change is refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The command flag `FUA` works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` and its flag `NO_HOLE` work.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The command flag `DF` works. Only with structured or extended replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// Flushes and FUA count for all connections to the export.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` is understood.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The command flag `FAST_ZERO` works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    /// `BLOCK_STATUS` takes a list of contexts as payload. Only with extended headers.
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Option types. [nbd "Option types"]
pub mod option {
    /// Choose an export and start, with no way to report an error.
    pub const EXPORT_NAME: u32 = 1;
    /// Give up.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options. [nbd "Option reply types"]
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One fact about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Not a known option.
    pub const ERR_UNSUP: u32 = ERROR | 1;
    /// Not for this client. [nbd "Option reply types", NBD_REP_ERR_POLICY]
    pub const ERR_POLICY: u32 = ERROR | 2;
    /// Not a valid request.
    pub const ERR_INVALID: u32 = ERROR | 3;
    /// Only with TLS. [nbd "Option reply types", NBD_REP_ERR_TLS_REQD]
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    /// The server is going away.
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
    /// Too much asked for.
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
    /// Extended headers are on, which rules this out. [nbd-ext "Option reply types"]
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR | 10;
    /// Set in all errors.
    pub const ERROR: u32 = 1 << 31;
}

/// Information types in replies to `INFO` and `GO`. [nbd "Option reply types", NBD_REP_INFO]
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// A sentence for people.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands. [nbd "Request types"]
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; a payload follows the header.
    pub const WRITE: u16 = 1;
    /// Disconnect.
    pub const DISC: u16 = 2;
    /// Make what was answered stable.
    pub const FLUSH: u16 = 3;
    /// Give space back.
    pub const TRIM: u16 = 4;
    /// Read ahead.
    pub const CACHE: u16 = 5;
    /// Make a range read as zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask for metadata.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags. [nbd "Command flags"]
pub mod command_flag {
    /// Answer when stable.
    pub const FUA: u16 = 1 << 0;
    /// Zero without giving space back.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer a read in one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent per context.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zero fast or not at all.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length is that of a payload that follows. Only with extended headers.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Reply chunk types and the one chunk flag. [nbd "Structured reply types"]
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const DONE: u16 = 1 << 0;
    /// Nothing more.
    pub const NONE: u16 = 0;
    /// Bytes at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents of one context, 64 bits wide. Only with extended headers.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error.
    pub const ERROR: u16 = (1 << 15) | 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) | 2;
}

/// Which headers a connection's transmission phase uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyMode {
    /// Compact requests, simple replies.
    Simple,
    /// Compact requests; reads, status and errors answered in chunks.
    Structured,
    /// Extended requests; everything answered in extended chunks.
    Extended,
}

impl ReplyMode {
    /// Length of a request's header, in bytes.
    pub fn request_bytes(self) -> usize {
        match self {
            ReplyMode::Simple | ReplyMode::Structured => REQUEST_BYTES,
            ReplyMode::Extended => EXTENDED_REQUEST_BYTES,
        }
    }

    /// True if replies come in chunks.
    pub fn is_chunked(self) -> bool {
        self != ReplyMode::Simple
    }
}

/// A request as it came, with nothing checked but its magic number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawRequest {
    /// Command flags.
    pub flags: u16,
    /// Command.
    pub command: u16,
    /// The client's name for the request, given back in each reply.
    pub cookie: u64,
    /// Offset in bytes.
    pub offset_bytes: u64,
    /// Length in bytes: of the range, or of the payload (see [`command_flag::PAYLOAD_LEN`]).
    pub length_bytes: u64,
}

/// The stream is out of step: no request begins here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadMagic(pub u32);

/// Reads a request's header, whose length is [`ReplyMode::request_bytes`]. `None`: too few bytes.
pub fn decode_request(mode: ReplyMode, bytes: &[u8]) -> Option<Result<RawRequest, BadMagic>> {
    let mut fields = Fields::new(bytes.get(..mode.request_bytes())?);
    let magic = fields.u32()?;
    let expected = match mode {
        ReplyMode::Simple | ReplyMode::Structured => REQUEST_MAGIC,
        ReplyMode::Extended => EXTENDED_REQUEST_MAGIC,
    };
    if magic != expected {
        return Some(Err(BadMagic(magic)));
    }
    Some(Ok(RawRequest {
        flags: fields.u16()?,
        command: fields.u16()?,
        cookie: fields.u64()?,
        offset_bytes: fields.u64()?,
        length_bytes: match mode {
            ReplyMode::Extended => fields.u64()?,
            ReplyMode::Simple | ReplyMode::Structured => u64::from(fields.u32()?),
        },
    }))
}

/// Writes a simple reply's header at the start of `out` and returns its length.
pub fn put_simple_reply(out: &mut [u8], cookie: u64, errno: u32) -> usize {
    out[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&errno.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    SIMPLE_REPLY_BYTES
}

/// Header of a reply chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHeader {
    /// [`chunk::DONE`] or zero.
    pub flags: u16,
    /// One of [`chunk`].
    pub kind: u16,
    /// The request's.
    pub cookie: u64,
    /// The request's; sent with extended headers only.
    pub request_offset_bytes: u64,
    /// Length of what follows the header, in bytes.
    pub payload_bytes: u32,
}

impl ChunkHeader {
    /// Writes the header at the start of `out` and returns its length. `mode` must be chunked.
    pub fn put(&self, mode: ReplyMode, out: &mut [u8]) -> usize {
        debug_assert!(mode.is_chunked());
        let extended = mode == ReplyMode::Extended;
        let magic = if extended {
            EXTENDED_REPLY_MAGIC
        } else {
            STRUCTURED_REPLY_MAGIC
        };
        out[0..4].copy_from_slice(&magic.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.kind.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        if extended {
            out[16..24].copy_from_slice(&self.request_offset_bytes.to_be_bytes());
            out[24..32].copy_from_slice(&u64::from(self.payload_bytes).to_be_bytes());
            EXTENDED_REPLY_BYTES
        } else {
            out[16..20].copy_from_slice(&self.payload_bytes.to_be_bytes());
            STRUCTURED_REPLY_BYTES
        }
    }
}

/// Takes big-endian fields from the front of a slice; `None` once it is too short.
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// All of `bytes` is still to be taken.
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string: 32 bits of length, then that many bytes of UTF-8 without NUL, at most
    /// [`STRING_MAX_BYTES`].
    pub fn string(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.u32()?).ok()?;
        valid_string(self.bytes(len)?)
    }

    /// True if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// `bytes` as a string, if they are one by the protocol's rules. [nbd "Conventions"]
pub fn valid_string(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > STRING_MAX_BYTES || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden bytes, written down by hand from the protocol's tables.
    const COMPACT_WRITE: [u8; 28] = [
        0x25, 0x60, 0x95, 0x13, // magic
        0x00, 0x01, // flags: FUA
        0x00, 0x01, // command: WRITE
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // cookie
        0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x10, 0x00, // offset
        0x00, 0x00, 0x20, 0x00, // length
    ];

    const EXTENDED_ZEROES: [u8; 32] = [
        0x21, 0xe4, 0x1c, 0x71, // magic
        0x00, 0x12, // flags: FAST_ZERO | NO_HOLE
        0x00, 0x06, // command: WRITE_ZEROES
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x07, // cookie
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, // offset
        0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, // length: 1 TiB
    ];

    #[test]
    fn compact_request() {
        let expected = RawRequest {
            flags: command_flag::FUA,
            command: command::WRITE,
            cookie: 0x1122_3344_5566_7788,
            offset_bytes: (1 << 32) + 4096,
            length_bytes: 8192,
        };
        for mode in [ReplyMode::Simple, ReplyMode::Structured] {
            assert_eq!(decode_request(mode, &COMPACT_WRITE), Some(Ok(expected)));
            assert_eq!(decode_request(mode, &COMPACT_WRITE[..27]), None);
        }
        assert_eq!(
            decode_request(ReplyMode::Structured, &EXTENDED_ZEROES),
            Some(Err(BadMagic(EXTENDED_REQUEST_MAGIC)))
        );
    }

    #[test]
    fn extended_request() {
        let expected = RawRequest {
            flags: command_flag::FAST_ZERO | command_flag::NO_HOLE,
            command: command::WRITE_ZEROES,
            cookie: 7,
            offset_bytes: 512,
            length_bytes: 1 << 40,
        };
        assert_eq!(
            decode_request(ReplyMode::Extended, &EXTENDED_ZEROES),
            Some(Ok(expected))
        );
        assert_eq!(
            decode_request(ReplyMode::Extended, &EXTENDED_ZEROES[..31]),
            None
        );
    }

    #[test]
    fn simple_reply() {
        let mut out = [0xaa; 20];
        assert_eq!(put_simple_reply(&mut out, 0x0102_0304_0506_0708, 28), 16);
        let expected = [
            0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8, 0xaa, 0xaa, 0xaa, 0xaa,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn chunk_headers() {
        let header = ChunkHeader {
            flags: chunk::DONE,
            kind: chunk::ERROR_OFFSET,
            cookie: 9,
            request_offset_bytes: 0x1000,
            payload_bytes: 14,
        };
        let mut out = [0; 32];
        assert_eq!(header.put(ReplyMode::Structured, &mut out), 20);
        let expected = [
            0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 14,
        ];
        assert_eq!(out[..20], expected);
        assert_eq!(header.put(ReplyMode::Extended, &mut out), 32);
        let expected = [
            0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0x80, 2, 0, 0, 0, 0, 0, 0, 0, 9, // cookie
            0, 0, 0, 0, 0, 0, 0x10, 0, // the request's offset
            0, 0, 0, 0, 0, 0, 0, 14,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn fields_never_read_past_the_end() {
        let mut fields = Fields::new(&[0, 0, 0, 2, b'h', b'i', 7]);
        assert_eq!(fields.string(), Some("hi"));
        assert_eq!(fields.u16(), None);
        assert_eq!(fields.bytes(1), Some(&[7u8][..]));
        assert!(fields.is_empty());
        assert_eq!(Fields::new(&[0xff, 0xff, 0xff, 0xff, 1]).string(), None);
        assert_eq!(Fields::new(&[0, 0, 0, 1, 0]).string(), None, "NUL");
        assert_eq!(Fields::new(&[0, 0, 0, 1, 0xff]).string(), None, "not UTF-8");
        assert_eq!(valid_string(&[b'x'; STRING_MAX_BYTES + 1]), None);
    }
}
