//! What is kept of a volume in the attributes of its dvol: its SLO, its schedule of snapshots, and of streams what
//! it is being made of, or was (`docs/formats/device.md`, "Attributes of volumes").

use flagstone_device::engine::Attributes;
use flagstone_device::transfer::{POINT_BYTES, Point};
use flagstone_fs::ATTRIBUTE_KIND_VOLUME;
use flagstone_gateway::striped::Layout;
use flagstone_types::{DvolId, Epoch, LayerNo, Lsn};

use crate::node::{Rates, Slo, SloLimit, SloPromise, SnapshotSchedule};

const VERSION: u8 = 2;
/// Knows SLOs only, each number in eight bytes.
const VERSION_OF_SLOS: u8 = 1;

const PROMISE_SHARE: u8 = 0;
const PROMISE_FLOOR: u8 = 1;
/// Nothing is said of an SLO: of a volume that is being moved here, how far that is lies in its place.
const PROMISE_NONE_BUT_POINT: u8 = 2;

/// Where that lies, and the limit of the move behind it.
const POINT_AT: usize = 8;
const MOVE_LIMIT_AT: usize = POINT_AT + POINT_BYTES;

const RECEIVING_NEW: u8 = 1;
const RECEIVING_ONTO: u8 = 2;
const LEAVING: u8 = 3;
const STAYED: u8 = 4;
/// Where such a dvol says what its device has, and that this is a copy which goes on. Without it, one that is not to be taken for the volume.
const COPY_AT: usize = 56;
const COPY_GOES_ON: u8 = 1;
const STRIPE_HEAD: u8 = 5;
const STRIPE_MEMBER: u8 = 6;

/// Bytes of a number of requests a second, and of one of bytes a second.
const RATE_BYTES: usize = 5;
const BANDWIDTH_BYTES: usize = 6;

/// Where a schedule is, how long it is, and how many bits its numbers have: minutes of the interval, and how many stay
/// of the newest, of days, weeks and months.
const SCHEDULE_AT: usize = 34;
const SCHEDULE_BYTES: usize = 6;
const SCHEDULE_BITS: [u32; 5] = [20, 9, 7, 6, 6];

/// Bits of an epoch beside how often a volume was moved, and the most of that.
const EPOCH_BITS: u32 = 20;
const MOVES_MAX: u16 = (1 << 12) - 1;
const _: () = assert!(Epoch::MAX.0 == (1 << EPOCH_BITS) - 1);

/// The most that an SLO can say in requests a second, and in bytes a second.
pub(super) const RATE_MAX: u64 = (1 << (8 * RATE_BYTES)) - 1;
pub(super) const BANDWIDTH_MAX: u64 = (1 << (8 * BANDWIDTH_BYTES)) - 1;

/// A content that is the same on every node: that of a volume at an LSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ContentId {
    /// The volume that it comes from.
    pub(super) volume: DvolId,
    /// LSN of its last change there.
    pub(super) lsn: Lsn,
}

/// What is being done to a dvol, by a stream or a move. What a start makes of it is in `receive.rs` and `moving/left.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Receiving {
    /// A new volume: it isn't there yet.
    New,
    /// The same, by a move that is so far, and copies no more than so many bytes a second. Of such a dvol nothing else is said.
    Moved {
        point: Point,
        limit_bytes: Option<u64>,
    },
    /// A newer state of one that has a snapshot of the older, this one.
    Onto(LayerNo),
    /// It is being copied to the device with this id: the volume is here, and a copy there with a point goes on.
    Going(u128),
    /// It is being moved to the device with this id, at the end of that, and may have been.
    Leaving(u128),
    /// It was to be moved to the device with this id, and was not, whatever is there.
    Stayed(u128),
}

/// What a dvol is of a striped volume (`docs/decisions/2026-11-26-local-stripes.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StripePart {
    /// Member 0, which is the volume.
    Head {
        layout: Layout,
        /// Of the whole volume.
        size_bytes: u64,
        /// The snapshot that it is being rolled back to, by its number in this dvol.
        rolling: Option<LayerNo>,
    },
    /// Another member of the volume with this id.
    Member { head: DvolId, number: u8 },
}

/// Since when a volume's epoch has only been raised by moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OnlyMoved {
    /// The epoch that it had behind the last move. If it has another one now, somebody has opened it alone since.
    pub(super) epoch: Epoch,
    /// How many moves there were, one behind the other.
    pub(super) moves: u16,
}

impl OnlyMoved {
    /// Behind one more move, of a volume in this epoch.
    pub(super) fn once_more(before: Option<OnlyMoved>, epoch: Epoch) -> OnlyMoved {
        let moves = before.filter(|before| before.epoch == epoch);
        let moves = moves.map_or(0, |before| before.moves);
        OnlyMoved {
            epoch: Epoch(epoch.0.saturating_add(Epoch::PER_MOVE)),
            moves: (moves + 1).min(MOVES_MAX),
        }
    }

    /// The lowest epoch in which it may have been held by those who are locked out by nobody.
    pub(super) fn since(&self) -> Epoch {
        let raised = u32::from(self.moves) * Epoch::PER_MOVE;
        Epoch(self.epoch.0.saturating_sub(raised))
    }

    /// Whether whoever held it in the epoch `held` has been locked out by nobody, now that it is in this one.
    pub(super) fn leads(&self, held: Epoch, now: Epoch) -> bool {
        let moves = 1..=u32::from(self.moves);
        let mut before = moves.filter_map(|moves| now.0.checked_sub(moves * Epoch::PER_MOVE));
        now == self.epoch && before.any(|before| before == held.0)
    }
}

/// Attributes of a volume, or of a snapshot of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct VolumeAttributes {
    pub(super) slo: Slo,
    /// Of a dvol: when snapshots of it are taken. Of a snapshot it means nothing.
    pub(super) snapshots: Option<SnapshotSchedule>,
    /// Of a dvol: what is being done to it. Of a snapshot it means nothing.
    pub(super) receiving: Option<Receiving>,
    /// Of a snapshot: the content that it was received as. Of a dvol: that of the snapshot which is just being taken.
    pub(super) content: Option<ContentId>,
    /// Of a dvol: whether those who held it before it was moved may go on. Not while a newer state is received onto it: then nobody
    /// has it open.
    pub(super) moved: Option<OnlyMoved>,
    /// Of a member of a striped volume: which. Such a volume is neither received nor moved, so it has nothing of those.
    pub(super) stripe: Option<StripePart>,
}

impl VolumeAttributes {
    /// As they lie on the device. A volume with nothing of its own has zeros.
    pub(super) fn encode(&self) -> Attributes {
        let mut attributes: Attributes = [0; _];
        if *self == VolumeAttributes::default() {
            return attributes;
        }
        let mut put = |at: usize, len: usize, value: u64| {
            attributes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        };
        put(0, 1, ATTRIBUTE_KIND_VOLUME.into());
        put(1, 1, VERSION.into());
        if let Some(Receiving::Moved { point, limit_bytes }) = self.receiving {
            put(2, 1, PROMISE_NONE_BUT_POINT.into());
            // For a program that knows of no points.
            put(3, 1, RECEIVING_NEW.into());
            let limit = limit_bytes.unwrap_or(0).min(BANDWIDTH_MAX);
            put(MOVE_LIMIT_AT, BANDWIDTH_BYTES, limit);
            attributes[POINT_AT..MOVE_LIMIT_AT].copy_from_slice(&point.encode());
            return attributes;
        }
        match self.slo.promise {
            SloPromise::Share(parts) => {
                put(2, 1, PROMISE_SHARE.into());
                put(8, RATE_BYTES, parts.into());
            }
            SloPromise::Floor(Rates { reads, writes }) => {
                put(2, 1, PROMISE_FLOOR.into());
                put(8, RATE_BYTES, reads.min(RATE_MAX));
                put(13, RATE_BYTES, writes.min(RATE_MAX));
            }
        }
        let limit = self.slo.limit;
        put(18, RATE_BYTES, limit.reads.unwrap_or(0).min(RATE_MAX));
        put(23, RATE_BYTES, limit.writes.unwrap_or(0).min(RATE_MAX));
        let bytes = limit.bytes.unwrap_or(0).min(BANDWIDTH_MAX);
        put(28, BANDWIDTH_BYTES, bytes);
        put(SCHEDULE_AT, SCHEDULE_BYTES, packed(self.snapshots));
        if let Some(OnlyMoved { epoch, moves }) = self.moved {
            put(4, 4, u64::from(moves) << EPOCH_BITS | u64::from(epoch.0));
        }
        match self.receiving {
            None | Some(Receiving::Moved { .. }) => {}
            Some(Receiving::New) => put(3, 1, RECEIVING_NEW.into()),
            Some(Receiving::Onto(base)) => {
                put(3, 1, RECEIVING_ONTO.into());
                // Over what is said of moves.
                put(4, 4, base.0.into());
            }
            Some(
                Receiving::Going(device) | Receiving::Leaving(device) | Receiving::Stayed(device),
            ) => {
                // For a program that knows of no such copies one that goes on is one that goes.
                let (kind, copy) = match self.receiving {
                    Some(Receiving::Leaving(_)) => (LEAVING, 0),
                    Some(Receiving::Going(_)) => (STAYED, COPY_GOES_ON),
                    _ => (STAYED, 0),
                };
                put(3, 1, kind.into());
                put(COPY_AT, 1, copy.into());
                // Where a content is said otherwise: nothing of that kind is received into it now.
                put(40, 8, device as u64);
                put(48, 8, (device >> 64) as u64);
            }
        }
        match self.stripe {
            None => {}
            Some(StripePart::Head {
                layout,
                size_bytes,
                rolling,
            }) => {
                put(3, 1, STRIPE_HEAD.into());
                put(40, 1, layout.members() as u64);
                put(41, 1, layout.unit_bytes().trailing_zeros().into());
                // No layer has the number 0.
                put(44, 4, rolling.map_or(0, |layer| layer.0.into()));
                put(48, 8, size_bytes);
            }
            Some(StripePart::Member { head, number }) => {
                put(3, 1, STRIPE_MEMBER.into());
                put(40, 8, head.0 as u64);
                put(48, 8, (head.0 >> 64) as u64);
                put(56, 1, number.into());
            }
        }
        if let Some(content) = self.content.filter(|_| self.stripe.is_none()) {
            put(40, 8, content.volume.0 as u64);
            put(48, 8, (content.volume.0 >> 64) as u64);
            put(56, 8, content.lsn.0);
        }
        attributes
    }

    /// What attributes say. Those of a version that isn't known say nothing.
    pub(super) fn decode(attributes: &Attributes) -> VolumeAttributes {
        match attributes[..2] {
            [ATTRIBUTE_KIND_VOLUME, VERSION] => decode(attributes),
            [ATTRIBUTE_KIND_VOLUME, VERSION_OF_SLOS] => VolumeAttributes {
                slo: slo(attributes, [8, 16, 24, 32, 40], 8, 8),
                ..VolumeAttributes::default()
            },
            _ => VolumeAttributes::default(),
        }
    }
}

fn number(attributes: &Attributes, at: usize, len: usize) -> u64 {
    let mut value = [0; 8];
    value[..len].copy_from_slice(&attributes[at..at + len]);
    u64::from_le_bytes(value)
}

/// A volume that is being moved here, if it is said how far that is.
fn moved(attributes: &Attributes) -> Option<Receiving> {
    if attributes[2..4] != [PROMISE_NONE_BUT_POINT, RECEIVING_NEW] {
        return None;
    }
    let mut point = [0; POINT_BYTES];
    point.copy_from_slice(&attributes[POINT_AT..MOVE_LIMIT_AT]);
    let limit = number(attributes, MOVE_LIMIT_AT, BANDWIDTH_BYTES);
    Some(Receiving::Moved {
        point: Point::decode(&point)?,
        limit_bytes: (limit > 0).then_some(limit),
    })
}

fn decode(attributes: &Attributes) -> VolumeAttributes {
    if let Some(moved) = moved(attributes) {
        return VolumeAttributes {
            receiving: Some(moved),
            ..VolumeAttributes::default()
        };
    }
    let low = number(attributes, 40, 8);
    let high = number(attributes, 48, 8);
    let id = u128::from(high) << 64 | u128::from(low);
    let receiving = match attributes[3] {
        RECEIVING_NEW => Some(Receiving::New),
        RECEIVING_ONTO => Some(Receiving::Onto(LayerNo(number(attributes, 4, 4) as u32))),
        LEAVING => Some(Receiving::Leaving(id)),
        STAYED if attributes[COPY_AT] == COPY_GOES_ON => Some(Receiving::Going(id)),
        STAYED => Some(Receiving::Stayed(id)),
        _ => None,
    };
    let moved = number(attributes, 4, 4) as u32;
    let moved = OnlyMoved {
        epoch: Epoch(moved & Epoch::MAX.0),
        moves: (moved >> EPOCH_BITS) as u16,
    };
    let is_onto = attributes[3] == RECEIVING_ONTO;
    let is_other = matches!(
        attributes[3],
        LEAVING | STAYED | STRIPE_HEAD | STRIPE_MEMBER
    );
    let stripe = match attributes[3] {
        STRIPE_HEAD => head(attributes),
        STRIPE_MEMBER => Some(StripePart::Member {
            head: DvolId(id),
            number: attributes[56],
        }),
        _ => None,
    };
    let volume = DvolId(if is_other { 0 } else { id });
    let content = ContentId {
        volume,
        lsn: Lsn(number(attributes, 56, 8)),
    };
    VolumeAttributes {
        slo: slo(attributes, [8, 13, 18, 23, 28], RATE_BYTES, BANDWIDTH_BYTES),
        snapshots: unpacked(number(attributes, SCHEDULE_AT, SCHEDULE_BYTES)),
        receiving,
        // No volume has that id.
        content: (volume != DvolId(0)).then_some(content),
        moved: Some(moved).filter(|moved| moved.moves > 0 && !is_onto),
        stripe,
    }
}

/// That of member 0. What can't be is none.
fn head(attributes: &Attributes) -> Option<StripePart> {
    let unit_bytes = 1u64.checked_shl(attributes[41].into())?;
    let layout = Layout::new(attributes[40].into(), unit_bytes)?;
    let rolling = number(attributes, 44, 4) as u32;
    Some(StripePart::Head {
        layout,
        size_bytes: number(attributes, 48, 8),
        rolling: (rolling != 0).then_some(LayerNo(rolling)),
    })
}

/// A schedule as a number, from the lowest bits on; none is 0. What is too large for it isn't let in.
fn packed(schedule: Option<SnapshotSchedule>) -> u64 {
    let Some(schedule) = schedule else { return 0 };
    let [keep, daily, weekly, monthly] = schedule.stay().map(u64::from);
    let numbers = [schedule.every_s / 60, keep, daily, weekly, monthly];
    let mut value = 0;
    for (number, bits) in numbers.into_iter().zip(SCHEDULE_BITS).rev() {
        value = value << bits | number.min((1 << bits) - 1);
    }
    value
}

/// What that says. What makes no sense says nothing: it would delete.
fn unpacked(mut value: u64) -> Option<SnapshotSchedule> {
    let [minutes, keep, daily, weekly, monthly] = SCHEDULE_BITS.map(|bits| {
        let number = value & ((1 << bits) - 1);
        value >>= bits;
        number
    });
    let schedule = SnapshotSchedule {
        every_s: minutes * 60,
        keep: keep as u32,
        daily: daily as u32,
        weekly: weekly as u32,
        monthly: monthly as u32,
    };
    schedule.check().is_ok().then_some(schedule)
}

/// An SLO whose five numbers begin at these places.
fn slo(attributes: &Attributes, at: [usize; 5], rate_bytes: usize, bandwidth_bytes: usize) -> Slo {
    let [first, second, reads, writes, bytes] = at;
    let rate = |at| number(attributes, at, rate_bytes);
    let limit = |value| Some(value).filter(|rate| *rate > 0);
    let promise = match attributes[2] {
        PROMISE_SHARE => SloPromise::Share(u32::try_from(rate(first)).unwrap_or(u32::MAX).max(1)),
        PROMISE_FLOOR => SloPromise::Floor(Rates {
            reads: rate(first).min(RATE_MAX),
            writes: rate(second).min(RATE_MAX),
        }),
        _ => SloPromise::default(),
    };
    Slo {
        promise,
        limit: SloLimit {
            reads: limit(rate(reads).min(RATE_MAX)),
            writes: limit(rate(writes).min(RATE_MAX)),
            bytes: limit(number(attributes, bytes, bandwidth_bytes).min(BANDWIDTH_MAX)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_device::transfer::What;

    use crate::node::{EVERY_LEAST_S, EVERY_MOST_S, STAY_MOST};

    fn floor(reads: u64, writes: u64) -> SloPromise {
        SloPromise::Floor(Rates { reads, writes })
    }

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let limits = [
            SloLimit::default(),
            SloLimit {
                reads: Some(1),
                writes: Some(RATE_MAX),
                bytes: Some(BANDWIDTH_MAX),
            },
            SloLimit {
                writes: Some(500),
                ..SloLimit::default()
            },
        ];
        let promises = [
            SloPromise::Share(1),
            SloPromise::Share(u32::MAX),
            floor(5000, 0),
            floor(RATE_MAX, 3),
        ];
        let receivings = [
            None,
            Some(Receiving::New),
            Some(Receiving::Onto(LayerNo(u32::MAX))),
        ];
        let content = ContentId {
            volume: DvolId(u128::MAX - 5),
            lsn: Lsn(u64::MAX - 7),
        };
        let [keep, daily, weekly, monthly] = STAY_MOST;
        let most = SnapshotSchedule {
            every_s: EVERY_MOST_S,
            keep,
            daily,
            weekly,
            monthly,
        };
        let least = SnapshotSchedule {
            every_s: EVERY_LEAST_S,
            keep: 0,
            daily: 0,
            weekly: 0,
            monthly: 1,
        };
        for promise in promises {
            for limit in limits {
                for receiving in receivings {
                    for (content, snapshots) in [
                        (None, None),
                        (Some(content), None),
                        (None, Some(least)),
                        (Some(content), Some(most)),
                    ] {
                        let moved = OnlyMoved {
                            epoch: Epoch::MAX,
                            moves: MOVES_MAX,
                        };
                        let is_onto = matches!(receiving, Some(Receiving::Onto(_)));
                        let attributes = VolumeAttributes {
                            slo: Slo { promise, limit },
                            snapshots,
                            receiving,
                            content,
                            moved: Some(moved).filter(|_| content.is_some() && !is_onto),
                            stripe: None,
                        };
                        let bytes = attributes.encode();
                        assert_eq!(VolumeAttributes::decode(&bytes), attributes);
                        let role = flagstone_fs::DvolRole::of(&bytes);
                        assert_eq!(role, None, "it still is a volume's");
                    }
                }
            }
        }
        assert_eq!(VolumeAttributes::default().encode(), [0; 64]);
    }

    #[test]
    fn moves_lock_nobody_out_and_others_do() {
        let first = OnlyMoved::once_more(None, Epoch(5));
        assert_eq!((first.epoch, first.moves), (Epoch(13), 1));
        assert!(first.leads(Epoch(5), Epoch(13)));
        let second = OnlyMoved::once_more(Some(first), Epoch(13));
        for held in [5, 13] {
            assert!(second.leads(Epoch(held), Epoch(21)), "{held}");
        }
        for held in [0, 4, 6, 12, 14, 20, 22] {
            assert!(!second.leads(Epoch(held), Epoch(21)), "{held}");
        }
        assert!(!second.leads(Epoch(13), Epoch(22)), "raised since");
        let raised = OnlyMoved::once_more(Some(second), Epoch(22));
        assert_eq!((raised.epoch, raised.moves), (Epoch(30), 1));
        assert!(raised.leads(Epoch(22), Epoch(30)));
        assert!(
            !raised.leads(Epoch(14), Epoch(30)),
            "raised eight times, and moved"
        );
        let mut bytes = VolumeAttributes {
            moved: Some(second),
            ..VolumeAttributes::default()
        }
        .encode();
        assert_eq!(bytes[..8], [5, 2, 0, 0, 21, 0, 0x20, 0]);
        bytes[4..8].fill(0);
        assert_eq!(VolumeAttributes::decode(&bytes).moved, None);
        let many = OnlyMoved {
            moves: MOVES_MAX,
            ..first
        };
        assert_eq!(OnlyMoved::once_more(Some(many), Epoch(13)).moves, MOVES_MAX);
    }

    #[test]
    fn bytes_on_the_device_are_these() {
        let slo = Slo {
            promise: floor(0x0102, 0x03),
            limit: SloLimit {
                reads: Some(4),
                writes: Some(5),
                bytes: Some(6),
            },
        };
        let attributes = VolumeAttributes {
            slo,
            snapshots: Some(SnapshotSchedule {
                every_s: 3600,
                keep: 24,
                daily: 7,
                weekly: 4,
                monthly: 12,
            }),
            receiving: Some(Receiving::Onto(LayerNo(7))),
            content: Some(ContentId {
                volume: DvolId(8 << 64 | 9),
                lsn: Lsn(10),
            }),
            moved: None,
            stripe: None,
        };
        let mut expected = [0; 64];
        expected[..5].copy_from_slice(&[5, 2, 1, 2, 7]);
        expected[8..10].copy_from_slice(&[2, 1]);
        (expected[13], expected[18], expected[23], expected[28]) = (3, 4, 5, 6);
        // 60 | 24 << 20 | 7 << 29 | 4 << 36 | 12 << 42
        expected[34..40].copy_from_slice(&[60, 0, 0x80, 0xe1, 0x40, 0x30]);
        (expected[40], expected[48], expected[56]) = (9, 8, 10);
        assert_eq!(attributes.encode(), expected);
        // As the first version had it.
        let mut first = [0; 64];
        first[..3].copy_from_slice(&[5, 1, 1]);
        first[8..10].copy_from_slice(&[2, 1]);
        (first[16], first[24], first[32], first[40]) = (3, 4, 5, 6);
        let expected = VolumeAttributes {
            slo,
            ..VolumeAttributes::default()
        };
        assert_eq!(VolumeAttributes::decode(&first), expected);
        first[1] = 3;
        assert_eq!(
            VolumeAttributes::decode(&first),
            VolumeAttributes::default(),
            "of another version"
        );
    }

    #[test]
    fn what_is_said_of_stripes_are_these_bytes() {
        let layout = Layout::new(16, 1 << 24).expect("the largest");
        let head = |rolling| VolumeAttributes {
            slo: Slo {
                promise: floor(1, 2),
                ..Slo::default()
            },
            stripe: Some(StripePart::Head {
                layout,
                size_bytes: 0x0102_0304_0506_0708,
                rolling,
            }),
            ..VolumeAttributes::default()
        };
        let member = VolumeAttributes {
            stripe: Some(StripePart::Member {
                head: DvolId(u128::MAX - 2),
                number: 15,
            }),
            ..VolumeAttributes::default()
        };
        for attributes in [head(None), head(Some(LayerNo(u32::MAX))), member] {
            let bytes = attributes.encode();
            assert_eq!(VolumeAttributes::decode(&bytes), attributes);
            assert_eq!(flagstone_fs::DvolRole::of(&bytes), None, "it is a volume's");
        }
        let bytes = head(Some(LayerNo(9))).encode();
        assert_eq!(bytes[..4], [5, 2, 1, 5]);
        assert_eq!(bytes[40..48], [16, 24, 0, 0, 9, 0, 0, 0]);
        assert_eq!(
            bytes[48..],
            [8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        let bytes = member.encode();
        assert_eq!(bytes[..4], [5, 2, 0, 6]);
        assert_eq!((bytes[40], bytes[55], bytes[56]), (0xfd, 0xff, 15));
        // A layout that can't be is none.
        let mut bytes = head(None).encode();
        for (at, value) in [(40, 1), (40, 17), (41, 15), (41, 25), (41, 255)] {
            let before = std::mem::replace(&mut bytes[at], value);
            assert_eq!(
                VolumeAttributes::decode(&bytes).stripe,
                None,
                "{at}: {value}"
            );
            bytes[at] = before;
        }
    }

    #[test]
    fn where_a_volume_is_moved_are_these_bytes() {
        let device = 0x1f1e_1d1c_1b1a_1918_1716_1514_1312_1110;
        for (receiving, kind, copy) in [
            (Receiving::Leaving(device), 3, 0),
            (Receiving::Stayed(device), 4, 0),
            // What a program sees that knows of no copies that go on: it stayed, and what is there is deleted.
            (Receiving::Going(device), 4, 1),
        ] {
            let attributes = VolumeAttributes {
                receiving: Some(receiving),
                moved: Some(OnlyMoved {
                    epoch: Epoch(9),
                    moves: 1,
                }),
                ..VolumeAttributes::default()
            };
            let bytes = attributes.encode();
            assert_eq!(VolumeAttributes::decode(&bytes), attributes);
            assert_eq!(bytes[..8], [5, 2, 0, kind, 9, 0, 0x10, 0]);
            let expected: Vec<u8> = (0x10..0x20).collect();
            assert_eq!(bytes[40..56], expected);
            assert_eq!(bytes[56..], [copy, 0, 0, 0, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn how_far_a_move_is_are_these_bytes() {
        let point = Point {
            snapshots: 3,
            of: Some(LayerNo(9)),
            what: What::ChangedSince(Lsn(4)),
            offset_bytes: 5,
            mark: Lsn(6),
            lsn: Lsn(7),
            copied_bytes: 8,
        };
        for limit_bytes in [None, Some(1), Some(BANDWIDTH_MAX)] {
            let attributes = VolumeAttributes {
                receiving: Some(Receiving::Moved { point, limit_bytes }),
                ..VolumeAttributes::default()
            };
            let bytes = attributes.encode();
            assert_eq!(VolumeAttributes::decode(&bytes), attributes);
            // What a program sees that knows of no points: a copy that isn't over, with a share of 1.
            assert_eq!(bytes[..8], [5, 2, 2, 1, 0, 0, 0, 0]);
            assert_eq!(bytes[8..56], point.encode());
            assert_eq!(number(&bytes, 56, 6), limit_bytes.unwrap_or(0));
            assert_eq!(bytes[62..], [0, 0]);
            assert_eq!(flagstone_fs::DvolRole::of(&bytes), None, "it is a volume's");
            let mut without = bytes;
            without[11] = 0;
            let without = VolumeAttributes::decode(&without).receiving;
            assert_eq!(without, Some(Receiving::New), "a point that says nothing");
        }
    }

    #[test]
    fn any_bytes_are_some_attributes() {
        let mut seed = 1u64;
        for round in 0..10_000 {
            let mut bytes: Attributes = [0; _];
            for byte in &mut bytes {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (seed >> 56) as u8;
            }
            if round % 3 < 2 {
                bytes[..3].copy_from_slice(&[5, 1 + (round % 3) as u8, (round % 5) as u8]);
            }
            let attributes = VolumeAttributes::decode(&bytes);
            assert_eq!(
                VolumeAttributes::decode(&attributes.encode()),
                attributes,
                "{bytes:?}"
            );
            assert_ne!(attributes.slo.promise, SloPromise::Share(0));
        }
    }
}
