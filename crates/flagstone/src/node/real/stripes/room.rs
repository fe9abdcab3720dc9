//! Whether there is room for what is to be reserved for a striped volume: asked of the journals of all its members before anything is taken
//! in one of them.
//!
//! A journal that is told to set something aside takes whole segments, and gives them back with a later checkpoint. So who finds out at the
//! last member that there is no room has taken from others meanwhile.

use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::engine::{DvolError, Handle, Reserving, SpareRoom};
use flagstone_gateway::striped::Layout;
use flagstone_types::{BLOCK_SIZE, DvolId};

use crate::node::real::core::CoreNode;
use crate::node::real::engines::OwnedEngine;

/// Why nothing was set aside.
pub(in crate::node::real) enum Unreserved {
    Dvol(DvolError),
    NoRoom(Shortage),
}

impl From<DvolError> for Unreserved {
    fn from(error: DvolError) -> Unreserved {
        Unreserved::Dvol(error)
    }
}

/// For those who tell nobody of numbers.
impl From<Unreserved> for DvolError {
    fn from(unreserved: Unreserved) -> DvolError {
        match unreserved {
            Unreserved::Dvol(error) => error,
            Unreserved::NoRoom(_) => DvolError::NoSpace,
        }
    }
}

/// What a reservation of a striped volume takes, and what there is for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node::real) struct Shortage {
    /// What was to be reserved in all, in bytes.
    pub(in crate::node::real) asked_bytes: u64,
    /// What its members would need in addition to what is set aside for them, maps included.
    pub(in crate::node::real) needed_bytes: u64,
    /// How much of that there is: in segments of its members' journals, and in free ones.
    pub(in crate::node::real) free_bytes: u64,
    /// What could be reserved in all instead, in whole blocks.
    pub(in crate::node::real) most_bytes: u64,
    /// What holds the device had no room when it was last asked for some.
    pub(in crate::node::real) host_full: bool,
}

/// The journals of a striped volume's members.
pub(super) enum Whose<'a> {
    /// The members are there.
    Members(&'a [DvolId]),
    /// They are to be made in the first journals of a device on these cores.
    New { cores: &'a [usize], device: usize },
}

impl Whose<'_> {
    fn len(&self) -> usize {
        match self {
            Whose::Members(members) => members.len(),
            Whose::New { cores, .. } => cores.len(),
        }
    }
}

/// What of segments that are shorter than others, as the first and the last one of a device may be.
#[derive(Clone, Copy)]
enum Free {
    /// They count as any: who is refused had no room, whichever is taken.
    AtMost,
    /// They count for nothing: there is room for who is told so.
    AtLeast,
}

/// What was found of each member, in order: by its journal.
struct Found {
    members: Vec<(usize, Reserving)>,
    journals: BTreeMap<usize, SpareRoom>,
}

impl Found {
    /// What the members need for so many bytes of the volume, and how much of that there is.
    fn need(&self, layout: Layout, bytes: u64, free: Free) -> (u64, u64) {
        let mut needs: BTreeMap<usize, u64> = BTreeMap::new();
        for (number, (journal, reserving)) in self.members.iter().enumerate() {
            let more = reserving.more_bytes(layout.member_size_bytes(number, bytes));
            *needs.entry(*journal).or_default() += more;
        }
        let needed: u64 = needs.values().sum();
        let mut lacks = Vec::new();
        for (journal, need) in needs.into_iter().filter(|(_, need)| *need > 0) {
            let own = self.journals.get(&journal).map_or(0, |room| room.own_bytes);
            let lack = match own {
                0.. => need.saturating_sub(own.unsigned_abs()),
                _ => need.saturating_add(own.unsigned_abs()),
            };
            lacks.push(lack);
        }
        let lacking: u64 = lacks.iter().copied().fold(0, u64::saturating_add);
        let missing = lacking.saturating_sub(self.given(&lacks, free));
        (needed, needed.saturating_sub(missing))
    }

    /// How much of what journals lack is in segments that are free, of which each takes whole ones.
    fn given(&self, lacks: &[u64], free: Free) -> u64 {
        // All say the same, but for what happened in between.
        let least = |figure: fn(&SpareRoom) -> u64| self.journals.values().map(figure).min();
        let unowned = least(|room| room.unowned_bytes).unwrap_or(0);
        let segment = least(|room| room.segment_bytes).unwrap_or(0);
        let segment = segment.max(BLOCK_SIZE);
        let free = match free {
            Free::AtMost => least(|room| room.unowned_segments),
            Free::AtLeast => {
                least(|room| room.unowned_segments.saturating_sub(room.short_segments))
            }
        };
        let free = free.unwrap_or(0);
        let whole: u64 = lacks.iter().map(|lack| lack / segment).sum();
        let mut rests: Vec<u64> = lacks.iter().map(|lack| lack % segment).collect();
        rests.sort_unstable_by(|one, other| other.cmp(one));
        let rests = rests
            .into_iter()
            .take((free - whole.min(free)) as usize)
            .sum::<u64>();
        let given = whole
            .min(free)
            .saturating_mul(segment)
            .saturating_add(rests);
        given.min(unowned)
    }

    /// `None`: there is room.
    fn shortage(&self, layout: Layout, asked_bytes: u64) -> Option<Shortage> {
        let shortage = self.compared(layout, asked_bytes);
        (shortage.free_bytes < shortage.needed_bytes).then_some(shortage)
    }

    fn compared(&self, layout: Layout, asked_bytes: u64) -> Shortage {
        let (needed_bytes, free_bytes) = self.need(layout, asked_bytes, Free::AtMost);
        let has_room = |blocks: u64| {
            let (needed, free) = self.need(layout, blocks * BLOCK_SIZE, Free::AtLeast);
            free >= needed
        };
        // Of more more is needed, so this is found by halves.
        let (mut most, mut too_much) = (0, asked_bytes.div_ceil(BLOCK_SIZE));
        while most + 1 < too_much {
            let middle = most + (too_much - most) / 2;
            match has_room(middle) {
                true => most = middle,
                false => too_much = middle,
            }
        }
        Shortage {
            asked_bytes,
            needed_bytes,
            free_bytes,
            most_bytes: most * BLOCK_SIZE,
            host_full: self.journals.values().any(|room| room.host_full),
        }
    }
}

impl CoreNode {
    /// Refuses a reservation of so many bytes for which there is no room, after waiting for what was freed to become usable.
    pub(super) async fn check_room(
        self: &Rc<Self>,
        layout: Layout,
        whose: &Whose<'_>,
        bytes: u64,
    ) -> Result<(), Unreserved> {
        if bytes == 0 {
            return Ok(());
        }
        for waits in 0.. {
            let found = self.look_for_room(whose).await?;
            let Some(shortage) = found.shortage(layout, bytes) else {
                break;
            };
            if !self.gain_room(whose, &found, waits).await? {
                return Err(Unreserved::NoRoom(shortage));
            }
        }
        Ok(())
    }

    /// What to say to an error when something was to be set aside for which there was room before. By now it was given back: so are the
    /// segments.
    pub(super) async fn not_reserved(
        self: &Rc<Self>,
        layout: Layout,
        whose: &Whose<'_>,
        (bytes, error): (u64, DvolError),
    ) -> Unreserved {
        if error != DvolError::NoSpace || bytes == 0 {
            return error.into();
        }
        let Ok(found) = self.look_for_room(whose).await else {
            return error.into();
        };
        let mut journals = Vec::new();
        for number in 0..whose.len() {
            let journal = found.members[number].0;
            if journals.contains(&journal) {
                continue;
            }
            journals.push(journal);
            let given = self.in_journal(whose, number, |owned, _| async move {
                owned.engine.checkpoint().await
            });
            if let Err(error) = given.await {
                tracing::debug!(
                    journal,
                    "what was set aside in vain comes back with a later checkpoint: {error}"
                );
            }
        }
        Unreserved::NoRoom(found.compared(layout, bytes))
    }

    async fn look_for_room(self: &Rc<Self>, whose: &Whose<'_>) -> Result<Found, DvolError> {
        let mut found = Found {
            members: Vec::new(),
            journals: BTreeMap::new(),
        };
        for number in 0..whose.len() {
            let looked = self.in_journal(whose, number, |owned, dvol| async move {
                let reserving = match dvol {
                    Some(dvol) => owned.engine.reserving(dvol)?,
                    None => Reserving::default(),
                };
                Ok((owned.number, reserving, owned.engine.spare_room()))
            });
            let (journal, reserving, room) = looked.await?;
            found.members.push((journal, reserving));
            found.journals.insert(journal, room);
        }
        Ok(found)
    }

    /// Has what was freed in these journals become usable. False: nothing more comes of it in any.
    async fn gain_room(
        self: &Rc<Self>,
        whose: &Whose<'_>,
        found: &Found,
        waits: usize,
    ) -> Result<bool, DvolError> {
        let mut has_gained = false;
        for journal in found.journals.keys() {
            let mut members = found.members.iter();
            let Some(number) = members.position(|(of, _)| of == journal) else {
                continue;
            };
            let gained = self.in_journal(whose, number, move |owned, _| async move {
                owned.engine.gain_room(waits).await
            });
            has_gained |= gained.await?;
        }
        Ok(has_gained)
    }

    /// Has something done in the journal of a member, or the one where it is to be.
    async fn in_journal<R, F>(
        self: &Rc<Self>,
        whose: &Whose<'_>,
        number: usize,
        work: impl Fn(Rc<OwnedEngine>, Option<Handle>) -> F + Clone + Send + 'static,
    ) -> Result<R, DvolError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, DvolError>> + 'static,
    {
        match *whose {
            Whose::Members(members) => {
                let asked = self.on_member(members[number], move |_, owned, dvol| {
                    work(owned, Some(dvol))
                });
                asked.await
            }
            Whose::New { cores, device } => {
                let asked = self.ask_until(cores[number], move |core| {
                    let work = work.clone();
                    async move {
                        let engine = core.engines.first_of(device).ok_or(DvolError::Stopping)?;
                        work(core.owned(engine)?, None).await
                    }
                });
                asked.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const UNIT: u64 = 64 << 10;

    fn room(own_bytes: i64, unowned_bytes: u64) -> SpareRoom {
        SpareRoom {
            own_bytes,
            unowned_bytes,
            unowned_segments: unowned_bytes.div_ceil(128 * MIB),
            short_segments: u64::from(!unowned_bytes.is_multiple_of(128 * MIB)),
            segment_bytes: 128 * MIB,
            host_full: false,
        }
    }

    fn found(rooms: &[SpareRoom], members: usize) -> Found {
        Found {
            members: (0..members)
                .map(|number| (number % rooms.len(), Reserving::default()))
                .collect(),
            journals: rooms.iter().copied().enumerate().collect(),
        }
    }

    fn layout(members: usize) -> Layout {
        Layout::new(members, UNIT).expect("a layout")
    }

    /// Members of one journal need its room together.
    #[test]
    fn what_members_of_one_journal_need_is_added_up() {
        let found = found(&[room(30 * MIB as i64, 0)], 4);
        assert_eq!(found.shortage(layout(4), 28 * MIB), None);
        let short = found.shortage(layout(4), 40 * MIB).expect("is refused");
        assert!(short.needed_bytes >= 40 * MIB && short.needed_bytes < 42 * MIB);
        assert_eq!(short.free_bytes, 30 * MIB);
        assert!(
            (28 * MIB..30 * MIB).contains(&short.most_bytes),
            "{short:?}"
        );
        assert_eq!(found.shortage(layout(4), short.most_bytes), None);
        let more = short.most_bytes + BLOCK_SIZE;
        assert!(found.shortage(layout(4), more).is_some());
    }

    /// What one journal has in its segments is nothing that another one could take.
    #[test]
    fn room_in_another_journal_is_none() {
        let rooms = [room(100 * MIB as i64, 0), room(MIB as i64, 0)];
        let found = found(&rooms, 2);
        let short = found.shortage(layout(2), 8 * MIB).expect("is refused");
        assert!(short.free_bytes < short.needed_bytes);
        assert!((5 * MIB..6 * MIB).contains(&short.free_bytes), "{short:?}");
        assert!(short.most_bytes <= 2 * MIB, "{short:?}");
        assert_eq!(found.shortage(layout(2), short.most_bytes), None);
    }

    /// One segment is for one journal, and what a journal keeps for itself comes first.
    #[test]
    fn segments_are_taken_as_a_whole() {
        let rooms = [room(0, 128 * MIB), room(-(MIB as i64), 128 * MIB)];
        let found = found(&rooms, 2);
        let short = found
            .shortage(layout(2), 8 * MIB)
            .expect("one segment, two journals");
        assert!(short.free_bytes < short.needed_bytes, "{short:?}");
        let rooms = [room(0, 256 * MIB), room(-(MIB as i64), 256 * MIB)];
        let found = self::found(&rooms, 2);
        assert_eq!(found.shortage(layout(2), 8 * MIB), None);
        assert!(found.shortage(layout(2), 250 * MIB).is_some());
    }

    /// The largest volume there is, on a device without anything.
    #[test]
    fn the_largest_numbers_overflow_nothing() {
        let found = found(&[room(i64::MIN / 2, 0), room(0, u64::MAX / 2)], 16);
        let asked = (1 << 63) - 4096;
        let short = found.shortage(layout(16), asked).expect("is refused");
        assert!(short.needed_bytes >= asked);
        assert!(short.most_bytes < asked);
    }
}
