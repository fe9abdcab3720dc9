//! Headers: any values survive, nothing damaged does.

use flagstone_types::Lsn;
use flagstone_wire::{CarriedOut, Operation, ReplyHeader, RequestHeader, Status, VolumeNo};
use proptest::prelude::*;

use crate::support::frames;

#[test]
fn each_bit_counts() {
    for frame in frames() {
        for bit in 0..frame.head().len() * 8 {
            let mut head = frame.head().to_vec();
            head[bit / 8] ^= 1 << (bit % 8);
            let is_refused = match frame.is_request() {
                true => RequestHeader::decode(head.as_slice().try_into().expect("64")).is_err(),
                false => ReplyHeader::decode(head.as_slice().try_into().expect("48")).is_err(),
            };
            assert!(is_refused, "{} with bit {bit} flipped", frame.name);
        }
    }
}

#[test]
fn nothing_is_no_header() {
    assert!(RequestHeader::decode(&[0; 64]).is_err());
    assert!(ReplyHeader::decode(&[0; 48]).is_err());
}

#[test]
fn a_body_is_compared_with_its_header() {
    let mut header = RequestHeader::of(Operation::RollBack);
    header.set_body(b"body");
    assert!(header.check_body(b"body"));
    assert!(!header.check_body(b"bodY"));
    assert!(!header.check_body(b"bod"));
    assert!(!header.check_body(b""));
    // Of the same checksum, but not of the same length.
    let mut reply = ReplyHeader::to(&header, Status::Ok);
    assert!(reply.check_body(b""));
    reply.body_bytes = 1;
    assert!(!reply.check_body(b""));
}

#[test]
fn numbers_name_what_they_named() {
    for operation in Operation::ALL {
        assert_eq!(Operation::from_number(operation.number()), Some(*operation));
    }
    let known = (0..=u8::MAX).filter(|number| Operation::from_number(*number).is_some());
    assert_eq!(known.count(), Operation::ALL.len());
    for status in Status::ALL {
        assert_eq!(Status::from_number(status.number()), Some(*status));
        assert!(status.sentence().ends_with('.'), "{status}");
    }
    let known = (0..=u16::MAX).filter(|number| Status::from_number(*number).is_some());
    assert_eq!(known.count(), Status::ALL.len());
}

#[test]
fn what_a_status_promises() {
    let later = ReplyHeader {
        status: 999,
        ..ReplyHeader::default()
    };
    assert_eq!(later.carried_out(), CarriedOut::Perhaps);
    let carried_out = |kind| {
        let all = Status::ALL.iter().copied();
        all.filter(move |status| status.carried_out() == kind)
            .collect::<Vec<_>>()
    };
    assert_eq!(carried_out(CarriedOut::Yes), [Status::Ok]);
    assert_eq!(
        carried_out(CarriedOut::Perhaps),
        [
            Status::NoSpace,
            Status::Device,
            Status::Fenced,
            Status::Partly
        ]
    );
}

prop_compose! {
    fn any_request()(
        (operation, flags, patience_ms, volume, number) in any::<(u8, u8, u16, u32, u64)>(),
        (body_bytes, payload_bytes, body_crc, payload_crc) in any::<(u32, u32, u32, u32)>(),
        (offset_bytes, len_bytes, lsn, unsettled) in any::<(u64, u64, u64, u32)>(),
    ) -> RequestHeader {
        RequestHeader {
            operation,
            flags,
            patience_ms,
            volume: VolumeNo(volume),
            number,
            body_bytes,
            payload_bytes,
            body_crc,
            payload_crc,
            offset_bytes,
            len_bytes,
            lsn: Lsn(lsn),
            unsettled,
        }
    }
}

prop_compose! {
    fn any_reply()(
        (operation, flags, status, volume, number) in any::<(u8, u8, u16, u32, u64)>(),
        (body_bytes, payload_bytes, body_crc, payload_crc) in any::<(u32, u32, u32, u32)>(),
        (lsn, waited_us) in any::<(u64, u32)>(),
    ) -> ReplyHeader {
        ReplyHeader {
            operation,
            flags,
            status,
            volume: VolumeNo(volume),
            number,
            body_bytes,
            payload_bytes,
            body_crc,
            payload_crc,
            lsn: Lsn(lsn),
            waited_us,
        }
    }
}

proptest! {
    #[test]
    fn requests_survive(header in any_request()) {
        prop_assert_eq!(RequestHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn replies_survive(header in any_reply()) {
        prop_assert_eq!(ReplyHeader::decode(&header.encode()), Ok(header));
    }

    // CRC32C notices any two bits that are this near, and any burst of up to 32.
    #[test]
    fn damage_is_noticed(header in any_request(), at in 0_usize..61, burst in 1_u32..) {
        let mut bytes = header.encode();
        for (byte, flips) in bytes[at..].iter_mut().zip(burst.to_le_bytes()) {
            *byte ^= flips;
        }
        prop_assert!(RequestHeader::decode(&bytes).is_err());
    }
}
