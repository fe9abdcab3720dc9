//! What is reserved for a volume whose size could not be changed, or not wholly: on a simulated disk, which fails when it is told to.

use std::rc::Rc;

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Stability, format_device,
};
use flagstone_platform::IoBuf;
use flagstone_sim::{DiskConfig, Fault, Injection, SimDisk, SimPlatform, World};
use flagstone_types::BLOCK_SIZE;

use super::resize_reserved;

const MIB: u64 = 1 << 20;
/// Within a block: what lies behind it in the block is looked at before the volume grows, and written when it shrinks.
const SIZE: u64 = 8 * MIB + 1000;

struct Scene {
    engine: Engine<SimPlatform>,
    dvol: Handle,
    disk: SimDisk,
}

impl Scene {
    async fn new(platform: SimPlatform, disk: SimDisk, reserved_bytes: u64) -> Scene {
        let device = platform.open(&disk);
        let format = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(disk.size_bytes())
        };
        let superblock = format_device(&platform, &device, format).await;
        let superblock = superblock.expect("formats");
        let prepared = Engine::<SimPlatform>::prepare(&platform, &device).await;
        let shared = prepared.expect("has a superblock").1;
        let options = EngineOptions::default();
        let opened = Engine::open(platform, device, shared, superblock, 0, options);
        let engine = opened.await.expect("opens").0;
        let new = CreateDvol {
            name: "volume".to_owned(),
            id: None,
            size_bytes: SIZE,
            reserved_bytes,
        };
        let dvol = engine.create(new).await.expect("creates");
        for at in [4 * MIB, SIZE - SIZE % BLOCK_SIZE] {
            let len = BLOCK_SIZE.min(SIZE - at) as usize;
            let data = IoBuf::copy_of(&vec![7; len]);
            let written = engine.write(dvol, at, data, Stability::Stable);
            written.await.expect("writes");
        }
        Scene { engine, dvol, disk }
    }

    /// Has all reads fail from now on.
    fn fail_reads(&self) {
        let always = Injection {
            times: u64::MAX,
            ..Injection::next(Fault::ReadError)
        };
        self.disk.inject(always);
    }

    /// Its size, and what is reserved for it.
    fn told(&self) -> (u64, u64) {
        let size_bytes = self.engine.size_of(self.dvol).expect("there");
        let (_, reserved_bytes) = self.engine.usage_of(self.dvol).expect("there");
        (size_bytes, reserved_bytes)
    }
}

fn run<F: Future<Output = ()> + 'static>(
    reserved_bytes: u64,
    task: impl FnOnce(Rc<Scene>) -> F + 'static,
) {
    let (world, disk) = (World::new(1), SimDisk::new(DiskConfig::new(64 * MIB)));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let scene = Scene::new(platform, disk, reserved_bytes).await;
        task(Rc::new(scene)).await;
    });
}

fn blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_SIZE)
}

#[test]
fn what_is_reserved_goes_with_the_size() {
    run(SIZE, |scene| async move {
        let (engine, dvol) = (&scene.engine, scene.dvol);
        for (was, is) in [(SIZE, 12 * MIB), (12 * MIB, 12 * MIB), (12 * MIB, MIB)] {
            let reserved = scene.told().1;
            let done = resize_reserved(engine, dvol, (was, is), Some(reserved)).await;
            assert_eq!(done, Ok(()));
            assert_eq!(scene.told(), (is, blocks(is)));
        }
    });
}

/// Of a volume of which less is reserved than it has, no more is when it grows.
#[test]
fn a_part_stays_the_part_it_is() {
    run(2 * MIB, |scene| async move {
        let (engine, dvol) = (&scene.engine, scene.dvol);
        let done = resize_reserved(engine, dvol, (SIZE, 12 * MIB), None).await;
        assert_eq!(done, Ok(()));
        assert_eq!(scene.told(), (12 * MIB, 2 * MIB));
        let done = resize_reserved(engine, dvol, (12 * MIB, MIB), None).await;
        assert_eq!(done, Ok(()));
        assert_eq!(scene.told(), (MIB, MIB));
    });
}

#[test]
fn a_volume_for_which_there_is_no_room_stays_as_it_is() {
    run(SIZE, |scene| async move {
        let (engine, dvol) = (&scene.engine, scene.dvol);
        let before = scene.told();
        let done = resize_reserved(engine, dvol, (SIZE, 1 << 30), Some(before.1)).await;
        assert_eq!(done, Err(DvolError::NoSpace));
        assert_eq!(scene.told(), before);
    });
}

#[test]
fn what_was_set_aside_for_a_size_that_does_not_come_is_given_back() {
    run(SIZE, |scene| async move {
        let (engine, dvol) = (&scene.engine, scene.dvol);
        let before = scene.told();
        assert_eq!(before, (SIZE, blocks(SIZE)));
        scene.fail_reads();
        let done = resize_reserved(engine, dvol, (SIZE, 12 * MIB), Some(before.1)).await;
        assert_eq!(done, Err(DvolError::Device));
        assert_eq!(scene.told(), before);
        scene.disk.clear_injections();
        let done = resize_reserved(engine, dvol, (SIZE, 12 * MIB), Some(before.1)).await;
        assert_eq!(done, Ok(()));
        assert_eq!(scene.told(), (12 * MIB, 12 * MIB));
    });
}

/// The size is the smaller one by then.
#[test]
fn a_volume_that_could_not_be_shrunk_wholly_keeps_no_more_than_it_has() {
    run(SIZE, |scene| async move {
        let (engine, dvol) = (&scene.engine, scene.dvol);
        let (is, reserved) = (4 * MIB + 1000, scene.told().1);
        scene.fail_reads();
        let done = resize_reserved(engine, dvol, (SIZE, is), Some(reserved)).await;
        assert_eq!(done, Err(DvolError::Device), "it is told all the same");
        assert_eq!(scene.told(), (is, blocks(is)));
    });
}
