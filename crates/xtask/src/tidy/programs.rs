//! Every file in a crate's `tests/` is run: where one program holds them all, it names each of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Finding;
use crate::repo;

/// The program that holds all tests of a crate.
const ALL: &str = "all.rs";

/// Test files that nothing would run.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let files = repo::files(root)?;
    for all in files.iter().filter(|path| path.ends_with("tests/all.rs")) {
        let folder = all.parent().context("a file lies in a folder")?;
        let manifest = folder.with_file_name("Cargo.toml");
        let read = |path: &Path| {
            std::fs::read_to_string(root.join(path))
                .with_context(|| format!("reading {}", path.display()))
        };
        let beside: Vec<&PathBuf> = files
            .iter()
            .filter(|path| path.parent() == Some(folder))
            .collect();
        findings.extend(not_run(&beside, &read(all)?, &read(&manifest)?));
    }
    Ok(findings)
}

/// Of the files `beside` the one that holds all, those that neither its text nor the manifest names.
fn not_run(beside: &[&PathBuf], all: &str, manifest: &str) -> Vec<Finding> {
    let modules: BTreeSet<&str> = all
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let lost = beside.iter().filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let (Some(name), Some(stem)) = (name, stem) else {
            return true;
        };
        let of_its_own = manifest.contains(&format!("path = \"tests/{name}\""));
        name != ALL && !modules.contains(stem) && !of_its_own
    });
    lost.map(|path| {
        Finding::error(
            path.display().to_string(),
            1,
            format!("nothing runs this file: name it in {ALL} beside it, or as a [[test]]"),
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_named_nowhere_is_found() {
        let files = ["all", "named", "alone", "lost"].map(|name| {
            let path = format!("crates/x/tests/{name}.rs");
            PathBuf::from(path)
        });
        let files: Vec<&PathBuf> = files.iter().collect();
        let all = "//! mod lost;\nmod named;\n";
        let manifest = "[[test]]\nname = \"alone\"\npath = \"tests/alone.rs\"\n";
        let found = not_run(&files, all, manifest);
        let paths: Vec<&str> = found.iter().map(|found| found.path.as_str()).collect();
        assert_eq!(paths, ["crates/x/tests/lost.rs"]);
        assert!(found.iter().all(|found| found.is_error));
    }
}
