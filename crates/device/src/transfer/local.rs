//! The two sides of a move on engines of this core.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::{DvolId, Epoch, LayerNo, Lsn};

use super::part::changed_behind;
use super::{
    AnyTime, Content, Gate, Origin, Part, Parts, Point, ReadTurns, Resumed, Run, Snapshot, Target,
    What,
};
use super::{part_of, take_runs};
use crate::engine::{Attributes, CreateDvol, DvolError, Engine, Handle};

/// How the layer above marks a dvol in its attributes.
pub trait Marks {
    /// As the target of a move that isn't over.
    fn arriving(&self, attributes: &Attributes) -> Attributes;
    /// As that, and how far it is.
    fn arriving_at(&self, point: &Point) -> Attributes;
    /// How far it is, if that was said.
    fn point_of(&self, attributes: &Attributes) -> Option<Point>;
    /// As the origin of a move that isn't over: a copy on the device with this id that has a point goes on.
    fn going(&self, attributes: &Attributes, device: u128) -> Attributes;
    /// As the origin of a move that may be over: the target is on the device with this id.
    fn leaving(&self, attributes: &Attributes, device: u128) -> Attributes;
    /// As one that stayed, whatever the target on that device looks like.
    fn stayed(&self, attributes: &Attributes, device: u128) -> Attributes;
    /// Without a mark.
    fn plain(&self, attributes: &Attributes) -> Attributes;
}

/// A dvol that is being moved away.
pub struct DvolOrigin<P: Platform, M> {
    engine: Engine<P>,
    handle: Handle,
    gate: Rc<Gate>,
    marks: M,
    /// The device that it goes to.
    to: u128,
    parts: Cell<Parts>,
    /// It says that a copy there goes on.
    is_going: Cell<bool>,
}

impl<P: Platform, M: Marks> DvolOrigin<P, M> {
    /// Of this dvol, all of whose changes pass this gate; to a device with the id `to`.
    pub fn new(
        engine: Engine<P>,
        handle: Handle,
        gate: Rc<Gate>,
        marks: M,
        to: u128,
    ) -> DvolOrigin<P, M> {
        DvolOrigin {
            engine,
            handle,
            gate,
            marks,
            to,
            parts: Cell::new(Parts::QUICK),
            is_going: Cell::new(false),
        }
    }

    /// One that says by now that a copy there goes on, or may, because an earlier move has left one.
    pub fn that_is_going(self) -> DvolOrigin<P, M> {
        self.is_going.set(true);
        self
    }

    /// The same as [`Origin::part`], read so, each range in a turn of its own.
    pub async fn part_in_turns(
        &self,
        of: Option<LayerNo>,
        what: What,
        within: Range<u64>,
        parts: Parts,
        turns: &impl ReadTurns,
    ) -> Result<Part, DvolError> {
        let handle = match of {
            None => self.handle,
            Some(_) => {
                let mut layers = self.engine.layers(self.handle.id).into_iter();
                let found = layers.find(|layer| layer.handle.layer == of);
                found.ok_or(DvolError::NotFound)?.handle
            }
        };
        part_of(&self.engine, handle, what, within, parts, turns).await
    }

    /// Is read in such parts from now on, by who doesn't say how.
    pub fn set_parts(&self, parts: Parts) {
        self.parts.set(parts);
    }

    /// Lets changes go on here, whatever is marked.
    pub fn release(&self) {
        self.gate.release();
    }

    /// Nobody goes on here: whoever waited learns that it is gone.
    pub fn close(&self) {
        self.gate.leave();
    }

    /// Whether it says that a copy there goes on.
    pub fn is_going(&self) -> bool {
        self.is_going.get()
    }

    /// The move is cut off, to go on at the next start: until then goes on here. If that isn't written down it stays held: the caller decides.
    pub async fn interrupt(&self) -> Result<(), DvolError> {
        if !self.is_going.get() {
            return self.stay(false).await;
        }
        self.mark_as(|attributes| self.marks.going(attributes, self.to))
            .await?;
        self.gate.release();
        Ok(())
    }

    /// Marks it durably, unless it is marked so.
    async fn mark_as(
        &self,
        marked: impl FnOnce(&Attributes) -> Attributes,
    ) -> Result<(), DvolError> {
        let attributes = self.engine.attributes_of(self.handle)?;
        let marked = marked(&attributes);
        match marked == attributes {
            true => Ok(()),
            false => self.engine.set_attributes(self.handle, marked).await,
        }
    }

    /// The move came to nothing: goes on here, and no start goes on with a copy. If the target may be found to have arrived (`perhaps`), that is settled
    /// first, durably. If that fails it stays held: the caller decides.
    pub async fn stay(&self, perhaps: bool) -> Result<(), DvolError> {
        self.mark_as(|attributes| match perhaps {
            true => self.marks.stayed(attributes, self.to),
            false => self.marks.plain(attributes),
        })
        .await?;
        self.gate.release();
        Ok(())
    }

    /// The epoch that it has.
    pub fn epoch(&self) -> Result<Epoch, DvolError> {
        self.engine.epoch_of(self.handle)
    }

    /// The same by somebody's word, whatever the target is ([`go_on_above`]). If that fails nothing goes on: it stays held.
    pub async fn go_on_above(&self, epoch: Epoch) -> Result<(), DvolError> {
        go_on_above(&self.engine, self.handle, &self.marks, epoch).await?;
        self.gate.release();
        Ok(())
    }
}

/// Has a dvol that was held go on with a history of its own, which begins in this epoch, durably: whatever a target of it has, in a lower one, is
/// another dvol from here on. The mark goes last; asked for the same epoch again, this goes on where it was cut off.
pub async fn go_on_above<P: Platform>(
    engine: &Engine<P>,
    handle: Handle,
    marks: &impl Marks,
    epoch: Epoch,
) -> Result<(), DvolError> {
    if engine.epoch_of(handle)? < epoch {
        engine.begin_history(handle, epoch).await?;
    }
    let attributes = marks.plain(&engine.attributes_of(handle)?);
    engine.set_attributes(handle, attributes).await
}

impl<P: Platform, M: Marks> DvolOrigin<P, M> {
    /// The last LSN, while nobody may change anything. A change whose caller went away may still be under way: this one
    /// comes behind it in the journal, so when it is made, that one has been.
    async fn settled(&self) -> Result<Lsn, DvolError> {
        let attributes = self.engine.attributes_of(self.handle)?;
        self.engine.set_attributes(self.handle, attributes).await?;
        self.engine.lsn_of(self.handle)
    }
}

impl<P: Platform, M: Marks> Origin for DvolOrigin<P, M> {
    async fn content(&self) -> Result<Content, DvolError> {
        let epoch = self.engine.epoch_of(self.handle)?;
        let epoch = Epoch(epoch.0 + Epoch::PER_MOVE);
        if epoch > Epoch::MAX {
            return Err(DvolError::TooMany);
        }
        let mut layers = self.engine.layers(self.handle.id);
        layers.sort_by_key(|layer| layer.handle.layer);
        let snapshots: Vec<Snapshot> = layers
            .into_iter()
            .filter_map(|layer| {
                Some(Snapshot {
                    layer: layer.handle.layer?,
                    name: layer.name,
                    size_bytes: layer.size_bytes,
                    created_ns: layer.created_ns,
                    lsn: layer.lsn,
                    attributes: layer.attributes,
                })
            })
            .collect();
        Ok(Content {
            size_bytes: self.engine.size_of(self.handle)?,
            snapshots,
            expected_bytes: self.engine.copy_bytes_of(self.handle)?,
            epoch,
        })
    }

    async fn part(
        &self,
        of: Option<LayerNo>,
        what: What,
        within: Range<u64>,
    ) -> Result<Part, DvolError> {
        let parts = self.parts.get();
        self.part_in_turns(of, what, within, parts, &AnyTime).await
    }

    async fn going(&self) -> Result<(), DvolError> {
        self.mark_as(|attributes| self.marks.going(attributes, self.to))
            .await?;
        self.is_going.set(true);
        Ok(())
    }

    async fn settle(&self) -> Result<(), DvolError> {
        self.engine.flush().await
    }

    async fn mark(&self) -> Result<Lsn, DvolError> {
        self.gate.hold().await;
        let lsn = self.settled().await;
        self.gate.release();
        lsn
    }

    async fn hold(&self) -> Result<Epoch, DvolError> {
        self.gate.hold().await;
        let attributes = self.engine.attributes_of(self.handle)?;
        let leaving = self.marks.leaving(&attributes, self.to);
        // Behind all that may still be under way, as in `settled`.
        self.engine.set_attributes(self.handle, leaving).await?;
        self.engine.epoch_of(self.handle)
    }
}

/// A dvol that is to be: the copy.
pub struct DvolTarget<P: Platform, M> {
    engine: Engine<P>,
    marks: M,
    new: NewDvol,
    handle: Cell<Option<Handle>>,
    point_after_bytes: Option<u64>,
}

/// What a dvol is besides its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewDvol {
    /// Its id, that of the origin.
    pub id: DvolId,
    /// Its name.
    pub name: String,
    /// What is to be set aside for it.
    pub reserved_bytes: u64,
    /// What the layer above keeps with it, without a mark.
    pub attributes: Attributes,
}

impl<P: Platform, M: Marks> DvolTarget<P, M> {
    /// On this engine.
    pub fn new(engine: Engine<P>, marks: M, new: NewDvol) -> DvolTarget<P, M> {
        DvolTarget {
            engine,
            marks,
            new,
            handle: Cell::new(None),
            point_after_bytes: None,
        }
    }

    /// One that keeps a [`Point`] about every so many bytes.
    pub fn with_points(self, after_bytes: u64) -> DvolTarget<P, M> {
        DvolTarget {
            point_after_bytes: Some(after_bytes),
            ..self
        }
    }

    /// One of which a move has left this copy, with a point.
    pub fn left_at(self, handle: Handle) -> DvolTarget<P, M> {
        self.handle.set(Some(handle));
        self
    }

    fn handle(&self) -> Result<Handle, DvolError> {
        self.handle.get().ok_or(DvolError::NotFound)
    }

    /// Its handle once it was made.
    pub fn made(&self) -> Option<Handle> {
        self.handle.get()
    }

    /// Makes it, empty and marked as arriving: of this size and in this epoch, its layers numbered above that one.
    pub async fn begin_above(
        &self,
        size_bytes: u64,
        epoch: Epoch,
        above: LayerNo,
    ) -> Result<(), DvolError> {
        let new = CreateDvol {
            name: self.new.name.clone(),
            id: Some(self.new.id),
            size_bytes,
            reserved_bytes: self.new.reserved_bytes,
        };
        let attributes = self.marks.arriving(&self.new.attributes);
        let handle = self.engine.create_above(new, attributes, above).await?;
        self.handle.set(Some(handle));
        self.engine.begin_history(handle, epoch).await
    }

    /// Takes a snapshot of what there is, as it was taken at the origin, and writes down in the same instant how far the copy is behind that, if it is told.
    pub async fn snapshot_as(
        &self,
        name: &str,
        created_ns: u64,
        attributes: &Attributes,
        next: Option<Point>,
    ) -> Result<(), DvolError> {
        let handle = self.handle()?;
        let its = self.marks.arriving(attributes);
        let Some(next) = next else {
            // It has those of its dvol.
            self.engine.set_attributes(handle, its).await?;
            let dvols = [(handle, name.to_owned())];
            let taken = self.engine.snapshot_at(&dvols, created_ns).await;
            return taken.map(drop);
        };
        let lsn = self.engine.lsn_of(handle)?;
        // As in `save`: a snapshot may outlive a crash that takes away what was written just before it.
        self.engine.flush().await?;
        let then = self.marks.arriving_at(&Point { lsn, ..next });
        // All or nothing: neither is a stage copied once more that has become a snapshot, nor is there a moment without a point.
        let taken = self
            .engine
            .snapshot_between(handle, name, created_ns, [its, then]);
        taken.await.map(drop)
    }

    /// What was copied, if it can go on as this dvol in this epoch. Otherwise it is thrown away. Whether its snapshots are those of the origin is for that to
    /// look at.
    pub async fn resume_as(
        &self,
        new: &NewDvol,
        epoch: Epoch,
    ) -> Result<Option<Resumed>, DvolError> {
        let is_of = |handle: Handle, point: &Point| {
            let is_same = (new.id, &new.name, new.reserved_bytes)
                == (self.new.id, &self.new.name, self.new.reserved_bytes);
            let count = self.engine.layers(handle.id).len();
            let info = self.engine.dvol_with(handle.id, &new.name);
            is_same
                && count == point.snapshots as usize
                && info.is_some_and(|info| {
                    let found = (info.handle, info.epoch, info.reserved_bytes);
                    found == (handle, epoch, new.reserved_bytes)
                })
        };
        self.resume_if(is_of).await
    }

    /// What was copied, if it is what was meant; otherwise it is thrown away.
    async fn resume_if(
        &self,
        is_of: impl FnOnce(Handle, &Point) -> bool,
    ) -> Result<Option<Resumed>, DvolError> {
        let Some(handle) = self.handle.get() else {
            return Ok(None);
        };
        let point = self.marks.point_of(&self.engine.attributes_of(handle)?);
        if let Some(point) = point.filter(|point| is_of(handle, point)) {
            match changed_behind(&self.engine, handle, point.lsn).await {
                Ok(again) => return Ok(Some(Resumed { point, again })),
                Err(DvolError::HistoryForgotten) => {}
                Err(error) => return Err(error),
            }
        }
        self.engine.delete(handle, true).await?;
        self.handle.set(None);
        // There may be no room for two of them. If this fails, what comes next says whether there is enough.
        let _ = self.engine.wait_until_reaped().await;
        Ok(None)
    }

    /// Throws away what there is, durably.
    pub async fn abandon(&self) -> Result<(), DvolError> {
        match self.handle.get() {
            Some(handle) => self.engine.delete(handle, true).await,
            None => Ok(()),
        }
    }
}

impl<P: Platform, M> DvolTarget<P, M> {
    /// Whether a copy that was left at a point is one of this content.
    fn is_of(&self, handle: Handle, point: &Point, content: &Content) -> bool {
        let engine = &self.engine;
        let mut layers = engine.layers(handle.id);
        layers.sort_by_key(|layer| layer.handle.layer);
        let (had, next) = match content.snapshots.split_at_checked(point.snapshots as usize) {
            Some((had, next)) => (had, next.first()),
            None => return false,
        };
        let same = layers.len() == had.len()
            && layers.iter().zip(had).all(|(layer, snapshot)| {
                (&layer.name, layer.created_ns, layer.size_bytes)
                    == (&snapshot.name, snapshot.created_ns, snapshot.size_bytes)
            });
        // It may just have a new size, or not yet.
        let size_bytes = next.map_or(content.size_bytes, |snapshot| snapshot.size_bytes);
        let before = had
            .last()
            .map_or(content.size_bytes, |last| last.size_bytes);
        let may_have =
            |found: u64| found == size_bytes || point.offset_bytes == 0 && found == before;
        let info = engine.dvol_with(handle.id, &self.new.name);
        same && point.of == next.map(|snapshot| snapshot.layer)
            && info.is_some_and(|info| {
                info.handle == handle
                    && may_have(info.size_bytes)
                    && info.epoch == content.epoch
                    && info.reserved_bytes == self.new.reserved_bytes
            })
    }
}

impl<P: Platform, M: Marks> Target for DvolTarget<P, M> {
    async fn begin(&self, content: &Content) -> Result<(), DvolError> {
        let numbers = content.snapshots.iter().map(|snapshot| snapshot.layer);
        let above = numbers.max().unwrap_or(LayerNo(0));
        self.begin_above(content.size_bytes, content.epoch, above)
            .await
    }

    async fn resize(&self, size_bytes: u64) -> Result<(), DvolError> {
        self.engine.resize(self.handle()?, size_bytes).await
    }

    async fn take(&self, runs: Vec<Run>) -> Result<(), DvolError> {
        take_runs(&self.engine, self.handle()?, runs).await
    }

    async fn snapshot(&self, snapshot: &Snapshot, next: Option<Point>) -> Result<(), DvolError> {
        let (name, created_ns) = (&snapshot.name, snapshot.created_ns);
        let taken = self.snapshot_as(name, created_ns, &snapshot.attributes, next);
        taken.await
    }

    fn point_after_bytes(&self) -> Option<u64> {
        self.point_after_bytes
    }

    async fn resume(&self, content: &Content) -> Result<Option<Resumed>, DvolError> {
        let is_of = |handle: Handle, point: &Point| self.is_of(handle, point, content);
        self.resume_if(is_of).await
    }

    async fn save(&self, point: Point) -> Result<(), DvolError> {
        let handle = self.handle()?;
        let lsn = self.engine.lsn_of(handle)?;
        // As in `finish`: what is said of the bytes is not to be durable before they are.
        self.engine.flush().await?;
        let attributes = self.marks.arriving_at(&Point { lsn, ..point });
        self.engine.set_attributes(handle, attributes).await
    }

    async fn finish(&self) -> Result<(), DvolError> {
        let handle = self.handle()?;
        // What takes the mark away makes durable what was answered before it. That it does is not left to the order of
        // an engine's groups: a copy without its bytes would be the only one.
        self.engine.flush().await?;
        let attributes = self.marks.plain(&self.new.attributes);
        self.engine.set_attributes(handle, attributes).await
    }
}
