//! Changes that come with attributes. To the model a dvol's attributes are one more block behind all that a
//! dvol can have: each change that brings attributes writes all of it, so that the rules for blocks of one
//! change say the rest.

use flagstone_device::engine::{Attributes, Batch, Change as EngineChange, Stability};
use flagstone_types::{BLOCK_SIZE, Lsn};

use super::client::{Client, Extent};
use super::content::{Content, Effect, Tag, Value};
use super::history::{ObjectKey, State};
use super::model::{Model, Object, Part};
use super::resolve::Restart;

/// The block that stands for the attributes.
pub(crate) const ATTRIBUTES_BLOCK: u64 = 1 << 50;

/// How attributes come to a dvol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Described {
    /// With a write.
    Written,
    /// With a write, in a batch.
    InBatch,
    /// With a deallocation, in a batch.
    Unmapped,
    /// With a deallocation of its own, which leaves holes as they are.
    Cleared,
    /// By themselves.
    Alone,
}

/// The attributes that a change brings.
fn attributes(tag: Tag) -> Attributes {
    let word = tag.to_le_bytes();
    std::array::from_fn(|at| word[at % word.len()])
}

/// True if a value of the block stands for these attributes, where the dvol was made with `first`.
fn stands_for(value: &Value, first: &Attributes, found: &Attributes) -> bool {
    let tag = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
    let is_written = value.content == Content::whole(tag) && *found == attributes(tag);
    is_written || value.content == Content::default() && found == first
}

impl Object {
    /// True if its attributes came with changes, and are judged as a block.
    pub(crate) fn is_described(&self) -> bool {
        self.blocks.contains_key(&ATTRIBUTES_BLOCK)
    }
}

impl Client {
    /// Changes an extent and the attributes at once.
    pub(crate) async fn describe_with(
        &mut self,
        key: ObjectKey,
        extent: Extent,
        how: Described,
        stability: Stability,
    ) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        let whole = Extent {
            offset: extent.blocks().start * BLOCK_SIZE,
            len: (extent.blocks().end - extent.blocks().start) * BLOCK_SIZE,
        };
        let extent = match how {
            Described::Unmapped | Described::Cleared => whole,
            _ => extent,
        };
        let of_attributes = ATTRIBUTES_BLOCK..ATTRIBUTES_BLOCK + 1;
        if !self.is_free(key, &extent.blocks()) || !self.is_free(key, &of_attributes) {
            return self.read_extent(key, extent).await;
        }
        let tag = self.model.borrow_mut().new_tag();
        let mut effects = match how {
            Described::Alone => Vec::new(),
            Described::Unmapped | Described::Cleared => {
                extent.blocks().map(|v| (v, Effect::Unmap)).collect()
            }
            Described::Written | Described::InBatch => self.effects(extent, tag, 0),
        };
        effects.push((ATTRIBUTES_BLOCK, Effect::Whole { tag, meta: 0 }));
        let part = Part {
            object: key,
            effects,
            wide: None,
            closes: false,
            lsn_before: 0,
        };
        let what = format!(
            "{how:?} with attributes {tag}, {}..{} ({stability:?})",
            extent.offset,
            extent.end()
        );
        let is_stable = stability == Stability::Stable;
        let change = self.begin(what, vec![part], is_stable, true);
        let engine = self.engine.clone();
        let data = self.data(extent, tag);
        let (offset_bytes, len_bytes) = (extent.offset, extent.len);
        let lsn_of = |lsn: Lsn| Some(vec![lsn.0]);
        let result = if how == Described::Written {
            let work = engine.write_with(handle, offset_bytes, data, stability, || attributes(tag));
            let result = self.patiently(work).await;
            result.map(|r| r.map(lsn_of))
        } else if how == Described::Cleared {
            let said = || attributes(tag);
            let work = engine.deallocate_with(handle, offset_bytes, len_bytes, stability, said);
            let result = self.patiently(work).await;
            result.map(|r| r.map(lsn_of))
        } else {
            let changed = match how {
                Described::Unmapped => Some(EngineChange::Deallocate {
                    handle,
                    offset_bytes,
                    len_bytes,
                }),
                Described::InBatch => Some(EngineChange::Write {
                    handle,
                    offset_bytes,
                    data,
                    meta: 0,
                }),
                Described::Written | Described::Cleared | Described::Alone => None,
            };
            let described = EngineChange::SetAttributes {
                handle,
                attributes: Box::new(attributes(tag)),
            };
            let batch = Batch {
                conditions: Vec::new(),
                changes: changed.into_iter().chain([described]).collect(),
            };
            let result = self.patiently(engine.commit(batch, stability)).await;
            // Each change of the batch has an LSN of its own.
            result.map(|r| r.map(|_| None))
        };
        if let Some(result) = &result {
            self.count("change with attributes", result);
        }
        self.end(change, result, true, &[]);
    }

    /// Looks at a dvol's attributes.
    pub(crate) fn check_attributes(&mut self, key: ObjectKey) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        let Ok(found) = self.engine.attributes_of(handle) else {
            return;
        };
        let mut model = self.model.borrow_mut();
        let from = model.begin_read();
        let states = model.live(key, ATTRIBUTES_BLOCK, from);
        model.end_read(from);
        let first = model.first_attributes(key);
        let fits = |state: &State| stands_for(&state.value, &first, &found);
        if !states.iter().any(fits) {
            let what = complain(&model.objects[key], &found, &states);
            model.fail(what);
        }
    }
}

impl Model {
    /// What a dvol was made with.
    fn first_attributes(&self, key: ObjectKey) -> Attributes {
        let dvol = self.objects[key].of.unwrap_or(key);
        self.objects[dvol].attributes.now
    }

    /// After a restart a dvol or snapshot has these attributes.
    pub(crate) fn meet_attributes(
        &mut self,
        key: ObjectKey,
        found: &Attributes,
        restart: &mut Restart,
    ) {
        let Some(history) = self.objects[key].blocks.get(&ATTRIBUTES_BLOCK) else {
            return;
        };
        let states = history.after_crash(&self.ops, false);
        let first = self.first_attributes(key);
        let fits = |state: &&State| stands_for(&state.value, &first, found);
        let fitting: Vec<State> = states.iter().filter(fits).cloned().collect();
        if fitting.is_empty() {
            let what = complain(&self.objects[key], found, &states);
            self.fail(format!("after the restart {what}"));
            return;
        }
        restart.saw(key, ATTRIBUTES_BLOCK, fitting);
    }
}

fn complain(object: &Object, found: &Attributes, states: &[State]) -> String {
    let allowed: Vec<_> = states.iter().map(|s| &s.value.content).collect();
    format!(
        "{} has the attributes {found:?}, but may only have those of: {allowed:?}",
        object.title()
    )
}
