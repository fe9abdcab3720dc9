//! A guest with the NFS client of a real Linux kernel, in a second: Debian's user-mode kernel, on the machine's own files.
//!
//! Its root folder is the machine's, to be read, so it has every program that the machine has. It must run in a
//! network of its own, where it gets an address on a device that is made for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::daemon::Daemon;
use crate::e2e::guest::{self, Unpacked};
use crate::e2e::scene::{FILESYSTEM, Scene};

/// What is needed of what isn't built into the kernel, with all that this needs.
const MODULE: &str = "kernel/fs/nfs/nfsv3.ko";
/// The tree that is copied, in the scene's folder.
pub(crate) const SOURCE: &str = "source";
const SCRIPT: &str = include_str!("guest.sh");

/// A kernel, and where its parts are.
pub(crate) struct Kernel {
    linux: PathBuf,
    /// In the order in which they are loaded.
    modules: Vec<PathBuf>,
    mount_nfs: PathBuf,
    statd: PathBuf,
    busybox: PathBuf,
}

/// What a guest does.
pub(crate) struct Task<'a> {
    /// Counts the guests: each has a network of its own.
    pub(crate) number: u8,
    /// Parts of the script.
    pub(crate) parts: &'a str,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// Where the node is reached with answers lost.
    pub(crate) relay_port: u16,
    /// Images to check, and what must be in them: `image:name:hash`.
    pub(crate) images: &'a str,
}

impl Kernel {
    pub(crate) fn prepare(root: &Path) -> Result<Kernel> {
        let unpacked = Unpacked::packages(root)?;
        Ok(Kernel {
            linux: unpacked.find(&["usr/bin/linux.uml"])?,
            modules: modules(&unpacked)?,
            mount_nfs: unpacked.find(&["sbin/mount.nfs", "usr/sbin/mount.nfs"])?,
            statd: unpacked.find(&["sbin/rpc.statd", "usr/sbin/rpc.statd"])?,
            busybox: unpacked.busybox()?,
        })
    }

    /// Boots it; what it says is read from the result.
    pub(crate) fn boot(&self, scene: &Scene, task: &Task<'_>) -> Result<Daemon> {
        let number = task.number;
        let device = format!("guest{number}");
        // A new one each time: that of a machine that was killed may not be free yet.
        let network = format!(
            "PATH=$PATH:/usr/sbin:/sbin; ip tuntap add dev {device} mode tap && \
             ip addr add 10.77.{number}.1/24 dev {device} && ip link set {device} up"
        );
        scene
            .tool("sh", &["-c", &network])
            .context("making the guest's network device (this takes a readable /dev/net/tun)")?;
        let init = scene.dir.join(format!("init-{number}"));
        fs::write(&init, self.script(scene, task)?).context("writing the guest's script")?;
        guest::make_program(&init)?;
        for folder in ["first", "second", "tmp"] {
            let folder = scene.dir.join(folder);
            fs::create_dir_all(&folder).context("making the guest's folders")?;
        }

        // Its threads and the guest's processes end with it.
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child=KILL"])
            .arg(&self.linux)
            .args(["mem=384M", "root=/dev/root", "rootfstype=hostfs"])
            .args(["rootflags=/", "ro", "con=null", "con0=null,fd:1"])
            .args(["quiet", "loglevel=4"])
            .arg(format!(
                "vec0:transport=tap,ifname={device},mac=06:00:0a:4d:{number:02x}:02,depth=64,gro=1"
            ))
            .arg(format!("init={}", init.display()));
        let log = scene.dir.join(format!("guest-{number}.log"));
        Daemon::start("the guest", command, &log)
    }

    fn script(&self, scene: &Scene, task: &Task<'_>) -> Result<String> {
        let program = std::env::current_exe().context("looking for this program")?;
        let modules: Vec<String> = self.modules.iter().map(|path| shown(path)).collect();
        let number = task.number;
        let variables = [
            ("scene", shown(&scene.dir)),
            ("source", shown(&scene.dir.join(SOURCE))),
            ("xtask", shown(&program)),
            ("modules", modules.join(" ")),
            ("mount_nfs", shown(&self.mount_nfs)),
            ("statd", shown(&self.statd)),
            ("busybox", shown(&self.busybox)),
            ("address", format!("10.77.{number}.2")),
            ("server", format!("10.77.{number}.1")),
            ("filesystem", FILESYSTEM.to_owned()),
            ("relay", task.relay_port.to_string()),
            ("parts", task.parts.to_owned()),
            ("images", task.images.to_owned()),
            ("seconds", task.seconds.to_string()),
            ("seed", task.seed.to_string()),
        ];
        let mut script = "#!/bin/sh\n".to_owned();
        for (name, value) in variables {
            ensure!(
                ["modules", "parts", "images"].contains(&name)
                    || !value.contains(char::is_whitespace),
                "{name} is `{value}`: the guest's script can't have paths with spaces"
            );
            script.push_str(&format!("{name}='{value}'\n"));
        }
        script.push_str(SCRIPT);
        Ok(script)
    }
}

fn shown(path: &Path) -> String {
    // The guest's working folder is another one.
    std::path::absolute(path)
        .unwrap_or_else(|_| path.to_path_buf())
        .display()
        .to_string()
}

/// What the package says a module needs, that first.
fn modules(unpacked: &Unpacked) -> Result<Vec<PathBuf>> {
    let folder = guest::only_entry(&unpacked.find(&["usr/lib/uml/modules"])?, "")?;
    let path = folder.join("modules.dep");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(MODULE)?.strip_prefix(':'))
        .with_context(|| format!("{MODULE} is not in {}", path.display()))?;
    let mut modules: Vec<PathBuf> = line
        .split_ascii_whitespace()
        .rev()
        .map(|module| folder.join(module))
        .collect();
    modules.push(folder.join(MODULE));
    Ok(modules)
}
