//! An engine on a device of one journal, and what tests of its space do with it.

#![allow(dead_code)] // Each test binary uses its part.

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Stability, format_device,
};
use flagstone_platform::{BlockDevice, IoBuf};
use flagstone_sim::{SimDevice, SimDisk, SimPlatform};

pub(crate) const BLOCK: u64 = 4096;
/// Of every dvol: more than the devices have.
pub(crate) const SIZE: u64 = 1 << 30;

/// Formats the disk and opens the engine of its only journal.
pub(crate) async fn begin(
    platform: &SimPlatform,
    disk: &SimDisk,
    options: EngineOptions,
) -> Engine<SimPlatform> {
    begin_on(platform, platform.open(disk), options).await
}

/// The same with this handle of it.
pub(crate) async fn begin_on(
    platform: &SimPlatform,
    device: SimDevice,
    options: EngineOptions,
) -> Engine<SimPlatform> {
    let format = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(device.size_bytes())
    };
    let formatted = format_device(platform, &device, format).await;
    let superblock = formatted.expect("formats");
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let shared = prepared.expect("has a superblock").1;
    let platform = platform.clone();
    let opened = Engine::open(platform, device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

pub(crate) fn named(name: &str, reserved_bytes: u64) -> CreateDvol {
    CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: SIZE,
        reserved_bytes,
    }
}

pub(crate) fn bytes(count: u64) -> IoBuf {
    IoBuf::copy_of(&vec![7; count as usize])
}

/// Fills the device, down to the last block that is to be had. Returns where that ended.
pub(crate) async fn fill(engine: &Engine<SimPlatform>, dvol: Handle, from: u64) -> u64 {
    let mut at = from;
    for piece in [64, 1] {
        while let Ok(()) = write(engine, dvol, at, piece * BLOCK).await {
            at += piece * BLOCK;
        }
    }
    at
}

pub(crate) async fn write(
    engine: &Engine<SimPlatform>,
    dvol: Handle,
    at: u64,
    len: u64,
) -> Result<(), DvolError> {
    let write = engine.write(dvol, at, bytes(len), Stability::Unstable);
    write.await.map(drop)
}
