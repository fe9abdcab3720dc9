//! A filesystem that a test plays with, and is proved to be whole afterwards.

use flagstone_device::engine::Engine;
use flagstone_fs::{DvolRole, Filesystems};
use flagstone_platform::Platform;
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};

use super::*;

/// Dvols of files.
pub(crate) fn objects(engine: &Engine<SimPlatform>) -> usize {
    let dvols = engine.dvols().into_iter();
    let role = |info: &flagstone_device::engine::DvolInfo| DvolRole::of(&info.attributes);
    dvols
        .filter(|info| role(info) == Some(DvolRole::File))
        .count()
}

pub(crate) struct Stage {
    pub(crate) platform: SimPlatform,
    pub(crate) disk: SimDisk,
    pub(crate) engine: Engine<SimPlatform>,
    pub(crate) all: Filesystems<SimPlatform>,
    pub(crate) fs: TestFs,
}

impl Stage {
    pub(crate) async fn check(&self) {
        for (info, report) in self.all.check().await.expect("can be looked at") {
            assert_eq!(report.problems, [""; 0], "{info:?}");
        }
    }

    /// Waits for the background, and proves that nothing is left to it.
    pub(crate) async fn settle(&self) -> u64 {
        self.platform.sleep_ns(1_000_000_000).await;
        let reports = self.all.check().await.expect("can be looked at");
        let mut objects = 0;
        for (info, report) in reports {
            assert_eq!((report.swept, report.problems), (0, vec![]), "{info:?}");
            objects += report.objects;
        }
        objects
    }
}

pub(crate) fn run(test: impl AsyncFn(&Stage) + 'static) {
    let (world, disk) = (World::new(1), SimDisk::new(DiskConfig::new(256 * MIB)));
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let engine = open_engine(&platform, &disk).await;
        let all = open_all(&platform, &engine, 0).await;
        let fs = all.create(NAME, 0).await.expect("makes");
        let stage = Stage {
            platform,
            disk,
            engine,
            all,
            fs,
        };
        test(&stage).await;
        stage.check().await;
        stage.all.stop().await;
        stage.engine.stop().await.expect("stops");
    });
}
