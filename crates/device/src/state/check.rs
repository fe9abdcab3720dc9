//! Judging what was read from a device before it changes the state.
//!
//! A right checksum says that somebody wrote a record, not that it makes sense. [`State::check`]
//! says so of each record before it is applied, in recovery and in the offline check alike; whoever
//! makes records live has asked the same questions in other words. It looks at what the record
//! names and at a few slots beside it, so it costs what the record is long.

use std::fmt;

use flagstone_types::{BlockNo, Lsn, SegmentNo, Slot};

use super::{SlotState, State};
use crate::format::FormatError;
use crate::format::catalogue::{CatalogueRecord, FLAG_HIDDEN, RecordKind};
use crate::format::geometry::Geometry;
use crate::format::record::Record;
use crate::v2p::Key;

/// No dvol gets so far: half a counter below the end of the last epoch.
const LSN_LIMIT: Lsn = Lsn(u64::MAX - (1 << 43));

/// The highest level a root may have while its map is changed. A map of that height holds 100^11
/// entries; one record can make it grow by three levels at most, so the format's limit is far.
const ROOT_LEVEL_MAX: u8 = 11;

/// What a slot holds, in words.
struct Words<'a>(Option<&'a SlotState>);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(state) = self.0 else {
            return f.write_str("nothing");
        };
        let (name, number) = (&state.record.name, state.record.layer.0);
        match (state.record.kind, state.is_hidden()) {
            (RecordKind::Dvol, _) => write!(f, "dvol '{name}'"),
            (RecordKind::Layer, true) => write!(f, "deleted layer {number}"),
            (RecordKind::Layer, false) => write!(f, "layer {number} '{name}'"),
        }
    }
}

impl State {
    /// Whether `record`, read from a device, fits the state. The bitmaps that it needs must be in
    /// memory ([`State::needed_for_check`]). The error names what the record speaks of, what was
    /// expected of that and what was found; the caller knows which group it is in.
    pub fn check(&self, record: &Record, geometry: &Geometry) -> Result<(), FormatError> {
        self.check_fit(record, geometry)
            .map_err(|what| FormatError::new(format!("{} record: {what}", record.type_name())))
    }

    /// A segment whose bitmap must be in memory before `record` can be checked.
    pub fn needed_for_check(&self, record: &Record) -> Option<SegmentNo> {
        let mut segments = record.new_blocks().map(|(block, _)| block.segment());
        let mut last = None;
        segments.find(|&segment| {
            last.replace(segment) != Some(segment) && self.pool.is_loaded(segment) == Some(false)
        })
    }

    fn check_fit(&self, record: &Record, geometry: &Geometry) -> Result<(), String> {
        match record {
            Record::Map { slot, lsn, .. }
            | Record::Delta { slot, lsn, .. }
            | Record::MapUnder { slot, lsn, .. }
            | Record::Unmap { slot, lsn, .. } => {
                self.check_lsn(*lsn)?;
                self.check_height(self.dvol(*slot)?, *slot)?;
                self.check_new_blocks(record, geometry)
            }
            Record::Attributes { slot, lsn, .. } => {
                self.check_lsn(*lsn)?;
                self.dvol(*slot).map(drop)
            }
            Record::Journaled { slot, lsn, .. } => {
                self.check_lsn(*lsn)?;
                self.check_height(self.dvol(*slot)?, *slot)
            }
            Record::CreateDvol { slot, record } => self.check_create(*slot, record),
            Record::Update { slot, record } => self.check_update(*slot, record),
            Record::Snapshot {
                slot,
                layer_slot,
                head,
                name,
                ..
            } => {
                let dvol = self.dvol(*slot)?;
                self.free(*layer_slot)?;
                self.check_head(*head)?;
                if self.has_journaled_data(*slot) {
                    return Err(self.found(*slot, "a dvol without data in the journal alone"));
                }
                match self.layer_named(dvol.record.id, name) {
                    Some(other) if !name.is_empty() => Err(name_is_used(name, other)),
                    _ => Ok(()),
                }
            }
            Record::Rollback { .. } => self.check_rollback(record),
            Record::DeleteDvol { slot } => self.dvol(*slot).map(drop),
            Record::DeleteLayer { slot } => self.visible_layer(*slot).map(drop),
            Record::Reap { slot, to } => self.check_reap(*slot, *to),
            Record::ReserveSegment { segment } => match geometry.is_usable_segment(*segment) {
                true => Ok(()),
                false => Err(format!(
                    "expected a segment of this device, found {}",
                    segment.0
                )),
            },
            Record::ReleaseSegment { segment } => self.check_release(*segment),
            // Whether there was such a unit is known before anything is applied.
            Record::Abort { .. } => Ok(()),
        }
    }

    /// A map that is to be changed may not be higher.
    fn check_height(&self, dvol: &SlotState, slot: Slot) -> Result<(), String> {
        match dvol.map.root_level_and_birth() {
            Some((level, _)) if level > ROOT_LEVEL_MAX => Err(format!(
                "expected a map of at most {ROOT_LEVEL_MAX} levels in slot {}, found {level}",
                slot.0
            )),
            _ => Ok(()),
        }
    }

    fn found(&self, slot: Slot, expected: &str) -> String {
        let found = Words(self.slot(slot));
        format!("expected {expected} in slot {}, found {found}", slot.0)
    }

    fn dvol(&self, slot: Slot) -> Result<&SlotState, String> {
        let found = self.slot(slot).filter(|s| s.is_dvol());
        found.ok_or_else(|| self.found(slot, "a dvol"))
    }

    fn visible_layer(&self, slot: Slot) -> Result<&SlotState, String> {
        let is_it = |s: &&SlotState| !s.is_dvol() && !s.is_hidden();
        let found = self.slot(slot).filter(is_it);
        found.ok_or_else(|| self.found(slot, "a layer that is not deleted"))
    }

    fn free(&self, slot: Slot) -> Result<(), String> {
        match self.slot(slot) {
            None => Ok(()),
            Some(_) => Err(self.found(slot, "nothing")),
        }
    }

    /// A head's number must be new, and leave room for the next one.
    fn check_head(&self, head: u32) -> Result<(), String> {
        if head < self.next_layer || head == u32::MAX {
            return Err(format!(
                "expected a layer number from {} on, found {head}",
                self.next_layer
            ));
        }
        Ok(())
    }

    fn check_lsn(&self, lsn: Lsn) -> Result<(), String> {
        match lsn <= LSN_LIMIT {
            true => Ok(()),
            false => Err(format!("expected an LSN up to {LSN_LIMIT}, found {lsn}")),
        }
    }

    /// Blocks that a record maps must be free, each named once.
    fn check_new_blocks(&self, record: &Record, geometry: &Geometry) -> Result<(), String> {
        let mut last = BlockNo(0);
        let mut ascend = true;
        for (block, _) in record.new_blocks() {
            ascend &= block > last;
            last = block;
            if !geometry.is_data(block) || !self.pool.owns(block.segment()) {
                return Err(format!(
                    "expected a block of this journal's segments, found {block}"
                ));
            }
            if geometry.bitmap_slots(block.segment()).contains(&block) {
                return Err(format!(
                    "expected a block for data, found {block}, which holds a bitmap"
                ));
            }
            if self.pool.is_free(block) == Some(false) {
                return Err(format!(
                    "expected a free block, found {block}, which is in use"
                ));
            }
        }
        if ascend {
            return Ok(());
        }
        let mut blocks: Vec<BlockNo> = record.new_blocks().map(|(block, _)| block).collect();
        blocks.sort_unstable();
        match blocks.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("expected each block once, found {} twice", pair[0])),
            None => Ok(()),
        }
    }

    fn check_create(&self, slot: Slot, record: &CatalogueRecord) -> Result<(), String> {
        self.free(slot)?;
        self.check_head(record.layer.0)?;
        self.check_lsn(record.lsn)?;
        if record.kind != RecordKind::Dvol
            || record.flags & FLAG_HIDDEN != 0
            || record.reap_cursor != Key(0)
        {
            return Err(format!(
                "expected a dvol to put in slot {}, found a layer",
                slot.0
            ));
        }
        if let Some(parent) = record.parent {
            // A clone of a head stands on a layer that is hidden from its first instant on.
            let is_whole = |s: &&SlotState| !s.is_dvol() && s.record.reap_cursor == Key(0);
            if self.slot(parent).filter(is_whole).is_none() {
                return Err(self.found(parent, "a whole layer to stand on"));
            }
        }
        match self.dvol_named(&record.name) {
            _ if record.name.is_empty() => Err("expected a name, found none".into()),
            Some(other) => Err(name_is_used(&record.name, other)),
            None => Ok(()),
        }
    }

    fn check_update(&self, slot: Slot, new: &CatalogueRecord) -> Result<(), String> {
        self.check_lsn(new.lsn)?;
        let is_it = |s: &&SlotState| s.record.kind == new.kind && !s.is_hidden();
        let Some(old) = self.slot(slot).filter(is_it) else {
            let kind = new.kind;
            return Err(self.found(slot, &format!("a {kind:?} that is not deleted")));
        };
        if new.flags & FLAG_HIDDEN != 0 || new.name.is_empty() {
            return Err(format!(
                "expected slot {} to stay visible and keep a name",
                slot.0
            ));
        }
        let other = match new.kind {
            RecordKind::Dvol => self.dvol_named(&new.name),
            RecordKind::Layer => self.layer_named(old.record.id, &new.name),
        };
        match other {
            Some(other) if other != slot => Err(name_is_used(&new.name, other)),
            _ => Ok(()),
        }
    }

    fn check_rollback(&self, record: &Record) -> Result<(), String> {
        let Record::Rollback {
            slot,
            to,
            discard_slot,
            head,
            lsn,
            ..
        } = record
        else {
            return Ok(());
        };
        let dvol = self.dvol(*slot)?;
        let layer = self.visible_layer(*to)?;
        self.free(*discard_slot)?;
        self.check_head(*head)?;
        self.check_lsn(*lsn)?;
        if layer.record.id != dvol.record.id {
            return Err(self.found(*to, &format!("a layer of {}", Words(Some(dvol)))));
        }
        if *lsn < dvol.record.lsn {
            return Err(format!(
                "expected an LSN from {} on, found {lsn}",
                dvol.record.lsn
            ));
        }
        Ok(())
    }

    fn check_reap(&self, slot: Slot, to: Key) -> Result<(), String> {
        let reapable = |s: &&SlotState| s.is_hidden() && s.children.len() <= 1;
        let Some(layer) = self.slot(slot).filter(reapable) else {
            return Err(self.found(slot, "a deleted layer with at most one child"));
        };
        if to.is_delta() {
            return Err(format!("expected the start of a block, found key {}", to.0));
        }
        let neighbours = layer.record.parent.iter().chain(&layer.children);
        for &neighbour in neighbours {
            let reaped = |s: &SlotState| s.is_hidden() && s.record.reap_cursor > Key(0);
            if self.slot(neighbour).is_some_and(reaped) {
                return Err(self.found(neighbour, "a layer that is not being freed itself"));
            }
        }
        Ok(())
    }

    fn check_release(&self, segment: SegmentNo) -> Result<(), String> {
        match self.pool.used_in(segment) {
            // A root that was made while the record was on its way leaves the segment out already.
            None | Some(0) => Ok(()),
            Some(used) => Err(format!(
                "expected segment {} to be empty, found {used} blocks in use",
                segment.0
            )),
        }
    }

    /// What must hold between the slots that a root describes, before any record is applied to
    /// them. Call it when they have been linked.
    pub fn check_loaded(&self) -> Result<(), FormatError> {
        let mut numbers = std::collections::BTreeMap::new();
        let mut visible = 0;
        for (slot, state) in self.slots() {
            let wrong = |what: String| {
                let words = Words(Some(state));
                Err(FormatError::new(format!(
                    "catalogue: slot {} ({words}): {what}",
                    slot.0
                )))
            };
            let record = &state.record;
            if record.layer.0 >= self.next_layer {
                return wrong(format!(
                    "expected a number below {}, found {}",
                    self.next_layer, record.layer.0
                ));
            }
            if let Some(Slot(other)) = numbers.insert(record.layer, slot) {
                return wrong(format!("it has the same number as slot {other}"));
            }
            let parent = record.parent.and_then(|p| self.slot(p));
            if parent.is_some_and(|p| p.record.layer >= record.layer) {
                return wrong("its parent is not older than itself".into());
            }
            if state.is_dvol() && state.is_hidden() {
                return wrong("a dvol can't be hidden".into());
            }
            if record.reap_cursor > Key(0) && !(state.is_hidden() && state.children.len() <= 1) {
                return wrong("it is being freed, but it isn't deleted or has children".into());
            }
            let root = state.map.root_level_and_birth();
            if root.is_some_and(|(_, birth)| birth > record.layer) {
                return wrong("its map is younger than itself".into());
            }
            if let Err(what) = self.check_lsn(record.lsn) {
                return wrong(what);
            }
            visible += usize::from(!state.is_hidden() && !record.name.is_empty());
        }
        if visible != self.dvol_names.len() + self.layer_names.len() {
            return Err(FormatError::new("catalogue: a name is used twice"));
        }
        Ok(())
    }
}

fn name_is_used(name: &str, by: Slot) -> String {
    format!(
        "expected a new name, found '{name}', which is that of slot {}",
        by.0
    )
}
