//! Where client and servers run: each side has processors of its own, as if there were a network between them.
//!
//! Left to itself the kernel sometimes runs a server that sleeps on its client's processor, where an exchange costs a quarter
//! of what it costs between two, and sometimes doesn't, and stays with either for whole rounds. A processor that a hypervisor
//! has to start again takes from 15 us to a millisecond for that. Neither is a server's doing. So each processor has a process
//! that runs when nothing else wants to (`SCHED_IDLE`), and no processor ever halts.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::daemon::Daemon;
use crate::{process, repo};

/// Both sides' processors, which are kept awake as long as this lives.
pub(super) struct Placing {
    client: u32,
    servers: Vec<u32>,
    _awake: Vec<Daemon>,
}

impl Placing {
    /// Divides the processors that this process may use. An error if there is only one.
    pub(super) fn start(dir: &Path) -> Result<Placing> {
        for program in ["taskset", "chrt"] {
            ensure!(
                repo::has_program(program),
                "{program} is missing: apt install util-linux"
            );
        }
        let mut servers = allowed()?;
        let client = servers.pop().filter(|_| !servers.is_empty());
        let client = client
            .context("client and servers need a processor each; with only one say --unplaced")?;
        let awake = servers.iter().chain([&client]).map(|cpu| {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0", "taskset", "--cpu-list", &cpu.to_string()]);
            command.args(["sh", "-c", "while :; do :; done"]);
            Daemon::start("awake", command, &dir.join("awake.log"))
        });
        Ok(Placing {
            client,
            _awake: awake.collect::<Result<Vec<Daemon>>>()?,
            servers,
        })
    }

    /// In a report's words.
    pub(super) fn describe(&self) -> String {
        format!(
            "client on CPU {}, servers on {}, all kept awake",
            self.client,
            list(&self.servers)
        )
    }

    /// Puts a server there, with all its threads and children.
    pub(super) fn server(&self, pid: u32) -> Result<()> {
        process::tree(pid)
            .into_iter()
            .try_for_each(|pid| put(pid, &self.servers))
    }

    /// Puts this process there, and what it starts from now on.
    pub(super) fn client(&self) -> Result<()> {
        put(std::process::id(), &[self.client])
    }
}

fn put(pid: u32, cpus: &[u32]) -> Result<()> {
    let mut command = Command::new("taskset");
    command.args([
        "--all-tasks",
        "--cpu-list",
        "--pid",
        &list(cpus),
        &pid.to_string(),
    ]);
    let said = repo::output(command);
    said.with_context(|| format!("putting process {pid} on CPU {}", list(cpus)))?;
    Ok(())
}

fn list(cpus: &[u32]) -> String {
    let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
    cpus.join(",")
}

fn allowed() -> Result<Vec<u32>> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    parse_list(line.unwrap_or_default()).context("reading which processors this process may use")
}

/// `0-2,5`.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(from.parse::<u32>().ok()?..=to.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_listed_as_the_kernel_has_them() {
        assert_eq!(parse_list("\t0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("3"), Some(vec![3]));
        assert_eq!(parse_list(""), None);
        assert_eq!(list(&[0, 1, 5]), "0,1,5");
    }
}
