//! What a look at the node costs its cores: copies of counters, a few volumes at a time.

use std::rc::Rc;

use flagstone_gateway::nbd::Command;
use flagstone_platform::Platform;
use flagstone_runtime::IoKindStats;
use flagstone_types::DvolId;
use flagstone_wire::Operation;

use super::RealNode;
use super::core::CoreNode;
use super::describe::wall_clock_ns;
use super::names::is_hidden;
use crate::node::{
    CoreLook, DeviceFacts, DeviceLook, ErrorCount, IoMark, Look, MemberLook, NodeError, ServerLook,
    VolumeLook,
};

/// Commands of NBD that are operations of a volume. Others are questions, or refused.
const NBD: [Command; 5] = [
    Command::Read,
    Command::Write,
    Command::Flush,
    Command::Trim,
    Command::WriteZeroes,
];

/// The same of the native protocol.
const NATIVE: [Operation; 9] = [
    Operation::Read,
    Operation::Write,
    Operation::Zero,
    Operation::Deallocate,
    Operation::Flush,
    Operation::ReadMetadata,
    Operation::CompareAndSwap,
    Operation::Commit,
    Operation::ReadIf,
];

/// Volumes that are copied before requests have their turn again: some fifty microseconds of work.
const VOLUMES_AT_A_TIME: usize = 64;

impl RealNode {
    pub(super) async fn look_at_all(&self) -> Result<Look, NodeError> {
        let mut devices = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            devices.push(DeviceFacts {
                name: device.name.clone(),
                schedule: self.schedule_info(index).await.0,
            });
        }
        let mut cores = Vec::new();
        for (index, remote) in self.remotes.iter().enumerate() {
            let mut look = self
                .on_core(index, "looking at what goes on", look_at)
                .await?;
            let counters = remote.counters();
            look.core = index as u32;
            (look.busy_ns, look.spin_ns) = (counters.busy_ns, counters.spin_ns);
            look.late_ns = counters.late_ns;
            cores.push(look);
        }
        Ok(Look {
            wall_ns: wall_clock_ns(),
            devices,
            cores,
        })
    }
}

/// Looks at one core. Volumes and filesystems come first, so that what follows is as old as the last of them.
async fn look_at(core: Rc<CoreNode>) -> CoreLook {
    let ids = core.counted();
    let (mut volumes, mut members) = (Vec::with_capacity(ids.len()), Vec::new());
    for some in ids.chunks(VOLUMES_AT_A_TIME) {
        for look in some.iter().filter_map(|&id| core.look_at_volume(id)) {
            match core.names.whole_of(look.id) {
                None => volumes.push(look),
                Some(of) => members.push(MemberLook { of, look }),
            }
        }
        core.platform.yield_now().await;
    }
    let mut filesystems = Vec::new();
    for some in core.files.used().chunks(VOLUMES_AT_A_TIME) {
        filesystems.extend(
            some.iter()
                .filter_map(|&id| core.files.look_at(id, core.platform.now())),
        );
        core.platform.yield_now().await;
    }
    let mut devices: Vec<DeviceLook> = Vec::new();
    for index in 0..core.turns.len() {
        let io = core.engines.io(index);
        devices.push(DeviceLook {
            device: index,
            read: io_mark(&io.read),
            write: io_mark(&io.write),
            flush: io_mark(&io.flush),
            trim: io_mark(&io.discard),
        });
    }
    CoreLook {
        nbd: look_at_nbd(&core),
        native: look_at_native(&core),
        at_ns: core.platform.now().0,
        devices,
        volumes,
        members,
        filesystems,
        ..CoreLook::default()
    }
}

fn look_at_nbd(core: &CoreNode) -> ServerLook {
    let mut look = ServerLook {
        operations_ns: core.asked.nbd.took_ns(),
        ..ServerLook::default()
    };
    let counted = core.nbd().map(|server| server.counters());
    for counted in counted
        .iter()
        .flat_map(|all| NBD.map(|one| all.command(one)))
    {
        look.commands += counted.answered + counted.failed;
        look.commands_ns += counted.latency.sum_ns();
    }
    look
}

fn look_at_native(core: &CoreNode) -> ServerLook {
    let mut look = ServerLook {
        operations_ns: core.asked.native.took_ns(),
        ..ServerLook::default()
    };
    let counted = core.native().map(|server| server.counters());
    for counted in counted
        .iter()
        .flat_map(|all| NATIVE.map(|one| all.operation(one)))
    {
        look.commands += counted.answered + counted.failed;
        look.commands_ns += counted.latency.sum_ns();
    }
    look
}

impl CoreNode {
    /// A volume, or a member of one.
    fn look_at_volume(&self, id: DvolId) -> Option<VolumeLook> {
        let (name, place) = self.names.place_of(id)?;
        if is_hidden(&name) && self.names.whole_of(id).is_none() {
            return None;
        }
        let owned = self.engines.get(place.engine)?;
        let counters = owned.engine.counters();
        // Its tenant here has a part of what the whole is promised.
        let slo = match self.names.stripe_of(id) {
            Some(stripe) => stripe.slo(),
            None => self.slo_of(id),
        };
        let empty = VolumeLook {
            journal_full_ns: counters.journal_full_ns.get(),
            checkpoints: counters.checkpoints.get(),
            ..VolumeLook::new(id, name, owned.device, slo)
        };
        self.fill_look(empty)
    }
}

fn io_mark(stats: &IoKindStats) -> IoMark {
    let errors = ErrorCount {
        kind: "device",
        count: stats.errors,
    };
    IoMark {
        operations: stats.operations,
        bytes: stats.bytes,
        errors: Some(errors)
            .filter(|error| error.count > 0)
            .into_iter()
            .collect(),
        latency: stats.latency.mark(),
    }
}
