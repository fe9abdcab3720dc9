//! Which crate may name which. The reasons are in `docs/ARCHITECTURE.md`.
//!
//! Normal and build dependencies follow the table. Dev-dependencies may in addition name the
//! simulator, the model and the runtime, since tests run the same code on all of them, and the blocking
//! client, which tests of a node use as programs do.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Finding;
use crate::repo;

/// Each crate and the crates of ours that it may depend on, lowest first.
const ALLOWED: [(&str, &[&str]); 18] = [
    ("types", &[]),
    ("model", &[]),
    ("wire", &["types"]),
    ("platform", &["types"]),
    ("tls", &["platform"]),
    ("sched", &["types", "platform"]),
    ("client", &["types", "wire", "platform", "tls"]),
    ("device", &["types", "platform"]),
    ("pagestore", &["types", "platform", "device"]),
    ("btree", &["types", "platform", "device", "pagestore"]),
    ("fs", &["types", "platform", "device", "pagestore", "btree"]),
    ("gateway", &["types", "wire", "platform", "tls", "fs"]),
    (
        "moves",
        &["types", "wire", "platform", "client", "device", "gateway"],
    ),
    ("runtime", &["types", "platform"]),
    (
        "blocking",
        &["types", "wire", "platform", "tls", "client", "runtime"],
    ),
    (
        "sim",
        &[
            "types", "model", "wire", "platform", "device", "fs", "gateway",
        ],
    ),
    (
        "flagstone",
        &[
            "types", "wire", "platform", "tls", "sched", "client", "device", "fs", "gateway",
            "moves", "runtime",
        ],
    ),
    ("xtask", &["types", "wire"]),
];

/// What any crate's tests may name besides.
const ALLOWED_IN_TESTS: [&str; 4] = ["model", "sim", "runtime", "blocking"];

/// Names that say nothing about what a crate is for.
const EMPTY_NAMES: [&str; 7] = [
    "common", "utils", "util", "misc", "helpers", "shared", "lib",
];

/// One dependency of one of our crates on another of ours.
struct Edge {
    from: String,
    to: String,
    in_tests: bool,
}

pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut cargo = repo::cargo(root);
    cargo.args(["metadata", "--format-version", "1", "--no-deps"]);
    let text = repo::output(cargo)?;
    let metadata: Value = serde_json::from_str(&text).context("reading cargo metadata")?;
    let (crates, edges) = graph(&metadata);
    let mut findings = judge(&crates, &edges);
    findings.extend(undocumented(root, &crates));
    Ok(findings)
}

fn short(name: &str) -> String {
    name.strip_prefix("flagstone-").unwrap_or(name).to_owned()
}

fn graph(metadata: &Value) -> (BTreeSet<String>, Vec<Edge>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let ours: BTreeSet<String> = packages
        .iter()
        .map(|package| text(&package["name"]))
        .collect();
    let mut edges = Vec::new();
    for package in &packages {
        for dependency in list(&package["dependencies"]) {
            let name = text(&dependency["name"]);
            if ours.contains(&name) {
                edges.push(Edge {
                    from: short(&text(&package["name"])),
                    to: short(&name),
                    in_tests: dependency["kind"].as_str() == Some("dev"),
                });
            }
        }
    }
    (ours.iter().map(|name| short(name)).collect(), edges)
}

fn judge(crates: &BTreeSet<String>, edges: &[Edge]) -> Vec<Finding> {
    let manifest = |name: &str| format!("crates/{name}/Cargo.toml");
    let mut findings = Vec::new();
    for name in crates {
        if EMPTY_NAMES.contains(&name.as_str()) {
            let message = format!("`{name}` says nothing: name the crate after what it does");
            findings.push(Finding::error(manifest(name), 1, message));
        } else if !ALLOWED.iter().any(|(known, _)| known == name) {
            let message = format!(
                "crate `{name}` has no row in tidy/arrows.rs: add one, and its line and reason in \
                 docs/ARCHITECTURE.md"
            );
            findings.push(Finding::error(manifest(name), 1, message));
        }
    }
    for edge in edges {
        let row = ALLOWED.iter().find(|(name, _)| *name == edge.from);
        let allowed = row.is_some_and(|(_, to)| to.contains(&edge.to.as_str()));
        let for_tests = edge.in_tests && ALLOWED_IN_TESTS.contains(&edge.to.as_str());
        // A dev-dependency on oneself only switches features on for the tests.
        if !allowed && !for_tests && edge.from != edge.to {
            let message = format!(
                "`{}` may not depend on `{}`: the arrows are in docs/ARCHITECTURE.md; a new one \
                 needs a line and a reason there, and a row in tidy/arrows.rs",
                edge.from, edge.to
            );
            findings.push(Finding::error(manifest(&edge.from), 1, message));
        }
    }
    findings
}

/// Each crate must have its place on the map.
fn undocumented(root: &Path, crates: &BTreeSet<String>) -> Vec<Finding> {
    let page = "docs/ARCHITECTURE.md";
    let Ok(map) = std::fs::read_to_string(root.join(page)) else {
        return vec![Finding::error(
            page,
            1,
            "missing: the map of crates and arrows".to_owned(),
        )];
    };
    let missing = crates.iter().filter(|name| !map.contains(name.as_str()));
    missing
        .map(|name| Finding::error(page, 1, format!("does not mention `{name}`")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(crates: &[&str], edges: &[(&str, &str, bool)]) -> Vec<String> {
        let crates = crates.iter().map(|name| (*name).to_owned()).collect();
        let edges: Vec<Edge> = edges
            .iter()
            .map(|(from, to, in_tests)| Edge {
                from: (*from).to_owned(),
                to: (*to).to_owned(),
                in_tests: *in_tests,
            })
            .collect();
        judge(&crates, &edges)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn only_what_runs_in_a_process_names_the_runtime() {
        let crates = ["types", "device", "runtime", "flagstone"];
        assert!(complaints(&crates, &[("flagstone", "runtime", false)]).is_empty());
        assert!(complaints(&crates, &[("device", "runtime", true)]).is_empty());
        let blocking = [("blocking", "runtime", false)];
        assert!(complaints(&["blocking", "runtime"], &blocking).is_empty());
        let shipped = [("flagstone", "blocking", false)];
        assert_eq!(complaints(&["blocking", "flagstone"], &shipped).len(), 1);
        let bad = complaints(&crates, &[("device", "runtime", false)]);
        assert!(bad[0].contains("`device` may not depend on `runtime`"));
    }

    #[test]
    fn nothing_ships_the_simulator() {
        let crates = ["device", "sim", "flagstone"];
        assert_eq!(complaints(&crates, &[("flagstone", "sim", false)]).len(), 1);
        assert!(complaints(&crates, &[("device", "sim", true)]).is_empty());
    }

    #[test]
    fn arrows_point_down_even_in_tests() {
        assert_eq!(
            complaints(&["types", "device"], &[("types", "device", true)]).len(),
            1
        );
    }

    #[test]
    fn empty_and_unknown_names_are_refused() {
        assert_eq!(complaints(&["utils", "types"], &[]).len(), 1);
        assert!(complaints(&["surprise"], &[])[0].contains("has no row"));
    }

    #[test]
    fn metadata_becomes_edges_of_our_own_crates_only() {
        let metadata: Value = serde_json::from_str(
            r#"{"packages": [
                {"name": "flagstone-types", "dependencies": [{"name": "crc-fast", "kind": null}]},
                {"name": "flagstone-device", "dependencies": [
                    {"name": "flagstone-types", "kind": null},
                    {"name": "flagstone-types", "kind": "dev"}]}]}"#,
        )
        .expect("is JSON");
        let (crates, edges) = graph(&metadata);
        assert_eq!(crates.into_iter().collect::<Vec<_>>(), ["device", "types"]);
        let shape: Vec<_> = edges
            .iter()
            .map(|e| (e.from.as_str(), e.to.as_str(), e.in_tests))
            .collect();
        assert_eq!(
            shape,
            [("device", "types", false), ("device", "types", true)]
        );
    }
}
