//! Clients whose memory is used again and again, and the node that they ask.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use flagstone::metrics::render;
use flagstone::node::{
    Reservation, Schedule, SchedulePolicy, Slo, SloLimit, SloPromise, TokenText, VolumeSpec,
};
use flagstone_types::checksum::crc32c;
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, REPLY_HEADER_BYTES, RequestHeader, VolumeNo};

use crate::client::{Client, FLUSH, FUA, READ, WRITE};
use crate::native::Native;
use crate::support::Scene;

/// Its journals are as long as they get: a checkpoint comes after 57,344 groups, more than all that is asked for here makes.
const DEVICE_BYTES: u64 = 128 << 30;
const VOLUME_BYTES: u64 = 8 << 20;
const BLOCK: u64 = 4096;
const WRITE_MAX_BYTES: usize = 64 << 10;
const HEADER_BYTES: usize = 64;
const NBD_REQUEST_MAGIC: u32 = 0x2560_9513;
/// Of a simple reply.
const NBD_REPLY_BYTES: usize = 16;

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// So many bytes.
    Read(u64),
    /// So many bytes.
    Write(u64),
    /// A block that is durable when it is answered.
    WriteDurable,
    /// That all before it is.
    Flush,
}

impl Kind {
    pub(crate) fn len_bytes(self) -> u64 {
        match self {
            Kind::Read(len_bytes) | Kind::Write(len_bytes) => len_bytes,
            Kind::WriteDurable => BLOCK,
            Kind::Flush => 0,
        }
    }

    /// How many requests of a block take as long.
    pub(crate) fn weight(self) -> u64 {
        match self {
            Kind::WriteDurable | Kind::Flush => 16,
            kind => kind.len_bytes().div_ceil(BLOCK),
        }
    }
}

/// A node.
pub(crate) struct Served {
    scene: Scene,
    addresses: Vec<SocketAddr>,
}

/// How a client speaks to it.
#[derive(Clone, Copy)]
enum Protocol {
    Native(VolumeNo),
    Nbd,
}

/// A client of one volume.
pub(crate) struct Load {
    stream: TcpStream,
    protocol: Protocol,
    number: u64,
    out: Vec<u8>,
    replies: Vec<u8>,
    data: Vec<u8>,
}

/// What a divided device may be asked for: so little that a core is not what holds its clients up, whatever else the machine does.
pub(crate) const DIVIDED_READS: u64 = 8_000;
pub(crate) const DIVIDED_WRITES: u64 = 4_000;

impl Served {
    pub(crate) fn start(cores: usize) -> Served {
        Served::behind(cores, &[])
    }

    /// With a device that keeps a trace.
    pub(crate) fn traced(cores: usize) -> Served {
        Served::behind(cores, &["trace"])
    }

    fn behind(cores: usize, layers: &[&str]) -> Served {
        let scene = Scene::formatted(DEVICE_BYTES, true, |options| {
            let layers = layers.iter().map(|layer| layer.parse().expect(layer));
            options.devices[0].layers = layers.collect();
            options.cores = Some(cores);
            options.native = Some("127.0.0.1:0".parse().expect("an address"));
        })
        .expect("a node");
        let info = scene.ask(|node| node.info()).expect("its description");
        let addresses = info.native_addresses.iter();
        let addresses: Vec<_> = addresses.map(|a| a.parse().expect("an address")).collect();
        assert_eq!(addresses.len(), cores);
        Served { scene, addresses }
    }

    /// Has requests wait for their turns at the device from now on, or no longer.
    pub(crate) fn divide(&self, policy: Option<SchedulePolicy>) {
        let ceiling = format!("reads={DIVIDED_READS} writes={DIVIDED_WRITES} bytes=80M");
        let schedule = policy.map_or(Schedule::default(), |policy| Schedule {
            ceiling: Some(ceiling.parse().expect("a ceiling")),
            policy,
            ..Schedule::default()
        });
        let set = self
            .scene
            .ask(|node| node.set_schedule("main".to_owned(), schedule));
        set.expect("set");
    }

    /// Waits until no more segments are laid out.
    pub(crate) fn settle(&self) {
        let laid_out = || {
            let metrics = self.scene.ask(|node| node.metrics()).expect("answered");
            let text = render(&metrics, "0");
            let name = "flagstone_device_prewritten_bytes_total";
            let line = text.lines().find(|line| line.starts_with(name));
            line.expect("it is told").to_owned()
        };
        let mut before = laid_out();
        loop {
            thread::sleep(Duration::from_millis(500));
            let now = laid_out();
            if now == before {
                return;
            }
            before = now;
        }
    }

    /// Has a volume do no more than so many writes a second from now on, or as many as it likes.
    pub(crate) fn limit(&self, name: &str, writes: Option<u64>) {
        let slo = Slo {
            promise: SloPromise::Share(3),
            limit: SloLimit {
                writes,
                ..SloLimit::default()
            },
        };
        let set = self
            .scene
            .ask(|node| node.set_slo(name.to_owned(), slo, false));
        set.expect("set");
    }

    /// Creates a volume on a core.
    pub(crate) fn create(&self, name: &str, core: u32) -> TokenText {
        let spec = VolumeSpec {
            name: name.to_owned(),
            size_bytes: VOLUME_BYTES,
            reserve: Reservation::None,
            device: None,
            core: Some(core),
            apart: false,
            stripes: None,
            stripe_unit_bytes: None,
            slo: Slo::default(),
            oversubscribe: false,
        };
        let created = self.scene.ask(|node| node.create_volume(spec));
        created.expect("created").token.expect("a token")
    }

    /// Connects to a core.
    pub(crate) fn connect(&self, core: u32) -> Native {
        let native = Native::connect(self.addresses[core as usize]);
        assert_eq!(u32::from(native.hello.core), core);
        native
    }

    /// A client of a volume, connected to its core.
    pub(crate) fn native(&self, name: &str, token: &TokenText, core: u32) -> Load {
        let mut native = self.connect(core);
        let volume = native.opened(name, token, 0);
        Load::new(native.stream, Protocol::Native(volume), native.next)
    }

    /// A client of a volume by NBD, whose connections all begin on the first core.
    pub(crate) fn nbd(&self, name: &str) -> Load {
        let client = Client::attach(self.scene.tcp, name);
        client.stream.set_nodelay(true).expect("no delay");
        Load::new(client.stream, Protocol::Nbd, 1)
    }

    /// The core of a volume.
    pub(crate) fn core_of(&self, name: &str) -> u32 {
        self.scene.show(name).expect("is there").core
    }
}

/// Asks on behalf of each client `requests` times, `depth` at a time, and waits for all replies.
pub(crate) fn rounds(loads: &mut [Load], kind: Kind, depth: u64, requests: u64) {
    for _ in 0..requests.div_ceil(depth) {
        // All are under way at the same time, as long as what one core answers fits into its socket while others are asked.
        loads.iter_mut().for_each(|load| load.send(kind, depth));
        loads.iter_mut().for_each(|load| load.receive(kind, depth));
    }
}

impl Load {
    /// Writes the whole volume.
    fn new(stream: TcpStream, protocol: Protocol, number: u64) -> Load {
        let mut load = Load {
            stream,
            protocol,
            number,
            out: Vec::with_capacity(1 << 20),
            replies: vec![0; 2 << 20],
            data: vec![7; WRITE_MAX_BYTES],
        };
        for offset_bytes in (0..VOLUME_BYTES).step_by(BLOCK as usize) {
            load.out.clear();
            load.put(Kind::Write(BLOCK), 0, offset_bytes);
            load.stream.write_all(&load.out).expect("sent");
            load.receive(Kind::Write(BLOCK), 1);
        }
        load
    }

    fn send(&mut self, kind: Kind, depth: u64) {
        self.out.clear();
        for before in 0..depth {
            let len_bytes = kind.len_bytes();
            // Any order but the places' own.
            let place = self.number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            let places = VOLUME_BYTES.checked_div(len_bytes).unwrap_or(1);
            let offset_bytes = place % places * len_bytes;
            self.put(kind, before, offset_bytes);
        }
        self.stream.write_all(&self.out).expect("sent");
    }

    fn receive(&mut self, kind: Kind, depth: u64) {
        let (head_bytes, status) = match self.protocol {
            Protocol::Native(_) => (REPLY_HEADER_BYTES, 1..4),
            Protocol::Nbd => (NBD_REPLY_BYTES, 4..8),
        };
        let reply_bytes = match kind {
            Kind::Read(len_bytes) => head_bytes + len_bytes as usize,
            Kind::Write(_) | Kind::WriteDurable | Kind::Flush => head_bytes,
        };
        let replies = &mut self.replies[..reply_bytes * depth as usize];
        self.stream.read_exact(replies).expect("received");
        for reply in replies.chunks(reply_bytes) {
            let is_right = reply[status.clone()].iter().all(|byte| *byte == 0);
            assert!(is_right, "status 0");
        }
    }

    fn put(&mut self, kind: Kind, before: u64, offset_bytes: u64) {
        let len_bytes = kind.len_bytes();
        self.number += 1;
        let is_write = matches!(kind, Kind::Write(_) | Kind::WriteDurable);
        if is_write {
            self.data[..8].copy_from_slice(&self.number.to_le_bytes());
        }
        let payload = &self.data[..if is_write { len_bytes as usize } else { 0 }];
        let is_durable = matches!(kind, Kind::WriteDurable);
        match self.protocol {
            Protocol::Native(volume) => {
                let mut header = RequestHeader {
                    volume,
                    number: self.number - 1,
                    unsettled: before as u32,
                    offset_bytes,
                    ..RequestHeader::of(match kind {
                        Kind::Read(_) => Operation::Read,
                        Kind::Write(_) | Kind::WriteDurable => Operation::Write,
                        Kind::Flush => Operation::Flush,
                    })
                };
                if is_durable {
                    header.flags = flag::DURABLE;
                }
                if is_write {
                    header.payload_bytes = len_bytes as u32;
                    header.payload_crc = crc32c(payload);
                } else {
                    header.len_bytes = len_bytes;
                }
                let encoded: [u8; HEADER_BYTES] = header.encode();
                self.out.extend_from_slice(&encoded);
            }
            Protocol::Nbd => {
                let flags = if is_durable { FUA } else { 0 };
                let command = match kind {
                    Kind::Read(_) => READ,
                    Kind::Write(_) | Kind::WriteDurable => WRITE,
                    Kind::Flush => FLUSH,
                };
                let out = &mut self.out;
                out.extend_from_slice(&NBD_REQUEST_MAGIC.to_be_bytes());
                out.extend_from_slice(&flags.to_be_bytes());
                out.extend_from_slice(&command.to_be_bytes());
                out.extend_from_slice(&self.number.to_be_bytes());
                out.extend_from_slice(&offset_bytes.to_be_bytes());
                out.extend_from_slice(&(len_bytes as u32).to_be_bytes());
            }
        }
        self.out.extend_from_slice(payload);
    }
}
