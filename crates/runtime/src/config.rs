//! What a runtime can be told at its start, with the defaults that suit an ordinary machine.

use std::path::PathBuf;

/// Settings of a runtime. `RuntimeConfig::default()` is one core, pinned, with adaptive polling.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Cores (threads) to start; at least 1.
    pub cores: usize,
    /// Pin each core's thread to a CPU. If there are more cores than CPUs, or the kernel refuses,
    /// the cores run unpinned and a warning is logged. Worth it where every CPU has a core; with
    /// fewer cores the scheduler does better, as it moves a core to where its work arrives.
    pub pin: bool,
    /// The CPUs to pin to, one per core, in this order. Empty: those the process may use.
    pub cpus: Vec<usize>,
    /// How long an idle core may look for work before it sleeps, in microseconds. It does so only
    /// where experience says that work comes within that time. 0: it sleeps at once. Shorter than what
    /// a device or the next request takes is worse than nothing: it is spent, and the core sleeps all the same.
    pub spin_max_us: u32,
    /// Reads and writes of devices in flight up to which an idle core looks for work. With more of
    /// them it sleeps at once: their completions gather meanwhile, and cost less together.
    pub spin_depth: u32,
    /// Whether a core that looks for the end of a transfer or a flush lets others of its CPU run in between: a kernel
    /// worker may have to post what it waits for. Where others keep the CPU for long it sleeps for a while instead.
    pub spin_yield: bool,
    /// Where the kernel is asked to keep the machine's processors from sleeping while looking for work succeeds again and again:
    /// [`LATENCY_REQUESTS`](crate::LATENCY_REQUESTS). It counts for all of them, whoever runs there. Where this user may not open it, all goes on without. `None`: never.
    pub keep_awake: Option<PathBuf>,
    /// Submission entries of each core's ring; rounded up to a power of two. The completion side
    /// has four times as many. More operations than that may be in flight; they queue.
    pub ring_entries: u32,
    /// Operations that are gathered while tasks run before they are submitted together; a core that
    /// runs out of ready tasks submits what there is. Few: devices get their work while the core goes
    /// on. Many: fewer system calls.
    pub submit_batch: u32,
    /// Whether a device that answers nothing before it has nothing left to do gets its transfers in
    /// waves: the next ones when it has answered those before. Such devices are recognised.
    pub waves: bool,
    /// Memory of each core's buffer pool that the kernel is told of once, instead of looking its
    /// pages up for each transfer, in bytes. It counts as locked memory; where the limit of locked
    /// memory doesn't allow it, as much as it allows is registered, and transfers from other memory
    /// go on as usual. 0: nothing is registered. The memory is never given back to the process.
    pub registered_bytes: usize,
    /// Messages a core's mailbox holds before senders are told that it is full.
    pub mailbox_max: usize,
    /// How long a stopping core waits for operations in flight, in milliseconds. What a device
    /// still uses after that is leaked, never freed.
    pub stop_wait_ms: u64,
    /// By how many seconds the wall clock is set wrong from the beginning. For tests; 0 otherwise.
    pub wall_shift_s: i64,
    /// Which kernel features to use where the kernel has them.
    pub kernel: KernelUse,
}

impl Default for RuntimeConfig {
    fn default() -> RuntimeConfig {
        RuntimeConfig {
            cores: 1,
            pin: true,
            cpus: Vec::new(),
            spin_max_us: 100,
            spin_depth: 4,
            spin_yield: true,
            keep_awake: None,
            ring_entries: 256,
            submit_batch: 8,
            waves: true,
            registered_bytes: 8 << 20,
            mailbox_max: 1024,
            stop_wait_ms: 30_000,
            wall_shift_s: 0,
            kernel: KernelUse::default(),
        }
    }
}

/// Kernel features that have a fallback. Each is used if it is allowed here and the kernel has it;
/// switching one off forces its fallback, which is how the fallbacks are tested.
#[derive(Clone, Debug)]
pub struct KernelUse {
    /// SINGLE_ISSUER and DEFER_TASKRUN (Linux 6.1): completions are processed when the core asks
    /// for them. Fallback: cooperative task running.
    pub defer_taskrun: bool,
    /// COOP_TASKRUN (5.19): the kernel doesn't interrupt the core to process completions.
    /// Fallback: it does.
    pub coop_taskrun: bool,
    /// Registered files (sparse tables, 5.19) for devices. Fallback: plain descriptors.
    pub fixed_files: bool,
    /// MSG_RING (5.18) for one core to wake another. Fallback: an eventfd.
    pub msg_ring: bool,
    /// NO_IOWAIT (6.15): an idle core doesn't look as if it waited for a disk. Fallback: it does.
    pub no_iowait: bool,
    /// FSYNC through the ring (5.1). Fallback: a helper thread.
    pub ring_fsync: bool,
    /// FALLOCATE through the ring (5.6). Fallback: a helper thread.
    pub ring_fallocate: bool,
    /// WRITEV_FIXED (6.15). Fallback: memory that isn't registered, which the kernel looks up anew for each transfer.
    pub gathers_registered: bool,
    /// MSG_WAITALL on sends and receives, so that the kernel goes on after a partial one (5.19 for
    /// both). Fallback: the loop that runs anyway.
    pub wait_all: bool,
    /// Most bytes of one read, write, send or receive. For tests: a small value makes every larger
    /// transfer come back short, so that it takes the path of a partial one.
    pub transfer_max_bytes: u32,
}

impl Default for KernelUse {
    fn default() -> KernelUse {
        KernelUse {
            defer_taskrun: true,
            coop_taskrun: true,
            fixed_files: true,
            msg_ring: true,
            no_iowait: true,
            ring_fsync: true,
            ring_fallocate: true,
            gathers_registered: true,
            wait_all: true,
            transfer_max_bytes: TRANSFER_MAX_BYTES,
        }
    }
}

impl KernelUse {
    /// Nothing that has a fallback.
    pub fn least() -> KernelUse {
        KernelUse {
            defer_taskrun: false,
            coop_taskrun: false,
            fixed_files: false,
            msg_ring: false,
            no_iowait: false,
            ring_fsync: false,
            ring_fallocate: false,
            gathers_registered: false,
            wait_all: false,
            transfer_max_bytes: TRANSFER_MAX_BYTES,
        }
    }
}

/// Most bytes of one transfer: what Linux moves in one call at most (2 GiB less a page), rounded
/// down to a power of two so that the rest of a larger transfer stays aligned.
pub(crate) const TRANSFER_MAX_BYTES: u32 = 1 << 30;
