//! A move that a crash cuts off goes on from its last point, and what arrives is the origin as the crash left it: also where a write that the crash
//! took away had been copied before it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use flagstone_device::engine::{DvolError, Engine, EngineOptions, Handle, Piece, Stability};
use flagstone_device::transfer::{
    Content, DvolOrigin, DvolTarget, Found, Gate, Gone, Mark, Marks, NewDvol, Origin, Part, Parts,
    Progress, Verdict, What, move_dvol, settle,
};
use flagstone_platform::Platform;
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, DiskConfig, RunEnd, SimDisk, SimPlatform, World,
};
use flagstone_types::{Epoch, LayerNo, Lsn};

use super::{BLOCK, BLOCKS, ID, TestMarks, content, mark_of, new_dvol, open};
use crate::engine_support::begin;

/// Bytes of a part, and from point to point: several of each in what is copied.
const PART: u64 = 4 * BLOCK;
const POINT_AFTER: u64 = 8 * BLOCK;

/// What some of them are for a while.
const SMALL_BYTES: u64 = 77 * BLOCK + 700;

/// What each block holds, by number.
type State = BTreeMap<u64, u64>;

/// What was seen in many lives.
#[derive(Default)]
struct Seen {
    /// Moves that went on, and bytes that those copied, and that had been copied by then.
    resumed: u64,
    copied: u64,
    had: u64,
    /// Lives that found blocks in the copy behind its point which the origin didn't have so.
    taken_back: u64,
    /// Moves that went on in a snapshot, and in what is now.
    in_snapshots: u64,
    in_rounds: u64,
}

/// Counts what is copied.
#[derive(Clone, Default)]
struct Counted {
    had: Rc<Cell<u64>>,
    copied: Rc<Cell<u64>>,
}

impl Progress for Counted {
    async fn copied(&self, bytes: u64) -> Result<(), DvolError> {
        self.copied.set(self.copied.get() + bytes);
        Ok(())
    }

    fn resumed(&self, copied_bytes: u64) {
        self.had.set(copied_bytes);
    }
}

/// One device's dvol while it is being moved.
struct Scene {
    platform: SimPlatform,
    from: (Engine<SimPlatform>, Handle),
    gate: Rc<Gate>,
    to: RefCell<Option<(Engine<SimPlatform>, Handle)>>,
    /// What was written and has been answered, over what was there.
    state: RefCell<State>,
    counted: Counted,
}

impl Scene {
    /// Writes some blocks, each writer its own, most of them so that a crash may take them away.
    async fn write(&self, writer: u64, times: u64) {
        for _ in 0..times {
            let drawn = self.platform.random_u64();
            let block = drawn % (BLOCKS / 4) * 4 + writer;
            let number = match drawn >> 40 & 7 {
                0 => 0,
                _ => drawn >> 8 | 1,
            };
            let stability = match drawn >> 44 & 7 {
                0 => Stability::Stable,
                _ => Stability::Unstable,
            };
            let entered = self.gate.enter().await;
            let (engine, handle) = match &entered {
                Ok(_) => self.from.clone(),
                Err(Gone) => self.to.borrow().clone().expect("is there"),
            };
            let at = block * BLOCK;
            let done = match number {
                0 => engine.deallocate(handle, at, BLOCK, stability).await,
                _ => {
                    let write = engine.write_ex(handle, at, content(number), number, stability);
                    write.await
                }
            };
            done.expect("is written");
            self.state.borrow_mut().insert(block, number);
            self.platform.sleep_ns(drawn >> 46).await;
        }
    }

    /// Moves it, from a copy that was left if there is one. Returns where it is, and what that took.
    async fn go(&self, to: &Engine<SimPlatform>, left: Option<Handle>) -> (Handle, Counted) {
        let (from, handle) = self.from.clone();
        let device = to.superblock().device_id.0;
        let new = NewDvol {
            id: ID,
            name: "vm".into(),
            reserved_bytes: 0,
            attributes: TestMarks.plain(&from.attributes_of(handle).expect("is there")),
        };
        let origin = DvolOrigin::new(from.clone(), handle, self.gate.clone(), TestMarks, device);
        origin.set_parts(Parts {
            bytes: PART,
            ..Parts::QUICK
        });
        let target = DvolTarget::new(to.clone(), TestMarks, new).with_points(POINT_AFTER);
        let target = match left {
            Some(left) => target.left_at(left),
            None => target,
        };
        let counted = self.counted.clone();
        let meddling = Meddling {
            origin: &origin,
            scene: self,
            is_held: Cell::new(false),
        };
        let moved = move_dvol(&meddling, &target, &counted).await;
        moved.expect("is moved");
        let made = target.made().expect("was made");
        *self.to.borrow_mut() = Some((to.clone(), made));
        self.gate.leave();
        from.delete(handle, true).await.expect("deletes");
        (made, counted)
    }
}

/// The origin, of which a block of each part is written just before it is read, so that a crash may take away what has been copied.
struct Meddling<'a> {
    origin: &'a DvolOrigin<SimPlatform, TestMarks>,
    scene: &'a Scene,
    is_held: Cell<bool>,
}

impl Origin for Meddling<'_> {
    async fn content(&self) -> Result<Content, DvolError> {
        self.origin.content().await
    }

    async fn part(
        &self,
        of: Option<LayerNo>,
        what: What,
        within: Range<u64>,
    ) -> Result<Part, DvolError> {
        let block = (within.start / BLOCK) | 3;
        if of.is_none() && !self.is_held.get() && block < BLOCKS {
            let (engine, handle) = self.scene.from.clone();
            let number = self.scene.platform.random_u64() >> 8 | 1;
            let (at, data) = (block * BLOCK, content(number));
            let _in = self.scene.gate.enter().await;
            let write = engine.write_ex(handle, at, data, number, Stability::Unstable);
            write.await?;
            self.scene.state.borrow_mut().insert(block, number);
        }
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
        self.is_held.set(true);
        self.origin.hold().await
    }
}

/// Two devices, the first with a dvol that has two snapshots and is being moved to the second and written, until the power fails. Returns how many changes of
/// the disks that took, and whether some of it was copied.
fn first_life(seed: u64, crash: Option<u64>) -> ([SimDisk; 2], u64, bool) {
    let disks = [64 << 20, 64 << 20].map(|size| SimDisk::new(DiskConfig::new(size)));
    let world = World::new(seed);
    let platform = world.platform(0);
    let opening = (platform.clone(), disks.clone());
    let (from, to, handle) = world.block_on(0, async move {
        let (platform, [a, b]) = opening;
        let from = begin(&platform, &a, EngineOptions::default()).await;
        let to = begin(&platform, &b, EngineOptions::default()).await;
        let mut attributes = [0; _];
        attributes[1] = 7;
        let made = from.create_with(new_dvol(), attributes).await;
        let handle = made.expect("creates");
        let write = async |block: u64, number: u64| {
            let at = block * BLOCK;
            let data = content(number);
            let write = from.write_ex(handle, at, data, number, Stability::Stable);
            write.await.expect("writes");
        };
        for block in 0..60 {
            write(block, 1000 + block).await;
        }
        for (round, name) in ["one", "two"].into_iter().enumerate() {
            for block in 0..25 {
                write(block * 3 + round as u64, 2000 + block).await;
            }
            let dvols = [(handle, name.into())];
            let taken = from.snapshot_at(&dvols, 4000 + round as u64).await;
            taken.expect("takes a snapshot");
            // Of every second one both have another size, of which the second ends in a block.
            if seed.is_multiple_of(2) {
                let size_bytes = [SMALL_BYTES, BLOCKS * BLOCK][round];
                let resized = from.resize(handle, size_bytes).await;
                resized.expect("has another size");
            }
        }
        for block in 40..90 {
            write(block, 3000 + block).await;
        }
        (from, to, handle)
    });
    let before = world.changes_started();
    crash_at(&world, before, crash);
    let done = Rc::new(Cell::new(false));
    let (told, all) = (done.clone(), Counted::default());
    let counted = all.clone();
    world.spawn(0, async move {
        let scene = Scene {
            platform,
            from: (from, handle),
            gate: Rc::new(Gate::default()),
            to: RefCell::default(),
            state: RefCell::default(),
            counted,
        };
        work(&scene, &to, None).await;
        told.set(true);
    });
    let changes = run(&world, before, &done, seed);
    lose_power(world, &disks);
    (disks, changes, all.copied.get() > 0)
}

fn crash_at(world: &World, before: u64, crash: Option<u64>) {
    if let Some(nth) = crash {
        world.crash_at(CrashPoint {
            nth: before + nth,
            counting: Counting::Changes,
            moment: match nth % 3 {
                0 => CrashMoment::Before,
                1 => CrashMoment::InFlight,
                _ => CrashMoment::Completed,
            },
        });
    }
}

/// Runs what was spawned to its end or to the crash. Returns how many changes of the disks that were.
fn run(world: &World, before: u64, done: &Rc<Cell<bool>>, seed: u64) -> u64 {
    let seen = done.clone();
    let end = world.run_until(move || seen.get());
    assert!(end == RunEnd::Crashed || done.get(), "seed {seed}: {end:?}");
    world.changes_started() - before
}

fn lose_power(world: World, disks: &[SimDisk; 2]) {
    let mut rng = world.crash();
    for disk in disks {
        disk.power_loss(&mut rng);
    }
}

/// Moves it while three writers change it.
async fn work(scene: &Scene, to: &Engine<SimPlatform>, left: Option<Handle>) -> (Handle, Counted) {
    let moved = RefCell::new(None);
    let mut tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    for writer in 0..3 {
        tasks.push(Box::pin(scene.write(writer, 20)));
    }
    let going = async {
        *moved.borrow_mut() = Some(scene.go(to, left).await);
    };
    tasks.push(Box::pin(going));
    flagstone_device::engine::join_all(tasks).await;
    moved.take().expect("is over")
}

/// What a start finds.
struct Started {
    served: (Engine<SimPlatform>, Handle),
    /// A copy that goes on, and where.
    left: Option<(Engine<SimPlatform>, Handle)>,
    second: Engine<SimPlatform>,
}

async fn start(platform: &SimPlatform, disks: &[SimDisk; 2]) -> Started {
    let engines = [
        open(platform, &disks[0]).await,
        open(platform, &disks[1]).await,
    ];
    let mut there = Vec::new();
    for engine in &engines {
        for dvol in engine.dvols() {
            there.push((engine.clone(), dvol));
        }
    }
    let found: Vec<Found> = there
        .iter()
        .map(|(engine, dvol)| Found {
            device: engine.superblock().device_id.0,
            mark: mark_of(&dvol.attributes),
            epoch: dvol.epoch,
        })
        .collect();
    let (mut served, mut left) = (None, None);
    for ((engine, dvol), verdict) in there.iter().zip(settle(&found, |_| true)) {
        match verdict {
            Verdict::Delete => engine.delete(dvol.handle, true).await.expect("deletes"),
            Verdict::Close | Verdict::Wait(_) => panic!("{found:?}"),
            Verdict::Resume => left = Some((engine.clone(), dvol.handle)),
            Verdict::Serve | Verdict::Unmark | Verdict::Origin => {
                let marked = match mark_of(&dvol.attributes) {
                    Mark::Going(to) | Mark::Leaving(to) if verdict == Verdict::Origin => {
                        TestMarks.going(&dvol.attributes, to)
                    }
                    _ => TestMarks.plain(&dvol.attributes),
                };
                let marked = engine.set_attributes(dvol.handle, marked);
                marked.await.expect("is marked");
                assert!(served.is_none(), "two are served: {found:?}");
                served = Some((engine.clone(), dvol.handle));
            }
        }
    }
    let [_, second] = engines;
    Started {
        served: served.expect("one is served"),
        left,
        second,
    }
}

/// What each block of a dvol or layer holds, its last part included.
async fn read(engine: &Engine<SimPlatform>, handle: Handle) -> State {
    let size_bytes = engine.size_of(handle).expect("is there");
    let mut found = State::new();
    for block in 0..size_bytes.div_ceil(BLOCK) {
        let at = block * BLOCK;
        let read = engine.read_ex(handle, at, BLOCK.min(size_bytes - at)).await;
        let (pieces, metas) = read.expect("can be read");
        let number = match &pieces[..] {
            [Piece::Data(data)] => u64::from_le_bytes(data[..8].try_into().expect("eight bytes")),
            _ => 0,
        };
        // A block that is cut off has no metadata of its own any more.
        assert!(metas[0].meta == number || size_bytes - at < BLOCK);
        found.insert(block, number);
    }
    found
}

/// What it holds, and what each of its snapshots holds.
async fn all_of(
    engine: &Engine<SimPlatform>,
    handle: Handle,
) -> (State, Vec<(String, u64, State)>) {
    let mut layers = engine.layers(ID);
    layers.sort_by_key(|layer| layer.handle.layer);
    let mut snapshots = Vec::new();
    for layer in layers {
        let state = read(engine, layer.handle).await;
        snapshots.push((layer.name, layer.created_ns, state));
    }
    (read(engine, handle).await, snapshots)
}

/// One more life of both devices: a move that was cut off goes on, up to a crash if there is one. If some of it was copied by then
/// (`is_begun`), it has to go on. Returns whether it came to its end.
fn next_life(
    seed: u64,
    disks: &[SimDisk; 2],
    crash: Option<u64>,
    is_begun: bool,
    seen: &Rc<RefCell<Seen>>,
) -> bool {
    let world = World::new(seed);
    let platform = world.platform(0);
    let opening = (platform.clone(), disks.clone(), seen.clone());
    let started = world.block_on(0, async move {
        let (platform, disks, seen) = opening;
        let started = start(&platform, &disks).await;
        if let Some((engine, copy)) = &started.left {
            let (of, taken_back) = looked_at(&started, engine, *copy).await;
            let mut seen = seen.borrow_mut();
            match of {
                Some(_) => seen.in_snapshots += 1,
                None => seen.in_rounds += 1,
            }
            seen.taken_back += taken_back;
        }
        let all = all_of(&started.served.0, started.served.1).await;
        (started, all)
    });
    let before = world.changes_started();
    crash_at(&world, before, crash);
    let done = Rc::new(Cell::new(false));
    let (told, seen) = (done.clone(), seen.clone());
    world.spawn(0, async move {
        let (started, (state, snapshots)) = started;
        let (to, left) = match &started.left {
            Some((engine, handle)) => (engine.clone(), Some(*handle)),
            // It had no point yet, or is over.
            None => (started.second, None),
        };
        let served = started.served.0.superblock().device_id;
        if to.superblock().device_id == served {
            told.set(true);
            return;
        }
        // At no moment is a copy worth nothing that has something.
        assert!(
            left.is_some() || !is_begun,
            "seed {seed}: what was copied is lost"
        );
        let scene = Scene {
            platform,
            from: started.served,
            gate: Rc::new(Gate::default()),
            to: RefCell::default(),
            state: RefCell::new(state),
            counted: Counted::default(),
        };
        let (made, counted) = work(&scene, &to, left).await;
        let what = format!("seed {seed}, a copy was left: {}", left.is_some());
        let (now, then) = all_of(&to, made).await;
        assert_eq!(now, *scene.state.borrow(), "{what}");
        assert_eq!(then, snapshots, "{what}");
        let attributes = to.attributes_of(made).expect("is there");
        assert_eq!((attributes[0], attributes[1]), (0, 7), "{what}");
        if left.is_some() {
            let mut seen = seen.borrow_mut();
            seen.resumed += 1;
            seen.copied += counted.copied.get();
            seen.had += counted.had.get();
        }
        told.set(true);
    });
    run(&world, before, &done, seed);
    lose_power(world, disks);
    done.get()
}

/// Looks at a copy that was left beside its origin. Returns which snapshot was being copied, and how many blocks the crash has taken from the origin
/// that were copied before.
async fn looked_at(
    started: &Started,
    engine: &Engine<SimPlatform>,
    copy: Handle,
) -> (Option<LayerNo>, u64) {
    let attributes = engine.attributes_of(copy).expect("is there");
    let point = TestMarks.point_of(&attributes).expect("has a point");
    let mut taken_back = 0;
    if point.of.is_some() {
        return (point.of, taken_back);
    }
    // What the copy has behind the point, and its origin hasn't: a crash took it away, since nobody has written since.
    let (served, handle) = &started.served;
    let (origin, copied) = (read(served, *handle).await, read(engine, copy).await);
    let size_bytes = engine.size_of(copy).expect("is there");
    let changed = engine
        .changed_since(copy, point.lsn, 0, size_bytes, 1000)
        .await;
    let mut at = 0;
    for extent in changed.expect("is known") {
        for block in at / BLOCK..(at + extent.len_bytes) / BLOCK {
            if extent.changed && origin[&block] != copied[&block] {
                let since = served
                    .changed_since(*handle, point.mark, block * BLOCK, BLOCK, 1)
                    .await;
                if since.is_ok_and(|since| !since[0].changed) {
                    taken_back += 1;
                }
            }
        }
        at += extent.len_bytes;
    }
    (None, taken_back)
}

#[test]
fn a_move_that_a_crash_cuts_off_at_any_moment_goes_on() {
    let seen = Rc::new(RefCell::new(Seen::default()));
    let (_, whole, _) = first_life(1, None);
    assert!(whole > 150, "{whole} changes of the disks");
    for nth in 0..whole {
        let (disks, _, is_begun) = first_life(1, Some(nth));
        assert!(
            next_life(nth ^ 0x77, &disks, None, is_begun, &seen),
            "{nth}"
        );
    }
    // Others, which die once or twice more.
    for seed in 2..150 {
        let (disks, _, is_begun) = first_life(seed, Some(seed * 7919 % whole));
        for life in 0..seed % 3 {
            let crash = (seed + life) * 6007 % whole;
            next_life(seed << 8 | life, &disks, Some(crash), is_begun, &seen);
        }
        let last = seed << 8 | 0xff;
        assert!(next_life(last, &disks, None, is_begun, &seen), "{seed}");
    }
    let seen = seen.borrow();
    let Seen {
        resumed,
        copied,
        had,
        taken_back,
        in_snapshots,
        in_rounds,
    } = *seen;
    println!(
        "{resumed} went on: {had} bytes had been copied, {copied} were; {in_snapshots} in snapshots, {in_rounds} in rounds; {taken_back} blocks taken back"
    );
    assert!(resumed > 100, "{resumed} went on");
    assert!(had > 0 && copied < resumed * 200 * BLOCK, "{had}, {copied}");
    assert!(
        in_snapshots > 20 && in_rounds > 20,
        "{in_snapshots}, {in_rounds}"
    );
    assert!(taken_back > 0, "what a crash takes away was copied before");
}
