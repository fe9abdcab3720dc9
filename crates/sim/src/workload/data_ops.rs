//! What clients do to data: writing, deallocating, flushing, batches under conditions.

use flagstone_device::engine::{Batch, Change as EngineChange, Condition, DvolError, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, Epoch, Lsn};

use super::client::{Client, Extent, effect_on};
use super::content::Effect;
use super::history::ObjectKey;
use super::model::Part;

/// Blocks from which an overwrite of a dvol with a reservation may be done in parts.
const PARTS_FROM_BLOCKS: u64 = 64;

fn part(object: ObjectKey, effects: Vec<(u64, Effect)>) -> Part {
    Part {
        object,
        effects,
        wide: None,
        closes: false,
        lsn_before: 0,
    }
}

fn is_stable(stability: Stability) -> bool {
    stability == Stability::Stable
}

impl Client {
    pub(crate) async fn write(&mut self, key: ObjectKey) {
        let is_whole = self.rng.chance(0.7);
        let Some(extent) = self.extent(key, is_whole) else {
            return;
        };
        let meta = if self.rng.chance(0.3) {
            self.rng.next_u64()
        } else {
            0
        };
        let stability = self.stability();
        self.write_extent(key, extent, meta, stability).await;
    }

    /// A write of a few whole blocks that nobody waits for a flush of.
    pub(crate) async fn write_at_once(&mut self, key: ObjectKey) {
        if let Some(extent) = self.extent(key, true) {
            let len = extent.len.min(2 * BLOCK_SIZE);
            let extent = Extent { len, ..extent };
            self.write_extent(key, extent, 0, Stability::Unstable).await;
        }
    }

    /// Writes, but gives up after some time.
    pub(crate) async fn write_briefly(&mut self, key: ObjectKey, extent: Extent, ns: u64) {
        self.patience_ns = Some(ns);
        self.write_extent(key, extent, 0, Stability::Stable).await;
        self.patience_ns = None;
    }

    pub(crate) async fn write_extent(
        &mut self,
        key: ObjectKey,
        extent: Extent,
        meta: u64,
        stability: Stability,
    ) {
        let blocks = extent.blocks();
        let Some(handle) = self.handle(key) else {
            return;
        };
        if !self.is_free(key, &blocks) {
            return self.read_extent(key, extent).await;
        }
        let tag = self.model.borrow_mut().new_tag();
        let is_reserved = self.model.borrow().objects[key]
            .reserved
            .candidates()
            .any(|&r| r > 0);
        let in_parts = is_reserved && blocks.end - blocks.start > PARTS_FROM_BLOCKS;
        let effects = self.effects(extent, tag, meta);
        let what = format!(
            "write {tag} to {}..{} ({stability:?})",
            extent.offset,
            extent.end()
        );
        let change = self.begin(
            what,
            vec![part(key, effects)],
            is_stable(stability),
            !in_parts,
        );
        let data = self.data(extent, tag);
        let engine = self.engine.clone();
        let work = engine.write_ex(handle, extent.offset, data, meta, stability);
        let result = self.patiently(work).await;
        if let Some(result) = &result {
            self.count("write", result);
        }
        let lsns = |lsn: Lsn| Some(vec![lsn.0]);
        self.end(change, result.map(|r| r.map(lsns)), !in_parts, &[]);
    }

    pub(crate) async fn flush(&mut self) {
        let covered = self.model.borrow_mut().begin_flush(self.journal);
        let engine = self.engine.clone();
        let Some(result) = self.patiently(engine.flush()).await else {
            return;
        };
        self.count("flush", &result);
        match result {
            Ok(()) => self.model.borrow_mut().end_flush(&covered),
            Err(DvolError::Fenced) if self.plan.may_fail() => self.is_over = true,
            Err(DvolError::Stopping) if self.model.borrow().stopping => self.is_over = true,
            Err(error) => self.fail(format!("flush failed for no reason: {error}")),
        }
    }

    pub(crate) async fn deallocate(&mut self, key: ObjectKey) {
        let is_whole = self.rng.chance(0.8);
        let Some(extent) = self.extent(key, is_whole) else {
            return;
        };
        let stability = self.stability();
        self.deallocate_extent(key, extent, stability).await;
    }

    pub(crate) async fn deallocate_extent(
        &mut self,
        key: ObjectKey,
        extent: Extent,
        stability: Stability,
    ) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        if !self.is_idle(key, &extent.blocks()) {
            return self.read_extent(key, extent).await;
        }
        let mut effects = Vec::new();
        for vblock in extent.blocks() {
            effects.push(match effect_on(extent, vblock, 0, 0) {
                Effect::Patch { start, end, .. } => (vblock, Effect::UnmapPart { start, end }),
                _ => (vblock, Effect::Unmap),
            });
        }
        let range = extent.blocks();
        let wide = Part {
            wide: Some((range.clone(), Effect::Unmap)),
            ..part(key, effects)
        };
        let what = format!(
            "deallocate {}..{} ({stability:?})",
            extent.offset,
            extent.end()
        );
        let from = self.model.borrow_mut().begin_read();
        let change = self.begin(what, vec![wide], is_stable(stability), false);
        let engine = self.engine.clone();
        let work = engine.deallocate(handle, extent.offset, extent.len, stability);
        let result = self.patiently(work).await;
        if let Some(result) = &result {
            self.count("deallocate", result);
            let is_full = matches!(result, Err(DvolError::NoSpace)) && !self.plan.may_fail();
            if is_full && self.parts_are_holes(key, extent, from) {
                self.fail("deallocating whole blocks and parts of holes needed space");
            }
        }
        self.model.borrow_mut().end_read(from);
        let lsns = |lsn: Lsn| Some(vec![lsn.0]);
        self.end(change, result.map(|r| r.map(lsns)), false, &[]);
    }

    /// True if no block that the extent has a part of was mapped at any time since `from`.
    fn parts_are_holes(&self, key: ObjectKey, extent: Extent, from: u64) -> bool {
        let model = self.model.borrow();
        let is_hole = |vblock| {
            let states = model.live(key, vblock, from);
            states.iter().all(|state| !state.value.mapped)
        };
        let is_part = |vblock: &u64| {
            let effect = effect_on(extent, *vblock, 0, 0);
            matches!(effect, Effect::Patch { .. })
        };
        extent.blocks().filter(is_part).all(is_hole)
    }

    pub(crate) async fn write_zeros(&mut self, key: ObjectKey) {
        let is_whole = self.rng.chance(0.7);
        let Some(extent) = self.extent(key, is_whole) else {
            return;
        };
        let stability = self.stability();
        self.write_zeros_to(key, extent, stability).await;
    }

    pub(crate) async fn write_zeros_to(
        &mut self,
        key: ObjectKey,
        extent: Extent,
        stability: Stability,
    ) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        if !self.is_idle(key, &extent.blocks()) {
            return self.read_extent(key, extent).await;
        }
        let effects = self.effects(extent, 0, 0);
        let wide = Part {
            // Keeps others away until it is done; every block has an effect of its own.
            wide: Some((extent.blocks(), Effect::Unmap)),
            ..part(key, effects)
        };
        let what = format!(
            "write zeros to {}..{} ({stability:?})",
            extent.offset,
            extent.end()
        );
        let change = self.begin(what, vec![wide], is_stable(stability), false);
        let engine = self.engine.clone();
        let work = engine.write_zeros(handle, extent.offset, extent.len, stability);
        let result = self.patiently(work).await;
        if let Some(result) = &result {
            self.count("write_zeros", result);
        }
        let lsns = |lsn: Lsn| Some(vec![lsn.0]);
        self.end(change, result.map(|r| r.map(lsns)), false, &[]);
    }

    /// Several changes at once, perhaps under conditions.
    pub(crate) async fn batch(&mut self) {
        let dvols = self.model.borrow().dvols(self.journal);
        let mut places = Vec::new();
        for _ in 0..1 + self.rng.below(5) {
            let key = dvols[self.rng.index(dvols.len())];
            let is_whole = self.rng.chance(0.7);
            let Some(extent) = self.extent(key, is_whole) else {
                continue;
            };
            let meta = match extent.is_whole() && self.rng.chance(0.2) {
                true => None,
                false => Some(self.rng.below(3)),
            };
            places.push((key, extent, meta));
        }
        let conditions = if self.rng.coin() {
            self.conditions()
        } else {
            Vec::new()
        };
        let stability = self.stability();
        self.batch_on(&places, conditions, stability).await;
    }

    /// Changes these places at once: writes with this metadata, or deallocates.
    pub(crate) async fn batch_on(
        &mut self,
        places: &[(ObjectKey, Extent, Option<u64>)],
        conditions: Vec<Condition>,
        stability: Stability,
    ) {
        let mut parts: Vec<Part> = Vec::new();
        let mut changes = Vec::new();
        let tag = self.model.borrow_mut().new_tag();
        for &(key, extent, meta) in places {
            let Some(handle) = self.handle(key) else {
                return;
            };
            let blocks = extent.blocks();
            let meets = |p: &Part| {
                p.object == key && p.effects.iter().any(|(vblock, _)| blocks.contains(vblock))
            };
            if !self.is_free(key, &blocks) || parts.iter().any(meets) {
                continue;
            }
            let (offset_bytes, len_bytes) = (extent.offset, extent.len);
            let effect = |vblock| match meta {
                Some(meta) => effect_on(extent, vblock, tag, meta),
                None => Effect::Unmap,
            };
            parts.push(part(key, blocks.map(|v| (v, effect(v))).collect()));
            changes.push(match meta {
                Some(0) if self.journals && extent.is_whole() => EngineChange::WriteJournaled {
                    handle,
                    offset_bytes,
                    data: self.data(extent, tag)[..].into(),
                },
                Some(meta) => EngineChange::Write {
                    handle,
                    offset_bytes,
                    data: self.data(extent, tag),
                    meta,
                },
                None => EngineChange::Deallocate {
                    handle,
                    offset_bytes,
                    len_bytes,
                },
            });
        }
        if changes.is_empty() {
            return;
        }
        let batch = Batch {
            conditions,
            changes,
        };
        self.commit(batch, parts, stability).await;
    }

    async fn commit(&mut self, batch: Batch, parts: Vec<Part>, stability: Stability) {
        let conditions = batch.conditions.clone();
        let places: Vec<String> = parts
            .iter()
            .map(|p| {
                let blocks: Vec<u64> = p.effects.iter().map(|(v, _)| *v).collect();
                format!(
                    "object {} blocks {:?}..={:?}",
                    p.object,
                    blocks.first(),
                    blocks.last()
                )
            })
            .collect();
        let what = format!("batch on {} ({stability:?})", places.join(", "));
        let from = self.model.borrow_mut().begin_read();
        let truth = self.truths(&conditions, from);
        let change = self.begin(what, parts, is_stable(stability), true);
        let engine = self.engine.clone();
        let is_ahead =
            self.journals && is_stable(stability) && !batch.changes.len().is_multiple_of(2);
        let result = match is_ahead {
            true => self.patiently(engine.commit_ahead(batch)).await,
            false => self.patiently(engine.commit(batch, stability)).await,
        };
        if let Some(result) = &result {
            let name = if is_ahead { "batch ahead" } else { "batch" };
            self.count(name, result);
            if let Some(truth) = truth {
                self.judge_conditions("batch", truth, 1, result.as_ref().err().copied());
            }
        }
        let result = match result {
            // Judged above.
            Some(Err(
                DvolError::ConditionFailed(_)
                | DvolError::NotEqual
                | DvolError::StaleEpoch
                | DvolError::HistoryForgotten,
            )) => {
                self.model.borrow_mut().end(
                    change.op,
                    &change.parts,
                    &super::model::Answer::Refused,
                );
                self.model.borrow_mut().end_read(from);
                return;
            }
            other => other.map(|r| r.map(|lsns| Some(lsns.iter().map(|l| l.0).collect()))),
        };
        let also = self.places(&conditions);
        self.end(change, result, true, &also);
        self.model.borrow_mut().end_read(from);
    }

    pub(crate) async fn compare_and_swap(&mut self, key: ObjectKey) {
        let Some(mut extent) = self.extent(key, false) else {
            return;
        };
        extent.len = extent.len.min(1 + self.rng.below(8192));
        let hits = self.rng.chance(0.7);
        let stability = self.stability();
        self.swap_at(key, extent, hits, stability).await;
    }

    /// Compares and swaps; `hits`: with what is expected to be there.
    pub(crate) async fn swap_at(
        &mut self,
        key: ObjectKey,
        extent: Extent,
        hits: bool,
        stability: Stability,
    ) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        if !self.is_idle(key, &extent.blocks()) {
            return self.read_extent(key, extent).await;
        }
        let from = self.model.borrow_mut().begin_read();
        let expected = match (hits, self.expected(key, extent, from)) {
            (true, Some(bytes)) => bytes,
            _ => {
                let tag = self.model.borrow_mut().new_tag();
                self.data(extent, tag)
            }
        };
        let tag = self.model.borrow_mut().new_tag();
        let may = self.may_equal(key, extent.offset, &expected, from);
        let effects = extent
            .blocks()
            .map(|vblock| (vblock, effect_on(extent, vblock, tag, 0)))
            .collect();
        let what = format!(
            "swap {tag} at {}..{} ({stability:?})",
            extent.offset,
            extent.end()
        );
        let change = self.begin(what, vec![part(key, effects)], is_stable(stability), true);
        let new = self.data(extent, tag);
        let engine = self.engine.clone();
        let work = engine.compare_and_swap(handle, extent.offset, expected, new, stability);
        let result = self.patiently(work).await;
        self.model.borrow_mut().end_read(from);
        if let Some(result) = &result {
            self.count("compare_and_swap", result);
        }
        match result {
            Some(Err(DvolError::NotEqual)) => {
                let refused = super::model::Answer::Refused;
                self.model
                    .borrow_mut()
                    .end(change.op, &change.parts, &refused);
                // Others may have come in between, so only the sure case is judged.
                if may == Some((true, false)) && !self.has_broken() {
                    self.fail("a compare-and-swap found something else than what was there");
                }
            }
            Some(Ok(lsn)) => {
                if may.is_some_and(|(equal, _)| !equal) && !self.has_broken() {
                    self.fail("a compare-and-swap took what was not there for what was");
                }
                self.end(change, Some(Ok(Some(vec![lsn.0]))), true, &[]);
            }
            other => {
                self.end(
                    change,
                    other.map(|r| r.map(|lsn| Some(vec![lsn.0]))),
                    true,
                    &[],
                );
            }
        }
    }

    pub(crate) async fn swap_race(&mut self, key: ObjectKey) {
        if let Some(extent) = self.extent(key, true) {
            let len = extent.len.min(2 * BLOCK_SIZE);
            let stability = self.stability();
            self.swap_twice(key, Extent { len, ..extent }, stability)
                .await;
        }
    }

    /// Two compare-and-swaps at a time that expect the same: one of them must be too late.
    pub(crate) async fn swap_twice(
        &mut self,
        key: ObjectKey,
        extent: Extent,
        stability: Stability,
    ) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        if !self.is_idle(key, &extent.blocks()) {
            return self.read_extent(key, extent).await;
        }
        let from = self.model.borrow_mut().begin_read();
        let expected = self.expected(key, extent, from);
        self.model.borrow_mut().end_read(from);
        let Some(expected) = expected else { return };
        let mut changes = Vec::new();
        let mut swaps = Vec::new();
        for _ in 0..2 {
            let tag = self.model.borrow_mut().new_tag();
            let effects = self.effects(extent, tag, 0);
            let (start, end) = (extent.offset, extent.end());
            let what = format!("swap {tag}, one of two, at {start}..{end} ({stability:?})");
            changes.push(self.begin(what, vec![part(key, effects)], is_stable(stability), true));
            let (engine, expected) = (self.engine.clone(), expected.clone());
            let (model, new) = (self.model.clone(), self.data(extent, tag));
            swaps.push(async move {
                let swap = engine.compare_and_swap(handle, extent.offset, expected, new, stability);
                let result = swap.await;
                // The other one may take long: by then this may not be so any more.
                (result, model.borrow().objects[key].read_only.may_be(&true))
            });
        }
        let results = flagstone_device::engine::join_all(swaps).await;
        let won = results.iter().filter(|(result, _)| result.is_ok()).count();
        for (change, (result, was_read_only)) in changes.into_iter().zip(results) {
            self.count("compare_and_swap of two", &result);
            let is_refused = match result {
                Err(DvolError::NotEqual) => true,
                Err(DvolError::ReadOnly) => was_read_only,
                _ => false,
            };
            match result {
                Err(_) if is_refused => {
                    let refused = super::model::Answer::Refused;
                    let mut model = self.model.borrow_mut();
                    model.end(change.op, &change.parts, &refused);
                }
                other => {
                    self.end(change, Some(other.map(|l| Some(vec![l.0]))), true, &[]);
                }
            }
        }
        if won > 1 && !self.has_broken() {
            self.fail("two compare-and-swaps that expected the same both found it");
        }
    }

    /// Bytes that an extent may hold now, if that is certain enough to be expected.
    pub(crate) fn expected(&self, key: ObjectKey, extent: Extent, from: u64) -> Option<IoBuf> {
        let mut buf = self.platform.buffers().take(extent.len as usize);
        let model = self.model.borrow();
        for vblock in extent.blocks() {
            let at = vblock * BLOCK_SIZE;
            let states = model.live(key, vblock, from);
            let bytes = states.first()?.value.content.bytes(at);
            let (start, end) = (extent.offset.max(at), extent.end().min(at + BLOCK_SIZE));
            let to = (start - extent.offset) as usize..(end - extent.offset) as usize;
            buf.bytes_mut()[to].copy_from_slice(&bytes[(start - at) as usize..(end - at) as usize]);
        }
        Some(buf)
    }

    /// Whether what is there may be equal to `bytes`, and whether it may be something else. `None`:
    /// nobody can say.
    pub(crate) fn may_equal(
        &self,
        key: ObjectKey,
        offset: u64,
        bytes: &[u8],
        from: u64,
    ) -> Option<(bool, bool)> {
        let model = self.model.borrow();
        if model.loose {
            return None;
        }
        let (mut may_all, mut may_differ) = (true, false);
        let mut at = offset;
        let end = offset + bytes.len() as u64;
        while at < end {
            let next = ((at / BLOCK_SIZE + 1) * BLOCK_SIZE).min(end);
            let here = &bytes[(at - offset) as usize..(next - offset) as usize];
            let states = model.live(key, at / BLOCK_SIZE, from);
            let fits = |state: &super::history::State| super::model::holds(&state.value, at, here);
            may_all &= states.iter().any(fits);
            may_differ |= !states.iter().all(fits);
            at = next;
        }
        Some((may_all, may_differ))
    }

    /// A few conditions, some of which may not hold.
    pub(crate) fn conditions(&mut self) -> Vec<Condition> {
        let mut conditions = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let Some(key) = self.any_object() else {
                continue;
            };
            let Some(handle) = self.handle(key) else {
                continue;
            };
            let is_whole = self.rng.coin();
            let Some(extent) = self.extent(key, is_whole) else {
                continue;
            };
            match self.rng.below(4) {
                0..2 => {
                    let told = self.model.borrow().objects[key].lsn_told;
                    let back = self.rng.below(40);
                    conditions.push(Condition::UnchangedSince {
                        handle,
                        offset_bytes: extent.offset,
                        len_bytes: extent.len,
                        lsn: Lsn(told.saturating_sub(back)),
                    });
                }
                2 => {
                    let from = self.model.borrow_mut().begin_read();
                    if let Some(bytes) = self.expected(key, extent, from) {
                        let offset_bytes = extent.offset;
                        conditions.push(Condition::Equals {
                            handle,
                            offset_bytes,
                            bytes,
                        });
                    }
                    self.model.borrow_mut().end_read(from);
                }
                _ => {
                    let now = self.model.borrow().objects[key].epoch.now;
                    let epoch = Epoch((now + 1).saturating_sub(self.rng.below(2) as u32));
                    conditions.push(Condition::Epoch { handle, epoch });
                }
            }
        }
        conditions
    }
}
