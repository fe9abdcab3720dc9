//! A request of the native protocol takes no memory from the allocator in steady state: counted in the whole
//! process, on the real platform, with the client on the same core.

#[path = "native_support/mod.rs"]
mod native_support;
#[path = "support/mod.rs"]
mod support;

use std::alloc::System;
use std::os::unix::net::UnixStream;

use flagstone_gateway::native::{Ends, NativeLimits, NativeServer};
use flagstone_platform::{IoBuf, Platform, Stream};
use flagstone_runtime::{RuntimeConfig, UringPlatform, UringStream, block_on};
use flagstone_types::checksum::crc32c;
use flagstone_wire::{Operation, REPLY_HEADER_BYTES, RequestHeader, VolumeNo};
use native_support::client::{Client, ranged, write};
use native_support::node::{MemoryNode, OWNER};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};

const BLOCK: usize = 4096;
/// Requests sent together.
const TOGETHER: u64 = 8;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The client's side of the steady state: its memory is used again and again.
struct Steady {
    platform: UringPlatform,
    stream: UringStream,
    volume: VolumeNo,
    number: u64,
    frames: Vec<IoBuf>,
}

impl Steady {
    /// Sends some requests together and takes all replies, of `reply_bytes` each.
    async fn round(&mut self, header: RequestHeader, payload: &[u8], reply_bytes: usize) {
        let mut frames = std::mem::take(&mut self.frames);
        for before in 0..TOGETHER {
            let header = RequestHeader {
                number: self.number,
                unsettled: before as u32,
                payload_bytes: payload.len() as u32,
                payload_crc: crc32c(payload),
                ..header
            };
            self.number += 1;
            let mut frame = self.platform.buffers().take(64 + payload.len());
            let (head, rest) = frame.bytes_mut().split_at_mut(64);
            head.copy_from_slice(&header.encode());
            rest.copy_from_slice(payload);
            frames.push(frame);
        }
        let (mut frames, result) = self.stream.write_all(frames).await;
        result.expect("sent");
        frames.clear();
        self.frames = frames;
        let bytes = TOGETHER as usize * reply_bytes;
        let replies = self.platform.buffers().take(bytes);
        let (replies, result) = self.stream.read_exact(replies).await;
        result.expect("received");
        for reply in replies.chunks(reply_bytes) {
            assert_eq!(reply[..4], [header.operation, 0, 0, 0], "status 0");
        }
    }

    async fn write_and_read(&mut self) {
        let at = self.number % 200 * BLOCK as u64;
        self.round(write(self.volume, at), &[7; BLOCK], REPLY_HEADER_BYTES)
            .await;
        let read = ranged(Operation::Read, self.volume, at, BLOCK as u64);
        self.round(read, &[], REPLY_HEADER_BYTES + BLOCK).await;
    }
}

async fn count(platform: UringPlatform) -> Stats {
    let beginning = Region::new(ALLOCATOR);
    let node = MemoryNode::with(&platform, &["a"]);
    let memory = node.volume("a").memory;
    let server = NativeServer::new(platform.clone(), node, NativeLimits::default());
    let (near, far) = UnixStream::pair().expect("a pair");
    let near = UringStream::from_fd(&platform, near.into()).expect("a stream");
    let far = UringStream::from_fd(&platform, far.into()).expect("a stream");
    platform.spawn(async move {
        server.serve_connection(far, Ends::default()).await;
    });
    let client = Client::hello(near.clone(), Default::default()).await;
    let mut client = client.expect("HELLO is answered");
    let volume = client.open("a", OWNER).await;
    let mut steady = Steady {
        platform,
        stream: near,
        volume,
        number: client.number,
        frames: Vec::new(),
    };
    // The record of the test's own volume.
    memory.carried_out.borrow_mut().reserve(100_000);
    for _ in 0..300 {
        steady.write_and_read().await;
    }
    assert!(beginning.change().allocations > 0, "nothing is counted");
    let region = Region::new(ALLOCATOR);
    for _ in 0..1000 {
        steady.write_and_read().await;
    }
    let stats = region.change();
    steady.stream.shutdown();
    stats
}

#[test]
fn steady_requests_allocate_nothing() {
    let config = RuntimeConfig {
        pin: false,
        registered_bytes: 0,
        ..RuntimeConfig::default()
    };
    let stats = block_on(&config, count).expect("a core");
    let asked = (stats.allocations, stats.reallocations);
    assert_eq!(asked, (0, 0), "in 16,000 requests: {stats:?}");
}
