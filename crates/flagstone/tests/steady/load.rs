//! A client whose memory is used again and again, and the node that it asks.

use std::io::{Read, Write};
use std::net::TcpStream;

use flagstone::node::{Reservation, VolumeSpec};
use flagstone_types::checksum::crc32c;
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, REPLY_HEADER_BYTES, RequestHeader, VolumeNo};

use crate::native::Native;
use crate::support::Scene;

/// Its journals are as long as they get: a checkpoint comes after 57,344 groups, more than all that is asked for here makes.
const DEVICE_BYTES: u64 = 128 << 30;
const VOLUME_BYTES: u64 = 8 << 20;
const BLOCK: u64 = 4096;
const WRITE_MAX_BYTES: usize = 64 << 10;
const HEADER_BYTES: usize = 64;

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// So many bytes.
    Read(u64),
    /// So many bytes.
    Write(u64),
    /// A block that is durable when it is answered.
    WriteDurable,
}

impl Kind {
    fn len_bytes(self) -> u64 {
        match self {
            Kind::Read(len_bytes) | Kind::Write(len_bytes) => len_bytes,
            Kind::WriteDurable => BLOCK,
        }
    }

    /// How many requests of a block take as long.
    pub(crate) fn weight(self) -> u64 {
        match self {
            Kind::WriteDurable => 16,
            kind => kind.len_bytes().div_ceil(BLOCK),
        }
    }
}

/// A node that serves a volume, and a client of it.
pub(crate) struct Load {
    stream: TcpStream,
    volume: VolumeNo,
    number: u64,
    out: Vec<u8>,
    replies: Vec<u8>,
    data: Vec<u8>,
    _scene: Scene,
}

impl Load {
    /// Starts the node, and writes the whole volume.
    pub(crate) fn start() -> Load {
        let scene = Scene::formatted(DEVICE_BYTES, true, |options| {
            options.native = Some("127.0.0.1:0".parse().expect("an address"));
        })
        .expect("a node");
        let spec = VolumeSpec {
            name: "disk".to_owned(),
            size_bytes: VOLUME_BYTES,
            reserve: Reservation::None,
            device: None,
            core: None,
            apart: false,
            stripes: None,
            stripe_unit_bytes: None,
            slo: Default::default(),
            oversubscribe: false,
        };
        let created = scene.ask(|node| node.create_volume(spec)).expect("created");
        let info = scene.ask(|node| node.info()).expect("its description");
        let address = info.native_addresses[0].parse().expect("an address");
        let mut native = Native::connect(address);
        let token = created.token.expect("a token");
        let volume = native.opened("disk", &token, 0);
        for offset_bytes in (0..VOLUME_BYTES).step_by(BLOCK as usize) {
            native
                .write(volume, offset_bytes, &[9; BLOCK as usize], 0)
                .lsn();
        }
        Load {
            stream: native.stream,
            volume,
            number: native.next,
            out: Vec::with_capacity(1 << 20),
            replies: vec![0; 2 << 20],
            data: vec![7; WRITE_MAX_BYTES],
            _scene: scene,
        }
    }

    /// Asks `requests` times, `depth` at a time, and waits for all replies.
    pub(crate) fn rounds(&mut self, kind: Kind, depth: u64, requests: u64) {
        for _ in 0..requests.div_ceil(depth) {
            self.round(kind, depth);
        }
    }

    fn round(&mut self, kind: Kind, depth: u64) {
        self.out.clear();
        for before in 0..depth {
            self.put(kind, before);
        }
        self.stream.write_all(&self.out).expect("sent");
        let reply_bytes = match kind {
            Kind::Read(len_bytes) => REPLY_HEADER_BYTES + len_bytes as usize,
            Kind::Write(_) | Kind::WriteDurable => REPLY_HEADER_BYTES,
        };
        let replies = &mut self.replies[..reply_bytes * depth as usize];
        self.stream.read_exact(replies).expect("received");
        for reply in replies.chunks(reply_bytes) {
            assert_eq!(reply[1..4], [0; 3], "status 0");
        }
    }

    fn put(&mut self, kind: Kind, before: u64) {
        let len_bytes = kind.len_bytes();
        // Any order but the places' own.
        let place = self.number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let mut header = RequestHeader {
            volume: self.volume,
            number: self.number,
            unsettled: before as u32,
            offset_bytes: place % (VOLUME_BYTES / len_bytes) * len_bytes,
            ..RequestHeader::of(match kind {
                Kind::Read(_) => Operation::Read,
                Kind::Write(_) | Kind::WriteDurable => Operation::Write,
            })
        };
        self.number += 1;
        match kind {
            Kind::Read(_) => header.len_bytes = len_bytes,
            Kind::Write(_) | Kind::WriteDurable => {
                if matches!(kind, Kind::WriteDurable) {
                    header.flags = flag::DURABLE;
                }
                self.data[..8].copy_from_slice(&self.number.to_le_bytes());
                header.payload_bytes = len_bytes as u32;
                header.payload_crc = crc32c(&self.data[..len_bytes as usize]);
            }
        }
        let encoded: [u8; HEADER_BYTES] = header.encode();
        self.out.extend_from_slice(&encoded);
        if header.payload_bytes > 0 {
            self.out.extend_from_slice(&self.data[..len_bytes as usize]);
        }
    }
}
