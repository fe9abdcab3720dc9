//! Checking the filesystems of devices that no node serves, and changing nothing: the recovery that a start would run is run in memory
//! ([`Overlay`](flagstone_platform::overlay::Overlay)), and what it comes to is looked at as a node that serves it would.

mod look;

use std::path::{Path, PathBuf};
use std::sync::mpsc;

use flagstone_device::engine::OpenError;
use flagstone_device::offline::Image;
use flagstone_runtime::{DeviceLock, Runtime, RuntimeConfig, UringPlatform, lock_device_shared};
use flagstone_types::BLOCK_SIZE;
use serde::Serialize;

use self::look::{Asked, Failed, Found, KEPT_MAX_BYTES};
use super::image::FileImage;
use super::{no_device, open_advice};
use crate::node::{CheckedFilesystem, NodeError, NodeErrorKind};
use crate::size::{counted, rounded};

/// A device whose filesystems are to be checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceToCheck {
    /// The file or block device.
    pub path: PathBuf,
    /// The size in bytes that it must have been formatted with; `None`: whatever it has.
    pub size_bytes: Option<u64>,
}

/// What is being done to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckStage {
    /// Its journals are read and replayed. How far is told in bytes.
    Recovery,
    /// Its filesystems are looked at. How far is told in files, each as often as it is looked at.
    Filesystems,
}

/// Told how far it is: which device, what is being done to it, what of that is done, and what there is to do (0 if unknown).
pub type CheckTold<'a> = &'a mut dyn FnMut(&Path, CheckStage, u64, u64);

/// What was found in the filesystems of some devices. Nothing was changed on them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct OfflineCheck {
    /// Nothing is wrong.
    pub clean: bool,
    /// The filesystems that were looked at, those of each device sorted by name.
    pub items: Vec<OfflineFilesystem>,
    /// The devices, in the order in which they were named.
    pub devices: Vec<CheckedDevice>,
}

/// What was found in a filesystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OfflineFilesystem {
    /// The file or block device it is on.
    pub device: String,
    /// The journal it is in.
    pub journal: u16,
    /// As a node would say it. What was swept is there still: the next start gives it back.
    #[serde(flatten)]
    pub checked: CheckedFilesystem,
}

/// What was found of a device beside its filesystems.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CheckedDevice {
    /// The file or block device.
    pub device: String,
    /// What is wrong and of no filesystem in particular, in words.
    pub problems: Vec<String>,
    /// What to do about what is wrong with the device or its filesystems; empty if nothing is.
    pub advice: String,
    /// What is unusual but harmless, such as what a start would do first.
    pub remarks: Vec<String>,
    /// Bytes of memory that it took to keep what the recovery, and what it led to, would have changed on the device.
    pub kept_bytes: u64,
}

/// Checks the filesystems of devices that no node serves: all of them, or those of one name. What is wrong is in the report; an error
/// means that they could not be looked at: `Busy` if a node serves one of the devices, `InvalidArgument` if one is no Flagstone device,
/// `NotFound` if there is no such device or filesystem, `NoSpace` if a start would find no room for its recovery.
pub fn check_filesystems(
    devices: &[DeviceToCheck],
    name: Option<&str>,
    told: CheckTold<'_>,
) -> Result<OfflineCheck, NodeError> {
    // Before anything is done that takes long.
    let locks: Result<Vec<DeviceLock>, NodeError> = devices.iter().map(claim).collect();
    let _locks = locks?;
    let mut report = OfflineCheck::default();
    let all = check_devices(devices, name, told)?;
    for (device, found) in devices.iter().zip(all) {
        let (items, found) = judge(device, found, &doing(&device.path))?;
        report.items.extend(items);
        report.devices.push(found);
    }
    let is_fine = |device: &CheckedDevice| device.problems.is_empty();
    let are_fine = report.devices.iter().all(is_fine);
    if let Some(name) = name
        && report.items.is_empty()
        && are_fine
    {
        let doing = format!("checking filesystem '{name}'");
        let found = format!("there is no filesystem '{name}'");
        return Err(NodeError::new(NodeErrorKind::NotFound, doing, found)
            .next("leave the name out to see which there are"));
    }
    let is_whole = |item: &OfflineFilesystem| item.checked.problems.is_empty();
    report.clean = are_fine && report.items.iter().all(is_whole);
    Ok(report)
}

fn doing(path: &Path) -> String {
    format!("checking the filesystems of {}", path.display())
}

/// Keeps nodes from starting on a device. Refuses what is none.
fn claim(device: &DeviceToCheck) -> Result<DeviceLock, NodeError> {
    let (path, doing) = (&device.path, doing(&device.path));
    let file = FileImage::open(path).map_err(|error| NodeError::of_io(&*doing, &error))?;
    let lock = lock_device_shared(path).map_err(|error| {
        NodeError::of_io(&*doing, &error).next_for(
            NodeErrorKind::Busy,
            "stop the node that serves it first, or ask that one: `flagstone fs check` without --device",
        )
    })?;
    if Image::open(&file).is_err()
        && let Some(error) = no_device(path, &doing)
    {
        return Err(error);
    }
    Ok(lock)
}

/// What a core says to whoever waits.
enum Said {
    Far(usize, CheckStage, u64, u64),
    Done(Vec<Result<Found, Failed>>),
}

/// Looks at all of them at once: files of a filesystem may lie on several.
fn check_devices(
    devices: &[DeviceToCheck],
    name: Option<&str>,
    told: CheckTold<'_>,
) -> Result<Vec<Result<Found, Failed>>, NodeError> {
    let internal = |what: String| {
        let doing = "checking the filesystems of devices";
        NodeError::new(NodeErrorKind::Internal, doing, what)
    };
    // Nothing is in a hurry: others may need the processors more.
    let config = RuntimeConfig {
        pin: false,
        spin_max_us: 0,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::start(&config, |_| |_: UringPlatform| {});
    let runtime = runtime.map_err(|error| internal(error.to_string()))?;
    let (sender, receiver) = mpsc::channel();
    let asked = devices.iter().map(|device| Asked {
        path: device.path.clone(),
        size_bytes: device.size_bytes,
    });
    let (asked, name) = (asked.collect(), name.map(str::to_owned));
    let far = sender.clone();
    let tell = move |nth, stage, done, total| drop(far.send(Said::Far(nth, stage, done, total)));
    let sent = runtime.cores()[0].remote().call_then(
        move |platform| look::look_at(platform, asked, name, tell),
        move |found| drop(sender.send(Said::Done(found))),
    );
    sent.map_err(|refused| internal(refused.to_string()))?;
    for said in receiver {
        match said {
            Said::Far(nth, stage, done, total) => told(&devices[nth].path, stage, done, total),
            // With the runtime all that would still be done goes: what would have been written is nowhere.
            Said::Done(found) => return Ok(found),
        }
    }
    Err(internal("the core has stopped".to_owned()))
}

/// What is told of what was found.
fn judge(
    device: &DeviceToCheck,
    found: Result<Found, Failed>,
    doing: &str,
) -> Result<(Vec<OfflineFilesystem>, CheckedDevice), NodeError> {
    let path = &device.path;
    let shown = path.display().to_string();
    let mut checked = CheckedDevice {
        device: shown.clone(),
        problems: Vec::new(),
        advice: String::new(),
        remarks: Vec::new(),
        kept_bytes: 0,
    };
    let found = match found {
        Ok(found) => found,
        Err(Failed::Open(refused)) => {
            let (problems, advice) = unopened(path, refused, doing)?;
            (checked.problems, checked.advice) = (problems, advice);
            return Ok((Vec::new(), checked));
        }
        Err(Failed::Size { expected, blocks }) => {
            let size = blocks * BLOCK_SIZE;
            let found = format!("expected a device of {expected} bytes, found one of {size}");
            let error = NodeError::new(NodeErrorKind::InvalidArgument, doing, found);
            return Err(error.next("leave the size out, or name the one it was formatted with"));
        }
        Err(Failed::Full) => {
            let found = format!(
                "what a start would do first changes more than {} of it, and more than that isn't kept in memory",
                rounded(KEPT_MAX_BYTES)
            );
            let error = NodeError::new(NodeErrorKind::Internal, doing, found);
            return Err(error.next("start a node on it, and ask that one: `flagstone fs check`"));
        }
        Err(Failed::Stopped) => {
            let found = "the recovery, or what it led to, stopped, as on a device that takes no more changes";
            return Err(NodeError::new(NodeErrorKind::Internal, doing, found).next("see the log"));
        }
    };
    let of_device = |(journal, checked)| OfflineFilesystem {
        device: shown.clone(),
        journal,
        checked,
    };
    checked.remarks = remarks(&found);
    checked.kept_bytes = found.kept_bytes;
    checked.problems = found.problems;
    if let (count, Some(first)) = found.failed_reads {
        checked.problems.push(format!(
            "{} of the device failed, the first of {} bytes at {}: {}",
            counted(count, "read"),
            first.len_bytes,
            first.offset_bytes,
            first.error
        ));
    }
    let items: Vec<OfflineFilesystem> = found.items.into_iter().map(of_device).collect();
    let is_whole = |item: &OfflineFilesystem| item.checked.problems.is_empty();
    if !checked.problems.is_empty() || !items.iter().all(is_whole) {
        checked.advice = format!(
            "keep a copy of {shown}, see with `flagstone verify {shown}` which of its blocks are damaged, and copy what is needed \
             out of its filesystems while a node serves them"
        );
    }
    Ok((items, checked))
}

/// What a device is told of whose journals can't be opened, if that is since it is damaged.
fn unopened(
    path: &Path,
    mut refused: Vec<(Option<u16>, OpenError)>,
    doing: &str,
) -> Result<(Vec<String>, String), NodeError> {
    refused.retain(|(_, error)| !matches!(error, OpenError::OtherJournal));
    let mut advice = String::new();
    let mut problems = Vec::new();
    for (journal, error) in &refused {
        let (kind, next) = open_advice(path, error);
        if let OpenError::Io(error) = error {
            return Err(NodeError::of_io(doing, error));
        }
        if kind != NodeErrorKind::Corrupt {
            return Err(NodeError::new(kind, doing, error.to_string()).next(next));
        }
        // Some say themselves which journal it is.
        let said = error.to_string();
        let of = journal.filter(|_| !said.starts_with("journal "));
        let of = of.map_or(String::new(), |journal| format!("journal {journal}: "));
        problems.push(format!("it can't be opened: {of}{said}"));
        advice = next;
    }
    match problems.is_empty() {
        true => Err(
            NodeError::new(NodeErrorKind::Internal, doing, "it can't be opened")
                .next("see the log"),
        ),
        false => Ok((problems, advice)),
    }
}

/// What people should know, though nothing is wrong with it.
fn remarks(found: &Found) -> Vec<String> {
    let mut remarks = Vec::new();
    let recovered = &found.recovered;
    if recovered.journals > 0 {
        let dropped = match recovered.dropped {
            0 => String::new(),
            count => format!(
                ", {} that nobody was told is durable left out",
                counted(count, "unit")
            ),
        };
        remarks.push(format!(
            "it was not stopped in order: {} of {} recovered in memory, {} replayed{dropped}",
            recovered.journals,
            counted(u64::from(found.journals), "journal"),
            counted(recovered.units, "unit"),
        ));
    }
    if recovered.mended > 0 {
        remarks.push("a bit of a root is flipped, and the next start flips it back".to_owned());
    }
    if recovered.bitmaps_lost > 0 {
        remarks.push(format!(
            "{} of segments can't be read: their free space can't be used again, and no data is lost",
            counted(recovered.bitmaps_lost, "bitmap")
        ));
    }
    if let [_, _, ..] = &found.stores[..] {
        let numbers: Vec<String> = found.stores.iter().map(u16::to_string).collect();
        remarks.push(format!(
            "there are filesystems in the journals {}: a node serves those of one",
            numbers.join(", ")
        ));
    }
    if found.has_others {
        remarks.push(
            "large files lie on it of filesystems whose names are on another device: they are looked at if that is given, too"
                .to_owned(),
        );
    }
    remarks
}
