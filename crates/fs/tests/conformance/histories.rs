//! Several clients that do whatever comes to their minds in a small space of names and files, and note it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flagstone_fs::{
    AccessMask, Caller, Cookie, Creation, FileError, FileId, FileKind, Files, Node, SetAttributes,
    SetTime, Stability, Timestamp, Token,
};
use flagstone_platform::Platform;
use flagstone_sim::Rng;

use super::NOTHING;
use super::calls::{Answer, Answered, Call, Made};

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
        }
    }
}

/// A call, when it began and ended by the history's own count, and what was answered. None: nothing was, as the
/// world had ended. It may have happened or not.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) begun: u64,
    pub(crate) ended: Option<(u64, Answered)>,
    pub(crate) caller: Caller,
    pub(crate) call: Call,
}

#[derive(Default)]
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

impl History {
    /// All calls since the last time, in the order in which they began. The clients must be gone.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.known.borrow_mut().events)
    }

    /// How many calls have begun since the events were taken.
    pub(crate) fn len(&self) -> usize {
        self.known.borrow().events.len()
    }

    /// Starts the clients. They end by themselves, or with their world. May be called again for another life
    /// of the filesystem, after what was left without an answer was judged.
    pub(crate) fn start<F: Files, P: Platform>(
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
            caller: caller.clone(),
            call: call.clone(),
        };
        known.events.push(event);
        known.events.len() - 1
    }

    fn end(&self, place: usize, answered: Answered) {
        let mut known = self.known.borrow_mut();
        known.count += 1;
        let ended = known.count;
        match &answered {
            Ok(answer) => known.learn(place, answer),
            Err(FileError::Stale) if !ended.is_multiple_of(8) => known.forget(place),
            Err(_) => {}
        }
        known.events[place].ended = Some((ended, answered));
    }
}

impl Known {
    /// What is gone is of little interest.
    fn forget(&mut self, place: usize) {
        if let Some((file, other)) = self.events[place].call.subjects()
            && file == other
        {
            self.files.retain(|known| *known != file);
        }
    }

    fn learn(&mut self, place: usize, answer: &Answer) {
        let mut files = Vec::new();
        match (answer, &self.events[place].call) {
            (Answer::Found(found), _) => files.push(found.node.file),
            (Answer::Created(created), Call::Make(directory, name, ..)) => {
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

impl<F: Files, P: Platform> RandomClient<F, P> {
    async fn run(mut self) {
        for _ in 0..self.plan.steps {
            if self.rng.below(4) == 0 {
                let pause_ns = self.rng.below(self.plan.pause_ns + 1);
                self.platform.sleep_ns(pause_ns).await;
            }
            let caller = self.caller();
            let call = self.call();
            self.perform(&caller, &call).await;
            // Now and then the answer gets lost on its way, and the call comes again.
            if caller.token.is_some() && self.rng.below(6) == 0 {
                self.perform(&caller, &call).await;
            }
        }
    }

    async fn perform(&self, caller: &Caller, call: &Call) {
        let place = self.history.begin(caller, call);
        let answered = call.perform(&self.fs, caller).await;
        self.history.end(place, answered);
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
        let known = self.history.known.borrow();
        if known.files.is_empty() || self.rng.below(4) == 0 {
            return Node::live(self.fs.root());
        }
        let from = match self.rng.below(3) {
            0 => 0,
            _ => known.files.len().saturating_sub(8),
        };
        let place = from + self.rng.index(known.files.len() - from);
        Node::live(known.files[place])
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
        let known = self.history.known.borrow();
        let from = known.names.len().saturating_sub(12);
        match known.names.len() - from {
            0 => (Node::live(self.fs.root()), b"a".to_vec()),
            count => {
                let (directory, name) = known.names[from + self.rng.index(count)].clone();
                (Node::live(directory), name)
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
        let known = self.history.known.borrow();
        let (directory, behind) = match self.rng.below(8) {
            0 => (directory, Cookie(u64::MAX)),
            1..=4 if !known.cookies.is_empty() => {
                let from = known.cookies.len().saturating_sub(30);
                let place = from + self.rng.index(known.cookies.len() - from);
                (Node::live(known.cookies[place].0), known.cookies[place].1)
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
