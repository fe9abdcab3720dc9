//! Which kernel modules another one needs, as each of them says of itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// These modules with all that they need, each behind what it needs. `folder` has them all, however deep. What isn't there
/// is built into the kernel, except for those that are asked for.
pub(super) fn with_needed(folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = BTreeMap::new();
    find(folder, &mut found)?;
    let mut ordered = Vec::new();
    for name in names {
        let of_whom = || format!("{name} is not among the modules in {}", folder.display());
        found
            .contains_key(*name)
            .then_some(())
            .with_context(of_whom)?;
        add(name, &found, &mut ordered)?;
    }
    Ok(ordered)
}

/// Module names have no hyphens where file names may.
fn find(folder: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find(&path, found)?;
        } else if let Some(name) = entry.file_name().to_string_lossy().strip_suffix(".ko") {
            found.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn add(name: &str, found: &BTreeMap<String, PathBuf>, ordered: &mut Vec<PathBuf>) -> Result<()> {
    let Some(path) = found.get(name).filter(|path| !ordered.contains(path)) else {
        return Ok(());
    };
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    for needed in depends(&bytes) {
        add(&needed, found, ordered)?;
    }
    ordered.push(path.clone());
    Ok(())
}

/// The entry `depends=a,b` of a module's `.modinfo`, whose entries end with zero bytes.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next();
    let value = String::from_utf8_lossy(value.unwrap_or_default());
    let names = value.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_comes_first_and_once() {
        let folder = std::env::temp_dir().join(format!("modules-{}", std::process::id()));
        fs::create_dir_all(folder.join("fs")).expect("is made");
        let modules = [
            ("fs/nfs-v3.ko", "nfs,sun-rpc,built_in"),
            ("fs/nfs.ko", "sun_rpc"),
            ("sun-rpc.ko", ""),
            ("other.ko", "nfs"),
        ];
        for (path, needs) in modules {
            let bytes = format!("\x7fELF\0license=GPL\0depends={needs}\0name=x\0");
            fs::write(folder.join(path), bytes).expect("is written");
        }
        let ordered = with_needed(&folder, &["nfs_v3", "sun_rpc"]).expect("are there");
        let expected = ["sun-rpc.ko", "fs/nfs.ko", "fs/nfs-v3.ko"];
        assert_eq!(ordered, expected.map(|path| folder.join(path)));
        let error = with_needed(&folder, &["built_in"]).expect_err("is not there");
        assert!(format!("{error}").contains("built_in is not among"));
        fs::remove_dir_all(folder).expect("is removed");
    }
}
