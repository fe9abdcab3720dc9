//! What people are told of a filesystem.

use flagstone_platform::Platform;

use flagstone_types::DeviceId;

use crate::attributes::Timestamp;
use crate::error::FileError;
use crate::files::{FilesystemId, Node};
use crate::filesystem::Filesystem;
use crate::settings::Settings;
use crate::system::FilesystemInfo;

/// A filesystem as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Its number.
    pub id: FilesystemId,
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: Timestamp,
    /// What it is set to.
    pub settings: Settings,
    /// Bytes that they take, with what only snapshots need.
    pub used_bytes: u64,
    /// Of that, what large files take on each device that has some, in the order of the devices; and with what all else takes on
    /// the first, which has the tree.
    pub devices: Vec<(DeviceId, u64)>,
    /// Files and directories.
    pub files: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// The snapshot that it is being rolled back to.
    pub rolling_back_to: Option<String>,
    /// Why it was not rolled back, or only half, and what to do.
    pub not_rolled_back: Option<String>,
    /// What is wrong with it, that or something else, and what to do.
    pub problem: Option<String>,
}

impl Description {
    /// Of one that can't be opened: what the list of all says, and why.
    pub fn unreadable(info: &FilesystemInfo, error: FileError) -> Description {
        Description {
            id: info.id,
            name: info.name.clone(),
            created: Timestamp::from_ns(0),
            settings: Settings::default(),
            used_bytes: 0,
            devices: Vec::new(),
            files: 0,
            snapshots: 0,
            rolling_back_to: None,
            not_rolled_back: None,
            problem: Some(format!(
                "it can't be opened ({error}): `flagstone fs check` and `flagstone verify` say more"
            )),
        }
    }
}

impl<P: Platform> Filesystem<P> {
    /// What it is like now. If large files have to be counted again, that is begun, and whoever asks next is told what
    /// comes of it: so those who ask every few seconds know it. Who asks once has [`Self::count_again`] done first.
    pub fn describe(&self) -> Description {
        let id = self.inner.keys.0;
        if self.inner.is_count_old() {
            let inner = self.inner.clone();
            let counting = async move { inner.recount_if_old().await };
            self.inner.platform.spawn(counting);
        }
        let (used_bytes, settings) = (self.inner.used_bytes(), self.settings());
        let devices = self.inner.bytes_by_device();
        let not_rolled_back = self.inner.trouble.borrow().said();
        // Names are looked through for that alone: there may be thousands.
        let rolling = self.rolling_back_to().and_then(|to| {
            let mut all = self.snapshots().into_iter();
            all.find(|info| info.number == to).map(|info| info.name)
        });
        self.inner.with_state(|state| Description {
            id,
            name: String::from_utf8_lossy(&state.superblock.name).into_owned(),
            created: state.superblock.created,
            settings,
            used_bytes,
            devices,
            files: state.usage.files.max(0).cast_unsigned(),
            snapshots: state.snapshots.len() as u64,
            rolling_back_to: rolling,
            problem: (not_rolled_back.clone()).or_else(|| self.inner.places.trouble()),
            not_rolled_back,
        })
    }

    /// Which of the journals that these filesystems lie on has a large file's content, in the order in which they were given:
    /// of one that is in use. Zero, the first, of whatever else.
    pub fn place_of(&self, node: Node) -> usize {
        let found = self.inner.objects.get(node.file);
        found.map_or(0, |object| object.place.index())
    }

    /// Counts again what large files take, if the background has given back some of it since.
    pub async fn count_again(&self) {
        self.inner.recount_if_old().await;
    }
}
