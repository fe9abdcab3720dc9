//! What the kernel offers, found out at the start, and what to tell people if it isn't enough.

use std::fmt;
use std::fs;
use std::io;

use io_uring::{IoUring, Probe, cqueue, opcode, squeue};

use crate::config::KernelUse;

/// Completion entries per submission entry. A full completion ring is no error (the kernel keeps
/// what doesn't fit), only slower.
const COMPLETIONS_PER_SUBMISSION: u32 = 4;

/// Largest submission ring that is asked for; the kernel's own limit is the same.
const RING_ENTRIES_MAX: u32 = 32_768;

/// What the ring in use can do. Printed in the log at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSupport {
    /// Completions are processed only when the core asks (SINGLE_ISSUER, DEFER_TASKRUN).
    pub defer_taskrun: bool,
    /// The core isn't interrupted for completions (COOP_TASKRUN, or the above).
    pub coop_taskrun: bool,
    /// Idle waiting isn't counted as waiting for a disk.
    pub no_iowait: bool,
    /// The ring has a table of registered files.
    pub fixed_files: bool,
    /// Memory of the buffer pool that is registered with the ring, in bytes.
    pub registered_bytes: usize,
    /// Cores wake each other through their rings.
    pub msg_ring: bool,
    /// The ring can flush files.
    pub ring_fsync: bool,
    /// The ring can punch holes.
    pub ring_fallocate: bool,
    /// One transfer may gather several pieces of registered memory (Linux 6.15).
    pub gathers_registered: bool,
}

impl fmt::Display for KernelSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("defer_taskrun", self.defer_taskrun),
            ("coop_taskrun", self.coop_taskrun),
            ("no_iowait", self.no_iowait),
            ("fixed_files", self.fixed_files),
            ("registered_buffers", self.registered_bytes > 0),
            ("msg_ring", self.msg_ring),
            ("fsync", self.ring_fsync),
            ("fallocate", self.ring_fallocate),
            ("gathers_registered", self.gathers_registered),
        ];
        let (mut has, mut lacks) = (Vec::new(), Vec::new());
        for (name, present) in all {
            if present {
                has.push(name)
            } else {
                lacks.push(name)
            }
        }
        let list = |names: Vec<&str>| match names.is_empty() {
            true => "nothing".to_owned(),
            false => names.join(", "),
        };
        write!(f, "io_uring with {}; without {}", list(has), list(lacks))
    }
}

/// Why no ring could be had.
#[derive(Debug)]
pub enum RingError {
    /// io_uring_setup was refused.
    Setup {
        /// The kernel's answer.
        error: io::Error,
        /// Content of /proc/sys/kernel/io_uring_disabled, where it can be read.
        io_uring_disabled: Option<u32>,
    },
    /// The kernel's io_uring lacks something that has no fallback.
    Lacking {
        /// What it lacks.
        what: Vec<&'static str>,
    },
}

impl std::error::Error for RingError {}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (error, disabled) = match self {
            RingError::Lacking { what } => {
                return write!(
                    f,
                    "this kernel's io_uring lacks {}; Flagstone needs Linux 5.11 or later",
                    what.join(", ")
                );
            }
            RingError::Setup {
                error,
                io_uring_disabled,
            } => (error, io_uring_disabled),
        };
        write!(
            f,
            "io_uring is not available: io_uring_setup failed: {error}. "
        )?;
        match (disabled, error.raw_os_error()) {
            (Some(2), _) => write!(
                f,
                "It is switched off for everyone: the sysctl kernel.io_uring_disabled is 2. Set it \
                 to 0 (sysctl -w kernel.io_uring_disabled=0, and in /etc/sysctl.d to keep it)."
            ),
            (Some(1), _) => write!(
                f,
                "The sysctl kernel.io_uring_disabled is 1: only members of the group in \
                 kernel.io_uring_group and processes with CAP_SYS_ADMIN may use it. Add this user \
                 to that group, or set kernel.io_uring_disabled to 0."
            ),
            (_, Some(libc::EPERM | libc::EACCES)) => write!(
                f,
                "The sysctl kernel.io_uring_disabled doesn't forbid it, so a seccomp filter does, \
                 as container runtimes install by default. Allow io_uring_setup, io_uring_enter \
                 and io_uring_register in the container's seccomp profile."
            ),
            (_, Some(libc::ENOSYS)) => write!(
                f,
                "Either this kernel is built without CONFIG_IO_URING or older than 5.1 (Flagstone \
                 needs 5.11), or a seccomp filter hides the call: allow io_uring_setup, \
                 io_uring_enter and io_uring_register in the container's seccomp profile."
            ),
            (_, Some(libc::ENOMEM)) => write!(
                f,
                "Kernels before 5.12 charge rings to the limit of locked memory: raise it (ulimit \
                 -l, or LimitMEMLOCK= in the service's unit)."
            ),
            (_, Some(libc::EMFILE | libc::ENFILE)) => {
                write!(
                    f,
                    "Raise the limit of open files (ulimit -n, or LimitNOFILE=)."
                )
            }
            _ => write!(f, "See the manual page io_uring_setup(2)."),
        }
    }
}

/// Sets a ring up with the best flags that the kernel takes, and looks what it can do.
pub(crate) fn open_ring(entries: u32, allowed: &KernelUse) -> Result<OpenRing, RingError> {
    let entries = entries.clamp(2, RING_ENTRIES_MAX).next_power_of_two();
    let (uring, taskrun) = setup(entries, allowed)?;
    let params = uring.params();
    let mut probe = Probe::new();
    let probed = uring.submitter().register_probe(&mut probe).is_ok();
    let has = |code: u8| probed && probe.is_supported(code);

    let needed = [
        (
            "waiting with a time-out (EXT_ARG)",
            params.is_feature_ext_arg(),
        ),
        (
            "keeping completions that don't fit (NODROP)",
            params.is_feature_nodrop(),
        ),
        (
            "copying arguments at submission (SUBMIT_STABLE)",
            params.is_feature_submit_stable(),
        ),
        (
            "waiting for sockets without threads (FAST_POLL)",
            params.is_feature_fast_poll(),
        ),
        ("the operation READ", has(opcode::Read::CODE)),
        ("the operation WRITE", has(opcode::Write::CODE)),
        ("the operation WRITEV", has(opcode::Writev::CODE)),
        ("the operation RECV", has(opcode::Recv::CODE)),
        ("the operation SEND", has(opcode::Send::CODE)),
        ("the operation SENDMSG", has(opcode::SendMsg::CODE)),
        ("the operation ACCEPT", has(opcode::Accept::CODE)),
        ("the operation CONNECT", has(opcode::Connect::CODE)),
        ("the operation ASYNC_CANCEL", has(opcode::AsyncCancel::CODE)),
    ];
    let what: Vec<_> = needed
        .iter()
        .filter(|(_, has)| !has)
        .map(|&(name, _)| name)
        .collect();
    if !what.is_empty() {
        return Err(RingError::Lacking { what });
    }
    let support = KernelSupport {
        defer_taskrun: taskrun == TaskRun::Deferred,
        coop_taskrun: taskrun != TaskRun::Plain,
        no_iowait: allowed.no_iowait && params.is_feature_no_iowait(),
        fixed_files: false,
        registered_bytes: 0,
        msg_ring: allowed.msg_ring && has(opcode::MsgRingData::CODE),
        ring_fsync: allowed.ring_fsync && has(opcode::Fsync::CODE),
        ring_fallocate: allowed.ring_fallocate && has(opcode::Fallocate::CODE),
        gathers_registered: allowed.gathers_registered && has(opcode::WritevFixed::CODE),
    };
    Ok(OpenRing { uring, support })
}

/// A ring, and what it can do.
pub(crate) struct OpenRing {
    pub(crate) uring: IoUring,
    pub(crate) support: KernelSupport,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TaskRun {
    Deferred,
    Cooperative,
    Plain,
}

/// Tries the flags from the newest to none. EINVAL means that the kernel doesn't know one of them.
fn setup(entries: u32, allowed: &KernelUse) -> Result<(IoUring, TaskRun), RingError> {
    let attempts = [
        (TaskRun::Deferred, allowed.defer_taskrun),
        (TaskRun::Cooperative, allowed.coop_taskrun),
        (TaskRun::Plain, true),
    ];
    let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
    for (taskrun, _) in attempts.into_iter().filter(|&(_, allowed)| allowed) {
        let mut builder = IoUring::<squeue::Entry, cqueue::Entry>::builder();
        builder.dontfork();
        builder.setup_clamp();
        builder.setup_cqsize(entries * COMPLETIONS_PER_SUBMISSION);
        match taskrun {
            TaskRun::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun();
                builder.setup_taskrun_flag().setup_submit_all();
            }
            TaskRun::Cooperative => {
                builder
                    .setup_coop_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            TaskRun::Plain => {}
        }
        match builder.build(entries) {
            Ok(uring) => return Ok((uring, taskrun)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            Err(error) => return Err(setup_error(error)),
        }
    }
    Err(setup_error(refused))
}

fn setup_error(error: io::Error) -> RingError {
    let text = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let io_uring_disabled = text.and_then(|t| t.trim().parse().ok());
    RingError::Setup {
        error,
        io_uring_disabled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(errno: i32, io_uring_disabled: Option<u32>) -> String {
        let error = io::Error::from_raw_os_error(errno);
        RingError::Setup {
            error,
            io_uring_disabled,
        }
        .to_string()
    }

    #[test]
    fn refusals_name_the_switch_and_what_to_do() {
        assert!(message(libc::EPERM, Some(2)).contains("kernel.io_uring_disabled=0"));
        assert!(message(libc::EPERM, Some(1)).contains("kernel.io_uring_group"));
        assert!(message(libc::EPERM, Some(0)).contains("seccomp profile"));
        assert!(message(libc::EPERM, None).contains("seccomp profile"));
        assert!(message(libc::ENOSYS, None).contains("CONFIG_IO_URING"));
        assert!(message(libc::ENOMEM, Some(0)).contains("ulimit -l"));
        assert!(message(libc::EMFILE, Some(0)).contains("LimitNOFILE"));
        let lacking = RingError::Lacking {
            what: vec!["the operation READ"],
        }
        .to_string();
        assert!(lacking.contains("5.11"), "{lacking}");
    }

    #[test]
    fn switching_features_off_gives_a_plainer_ring() {
        let least = open_ring(8, &KernelUse::least()).unwrap().support;
        assert!(!least.defer_taskrun && !least.coop_taskrun && !least.msg_ring);
        assert!(!least.no_iowait && !least.ring_fsync && !least.ring_fallocate);
        let coop = KernelUse {
            defer_taskrun: false,
            ..KernelUse::default()
        };
        assert!(!open_ring(8, &coop).unwrap().support.defer_taskrun);
        let text = least.to_string();
        assert!(
            text.contains("with nothing; without defer_taskrun, coop_taskrun"),
            "{text}"
        );
    }
}
