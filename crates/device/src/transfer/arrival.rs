//! A dvol that comes from another node: what the target does with each request of its origin.
//!
//! The origin can ask anything twice, since an answer can be lost, and what it sent over a connection that broke can come behind what it sent
//! over the next. So requests are carried out one after another, each leaves the same when it comes again, and those of an older attempt
//! are refused.
//!
//! States, and what a crash makes of them:
//!
//! | state | durable | after a crash |
//! | --- | --- | --- |
//! | promised | nothing | there is no such arrival: *never* |
//! | arriving | the dvol with its mark; at the end the [`Keeper`]'s record | both are deleted: *never* |
//! | arrived | the record, the dvol without mark | *arrived*, until the origin has confirmed; then the record goes |
//! | never | nothing | *never* |
//!
//! Once an origin has heard *arrived* or *never*, no later answer is another one: a dvol that has arrived is neither deleted nor moved on before
//! its origin has confirmed, so that what isn't there has never been.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_platform::sync::Budget;
use flagstone_types::{Epoch, LayerNo};

use super::{DvolTarget, Marks, NewDvol, Run, Target};
use crate::engine::{Attributes, DvolError, Engine, Handle};

/// What the node keeps of an arrival beside the dvol.
pub trait Keeper {
    /// Something that goes with the dvol from node to node.
    type Record;

    /// Writes down, durably, what goes with the dvol, and that there is this arrival, so that it can be asked about after a crash.
    fn take_record(
        &self,
        record: Option<Self::Record>,
    ) -> impl Future<Output = Result<(), DvolError>>;

    /// Forgets, durably, the arrival: after its dvol is gone, or when nobody will ask any more (`has_arrived`).
    fn forget(&self, has_arrived: bool) -> impl Future<Output = Result<(), DvolError>>;

    /// From this moment on the dvol is here.
    fn arrived(&self, handle: Handle);
}

/// What became of an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Became {
    /// Nothing yet: it goes on.
    Arriving,
    /// The dvol is here, or was.
    Arrived,
    /// It isn't and will never be.
    Never,
    /// The device failed in the moment of the move: the next start tells.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Promised,
    Arriving,
    /// It is given up, and what there is of it goes.
    Undoing,
    Ended(Became),
}

/// A dvol as it is when its move begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announced {
    /// What it is besides its bytes.
    pub new: NewDvol,
    /// Its size in bytes, until it is told otherwise.
    pub size_bytes: u64,
    /// The epoch that it will have.
    pub epoch: Epoch,
    /// The highest number of its layers at the origin.
    pub above: LayerNo,
}

/// A dvol on its way here. Told by the origin's requests, in the order of [`Target`].
pub struct Arrival<P: Platform, M, K> {
    engine: Engine<P>,
    marks: M,
    keeper: K,
    /// One request at a time, in the order in which they came.
    turn: Budget,
    state: Cell<State>,
    attempt: Cell<u64>,
    target: RefCell<Option<Rc<DvolTarget<P, M>>>>,
    begun: RefCell<Option<Announced>>,
}

impl<P: Platform, M: Marks + Clone, K: Keeper> Arrival<P, M, K> {
    /// One that was promised.
    pub fn new(engine: Engine<P>, marks: M, keeper: K) -> Arrival<P, M, K> {
        Arrival {
            engine,
            marks,
            keeper,
            turn: Budget::new(1),
            state: Cell::new(State::Promised),
            attempt: Cell::new(0),
            target: RefCell::default(),
            begun: RefCell::default(),
        }
    }

    /// One that has arrived before the last start.
    pub fn arrived_before(engine: Engine<P>, marks: M, keeper: K) -> Arrival<P, M, K> {
        let arrival = Arrival::new(engine, marks, keeper);
        arrival.state.set(State::Ended(Became::Arrived));
        arrival
    }

    /// What the node keeps of it.
    pub fn keeper(&self) -> &K {
        &self.keeper
    }

    /// Of a request of this attempt: `StaleEpoch`, if a later one has come.
    fn admit(&self, attempt: u64) -> Result<(), DvolError> {
        if attempt < self.attempt.get() {
            return Err(DvolError::StaleEpoch);
        }
        self.attempt.set(attempt);
        Ok(())
    }

    fn target(&self) -> Result<Rc<DvolTarget<P, M>>, DvolError> {
        match self.state.get() {
            State::Arriving => self.target.borrow().clone().ok_or(DvolError::NotFound),
            _ => Err(DvolError::NotFound),
        }
    }

    /// The origin announces what comes.
    pub async fn begin(&self, attempt: u64, announced: Announced) -> Result<(), DvolError> {
        let _turn = self.turn.take(1).await;
        self.admit(attempt)?;
        match self.state.get() {
            State::Promised => {}
            // The answer was lost.
            State::Arriving if self.begun.borrow().as_ref() == Some(&announced) => return Ok(()),
            _ => return Err(DvolError::NotFound),
        }
        let new = announced.new.clone();
        let target = DvolTarget::new(self.engine.clone(), self.marks.clone(), new);
        let (size_bytes, epoch) = (announced.size_bytes, announced.epoch);
        let begun = target.begin_above(size_bytes, epoch, announced.above).await;
        let target = Rc::new(target);
        self.target.replace(Some(target));
        self.state.set(State::Arriving);
        if let Err(error) = begun {
            // Whatever there is of it goes.
            self.undo().await;
            return Err(error);
        }
        self.begun.replace(Some(announced));
        Ok(())
    }

    /// The size changes.
    pub async fn resize(&self, attempt: u64, size_bytes: u64) -> Result<(), DvolError> {
        let _turn = self.turn.take(1).await;
        self.admit(attempt)?;
        self.target()?.resize(size_bytes).await
    }

    /// Bytes come.
    pub async fn take(&self, attempt: u64, runs: Vec<Run>) -> Result<(), DvolError> {
        let _turn = self.turn.take(1).await;
        self.admit(attempt)?;
        self.target()?.take(runs).await
    }

    /// A snapshot is taken.
    pub async fn snapshot(
        &self,
        attempt: u64,
        name: &str,
        created_ns: u64,
        attributes: &Attributes,
    ) -> Result<(), DvolError> {
        let _turn = self.turn.take(1).await;
        self.admit(attempt)?;
        let target = self.target()?;
        let handle = target.made().ok_or(DvolError::NotFound)?;
        // The answer was lost: nobody else takes any of it.
        let layers = self.engine.layers(handle.id);
        if layers.iter().any(|layer| layer.name == name) {
            return Ok(());
        }
        target.snapshot_as(name, created_ns, attributes).await
    }

    /// All has come: it is the dvol from now on. If this fails, what became of it is to be asked.
    pub async fn finish(&self, attempt: u64, record: Option<K::Record>) -> Result<(), DvolError> {
        let _turn = self.turn.take(1).await;
        self.admit(attempt)?;
        if self.state.get() == State::Ended(Became::Arrived) {
            return Ok(());
        }
        let target = self.target()?;
        let handle = target.made().ok_or(DvolError::NotFound)?;
        self.keeper.take_record(record).await?;
        match target.finish().await {
            Ok(()) => {}
            // Nothing was written.
            Err(DvolError::NoSpace) => return Err(DvolError::NoSpace),
            Err(error) => {
                self.state.set(State::Ended(Became::Unknown));
                return Err(error);
            }
        }
        self.state.set(State::Ended(Became::Arrived));
        self.keeper.arrived(handle);
        Ok(())
    }

    /// What became of it. With `abandon`, what has not arrived is not to.
    pub async fn settle(&self, abandon: bool) -> Became {
        let _turn = self.turn.take(1).await;
        match self.state.get() {
            State::Ended(became) => became,
            State::Promised | State::Arriving if !abandon => Became::Arriving,
            _ => match self.undo().await {
                true => Became::Never,
                false => Became::Unknown,
            },
        }
    }

    /// The origin has heard that it has arrived, has written that down, and doesn't ask any more.
    pub async fn confirm(&self) -> Result<(), DvolError> {
        let _turn = self.turn.take(1).await;
        match self.state.get() {
            State::Ended(Became::Arrived) => self.keeper.forget(true).await,
            _ => Ok(()),
        }
    }

    /// Throws away what there is, durably, and says whether that went well. If not, whoever asks next tries again, or the next start does.
    async fn undo(&self) -> bool {
        self.state.set(State::Undoing);
        let target = self.target.borrow().clone();
        if let Some(target) = target
            && target.abandon().await.is_err()
        {
            return false;
        }
        // From here on it never was. A record that stays without its dvol says nothing, and a start removes it.
        let _ = self.keeper.forget(false).await;
        self.state.set(State::Ended(Became::Never));
        true
    }
}
