//! Finding out what a device can do, while nobody uses it.
//!
//! Reads alone change nothing, and may be of anything. Writes go to the beginning of a device, the *region*, which is written in
//! full before, so that no read finds a hole, and made zero afterwards: a device that was blank is blank again.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flagstone_platform::layers::{Layer, Layers};
use flagstone_platform::{BlockDevice, IoBuf};
use flagstone_runtime::{DeviceOptions, RuntimeConfig, UringDevice, block_on, lock_device};
use flagstone_sched::calibrate::{Ask, Fitted, Load, Measured, Region, Suggested, fit};
use flagstone_types::BLOCK_SIZE;
use serde::Serialize;

use super::{Progress, foreign};
use crate::node::{DeviceCeiling, NodeError, NodeErrorKind};
use crate::size;

/// Requests of a block in flight, one load each.
const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Larger requests, and how many of them are in flight.
const LARGE_BYTES: [u64; 3] = [16 << 10, 64 << 10, 256 << 10];
const LARGE_DEPTHS: [u32; 3] = [1, 16, 128];
/// Writes in flight beside the flushes: as many as most devices need to be busy.
const FLUSH_DEPTH: u32 = 64;
/// A smaller region would be kept in the device's own memory.
const REGION_MIN_BYTES: u64 = 64 << 20;
/// What is written at a time where nothing is measured.
const FILL_BYTES: u64 = 1 << 20;

/// How to calibrate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CalibrateOptions {
    /// Measure writes and flushes as well as reads.
    pub writes: bool,
    /// Write although the device is not blank: what it holds is lost.
    pub destroy_contents: bool,
    /// How long each load takes, in milliseconds.
    pub load_ms: u64,
    /// How much is used of the device if it is written, from its beginning: 64 MiB or more. A smaller device is used whole.
    pub region_bytes: u64,
    /// What the device is put behind, to try this out.
    pub layers: Vec<Layer>,
}

/// What a device gave under one load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CalibratedPoint {
    /// `reads`, `writes`, or `writes and flushes`.
    pub kind: &'static str,
    /// Bytes of each request.
    pub bytes: u64,
    /// Requests in flight.
    pub depth: u32,
    /// Requests a second, without the flushes.
    pub per_second: f64,
    /// Flushes a second.
    pub flushes_per_second: f64,
    /// What half of the requests took at most, in microseconds.
    pub p50_us: f64,
    /// What 99 of a hundred took at most, in microseconds.
    pub p99_us: f64,
}

/// What requests cost, in nanoseconds of the device's time. Null: not measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct CalibratedPrices {
    /// A read.
    pub read_op_ns: Option<u64>,
    /// And each block of 4 KiB of it.
    pub read_block_ns: Option<u64>,
    /// A write.
    pub write_op_ns: Option<u64>,
    /// And each block of 4 KiB of it.
    pub write_block_ns: Option<u64>,
    /// A flush; 0: nothing that could be told from chance.
    pub flush_ns: Option<u64>,
}

/// What was found out about a device.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CalibrateReport {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// How much of it was used, from its beginning, in bytes.
    pub region_bytes: u64,
    /// One for each load during which requests were answered.
    pub points: Vec<CalibratedPoint>,
    /// What follows from them.
    pub prices: CalibratedPrices,
    /// A ceiling a little below what the device can do. Null if writes were not measured.
    pub ceiling: Option<DeviceCeiling>,
    /// What the user should know; empty if there is nothing.
    pub notes: Vec<String>,
}

/// The loads, in order.
fn loads(options: &CalibrateOptions) -> Vec<Load> {
    let load = |ask, len_bytes, depth| Load {
        ask,
        len_bytes,
        depth,
        run_ns: options.load_ms.saturating_mul(1_000_000),
    };
    let asks: &[Ask] = match options.writes {
        true => &[Ask::Reads, Ask::Writes],
        false => &[Ask::Reads],
    };
    let mut loads = Vec::new();
    for &ask in asks {
        loads.extend(DEPTHS.map(|depth| load(ask, BLOCK_SIZE, depth)));
        for bytes in LARGE_BYTES {
            loads.extend(LARGE_DEPTHS.map(|depth| load(ask, bytes, depth)));
        }
    }
    if options.writes {
        loads.push(load(Ask::WritesAndFlushes, BLOCK_SIZE, FLUSH_DEPTH));
    }
    loads
}

/// How long it takes at least, filling and clearing the region apart.
pub(crate) fn takes(options: &CalibrateOptions) -> Duration {
    let loads = loads(options).len() as u64;
    Duration::from_millis(options.load_ms.saturating_mul(loads))
}

/// Measures a device that nobody uses. `progress` is told loads done and loads in all. Without `writes` nothing is changed. With
/// them it has to be blank or `destroy_contents` be set: else `Refused`, or `AlreadyExists` if it is a Flagstone device. `Busy` if a
/// node serves it or it is mounted, `NotFound`, `InvalidArgument` (too small).
pub fn calibrate(
    path: &Path,
    options: &CalibrateOptions,
    progress: Progress<'_>,
) -> Result<CalibrateReport, NodeError> {
    let doing = format!("calibrating {}", path.display());
    let io_failed = |error: io::Error| NodeError::of_io(&*doing, &error);
    let size_bytes = size_of(path).map_err(io_failed)?;
    check_sizes(size_bytes, options, &doing)?;
    let _lock = lock_device(path).map_err(|error| {
        NodeError::of_io(&*doing, &error).next_for(
            NodeErrorKind::Busy,
            "stop the node that serves it, or unmount it, first",
        )
    })?;
    let region_bytes = match options.writes {
        true => size_bytes.min(options.region_bytes),
        false => size_bytes,
    };
    let region_bytes = region_bytes - region_bytes % FILL_BYTES;
    if options.writes {
        check_content(path, size_bytes, options, &doing)?;
        fill(path, region_bytes, &noise()).map_err(io_failed)?;
    }
    let measured = measure(path, region_bytes, options, progress);
    // Also if a load has failed.
    let cleared = match options.writes {
        true => fill(path, region_bytes, &vec![0; FILL_BYTES as usize]),
        false => Ok(()),
    };
    let points = measured.map_err(io_failed)?;
    cleared.map_err(io_failed)?;
    Ok(report(path, size_bytes, region_bytes, &points))
}

fn size_of(path: &Path) -> io::Result<u64> {
    // Metadata knows the size of files only.
    File::open(path)?.seek(SeekFrom::End(0))
}

fn check_sizes(size_bytes: u64, options: &CalibrateOptions, doing: &str) -> Result<(), NodeError> {
    let wrong = |found: String, next: &str| {
        Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(next))
    };
    let least = size::rounded(REGION_MIN_BYTES);
    if size_bytes < REGION_MIN_BYTES {
        let found = size::rounded(size_bytes);
        return wrong(
            format!("expected a device of at least {least}, found one of {found}"),
            "take a larger one: what fits into the device's own memory says nothing about it",
        );
    }
    if options.region_bytes < REGION_MIN_BYTES {
        let found = size::rounded(options.region_bytes);
        return wrong(
            format!("expected a region of at least {least}, found {found}"),
            "name a larger region, or leave it out",
        );
    }
    let is_trace = |layer: &Layer| matches!(layer, Layer::Trace { .. });
    if options.layers.iter().any(is_trace) {
        return wrong(
            "there is a trace among the layers, which nobody could read".to_owned(),
            "leave it out",
        );
    }
    if options.load_ms == 0 {
        return wrong(
            "expected loads of a millisecond or more, found 0".to_owned(),
            "name more, or leave it out",
        );
    }
    Ok(())
}

/// Refuses to write over anything that was not said to be lost.
fn check_content(
    path: &Path,
    size_bytes: u64,
    options: &CalibrateOptions,
    doing: &str,
) -> Result<(), NodeError> {
    if let Some(device) = foreign::loop_device(path) {
        let found = format!("it is in use: it is what {} shows", device.display());
        let next = format!(
            "unmount it and detach it with `losetup -d {}`",
            device.display()
        );
        return Err(NodeError::new(NodeErrorKind::Busy, doing, found).next(next));
    }
    let content = foreign::look(path).map_err(|error| NodeError::of_io(doing, &error))?;
    if content.is_blank() || options.destroy_contents {
        return Ok(());
    }
    let kind = match content.is_flagstone() {
        true => NodeErrorKind::AlreadyExists,
        false => NodeErrorKind::Refused,
    };
    let found = foreign::sentence(&content, size_bytes);
    Err(NodeError::new(kind, doing, found).next(
        "leave --writes out: reads change nothing; or pass --destroy-contents to lose all it holds",
    ))
}

/// What doesn't compress: a device might make less of it.
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(FILL_BYTES as usize);
    while bytes.len() < FILL_BYTES as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

/// Writes the same over and over from the beginning of a device, and makes it durable. The length is a multiple of the piece's.
fn fill(path: &Path, region_bytes: u64, piece: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    for at in (0..region_bytes).step_by(piece.len()) {
        file.write_all_at(piece, at)?;
    }
    file.sync_all()
}

fn measure(
    path: &Path,
    region_bytes: u64,
    options: &CalibrateOptions,
    progress: Progress<'_>,
) -> io::Result<Vec<Measured>> {
    let loads = loads(options);
    let total = loads.len() as u64;
    let mut points = Vec::new();
    for (done, load) in (0..).zip(loads) {
        progress(done, total);
        points.push(put(path, region_bytes, load, options)?);
    }
    progress(total, total);
    Ok(points)
}

/// Puts one load on the device, from a core of its own.
fn put(
    path: &Path,
    region_bytes: u64,
    load: Load,
    options: &CalibrateOptions,
) -> io::Result<Measured> {
    let (path, layers) = (path.to_owned(), options.layers.clone());
    let open = DeviceOptions {
        read_only: load.ask == Ask::Reads,
        ..DeviceOptions::default()
    };
    let region = Region {
        first_bytes: 0,
        end_bytes: region_bytes,
    };
    let measured = block_on(&RuntimeConfig::default(), move |platform| async move {
        let mut device = UringDevice::open(&platform, &path, open)?;
        if !layers.is_empty() {
            device = device.behind(Arc::new(Layers::new(&layers)));
        }
        if region.end_bytes > device.size_bytes() {
            return Err(io::Error::other("the device has become smaller"));
        }
        let payload = IoBuf::copy_of(&noise());
        load.run(&platform, &device, region, &payload).await
    });
    measured.map_err(io::Error::other)?
}

fn report(path: &Path, size_bytes: u64, region_bytes: u64, points: &[Measured]) -> CalibrateReport {
    let fitted = fit(points);
    let of = |pick: &dyn Fn(&Fitted) -> Option<u64>| fitted.as_ref().and_then(pick);
    let prices = CalibratedPrices {
        read_op_ns: of(&|fitted| fitted.read.map(|price| price.op_ns)),
        read_block_ns: of(&|fitted| fitted.read.map(|price| price.block_ns)),
        write_op_ns: of(&|fitted| fitted.write.map(|price| price.op_ns)),
        write_block_ns: of(&|fitted| fitted.write.map(|price| price.block_ns)),
        flush_ns: of(&|fitted| fitted.flush_ns),
    };
    CalibrateReport {
        size_bytes,
        region_bytes,
        points: points.iter().filter(|p| !is_empty(p)).map(shown).collect(),
        prices,
        ceiling: fitted.and_then(|fitted| fitted.suggested()).map(ceiling),
        notes: notes(path, size_bytes, points),
    }
}

fn kind(ask: Ask) -> &'static str {
    match ask {
        Ask::Reads => "reads",
        Ask::Writes => "writes",
        Ask::WritesAndFlushes => "writes and flushes",
    }
}

/// Nothing was answered while it was counted: it says nothing but that the load was too short.
fn is_empty(point: &Measured) -> bool {
    point.per_second <= 0.0
}

fn shown(point: &Measured) -> CalibratedPoint {
    CalibratedPoint {
        kind: kind(point.load.ask),
        bytes: point.load.len_bytes,
        depth: point.load.depth,
        per_second: point.per_second,
        flushes_per_second: point.flushes_per_second,
        p50_us: point.p50_ns as f64 / 1000.0,
        p99_us: point.p99_ns as f64 / 1000.0,
    }
}

fn ceiling(suggested: Suggested) -> DeviceCeiling {
    DeviceCeiling {
        reads: suggested.reads,
        writes: suggested.writes,
        flushes: suggested.flushes,
        bytes: suggested.bytes,
        latency_us: suggested.latency_us,
    }
}

fn notes(path: &Path, size_bytes: u64, points: &[Measured]) -> Vec<String> {
    let mut notes = Vec::new();
    let has_writes = points.iter().any(|point| point.load.ask == Ask::Writes);
    // In units of 512 bytes, whatever the filesystem's blocks are.
    let stored = File::open(path).and_then(|file| file.metadata());
    if let Ok(stored) = stored
        && stored.is_file()
        && stored.blocks().saturating_mul(512) < size_bytes
        && !has_writes
    {
        notes.push(
            "parts of the file were never written: reads of those cost the disk below nothing"
                .to_owned(),
        );
    }
    let empty: Vec<String> = points
        .iter()
        .filter(|point| is_empty(point))
        .map(|Measured { load, .. }| {
            format!(
                "{} of {}, {} in flight",
                kind(load.ask),
                size::rounded(load.len_bytes),
                load.depth
            )
        })
        .collect();
    if !empty.is_empty() {
        notes.push(format!(
            "left out, since no request of it was answered in time: {}. Give each load longer (--load-ms)",
            empty.join("; ")
        ));
    }
    if !has_writes {
        notes.push(
            "a ceiling takes writes, too, which change what the device holds: see --writes"
                .to_owned(),
        );
    }
    notes
}

#[cfg(test)]
mod tests;
