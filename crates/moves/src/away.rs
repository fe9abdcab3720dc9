//! The node that a volume leaves: the target at the other end of a connection, and what is done until it is known who has the volume.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;

use flagstone_client::{Arrival, Cause, Connect, Error};
use flagstone_device::engine::DvolError;
use flagstone_device::transfer::{
    Content, DvolOrigin, Failed, Marks, NewDvol, Origin, Part, Point, Progress, Resumed, Run,
    Snapshot, Target, What, move_dvol,
};
use flagstone_platform::{IoBuf, Platform, Time};
use flagstone_types::{DeviceId, DvolId, Epoch, LayerNo, Lsn};
use flagstone_wire::Status;
use flagstone_wire::arrival::{
    Arrive, ArrivingRun, LeftCopy, RUNS_MAX, RUNS_PAYLOAD_MAX_BYTES, Settled, Step, Warrant,
};

use crate::here::RecordBytes;

/// How long one question what became of a move may take, and the pause before the next, in nanoseconds.
const QUESTION_NS: u64 = 5_000_000_000;
const PAUSE_NS: u64 = 200_000_000;

/// The longest pause before the other node is asked whether a copy can go on: whoever ends the move waits for that.
const PAUSE_MAX_NS: u64 = 5_000_000_000;

/// By so much a word that a volume stays raises its epoch, if so many are left. The other node may have raised that of its copy, by one each time
/// that somebody has opened it alone.
const FORCED_STEP: u32 = 1 << 16;

/// Is put in its place when the request is made.
const NO_WARRANT: Warrant = Warrant {
    arrival: 0,
    proof: [0; 32],
};

/// What the node writes down of a volume that leaves, and whom it keeps waiting.
pub trait Home {
    /// Writes down, durably, where the volume is being copied to: before anything of it is there. Asked again for a move that goes on.
    fn keep_going(&self) -> impl Future<Output = Result<(), DvolError>>;

    /// Somebody has ended the move: it doesn't go on.
    fn is_unwanted(&self) -> bool;

    /// The move is cut off, for this reason, and goes on once the other node answers. Whoever waited at the end of it goes on here.
    fn cut_off(&self, why: &str);

    /// The other node has answered: it goes on.
    fn goes_on(&self);

    /// Writes down, durably, where the volume may be: before it is held.
    fn keep_route(&self) -> impl Future<Output = Result<(), DvolError>>;

    /// Writes down, durably, that it is there: clients that come are sent on, and the dvol here is void.
    fn gone(&self, at: SocketAddr) -> impl Future<Output = Result<(), DvolError>>;

    /// Forgets the route: the move came to nothing. Nothing is wrong if a crash undoes this.
    fn forget_route(&self) -> impl Future<Output = Result<(), DvolError>>;

    /// From now on the volume may be used elsewhere: no read here is answered until it is known.
    fn hold_reads(&self) -> impl Future<Output = ()>;

    /// Reads go on: the volume is here.
    fn release_reads(&self);

    /// The node stops: nobody is to be waited for.
    fn is_stopping(&self) -> bool;

    /// The other node was asked whose the volume is, and has not said. It is held, and will be asked again, several times a second.
    fn unanswered(&self, why: &str);

    /// The other node could not be told that the move is over, which came to nothing: it keeps what has come until it is told, or has heard nothing of
    /// it for too long.
    fn untold(&self);

    /// Somebody has said that the volume stays, whatever the other node has. That node is asked once more behind that.
    fn is_forced(&self) -> bool;

    /// Writes down, durably and in the place of the route, that the volume goes on here in this epoch, whatever the other node has.
    fn keep_forced(&self, epoch: Epoch) -> impl Future<Output = Result<(), DvolError>>;
}

/// The volume as another node takes it.
pub struct RemoteTarget<'a, P: Platform, C: Connect> {
    platform: P,
    arrival: &'a Arrival<P, C>,
    new: NewDvol,
    /// How long each request may take, in nanoseconds.
    request_ns: u64,
    record: RefCell<Option<RecordBytes>>,
    at: Cell<Option<SocketAddr>>,
    trouble: RefCell<Option<Error>>,
    point_after_bytes: Option<u64>,
    /// It has something of the volume, or had.
    has_begun: Cell<bool>,
    /// Why the copy was cut off, though it may go on.
    cut_off: RefCell<Option<String>>,
    /// The epoch that it comes of, as is said with it.
    of: Epoch,
    /// Something of the copy was taken there since this was looked at.
    has_taken: Cell<bool>,
}

impl<'a, P: Platform, C: Connect> RemoteTarget<'a, P, C> {
    /// Of a volume in the epoch `of`, which may be said in its attributes: if it has another one when it is announced, the move fails. With so many nanoseconds
    /// for each request, sent again as often as it takes.
    pub fn new(
        platform: P,
        arrival: &'a Arrival<P, C>,
        new: NewDvol,
        of: Epoch,
        request_ns: u64,
    ) -> RemoteTarget<'a, P, C> {
        RemoteTarget {
            platform,
            arrival,
            new,
            request_ns,
            record: RefCell::default(),
            at: Cell::new(None),
            trouble: RefCell::default(),
            point_after_bytes: None,
            has_begun: Cell::new(false),
            cut_off: RefCell::default(),
            of,
            has_taken: Cell::new(false),
        }
    }

    /// One that has a [`Point`] written down about every so many bytes. A copy that is cut off then goes on from there.
    pub fn with_points(self, after_bytes: u64) -> RemoteTarget<'a, P, C> {
        RemoteTarget {
            point_after_bytes: Some(after_bytes),
            ..self
        }
    }

    /// One to which an earlier run of this node has begun to copy the volume.
    pub fn that_has_begun(self) -> RemoteTarget<'a, P, C> {
        self.has_begun.set(true);
        self
    }

    /// The tokens that go with it. To be said before it finishes.
    pub fn set_record(&self, record: Option<RecordBytes>) {
        self.record.replace(record);
    }

    /// What went wrong there last, in words that an operator can use. `None`: nothing since the copy went on, so if the move has ended, that was not why.
    pub fn trouble(&self) -> Option<Error> {
        self.trouble.borrow().clone()
    }

    fn deadline(&self) -> Time {
        self.platform.now().plus_ns(self.request_ns)
    }

    fn note<T>(&self, result: Result<T, Error>) -> Result<T, DvolError> {
        result.map_err(|error| {
            if self.has_begun.get() && is_cut_off(&error) {
                self.cut_off.replace(Some(error.to_string()));
            }
            let told = match error.status() {
                Some(Status::NoSpace) => DvolError::NoSpace,
                Some(Status::Exists) => DvolError::AlreadyExists,
                Some(Status::Limit) => DvolError::TooMany,
                Some(Status::OutOfRange) => DvolError::OutOfRange,
                Some(Status::StaleEpoch) => DvolError::StaleEpoch,
                Some(Status::Denied | Status::NotFound) => DvolError::NotFound,
                Some(Status::Fenced) => DvolError::Fenced,
                _ => DvolError::Device,
            };
            self.trouble.replace(Some(error));
            told
        })
    }
}

/// Whether what failed so can go on. The other node wasn't reached for as long as a request may take; or it was started again since, or has heard of another
/// attempt, and wants to be asked first where the copy goes on.
fn is_cut_off(error: &Error) -> bool {
    matches!(error.cause(), Cause::TimedOut(_))
        || matches!(
            error.status(),
            Some(Status::NotFound | Status::StaleEpoch | Status::Stopping)
        )
}

/// Whether a copy that is so far can be one of this. Nothing but bytes changes at the origin meanwhile, so this only finds what can't be.
fn can_be_of(point: &Point, content: &Content) -> bool {
    let next = point.snapshots as usize;
    let snapshots = &content.snapshots;
    next <= snapshots.len() && point.of == snapshots.get(next).map(|snapshot| snapshot.layer)
}

impl<P: Platform, C: Connect> RemoteTarget<'_, P, C> {
    /// Fails if somebody has opened it alone since it was found out what goes with it: that says of which epoch it comes, and whoever has it open in that of
    /// now would be locked out where it goes.
    fn check_epoch(&self, content: &Content) -> Result<(), DvolError> {
        match self.of.0 + Epoch::PER_MOVE == content.epoch.0 {
            true => Ok(()),
            false => Err(DvolError::StaleEpoch),
        }
    }

    /// The volume, as it is announced.
    fn announced(&self, content: &Content) -> Arrive<'_> {
        let numbers = content.snapshots.iter().map(|snapshot| snapshot.layer);
        Arrive {
            warrant: NO_WARRANT,
            id: self.new.id,
            size_bytes: content.size_bytes,
            reserved_bytes: self.new.reserved_bytes,
            epoch: content.epoch,
            highest_layer: numbers.max().unwrap_or(LayerNo(0)),
            snapshot_count: content.snapshots.len() as u32,
            attributes: self.new.attributes,
            name: &self.new.name,
        }
    }
}

impl<P: Platform, C: Connect> Target for RemoteTarget<'_, P, C> {
    async fn begin(&self, content: &Content) -> Result<(), DvolError> {
        self.check_epoch(content)?;
        let new = self.announced(content);
        self.note(self.arrival.begin(&new, self.deadline()).await)?;
        self.has_begun.set(true);
        Ok(())
    }

    fn point_after_bytes(&self) -> Option<u64> {
        self.point_after_bytes
    }

    async fn resume(&self, content: &Content) -> Result<Option<Resumed>, DvolError> {
        if !self.has_begun.get() {
            return Ok(None);
        }
        self.check_epoch(content)?;
        let new = self.announced(content);
        let asked = self.arrival.again(&new, self.deadline()).await;
        let is_known = !matches!(&asked, Err(error) if error.status() == Some(Status::NotFound));
        let asked = self.note(asked).inspect_err(|_| {
            // It was given up there: asking again is of no use.
            if !is_known {
                self.cut_off.take();
            }
        });
        let Some(LeftCopy { point, again }) = asked?.left else {
            return Ok(None);
        };
        let point = Point::decode(&point).filter(|point| can_be_of(point, content));
        let again = again.into_iter();
        Ok(Some(Resumed {
            point: point.ok_or(DvolError::Invalid)?,
            again: again.map(|(offset, len)| offset..offset + len).collect(),
        }))
    }

    async fn save(&self, point: Point) -> Result<(), DvolError> {
        let step = Step::Point(point.encode());
        self.note(self.arrival.step(&step, self.deadline()).await)
    }

    async fn resize(&self, size_bytes: u64) -> Result<(), DvolError> {
        let step = Step::Size(size_bytes);
        self.note(self.arrival.step(&step, self.deadline()).await)
    }

    async fn take(&self, runs: Vec<Run>) -> Result<(), DvolError> {
        let mut batch = Batch::default();
        for run in runs {
            if let Some(full) = batch.add(run) {
                self.send(full).await?;
            }
        }
        match batch.runs.is_empty() {
            true => Ok(()),
            false => self.send(batch).await,
        }
    }

    async fn snapshot(&self, snapshot: &Snapshot, next: Option<Point>) -> Result<(), DvolError> {
        let step = Step::Snapshot {
            created_ns: snapshot.created_ns,
            attributes: snapshot.attributes,
            point: next.map(|point| point.encode()),
            name: &snapshot.name,
        };
        self.note(self.arrival.step(&step, self.deadline()).await)
    }

    async fn finish(&self) -> Result<(), DvolError> {
        let record = self.record.borrow_mut().take();
        let finished = self.arrival.finish(record.as_deref(), self.deadline());
        let at = self.note(finished.await)?;
        self.at.set(Some(at));
        Ok(())
    }
}

impl<P: Platform, C: Connect> RemoteTarget<'_, P, C> {
    async fn send(&self, batch: Batch) -> Result<(), DvolError> {
        let sent = self
            .arrival
            .runs(&batch.runs, batch.payload, self.deadline());
        self.note(sent.await)?;
        self.has_taken.set(true);
        Ok(())
    }
}

/// Runs that go in one request.
#[derive(Default)]
struct Batch {
    runs: Vec<ArrivingRun>,
    payload: Vec<IoBuf>,
    payload_bytes: u64,
}

impl Batch {
    /// Adds a run. Returns those before it, if there is no room for it with them. A part has no run that is longer than a request may be.
    fn add(&mut self, run: Run) -> Option<Batch> {
        let (arriving, bytes) = match run {
            Run::Data {
                offset_bytes,
                meta,
                bytes,
            } => {
                let arriving = ArrivingRun {
                    offset_bytes,
                    len_bytes: bytes.len() as u64,
                    is_zeros: false,
                    metadata: meta,
                };
                (arriving, Some(bytes))
            }
            Run::Zeros {
                offset_bytes,
                len_bytes,
            } => {
                let arriving = ArrivingRun {
                    offset_bytes,
                    len_bytes,
                    is_zeros: true,
                    metadata: 0,
                };
                (arriving, None)
            }
        };
        let sum = self.payload_bytes + arriving.payload_bytes();
        let is_full =
            self.runs.len() == RUNS_MAX || sum > RUNS_PAYLOAD_MAX_BYTES && !self.runs.is_empty();
        let full = is_full.then(|| std::mem::take(self));
        self.payload_bytes += arriving.payload_bytes();
        self.runs.push(arriving);
        self.payload
            .extend(bytes.map(|bytes| IoBuf::copy_of(&bytes)));
        full
    }
}

/// Whose volume it is at the end of a move, as far as is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The other node's, which serves it there; and that is written down here. What the volume was here can be deleted, and that
    /// it was confirmed ([`confirm`]).
    Went(SocketAddr),
    /// Still this one's: it goes on here.
    Stayed(DvolError),
    /// It goes on here in this epoch, by somebody's word: whatever the other node has is a fork.
    Forced(Epoch),
    /// Still this one's, and the node stops: the next start goes on with the move.
    CutOff(DvolError),
    /// Nobody has said, and the node stops, or its device has failed: it stays held, and the next start asks.
    Unknown(DvolError),
}

/// Names a move, to ask what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question {
    /// The device that the volume was to arrive on.
    pub device: DeviceId,
    /// The volume.
    pub volume: DvolId,
}

/// The origin, which writes its route down before it holds.
struct Leaving<'a, O, T, H> {
    origin: &'a O,
    target: &'a T,
    home: &'a H,
    size_bytes: Cell<u64>,
}

impl<O: Origin, T: Target, H: Home> Origin for Leaving<'_, O, T, H> {
    async fn content(&self) -> Result<Content, DvolError> {
        let content = self.origin.content().await?;
        self.size_bytes.set(content.size_bytes);
        Ok(content)
    }

    async fn part(
        &self,
        of: Option<LayerNo>,
        what: What,
        within: Range<u64>,
    ) -> Result<Part, DvolError> {
        self.origin.part(of, what, within).await
    }

    async fn going(&self) -> Result<(), DvolError> {
        self.origin.going().await
    }

    async fn settle(&self) -> Result<(), DvolError> {
        self.origin.settle().await
    }

    async fn mark(&self) -> Result<Lsn, DvolError> {
        self.origin.mark().await
    }

    async fn hold(&self) -> Result<Epoch, DvolError> {
        // It has this size. One that was started again since it was last asked says so now, and the copy goes on; if it said so only when it is asked
        // to finish, that would end the move.
        self.target.resize(self.size_bytes.get()).await?;
        self.home.keep_route().await?;
        self.origin.hold().await
    }
}

/// The target, before whose end nobody may read at the origin any more.
struct Taking<'a, 'b, P: Platform, C: Connect, H> {
    target: &'a RemoteTarget<'b, P, C>,
    home: &'a H,
}

impl<P: Platform, C: Connect, H: Home> Target for Taking<'_, '_, P, C, H> {
    async fn begin(&self, content: &Content) -> Result<(), DvolError> {
        self.target.begin(content).await
    }

    async fn resize(&self, size_bytes: u64) -> Result<(), DvolError> {
        self.target.resize(size_bytes).await
    }

    async fn take(&self, runs: Vec<Run>) -> Result<(), DvolError> {
        self.target.take(runs).await
    }

    async fn snapshot(&self, snapshot: &Snapshot, next: Option<Point>) -> Result<(), DvolError> {
        self.target.snapshot(snapshot, next).await
    }

    fn point_after_bytes(&self) -> Option<u64> {
        self.target.point_after_bytes()
    }

    async fn resume(&self, content: &Content) -> Result<Option<Resumed>, DvolError> {
        let resumed = self.target.resume(content).await?;
        self.home.goes_on();
        Ok(resumed)
    }

    async fn save(&self, point: Point) -> Result<(), DvolError> {
        self.target.save(point).await
    }

    async fn finish(&self) -> Result<(), DvolError> {
        self.home.hold_reads().await;
        self.target.finish().await
    }
}

/// Moves a volume, and says whose it is. `origin` is `dvol`, with whatever turns its parts are read in. Unless it stayed, `dvol` is left held.
///
/// While it is being copied the other node may be away for as long as somebody wants the move: that goes on when it is back. Once it was asked to
/// finish, its answer is waited for.
pub async fn move_away<P: Platform, M: Marks, C: Connect>(
    dvol: &DvolOrigin<P, M>,
    origin: &impl Origin,
    target: &RemoteTarget<'_, P, C>,
    question: Question,
    progress: &impl Progress,
    home: &impl Home,
) -> Ended {
    let leaving = Leaving {
        origin,
        target,
        home,
        size_bytes: Cell::new(0),
    };
    let taking = Taking { target, home };
    let mut pause_ns = PAUSE_NS;
    let failed = loop {
        let moved = async {
            home.keep_going().await.map_err(Failed::Before)?;
            move_dvol(&leaving, &taking, progress).await
        };
        let failed = match moved.await {
            Ok(()) => {
                let at = target.at.get();
                return match at {
                    Some(at) => went(home, at).await,
                    None => Ended::Unknown(DvolError::Device),
                };
            }
            Err(failed) => failed,
        };
        let Failed::Before(error) = failed else {
            break failed;
        };
        let why = target.cut_off.take();
        if !dvol.is_going() || home.is_unwanted() {
            break failed;
        }
        // It was not asked to finish, so whatever it has of the copy goes on or is thrown away, as this node says.
        if home.is_stopping() {
            // If it can't be marked: one that is held asks at the next start, and others are marked so by now.
            let _ = dvol.interrupt().await;
            return Ended::CutOff(error);
        }
        let Some(why) = why else {
            break failed;
        };
        if let Err(error) = dvol.interrupt().await {
            return Ended::Unknown(error);
        }
        home.cut_off(&why);
        // If the move ends without another word of that node, this isn't why.
        target.trouble.take();
        tracing::debug!(volume = %question.volume, "its move is cut off, and goes on when the other node answers: {why}");
        // Who is asked again and again and takes nothing is asked less often.
        pause_ns = match target.has_taken.take() {
            true => PAUSE_NS,
            false => (2 * pause_ns).min(PAUSE_MAX_NS),
        };
        target.platform.sleep_ns(pause_ns).await;
    };
    match failed {
        Failed::Before(error) => {
            // It was not asked to finish, so it has not arrived, whatever it is asked from now on.
            let stayed = stay(dvol, home, error).await;
            let is_told = abandon(&target.platform, target.arrival, question).await;
            // Where nothing had begun it ends there by itself, soon.
            if !is_told && target.has_begun.get() && matches!(stayed, Ended::Stayed(_)) {
                home.untold();
            }
            stayed
        }
        Failed::Perhaps(error) => {
            let asked = ask(&target.platform, target.arrival, question, home).await;
            match asked {
                Some(Told::There(at)) => went(home, at).await,
                Some(Told::Never) => stay(dvol, home, error).await,
                Some(Told::Forced) => force(dvol, home).await,
                None => Ended::Unknown(error),
            }
        }
    }
}

/// The volume is there. If that can't be written down, nobody may be told.
async fn went(home: &impl Home, at: SocketAddr) -> Ended {
    match home.gone(at).await {
        Ok(()) => Ended::Went(at),
        Err(error) => Ended::Unknown(error),
    }
}

/// It goes on here: its mark says nothing, since what it names will never arrive.
async fn stay<P: Platform, M: Marks>(
    dvol: &DvolOrigin<P, M>,
    home: &impl Home,
    error: DvolError,
) -> Ended {
    if let Err(failed) = dvol.stay(false).await {
        return Ended::Unknown(failed);
    }
    // With the mark gone, a route says nothing; a start forgets it.
    let _ = home.forget_route().await;
    home.release_reads();
    Ended::Stayed(error)
}

/// The epoch in which a volume goes on by somebody's word that was in this one: above what the other node may have given its copy. `None`: too few
/// are left.
pub fn epoch_above(epoch: Epoch) -> Option<Epoch> {
    let left = Epoch::MAX.0.saturating_sub(epoch.0);
    let step = FORCED_STEP.min(left / 2);
    (step > Epoch::PER_MOVE).then(|| Epoch(epoch.0 + step))
}

/// It goes on here by somebody's word. What is written down first decides: a start goes on with it.
async fn force<P: Platform, M: Marks>(dvol: &DvolOrigin<P, M>, home: &impl Home) -> Ended {
    let forced = async {
        let epoch = epoch_above(dvol.epoch()?).ok_or(DvolError::TooMany)?;
        home.keep_forced(epoch).await?;
        dvol.go_on_above(epoch).await?;
        Ok(epoch)
    };
    match forced.await {
        Ok(epoch) => {
            home.release_reads();
            Ended::Forced(epoch)
        }
        Err(error) => Ended::Unknown(error),
    }
}

/// What became of a move, or what was said in the place of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// The volume is there.
    There(SocketAddr),
    /// It isn't, and will never be.
    Never,
    /// The other node has not said, and somebody has said that it stays.
    Forced,
}

/// Asks until it is known where the volume is. `None`: the node stops.
pub async fn ask<P: Platform, C: Connect>(
    platform: &P,
    arrival: &Arrival<P, C>,
    question: Question,
    home: &impl Home,
) -> Option<Told> {
    loop {
        if home.is_stopping() {
            return None;
        }
        let is_forced = home.is_forced();
        let deadline = platform.now().plus_ns(QUESTION_NS);
        let asked = arrival.settle(question.device, question.volume, (true, false), deadline);
        let why = match asked.await {
            Ok(Settled::Arrived(at)) => return Some(Told::There(at)),
            Ok(Settled::Never) => return Some(Told::Never),
            Ok(Settled::NotHere) => "the node that it was moving to can't tell".to_owned(),
            // Gone on though it was to be given up: that can't be, and is asked again.
            Ok(Settled::Arriving) => "the node that it was moving to goes on".to_owned(),
            Err(error) => error.to_string(),
        };
        if is_forced {
            return Some(Told::Forced);
        }
        home.unanswered(&why);
        platform.sleep_ns(PAUSE_NS).await;
    }
}

/// Tells the other node that a move is over that came to nothing, so that it throws away what has come. Returns whether it has heard that: what it keeps
/// then, it keeps for a reason of its own.
pub async fn abandon<P: Platform, C: Connect>(
    platform: &P,
    arrival: &Arrival<P, C>,
    question: Question,
) -> bool {
    let deadline = platform.now().plus_ns(QUESTION_NS);
    let told = arrival.settle(question.device, question.volume, (true, false), deadline);
    match told.await {
        Ok(Settled::Never) => true,
        Ok(Settled::Arrived(at)) => {
            // It was never asked to finish.
            tracing::error!(
                volume = %question.volume, %at,
                "the node that it was moving to has it, though its move came to nothing before: there are two copies, of which this node serves its own"
            );
            true
        }
        // It doesn't know of this move any more.
        Err(error) => error.status() == Some(Status::Denied),
        Ok(Settled::Arriving | Settled::NotHere) => false,
    }
}

/// Tells the other node that a volume goes on here by somebody's word, and asks whether it has it, too: so `Some(true)`, or (`Some(false)`) not and
/// never. `None`: it has not said.
pub async fn ask_of_fork<P: Platform, C: Connect>(
    platform: &P,
    arrival: &Arrival<P, C>,
    question: Question,
) -> Option<bool> {
    let deadline = platform.now().plus_ns(QUESTION_NS);
    let asked = arrival.settle_fork(question.device, question.volume, deadline);
    match asked.await {
        Ok(Settled::Arrived(_)) => Some(true),
        Ok(Settled::Never) => Some(false),
        Ok(Settled::Arriving | Settled::NotHere) | Err(_) => None,
    }
}

/// Tells the node that has the volume that it won't be asked any more. Returns whether it has heard that, and forgets what it kept: one that can't
/// tell now still keeps it.
pub async fn confirm<P: Platform, C: Connect>(
    platform: &P,
    arrival: &Arrival<P, C>,
    question: Question,
) -> bool {
    let deadline = platform.now().plus_ns(QUESTION_NS);
    let told = arrival.settle(question.device, question.volume, (false, true), deadline);
    matches!(told.await, Ok(Settled::Arrived(_) | Settled::Never))
}

/// What a start finds of a volume that was leaving: its dvol's mark says that it was held, and a route where it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// The dvol is here.
    pub has_dvol: bool,
    /// It is marked as leaving.
    pub is_leaving: bool,
    /// It is marked as one that is being copied there.
    pub is_going: bool,
    /// The route says that the volume is there.
    pub is_gone: bool,
    /// It says that the volume goes on here by somebody's word.
    pub is_forced: bool,
}

/// What a start does about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// It was not held: it is this node's, and goes on at once. The other node is told to forget it.
    Abandon,
    /// It was not held, or is not any more: it is this node's, and its move goes on ([`move_away`], to a target that
    /// [has begun](RemoteTarget::that_has_begun)).
    GoOn,
    /// Whose it is has to be asked ([`ask`]). Until then nobody is served.
    Ask,
    /// It is the other's: what is here is deleted, clients are sent on, and the other node is told.
    SendOn,
    /// It goes on here by somebody's word ([`flagstone_device::transfer::go_on_above`]): first that is carried out.
    Force,
    /// The same, carried out: it goes on at once. The other node is told, and asked whether it has it, too ([`ask_of_fork`]).
    Watch,
}

/// The decision, from what was found.
pub fn at_start(left: Left) -> Start {
    match left {
        Left { is_gone: true, .. } => Start::SendOn,
        Left {
            has_dvol: true,
            is_forced: true,
            is_leaving,
            ..
        } => match is_leaving {
            true => Start::Force,
            false => Start::Watch,
        },
        Left {
            has_dvol: true,
            is_leaving: true,
            ..
        } => Start::Ask,
        // What is written down says only where: the mark, which goes first of all when a move is ended, says that it goes on.
        Left {
            has_dvol: true,
            is_going: true,
            ..
        } => Start::GoOn,
        _ => Start::Abandon,
    }
}
