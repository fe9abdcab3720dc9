//! What comes from another node, as this one sees it: what is not what was promised, and what is answered of arrivals that nobody knows.

use flagstone::node::{Arrival, ArrivalSpec, Slo};
use flagstone_fs::{ATTRIBUTE_KIND_MOVES, ATTRIBUTE_KIND_TOKENS, ATTRIBUTE_KIND_VOLUME};
use flagstone_types::checksum::crc32c;
use flagstone_types::{DeviceId, DvolId, Epoch, LayerNo, Lsn};
use flagstone_wire::arrival::{Arrive, RECORD_BYTES, Settle, Settled, Warrant, encode_arrived};
use flagstone_wire::batch::ATTRIBUTES_BYTES;
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, RequestHeader, Status};

use crate::between::{node, restart};
use crate::native::client::{Answer, Native};
use crate::native::{addresses, volume};
use crate::support::Scene;

const MIB: u64 = 1 << 20;
/// Of the volume that comes.
const ID: DvolId = DvolId(0xfedc_ba98_7654_3210);

type Attributes = [u8; ATTRIBUTES_BYTES as usize];

/// Those of a volume that has nothing of its own.
const NONE: Attributes = [0; ATTRIBUTES_BYTES as usize];

/// Who brings a volume, with what it was promised.
struct Origin {
    native: Native,
    arrival: Arrival,
}

impl Origin {
    fn of(scene: &Scene) -> Origin {
        let spec = ArrivalSpec {
            volume: "vm".to_owned(),
            id: format!("{:032x}", ID.0),
            device: None,
            core: None,
            slo: Slo::default(),
            oversubscribe: false,
        };
        let arrival = scene.ask(|node| node.promise_arrival(spec));
        Origin {
            native: Native::connect(addresses(scene)[0]),
            arrival: arrival.expect("promises"),
        }
    }

    fn ask(&mut self, operation: Operation, flags: u8, body: &[u8]) -> Answer {
        let attempt = match operation {
            Operation::Settle => 0,
            _ => 1,
        };
        let head = RequestHeader {
            lsn: Lsn(attempt),
            flags,
            ..RequestHeader::of(operation)
        };
        self.native.ask(head, body, &[])
    }

    /// It begins to come, anew or again.
    fn arrive(&mut self, operation: Operation, attributes: Attributes) -> Answer {
        let arrive = Arrive {
            warrant: self.native.warrant(&self.arrival, operation, 0),
            id: ID,
            size_bytes: 8 * MIB,
            reserved_bytes: 0,
            epoch: Epoch(9),
            highest_layer: LayerNo(0),
            snapshot_count: 0,
            attributes,
            name: "vm",
        };
        let mut body = Vec::new();
        arrive.encode(&mut body);
        self.ask(operation, 0, &body)
    }

    /// It has come, with these tokens.
    fn arrived(&mut self, record: Option<&[u8; RECORD_BYTES]>) -> Answer {
        let warrant = self.native.warrant(&self.arrival, Operation::Arrived, 0);
        let mut body = Vec::new();
        encode_arrived(&warrant, record, &mut body);
        self.ask(Operation::Arrived, 0, &body)
    }

    /// What became of the arrival of this number, which was to bring this volume to that device.
    fn settled(&mut self, number: u32, device: u128, volume: DvolId, flags: u8) -> Settled {
        let warrant = self.native.warrant(&self.arrival, Operation::Settle, flags);
        let settle = Settle {
            warrant: Warrant {
                arrival: number,
                ..warrant
            },
            device: DeviceId(device),
            volume,
        };
        let mut body = Vec::new();
        settle.encode(&mut body);
        let answer = self.ask(Operation::Settle, flags, &body);
        assert_eq!(answer.status(), Status::Ok, "{}", answer.sentence());
        Settled::decode(&answer.body).expect("what became of it")
    }
}

/// A volume's record of tokens that has none (`docs/formats/tokens.md`).
fn record_of(volume: DvolId) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..4].copy_from_slice(b"FSTK");
    record[4] = 1;
    record[8..24].copy_from_slice(&volume.0.to_le_bytes());
    record[24..28].copy_from_slice(&1_u32.to_le_bytes());
    let crc = crc32c(&record);
    record[60..64].copy_from_slice(&crc.to_le_bytes());
    record
}

fn tokens(scene: &Scene, volume: &str) -> usize {
    let listed = scene.ask(|node| node.list_tokens(volume.to_owned()));
    listed.expect("lists").items.len()
}

/// Whoever may bring a volume must not take the tokens of another one away, or give it others.
#[test]
fn tokens_that_come_are_those_of_the_volume_that_comes() {
    let scene = node();
    let token = volume(&scene, "mine", None);
    let mine = scene.show("mine").expect("is there").id;
    let mine = DvolId(u128::from_str_radix(&mine, 16).expect("an id"));
    let mut origin = Origin::of(&scene);
    let begun = origin.arrive(Operation::Arrive, NONE);
    assert_eq!(begun.status(), Status::Ok, "{}", begun.sentence());
    let refused = origin.arrived(Some(&record_of(mine)));
    assert_ne!(refused.status(), Status::Ok);
    let opens = |scene: &Scene| {
        let opened = Native::connect(addresses(scene)[0]).open("mine", &token, 0);
        assert_eq!(opened.status(), Status::Ok, "{}", opened.sentence());
        assert_eq!(tokens(scene, "mine"), 1);
    };
    opens(&scene);
    scene.show("vm").expect_err("it has not come");
    // Its own it may bring.
    let arrived = origin.arrived(Some(&record_of(ID)));
    assert_eq!(arrived.status(), Status::Ok, "{}", arrived.sentence());
    assert_eq!(tokens(&scene, "vm"), 0);
    opens(&scene);
    drop(origin);
    opens(&restart(scene));
}

/// Its attributes say what is promised to it, and what it is: none may come that is promised more than was asked for, or that is the node's own.
#[test]
fn what_comes_is_a_volume_that_is_promised_what_it_was_to_be() {
    let scene = node();
    let count = |scene: &Scene| {
        let devices = scene.ask(|node| node.list_devices()).expect("lists");
        devices[0].volume_count
    };
    assert_eq!(count(&scene), 0);
    let mut origin = Origin::of(&scene);
    let of_kind = |kind| {
        let mut attributes = NONE;
        attributes[..2].copy_from_slice(&[kind, 1]);
        attributes
    };
    // A share of three instead of one (`docs/formats/device.md`).
    let mut promised = NONE;
    promised[..2].copy_from_slice(&[ATTRIBUTE_KIND_VOLUME, 2]);
    promised[8] = 3;
    // An extent, the header, a file and the log of filesystems.
    let of_filesystems = [1, 2, 3, 4].map(of_kind);
    let of_node = [ATTRIBUTE_KIND_TOKENS, ATTRIBUTE_KIND_MOVES].map(of_kind);
    let wrong = of_filesystems.into_iter().chain(of_node).chain([promised]);
    for attributes in wrong {
        for operation in [Operation::Arrive, Operation::ArriveAgain] {
            let refused = origin.arrive(operation, attributes);
            let what = format!("{operation:?} {:?}", &attributes[..9]);
            assert_eq!(refused.status(), Status::Invalid, "{what}");
        }
    }
    // Nothing has begun.
    assert_ne!(origin.arrived(None).status(), Status::Ok);
    assert_eq!(count(&scene), 0);
    promised[8] = 1;
    let begun = origin.arrive(Operation::Arrive, promised);
    assert_eq!(begun.status(), Status::Ok, "{}", begun.sentence());
    let arrived = origin.arrived(None);
    assert_eq!(arrived.status(), Status::Ok, "{}", arrived.sentence());
    let shown = scene.show("vm").expect("has come");
    assert_eq!((shown.slo, count(&scene)), (Slo::default(), 1));
}

/// Of a volume that has come, and whose origin has not confirmed that, nobody is told for good that it never came: whoever asks may have lost the number.
#[test]
fn of_a_volume_that_has_come_no_arrival_is_said_never_to_have_been() {
    let scene = node();
    let mut origin = Origin::of(&scene);
    let device = origin.arrival.device.clone();
    let device = u128::from_str_radix(&device, 16).expect("an id");
    let number = origin.arrival.number;
    let begun = origin.arrive(Operation::Arrive, NONE);
    assert_eq!(begun.status(), Status::Ok, "{}", begun.sentence());
    let arrived = origin.arrived(None);
    assert_eq!(arrived.status(), Status::Ok, "{}", arrived.sentence());
    let unknown = number.wrapping_add(1).max(1);
    let asked = |origin: &mut Origin, device, volume| origin.settled(unknown, device, volume, 0);
    assert_eq!(asked(&mut origin, device, ID), Settled::NotHere);
    let another = DvolId(ID.0 + 1);
    assert_eq!(asked(&mut origin, device, another), Settled::Never);
    assert_eq!(asked(&mut origin, device + 1, another), Settled::NotHere);
    let here = Settled::Arrived(addresses(&scene)[0]);
    assert_eq!(origin.settled(number, device, ID, 0), here);
    assert_eq!(origin.settled(number, device, ID, flag::CONFIRM), here);
    // Nobody who has brought it will ask again.
    assert_eq!(asked(&mut origin, device, ID), Settled::Never);
}
