//! A Linux guest small enough to boot under emulation in seconds: Debian's cloud kernel, busybox,
//! and an init of ours. `.ci/guest` downloads both packages once, into the build folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::daemon::Daemon;
use crate::repo;

/// Loaded in this order; the rest is built into the kernel.
const MODULES: [&str; 6] = [
    "virtio/virtio_ring",
    "virtio/virtio",
    "virtio/virtio_pci_modern_dev",
    "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci",
    "block/virtio_blk",
];

/// What the guest runs: it writes files, makes each durable, and says so on its console. `ROUND`
/// comes from the kernel's command line. Files of long ago are removed, which discards their blocks.
const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
for m in /mod/*.ko; do $b insmod $m; done
$b mount -t ext4 -o discard /dev/vda /mnt || { echo "guest: no mount"; $b sleep 1000; }
i=0
while true; do
    i=$((i + 1))
    f=r$ROUND-$i
    # ext4 makes a new file's name durable with its first fsync.
    $b dd if=/dev/urandom of=/mnt/$f bs=4k count=$((i % 7 + 1)) conv=fsync 2>/dev/null || continue
    s=$($b sha256sum </mnt/$f)
    echo "guest: synced $f ${s%% *}"
    $b rm -f /mnt/r$ROUND-$((i - 20))
done
"#;

/// A kernel and an initial filesystem, ready to boot.
pub(super) struct Guest {
    kernel: PathBuf,
    initrd: PathBuf,
}

impl Guest {
    /// Prepares the guest from its two packages.
    pub(super) fn prepare(root: &Path) -> Result<Guest> {
        ensure!(
            repo::has_program("qemu-system-x86_64"),
            "apt install qemu-system-x86"
        );
        let dir = repo::target_dir(root).join("e2e-guest");
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let unpacked = dir.join("unpacked");
        if !unpacked.join("bin/busybox").is_file() {
            unpack(root, &dir, &unpacked)?;
        }
        let kernel = only_entry(&unpacked.join("boot"), "vmlinuz-")?;
        let modules = only_entry(&unpacked.join("lib/modules"), "")?.join("kernel/drivers");

        let mut archive = Cpio::default();
        for folder in ["bin", "dev", "proc", "mnt", "mod"] {
            archive.add(folder, 0o040_755, &[]);
        }
        archive.add("init", 0o100_755, INIT.as_bytes());
        archive.add(
            "bin/busybox",
            0o100_755,
            &read(&unpacked.join("bin/busybox"))?,
        );
        for (order, module) in MODULES.iter().enumerate() {
            let bytes = read(&modules.join(format!("{module}.ko")))?;
            archive.add(&format!("mod/{order}.ko"), 0o100_644, &bytes);
        }
        let initrd = dir.join("initrd");
        fs::write(&initrd, archive.finish()).context("writing the initial filesystem")?;
        Ok(Guest { kernel, initrd })
    }

    /// Boots it on an export of the server at `port`. QEMU reconnects if the server goes away.
    pub(super) fn boot(&self, port: u16, export: &str, round: u32, log: &Path) -> Result<Daemon> {
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args([
            "-machine", "q35", "-accel", "tcg", "-cpu", "max", "-m", "256", "-smp", "1",
        ])
        .arg("-kernel")
        .arg(&self.kernel)
        .arg("-initrd")
        .arg(&self.initrd)
        .args([
            "-append",
            &format!("console=ttyS0 quiet panic=-1 ROUND={round}"),
        ])
        .args(["-serial", "stdio", "-blockdev"])
        .arg(format!(
            "driver=nbd,node-name=disk,server.type=inet,server.host=127.0.0.1,\
                 server.port={port},export={export},reconnect-delay=60,discard=unmap"
        ))
        .args(["-device", "virtio-blk-pci,drive=disk,write-cache=on"]);
        Daemon::start("the virtual machine", qemu, log)
    }
}

/// Has the packages downloaded, unless that was done before, and unpacks them.
fn unpack(root: &Path, dir: &Path, unpacked: &Path) -> Result<()> {
    repo::output(repo::command(root, "./.ci/guest")).context("fetching the guest's packages")?;
    let entries = fs::read_dir(dir).context("listing the guest's packages")?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            let mut unpack = Command::new("dpkg");
            unpack.arg("-x").arg(&path).arg(unpacked);
            repo::output(unpack)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

fn only_entry(dir: &Path, start: &str) -> Result<PathBuf> {
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
struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
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

    fn finish(mut self) -> Vec<u8> {
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
