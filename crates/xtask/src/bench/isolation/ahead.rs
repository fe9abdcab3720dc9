//! Clients before all else on their processors: those of tenants have machines of their own. On a machine of two processors a client waits
//! for a time slice of something else otherwise, for milliseconds now and then; its requests come to the node in bunches, and what is seen of its latency
//! is the client's own.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;

/// This thread runs whenever it can from now on, and what it starts doesn't. Whether the system allows that.
pub(super) fn of_all_else() -> bool {
    // `PID/task/TID`.
    let Ok(own) = fs::read_link("/proc/thread-self") else {
        return false;
    };
    let Some(id) = own.file_name() else {
        return false;
    };
    let mut chrt = Command::new("chrt");
    chrt.args(["--fifo", "--reset-on-fork", "--pid", "1"])
        .arg(id)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    chrt.status().is_ok_and(|status| status.success())
}

/// What the report says of the clients of this machine.
pub(super) fn how() -> String {
    let is_ahead = thread::spawn(of_all_else).join().unwrap_or(false);
    match is_ahead {
        true => "before all else on their processors (`chrt --fifo`)",
        false => "share the processors with the node: `chrt --fifo` isn't there, or not allowed",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In field 41 of what the kernel says of a thread, counted as `man proc` does: the policy, 1 for FIFO.
    fn policy() -> String {
        let text = fs::read_to_string("/proc/thread-self/stat").expect("read");
        let behind_name = text.rsplit(')').next().expect("has a name");
        let field = behind_name.split_whitespace().nth(41 - 3);
        field.expect("has so many").to_owned()
    }

    #[test]
    fn only_this_thread_goes_before_all_else_if_it_may() {
        let before = policy();
        let inside = thread::spawn(|| (of_all_else(), policy()));
        let (is_ahead, inside) = inside.join().expect("joined");
        assert_eq!(inside, if is_ahead { "1" } else { before.as_str() });
        assert_eq!(policy(), before);
        let says = how();
        assert_eq!(says.starts_with("before"), is_ahead, "{says}");
    }
}
