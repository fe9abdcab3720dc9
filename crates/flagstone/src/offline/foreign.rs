//! What a device holds before it is formatted, so that nothing is overwritten by mistake.
//!
//! A device counts as blank only if nothing known is found on it and what is read of it is zero:
//! its first and last MiB, and one block in each 64 MiB between (the backups of ext and btrfs
//! superblocks lie at such places, and data rarely spares all of them). Small devices are read
//! whole. Reading more would take as long as the device is large; what this can miss is data in the
//! middle of a device, between the samples, that nothing at its ends refers to.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flagstone_device::format::{root, superblock};

use crate::size;

/// What is read of each end.
const END_BYTES: u64 = 1 << 20;

/// Between the ends, one block is read at each multiple of this.
const SAMPLE_STRIDE: u64 = 64 << 20;
const SAMPLE_BYTES: u64 = 4096;

/// Samples at most; on very large devices they lie further apart.
const SAMPLES_MAX: u64 = 16384;

/// Devices up to this size are read whole.
const WHOLE_BYTES: u64 = 64 << 20;

/// Signatures named in one message, at most.
const NAMED_MAX: usize = 4;

/// Bytes that stand at a fixed distance from the beginning of a device.
const SIGNATURES: &[(&str, u64, &[u8])] = &[
    ("a Flagstone device", 0, &superblock::MAGIC),
    ("an XFS filesystem", 0, b"XFSB"),
    ("a LUKS container", 0, b"LUKS\xba\xbe"),
    ("a LUKS container (second header)", 0x4000, b"SKUL\xba\xbe"),
    ("a qcow2 image", 0, b"QFI\xfb"),
    ("a VMDK image", 0, b"KDMV"),
    ("a VHDX image", 0, b"vhdxfile"),
    ("a squashfs filesystem", 0, b"hsqs"),
    ("a Ceph BlueStore device", 0, b"bluestore block device"),
    ("a dm-integrity device", 0, b"integrt\0"),
    ("a VDO device", 0, b"dmvdo001"),
    ("an md RAID member (1.1)", 0, &MDRAID),
    ("an NTFS filesystem", 3, b"NTFS    "),
    ("an exFAT filesystem", 3, b"EXFAT   "),
    ("a FAT filesystem", 54, b"FAT12   "),
    ("a FAT filesystem", 54, b"FAT16   "),
    ("a FAT filesystem", 82, b"FAT32   "),
    ("a boot sector or MBR partition table", 510, b"\x55\xaa"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("a GPT partition table", 512, GPT),
    ("a GPT partition table", 4096, GPT),
    ("an F2FS filesystem", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an EROFS filesystem", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("an ext2, ext3 or ext4 filesystem", 1080, b"\x53\xef"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("swap space", 4086, b"SWAP-SPACE"),
    ("swap space", 65526, b"SWAPSPACE2"),
    ("a suspended system in swap space", 4086, b"S1SUSPEND"),
    ("an md RAID member (1.2)", 4096, &MDRAID),
    (
        "what is left of a Flagstone device (a journal's root)",
        4096,
        &root::MAGIC,
    ),
    (
        "what is left of a Flagstone device (a journal's root)",
        8192,
        &root::MAGIC,
    ),
    (
        "a bcache device",
        4120,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    ("an ISO 9660 filesystem", 32769, b"CD001"),
    ("a btrfs filesystem", 65600, b"_BHRfS_M"),
];

const GPT: &[u8] = b"EFI PART";
const MDRAID: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

/// Length of a ZFS label; two stand at each end of a device, each with a ring of uberblocks in its
/// second half.
const ZFS_LABEL_BYTES: u64 = 256 << 10;
const ZFS_UBERBLOCK: u64 = 0x00ba_b10c;

/// What was found at one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// What it is, with its article.
    pub(super) what: String,
    /// The byte at which it stands.
    pub(super) offset: u64,
}

/// Everything that is known to be on a device; empty if it is blank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Content {
    found: Vec<Found>,
}

impl Content {
    /// Nothing was found.
    pub(super) fn is_blank(&self) -> bool {
        self.found.is_empty()
    }

    /// A whole Flagstone device, or one superblock of it.
    pub(super) fn is_flagstone(&self) -> bool {
        self.found
            .iter()
            .any(|found| found.what.starts_with("a Flagstone device"))
    }

    /// Anything of a Flagstone device, a journal's root at least.
    pub(super) fn tells_of_flagstone(&self) -> bool {
        self.found
            .iter()
            .any(|found| found.what.contains("a Flagstone device"))
    }

    /// What was found and where, for a message.
    pub(super) fn words(&self) -> String {
        let named = self.found.iter().take(NAMED_MAX);
        let mut parts: Vec<String> = named
            .map(|found| format!("{} at byte {}", found.what, found.offset))
            .collect();
        if self.found.len() > NAMED_MAX {
            parts.push("more".to_owned());
        }
        match parts.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => parts.concat(),
        }
    }

    fn add(&mut self, what: &str, offset: u64) {
        self.found.push(Found {
            what: what.to_owned(),
            offset,
        });
    }
}

/// Looks at a file or block device. It is only read.
pub(super) fn look(path: &Path) -> io::Result<Content> {
    let mut file = File::open(path)?;
    // Metadata knows the size of files only.
    let size_bytes = file.seek(SeekFrom::End(0))?;
    look_at(&file, size_bytes)
}

fn look_at(file: &impl FileExt, size_bytes: u64) -> io::Result<Content> {
    let head = read(file, 0, size_bytes.min(END_BYTES))?;
    let tail_start = size_bytes.saturating_sub(END_BYTES);
    let tail = read(file, tail_start, size_bytes - tail_start)?;
    let mut content = Content::default();
    for &(what, offset, magic) in SIGNATURES {
        if at(&head, 0, offset, magic) {
            content.add(what, offset);
        }
    }
    look_at_end(&tail, tail_start, size_bytes, &mut content);
    for (bytes, start, label) in zfs_labels(&head, &tail, tail_start, size_bytes) {
        if let Some(offset) = uberblock(bytes, start, label) {
            content.add("a ZFS pool member", offset);
        }
    }
    if content.is_blank()
        && let Some(offset) = first_data(file, &head, &tail, size_bytes)?
    {
        content.add("data (bytes other than zero)", offset);
    }
    Ok(content)
}

/// Signatures that are placed from the device's end.
fn look_at_end(tail: &[u8], tail_start: u64, size_bytes: u64, content: &mut Content) {
    let last_block = (size_bytes / SAMPLE_BYTES).saturating_sub(1) * SAMPLE_BYTES;
    // A device that is only one block long has seen its beginning looked at already.
    if last_block > 0 && at(tail, tail_start, last_block, &superblock::MAGIC) {
        content.add("a Flagstone device (second superblock)", last_block);
    }
    for sector in [512, 4096] {
        let last = (size_bytes / sector).saturating_sub(1) * sector;
        if last > sector && at(tail, tail_start, last, GPT) {
            content.add("a GPT partition table (backup)", last);
        }
    }
    // The places are those of the superblocks of format 1.0 and 0.90.
    let sectors = size_bytes / 512;
    let new = (sectors.saturating_sub(16) & !7) * 512;
    let old = (size_bytes & !0xffff).saturating_sub(0x1_0000);
    for (what, offset) in [
        ("an md RAID member (1.0)", new),
        ("an md RAID member (0.90)", old),
    ] {
        if offset > 0 && at(tail, tail_start, offset, &MDRAID) {
            content.add(what, offset);
        }
    }
}

/// The ZFS labels within what was read: bytes, where these begin, where the label begins.
fn zfs_labels<'a>(
    head: &'a [u8],
    tail: &'a [u8],
    tail_start: u64,
    size_bytes: u64,
) -> Vec<(&'a [u8], u64, u64)> {
    let end = size_bytes / ZFS_LABEL_BYTES * ZFS_LABEL_BYTES;
    let mut labels = vec![(head, 0, 0), (head, 0, ZFS_LABEL_BYTES)];
    // On smaller devices they would overlap.
    if end >= 4 * ZFS_LABEL_BYTES {
        labels.push((tail, tail_start, end - 2 * ZFS_LABEL_BYTES));
        labels.push((tail, tail_start, end - ZFS_LABEL_BYTES));
    }
    labels
}

/// Where the first uberblock of a label stands, if it has any.
fn uberblock(bytes: &[u8], start: u64, label: u64) -> Option<u64> {
    let ring = label + ZFS_LABEL_BYTES / 2..label + ZFS_LABEL_BYTES;
    ring.step_by(1024).find(|&offset| {
        at(bytes, start, offset, &ZFS_UBERBLOCK.to_le_bytes())
            || at(bytes, start, offset, &ZFS_UBERBLOCK.to_be_bytes())
    })
}

/// True if `magic` stands at `offset` of the device, of which `bytes` begin at `start`.
fn at(bytes: &[u8], start: u64, offset: u64, magic: &[u8]) -> bool {
    let Some(from) = offset.checked_sub(start) else {
        return false;
    };
    let from = usize::try_from(from).unwrap_or(usize::MAX);
    let found = bytes.get(from..from.saturating_add(magic.len()));
    found == Some(magic)
}

/// The first byte that is not zero, of those that are looked at.
fn first_data(
    file: &impl FileExt,
    head: &[u8],
    tail: &[u8],
    size_bytes: u64,
) -> io::Result<Option<u64>> {
    let not_zero = |bytes: &[u8], start: u64| {
        let position = bytes.iter().position(|byte| *byte != 0);
        position.map(|position| start + position as u64)
    };
    if let Some(offset) = not_zero(head, 0) {
        return Ok(Some(offset));
    }
    let (step, length) = if size_bytes <= WHOLE_BYTES {
        (END_BYTES, END_BYTES)
    } else {
        let apart = (size_bytes / SAMPLES_MAX).next_multiple_of(SAMPLE_STRIDE);
        (apart.max(SAMPLE_STRIDE), SAMPLE_BYTES)
    };
    let mut offset = step;
    while offset < size_bytes {
        let bytes = read(file, offset, length.min(size_bytes - offset))?;
        if let Some(found) = not_zero(&bytes, offset) {
            return Ok(Some(found));
        }
        offset += step;
    }
    Ok(not_zero(tail, size_bytes.saturating_sub(END_BYTES)))
}

fn read(file: &impl FileExt, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, offset)
        .map_err(|error| io::Error::new(error.kind(), format!("reading at {offset}: {error}")))?;
    Ok(bytes)
}

/// The loop device that a file is attached to, as a mounted image is. Locks don't tell.
pub(super) fn loop_device(path: &Path) -> Option<PathBuf> {
    let path = fs::canonicalize(path).ok()?;
    let blocks = fs::read_dir("/sys/block").ok()?;
    blocks.flatten().find_map(|block| {
        let behind = fs::read_to_string(block.path().join("loop/backing_file")).ok()?;
        (Path::new(behind.trim_end_matches('\n')) == path)
            .then(|| Path::new("/dev").join(block.file_name()))
    })
}

/// The message's part on what a device holds and how large it is.
pub(super) fn sentence(content: &Content, size_bytes: u64) -> String {
    format!(
        "expected it to be blank, found {} ({} in all)",
        content.words(),
        size::rounded(size_bytes)
    )
}

#[cfg(test)]
mod tests;
