//! The bytes of one exchange, as they are on the wire: whoever changes them changes the protocol.

use std::fmt::Write;

use flagstone_platform::{IoBuf, Stream};
use flagstone_wire::hello::SessionId;
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, RequestHeader};

use crate::native_support::client::*;
use crate::native_support::node::*;
use crate::native_support::stage::Stage;
use crate::support::stream::{Link, MemoryStream};

/// Sends bytes and adds them, and what came back, to the record.
async fn exchange(stream: &MemoryStream, record: &mut String, what: &str, sent: &[u8]) -> Vec<u8> {
    let _ = stream.write_all(vec![IoBuf::copy_of(sent)]).await;
    let (buf, result) = stream.read(IoBuf::zeroed(1 << 16)).await;
    let count = result.expect("a reply");
    writeln!(record, "{what}").expect("a string");
    for (side, bytes) in [(">", sent), ("<", &buf[..count])] {
        for line in bytes.chunks(32) {
            record.push_str(side);
            for byte in line {
                write!(record, " {byte:02x}").expect("a string");
            }
            record.push('\n');
        }
    }
    buf[..count].to_vec()
}

#[test]
fn one_exchange_to_the_byte() {
    // An even seed: the world draws no random order.
    let record = Stage::new(42).run(|stage| async move {
        let mut record = String::new();
        let (stream, _) = stage.connect(Link::default());
        let mut client = Client::bare(stream.clone());
        let hello = hello_frame(SessionId::NEW, client.nonce);
        let reply = exchange(&stream, &mut record, "HELLO", &hello).await;
        let body = flagstone_wire::hello::HelloReply::decode(&reply[48..]).expect("a body");
        client.hello = body.reply;

        let body = client.open_body("a", OWNER, 0);
        let header = client.next(RequestHeader::of(Operation::Open));
        let open = frame(header, &body, &[]);
        let reply = exchange(&stream, &mut record, "OPEN a", &open).await;
        let mut volume = [0; 4];
        volume.copy_from_slice(&reply[4..8]);
        let a = flagstone_wire::VolumeNo(u32::from_le_bytes(volume));

        client.unsettled = 1;
        let header = RequestHeader {
            flags: flag::DURABLE,
            ..client.next(write(a, 4096))
        };
        let sent = frame(header, &[], b"flagstone");
        exchange(&stream, &mut record, "WRITE, durable", &sent).await;
        let header = client.next(ranged(Operation::Read, a, 4094, 14));
        let sent = frame(header, &[], &[]);
        exchange(&stream, &mut record, "READ", &sent).await;
        let header = RequestHeader {
            flags: flag::SPARSE,
            ..client.next(ranged(Operation::Read, a, 4094, 4))
        };
        let sent = frame(header, &[], &[]);
        exchange(&stream, &mut record, "READ, sparse", &sent).await;
        let header = client.next(ranged(Operation::CompareAndSwap, a, 4096, 4));
        let sent = frame(header, &[], b"FLAGflag");
        exchange(
            &stream,
            &mut record,
            "COMPARE_AND_SWAP, which finds others",
            &sent,
        )
        .await;
        let header = client.next(of(Operation::Close, a));
        let sent = frame(header, &[], &[]);
        exchange(&stream, &mut record, "CLOSE", &sent).await;
        record
    });
    let golden = include_str!("golden/native_exchange.txt");
    assert!(record == golden, "{record}");
}
