//! What people are told of a filesystem.

use flagstone_platform::Platform;

use crate::attributes::Timestamp;
use crate::error::FileError;
use crate::files::FilesystemId;
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
    /// Files and directories.
    pub files: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// The snapshot that it is being rolled back to.
    pub rolling_back_to: Option<String>,
    /// What is wrong with it, and what to do.
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
            files: 0,
            snapshots: 0,
            rolling_back_to: None,
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
            files: state.usage.files.max(0).cast_unsigned(),
            snapshots: state.snapshots.len() as u64,
            rolling_back_to: rolling,
            problem: self.inner.trouble.borrow().said(),
        })
    }

    /// Counts again what large files take, if the background has given back some of it since.
    pub async fn count_again(&self) {
        self.inner.recount_if_old().await;
    }
}
