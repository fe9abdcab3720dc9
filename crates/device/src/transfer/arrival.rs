//! A dvol that comes from another node: what the target does with each request of its origin.
//!
//! The origin can ask anything twice, since an answer can be lost, and what it sent over a connection that broke can come behind what it sent
//! over the next. So requests are carried out one after another, each leaves the same when it comes again, and those of an older attempt
//! are refused.
//!
//! What was cut off goes on ([`Arrival::again`]): the origin is told from where on, which is never further than what is durable here.
//!
//! States, and what a crash makes of them:
//!
//! | state | durable | after a crash |
//! | --- | --- | --- |
//! | promised | nothing | there is no such arrival: *never* |
//! | arriving | the [`Keeper`]'s record that it comes, then the dvol with its mark; later with a [`Point`] | left: with the dvol if that has a point |
//! | finishing | over that record the one that it has arrived, the dvol with its mark | the dvol is deleted: *never* |
//! | arrived | the record, the dvol without mark | *arrived*, until the origin has confirmed; then the record goes |
//! | never | nothing | *never* |
//!
//! What is left waits for its origin, which says that it goes on or gives it up. For how long is the caller's to say.
//!
//! Once an origin has heard *arrived* or *never*, no later answer is another one: a dvol that has arrived is neither deleted nor moved on before
//! its origin has confirmed, so that what isn't there has never been.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_platform::sync::Budget;
use flagstone_types::{Epoch, LayerNo};

use super::{DvolTarget, Marks, NewDvol, Point, Resumed, Run, Target};
use crate::engine::{Attributes, DvolError, Engine, Handle};

/// What was sent before an attempt began anew is of an attempt lower than that, however often its origin has connected since: a number of as many bits
/// counts connections.
const CONNECTIONS_BITS: u32 = 20;

/// What the node keeps of an arrival beside the dvol.
pub trait Keeper {
    /// Something that goes with the dvol from node to node.
    type Record;

    /// Writes down, durably, that this dvol comes: before there is anything of it.
    fn comes(&self, new: &NewDvol) -> impl Future<Output = Result<(), DvolError>>;

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
    /// It was on its way before the last start, or its origin has begun once more and nothing has come since.
    Left,
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
    /// Attempts of an earlier life of this node were all below this one.
    life: u64,
    /// It was asked in this life where the copy goes on.
    was_asked: Cell<bool>,
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
            life: 0,
            was_asked: Cell::new(false),
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

    /// One that was on its way before the last start. `copy`: what has come of it, which has a point. `now_ms`: the time of the start in milliseconds since
    /// 1970, or anything else above which no earlier life of this node has counted how often the origin begun once more. What was sent
    /// in that life, by whatever life of the origin, must not be taken for what is sent in this one: it may say of bytes that they are here which this node has lost.
    pub fn left(
        engine: Engine<P>,
        marks: M,
        keeper: K,
        copy: Option<(NewDvol, Handle)>,
        now_ms: u64,
    ) -> Arrival<P, M, K> {
        let target = copy.map(|(new, handle)| {
            Rc::new(DvolTarget::new(engine.clone(), marks.clone(), new).left_at(handle))
        });
        let arrival = Arrival {
            life: now_ms,
            ..Arrival::new(engine, marks, keeper)
        };
        arrival.state.set(State::Left);
        arrival.target.replace(target);
        arrival
    }

    /// Whether its origin has begun, and may go on with what has come.
    pub fn has_begun(&self) -> bool {
        matches!(self.state.get(), State::Left | State::Arriving)
    }

    /// What the node keeps of it.
    pub fn keeper(&self) -> &K {
        &self.keeper
    }

    /// Of a request of this attempt: `StaleEpoch`, if a later one has come, or it is none of those that were told to the origin last; `NotFound`, if it
    /// is to ask first where it goes on.
    fn admit(&self, attempt: u64) -> Result<(), DvolError> {
        if self.is_unasked() {
            return Err(DvolError::NotFound);
        }
        let last = self.attempt.get();
        if attempt < last || attempt >> CONNECTIONS_BITS != last >> CONNECTIONS_BITS {
            return Err(DvolError::StaleEpoch);
        }
        self.attempt.set(attempt);
        Ok(())
    }

    /// Whether its origin has not been heard of in this life.
    fn is_unasked(&self) -> bool {
        self.state.get() == State::Left && !self.was_asked.get()
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
        if self.is_unasked() && self.target.borrow().is_none() {
            // Nothing has come of it, so whoever announces it begins with nothing.
            self.was_asked.set(true);
            self.attempt.set(attempt);
        }
        self.admit(attempt)?;
        match self.state.get() {
            State::Promised => {}
            State::Left if self.target.borrow().is_none() => {}
            // The answer was lost.
            State::Arriving if self.begun.borrow().as_ref() == Some(&announced) => return Ok(()),
            _ => return Err(DvolError::NotFound),
        }
        let new = announced.new.clone();
        let target = DvolTarget::new(self.engine.clone(), self.marks.clone(), new);
        let (size_bytes, epoch) = (announced.size_bytes, announced.epoch);
        let begun = async {
            self.keeper.comes(&announced.new).await?;
            target.begin_above(size_bytes, epoch, announced.above).await
        };
        let begun = begun.await;
        self.target.replace(Some(Rc::new(target)));
        self.state.set(State::Arriving);
        if let Err(error) = begun {
            // Whatever there is of it goes.
            self.undo().await;
            return Err(error);
        }
        self.begun.replace(Some(announced));
        Ok(())
    }

    /// The origin begins once more, with what is this now. Returns the attempt of what it asks from now on, above that of all that was asked before, and
    /// where it goes on: `None` if there is nothing to go on with, and it is to [`begin`](Arrival::begin).
    pub async fn again(
        &self,
        attempt: u64,
        announced: Announced,
    ) -> Result<(u64, Option<Resumed>), DvolError> {
        let _turn = self.turn.take(1).await;
        if !matches!(
            self.state.get(),
            State::Promised | State::Left | State::Arriving
        ) {
            return Err(DvolError::NotFound);
        }
        // What is still on its way from an earlier life of the origin has a number that isn't known here. It must not come behind the answer, which
        // says what has to be copied once more.
        let before = self.attempt.get().max(attempt) >> CONNECTIONS_BITS;
        let before = before.max(self.life);
        let attempt = (before + 1).min(u64::MAX >> CONNECTIONS_BITS) << CONNECTIONS_BITS;
        self.attempt.set(attempt);
        self.was_asked.set(true);
        let Some(target) = self.target.borrow().clone() else {
            return Ok((attempt, None));
        };
        let new = announced.new.clone();
        let resumed = target.resume_as(&new, announced.epoch).await?;
        let target = match (&resumed, target.made()) {
            // With the attributes that it has by now.
            (Some(_), Some(handle)) => {
                let target = DvolTarget::new(self.engine.clone(), self.marks.clone(), new);
                self.begun.replace(Some(announced));
                self.state.set(State::Arriving);
                Some(Rc::new(target.left_at(handle)))
            }
            _ => {
                self.begun.replace(None);
                self.state.set(State::Left);
                None
            }
        };
        self.target.replace(target);
        Ok((attempt, resumed))
    }

    /// What has come is made durable, and that it is so far.
    pub async fn save(&self, attempt: u64, point: Point) -> Result<(), DvolError> {
        let _turn = self.turn.take(1).await;
        self.admit(attempt)?;
        self.target()?.save(point).await
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

    /// A snapshot is taken, and written down in the same instant how far the copy is behind it.
    pub async fn snapshot(
        &self,
        attempt: u64,
        name: &str,
        created_ns: u64,
        attributes: &Attributes,
        next: Option<Point>,
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
        target.snapshot_as(name, created_ns, attributes, next).await
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
            State::Promised | State::Left | State::Arriving if !abandon => Became::Arriving,
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
