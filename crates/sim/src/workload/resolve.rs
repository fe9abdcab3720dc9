//! After a restart: what there is, and whether it may be.
//!
//! First the engine says which dvols and snapshots there are ([`Model::meet_dvol`] and so on), then
//! every block that a client ever changed is read ([`Model::meet_block`]), and in the end
//! [`Model::settle`] sees whether all of it fits together: atomic changes whole or absent. What was
//! found is from then on what there is, whatever crash comes next.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_device::engine::{BlockMeta, DvolInfo, LayerInfo};
use flagstone_types::BLOCK_SIZE;

use super::content::{BLOCK, Value};
use super::described::ATTRIBUTES_BLOCK;
use super::history::{History, ObjectKey, State};
use super::model::{Life, Model, Seen, holds, show_lsn};

/// What was seen after a restart.
#[derive(Default)]
pub(crate) struct Restart {
    found: BTreeSet<ObjectKey>,
    seen: Seen,
    /// Bytes that the engine says each dvol or snapshot has mapped.
    mapped_bytes: BTreeMap<ObjectKey, u64>,
}

impl Restart {
    /// A block of an object is in one of these states.
    pub(crate) fn saw(&mut self, key: ObjectKey, vblock: u64, states: Vec<State>) {
        self.seen.push((key, vblock, states));
    }
}

impl Model {
    /// A dvol is there. `None` if it must not be, or if nothing can be said.
    pub(crate) fn meet_dvol(
        &mut self,
        journal: usize,
        info: &DvolInfo,
        restart: &mut Restart,
    ) -> Option<ObjectKey> {
        let known = self.select(|o| o.of.is_none() && o.id == info.handle.id);
        let Some(&key) = known.first() else {
            self.fail(format!(
                "there is a dvol {} that nobody ever created",
                info.name
            ));
            return None;
        };
        self.objects[key].handle = Some(info.handle);
        restart.found.insert(key);
        restart.mapped_bytes.insert(key, info.mapped_bytes);
        if self.loose {
            return Some(key);
        }
        if self.objects[key].life == Life::Gone {
            let title = self.objects[key].title();
            self.fail(format!("{title} is back though it was deleted"));
            return None;
        }
        self.arrive(key);
        let object = &mut self.objects[key];
        let title = object.title();
        let mut wrong = Vec::new();
        if object.journal != journal {
            wrong.push(format!("is in journal {journal}"));
        }
        settle_field(&mut object.name, &info.name, "name", &mut wrong);
        settle_field(&mut object.size, &info.size_bytes, "size", &mut wrong);
        settle_field(
            &mut object.reserved,
            &info.reserved_bytes,
            "reservation",
            &mut wrong,
        );
        settle_field(&mut object.epoch, &info.epoch.0, "epoch", &mut wrong);
        settle_field(
            &mut object.read_only,
            &info.read_only,
            "read-only flag",
            &mut wrong,
        );
        if !object.is_described() {
            settle_field(
                &mut object.attributes,
                &info.attributes,
                "attributes",
                &mut wrong,
            );
        }
        if info.lsn.0 < object.lsn_durable {
            let lsn = show_lsn(object.lsn_durable);
            wrong.push(format!("is at LSN {} though {lsn} was durable", info.lsn));
        }
        object.tell_lsn(info.lsn.0);
        self.complain_of(&title, &wrong);
        self.meet_attributes(key, &info.attributes, restart);
        Some(key)
    }

    /// A snapshot of a dvol is there.
    pub(crate) fn meet_layer(
        &mut self,
        dvol: ObjectKey,
        info: &LayerInfo,
        restart: &mut Restart,
    ) -> Option<ObjectKey> {
        let name = &info.name;
        let known = self.select(|o| {
            o.of == Some(dvol) && o.name.may_be(name) && (o.life != Life::Gone || self.loose)
        });
        let Some(&key) = known.first() else {
            let title = self.objects[dvol].title();
            if !self.loose {
                self.fail(format!(
                    "{title} has a snapshot {name} that must not be there"
                ));
            }
            return None;
        };
        self.objects[key].handle = Some(info.handle);
        restart.found.insert(key);
        restart.mapped_bytes.insert(key, info.mapped_bytes);
        if self.loose {
            return Some(key);
        }
        self.arrive(key);
        let object = &mut self.objects[key];
        let title = object.title();
        let mut wrong = Vec::new();
        settle_field(&mut object.name, name, "name", &mut wrong);
        settle_field(&mut object.size, &info.size_bytes, "size", &mut wrong);
        match object.lsn {
            Some(lsn) if lsn != info.lsn.0 => {
                wrong.push(format!(
                    "is at LSN {}, but was at {}",
                    info.lsn,
                    show_lsn(lsn)
                ));
            }
            _ => object.lsn = Some(info.lsn.0),
        }
        self.complain_of(&title, &wrong);
        self.meet_attributes(key, &info.attributes, restart);
        Some(key)
    }

    fn complain_of(&mut self, title: &str, wrong: &[String]) {
        if !wrong.is_empty() {
            self.fail(format!("after the restart {title} {}", wrong.join(", ")));
        }
    }

    /// What was being made when the node ended is there: it holds what its source may have held.
    fn arrive(&mut self, key: ObjectKey) {
        let Life::Coming { from } = self.objects[key].life else {
            self.objects[key].life = Life::Here;
            return;
        };
        self.objects[key].life = Life::Here;
        if let Some(from) = from {
            let source = self.objects[from].clone();
            let passing = |h: &History| values(h.after_crash(&self.ops, true));
            let blocks = source
                .blocks
                .iter()
                .map(|(&v, h)| (v, passing(h)))
                .collect();
            self.objects[key].inherit(&source, blocks);
        }
    }

    /// Everything there is has been listed. The dvols and snapshots to be read, of all journals.
    pub(crate) fn end_listing(&mut self, restart: &Restart) {
        if self.loose {
            return;
        }
        let mut groups: BTreeMap<usize, BTreeSet<bool>> = BTreeMap::new();
        for key in 0..self.objects.len() {
            let found = restart.found.contains(&key);
            let object = &mut self.objects[key];
            match object.life {
                Life::Gone => continue,
                Life::Here if !found => {
                    let title = object.title();
                    self.fail(format!("{title} is gone"));
                }
                Life::Here => {}
                Life::Going | Life::Coming { .. } => object.life = Life::Gone,
            }
        }
        for object in &self.objects {
            if let Some(group) = object.made_with {
                groups
                    .entry(group)
                    .or_default()
                    .insert(object.life == Life::Here);
            }
        }
        if groups.values().any(|present| present.len() > 1) {
            self.fail("of several snapshots of one instant only some are there");
        }
        for object in &mut self.objects {
            object.made_with = None;
        }
        let orphans = self.select(|o| {
            o.life == Life::Here && o.of.is_some_and(|of| self.objects[of].life == Life::Gone)
        });
        if let Some(&orphan) = orphans.first() {
            let title = self.objects[orphan].title();
            self.fail(format!("{title} is there without its dvol"));
        }
    }

    /// Blocks of an object that a client ever changed and that lie within its size.
    pub(crate) fn blocks_to_read(&self, key: ObjectKey) -> Vec<u64> {
        let object = &self.objects[key];
        let end = object.size.now.div_ceil(BLOCK_SIZE);
        object
            .blocks
            .range(..end)
            .map(|(&vblock, _)| vblock)
            .collect()
    }

    /// A block holds this (as many bytes of it as lie within the dvol).
    pub(crate) fn meet_block(
        &mut self,
        key: ObjectKey,
        vblock: u64,
        bytes: &[u8],
        meta: BlockMeta,
        restart: &mut Restart,
    ) {
        assert!(bytes.len() <= BLOCK, "at most one block at a time");
        let at = vblock * BLOCK_SIZE;
        if self.loose {
            let from = self.tick();
            self.check_read(key, at, bytes, None, from, false);
            return;
        }
        let Some(history) = self.objects[key].blocks.get(&vblock) else {
            return;
        };
        let states = history.after_crash(&self.ops, false);
        let fits = |state: &State| holds(&state.value, at, bytes) && state.value.has(meta);
        let fitting: Vec<State> = states.iter().filter(|s| fits(s)).cloned().collect();
        if fitting.is_empty() {
            let what = self.complain(key, at, bytes, Some(meta), &states);
            self.fail(format!("after the restart {what}"));
            return;
        }
        restart.seen.push((key, vblock, fitting));
    }

    /// Blocks that the engine says take space, as ranges of block numbers.
    pub(crate) fn meet_allocation(
        &mut self,
        key: ObjectKey,
        allocated: &[std::ops::Range<u64>],
        restart: &mut Restart,
    ) {
        if self.loose {
            return;
        }
        let is_allocated = |v: u64| allocated.iter().any(|range| range.contains(&v));
        let object = &self.objects[key];
        for range in allocated {
            if let Some(stray) = range.clone().find(|v| !object.blocks.contains_key(v)) {
                let title = object.title();
                self.fail(format!(
                    "after the restart block {stray} of {title} takes space"
                ));
                return;
            }
        }
        let of_data = |vblock: u64| vblock != ATTRIBUTES_BLOCK;
        let seen = restart.seen.iter_mut();
        for (_, vblock, states) in seen.filter(|(k, v, _)| *k == key && of_data(*v)) {
            let found = is_allocated(*vblock);
            states.retain(|state| state.value.mapped == found);
            if states.is_empty() {
                let title = self.objects[key].title();
                let takes = if found { "takes" } else { "does not take" };
                self.failure.get_or_insert(format!(
                    "after the restart block {vblock} of {title} {takes} space, against its content"
                ));
                return;
            }
        }
    }

    /// Everything has been read: whether it fits together, and if so, that is what there is.
    pub(crate) fn settle(&mut self, mut restart: Restart) {
        if self.failure.is_some() {
            return;
        }
        if self.loose {
            self.unresolved = false;
            return;
        }
        if let Err(what) = self.agree(&mut restart.seen) {
            self.fail(format!("after the restart there is {what}"));
            return;
        }
        let mut seen: BTreeMap<(ObjectKey, u64), Vec<Value>> = BTreeMap::new();
        for (key, vblock, states) in std::mem::take(&mut restart.seen) {
            seen.insert((key, vblock), values(states));
        }
        for key in 0..self.objects.len() {
            if self.objects[key].life == Life::Gone {
                continue;
            }
            let mut blocks = std::mem::take(&mut self.objects[key].blocks);
            for (&vblock, history) in &mut blocks {
                let values = match seen.remove(&(key, vblock)) {
                    Some(values) => values,
                    // Behind the end of what can be read.
                    None => values(history.after_crash(&self.ops, false)),
                };
                *history = History::of(values);
            }
            self.objects[key].blocks = blocks;
            self.objects[key].calm();
            self.check_mapped(key, &restart);
        }
        for op in &mut self.ops {
            op.touches.clear();
        }
        self.unresolved = false;
    }

    fn check_mapped(&mut self, key: ObjectKey, restart: &Restart) {
        let object = &self.objects[key];
        // A part of a block that survived a crash without the block takes space, but does not count
        // as mapped.
        let (mut mapped, mut parts) = (0, 0);
        for history in object.blocks.range(..ATTRIBUTES_BLOCK).map(|(_, h)| h) {
            let Some(value) = history.settled() else {
                return;
            };
            mapped += u64::from(value.mapped);
            parts += u64::from(value.mapped && value.content.may_be_part_of_nothing());
        }
        let fits = |bytes: u64| (mapped - parts..=mapped).contains(&(bytes / BLOCK_SIZE));
        let found = restart.mapped_bytes.get(&key).copied();
        if found.is_some_and(|found| !fits(found)) {
            let title = object.title();
            self.fail(format!(
                "after the restart {title} says that {} blocks take space, but {mapped} do",
                found.unwrap_or(0) / BLOCK_SIZE
            ));
        }
    }
}

fn values(states: Vec<State>) -> Vec<Value> {
    let mut values: Vec<Value> = states.into_iter().map(|state| state.value).collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn settle_field<T: PartialEq + Clone + std::fmt::Debug>(
    field: &mut super::model::Field<T>,
    found: &T,
    what: &str,
    wrong: &mut Vec<String>,
) {
    if field.may_be(found) {
        *field = super::model::Field::new(found.clone());
    } else {
        wrong.push(format!(
            "has the {what} {found:?}, but may only have {field:?}"
        ));
    }
}
