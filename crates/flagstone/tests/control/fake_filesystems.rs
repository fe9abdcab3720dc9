//! The filesystems of the node in memory: names and numbers, no files.

use std::collections::BTreeMap;

use flagstone::node::{
    CheckedFilesystem, ClonedFile, FileCloneSpec, FilesystemChanges, FilesystemCheck,
    FilesystemInfo, FilesystemPage, FilesystemSnapshotInfo, FilesystemSnapshotPage, FilesystemSpec,
    ImageStoreSpec, NodeErrorKind, PageQuery,
};

use crate::fake_state::{Answer, error};

/// A filesystem, and its snapshots by name.
type Entry = (FilesystemInfo, BTreeMap<String, FilesystemSnapshotInfo>);

/// By name. One that is called `damaged` is.
#[derive(Default)]
pub(crate) struct Filesystems {
    all: BTreeMap<String, Entry>,
    next: u64,
}

impl Filesystems {
    fn find(&mut self, doing: &str, name: &str) -> Answer<&mut Entry> {
        self.all.get_mut(name).ok_or_else(|| {
            let doing = format!("{doing} filesystem '{name}'");
            error(
                NodeErrorKind::NotFound,
                doing,
                "there is no such filesystem",
            )
        })
    }

    pub(crate) fn create(&mut self, spec: &FilesystemSpec) -> Answer<FilesystemInfo> {
        let name = &spec.name;
        if self.all.contains_key(name) {
            let doing = format!("creating filesystem '{name}'");
            let found = "there already is a filesystem of that name";
            return Err(error(NodeErrorKind::AlreadyExists, doing, found));
        }
        self.next += 1;
        let info = FilesystemInfo {
            name: name.clone(),
            id: self.next,
            device: "device".to_string(),
            core: 0,
            files: 1,
            used_bytes: 4096,
            quota_bytes: spec.quota_bytes,
            quota_files: spec.quota_files,
            promote_bytes: spec.promote_bytes.unwrap_or(1 << 20),
            zeros_to_holes: spec.zeros_to_holes,
            one_device: spec.one_device.unwrap_or(false),
            devices: Vec::new(),
            slo: spec.slo,
            image_stores: Some(Vec::new()),
            created_ns: 1_700_000_000_000_000_000,
            snapshot_count: 0,
            rolling_back_to: None,
            problem: None,
            export_path: format!("/{name}"),
            export_url: format!("nfs://127.0.0.1/{name}?version=3&nfsport=12049&mountport=12049"),
            mount_command: format!("mount -t nfs 127.0.0.1:/{name} /mnt"),
        };
        let entry = (info.clone(), BTreeMap::new());
        self.all.insert(name.clone(), entry);
        Ok(info)
    }

    pub(crate) fn list(&self, query: &PageQuery) -> FilesystemPage {
        let prefix = query.prefix.clone().unwrap_or_default();
        let behind = |name: &String| query.after.as_ref().is_none_or(|after| name > after);
        let rows = self.all.iter();
        let rows = rows.filter(|(name, _)| name.starts_with(&prefix) && behind(name));
        let mut items: Vec<FilesystemInfo> = rows.map(|(_, (info, _))| info.clone()).collect();
        let is_more = items.len() > query.limit;
        items.truncate(query.limit);
        let next = items
            .last()
            .filter(|_| is_more)
            .map(|last| last.name.clone());
        FilesystemPage { items, next }
    }

    pub(crate) fn show(&mut self, name: &str) -> Answer<FilesystemInfo> {
        self.find("showing", name).map(|(info, _)| info.clone())
    }

    pub(crate) fn change(
        &mut self,
        name: &str,
        changes: FilesystemChanges,
    ) -> Answer<FilesystemInfo> {
        let (info, _) = self.find("changing", name)?;
        let bound = |quota: u64| (quota > 0).then_some(quota);
        info.quota_bytes = changes.quota_bytes.map_or(info.quota_bytes, bound);
        info.quota_files = changes.quota_files.map_or(info.quota_files, bound);
        info.promote_bytes = changes.promote_bytes.unwrap_or(info.promote_bytes);
        info.one_device = changes.one_device.unwrap_or(info.one_device);
        info.zeros_to_holes = changes.zeros_to_holes.unwrap_or(info.zeros_to_holes);
        info.slo = changes.slo.unwrap_or(info.slo);
        Ok(info.clone())
    }

    pub(crate) fn set_image_store(
        &mut self,
        name: &str,
        spec: ImageStoreSpec,
    ) -> Answer<FilesystemInfo> {
        let (info, _) = self.find("changing", name)?;
        let stores = info.image_stores.get_or_insert_default();
        stores.retain(|path| *path != spec.path);
        if spec.enabled {
            stores.push(spec.path);
        }
        Ok(info.clone())
    }

    /// One that is called `used` is.
    pub(crate) fn delete(
        &mut self,
        name: &str,
        with_snapshots: bool,
        even_if_used: bool,
    ) -> Answer<()> {
        let (info, _) = self.find("deleting", name)?;
        let doing = format!("deleting filesystem '{name}'");
        if info.snapshot_count > 0 && !with_snapshots {
            return Err(error(
                NodeErrorKind::HasSnapshots,
                doing,
                "it has snapshots",
            ));
        }
        if name == "used" && !even_if_used {
            return Err(error(NodeErrorKind::Busy, doing, "a client has used it"));
        }
        self.all.remove(name);
        Ok(())
    }

    /// To one that is called `long` it takes long.
    pub(crate) fn roll_back(&mut self, name: &str, snapshot: &str) -> Answer<FilesystemInfo> {
        let (info, snapshots) = self.find("rolling back", name)?;
        if !snapshots.contains_key(snapshot) {
            let doing = format!("rolling back to '{name}@{snapshot}'");
            return Err(error(
                NodeErrorKind::NotFound,
                doing,
                "there is no such snapshot",
            ));
        }
        info.rolling_back_to = Some(snapshot.to_string()).filter(|name| name == "long");
        Ok(info.clone())
    }

    pub(crate) fn check(&mut self, name: Option<&str>) -> Answer<FilesystemCheck> {
        if let Some(name) = name {
            self.find("checking", name)?;
        }
        let wanted = self.all.values();
        let wanted = wanted.filter(|(info, _)| name.is_none_or(|name| info.name == name));
        let items: Vec<CheckedFilesystem> = wanted
            .map(|(info, _)| CheckedFilesystem {
                filesystem: info.name.clone(),
                files: info.files,
                snapshots: info.snapshot_count,
                blocks: 1,
                bytes: info.used_bytes,
                objects: 0,
                object_bytes: 0,
                swept: 0,
                problems: match info.name.as_str() {
                    "damaged" => vec!["a name leads nowhere".to_string()],
                    _ => Vec::new(),
                },
            })
            .collect();
        Ok(FilesystemCheck {
            clean: items.iter().all(|item| item.problems.is_empty()),
            items,
        })
    }

    pub(crate) fn snapshot(
        &mut self,
        filesystem: &str,
        name: &str,
    ) -> Answer<FilesystemSnapshotInfo> {
        let (info, snapshots) = self.find("taking a snapshot of", filesystem)?;
        if snapshots.contains_key(name) {
            let doing = format!("taking snapshot '{filesystem}@{name}'");
            return Err(error(
                NodeErrorKind::AlreadyExists,
                doing,
                "the name is taken",
            ));
        }
        info.snapshot_count += 1;
        let snapshot = FilesystemSnapshotInfo {
            filesystem: filesystem.to_string(),
            name: name.to_string(),
            number: info.snapshot_count as u32,
            created_ns: 1_700_000_000_000_000_000,
            export_path: format!("/{filesystem}@{name}"),
        };
        snapshots.insert(name.to_string(), snapshot.clone());
        Ok(snapshot)
    }

    /// Whatever is copied: there are no files.
    pub(crate) fn clone_file(&mut self, of: &str, spec: FileCloneSpec) -> Answer<ClonedFile> {
        self.find("cloning a file of", of)?;
        Ok(ClonedFile {
            filesystem: of.to_string(),
            source: spec.source,
            snapshot: spec.snapshot,
            path: spec.destination,
            size_bytes: 100 << 30,
            used_bytes: 4096,
        })
    }

    pub(crate) fn snapshots(&mut self, filesystem: &str) -> Answer<FilesystemSnapshotPage> {
        let (_, snapshots) = self.find("listing the snapshots of", filesystem)?;
        let items = snapshots.values().cloned().collect();
        Ok(FilesystemSnapshotPage { items })
    }

    pub(crate) fn delete_snapshot(&mut self, filesystem: &str, name: &str) -> Answer<()> {
        let (info, snapshots) = self.find("deleting a snapshot of", filesystem)?;
        if snapshots.remove(name).is_none() {
            let doing = format!("deleting snapshot '{filesystem}@{name}'");
            return Err(error(
                NodeErrorKind::NotFound,
                doing,
                "there is no such snapshot",
            ));
        }
        info.snapshot_count -= 1;
        Ok(())
    }
}
