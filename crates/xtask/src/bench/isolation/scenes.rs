//! The experiments: who shares a device, how, and what disturbs them.

use super::beside::Beside;
use super::device::{BARE, DOUBLE, Device, QUICK, ROOMY, SLOW, SLOW_FOR_LARGE};
use super::load::{Mix, Tenant, Uses};
use super::moved::{To, VICTIM};

/// Tenants of the large scene.
const MANY: u32 = 100;
/// Blocks enough that none is read often; all of it is memory.
const VOLUME_BYTES: u64 = 256 << 20;
const SMALL_VOLUME_BYTES: u64 = 16 << 20;

/// So little that several moves fit into a third.
const MOVED_VOLUME_BYTES: u64 = 4 << 20;

const READS: Mix = Mix {
    writes: 0,
    blocks: &[1],
};
/// The paper's: seven reads of ten.
const MIXED: Mix = Mix {
    writes: 30,
    blocks: &[1],
};
/// 4 to 64 KiB.
const READS_OF_ALL_SIZES: Mix = Mix {
    writes: 0,
    blocks: &[1, 2, 4, 8, 16],
};
const ALL_SIZES_AND_KINDS: Mix = Mix {
    writes: 70,
    blocks: &[1, 2, 4, 8, 16],
};
const LARGE_WRITES: Mix = Mix {
    writes: 100,
    blocks: &[64],
};

/// Who goes next, as the command line has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Policy {
    FirstCome,
    Strict,
    Deficit,
}

impl Policy {
    pub(super) fn name(self) -> &'static str {
        match self {
            Policy::FirstCome => "first-come",
            Policy::Strict => "strict",
            Policy::Deficit => "deficit",
        }
    }

    /// What a node has until its load begins. Strict time sharing gives its own work an eightieth of an idle device, too: laying
    /// out what the tenants' volumes have would take minutes.
    pub(super) fn while_it_settles(self) -> Policy {
        match self {
            Policy::Strict => Policy::Deficit,
            policy => policy,
        }
    }
}

/// An experiment.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) policies: &'static [Policy],
    pub(super) device: Device,
    pub(super) cores: u32,
    pub(super) volume_bytes: u64,
    pub(super) tenants: Vec<Tenant>,
    /// What the node does besides while the burst lasts.
    pub(super) beside: Option<Beside>,
    /// Connections of each protocol that behave badly while the burst lasts, which is all that bursts then.
    pub(super) hostile: usize,
}

impl Scene {
    /// Whether somebody uses a filesystem.
    pub(super) fn has_files(&self) -> bool {
        let mut tenants = self.tenants.iter();
        tenants.any(|tenant| tenant.uses == Uses::File)
    }

    /// Whether somebody writes so much that the device needs memory for it that it had no need for before.
    pub(super) fn grows(&self) -> bool {
        self.tenants.iter().any(|tenant| tenant.mix == LARGE_WRITES)
    }

    /// Whether something happens in the middle third; else all are greedy, and their shares are what counts.
    pub(super) fn has_burst(&self) -> bool {
        self.hostile > 0 || self.moves_victim().is_some() || self.tenants.iter().any(Tenant::bursts)
    }

    /// Where a tenant's own volume is moved.
    pub(super) fn moves_victim(&self) -> Option<To> {
        match self.beside {
            Some(Beside::Victim(to)) => Some(to),
            _ => None,
        }
    }

    /// Whether this tenant is to keep what it has whatever the others do, and what the node does besides.
    pub(super) fn is_neighbour(&self, tenant: &Tenant) -> bool {
        !tenant.bursts() && (self.moves_victim().is_none() || tenant.name != VICTIM)
    }
}

const ALL: &[Policy] = &[Policy::FirstCome, Policy::Strict, Policy::Deficit];
const ISOLATING: &[Policy] = &[Policy::Strict, Policy::Deficit];

/// All of them, in the order of the report.
pub(super) fn scenes() -> Vec<Scene> {
    let mut all = vec![figure13(), greedy()];
    all.extend(variations());
    all.extend([
        moved(
            "moved-core",
            To::Core,
            "three tenants with 2 in flight each, three writes among ten requests, on a device with room for more; in the middle third the first one's \
             own volume is moved to another core and back, again and again",
        ),
        moved(
            "moved-device",
            To::Device,
            "the same with 4 in flight each, and it is moved to another device of the node and back",
        ),
    ]);
    all.push(hostile());
    all.push(hundred());
    all
}

fn figure13() -> Scene {
    Scene {
        name: "figure13",
        about: "three tenants of equal shares, reads of 4 KiB, 30 in flight each, which leaves the device at nine tenths; \
                one has 90 in flight in the middle third",
        policies: ALL,
        device: SLOW,
        cores: 1,
        volume_bytes: VOLUME_BYTES,
        tenants: three([READS; 3], [30; 3]),
        beside: None,
        hostile: 0,
    }
}

fn greedy() -> Scene {
    Scene {
        name: "greedy",
        about: "the same on a device without latency of its own, where each of them alone could use all of it",
        device: BARE,
        ..figure13()
    }
}

fn variations() -> [Scene; 8] {
    let variation = |name, about| Scene {
        name,
        about,
        policies: ISOLATING,
        ..figure13()
    };
    [
        Scene {
            tenants: three([MIXED; 3], [20; 3]),
            ..variation(
                "kinds",
                "each with three writes among ten requests, as in the paper, with 20 in flight instead of 30, since a write \
                 costs two reads",
            )
        },
        Scene {
            tenants: three(
                [READS, READS_OF_ALL_SIZES, ALL_SIZES_AND_KINDS],
                [30, 20, 3],
            ),
            ..variation(
                "sizes",
                "reads of 4 KiB (30 in flight), reads of 4 to 64 KiB (20), and one with 4 to 64 KiB, seven of ten written, that \
                 goes from 3 in flight to 90",
            )
        },
        Scene {
            cores: 2,
            tenants: on_two_cores(three([READS; 3], [30; 3])),
            ..variation(
                "cores",
                "as figure13, with the second tenant's volume on another core than the others'",
            )
        },
        Scene {
            tenants: bursting_on_a_file(three([MIXED; 3], [20; 3])),
            ..variation(
                "files",
                "as kinds, but the one that bursts is an NFS client of a filesystem: it reads and writes blocks of a large file, and \
                 each write is stable",
            )
        },
        Scene {
            device: SLOW_FOR_LARGE,
            tenants: writing_large(three([MIXED; 3], [20; 3]), Uses::Volume),
            ..variation(
                "large",
                "as kinds, but the one that bursts writes requests of 256 KiB, 16 in flight",
            )
        },
        Scene {
            device: SLOW_FOR_LARGE,
            tenants: writing_large(three([MIXED; 3], [20; 3]), Uses::New),
            ..variation(
                "segments",
                "as large, but to a volume that nobody has written to, from its beginning on: where the device is a file, what is new to it is laid \
                 out first, or meanwhile",
            )
        },
        Scene {
            beside: Some(Beside::Scrub),
            ..variation(
                "scrub",
                "as figure13, and scrubs of the device one after the other while the burst lasts",
            )
        },
        Scene {
            beside: Some(Beside::Moves),
            device: SLOW_FOR_LARGE,
            cores: 2,
            ..variation(
                "moves",
                "as figure13, and a fourth volume is moved to another core and back while the burst lasts",
            )
        },
    ]
}

fn moved(name: &'static str, to: To, about: &'static str) -> Scene {
    // Two cores and the clients want more than the two processors of a small machine otherwise, and that would be what is seen.
    let depth = match to {
        To::Core => 2,
        To::Device => 4,
    };
    let mut tenants = three([MIXED; 3], [depth; 3]);
    tenants[2].name = "third".to_owned();
    tenants[2].burst_depth = tenants[2].depth;
    Scene {
        name,
        about,
        // With strict time sharing a move has an eightieth of the device, and no scene lasts until it is over.
        policies: &[Policy::Deficit],
        device: ROOMY,
        cores: 2,
        volume_bytes: MOVED_VOLUME_BYTES,
        tenants,
        beside: Some(Beside::Victim(to)),
        ..figure13()
    }
}

fn hostile() -> Scene {
    let mut tenants = three([READS; 3], [2; 3]);
    tenants[2].name = "third".to_owned();
    tenants[2].burst_depth = tenants[2].depth;
    Scene {
        name: "hostile",
        about: "three tenants with 2 in flight each; in the middle third there are a hundred connections of each protocol besides that take \
                nothing of what they ask for, stop within a frame, say nothing, send garbage or wrong tokens, and come and go",
        policies: &[Policy::Deficit],
        device: QUICK,
        tenants,
        hostile: MANY as usize,
        ..figure13()
    }
}

fn hundred() -> Scene {
    Scene {
        name: "hundred",
        about: "a hundred tenants with shares of 1 to 5, 8 reads of 4 KiB in flight each, all greedy all the time",
        policies: &[Policy::Deficit],
        device: DOUBLE,
        volume_bytes: SMALL_VOLUME_BYTES,
        tenants: (0..MANY).map(one_of_many).collect(),
        ..figure13()
    }
}

/// Two victims, and one that bursts.
fn three(mixes: [Mix; 3], depths: [usize; 3]) -> Vec<Tenant> {
    let tenant = |number: usize| Tenant {
        name: ["first", "second", "bursting"][number].to_owned(),
        uses: Uses::Volume,
        share: 1,
        core: 0,
        mix: mixes[number],
        depth: depths[number],
        burst_depth: match number {
            2 => 90,
            _ => depths[number],
        },
    };
    (0..3).map(tenant).collect()
}

fn on_two_cores(mut tenants: Vec<Tenant>) -> Vec<Tenant> {
    if let Some(second) = tenants.get_mut(1) {
        second.core = 1;
    }
    tenants
}

fn bursting_on_a_file(mut tenants: Vec<Tenant>) -> Vec<Tenant> {
    if let Some(bursting) = tenants.last_mut() {
        bursting.uses = Uses::File;
    }
    tenants
}

fn writing_large(mut tenants: Vec<Tenant>, uses: Uses) -> Vec<Tenant> {
    if let Some(bursting) = tenants.last_mut() {
        *bursting = Tenant {
            uses,
            mix: LARGE_WRITES,
            depth: 0,
            burst_depth: 16,
            ..bursting.clone()
        };
    }
    tenants
}

fn one_of_many(number: u32) -> Tenant {
    Tenant {
        name: format!("tenant-{number:02}"),
        uses: Uses::Volume,
        share: 1 + number % 5,
        core: 0,
        mix: READS,
        depth: 8,
        burst_depth: 8,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_scene_has_a_name_of_its_own_and_tenants_that_fit() {
        let scenes = scenes();
        let names: BTreeSet<&str> = scenes.iter().map(|scene| scene.name).collect();
        assert_eq!(names.len(), scenes.len());
        for scene in &scenes {
            let volumes: BTreeSet<&String> = scene.tenants.iter().map(|t| &t.name).collect();
            assert_eq!(volumes.len(), scene.tenants.len(), "{}", scene.name);
            for tenant in &scene.tenants {
                assert!(tenant.core < scene.cores && tenant.share > 0, "{tenant:?}");
                let largest = tenant.mix.blocks.iter().max().expect("a size");
                assert!(largest * 4096 < scene.volume_bytes, "{tenant:?}");
            }
            let bursting = scene.tenants.iter().filter(|tenant| tenant.bursts());
            let without = ["hundred", "hostile", "moved-core", "moved-device"];
            let expected = usize::from(!without.contains(&scene.name));
            assert_eq!(bursting.count(), expected, "{}", scene.name);
            assert_eq!(scene.has_burst(), scene.name != "hundred", "{}", scene.name);
        }
    }

    /// Else a victim has more than its share before the burst, which is not its own.
    #[test]
    fn victims_want_no_more_than_their_share_before_the_burst() {
        for scene in scenes() {
            if scene.device.latency_us == 0 {
                continue;
            }
            for tenant in scene.tenants.iter().filter(|tenant| !tenant.bursts()) {
                let mix = &tenant.mix;
                let sum: u64 = mix
                    .blocks
                    .iter()
                    .map(|&blocks| {
                        let price = |is_write| scene.device.price_ns(is_write, blocks);
                        (100 - mix.writes) * price(false) + mix.writes * price(true)
                    })
                    .sum();
                let price_ns = sum / 100 / mix.blocks.len() as u64;
                // What is answered in the device's latency, and nothing waits.
                let a_second = tenant.depth as u64 * 1_000_000 / scene.device.latency_us;
                let wanted = (a_second * price_ns) as f64 / 1e9;
                assert!(wanted < 1.0 / 3.0, "{}: {wanted}", scene.name);
                // Each has enough to lose; one that leaves room for others' work on two cores has less.
                let least = if scene.name == "moved-core" { 0.1 } else { 0.2 };
                assert!(wanted > least, "{}: {wanted}", scene.name);
            }
        }
    }
}
