//! The filesystems of the node in memory: names and numbers, no files.

use std::collections::BTreeMap;

use flagstone::node::{
    CheckedFilesystem, FilesystemCheck, FilesystemInfo, FilesystemPage, FilesystemSnapshotInfo,
    FilesystemSnapshotPage, FilesystemSpec, NodeErrorKind, PageQuery,
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
            created_ns: 1_700_000_000_000_000_000,
            snapshot_count: 0,
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
