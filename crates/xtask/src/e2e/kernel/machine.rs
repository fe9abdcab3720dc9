//! A guest with the NFS client of a real Linux kernel, on the machine's own files: Debian's user-mode kernel, there in a
//! second, or where that doesn't start, its ordinary one emulated by QEMU, which takes many times as long for everything.
//!
//! Its root folder is the machine's, to be read, so it has every program that the machine has. It must run in a
//! network of its own, where it gets an address on a device that is made for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::modules;
use crate::daemon::Daemon;
use crate::e2e::guest::{self, Cpio, FILES_KEPT, Unpacked};
use crate::e2e::scene::{FILESYSTEM, Scene};
use crate::repo;

/// What is needed of what isn't built into the kernels.
const CLIENT: &[&str] = &["nfsv3", "loop"];
/// And for the filesystem in a disk image, which a user-mode one has built in.
const DISK: &[&str] = &["crc32c_generic", "ext4"];
/// And what an emulated one needs to reach files and network.
const DEVICES: &[&str] = &["virtio_pci", "virtio_net", "9pnet_virtio", "9p"];
/// The tree that is copied, in the scene's folder.
pub(crate) const SOURCE: &str = "source";
/// The last one begins with what a guest does first, and ends with the parts that it is to do.
const SCRIPTS: [&str; 4] = [
    include_str!("large.sh"),
    include_str!("past.sh"),
    include_str!("disk.sh"),
    include_str!("guest.sh"),
];
/// 1: emulates, also where that isn't needed. 0: doesn't, and doesn't try whether the user-mode kernel starts.
const EMULATE: &str = "FLAGSTONE_EMULATE_GUEST";
/// What its last words are shown of.
const LAST_LINES: usize = 6;
/// A user-mode kernel that runs has come so far long before.
const START_LIMIT: Duration = Duration::from_secs(30);

/// What an emulated kernel starts: it goes on with the machine's files.
const INITRD: &str = r#"#!/bin/busybox sh
b=/bin/busybox
for m in /mod/*.ko; do $b insmod $m; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro root /root || echo "guest: no root"
exec $b switch_root /root $INIT
"#;

/// A kernel, and where its parts are.
pub(crate) struct Kernel {
    machine: Machine,
    /// In the order in which they are loaded.
    modules: Vec<PathBuf>,
    mount_nfs: PathBuf,
    statd: PathBuf,
    busybox: PathBuf,
}

enum Machine {
    UserMode { linux: PathBuf },
    Emulated { kernel: PathBuf, initrd: PathBuf },
}

/// What a guest does.
#[derive(Default)]
pub(crate) struct Task<'a> {
    /// Counts the guests: each has a network of its own.
    pub(crate) number: u8,
    /// Parts of the script.
    pub(crate) parts: &'a str,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// Where the node is reached with answers lost.
    pub(crate) relay_port: u16,
    /// Images to check, and what must be in them: `image:name:hash`. Or their names alone.
    pub(crate) images: &'a str,
    /// Counts how often the disk's machine was started.
    pub(crate) round: u32,
}

impl Kernel {
    pub(crate) fn prepare(root: &Path) -> Result<Kernel> {
        let unpacked = Unpacked::packages(root)?;
        let (machine, modules) = match is_emulated(root, &unpacked)? {
            false => {
                println!("the guest is Debian's user-mode kernel");
                let linux = unpacked.find(&["usr/bin/linux.uml"])?;
                let modules =
                    modules::with_needed(&unpacked.find(&["usr/lib/uml/modules"])?, CLIENT)?;
                (Machine::UserMode { linux }, modules)
            }
            true => {
                println!("the guest is emulated: it takes long");
                emulated(&Unpacked::emulated(root)?, &unpacked.busybox()?)?
            }
        };
        Ok(Kernel {
            machine,
            modules,
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

        let command = match &self.machine {
            Machine::UserMode { linux } => {
                let mut command = user_mode_command(linux, "384M", &init)?;
                command.args(["quiet", "loglevel=4"]).arg(format!(
                    "vec0:transport=tap,ifname={device},mac=06:00:0a:4d:{number:02x}:02,depth=64,gro=1"
                ));
                command
            }
            Machine::Emulated { kernel, initrd } => {
                emulated_command(kernel, initrd, &device, number, &init)
            }
        };
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
            ("device", self.machine.network_device().to_owned()),
            ("address", format!("10.77.{number}.2")),
            ("server", format!("10.77.{number}.1")),
            ("filesystem", FILESYSTEM.to_owned()),
            ("relay", task.relay_port.to_string()),
            ("parts", task.parts.to_owned()),
            ("images", task.images.to_owned()),
            ("seconds", task.seconds.to_string()),
            ("seed", task.seed.to_string()),
            ("round", task.round.to_string()),
            ("kept", FILES_KEPT.to_string()),
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
        script.push_str(&SCRIPTS.concat());
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

impl Machine {
    fn network_device(&self) -> &'static str {
        match self {
            Machine::UserMode { .. } => "vec0",
            Machine::Emulated { .. } => "eth0",
        }
    }
}

/// Has all packages downloaded that a guest takes on this machine, unless that was done before. The variable is for who boots
/// it where nothing can be downloaded any more: what was decided here holds there.
pub(crate) fn fetch(root: &Path) -> Result<(&'static str, &'static str)> {
    let is_emulated = is_emulated(root, &Unpacked::packages(root)?)?;
    if is_emulated {
        Unpacked::emulated(root)?;
    }
    Ok((EMULATE, if is_emulated { "1" } else { "0" }))
}

/// Whether the user-mode kernel doesn't start here. That of Debian 12 does not where the processor's registers for matrices
/// (AMX) make its state larger than the kernel has room for.
fn is_emulated(root: &Path, unpacked: &Unpacked) -> Result<bool> {
    match std::env::var(EMULATE).as_deref() {
        Ok("0") => return Ok(false),
        Ok("1") => return Ok(true),
        Ok(other) => bail!("{EMULATE} is `{other}`; expected 0 or 1"),
        Err(_) => {}
    }
    let linux = unpacked.find(&["usr/bin/linux.uml"])?;
    let folder = repo::target_dir(root).join(format!("e2e-guest-{}", std::process::id()));
    fs::create_dir_all(&folder).context("making a folder to try a guest in")?;
    let folder = std::path::absolute(&folder).context("looking for that folder")?;
    let tried = try_user_mode(&linux, &folder);
    fs::remove_dir_all(&folder).context("removing what a guest was tried in")?;
    let said = tried?;
    if let Some(said) = &said {
        println!("the user-mode kernel doesn't start here; it said last:\n{said}");
    }
    Ok(said.is_some())
}

/// What it said last if it doesn't start.
fn try_user_mode(linux: &Path, folder: &Path) -> Result<Option<String>> {
    let (init, log) = (folder.join("init"), folder.join("log"));
    let script = "#!/bin/sh\necho 'guest: starts'\nexec sleep 60\n";
    fs::write(&init, script).context("writing a guest's script")?;
    guest::make_program(&init)?;
    let command = user_mode_command(linux, "64M", &init)?;
    let mut machine = Daemon::start("the user-mode kernel", command, &log)?;
    let starts = |machine: &Daemon| {
        let printed = machine.printed();
        printed.iter().any(|line| line.starts_with("guest: starts"))
    };
    let began = Instant::now();
    while !starts(&machine) && machine.is_alive() && began.elapsed() < START_LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    // What it said last may still be on its way.
    std::thread::sleep(Duration::from_millis(200));
    let said = (!starts(&machine)).then(|| {
        let printed = machine.printed();
        let last = &printed[printed.len().saturating_sub(LAST_LINES)..];
        format!("{}\n{}", last.join("\n"), machine.log_tail())
    });
    machine.kill()?;
    Ok(said)
}

fn user_mode_command(linux: &Path, memory: &str, init: &Path) -> Result<Command> {
    // Its threads and the guest's processes end with it.
    let mut command = Command::new("unshare");
    if !repo::is_root()? {
        command.arg("--map-root-user");
    }
    command
        .args(["--pid", "--fork", "--kill-child=KILL"])
        .arg(linux)
        .arg(format!("mem={memory}"))
        .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"])
        .args(["con=null", "con0=null,fd:1"])
        .arg(format!("init={}", init.display()));
    // Where it keeps its number, which nobody removes when it is killed.
    if let Some(folder) = init.parent() {
        command.arg(format!("uml_dir={}/", folder.display()));
    }
    Ok(command)
}

/// With its modules.
fn emulated(unpacked: &Unpacked, busybox: &Path) -> Result<(Machine, Vec<PathBuf>)> {
    ensure!(
        repo::has_program("qemu-system-x86_64"),
        "apt install qemu-system-x86"
    );
    let versions = unpacked.find(&["lib/modules", "usr/lib/modules"])?;
    let folder = guest::only_entry(&versions, "")?.join("kernel");
    let mut archive = Cpio::default();
    for folder in ["bin", "root", "mod"] {
        archive.add(folder, 0o040_755, &[]);
    }
    archive.add("init", 0o100_755, INITRD.as_bytes());
    archive.add("bin/busybox", 0o100_755, &guest::read(busybox)?);
    for (order, module) in modules::with_needed(&folder, DEVICES)?.iter().enumerate() {
        archive.add(
            &format!("mod/{order:02}.ko"),
            0o100_644,
            &guest::read(module)?,
        );
    }
    let initrd = unpacked.dir.with_file_name("initrd");
    guest::write_whole(&initrd, &archive.finish()).context("writing the initial filesystem")?;
    let kernel = guest::only_entry(&unpacked.find(&["boot"])?, "vmlinuz-")?;
    let modules = modules::with_needed(&folder, &[CLIENT, DISK].concat())?;
    Ok((Machine::Emulated { kernel, initrd }, modules))
}

fn emulated_command(
    kernel: &Path,
    initrd: &Path,
    device: &str,
    number: u8,
    init: &Path,
) -> Command {
    let mut command = guest::emulator("512");
    command
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .arg("-append")
        .arg(format!(
            "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off INIT={}",
            init.display()
        ))
        .args([
            "-virtfs",
            "local,path=/,mount_tag=root,security_model=none,multidevs=remap,readonly=on",
        ])
        .arg("-netdev")
        .arg(format!(
            "tap,id=net,ifname={device},script=no,downscript=no"
        ))
        .arg("-device")
        .arg(format!(
            "virtio-net-pci,netdev=net,romfile=,mac=06:00:0a:4d:{number:02x}:02"
        ));
    command
}
