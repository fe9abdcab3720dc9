//! A Linux guest small enough to boot under emulation in seconds: Debian's cloud kernel, busybox,
//! and an init of ours, which is on its disk. `.ci/guest` downloads the packages once, into the build folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::scene::Scene;
use crate::daemon::Daemon;
use crate::repo;

/// A guest that says nothing for so long is stuck. An emulated one says nothing for 40 s of `git`.
const SILENCE_LIMIT: Duration = Duration::from_secs(240);
/// Loaded in this order; the rest is built into the kernel.
const MODULES: [&str; 6] = [
    "virtio/virtio_ring",
    "virtio/virtio",
    "virtio/virtio_pci_modern_dev",
    "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci",
    "block/virtio_blk",
];

/// What the kernel starts: it goes on with the disk's own filesystem.
const INITRD: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
for m in /mod/*.ko; do $b insmod $m; done
$b mount -t ext4 -o discard /dev/vda /mnt || { echo "guest: no mount"; $b sleep 1000; }
$b umount /dev
exec $b switch_root /mnt /sbin/init
"#;

/// What runs on the disk: it says which files are there, then writes others, makes each durable, and says so on its
/// console. `ROUND` and `KEPT` come from the kernel's command line. Files of long ago are removed, which discards their blocks.
const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
for f in /data/*; do
    [ -f $f ] || continue
    s=$($b sha256sum <$f)
    echo "guest: found ${f##*/} ${s%% *}"
done
echo "guest: up"
i=0
while true; do
    i=$((i + 1))
    f=r$ROUND-$i
    # ext4 makes a new file's name durable with its first fsync.
    $b dd if=/dev/urandom of=/data/$f bs=4k count=$((i % 7 + 1)) conv=fsync 2>/dev/null || continue
    s=$($b sha256sum </data/$f)
    echo "guest: synced $f ${s%% *}"
    $b rm -f /data/r$ROUND-$((i - KEPT))
done
"#;
/// Of the files of a round so many of the last are there, whatever the moment.
pub(crate) const FILES_KEPT: usize = 40;

/// A kernel and an initial filesystem, ready to boot.
pub(crate) struct Guest {
    kernel: PathBuf,
    initrd: PathBuf,
    busybox: PathBuf,
}

/// What to boot it from.
pub(crate) struct Boot<'a> {
    /// QEMU's arguments that make a disk with the identity `disk`.
    pub(crate) disk: &'a [&'a str],
    /// Goes into the names of the files that it writes.
    pub(crate) round: u32,
    /// Where QEMU's own words go.
    pub(crate) log: &'a Path,
}

impl Guest {
    /// Prepares the guest from its packages.
    pub(crate) fn prepare(root: &Path) -> Result<Guest> {
        ensure!(
            repo::has_program("qemu-system-x86_64"),
            "apt install qemu-system-x86"
        );
        let unpacked = Unpacked::packages(root)?;
        let kernel = only_entry(&unpacked.find(&["boot"])?, "vmlinuz-")?;
        let versions = unpacked.find(&["lib/modules", "usr/lib/modules"])?;
        let modules = only_entry(&versions, "")?.join("kernel/drivers");
        let busybox = unpacked.busybox()?;

        let mut archive = Cpio::default();
        for folder in ["bin", "dev", "mnt", "mod"] {
            archive.add(folder, 0o040_755, &[]);
        }
        archive.add("init", 0o100_755, INITRD.as_bytes());
        archive.add("bin/busybox", 0o100_755, &read(&busybox)?);
        for (order, module) in MODULES.iter().enumerate() {
            let bytes = read(&modules.join(format!("{module}.ko")))?;
            archive.add(&format!("mod/{order}.ko"), 0o100_644, &bytes);
        }
        let initrd = unpacked.dir.with_file_name("initrd");
        write_whole(&initrd, &archive.finish()).context("writing the initial filesystem")?;
        Ok(Guest {
            kernel,
            initrd,
            busybox,
        })
    }

    /// Makes a disk image with what the guest runs, in the scene's folder.
    pub(crate) fn make_disk(&self, scene: &Scene, name: &str, bytes: u64) -> Result<PathBuf> {
        self.make_disk_with(scene, name, bytes, INIT, None)
    }

    /// The same for a guest that runs another script, which `/bin/busybox` can, perhaps on a filesystem whose
    /// blocks have another size than mke2fs would choose.
    pub(crate) fn make_disk_with(
        &self,
        scene: &Scene,
        name: &str,
        bytes: u64,
        script: &str,
        block_bytes: Option<u32>,
    ) -> Result<PathBuf> {
        let content = scene.dir.join("content");
        for folder in ["bin", "sbin", "dev", "data"] {
            fs::create_dir_all(content.join(folder)).context("making the guest's folders")?;
        }
        fs::copy(&self.busybox, content.join("bin/busybox")).context("copying busybox")?;
        let init = content.join("sbin/init");
        fs::write(&init, script).context("writing the guest's init")?;
        make_program(&init)?;
        let size = format!("{}K", bytes >> 10);
        let mut arguments = vec!["-q", "-F", "-t", "ext4", "-d", "content"];
        let block_bytes = block_bytes.map(|bytes| bytes.to_string());
        if let Some(block_bytes) = &block_bytes {
            arguments.extend(["-b", block_bytes]);
        }
        arguments.extend([name, &size]);
        scene.tool("mke2fs", &arguments)?;
        Ok(scene.dir.join(name))
    }

    pub(crate) fn boot(&self, boot: &Boot<'_>) -> Result<Daemon> {
        let mut qemu = emulator("256");
        let append = format!(
            "console=ttyS0 quiet panic=-1 ROUND={} KEPT={FILES_KEPT}",
            boot.round
        );
        qemu.arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initrd)
            .args(["-append", &append])
            .args(boot.disk)
            .args(["-device", "virtio-blk-pci,drive=disk,write-cache=on"]);
        Daemon::start("the virtual machine", qemu, boot.log)
    }
}

/// An emulated machine whose console is this command's output.
pub(crate) fn emulator(memory_mib: &str) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-no-reboot", "-machine", "q35", "-accel", "tcg"])
        .args(["-cpu", "max", "-m", memory_mib, "-smp", "1"])
        .args(["-serial", "stdio"]);
    qemu
}

/// What the packages hold.
pub(crate) struct Unpacked {
    pub(crate) dir: PathBuf,
}

impl Unpacked {
    /// Has them downloaded and unpacked, unless that was done before.
    pub(crate) fn packages(root: &Path) -> Result<Unpacked> {
        Unpacked::from(root, &[], "e2e-guest")
    }

    /// The same for what only an emulated guest with the machine's files takes.
    pub(crate) fn emulated(root: &Path) -> Result<Unpacked> {
        Unpacked::from(root, &["--emulated"], "e2e-guest-emulated")
    }

    fn from(root: &Path, arguments: &[&str], folder: &str) -> Result<Unpacked> {
        let mut fetch = repo::command(root, "./.ci/guest");
        fetch.args(arguments);
        repo::output(fetch).context("fetching the guest's packages")?;
        let packages = repo::target_dir(root).join(folder);
        let dir = packages.join("unpacked");
        let entries = fs::read_dir(&packages).context("listing the guest's packages")?;
        for entry in entries.flatten() {
            let path = entry.path();
            let is_package = path.extension().is_some_and(|ending| ending == "deb");
            let done = path.with_extension("unpacked");
            if is_package && !done.exists() {
                let mut unpack = Command::new("dpkg");
                unpack.arg("-x").arg(&path).arg(&dir);
                repo::output(unpack)?;
                fs::write(&done, "").with_context(|| format!("writing {}", done.display()))?;
            }
        }
        Ok(Unpacked { dir })
    }

    /// The first of these that is there. Debian moves files from /bin to /usr/bin and the like.
    pub(crate) fn find(&self, places: &[&str]) -> Result<PathBuf> {
        let mut paths = places.iter().map(|place| self.dir.join(place));
        paths.find(|path| path.exists()).with_context(|| {
            format!(
                "none of {places:?} is in the guest's packages, which are in {}",
                self.dir.display()
            )
        })
    }

    pub(crate) fn busybox(&self) -> Result<PathBuf> {
        self.find(&["bin/busybox", "usr/bin/busybox"])
    }
}

/// Waits until it is so, as long as the guest says something.
pub(crate) fn wait_for(machine: &mut Daemon, is_so: impl Fn(&Daemon) -> bool) -> Result<()> {
    let mut last = (0, Instant::now());
    while !is_so(machine) {
        let printed = machine.printed();
        if printed.len() > last.0 {
            last = (printed.len(), Instant::now());
        }
        let tail = || printed[printed.len().saturating_sub(20)..].join("\n");
        if last.1.elapsed() > SILENCE_LIMIT {
            bail!("the guest is stuck; it said last:\n{}", tail());
        }
        if !machine.is_alive() {
            // What it said last may still be on its way.
            thread::sleep(Duration::from_millis(200));
            ensure!(
                is_so(machine),
                "the guest ended; it said last:\n{}\n{}",
                tail(),
                machine.log_tail()
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

pub(crate) fn make_program(path: &Path) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("making {} a program", path.display()))
}

/// Writes a file that a guest beside this one may be reading: it has the old content or the new one.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&new, bytes).with_context(|| format!("writing {}", new.display()))?;
    fs::rename(&new, path).with_context(|| format!("putting {} in place", path.display()))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

pub(crate) fn only_entry(dir: &Path, start: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(start))
        })
        .with_context(|| format!("nothing called {start}* in {}", dir.display()))
}

/// The archive format of initial filesystems ("newc"): text headers, everything padded to four bytes.
#[derive(Default)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    pub(crate) fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        // Magic, inode, mode, uid, gid, links, mtime, size, four device numbers, name, checksum.
        let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_entries_are_padded_to_four_bytes() {
        let mut archive = Cpio::default();
        archive.add("a", 0o100_644, b"hello");
        // 6 + 13 * 8 bytes of header, the name and its end, padded; then the content, padded.
        assert_eq!(archive.bytes.len(), 112 + 8);
        assert_eq!(&archive.bytes[110..120], b"a\0hello\0\0\0");
        assert!(archive.finish().len().is_multiple_of(4));
    }
}
