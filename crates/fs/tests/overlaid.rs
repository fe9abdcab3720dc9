//! Filesystems of a device that is recovered in memory, over the device as it is: they are what a start would find, and nothing of the
//! device is changed.

use crate::conformance;
use crate::support;

use flagstone_device::engine::{Engine, EngineOptions, OpenError};
use flagstone_fs::{CheckReport, FileError, FilesystemOptions, Filesystems, Node};
use flagstone_platform::Platform;
use flagstone_platform::overlay::{Overlaid, Overlay};
use flagstone_sim::{DiskConfig, Latency, SimDisk, SimPlatform, World};

use conformance::Client;
use support::*;

/// What makes a check worth its while: files come, grow, are cut and go, and some are large.
async fn work(fs: TestFs, who: u64, own: Node) {
    let client = Client::root(&fs);
    for round in 0_u64.. {
        let name = format!("file-{who}-{}", round % 5);
        let file = match client.file(own, &name).await {
            Err(FileError::Exists) => client.lookup(own, &name).await,
            made => made,
        };
        let Ok(file) = file else { return };
        let len = [100, 5_000, 9_000, 40_000][(round * 7 + who) as usize % 4];
        if client
            .write(file, round % 3 * 1000, &vec![7; len])
            .await
            .is_err()
        {
            return;
        }
        if round % 4 == who % 4 && fs.take_snapshot(&format!("{who}-{round}")).await.is_err() {
            return;
        }
        if round % 3 == 0 && client.remove(own, &name).await.is_err() {
            return;
        }
    }
}

/// A disk whose power has failed while four clients worked on it.
fn crashed(seed: u64) -> SimDisk {
    let mut config = DiskConfig::new(96 * MIB);
    config.latency = Latency {
        read_ns: 1_000..=20_000,
        write_ns: 1_000..=50_000,
        flush_ns: 10_000..=200_000,
        discard_ns: 1_000..=2_000,
        per_kib_ns: 10,
    };
    let disk = SimDisk::new(config);
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disk.clone());
    let (engine, all, fs, own) = world.block_on(0, async move {
        let (engine, all, fs) = begin_with(&platform, &on, SMALL).await;
        let client = Client::root(&fs);
        let mut own = Vec::new();
        for who in 0..4 {
            own.push(client.directory(client.top(), format!("{who}")).await);
        }
        (engine, all, fs, own)
    });
    for (who, own) in (0..).zip(own) {
        world.spawn(0, work(fs.clone(), who, own.expect("makes one")));
    }
    world.run_for(5_000_000 + seed * 777_777);
    drop((engine, all, fs));
    disk.power_loss(&mut world.crash());
    disk
}

type Reports = Result<Vec<CheckReport>, FileError>;

async fn check<P: Platform>(platform: &P, engine: &Engine<P>) -> Reports {
    let options = FilesystemOptions::default();
    let all = Filesystems::open(platform.clone(), engine.clone(), options).await?;
    let reports = all.check().await?.into_iter();
    Ok(reports.map(|(_, report)| report).collect())
}

/// Opens its only journal and looks at the filesystems.
async fn look<P: Platform>(platform: P, device: P::Device) -> Result<Reports, OpenError> {
    let (superblock, shared) = Engine::<P>::prepare(&platform, &device).await?;
    let options = EngineOptions {
        hold_upkeep: true,
        ..EngineOptions::default()
    };
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    let engine = opened.await?.0;
    Ok(check(&platform, &engine).await)
}

/// What is found over the disk, and what that took of memory.
fn look_over(disk: &SimDisk) -> (Result<Reports, OpenError>, u64) {
    let world = World::new(1);
    let (platform, disk) = (world.platform(0), disk.clone());
    let found = world.block_on(0, async move {
        let device = Overlay::new(platform.open(&disk), 16 * MIB);
        let found = look(Overlaid::new(platform), device.clone()).await;
        assert!(!device.is_full());
        (found, device.kept_bytes())
    });
    let _ = world.crash();
    found
}

fn changes(disk: &SimDisk) -> (u64, u64, u64) {
    let counts = disk.counts();
    (counts.writes, counts.flushes, counts.discards)
}

/// What a report says but what was swept: that is done once.
fn whole(reports: Result<Reports, OpenError>) -> Vec<CheckReport> {
    let reports = reports.expect("opens").expect("can be looked at");
    let reports = reports.into_iter().map(|report| {
        assert_eq!(report.problems, [""; 0]);
        CheckReport { swept: 0, ..report }
    });
    reports.collect()
}

#[test]
fn what_is_found_over_a_device_is_what_a_start_finds() {
    let mut most = CheckReport::default();
    for seed in 1..=12 {
        let disk = crashed(seed);
        let before = changes(&disk);
        let (found, kept_bytes) = look_over(&disk);
        let (again, _) = look_over(&disk);
        assert_eq!(changes(&disk), before, "seed {seed}: nothing is changed");
        let found = whole(found);
        assert_eq!(found, whole(again), "seed {seed}: it is the same each time");
        assert!(kept_bytes > 0, "a recovery writes");
        let world = World::new(2);
        let (platform, device) = (world.platform(0), world.platform(0).open(&disk));
        let started = world.block_on(0, look::<SimPlatform>(platform, device));
        let _ = world.crash();
        assert_ne!(changes(&disk), before);
        assert_eq!(found, whole(started), "seed {seed}");
        for report in found {
            most.files = most.files.max(report.files);
            most.objects = most.objects.max(report.objects);
            most.snapshots = most.snapshots.max(report.snapshots);
            most.blocks = most.blocks.max(report.blocks);
        }
    }
    assert!(
        most.files > 3 && most.objects > 0 && most.snapshots > 0 && most.blocks > 0,
        "{most:?}"
    );
}

/// Whatever is damaged is told, or doesn't matter to filesystems; what happens doesn't depend on it.
#[test]
fn a_flipped_bit_ends_nothing_but_the_check() {
    let (mut unopened, mut told, mut clean) = (0, 0, 0);
    for seed in 1..=3 {
        let disk = crashed(seed);
        let undamaged = whole(look_over(&disk).0);
        let world = World::new(seed);
        let mut rng = world.workload_rng();
        for _ in 0..60 {
            let damaged = disk.fork();
            damaged.flip_random_stored_bit(&mut rng);
            let before = changes(&damaged);
            match look_over(&damaged).0 {
                Err(_) => unopened += 1,
                Ok(Err(_)) => told += 1,
                Ok(Ok(reports)) if reports.iter().all(|r| r.problems.is_empty()) => {
                    clean += 1;
                    assert_eq!(whole(Ok(Ok(reports))), undamaged, "nothing is left out");
                }
                Ok(Ok(_)) => told += 1,
            }
            assert_eq!(changes(&damaged), before);
        }
        let _ = world.crash();
    }
    let found = (unopened, told, clean);
    assert!(told > 10 && clean > 10, "{found:?}");
}
