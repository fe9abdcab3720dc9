//! `cargo xtask bench vm`: what virtual machines do to the server, counted at each level: by the application, in calls
//! of NFS, and at the device.
//!
//! The experiments are those of the VM-NAS slides (`guests`), and stable writes and small transfers as a hypervisor sends them
//! (`points`, `qemu`). What counts are bytes and operations, not seconds: an emulated machine is slow. QEMU's `nfs://`
//! takes no port, so all of it runs in a network of its own.

mod counts;
mod expected;
mod guests;
mod load;
mod points;
mod qemu;
mod report;

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::machine::Setting;
use super::{command_line, parse_size};
use crate::e2e;
use crate::e2e::scene::Scene;
use crate::{daemon, repo};
use points::{Bench, Scale};
use report::Report;

const PROGRAMS: [(&str, &str); 2] = [("fio", "fio"), ("qemu", "qemu-nbd")];

#[derive(Args)]
pub(crate) struct VmArguments {
    /// A smoke run: a tenth of the writes, results outside the tree.
    #[arg(long)]
    quick: bool,
    /// Leave the guests out, which take some four minutes.
    #[arg(long)]
    no_guests: bool,
    /// Stable writes at random places of each image.
    #[arg(long)]
    writes: Option<u64>,
    /// Size of the image that is written in full.
    #[arg(long, value_parser = parse_size)]
    dense: Option<u64>,
    /// Size of the node's device.
    #[arg(long, default_value = "16G", value_parser = parse_size)]
    device_size: u64,
    /// Use this Flagstone binary instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where the results go. Default: docs/benchmarks, for a quick run below the build folder.
    #[arg(long)]
    out: Option<PathBuf>,
    /// This is a network of its own already; set by this program when it starts itself there.
    #[arg(long, hide = true)]
    own_network: bool,
}

pub(super) fn run(root: &Path, arguments: &VmArguments) -> Result<()> {
    if !arguments.own_network {
        let mut command = e2e::own_network(root)?;
        command.args(env::args_os().skip(1)).arg("--own-network");
        if arguments.binary.is_none() {
            command.arg("--binary").arg(daemon::build(root)?);
        }
        let status = command.status().context("starting `unshare`")?;
        ensure!(status.success(), "what failed is said above");
        return Ok(());
    }
    let binary = arguments.binary.as_deref().context("--binary is missing")?;
    let quick = arguments.quick;
    let scale = Scale {
        writes: arguments
            .writes
            .unwrap_or(if quick { 40_000 } else { 400_000 }),
        dense_bytes: arguments
            .dense
            .unwrap_or(if quick { 512 << 20 } else { 6 << 30 }),
        small: if quick { 5_000 } else { 50_000 },
    };
    ensure!(
        scale.writes > 0 && scale.dense_bytes >= 1 << 20,
        "there must be something to write"
    );
    let scene = Scene::new(root, binary, "bench-vm")?;
    let setting = Setting::read(root, &scene.dir, &PROGRAMS)?;
    let device_size = format!("{}M", arguments.device_size >> 20);
    let mut node = scene.node_for_guests_with(&device_size, &["--block-cache", "0"])?;
    let steps = match arguments.no_guests {
        true => Vec::new(),
        false => guests::run(&scene, &node)?,
    };
    let points = points::run(&node, &scale)?;
    let through = qemu::run(&scene, &mut Bench::connect(&node)?, scale.writes / 4)?;
    let report = Report {
        setting,
        command: command_line(),
        steps,
        points,
        through: Some(through),
        dense_bytes: scale.dense_bytes,
        device_bytes: arguments.device_size,
    };
    node.run(&["fs", "check"])?;
    node.stop()?;
    let default_out = match quick {
        true => repo::target_dir(root).join("bench-vm"),
        false => root.join("docs/benchmarks"),
    };
    let page = report.write(&arguments.out.clone().unwrap_or(default_out))?;
    println!("results: {}", page.display());
    scene.remove()
}
