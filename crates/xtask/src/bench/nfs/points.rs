//! What is measured, in the order in which it runs, and the ratios to reach.

use super::data::Kind;
use super::tree::Tree;

/// What a point does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Load {
    /// 4 KiB reads of the small file, which is in memory.
    FromMemory,
    /// 4 KiB at random places of the large file.
    Random(Kind),
    /// 1 MiB after 1 MiB of the large file.
    Sequential(Kind),
    Create,
    GetAttributes,
    Lookup,
    List,
    Rename,
    Remove,
    Unpack,
}

/// One point of the benchmark.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) name: String,
    pub(super) load: Load,
    pub(super) depth: u32,
}

impl Point {
    /// What an operation is.
    pub(super) fn about(&self) -> String {
        let what = match self.load {
            Load::FromMemory => "4 KiB random reads of a file that is in memory",
            Load::Random(Kind::Reads) => "4 KiB random reads of a large file, from the device",
            Load::Random(Kind::Writes) => "4 KiB random writes of a large file, FILE_SYNC",
            Load::Random(Kind::Mix) => "four such reads to one such write",
            Load::Sequential(Kind::Writes) => "1 MiB sequential writes, UNSTABLE, and one COMMIT",
            Load::Sequential(_) => "1 MiB sequential reads of that, from the device",
            Load::Create => "CREATE, then 4 KiB as one WRITE with FILE_SYNC",
            Load::GetAttributes => "GETATTR of files drawn at random",
            Load::Lookup => "LOOKUP of names drawn at random",
            Load::List => "READDIRPLUS of the directory of those; entries are counted",
            Load::Rename => "RENAME within a directory",
            Load::Remove => "REMOVE of 4 KiB files",
            Load::Unpack => "files of a tree unpacked, one call at a time",
        };
        format!("{what}, depth {}", self.depth)
    }

    /// Whether an operation is a megabyte.
    pub(super) fn is_sequential(&self) -> bool {
        matches!(self.load, Load::Sequential(_))
    }

    /// Changes that have to be stable when answered, one after the other, for an operation at depth 1. `None`: none, or
    /// several are under way at a time.
    pub(super) fn stable_changes(&self, tree: &Tree) -> Option<f64> {
        match (self.depth, self.load) {
            (1, Load::Random(Kind::Writes) | Load::Rename | Load::Remove) => Some(1.0),
            (1, Load::Create) => Some(2.0),
            (1, Load::Unpack) => Some(tree.stable_changes_per_file()),
            _ => None,
        }
    }

    /// Whether it is about names rather than data.
    pub(super) fn is_metadata(&self) -> bool {
        !matches!(
            self.load,
            Load::FromMemory | Load::Random(_) | Load::Sequential(_)
        )
    }
}

/// Depths of the loads on names and attributes.
const NAME_DEPTHS: [u32; 3] = [1, 16, 32];
const DATA_DEPTHS: [u32; 3] = [1, 32, 128];

/// The points of every run.
pub(super) fn points() -> Vec<Point> {
    let mut points = Vec::new();
    let mut add = |name: &str, load: Load, depth: u32| {
        points.push(Point {
            name: format!("{name}{depth}"),
            load,
            depth,
        });
    };
    let random = [
        ("mem", Load::FromMemory),
        ("dev", Load::Random(Kind::Reads)),
        ("write", Load::Random(Kind::Writes)),
    ];
    for (name, load) in random {
        for depth in DATA_DEPTHS {
            add(name, load, depth);
        }
    }
    add("mix", Load::Random(Kind::Mix), 128);
    add("seqw", Load::Sequential(Kind::Writes), 8);
    add("seqr", Load::Sequential(Kind::Reads), 8);
    // What CREATE makes at a depth the others use, and REMOVE takes away.
    for depth in NAME_DEPTHS {
        add("create", Load::Create, depth);
        add("getattr", Load::GetAttributes, depth);
        add("lookup", Load::Lookup, depth);
        if depth < 32 {
            add("list", Load::List, depth);
        }
        add("rename", Load::Rename, depth);
        add("remove", Load::Remove, depth);
    }
    add("unpack", Load::Unpack, 1);
    points
}

/// Operations per second over those of the peer: at least.
pub(super) struct Goal {
    pub(super) point: &'static str,
    pub(super) bound: f64,
}

const fn goal(point: &'static str, bound: f64) -> Goal {
    Goal { point, bound }
}

pub(super) const GOALS: [Goal; 16] = [
    goal("mem32", 1.3),
    goal("dev1", 1.2),
    goal("dev32", 2.0),
    goal("write1", 1.2),
    goal("write32", 2.0),
    goal("seqw8", 1.0),
    goal("seqr8", 1.0),
    goal("create1", 1.0),
    goal("create16", 2.5),
    goal("getattr16", 1.3),
    goal("lookup16", 1.3),
    goal("rename1", 0.5),
    goal("rename16", 1.0),
    goal("remove1", 0.5),
    goal("remove16", 1.0),
    goal("unpack1", 1.2),
];

/// The operation that the cost model counts in, and those that it counts.
pub(super) const COST_UNIT: &str = "dev32";
pub(super) const COSTS: [&str; 9] = [
    "dev32",
    "mem32",
    "write32",
    "create32",
    "getattr32",
    "lookup32",
    "rename32",
    "remove32",
    "unpack1",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_and_costs_are_of_points_that_are_measured() {
        let points = points();
        let is_there = |name: &str| points.iter().any(|point| point.name == name);
        assert!(GOALS.iter().all(|goal| is_there(goal.point)));
        assert!(is_there(COST_UNIT) && COSTS.iter().all(|name| is_there(name)));
    }
}
