//! What clients do with snapshots: taking, deleting, rolling back. And how the model hands over what
//! one object held to another.

use std::collections::BTreeMap;

use flagstone_device::engine::{DvolError, Handle};
use flagstone_types::BLOCK_SIZE;

use super::client::{Client, Extent};
use super::content::{Effect, Value};
use super::history::{History, ObjectKey, Outcome};
use super::model::{Life, Model, Object, Part};

/// Snapshots of one journal, at most.
const LAYERS_MAX: usize = 12;

/// What the blocks of an object may hold.
type Values = BTreeMap<u64, Vec<Value>>;

impl Client {
    /// Takes a snapshot of one or several dvols.
    pub(crate) async fn snapshot(&mut self) {
        if self.model.borrow().layers(self.journal).len() >= LAYERS_MAX {
            return;
        }
        let mut dvols = self.model.borrow().dvols(self.journal);
        self.rng.shuffle(&mut dvols);
        dvols.truncate(1 + self.rng.index(3));
        let mut names = Vec::new();
        for &dvol in &dvols {
            let (name, is_taken) = self.name(Some(dvol));
            if is_taken {
                return;
            }
            names.push(name);
        }
        let keys = self.snapshot_of(&dvols, names).await;
        if self.rng.coin() {
            for key in keys {
                self.read_all(key).await;
            }
        }
    }

    /// Takes snapshots of several dvols in one instant.
    pub(crate) async fn snapshot_of(
        &mut self,
        dvols: &[ObjectKey],
        names: Vec<String>,
    ) -> Vec<ObjectKey> {
        let handles: Option<Vec<Handle>> = dvols.iter().map(|&key| self.handle(key)).collect();
        let Some(handles) = handles else {
            return Vec::new();
        };
        let asked: Vec<(Handle, String)> = handles.into_iter().zip(names).collect();
        if dvols.is_empty() || !self.occupy(dvols) {
            return Vec::new();
        }
        let (keys, begun) = self.announce_layers(dvols, &asked);
        let result = self.engine.snapshot(&asked).await;
        self.count("snapshot", &result);
        match &result {
            Ok(handles) => {
                for ((&key, &handle), &dvol) in keys.iter().zip(handles).zip(dvols) {
                    self.take_layer(key, handle, dvol, begun);
                }
            }
            Err(DvolError::NoSpace) if self.is_short_of_space() => self.give_up(&keys),
            Err(error) => {
                if !self.admin_error("snapshot", Some(dvols[0]), *error) {
                    self.give_up(&keys);
                }
            }
        }
        self.model.borrow_mut().end_read(begun);
        self.leave(dvols);
        result.map_or(Vec::new(), |_| keys)
    }

    fn announce_layers(
        &mut self,
        dvols: &[ObjectKey],
        asked: &[(Handle, String)],
    ) -> (Vec<ObjectKey>, u64) {
        let mut model = self.model.borrow_mut();
        let group = model.new_group();
        let mut keys = Vec::new();
        for (&dvol, (_, name)) in dvols.iter().zip(asked) {
            let of = &model.objects[dvol];
            let mut layer = Object::new(self.journal, of.id, name, of.size.now);
            layer.of = Some(dvol);
            layer.made_with = Some(group);
            layer.life = Life::Coming { from: Some(dvol) };
            keys.push(model.add(layer, Some(dvol)));
        }
        let begun = model.begin_read();
        (keys, begun)
    }

    /// A snapshot has been taken.
    fn take_layer(&mut self, key: ObjectKey, handle: Handle, dvol: ObjectKey, begun: u64) {
        let name = self.model.borrow().objects[key].name.now.clone();
        let Some(info) = self.engine.layer(handle.id, &name) else {
            return self.fail(format!("the snapshot {name} was taken and is not there"));
        };
        self.has_broken();
        let mut model = self.model.borrow_mut();
        let values = model.values_up_to(dvol, info.lsn.0, begun);
        let values = match values {
            Ok(values) => values,
            Err(what) => return model.fail(format!("the snapshot {name} {what}")),
        };
        model.hand_over(dvol, key, values);
        let size = model.objects[dvol].size.clone();
        let layer = &mut model.objects[key];
        layer.handle = Some(handle);
        layer.life = Life::Here;
        layer.lsn = Some(info.lsn.0);
        layer.tell_lsn(info.lsn.0);
        layer.made_with = None;
        if !size.may_be(&info.size_bytes) {
            model.fail(format!(
                "the snapshot {name} is of size {}, not {size:?}",
                info.size_bytes
            ));
        }
    }

    /// Reads everything of an object that a client ever changed.
    pub(crate) async fn read_all(&mut self, key: ObjectKey) {
        let blocks: Vec<u64> = {
            let model = self.model.borrow();
            model.blocks_to_read(key)
        };
        for run in runs_of(&blocks) {
            let size = self.model.borrow().objects[key].size.now;
            let end = (run.end * BLOCK_SIZE).min(size);
            let offset = run.start * BLOCK_SIZE;
            if offset < end {
                self.read_extent(
                    key,
                    Extent {
                        offset,
                        len: end - offset,
                    },
                )
                .await;
            }
        }
    }

    pub(crate) async fn delete_layer(&mut self) {
        let layers = self.model.borrow().layers(self.journal);
        if layers.is_empty() {
            return;
        }
        let key = layers[self.rng.index(layers.len())];
        self.delete_layer_of(key).await;
    }

    pub(crate) async fn delete_layer_of(&mut self, key: ObjectKey) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        if !self.occupy(&[key]) {
            return;
        }
        self.model.borrow_mut().objects[key].life = Life::Going;
        let result = self.engine.delete_layer(handle).await;
        self.count("delete_layer", &result);
        self.end_delete("delete_layer", &[key], result);
        self.leave(&[key]);
    }

    pub(crate) async fn roll_back(&mut self) {
        let layers = self.model.borrow().layers(self.journal);
        if layers.is_empty() {
            return;
        }
        let layer = layers[self.rng.index(layers.len())];
        self.roll_back_to(layer).await;
    }

    pub(crate) async fn roll_back_to(&mut self, layer: ObjectKey) {
        let Some(dvol) = self.model.borrow().objects[layer].of else {
            return;
        };
        let (Some(handle), Some(to)) = (self.handle(dvol), self.handle(layer)) else {
            return;
        };
        if !self.occupy(&[dvol, layer]) {
            return;
        }
        let size = self.model.borrow().objects[layer].size.now;
        let parts = vec![self.rollback_part(dvol, layer)];
        self.model.borrow_mut().objects[dvol].size.begin(size);
        let title = self.model.borrow().objects[layer].title();
        let change = self.begin(format!("roll back to {title}"), parts, true, true);
        self.model.borrow_mut().objects[dvol].has_gap = true;
        let result = self.engine.roll_back(handle, to).await;
        self.count("roll_back", &result);
        let uncertain = matches!(result, Err(DvolError::Fenced | DvolError::Stopping));
        self.end(change, Some(result.map(|()| None)), true, &[]);
        let mut model = self.model.borrow_mut();
        if !uncertain {
            model.objects[dvol].size.end(result.is_ok());
        }
        drop(model);
        self.leave(&[dvol, layer]);
    }

    /// Every block becomes what it is in the snapshot.
    fn rollback_part(&self, dvol: ObjectKey, layer: ObjectKey) -> Part {
        let model = self.model.borrow();
        let (head, old) = (&model.objects[dvol], &model.objects[layer]);
        let mut effects = Vec::new();
        let both = head.blocks.keys().chain(old.blocks.keys());
        let vblocks: std::collections::BTreeSet<u64> = both.copied().collect();
        for vblock in vblocks {
            let values = match old.blocks.get(&vblock) {
                Some(history) => history.base.clone(),
                None => vec![old.untouched(vblock)],
            };
            effects.push((vblock, Effect::Restore(values)));
        }
        let untouched = Effect::Restore(vec![Value::forgotten()]);
        Part {
            object: dvol,
            effects,
            wide: Some((0..u64::MAX, untouched)),
            closes: false,
            lsn_before: 0,
        }
    }
}

/// Blocks in ascending order as runs of at most 64.
pub(crate) fn runs_of(blocks: &[u64]) -> Vec<std::ops::Range<u64>> {
    let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
    for &block in blocks {
        match runs.last_mut() {
            Some(run) if run.end == block && run.end - run.start < 64 => run.end += 1,
            _ => runs.push(block..block + 1),
        }
    }
    runs
}

impl Model {
    /// What the blocks of an object may have held at some time since `from`.
    pub(crate) fn values_since(&self, key: ObjectKey, from: u64) -> Values {
        let values = |history: &History| {
            let states = history.live(&self.ops, from);
            let mut values: Vec<Value> = states.into_iter().map(|s| s.value).collect();
            values.sort_unstable();
            values.dedup();
            values
        };
        self.objects[key]
            .blocks
            .iter()
            .map(|(&v, h)| (v, values(h)))
            .collect()
    }

    /// What the blocks of a snapshot hold that was begun at `from` and shows changes up to `lsn`.
    fn values_up_to(&self, key: ObjectKey, lsn: u64, from: u64) -> Result<Values, String> {
        let mut all = Values::new();
        for (&vblock, history) in &self.objects[key].blocks {
            let missed = history.entries.iter().find(|entry| {
                let op = &self.ops[entry.op];
                let is_earlier = op.ended.is_some_and(|end| end < from);
                is_earlier && op.outcome == Outcome::Done && entry.lsn.low > lsn
            });
            if let Some(missed) = missed {
                return Err(format!("misses \"{}\"", self.ops[missed.op].what));
            }
            let values = history.up_to(&self.ops, lsn);
            all.insert(vblock, values);
        }
        Ok(all)
    }

    /// Gives an object what another one held.
    pub(crate) fn hand_over(&mut self, from: ObjectKey, to: ObjectKey, values: Values) {
        let source = self.objects[from].clone();
        self.objects[to].inherit(&source, values);
    }
}
