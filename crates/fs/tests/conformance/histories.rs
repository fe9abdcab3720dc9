//! Several clients that do whatever comes to their minds in a small space of names and files, and note it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_fs::{
    AccessMask, Caller, Cookie, Creation, FileError, FileId, FileKind, Node, SetAttributes,
    SetTime, SnapshotInfo, SnapshotNumber, Stability, Timestamp, Token,
};
use flagstone_platform::Platform;
use flagstone_sim::Rng;

use super::NOTHING;
use super::calls::{Answer, Answered, Call, Made};
use super::keeping::Keeps;
use super::trees::{Tree, try_walk};

/// What clients are to do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) clients: u64,
    /// Calls of each.
    pub(crate) steps: usize,
    /// Only writes that are durable when they are answered: what a power loss may undo can't be judged.
    pub(crate) stable_only: bool,
    /// Listings with attributes: which an implementation may give each of its own moment.
    pub(crate) lists_attributes: bool,
    /// Where writes begin at most.
    pub(crate) reach_bytes: u64,
    /// Clients pause up to so long before a call, now and then.
    pub(crate) pause_ns: u64,
    /// One call in so many is about snapshots or makes a copy; none if this is zero.
    pub(crate) kept_one_in: u64,
    /// Everything goes back to a snapshot now and then.
    pub(crate) rolls_back: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            clients: 1,
            steps: 300,
            stable_only: false,
            lists_attributes: true,
            reach_bytes: 40_000,
            pause_ns: 100_000,
            kept_one_in: 0,
            rolls_back: false,
        }
    }
}

/// A call, when it began and ended by the history's own count, and what was answered. None: nothing was, as the
/// world had ended. It may have happened or not.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) begun: u64,
    pub(crate) ended: Option<(u64, Answered)>,
    /// What the filesystem's clock said then.
    pub(crate) clock: Timestamp,
    pub(crate) caller: Caller,
    pub(crate) call: Call,
}

/// A snapshot of which a client has heard.
#[derive(Clone)]
struct KnownSnapshot {
    name: String,
    number: SnapshotNumber,
    is_gone: bool,
}

/// What is in snapshots.
pub(crate) type Trees = BTreeMap<SnapshotNumber, Rc<Tree>>;

#[derive(Clone, Default)]
struct Known {
    events: Vec<Event>,
    count: u64,
    /// Files that some answer has shown, gone ones among them.
    files: Vec<FileId>,
    /// Names that some call has given.
    names: Vec<(FileId, Vec<u8>)>,
    cookies: Vec<(FileId, Cookie)>,
    changed: Vec<(FileId, Timestamp)>,
    clients: Cell<u64>,
    snapshots: Vec<KnownSnapshot>,
    /// What somebody has seen in snapshots.
    trees: Trees,
}

/// What clients have done. A cheap handle, which outlives the world they lived in.
#[derive(Clone, Default)]
pub(crate) struct History {
    known: Rc<RefCell<Known>>,
}

const NAMES: [&[u8]; 9] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"e",
    b"f",
    &[b'x'; 255],
    b"\xff\xfe",
    b"A",
];
const SENSELESS: [&[u8]; 5] = [b"", b".", b"..", b"a/b", &[b'y'; 256]];
/// So few that some are given once more.
const SNAPSHOT_NAMES: [&str; 6] = ["mon", "tue", "wed", "thu", "fri", "sat"];
/// Whoever is told to come again later does so then.
const LATER_NS: u64 = 1_000_000;

impl History {
    /// All calls since the last time, in the order in which they began. The clients must be gone.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.known.borrow_mut().events)
    }

    /// How many calls have begun since the events were taken.
    pub(crate) fn len(&self) -> usize {
        self.known.borrow().events.len()
    }

    /// Another one that is as this one is now.
    pub(crate) fn fork(&self) -> History {
        let known = self.known.borrow().clone();
        History {
            known: Rc::new(RefCell::new(known)),
        }
    }

    /// What has been seen in snapshots so far. Who sees something else there has found a mistake.
    pub(crate) fn trees(&self) -> Trees {
        self.known.borrow().trees.clone()
    }

    /// Says which snapshots there are when the next life begins.
    pub(crate) fn set_snapshots(&self, infos: &[SnapshotInfo]) {
        let known = |info: &SnapshotInfo| KnownSnapshot {
            name: info.name.clone(),
            number: info.number,
            is_gone: false,
        };
        self.known.borrow_mut().snapshots = infos.iter().map(known).collect();
    }

    /// Notes what is in a snapshot, which is the same whenever somebody looks.
    pub(crate) fn see(&self, at: SnapshotNumber, tree: Tree) {
        let trees = &mut self.known.borrow_mut().trees;
        let Some(seen) = trees.get(&at) else {
            trees.insert(at, Rc::new(tree));
            return;
        };
        let differences = seen.as_now().differences(&tree.as_now());
        assert_eq!(differences, [""; 0], "the snapshot {at:?} has changed");
    }

    /// Starts the clients. They end by themselves, or with their world. May be called again for another life
    /// of the filesystem, after what was left without an answer was judged.
    pub(crate) fn start<F: Keeps, P: Platform>(
        &self,
        platform: &P,
        fs: &F,
        plan: &Plan,
        rng: &mut Rng,
    ) {
        for _ in 0..plan.clients {
            let number = self.known.borrow().clients.get() + 1;
            self.known.borrow().clients.set(number);
            let client = RandomClient {
                history: self.clone(),
                platform: platform.clone(),
                fs: fs.clone(),
                plan: plan.clone(),
                rng: Rng::new(rng.next_u64()),
                number,
                calls: 0,
            };
            platform.spawn(client.run());
        }
    }

    fn begin(&self, caller: &Caller, call: &Call) -> usize {
        let mut known = self.known.borrow_mut();
        known.count += 1;
        let event = Event {
            begun: known.count,
            ended: None,
            clock: Timestamp::default(),
            caller: caller.clone(),
            call: call.clone(),
        };
        known.events.push(event);
        known.events.len() - 1
    }

    fn end(&self, place: usize, clock: Timestamp, answered: Answered) {
        let mut known = self.known.borrow_mut();
        known.count += 1;
        let ended = known.count;
        match &answered {
            Ok(answer) => known.learn(place, answer),
            Err(FileError::Stale) if !ended.is_multiple_of(8) => known.forget(place),
            Err(_) => {}
        }
        known.events[place].ended = Some((ended, answered));
        known.events[place].clock = clock;
    }
}

impl Known {
    /// What is gone is of little interest.
    fn forget(&mut self, place: usize) {
        let call = &self.events[place].call;
        if let Some((file, other)) = call.subjects()
            && file == other
            && call.is_of_now()
        {
            self.files.retain(|known| *known != file);
        }
    }

    fn learn(&mut self, place: usize, answer: &Answer) {
        let mut files = Vec::new();
        match (answer, &self.events[place].call) {
            (Answer::Found(found), _) => files.push(found.node.file),
            (
                Answer::Created(created),
                Call::Make(directory, name, ..) | Call::Copy(_, directory, name),
            ) => {
                files.push(created.node.file);
                self.names.push((directory.file, name.clone()));
            }
            (Answer::Renamed(..), Call::Rename(_, _, directory, name))
            | (Answer::Linked(..), Call::Link(_, directory, name)) => {
                self.names.push((directory.file, name.clone()));
            }
            (Answer::Changed(changes), Call::Set(node, ..)) => {
                let changed = (node.file, changes.after.changed);
                self.changed.push(changed);
            }
            (Answer::Attributes(attributes), Call::Attributes(node)) => {
                let changed = (node.file, attributes.changed);
                self.changed.push(changed);
            }
            (Answer::Listed(listing), Call::List(directory, ..)) => {
                let directory = directory.file;
                let cookies = listing.entries.iter();
                self.cookies
                    .extend(cookies.map(|entry| (directory, entry.cookie)));
                files.extend(listing.entries.iter().map(|entry| entry.node.file));
            }
            (Answer::Taken(number, _), Call::TakeSnapshot(name)) => {
                let taken = KnownSnapshot {
                    name: name.clone(),
                    number: *number,
                    is_gone: false,
                };
                self.snapshots.push(taken);
            }
            (Answer::Done, Call::DeleteSnapshot(name)) => {
                let of_name = self.snapshots.iter_mut();
                of_name
                    .filter(|known| known.name == *name)
                    .for_each(|known| known.is_gone = true);
            }
            _ => {}
        }
        for file in files {
            if !self.files.contains(&file) {
                self.files.push(file);
            }
        }
    }
}

struct RandomClient<F, P> {
    history: History,
    platform: P,
    fs: F,
    plan: Plan,
    rng: Rng,
    number: u64,
    calls: u64,
}

impl<F: Keeps, P: Platform> RandomClient<F, P> {
    async fn run(mut self) {
        for _ in 0..self.plan.steps {
            if self.rng.below(4) == 0 {
                let pause_ns = self.rng.below(self.plan.pause_ns + 1);
                self.platform.sleep_ns(pause_ns).await;
            }
            if self.plan.kept_one_in > 0 && self.rng.below(self.plan.kept_one_in) == 0 {
                self.keep().await;
                continue;
            }
            let caller = self.caller();
            let call = self.call();
            let answered = self.perform(&caller, &call).await;
            // Now and then the answer gets lost on its way, and the call comes again.
            if caller.token.is_some() && self.rng.below(6) == 0 {
                let _ = self.perform(&caller, &call).await;
            }
            if self.plan.rolls_back && answered == Err(FileError::Later) {
                self.platform.sleep_ns(LATER_NS).await;
            }
        }
    }

    async fn perform(&self, caller: &Caller, call: &Call) -> Answered {
        let place = self.history.begin(caller, call);
        let answered = call.perform(&self.fs, caller).await;
        let clock = Timestamp::from_ns(self.platform.wall_clock_ns());
        self.history.end(place, clock, answered.clone());
        answered
    }

    /// Makes a copy, or does something about snapshots.
    async fn keep(&mut self) {
        let caller = Caller {
            token: None,
            ..self.caller()
        };
        match self.rng.below(10) {
            0..=2 => {
                let name = SNAPSHOT_NAMES[self.rng.index(SNAPSHOT_NAMES.len())].to_owned();
                let _ = self.perform(&caller, &Call::TakeSnapshot(name)).await;
            }
            3..=4 => {
                let Some(known) = self.snapshot() else { return };
                // Once it is gone nobody can say what was in it.
                if let Ok(tree) = try_walk(&self.fs, known.number).await {
                    self.history.see(known.number, tree);
                }
                let call = Call::DeleteSnapshot(known.name);
                let _ = self.perform(&caller, &call).await;
            }
            5 if self.plan.rolls_back => {
                let Some(known) = self.snapshot() else { return };
                let _ = self.perform(&caller, &Call::RollBack(known.name)).await;
            }
            _ => self.copy(&caller).await,
        }
    }

    async fn copy(&mut self, caller: &Caller) {
        let call = Call::Copy(self.file(), self.directory(), self.name());
        if let Ok(Answer::Created(created)) = self.perform(caller, &call).await {
            // What was copied isn't answered, and who judges should see it soon.
            let root = Caller::default();
            let read = Call::Read(created.node, 0, 1 << 20);
            let _ = self.perform(&root, &read).await;
        }
    }

    /// A snapshot, that is there by preference.
    fn snapshot(&mut self) -> Option<KnownSnapshot> {
        let known = self.history.known.borrow();
        let with_gone = self.rng.below(8) == 0;
        let all = known.snapshots.iter();
        let all = all.filter(|known| with_gone || !known.is_gone);
        let all: Vec<&KnownSnapshot> = all.collect();
        match all.len() {
            0 => None,
            len => Some(all[self.rng.index(len)].clone()),
        }
    }

    /// The file as it is now, or now and then as a snapshot has it.
    fn as_of(&mut self, file: FileId) -> Node {
        let is_of_now = self.plan.kept_one_in == 0 || self.rng.below(6) > 0;
        let snapshot = match is_of_now {
            true => None,
            false => self.snapshot(),
        };
        let at = snapshot.map_or(SnapshotNumber::LIVE, |known| known.number);
        Node { file, at }
    }

    fn caller(&mut self) -> Caller {
        let (uid, gid, groups) = match self.rng.below(6) {
            0 => (5, 50, vec![51]),
            1 => (6, 50, vec![52, 51]),
            _ => (0, 0, vec![]),
        };
        self.calls += 1;
        let token = Token {
            client: self.number,
            call: self.calls,
        };
        Caller {
            uid,
            gid,
            groups: groups.into_iter().collect(),
            token: self.rng.coin().then_some(token),
        }
    }

    /// Any file, by preference a later one, and often the topmost directory.
    fn node(&mut self) -> Node {
        let history = self.history.clone();
        let known = history.known.borrow();
        if known.files.is_empty() || self.rng.below(4) == 0 {
            return self.as_of(self.fs.root());
        }
        let from = match self.rng.below(3) {
            0 => 0,
            _ => known.files.len().saturating_sub(8),
        };
        let place = from + self.rng.index(known.files.len() - from);
        self.as_of(known.files[place])
    }

    /// A directory, mostly.
    fn directory(&mut self) -> Node {
        for _ in 0..12 {
            let node = self.node();
            if node.file.file == 0 {
                return node;
            }
        }
        self.node()
    }

    /// No directory, mostly.
    fn file(&mut self) -> Node {
        for _ in 0..12 {
            let node = self.node();
            if node.file.file != 0 {
                return node;
            }
        }
        self.node()
    }

    /// A name that is probably there.
    fn entry(&mut self) -> (Node, Vec<u8>) {
        if self.rng.below(3) == 0 {
            return (self.directory(), self.name());
        }
        let history = self.history.clone();
        let known = history.known.borrow();
        let from = known.names.len().saturating_sub(12);
        match known.names.len() - from {
            0 => (self.as_of(self.fs.root()), b"a".to_vec()),
            count => {
                let (directory, name) = known.names[from + self.rng.index(count)].clone();
                (self.as_of(directory), name)
            }
        }
    }

    fn name(&mut self) -> Vec<u8> {
        let names: &[&[u8]] = if self.rng.below(40) == 0 {
            &SENSELESS
        } else {
            &NAMES
        };
        names[self.rng.index(names.len())].to_vec()
    }

    fn set(&mut self) -> SetAttributes {
        let rng = &mut self.rng;
        let mut set = NOTHING;
        let time = |rng: &mut Rng| match rng.below(4) {
            0 => SetTime::Now,
            1 => SetTime::To(Timestamp {
                seconds: rng.below(5).cast_signed(),
                nanoseconds: 7,
            }),
            _ => SetTime::Keep,
        };
        if rng.coin() {
            let modes = [0o777, 0o777, 0o755, 0o644, 0o600, 0o1777, 0o2775, 0o6755, 0];
            set.mode = Some(modes[rng.index(modes.len())]);
        }
        if rng.below(6) == 0 {
            set.uid = Some(5 + rng.below(2) as u32);
        }
        if rng.below(6) == 0 {
            set.gid = Some(50 + rng.below(3) as u32);
        }
        if rng.below(4) == 0 {
            set.size_bytes = Some(rng.below(self.plan.reach_bytes));
        }
        set.accessed = time(rng);
        set.modified = time(rng);
        set
    }

    fn made(&mut self) -> Made {
        match self.rng.below(10) {
            0..=2 => Made::File(Creation::Unchecked),
            3..=4 => Made::File(Creation::Guarded),
            5 => Made::File(Creation::Exclusive(self.rng.below(2))),
            6..=7 => Made::Directory,
            8 => {
                let len = self.rng.below(40) as usize;
                Made::SymbolicLink(vec![b't'; len])
            }
            _ => Made::Special(FileKind::Pipe),
        }
    }

    fn stability(&mut self) -> Stability {
        match self.plan.stable_only || self.rng.coin() {
            true => Stability::Stable,
            false => Stability::Unstable,
        }
    }

    fn call(&mut self) -> Call {
        match self.rng.below(30) {
            0..=11 => self.look(),
            12..=14 => self.write(),
            15..=16 => self.set_some(),
            _ => self.change_names(),
        }
    }

    fn look(&mut self) -> Call {
        match self.rng.below(12) {
            0 => Call::Attributes(self.node()),
            1 => {
                let wanted = AccessMask {
                    read: true,
                    lookup: self.rng.coin(),
                    modify: true,
                    extend: true,
                    delete: self.rng.coin(),
                    execute: true,
                };
                Call::Access(self.node(), wanted)
            }
            2..=4 => {
                let (directory, name) = self.entry();
                Call::Lookup(directory, name)
            }
            5 => Call::ReadLink(self.file()),
            6..=7 => {
                let offset = self.rng.below(self.plan.reach_bytes);
                let len = self.rng.below(20_000);
                Call::Read(self.file(), offset, len as u32)
            }
            8 => Call::Commit(self.file()),
            9..=10 => self.list(),
            _ => Call::Space,
        }
    }

    fn list(&mut self) -> Call {
        let (directory, count) = (self.directory(), 1 + self.rng.index(6));
        let with_attributes = self.rng.coin() && self.plan.lists_attributes;
        let history = self.history.clone();
        let known = history.known.borrow();
        let (directory, behind) = match self.rng.below(8) {
            0 => (directory, Cookie(u64::MAX)),
            1..=4 if !known.cookies.is_empty() => {
                let from = known.cookies.len().saturating_sub(30);
                let place = from + self.rng.index(known.cookies.len() - from);
                let (directory, cookie) = known.cookies[place];
                (self.as_of(directory), cookie)
            }
            _ => (directory, Cookie(0)),
        };
        Call::List(directory, behind, count, with_attributes)
    }

    fn write(&mut self) -> Call {
        let (node, offset) = (self.file(), self.rng.below(self.plan.reach_bytes));
        let lens = [1, 100, 4_096, 5_000, 20_000];
        let len_max = lens[self.rng.index(lens.len())];
        let mut data = vec![0; self.rng.index(len_max + 1)];
        self.rng.fill(&mut data);
        let offset = if self.rng.coin() { 0 } else { offset };
        Call::Write(node, offset, data, self.stability())
    }

    fn set_some(&mut self) -> Call {
        let (node, set) = (self.node(), self.set());
        let known = self.history.known.borrow();
        match self.rng.below(3) {
            0 if !known.changed.is_empty() => {
                let from = known.changed.len().saturating_sub(3);
                let place = from + self.rng.index(known.changed.len() - from);
                let (file, guard) = known.changed[place];
                Call::Set(Node::live(file), set, Some(guard))
            }
            1 if self.rng.below(4) == 0 => Call::Set(node, set, Some(Timestamp::default())),
            _ => Call::Set(node, set, None),
        }
    }

    fn change_names(&mut self) -> Call {
        match self.rng.below(13) {
            0..=4 => {
                let (directory, name, made) = (self.directory(), self.name(), self.made());
                // Mostly something that others can do something with.
                let set = match self.rng.below(4) {
                    0 => self.set(),
                    _ => super::mode(0o777),
                };
                Call::Make(directory, name, made, set)
            }
            5..=7 => {
                let (directory, name) = self.entry();
                match self.rng.below(3) {
                    0 => Call::RemoveDirectory(directory, name),
                    _ => Call::Remove(directory, name),
                }
            }
            8..=11 => {
                let (from, name) = self.entry();
                let is_near = self.rng.coin();
                let to = if is_near { from } else { self.directory() };
                Call::Rename(from, name, to, self.name())
            }
            _ => Call::Link(self.file(), self.directory(), self.name()),
        }
    }
}
