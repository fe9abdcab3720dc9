//! What the fuzzer runs: one function from bytes to "nothing bad happened". A stable test calls it with random and
//! mutated bytes, the fuzz target with whatever the fuzzer comes up with.

use std::rc::Rc;

use flagstone_gateway::native::{CloseReason, Ends, NativeCounters, NativeLimits, NativeServer};
use flagstone_platform::{IoBuf, Platform, Stream};
use flagstone_types::checksum::crc32c;
use flagstone_wire::hello::SessionId;
use flagstone_wire::{REQUEST_HEADER_BYTES, RequestHeader, VolumeNo};

use super::client::{Client, frame};
use super::node::{MemoryNode, OWNER};
use crate::support::stream::Link;
use crate::support::world::World;

/// The client's bytes as a stream of frames: what is sent is right as far as numbers and checksums go, so that
/// the rest is looked at. Of each 80 bytes the first 64 are a header, and the others say how much follows.
fn frames(bytes: &[u8], volume: VolumeNo, first: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut number = first;
    for chunk in bytes.chunks(REQUEST_HEADER_BYTES + 16) {
        let Some((head, rest)) = chunk.split_at_checked(REQUEST_HEADER_BYTES) else {
            // What is left is sent as it is.
            out.extend(chunk);
            break;
        };
        let mut sealed = [0; REQUEST_HEADER_BYTES];
        sealed.copy_from_slice(head);
        let crc = crc32c(&sealed[..60]);
        sealed[60..].copy_from_slice(&crc.to_le_bytes());
        let Ok(mut header) = RequestHeader::decode(&sealed) else {
            continue;
        };
        let knobs = rest.first().copied().unwrap_or(0);
        if knobs & 1 == 0 {
            header.number = number;
            number += 1;
        }
        if knobs & 2 == 0 && header.volume != VolumeNo::NONE {
            header.volume = volume;
        }
        if knobs & 4 == 0 {
            header.unsettled %= 4;
        }
        if knobs & 8 == 0 {
            header.offset_bytes %= 2 << 20;
            header.len_bytes %= 64 << 10;
        }
        // Most requests have a short body. Those of COMMIT, READ_IF and OPEN are longer.
        let body_bytes = match rest.get(1).copied().unwrap_or(0) {
            short @ 0..128 => usize::from(short) % 15,
            long => usize::from(long) - 128,
        };
        let (body, payload) = rest.split_at(body_bytes.min(rest.len()));
        let payload: Vec<u8> = match knobs & 48 {
            0 => Vec::new(),
            16 => payload.to_vec(),
            32 => vec![knobs; 4096],
            _ => vec![knobs; 2 * header.len_bytes.min(8192) as usize],
        };
        if knobs & 64 == 0 {
            out.extend(frame(header, body, &payload));
        } else {
            // Lengths and checksums as they came.
            out.extend(header.encode());
            out.extend(body);
            out.extend(payload);
        }
    }
    out
}

/// Sends `bytes` as requests of a connection that has a volume open, and closes. The server must end the connection,
/// leave nothing running and give all memory back. Why it has ended, and what was counted.
pub fn requests(seed: u64, bytes: &[u8]) -> (CloseReason, NativeCounters) {
    let world = World::new(seed);
    // The pool keeps zeros to send, once it has made some.
    drop(world.buffers().zeros(1));
    let kept_bytes = world.buffers().in_use_bytes();
    let node = MemoryNode::with(&world, &["a"]);
    node.volume("a").memory.pause_ns.set(seed % 3 * 1000);
    let server = NativeServer::new(world.clone(), node.clone(), NativeLimits::default());
    let portion_max = match seed % 5 {
        0 => 1 + (seed / 5 % 90) as usize,
        _ => usize::MAX,
    };
    let link = Link {
        portion_max,
        seed,
        ..Link::default()
    };
    let (near, far) = link.connect();
    let (running, bytes) = (server.clone(), bytes.to_vec());
    let is_raw = seed.is_multiple_of(7);
    let spawned = world.clone();
    let reason = world.run(async move {
        spawned.spawn(async move {
            if is_raw {
                let _ = near.write_all(vec![IoBuf::copy_of(&bytes)]).await;
                near.close_sending();
                return;
            }
            let client = Client::hello(near.clone(), SessionId::NEW).await;
            let mut client = client.expect("HELLO is answered");
            let volume = client.open("a", OWNER).await;
            let script = frames(&bytes, volume, client.number);
            client.send(&script).await;
            near.close_sending();
            while client.receive().await.is_some() {}
        });
        running.serve_connection(far, Ends::default()).await
    });
    let memory = node.volume("a").memory;
    assert_eq!(memory.running.get(), 0, "no operation is left");
    let counters = server.counters();
    assert_eq!(counters.connections, 0);
    assert_eq!(counters.volumes_open, 0);
    drop(server);
    // This one, and that of the node.
    assert_eq!(Rc::strong_count(&memory), 2, "no handle is left");
    drop((memory, node));
    let left_bytes = world.buffers().in_use_bytes();
    assert_eq!(left_bytes, kept_bytes, "no buffer is left");
    (reason, counters)
}
