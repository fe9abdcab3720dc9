//! What clients ask without changing anything: reads, what is allocated, what has changed.

use flagstone_device::engine::{BlockMeta, Condition, DvolError, Handle, Piece, Pieces};
use flagstone_types::checksum::crc32c;
use flagstone_types::{BLOCK_SIZE, Lsn};

use super::client::{Client, Extent};
use super::history::ObjectKey;
use super::model::{Life, show_lsn};

/// What of some conditions may be true when they are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truth {
    /// All of them may hold.
    pub(crate) may_hold: bool,
    /// One of them may not hold, by the error that says so.
    pub(crate) may_be_changed: bool,
    pub(crate) may_differ: bool,
    pub(crate) may_be_stale: bool,
    pub(crate) may_be_forgotten: bool,
    /// When that was.
    moment: (usize, usize),
}

/// The bytes of what a read returned.
pub(crate) fn bytes_of(pieces: &Pieces) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => {
                if let Some(crc) = data.crc32c() {
                    assert_eq!(crc, crc32c(data), "the CRC that comes with bytes is theirs");
                }
                bytes.extend_from_slice(data);
            }
            Piece::Zeros(len) => bytes.resize(bytes.len() + *len as usize, 0),
        }
    }
    bytes
}

impl Client {
    pub(crate) async fn read_any(&mut self) {
        let Some(key) = self.any_object() else { return };
        let is_whole = self.rng.chance(0.6);
        let Some(extent) = self.extent(key, is_whole) else {
            return;
        };
        self.read_extent(key, extent).await;
    }

    pub(crate) async fn read_extent(&mut self, key: ObjectKey, extent: Extent) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        let from = self.model.borrow_mut().begin_read();
        let engine = self.engine.clone();
        let result = self
            .patiently(engine.read(handle, extent.offset, extent.len))
            .await;
        if let Some(result) = &result {
            self.count("read", result);
        }
        match result {
            None => {}
            Some(Ok(pieces)) => self.check_bytes(key, extent, &pieces, None, from, false),
            Some(Err(error)) => self.judge("read", &[(key, extent.end())], error),
        }
        self.model.borrow_mut().end_read(from);
    }

    fn check_bytes(
        &self,
        key: ObjectKey,
        extent: Extent,
        pieces: &Pieces,
        metas: Option<&[BlockMeta]>,
        from: u64,
        at_once: bool,
    ) {
        let bytes = bytes_of(pieces);
        if bytes.len() as u64 != extent.len {
            return self.fail(format!(
                "a read of {} bytes gave {}",
                extent.len,
                bytes.len()
            ));
        }
        self.has_broken();
        let mut model = self.model.borrow_mut();
        // What a deleted dvol held is nobody's business any more.
        if model.objects[key].life == Life::Here {
            model.check_read(key, extent.offset, &bytes, metas, from, at_once);
        }
    }

    pub(crate) async fn read_ex(&mut self) {
        let Some(key) = self.any_object() else { return };
        if let Some(extent) = self.extent(key, true) {
            self.read_ex_of(key, extent).await;
        }
    }

    /// Reads with metadata.
    pub(crate) async fn read_ex_of(&mut self, key: ObjectKey, extent: Extent) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        let from = self.model.borrow_mut().begin_read();
        let result = self.engine.read_ex(handle, extent.offset, extent.len).await;
        self.count("read_ex", &result);
        match result {
            Ok((pieces, metas)) => {
                if metas.len() != extent.blocks().count() {
                    self.fail("read_ex did not give the metadata of each block");
                }
                self.check_bytes(key, extent, &pieces, Some(&metas), from, true);
            }
            Err(error) => self.judge("read_ex", &[(key, extent.end())], error),
        }
        self.model.borrow_mut().end_read(from);
    }

    pub(crate) async fn read_if(&mut self) {
        let Some(key) = self.any_object() else { return };
        let mut extents = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let is_whole = self.rng.coin();
            extents.extend(self.extent(key, is_whole));
        }
        let conditions = self.conditions();
        self.read_if_of(key, extents, conditions).await;
    }

    /// Reads in one instant, if conditions hold.
    pub(crate) async fn read_if_of(
        &mut self,
        key: ObjectKey,
        extents: Vec<Extent>,
        conditions: Vec<Condition>,
    ) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        let from = self.model.borrow_mut().begin_read();
        let truth = self.truths(&conditions, from);
        let ranges: Vec<(Handle, u64, u64)> =
            extents.iter().map(|e| (handle, e.offset, e.len)).collect();
        let looked_at = conditions.clone();
        let result = self.engine.read_if(conditions, &ranges).await;
        self.count("read_if", &result);
        if let Some(truth) = truth {
            self.judge_conditions("read_if", truth, 0, result.as_ref().err().copied());
        }
        match result {
            Ok(all) => {
                for (extent, pieces) in extents.iter().zip(&all) {
                    self.check_bytes(key, *extent, pieces, None, from, true);
                }
            }
            Err(
                DvolError::ConditionFailed(_)
                | DvolError::NotEqual
                | DvolError::StaleEpoch
                | DvolError::HistoryForgotten,
            ) => {}
            Err(error) => {
                let end = extents.iter().map(|e| e.end()).max().unwrap_or(0);
                let mut places = self.places(&looked_at);
                places.push((key, end));
                self.judge("read_if", &places, error);
            }
        }
        self.model.borrow_mut().end_read(from);
    }

    /// What the model knows now about conditions. `None`: something is under way, so nothing can be
    /// said.
    pub(crate) fn truths(&self, conditions: &[Condition], from: u64) -> Option<Truth> {
        let moment = self.model.borrow().calm_moment(self.journal)?;
        let mut truth = Truth {
            moment,
            may_hold: true,
            may_be_changed: false,
            may_differ: false,
            may_be_stale: false,
            may_be_forgotten: false,
        };
        for condition in conditions {
            match condition {
                Condition::UnchangedSince {
                    handle,
                    offset_bytes,
                    len_bytes,
                    lsn,
                } => {
                    let key = self.key_of(*handle)?;
                    let extent = Extent {
                        offset: *offset_bytes,
                        len: *len_bytes,
                    };
                    let has_gap = self.model.borrow().objects[key].has_gap;
                    truth.may_be_forgotten |= has_gap || self.plan.forgets();
                    let (mut may_hold, mut may_fail) = (true, false);
                    for vblock in extent.blocks() {
                        let (changed, unchanged) = self.may_have_changed(key, vblock, lsn.0, from);
                        may_hold &= unchanged;
                        may_fail |= changed;
                    }
                    truth.may_hold &= may_hold;
                    truth.may_be_changed |= may_fail;
                }
                Condition::Equals {
                    handle,
                    offset_bytes,
                    bytes,
                } => {
                    let key = self.key_of(*handle)?;
                    let (may_hold, may_fail) = self.may_equal(key, *offset_bytes, bytes, from)?;
                    truth.may_hold &= may_hold;
                    truth.may_differ |= may_fail;
                }
                Condition::Epoch { handle, epoch } => {
                    let model = self.model.borrow();
                    let key = self.key_of(*handle)?;
                    let field = &model.objects[key].epoch;
                    truth.may_hold &= field.candidates().any(|&e| e <= epoch.0);
                    truth.may_be_stale |= field.candidates().any(|&e| e > epoch.0);
                }
            }
        }
        Some(truth)
    }

    /// What conditions look at.
    pub(crate) fn places(&self, conditions: &[Condition]) -> Vec<(ObjectKey, u64)> {
        let place = |condition: &Condition| {
            let (handle, end) = match condition {
                Condition::UnchangedSince {
                    handle,
                    offset_bytes,
                    len_bytes,
                    ..
                } => (handle, offset_bytes + len_bytes),
                Condition::Equals {
                    handle,
                    offset_bytes,
                    bytes,
                } => (handle, offset_bytes + bytes.len() as u64),
                Condition::Epoch { handle, .. } => (handle, 0),
            };
            // Deleted ones are looked for as well: they are a reason to fail.
            Some((self.key_of(*handle)?, end))
        };
        conditions.iter().filter_map(place).collect()
    }

    fn key_of(&self, handle: Handle) -> Option<ObjectKey> {
        let model = self.model.borrow();
        model.select(|o| o.handle == Some(handle)).first().copied()
    }

    /// Whether a block may, and may not, have changed after an LSN.
    fn may_have_changed(&self, key: ObjectKey, vblock: u64, since: u64, from: u64) -> (bool, bool) {
        let model = self.model.borrow();
        let states = model.live(key, vblock, from);
        let changed = states.iter().any(|s| s.value.lsn.high > since);
        let unchanged = states.iter().any(|s| s.value.lsn.low <= since);
        (changed, unchanged)
    }

    /// Whether the answer fits what the conditions were when the request began. Nothing is said if
    /// others did something meanwhile; `own` is how many changes the caller made.
    pub(crate) fn judge_conditions(
        &self,
        what: &str,
        truth: Truth,
        own: usize,
        error: Option<DvolError>,
    ) {
        let model = self.model.borrow();
        let is_alone = (model.ops.len(), model.admins) == (truth.moment.0 + own, truth.moment.1);
        drop(model);
        if self.has_broken() || !is_alone {
            return;
        }
        let is_right = match error {
            None => truth.may_hold,
            Some(DvolError::ConditionFailed(_)) => truth.may_be_changed,
            Some(DvolError::NotEqual) => truth.may_differ,
            Some(DvolError::StaleEpoch) => truth.may_be_stale,
            Some(DvolError::HistoryForgotten) => truth.may_be_forgotten,
            Some(_) => true,
        };
        if !is_right {
            self.fail(format!(
                "{what}: the conditions were judged wrongly: {error:?}, {truth:?}"
            ));
        }
    }

    pub(crate) async fn allocation(&mut self) {
        let Some(key) = self.any_object() else { return };
        let is_whole = self.rng.chance(0.8);
        let Some(extent) = self.extent(key, is_whole) else {
            return;
        };
        let most = 1 + self.rng.index(20);
        self.allocation_of(key, extent, most).await;
    }

    /// Asks what of an extent takes space, for at most so many runs.
    pub(crate) async fn allocation_of(&mut self, key: ObjectKey, extent: Extent, most: usize) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        let from = self.model.borrow_mut().begin_read();
        let result = self
            .engine
            .allocation(handle, extent.offset, extent.len, most)
            .await;
        self.count("allocation", &result);
        match result {
            Ok(found) => {
                let runs: Vec<(u64, bool)> =
                    found.iter().map(|e| (e.len_bytes, e.allocated)).collect();
                self.check_runs(
                    "allocation",
                    key,
                    extent,
                    most,
                    &runs,
                    |client, vblock, found| {
                        let states = client.model.borrow().live(key, vblock, from);
                        states.iter().any(|s| s.value.mapped == found)
                    },
                );
            }
            Err(error) => self.judge("allocation", &[(key, extent.end())], error),
        }
        self.model.borrow_mut().end_read(from);
    }

    pub(crate) async fn changed_since(&mut self) {
        let Some(key) = self.any_object() else { return };
        let Some(extent) = self.extent(key, true) else {
            return;
        };
        let back = self.rng.below(60);
        let most = 1 + self.rng.index(20);
        self.changed_since_of(key, extent, back, most).await;
    }

    /// Asks what of an extent changed in the last `back` changes, for at most so many runs.
    pub(crate) async fn changed_since_of(
        &mut self,
        key: ObjectKey,
        extent: Extent,
        back: u64,
        most: usize,
    ) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        let from = self.model.borrow_mut().begin_read();
        let told = self.model.borrow().objects[key].lsn_told;
        let since = told.saturating_sub(back);
        let result = self
            .engine
            .changed_since(handle, Lsn(since), extent.offset, extent.len, most)
            .await;
        self.count("changed_since", &result);
        let has_gap = self.model.borrow().objects[key].has_gap;
        match result {
            Ok(found) => {
                let runs: Vec<(u64, bool)> =
                    found.iter().map(|e| (e.len_bytes, e.changed)).collect();
                let what = format!("changed since {}", show_lsn(since));
                self.check_runs(&what, key, extent, most, &runs, |client, vblock, found| {
                    let (may, may_not) = client.may_have_changed(key, vblock, since, from);
                    if found { may } else { may_not }
                });
            }
            Err(DvolError::HistoryForgotten) if has_gap => {}
            Err(DvolError::HistoryForgotten) if self.is_below_floor(handle, since) => {}
            Err(error) => self.judge("changed_since", &[(key, extent.end())], error),
        }
        self.model.borrow_mut().end_read(from);
    }

    /// Whether a volume says that it has forgotten what changed after `since`. Only one that was
    /// told to forget may say so.
    fn is_below_floor(&self, handle: Handle, since: u64) -> bool {
        let floor = self.engine.floor_of(handle);
        self.plan.forgets() && floor.is_ok_and(|floor| since < floor.0)
    }

    /// Runs begin at the extent's start, have no gaps, do not pass its end, and are right for each
    /// block.
    fn check_runs(
        &self,
        what: &str,
        key: ObjectKey,
        extent: Extent,
        most: usize,
        runs: &[(u64, bool)],
        is_right: impl Fn(&Client, u64, bool) -> bool,
    ) {
        let title = self.model.borrow().objects[key].title();
        let covered: u64 = runs.iter().map(|(len, _)| len).sum();
        if runs.is_empty() || runs.len() > most || covered > extent.len || covered == 0 {
            return self.fail(format!(
                "{what} of {title}, {extent:?}: malformed runs {runs:?}"
            ));
        }
        if self.has_broken() || self.model.borrow().objects[key].life != Life::Here {
            return;
        }
        let mut at = extent.offset;
        for &(len, found) in runs {
            for vblock in at / BLOCK_SIZE..(at + len).div_ceil(BLOCK_SIZE) {
                if !is_right(self, vblock, found) {
                    let states = self.model.borrow().live(key, vblock, 0);
                    let history = self.model.borrow().objects[key]
                        .blocks
                        .get(&vblock)
                        .cloned();
                    return self.fail(format!(
                        "{what} of {title}: block {vblock} is said to be {found}, but it may be \
                         {states:?}; {history:?}"
                    ));
                }
            }
            at += len;
        }
    }
}
