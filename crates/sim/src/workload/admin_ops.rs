//! What clients do to whole dvols, and to names of snapshots.
//!
//! One such operation at a time per dvol or snapshot (others wait their turn by choosing something
//! else), but beside reads and writes.

use flagstone_device::engine::{CreateDvol, DvolError, Handle};
use flagstone_types::{BLOCK_SIZE, DvolId, Epoch};

use super::client::{Client, Extent};
use super::content::Effect;
use super::described::ATTRIBUTES_BLOCK;
use super::history::ObjectKey;
use super::model::{Field, Life, Model, Object, Part};

/// Dvols of one journal, at most.
const DVOLS_MAX: usize = 6;

/// Names that dvols and snapshots take turns to have.
const NAMES: u64 = 12;

impl Client {
    /// Starts an operation on whole objects, if none is under way on any of them.
    pub(crate) fn occupy(&self, keys: &[ObjectKey]) -> bool {
        let mut model = self.model.borrow_mut();
        if keys
            .iter()
            .any(|&key| model.objects[key].busy || model.objects[key].life != Life::Here)
        {
            return false;
        }
        for &key in keys {
            model.objects[key].busy = true;
        }
        model.admins += 1;
        true
    }

    pub(crate) fn leave(&self, keys: &[ObjectKey]) {
        for &key in keys {
            self.model.borrow_mut().objects[key].busy = false;
        }
    }

    /// A name that no dvol of the journal (or snapshot of the dvol) has or may have. With the key
    /// of one that has it if there is none left or the seed wants a clash.
    pub(crate) fn name(&mut self, of: Option<ObjectKey>) -> (String, bool) {
        let letter = if of.is_some() { 's' } else { 'v' };
        let name = format!("{letter}{}", self.rng.below(NAMES));
        let model = self.model.borrow();
        let taken = model.select(|o| {
            o.of == of && o.journal == self.journal && o.life != Life::Gone && o.name.may_be(&name)
        });
        (name, !taken.is_empty())
    }

    /// Judges an error of an operation on whole objects. True if the operation may still turn up.
    pub(crate) fn admin_error(
        &mut self,
        what: &str,
        key: Option<ObjectKey>,
        error: DvolError,
    ) -> bool {
        match key {
            Some(key) => self.judge(what, &[(key, 0)], error),
            None => {
                let is_fine = match error {
                    DvolError::Fenced => self.plan.may_fail(),
                    DvolError::Stopping => self.model.borrow().stopping,
                    DvolError::Device => self.plan.may_fail(),
                    _ => false,
                };
                self.is_over |= matches!(error, DvolError::Fenced | DvolError::Stopping);
                if !is_fine && !self.has_broken() {
                    self.fail(format!("{what} failed for no reason: {error}"));
                }
            }
        }
        matches!(
            error,
            DvolError::Fenced | DvolError::Stopping | DvolError::Device
        )
    }

    pub(crate) async fn create(&mut self) {
        if self.model.borrow().dvols(self.journal).len() >= DVOLS_MAX {
            return;
        }
        let (name, is_taken) = self.name(None);
        let size_bytes = self.dvol_size();
        let reserved_bytes = if self.rng.chance(0.15) {
            self.rng.below(64) * BLOCK_SIZE
        } else {
            0
        };
        self.create_named(name, size_bytes, reserved_bytes, is_taken)
            .await;
    }

    fn new_id(&mut self) -> DvolId {
        DvolId(u128::from(self.rng.next_u64()) << 64 | u128::from(self.rng.next_u64()))
    }

    pub(crate) async fn create_named(
        &mut self,
        name: String,
        size_bytes: u64,
        reserved_bytes: u64,
        is_taken: bool,
    ) -> Option<ObjectKey> {
        let id = self.new_id();
        let mut object = Object::new(self.journal, id, &name, size_bytes);
        object.reserved = Field::new(reserved_bytes);
        // Some have attributes from the beginning, and others none.
        let attributes = [id.0 as u8 % 3; _];
        object.attributes = Field::new(attributes);
        let new = CreateDvol {
            name,
            id: Some(id),
            size_bytes,
            reserved_bytes,
        };
        let work = async |client: &mut Client| {
            if attributes[0] == 0 {
                return client.engine.create(new).await;
            }
            let created = client.engine.create_with(new, attributes).await;
            client.count("create_with", &created);
            created
        };
        self.make(object, None, is_taken, work).await
    }

    fn dvol_size(&mut self) -> u64 {
        match self.rng.below(4) {
            0 => (1 + self.rng.below(64)) * BLOCK_SIZE,
            1 => 1 + self.rng.below(4 << 20),
            2 => 8 << 20,
            _ => 1 << 40,
        }
    }

    /// Has something made that the model then knows. Its blocks are those of `from`.
    async fn make(
        &mut self,
        mut object: Object,
        from: Option<ObjectKey>,
        may_clash: bool,
        work: impl AsyncFnOnce(&mut Client) -> Result<Handle, DvolError>,
    ) -> Option<ObjectKey> {
        let what = if from.is_some() { "clone" } else { "create" };
        let (key, begun) = {
            let mut model = self.model.borrow_mut();
            object.life = Life::Coming { from };
            model.admins += 1;
            (model.add(object, from), model.begin_read())
        };
        let result = work(self).await;
        self.count(what, &result);
        match result {
            Ok(handle) => {
                let mut model = self.model.borrow_mut();
                if let Some(from) = from {
                    let values = model.values_since(from, begun);
                    model.hand_over(from, key, values);
                }
                let object = &mut model.objects[key];
                object.handle = Some(handle);
                object.life = Life::Here;
                drop(model);
                if let Ok(lsn) = self.engine.lsn_of(handle) {
                    self.model.borrow_mut().objects[key].tell_lsn(lsn.0);
                }
            }
            Err(DvolError::AlreadyExists) if may_clash => self.give_up(&[key]),
            Err(DvolError::NoSpace) if self.is_short_of_space() => self.give_up(&[key]),
            Err(error) => {
                if !self.admin_error(what, None, error) {
                    self.give_up(&[key]);
                }
            }
        }
        self.model.borrow_mut().end_read(begun);
        result.ok().map(|_| key)
    }

    /// True if an error that says so is believable.
    pub(crate) fn is_short_of_space(&self) -> bool {
        let space = self.engine.space();
        self.plan.may_fail() || space.open_bytes < space.kept_bytes + (4 << 20)
    }

    pub(crate) async fn clone_any(&mut self) {
        if self.model.borrow().dvols(self.journal).len() >= DVOLS_MAX {
            return;
        }
        let Some(source) = self.any_object() else {
            return;
        };
        let (name, is_taken) = self.name(None);
        let asked = if self.rng.coin() { 0 } else { self.dvol_size() };
        self.clone_named(source, name, asked, is_taken).await;
    }

    pub(crate) async fn clone_named(
        &mut self,
        source: ObjectKey,
        name: String,
        asked: u64,
        is_taken: bool,
    ) -> Option<ObjectKey> {
        let handle = self.handle(source)?;
        if !self.occupy(&[source]) {
            return None;
        }
        let id = self.new_id();
        let size = self.model.borrow().objects[source].size.now;
        let mut object = Object::new(self.journal, id, &name, size.max(asked));
        object.epoch = Field::new(self.model.borrow().objects[source].epoch.now);
        let new = CreateDvol {
            name,
            id: Some(id),
            size_bytes: asked,
            reserved_bytes: 0,
        };
        let work = async |client: &mut Client| client.engine.clone_of(handle, new).await;
        let made = self.make(object, Some(source), is_taken, work).await;
        self.leave(&[source]);
        made
    }

    pub(crate) fn give_up(&self, keys: &[ObjectKey]) {
        for &key in keys {
            self.model.borrow_mut().objects[key].life = Life::Gone;
        }
    }

    pub(crate) fn end_delete(
        &mut self,
        what: &str,
        keys: &[ObjectKey],
        result: Result<(), DvolError>,
    ) {
        let life = match result {
            Ok(()) => Life::Gone,
            Err(error) => match self.admin_error(what, Some(keys[0]), error) {
                true => Life::Going,
                false => Life::Here,
            },
        };
        for &key in keys {
            self.model.borrow_mut().objects[key].life = life;
        }
    }

    pub(crate) async fn delete(&mut self, key: ObjectKey) {
        let with_snapshots = self.rng.coin();
        self.delete_with(key, with_snapshots).await;
    }

    /// Deletes a dvol and creates another one, which then gets its slot, as likely as not.
    pub(crate) async fn replace(&mut self, key: ObjectKey) {
        self.delete_with(key, true).await;
        self.wait_until_reaped().await;
        if !self.is_over {
            self.create().await;
        }
    }

    pub(crate) async fn delete_with(&mut self, key: ObjectKey, with_snapshots: bool) {
        let layers = self.model.borrow().layers_of(key);
        let Some(handle) = self.handle(key) else {
            return;
        };
        let mut all = vec![key];
        all.extend(&layers);
        if !self.occupy(&all) {
            return;
        }
        if !layers.is_empty() && !with_snapshots {
            let result = self.engine.delete(handle, false).await;
            self.count("delete", &result);
            match result {
                Err(DvolError::Busy) => {}
                Ok(()) => self.fail("a dvol with snapshots was deleted without being told to"),
                Err(error) => drop(self.admin_error("delete", Some(key), error)),
            }
            return self.leave(&all);
        }
        for &key in &all {
            self.model.borrow_mut().objects[key].life = Life::Going;
        }
        let result = self.engine.delete(handle, with_snapshots).await;
        self.count("delete", &result);
        self.end_delete("delete", &all, result);
        self.leave(&all);
    }

    pub(crate) async fn resize(&mut self, key: ObjectKey) {
        let old = self.model.borrow().objects[key].size.now;
        let new = match self.rng.below(3) {
            0 => self.rng.below(old + 1),
            1 => old.saturating_add(self.rng.below(1 << 20)),
            _ => self.dvol_size(),
        };
        self.resize_to(key, new).await;
    }

    pub(crate) async fn resize_to(&mut self, key: ObjectKey, new: u64) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        if !self.occupy(&[key]) {
            return;
        }
        let old = self.model.borrow().objects[key].size.now;
        let part = match new < old {
            true => Some(self.shrink_part(key, new, old)),
            false => self.model.borrow().grow_part(key, old),
        };
        let parts = part.into_iter().collect();
        self.model.borrow_mut().objects[key].size.begin(new);
        let change = self.begin(format!("resize from {old} to {new}"), parts, true, false);
        let result = self.engine.resize(handle, new).await;
        self.count("resize", &result);
        let is_open = result.is_err();
        let is_uncertain = matches!(result, Err(DvolError::Fenced | DvolError::Stopping))
            || is_open && self.is_over;
        if let Err(error) = result {
            let object = change.parts.is_empty().then_some(key);
            if let Some(object) = object {
                self.judge("resize", &[(object, 0)], error);
            }
        }
        self.end(change, Some(result.map(|()| None)), false, &[]);
        if is_uncertain {
            // Both sizes stay possible until the restart: the engine may say the new one already
            // while the record of it never arrives.
        } else if is_open {
            // In parts: the size may be the new one.
            if let Ok(size) = self.engine.size_of(handle) {
                self.model.borrow_mut().objects[key].size = Field::new(size);
            }
        } else {
            self.model.borrow_mut().objects[key].size.end(true);
        }
        self.leave(&[key]);
    }

    fn shrink_part(&self, key: ObjectKey, new: u64, old: u64) -> Part {
        let mut effects = Vec::new();
        if !new.is_multiple_of(BLOCK_SIZE) {
            let effect = Effect::UnmapPart {
                start: (new % BLOCK_SIZE) as u16,
                end: BLOCK_SIZE as u16,
            };
            effects.push((new / BLOCK_SIZE, effect));
        }
        let old_end = old.div_ceil(BLOCK_SIZE);
        let is_clear = self.model.borrow().left_behind(key, old_end).is_empty();
        let end = if is_clear { old_end } else { ATTRIBUTES_BLOCK };
        let gone = new.div_ceil(BLOCK_SIZE)..end;
        let wide = (!gone.is_empty()).then_some((gone, Effect::Unmap));
        Part {
            object: key,
            effects,
            wide,
            closes: true,
            lsn_before: 0,
        }
    }

    pub(crate) async fn rename(&mut self, dvol: ObjectKey) {
        let layers = self.model.borrow().layers_of(dvol);
        let key = match layers.first() {
            Some(&layer) if self.rng.coin() => layer,
            _ => dvol,
        };
        let of = self.model.borrow().objects[key].of;
        let (name, is_taken) = self.name(of);
        if !is_taken {
            self.rename_to(key, name).await;
        }
    }

    pub(crate) async fn rename_to(&mut self, key: ObjectKey, name: String) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        if !self.occupy(&[key]) {
            return;
        }
        self.model.borrow_mut().objects[key]
            .name
            .begin(name.clone());
        let result = self.engine.rename(handle, &name).await;
        self.count("rename", &result);
        let uncertain = match result {
            Err(error) => self.admin_error("rename", Some(key), error),
            Ok(()) => false,
        };
        if !uncertain {
            self.model.borrow_mut().objects[key]
                .name
                .end(result.is_ok());
        }
        self.leave(&[key]);
    }

    /// Sets what can be set: the reservation, the epoch, read-only.
    pub(crate) async fn settings(&mut self, key: ObjectKey) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        if !self.occupy(&[key]) {
            return;
        }
        match self.rng.below(4) {
            0 => {
                let bytes = self.rng.below(128) * BLOCK_SIZE;
                self.set_reserved(key, handle, bytes).await;
            }
            1 | 2 => {
                let more = self.rng.below(3) as u32;
                self.set_epoch(key, handle, more).await;
            }
            _ => self.set_read_only(key, handle).await,
        }
        self.leave(&[key]);
    }

    pub(crate) async fn set_reserved(&mut self, key: ObjectKey, handle: Handle, bytes: u64) {
        self.model.borrow_mut().objects[key].reserved.begin(bytes);
        let result = self.engine.set_reserved(handle, bytes).await;
        self.count("set_reserved", &result);
        let uncertain = match result {
            Err(DvolError::NoSpace) if self.is_short_of_space() => false,
            Err(error) => self.admin_error("set_reserved", Some(key), error),
            Ok(()) => false,
        };
        if !uncertain {
            self.model.borrow_mut().objects[key]
                .reserved
                .end(result.is_ok());
        }
    }

    pub(crate) async fn set_epoch(&mut self, key: ObjectKey, handle: Handle, more: u32) {
        let now = self.model.borrow().objects[key].epoch.now;
        let epoch = now + more;
        self.model.borrow_mut().objects[key].epoch.begin(epoch);
        let result = self.engine.set_epoch(handle, Epoch(epoch)).await;
        self.count("set_epoch", &result);
        let uncertain = match result {
            Err(error) => self.admin_error("set_epoch", Some(key), error),
            Ok(()) => false,
        };
        if !uncertain {
            self.model.borrow_mut().objects[key]
                .epoch
                .end(result.is_ok());
        }
        if result.is_ok() && epoch > 0 && !self.has_broken() {
            let before = self.engine.set_epoch(handle, Epoch(epoch - 1)).await;
            if before == Ok(()) {
                self.fail("an older epoch was accepted");
            }
        }
    }

    pub(crate) async fn set_attributes(&mut self, key: ObjectKey, handle: Handle, byte: u8) {
        let attributes = [byte; _];
        self.model.borrow_mut().objects[key]
            .attributes
            .begin(attributes);
        let result = self.engine.set_attributes(handle, attributes).await;
        self.count("set_attributes", &result);
        let uncertain = match result {
            Err(error) => self.admin_error("set_attributes", Some(key), error),
            Ok(()) => false,
        };
        if !uncertain {
            self.model.borrow_mut().objects[key]
                .attributes
                .end(result.is_ok());
        }
    }

    pub(crate) async fn set_read_only(&mut self, key: ObjectKey, handle: Handle) {
        self.model.borrow_mut().objects[key].read_only.begin(true);
        let result = self.engine.set_read_only(handle, true).await;
        self.count("set_read_only", &result);
        if let Err(error) = result {
            self.admin_error("set_read_only", Some(key), error);
            return;
        }
        self.model.borrow_mut().objects[key].read_only.end(true);
        let extent = Extent { offset: 0, len: 1 };
        let data = self.data(extent, 1);
        let stability = self.stability();
        let write = self.engine.write(handle, 0, data, stability).await;
        if write.is_ok() {
            self.fail("a read-only dvol was written to");
        }
        self.model.borrow_mut().objects[key].read_only.begin(false);
        let result = self.engine.set_read_only(handle, false).await;
        match result {
            Ok(()) => self.model.borrow_mut().objects[key].read_only.end(true),
            Err(error) => drop(self.admin_error("set_read_only", Some(key), error)),
        }
    }
}

impl Model {
    /// Growing, or setting the same size, does what a shrinking that broke off has left undone behind
    /// the old end. `None` if nothing can have been left there.
    fn grow_part(&self, key: ObjectKey, old: u64) -> Option<Part> {
        let last = old / BLOCK_SIZE;
        let behind = old.div_ceil(BLOCK_SIZE)..ATTRIBUTES_BLOCK;
        let mut effects = Vec::new();
        if last < behind.start && self.objects[key].blocks.contains_key(&last) {
            effects.push((last, Effect::ClearBehind { end_bytes: old }));
        }
        let unmap = Effect::ClearBehind {
            end_bytes: behind.start * BLOCK_SIZE,
        };
        let left = self.left_behind(key, behind.start);
        let wide = (!left.is_empty()).then_some((behind, unmap.clone()));
        effects.extend(left.into_iter().map(|vblock| (vblock, unmap.clone())));
        (!effects.is_empty()).then_some(Part {
            object: key,
            effects,
            wide,
            closes: true,
            lsn_before: 0,
        })
    }

    /// Blocks from `end` on that may take space, though the dvol ends before them.
    fn left_behind(&self, key: ObjectKey, end: u64) -> Vec<u64> {
        let known = self.objects[key].blocks.range(end..ATTRIBUTES_BLOCK);
        let may_be_mapped = |vblock: &u64| {
            let states = self.live(key, *vblock, u64::MAX);
            states.iter().any(|state| state.value.mapped)
        };
        known
            .map(|(&vblock, _)| vblock)
            .filter(may_be_mapped)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::content::{Content, Span, Value};
    use super::super::history::History;
    use super::super::model::Answer;
    use super::*;

    const END: u64 = 3 * BLOCK_SIZE + 204;

    fn written(tag: u64) -> Value {
        let lsn = Span::exactly(8);
        let tag = Effect::Whole { tag, meta: 0 };
        tag.apply(&Value::untouched(), lsn).remove(0)
    }

    /// What block `vblock` of a dvol that ends at [`END`] is after growing, if it was one of `base`
    /// before; as long as that is under way, too, if not `done`.
    fn grown(vblock: u64, base: Vec<Value>, done: bool) -> Vec<Value> {
        let mut model = Model::default();
        let mut object = Object::new(0, DvolId(1), "v", END);
        object.blocks.insert(vblock, History::of(base));
        let key = model.add(object, None);
        let part = model.grow_part(key, END);
        let parts: Vec<Part> = part.into_iter().collect();
        let op = model.begin("grow".to_owned(), &parts, true, false);
        if done {
            let answer = Answer::Done(vec![Span { low: 8, high: 9 }; parts.len()]);
            model.end(op, &parts, &answer);
        }
        let states = model.live(key, vblock, u64::MAX);
        states.into_iter().map(|state| state.value).collect()
    }

    /// Seed 1218: a power loss came between the record of a smaller size and the zeros behind it.
    #[test]
    fn growing_clears_what_a_shrinking_left_in_the_last_block() {
        let cleared = Content::whole(120).patched(204, 4096, 0);
        let after = grown(3, vec![written(120)], true);
        assert_eq!(after.len(), 1);
        assert_eq!(after[0].content, cleared);
        assert!(after[0].lsn.low == 8 && after[0].lsn.high == 9 && after[0].mapped);
        let during = grown(3, vec![written(120)], false);
        assert_eq!(during.len(), 2, "either");
        assert!(during.contains(&written(120)));
    }

    #[test]
    fn growing_changes_nothing_where_nothing_was_left() {
        let clear = Value {
            content: Content::whole(120).patched(204, 4096, 0),
            ..written(120)
        };
        for last in [clear, Value::untouched()] {
            assert_eq!(grown(3, vec![last.clone()], true), [last]);
        }
        let before = written(120);
        assert_eq!(grown(2, vec![before.clone()], true), [before]);
        let hole = Value::untouched();
        assert_eq!(grown(4, vec![hole.clone()], true), [hole]);
    }

    #[test]
    fn growing_unmaps_what_a_shrinking_left_behind_the_last_block() {
        let may_be = vec![Value::untouched(), written(120)];
        let after = grown(4, may_be, true);
        assert!(!after.is_empty() && after.iter().all(|v| !v.mapped));
        assert!(after.iter().all(|v| v.content == Content::default()));
    }
}
