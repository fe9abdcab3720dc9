//! What is measured: the points, in the order they run, and the ratios that each must reach.

/// The client that puts on the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Client {
    /// fio with its NBD engine, or on the raw file with io_uring.
    Fio,
    /// The small client in `tools/bench/nbd-fua.c`.
    Libnbd,
}

/// What the client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Load {
    RandomRead,
    RandomWrite,
    /// A flush after every write.
    WriteFlush,
    /// Each write with FUA; on the raw file O_DSYNC.
    WriteFua,
    SequentialRead,
    SequentialWrite,
    /// A fixed thousand operations per second, for the server's CPU only.
    TrickleRead,
    TrickleWrite,
}

impl Load {
    pub(super) fn is_write(self) -> bool {
        !matches!(
            self,
            Load::RandomRead | Load::SequentialRead | Load::TrickleRead
        )
    }

    pub(super) fn is_sequential(self) -> bool {
        matches!(self, Load::SequentialRead | Load::SequentialWrite)
    }

    pub(super) fn is_trickle(self) -> bool {
        matches!(self, Load::TrickleRead | Load::TrickleWrite)
    }

    /// Bytes of one request.
    pub(super) fn block_bytes(self) -> u64 {
        if self.is_sequential() { 1 << 20 } else { 4096 }
    }
}

/// Whether any of these points reads. Then every target is read in full before each round.
pub(super) fn any_reads(points: &[Point]) -> bool {
    points.iter().any(|point| !point.load.is_write())
}

/// Operations per second of the trickle.
pub(super) const TRICKLE_RATE: u32 = 1000;

/// One point of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) load: Load,
    pub(super) depth: u32,
    pub(super) client: Client,
}

const fn point(
    name: &'static str,
    about: &'static str,
    load: Load,
    depth: u32,
    client: Client,
) -> Point {
    Point {
        name,
        about,
        load,
        depth,
        client,
    }
}

/// The points of every run.
pub(super) const POINTS: [Point; 13] = [
    point(
        "rr1",
        "4 KiB random read, depth 1",
        Load::RandomRead,
        1,
        Client::Fio,
    ),
    point(
        "rr32",
        "4 KiB random read, depth 32",
        Load::RandomRead,
        32,
        Client::Fio,
    ),
    point(
        "rw1",
        "4 KiB random write, depth 1",
        Load::RandomWrite,
        1,
        Client::Fio,
    ),
    point(
        "rw32",
        "4 KiB random write, depth 32",
        Load::RandomWrite,
        32,
        Client::Fio,
    ),
    point(
        "wf1",
        "4 KiB write then flush, depth 1",
        Load::WriteFlush,
        1,
        Client::Fio,
    ),
    point(
        "wf32",
        "4 KiB write then flush, depth 32",
        Load::WriteFlush,
        32,
        Client::Fio,
    ),
    point(
        "fua1",
        "4 KiB write with FUA, depth 1",
        Load::WriteFua,
        1,
        Client::Libnbd,
    ),
    point(
        "fua32",
        "4 KiB write with FUA, depth 32",
        Load::WriteFua,
        32,
        Client::Libnbd,
    ),
    point(
        "so8",
        "1 MiB sequential read after random overwrites, depth 8",
        Load::SequentialRead,
        8,
        Client::Fio,
    ),
    point(
        "sw8",
        "1 MiB sequential write, depth 8",
        Load::SequentialWrite,
        8,
        Client::Fio,
    ),
    point(
        "sr8",
        "1 MiB sequential read of what was written so, depth 8",
        Load::SequentialRead,
        8,
        Client::Fio,
    ),
    point(
        "tr",
        "1,000 random reads a second",
        Load::TrickleRead,
        1,
        Client::Fio,
    ),
    point(
        "tw",
        "1,000 random writes a second",
        Load::TrickleWrite,
        1,
        Client::Fio,
    ),
];

/// The same loads through the other client, to hold fio's figures against (`--check-client`).
pub(super) const CHECK_POINTS: [Point; 6] = [
    point(
        "rr1-libnbd",
        "as rr1, libnbd client",
        Load::RandomRead,
        1,
        Client::Libnbd,
    ),
    point(
        "rr32-libnbd",
        "as rr32, libnbd client",
        Load::RandomRead,
        32,
        Client::Libnbd,
    ),
    point(
        "rw1-libnbd",
        "as rw1, libnbd client",
        Load::RandomWrite,
        1,
        Client::Libnbd,
    ),
    point(
        "rw32-libnbd",
        "as rw32, libnbd client",
        Load::RandomWrite,
        32,
        Client::Libnbd,
    ),
    point(
        "wf1-libnbd",
        "as wf1, libnbd client",
        Load::WriteFlush,
        1,
        Client::Libnbd,
    ),
    point(
        "wf32-libnbd",
        "as wf32, libnbd client",
        Load::WriteFlush,
        32,
        Client::Libnbd,
    ),
];

/// What a goal compares Flagstone with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Measure {
    /// Operations per second over those of the best peer with O_DIRECT: at least.
    RateToPeer,
    /// Operations per second over those of the raw file: at least.
    RateToRaw,
    /// Server CPU per operation over that of the thriftiest peer with O_DIRECT: at most.
    CpuToPeer,
    /// Server CPU in parts of one core: at most.
    CpuOfCore,
    /// Operations per second over our own at another point: at least.
    RateToOwn(&'static str),
}

/// One ratio that Flagstone is to reach.
pub(super) struct Goal {
    pub(super) point: &'static str,
    pub(super) measure: Measure,
    pub(super) bound: f64,
}

const fn goal(point: &'static str, measure: Measure, bound: f64) -> Goal {
    Goal {
        point,
        measure,
        bound,
    }
}

/// The pseudo-point of the idle servers.
pub(super) const IDLE: &str = "idle";

pub(super) const GOALS: [Goal; 18] = [
    goal("rr1", Measure::RateToPeer, 1.3),
    goal("rr32", Measure::RateToPeer, 1.2),
    goal("rr32", Measure::RateToRaw, 0.65),
    goal("rw1", Measure::RateToPeer, 1.3),
    goal("rw32", Measure::RateToPeer, 1.5),
    goal("wf1", Measure::RateToPeer, 1.4),
    goal("wf32", Measure::RateToPeer, 1.8),
    goal("fua1", Measure::RateToOwn("wf1"), 1.0),
    goal("fua32", Measure::RateToOwn("wf32"), 1.0),
    goal("sr8", Measure::RateToPeer, 1.0),
    goal("sw8", Measure::RateToPeer, 1.0),
    goal("rr32", Measure::CpuToPeer, 0.7),
    goal("rw32", Measure::CpuToPeer, 0.7),
    goal("wf32", Measure::CpuToPeer, 0.7),
    goal("fua32", Measure::CpuToPeer, 0.7),
    goal("tr", Measure::CpuOfCore, 0.15),
    goal("tw", Measure::CpuOfCore, 0.15),
    goal(IDLE, Measure::CpuOfCore, 0.02),
];
