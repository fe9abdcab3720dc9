//! The trace of a real node's device.

#![expect(clippy::disallowed_methods, reason = "a real node takes real time")]

use std::thread;
use std::time::Duration;

use flagstone::metrics::render;
use flagstone::node::{
    DeviceTrace, NodeErrorKind, TRACE_ROWS_MAX, TraceQuery, TracedKind, TracedOperation,
    TracedResult,
};
use flagstone_types::Lsn;
use flagstone_wire::batch::Change;
use flagstone_wire::operation::flag::{DURABLE, KEEP_SPACE};
use flagstone_wire::{Operation, RequestHeader};

use crate::client::{FLUSH, READ};
use crate::native::client::Native;
use crate::native::{addresses, listening, volume};
use crate::support::Scene;

const BLOCK: u64 = 4096;

fn traced(layers: &[&str]) -> Scene {
    Scene::with(|options| {
        listening(options);
        let layers = layers.iter().map(|layer| layer.parse().expect(layer));
        options.devices[0].layers = layers.collect();
    })
}

fn trace(scene: &Scene, from: Option<u64>) -> DeviceTrace {
    let query = TraceQuery {
        from,
        last: None,
        limit: TRACE_ROWS_MAX,
    };
    let trace = scene.ask(|node| node.read_trace("main".to_owned(), query));
    trace.expect("there is one")
}

/// What is written over the segment of the first volume is no client's.
fn until_laid_out(scene: &Scene) {
    let mut before = String::new();
    loop {
        let text = render(&scene.ask(|node| node.metrics()).expect("answered"), "0");
        let told = "flagstone_device_prewritten_bytes_total{";
        let mut lines = text.lines();
        let now = lines.find(|line| line.starts_with(told));
        let now = now.expect("it is told").to_owned();
        if now == before {
            return;
        }
        before = now;
        thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn what_a_client_does_is_seen_at_the_device() {
    let scene = traced(&["trace operations=4096", "latency flushes=3ms"]);
    scene.create("vm", 64 << 20).expect("created");
    let mut client = scene.attach("vm");
    until_laid_out(&scene);
    let before = trace(&scene, None);
    assert_eq!((before.operations_max, before.missed), (4096, 0));
    assert!(!before.items.is_empty(), "it was opened, and a volume made");
    for at in 0..16 {
        let written = client.write(at * BLOCK, &[at as u8; BLOCK as usize]);
        assert_eq!(written, 0);
    }
    assert_eq!(client.call(FLUSH, 0, 0).0, 0);
    let written = trace(&scene, Some(before.next));
    let of = |kind| written.items.iter().filter(move |item| item.kind == kind);
    let bytes: u64 = of(TracedKind::Write).map(|item| item.len_bytes).sum();
    assert!(bytes >= 16 * BLOCK, "data and journal: {bytes}");
    assert!(of(TracedKind::Flush).count() >= 1);
    for flush in of(TracedKind::Flush) {
        assert_eq!(flush.held_ns, 3_000_000);
        assert!(flush.took_ns > Some(3_000_000), "{flush:?}");
    }
    // What was written last is read: from a place where something was written.
    let read = client.call(READ, 5 * BLOCK, BLOCK as u32);
    assert_eq!(read, (0, vec![5; BLOCK as usize]));
    let after = trace(&scene, Some(written.next));
    let is_read = |item: &&TracedOperation| item.kind == TracedKind::Read;
    let read = after.items.iter().find(is_read);
    let read = read.expect("the device was read");
    let holds = |write: &TracedOperation| {
        let end = write.offset_bytes + write.len_bytes;
        (write.offset_bytes..end).contains(&read.offset_bytes)
    };
    assert!(of(TracedKind::Write).any(holds), "{read:?}");
    for item in written.items.iter().chain(&after.items) {
        assert_eq!(
            (item.result, item.core),
            (TracedResult::Done, 0),
            "{item:?}"
        );
    }
    let notices = scene.ask(|node| node.info()).expect("told").notices;
    let has = |words: &str| notices.iter().any(|notice| notice.contains(words));
    assert!(has(
        "trace of its last 4096 operations, in 256 KiB of memory"
    ));
    assert!(has(
        "behind layers, for measuring and testing: latency flushes=3ms"
    ));
}

/// Nothing has flushed what it changes before, so a flush has to come between what is asked and its answer.
#[test]
fn what_is_answered_as_durable_over_the_native_protocol_was_flushed() {
    let scene = traced(&["trace operations=4096"]);
    let token = volume(&scene, "vm", None);
    let mut native = Native::connect(addresses(&scene)[0]);
    let vm = native.opened("vm", &token, 0);
    native.write(vm, 0, &[1; 65536], 0).lsn();
    until_laid_out(&scene);
    let head = |operation, flags, block, len_bytes| RequestHeader {
        volume: vm,
        offset_bytes: block * BLOCK,
        len_bytes,
        flags,
        ..RequestHeader::of(operation)
    };
    let cleared = |native: &mut Native, operation, flags, block| {
        let head = head(operation, flags, block, BLOCK);
        native.ask(head, &[], &[]).lsn()
    };
    let swapped = [[1; 512], [2; 512]].concat();
    let change = Change::Write {
        volume: vm,
        offset_bytes: 5 * BLOCK,
        len_bytes: 512,
        metadata: 0,
    };
    type Ask<'a> = &'a dyn Fn(&mut Native) -> Lsn;
    let asked: [(&str, Ask); 7] = [
        ("WRITE", &|native| {
            native.write(vm, 0, &[2; 4096], DURABLE).lsn()
        }),
        ("ZERO", &|native| {
            cleared(native, Operation::Zero, DURABLE, 1)
        }),
        ("ZERO with KEEP_SPACE", &|native| {
            cleared(native, Operation::Zero, DURABLE | KEEP_SPACE, 2)
        }),
        ("DEALLOCATE", &|native| {
            cleared(native, Operation::Deallocate, DURABLE, 3)
        }),
        ("COMPARE_AND_SWAP", &|native| {
            let head = head(Operation::CompareAndSwap, DURABLE, 4, 512);
            native.ask(head, &[], &swapped).lsn()
        }),
        ("COMMIT", &|native| {
            let head = RequestHeader {
                flags: DURABLE,
                ..RequestHeader::of(Operation::Commit)
            };
            native.batch(head, &[], &[change], &[2; 512]).lsn()
        }),
        ("FLUSH", &|native| {
            native.write(vm, 0, &[3; 4096], 0).lsn();
            native.range(Operation::Flush, vm, 0, 0).lsn()
        }),
    ];
    for (what, ask) in asked {
        let from = trace(&scene, None).next;
        ask(&mut native);
        let seen = trace(&scene, Some(from)).items;
        let is_flushed = |item: &TracedOperation| {
            item.kind == TracedKind::Flush && item.result == TracedResult::Done
        };
        assert!(seen.iter().any(is_flushed), "{what}: {seen:?}");
    }
}

#[test]
fn a_device_without_a_trace_says_how_to_get_one() {
    let scene = traced(&["latency reads=0s"]);
    let query = TraceQuery::default();
    let refused = scene.ask(|node| node.read_trace("main".to_owned(), query));
    let error = refused.expect_err("it has none");
    assert_eq!(error.kind, NodeErrorKind::NotFound);
    assert!(error.next_step.contains("--layer trace"), "{error}");
}
