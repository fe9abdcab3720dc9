//! What the control side asks of filesystems, carried out on their core.

use std::rc::Rc;

use flagstone_fs::{
    Caller, CheckReport, Description, FileError, Files, Node as FileNode, PROMOTE_BYTES,
    SetAttributes, Settings, SnapshotInfo, Timestamp,
};
use flagstone_types::DeviceId;

use super::errors::{file_error, no_such_filesystem, no_such_snapshot};
use super::settings::{check_devices, check_promotion, described, is_one_device, kept, slo_in};
use super::{CORE, CoreFiles, CoreFilesystem, has_store, home, homeless};
use crate::attach::NfsTarget;
use crate::node::real::RealNode;
use crate::node::real::core::CoreNode;
use crate::node::real::slo::{Floors, note_floor};
use crate::node::{
    CheckedFilesystem, FilesystemCheck, FilesystemInfo, FilesystemPage, FilesystemPart,
    FilesystemSnapshotInfo, FilesystemSnapshotPage, FilesystemSpec, NodeError, NodeErrorKind,
    PAGE_ROWS_MAX, PageQuery, SloPromise,
};

/// Filesystems of a page, with what comes after it.
type FoundPage = (Vec<Description>, Option<String>);

impl CoreFiles {
    async fn by_name(&self, core: &CoreNode, name: &str) -> Result<CoreFilesystem, FileError> {
        let all = self.there(core).await?.ok_or(FileError::NotFound)?;
        all.open_by_name(name).await
    }

    pub(super) async fn named(
        &self,
        core: &CoreNode,
        name: &str,
        doing: &str,
    ) -> Result<CoreFilesystem, NodeError> {
        self.by_name(core, name).await.map_err(|error| match error {
            FileError::NotFound => no_such_filesystem(name, doing),
            error => file_error(error, doing),
        })
    }

    async fn create(
        &self,
        core: &CoreNode,
        spec: FilesystemSpec,
    ) -> Result<Description, FileError> {
        let all = self.made(core).await?;
        let settings = Settings {
            quota_bytes: spec.quota_bytes.unwrap_or(0),
            quota_files: spec.quota_files.unwrap_or(0),
            promote_bytes: spec.promote_bytes.unwrap_or(PROMOTE_BYTES),
            zeros_to_holes: spec.zeros_to_holes,
            one_device: is_one_device(spec.one_device, &spec.slo),
            opaque: kept(&spec.slo),
        };
        let made = all.create_with(&spec.name, settings).await?;
        let (uid, gid) = (spec.owner_uid, spec.owner_gid);
        if (uid, gid) != (0, 0) {
            let set = SetAttributes {
                uid: Some(uid),
                gid: Some(gid),
                ..SetAttributes::default()
            };
            let root = FileNode::live(made.root());
            made.set_attributes(&Caller::default(), root, set, None)
                .await?;
        }
        Ok(made.describe())
    }

    async fn page(&self, core: &CoreNode, query: PageQuery) -> Result<FoundPage, FileError> {
        let Some(all) = self.there(core).await? else {
            return Ok((Vec::new(), None));
        };
        let limit = query.limit.clamp(1, PAGE_ROWS_MAX);
        let (prefix, after) = (query.prefix.unwrap_or_default(), query.after);
        let mut wanted = all.list().await?;
        wanted.retain(|info| {
            let is_behind = after.as_ref().is_none_or(|after| info.name > *after);
            is_behind && info.name.starts_with(&prefix)
        });
        let more = wanted.len() > limit;
        wanted.truncate(limit);
        let next = wanted.last().filter(|_| more).map(|last| last.name.clone());
        let mut found = Vec::new();
        for info in wanted {
            match all.open_filesystem(info.id).await {
                Ok(filesystem) => {
                    filesystem.count_again().await;
                    found.push(filesystem.describe());
                }
                // It was deleted meanwhile.
                Err(FileError::NotFound | FileError::Stale) => {}
                Err(error @ FileError::Stopping) => return Err(error),
                // It keeps nobody from seeing the others.
                Err(error) => found.push(Description::unreadable(&info, error)),
            }
        }
        Ok((found, next))
    }

    async fn check(
        &self,
        core: &CoreNode,
        name: Option<String>,
    ) -> Result<Vec<(String, CheckReport)>, FileError> {
        if let Some(name) = name {
            let report = self.by_name(core, &name).await?.check().await?;
            return Ok(vec![(name, report)]);
        }
        let Some(all) = self.there(core).await? else {
            return Ok(Vec::new());
        };
        let reports = all.check().await?.into_iter();
        Ok(reports.map(|(info, report)| (info.name, report)).collect())
    }
}

/// Nanoseconds since 1970.
fn ns_of(time: Timestamp) -> u64 {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    seconds * 1_000_000_000 + u64::from(time.nanoseconds)
}

impl RealNode {
    /// Carries something out on the core of the filesystems.
    async fn on_files<R, F>(
        &self,
        doing: &str,
        work: impl FnOnce(Rc<CoreNode>) -> F + Send + 'static,
    ) -> Result<Result<R, FileError>, NodeError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, FileError>> + 'static,
    {
        self.on_core(CORE, doing, work).await
    }

    /// The device that filesystems are on, or would be.
    pub(super) async fn home_index(&self, doing: &str) -> Result<usize, NodeError> {
        let found = self.on_core(CORE, doing, |core| async move {
            home(&core.engines).map(|home| home.device)
        });
        Ok(found.await?.unwrap_or(0))
    }

    /// The device that filesystems are made on.
    async fn home_for_new(&self, doing: &str) -> Result<usize, NodeError> {
        let found = self.on_core(CORE, doing, |core| async move {
            home(&core.engines).map(|home| home.device)
        });
        found.await?.ok_or_else(|| {
            let found = "filesystems are made in journal 0 of a device, where each start finds them, and core 0 serves none: \
                         it was handed over to another core";
            NodeError::new(NodeErrorKind::Busy, doing, found)
                .next("hand it back: `flagstone device hand-over NAME --journal 0 --to-core 0`")
        })
    }

    /// Refuses to make filesystems anew where large files wait for theirs.
    async fn check_home(&self, doing: &str) -> Result<(), NodeError> {
        let found = self.on_core(CORE, doing, |core| async move {
            let is_new = home(&core.engines).is_none_or(|home| !has_store(&home.engine));
            if is_new { homeless(&core) } else { Vec::new() }
        });
        match found.await?.first() {
            None => Ok(()),
            Some(device) => {
                let name = &self.devices[*device].name;
                let found = format!(
                    "device '{name}' has large files of filesystems whose names are on another device, which is not here: with new ones they would not be found again"
                );
                Err(NodeError::new(NodeErrorKind::Busy, doing, found)
                    .next("start the node with all its devices; or, if those files are to be lost, format that device anew"))
            }
        }
    }

    pub(super) async fn home_device(&self, doing: &str) -> Result<String, NodeError> {
        let index = self.home_index(doing).await?;
        Ok(self.devices[index].name.clone())
    }

    /// What it takes of devices, by their names.
    fn parts_of(&self, devices: &[(DeviceId, u64)]) -> Vec<FilesystemPart> {
        let part = |(id, used_bytes): &(DeviceId, u64)| {
            let found = self.devices.iter();
            let found = found.into_iter().find(|device| device.id == id.to_string());
            FilesystemPart {
                device: found.map_or_else(|| id.to_string(), |device| device.name.clone()),
                used_bytes: *used_bytes,
            }
        };
        devices.iter().map(part).collect()
    }

    pub(super) fn filesystem_info(&self, device: &str, found: Description) -> FilesystemInfo {
        let target = self.nfs_tcp.first().map(|address| NfsTarget::new(*address));
        let name = &found.name;
        let bound = |quota: u64| (quota > 0).then_some(quota);
        FilesystemInfo {
            id: found.id.0,
            device: device.to_owned(),
            core: CORE as u32,
            files: found.files,
            used_bytes: found.used_bytes,
            quota_bytes: bound(found.settings.quota_bytes),
            quota_files: bound(found.settings.quota_files),
            promote_bytes: found.settings.promote_bytes,
            zeros_to_holes: found.settings.zeros_to_holes,
            one_device: found.settings.one_device || is_one_device(None, &slo_in(&found.settings)),
            devices: self.parts_of(&found.devices),
            slo: slo_in(&found.settings),
            image_stores: None,
            created_ns: ns_of(found.created),
            snapshot_count: found.snapshots,
            rolling_back_to: found.rolling_back_to,
            problem: found.problem,
            export_path: format!("/{name}"),
            export_url: target.as_ref().map_or_else(String::new, |t| t.url(name)),
            mount_command: target.map_or_else(String::new, |t| t.mount_command(name)),
            name: found.name,
        }
    }

    pub(in crate::node::real) async fn create_fs(
        &self,
        spec: FilesystemSpec,
    ) -> Result<FilesystemInfo, NodeError> {
        let name = spec.name.clone();
        let doing = format!("creating filesystem '{name}'");
        if spec.quota_bytes == Some(0) || spec.quota_files == Some(0) {
            let found = "its quota is 0, so nothing could be written";
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("give it some, or leave the quota out"));
        }
        check_promotion(spec.promote_bytes, &doing)?;
        check_devices(spec.one_device, &spec.slo, &doing)?;
        let slo = spec.slo;
        // Held until it is there: two who ask at the same time can't both get what is left. Who asks for no floor
        // waits for nobody.
        let mut floors = match slo.promise {
            SloPromise::Floor(_) => Some(self.floors.lock().await),
            SloPromise::Share(_) => None,
        };
        let none = Floors::new();
        let known = floors.as_deref().unwrap_or(&none);
        self.check_home(&doing).await?;
        let device = self.home_for_new(&doing).await?;
        self.admit(known, device, None, &slo, spec.oversubscribe, &doing)?;
        let made = self.on_files(&doing, |core| async move {
            core.files.create(&core, spec).await
        });
        let made = made.await?;
        if matches!(made, Err(FileError::NoSpace)) {
            // Its journal may have gone in this moment.
            self.home_for_new(&doing).await?;
        }
        let made = made.map_err(|error| match error {
            FileError::Exists => {
                let found = format!("there already is a filesystem '{name}'");
                NodeError::new(NodeErrorKind::AlreadyExists, &*doing, found)
                    .next("choose another name")
            }
            error => file_error(error, &doing),
        })?;
        if let Some(floors) = &mut floors {
            note_floor(floors, made.id, device, &slo);
        }
        drop(floors);
        Ok(FilesystemInfo {
            image_stores: Some(Vec::new()),
            ..self.filesystem_info(&self.home_device(&doing).await?, made)
        })
    }

    pub(in crate::node::real) async fn list_fs(
        &self,
        query: PageQuery,
    ) -> Result<FilesystemPage, NodeError> {
        let doing = "listing filesystems";
        let found = self.on_files(
            doing,
            |core| async move { core.files.page(&core, query).await },
        );
        let (found, next) = found.await?.map_err(|error| file_error(error, doing))?;
        let device = self.home_device(doing).await?;
        let infos = found.into_iter();
        Ok(FilesystemPage {
            items: infos
                .map(|one| self.filesystem_info(&device, one))
                .collect(),
            next,
        })
    }

    pub(in crate::node::real) async fn show_fs(
        &self,
        name: String,
    ) -> Result<FilesystemInfo, NodeError> {
        let doing = format!("showing filesystem '{name}'");
        let said = doing.clone();
        let found = self.on_fs(name, &doing, |files| async move {
            described(files, &said).await
        });
        let found = found.await?;
        self.info_of(found, &doing).await
    }

    /// Carries something out with a filesystem. What is not found is the filesystem.
    pub(super) async fn on_fs<R, F>(
        &self,
        name: String,
        doing: &str,
        work: impl FnOnce(CoreFilesystem) -> F + Send + 'static,
    ) -> Result<R, NodeError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, NodeError>> + 'static,
    {
        let said = doing.to_owned();
        self.on_core(CORE, doing, move |core| async move {
            work(core.files.named(&core, &name, &said).await?).await
        })
        .await?
    }

    pub(in crate::node::real) async fn check_fs(
        &self,
        name: Option<String>,
    ) -> Result<FilesystemCheck, NodeError> {
        let doing = match &name {
            Some(name) => format!("checking filesystem '{name}'"),
            None => "checking all filesystems".to_owned(),
        };
        let asked = name.clone();
        let found = self.on_files(&doing, |core| async move {
            core.files.check(&core, asked).await
        });
        let reports = found.await?.map_err(|error| match (error, &name) {
            (FileError::NotFound, Some(name)) => no_such_filesystem(name, &doing),
            (error, _) => file_error(error, &doing),
        })?;
        let items: Vec<CheckedFilesystem> = reports
            .into_iter()
            .map(|(filesystem, report)| CheckedFilesystem {
                filesystem,
                files: report.files,
                snapshots: report.snapshots,
                blocks: report.blocks,
                bytes: report.bytes,
                objects: report.objects,
                object_bytes: report.object_bytes,
                swept: report.swept,
                problems: report.problems,
            })
            .collect();
        Ok(FilesystemCheck {
            clean: items.iter().all(|item| item.problems.is_empty()),
            items,
        })
    }

    pub(in crate::node::real) async fn snapshot_fs(
        &self,
        filesystem: String,
        name: String,
    ) -> Result<FilesystemSnapshotInfo, NodeError> {
        let doing = format!("taking snapshot '{filesystem}@{name}'");
        let (said, wanted) = (doing.clone(), name.clone());
        let taken = self.on_fs(filesystem.clone(), &doing, move |files| async move {
            let taken = files.take_snapshot(&wanted).await;
            taken.map_err(|error| match error {
                FileError::Exists => {
                    let found = "there already is a snapshot of that name";
                    NodeError::new(NodeErrorKind::AlreadyExists, &*said, found)
                        .next("choose another name")
                }
                FileError::NoSpace => file_error(error, &said).next(format!(
                    "delete snapshots (a filesystem has {} at most), files or volumes",
                    flagstone_fs::SNAPSHOTS_MAX
                )),
                error => file_error(error, &said),
            })?;
            Ok(files.snapshots())
        });
        let all = taken.await?;
        let found = all.into_iter().find(|info| info.name == name);
        let gone = || no_such_snapshot(&filesystem, &name, &doing);
        let found = found.ok_or_else(gone)?;
        Ok(snapshot_info(&filesystem, found))
    }

    pub(in crate::node::real) async fn list_fs_snapshots(
        &self,
        filesystem: String,
    ) -> Result<FilesystemSnapshotPage, NodeError> {
        let doing = format!("listing the snapshots of filesystem '{filesystem}'");
        let found = self.on_fs(filesystem.clone(), &doing, |files| async move {
            Ok(files.snapshots())
        });
        let found = found.await?.into_iter();
        Ok(FilesystemSnapshotPage {
            items: found.map(|info| snapshot_info(&filesystem, info)).collect(),
        })
    }

    pub(in crate::node::real) async fn delete_fs_snapshot(
        &self,
        filesystem: String,
        name: String,
    ) -> Result<(), NodeError> {
        let doing = format!("deleting snapshot '{filesystem}@{name}'");
        let (said, of) = (doing.clone(), filesystem.clone());
        self.on_fs(filesystem, &doing, move |files| async move {
            let deleted = files.delete_snapshot(&name).await;
            deleted.map_err(|error| match error {
                FileError::NotFound => no_such_snapshot(&of, &name, &said),
                error => file_error(error, &said),
            })
        })
        .await
    }
}

fn snapshot_info(filesystem: &str, found: SnapshotInfo) -> FilesystemSnapshotInfo {
    FilesystemSnapshotInfo {
        filesystem: filesystem.to_owned(),
        number: found.number.0,
        created_ns: ns_of(found.taken),
        export_path: format!("/{filesystem}@{}", found.name),
        name: found.name,
    }
}
