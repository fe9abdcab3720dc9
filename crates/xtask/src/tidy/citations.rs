//! Citations: `[decibel 4.2]` above the line that carries it out.
//!
//! The key must be in `docs/references.md`. A citation is a bracket with a lower-case key and a
//! section that starts with a digit, a capital or a quote, inside a comment: that tells it from
//! links and from arrays. After it may stand `test`, `todo` or `exception: reason`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;
use super::source::{Source, line_of};
use crate::repo;

const REFERENCES: &str = "docs/references.md";

/// What a citation says about the line below it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// The code carries out the cited duty.
    Code,
    /// A test of the duty.
    Test,
    /// Known to be missing.
    Todo,
    /// Deliberately different.
    Exception,
}

/// One citation in one comment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Citation {
    pub(super) key: String,
    pub(super) section: String,
    pub(super) line: usize,
    pub(super) kind: Kind,
}

/// The keys that `docs/references.md` defines: the first cell of each row, in backquotes.
pub(super) fn known_keys(root: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(root.join(REFERENCES))
        .with_context(|| format!("reading {REFERENCES}"))?;
    Ok(parse_keys(&text))
}

fn parse_keys(text: &str) -> BTreeSet<String> {
    let key = |line: &str| {
        let cell = line.trim().strip_prefix("| `")?;
        cell.split_once('`').map(|(key, _)| key.to_owned())
    };
    text.lines().filter_map(key).collect()
}

/// Every citation in the comments of a Rust source.
pub(super) fn find(text: &str) -> Vec<Citation> {
    let comments = Source::new(text).comments;
    let mut found = Vec::new();
    for (open, _) in comments.match_indices('[') {
        let Some(length) = comments[open..].find([']', '\n']) else {
            continue;
        };
        let close = open + length;
        let after = &comments[close..];
        // `[text](address)` and `[text][name]` are links.
        if !after.starts_with(']') || after.starts_with("](") || after.starts_with("][") {
            continue;
        }
        if let Some((key, section)) = split(&comments[open + 1..close]) {
            found.push(Citation {
                key,
                section,
                line: line_of(comments.as_bytes(), open),
                kind: kind(&after[1..]),
            });
        }
    }
    found
}

fn split(inside: &str) -> Option<(String, String)> {
    let (key, section) = inside.split_once(' ')?;
    let starts_low = key.starts_with(|c: char| c.is_ascii_lowercase());
    let is_key = starts_low
        && key
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_section =
        section.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase() || c == '"');
    (is_key && is_section).then(|| (key.to_owned(), section.trim().to_owned()))
}

/// The number of a section that says more after it, such as `4.1, data integrity`.
fn numbered(section: &str) -> &str {
    match section.split_once([',', ':', ' ']) {
        Some((number, _)) if number.starts_with(|c: char| c.is_ascii_digit()) => number,
        _ => section,
    }
}

fn kind(after: &str) -> Kind {
    let after = after.trim_start();
    match () {
        () if after.starts_with("test") => Kind::Test,
        () if after.starts_with("todo") => Kind::Todo,
        () if after.starts_with("exception:") => Kind::Exception,
        () => Kind::Code,
    }
}

pub(super) fn check(path: &str, text: &str, keys: &BTreeSet<String>) -> Vec<Finding> {
    let unknown = find(text)
        .into_iter()
        .filter(|citation| !keys.contains(&citation.key));
    let message =
        |key: &str| format!("`{key}` is cited but has no row in {REFERENCES}: add it there first");
    unknown
        .map(|each| Finding::error(path, each.line, message(&each.key)))
        .collect()
}

/// Prints which section of which reference is cited where.
pub(crate) fn report(root: &Path) -> Result<()> {
    let mut by_key: BTreeMap<String, BTreeMap<String, Vec<(Kind, String)>>> = BTreeMap::new();
    for key in known_keys(root)? {
        by_key.insert(key, BTreeMap::new());
    }
    for path in repo::files(root)? {
        let shown = path.display().to_string();
        // The citations in this crate are examples.
        if !shown.ends_with(".rs") || shown.starts_with("crates/xtask/") {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("reading {shown}"))?;
        for each in find(&text) {
            let sections = by_key.entry(each.key).or_default();
            let place = format!("{shown}:{}", each.line);
            sections
                .entry(numbered(&each.section).to_owned())
                .or_default()
                .push((each.kind, place));
        }
    }
    for (key, sections) in by_key {
        let places: usize = sections.values().map(Vec::len).sum();
        println!("{key}: {places} citations of {} sections", sections.len());
        for (section, mut places) in sections {
            places.sort();
            let tested = places.iter().any(|(kind, _)| *kind == Kind::Test);
            println!(
                "  {section}{}",
                if tested { "" } else { "  (no test cites it)" }
            );
            for (kind, place) in places {
                println!("    {:<9}  {place}", format!("{kind:?}").to_lowercase());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_are_told_from_links_and_arrays() {
        let text = "//! See [decibel 4.2] and [the map](x) and [`Type`] and [rfc9 Big] test\n\
                    let a = [b 3]; // [nbd \"Flush\"] exception: reason\n/// [text 1](y)\n";
        let found: Vec<_> = find(text)
            .into_iter()
            .map(|c| (c.key, c.section, c.line, c.kind))
            .collect();
        let expect =
            |key: &str, section: &str, line, kind| (key.to_owned(), section.to_owned(), line, kind);
        assert_eq!(
            found,
            [
                expect("decibel", "4.2", 1, Kind::Code),
                expect("rfc9", "Big", 1, Kind::Test),
                expect("nbd", "\"Flush\"", 2, Kind::Exception),
            ]
        );
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        let keys = parse_keys("| key | what |\n| --- | --- |\n| `decibel` | paper |\n");
        assert!(check("a.rs", "// [decibel 4.2] fine\n", &keys).is_empty());
        let bad = check("a.rs", "\n// [decibell 4.2] not fine\n", &keys);
        assert!(bad[0].message.contains("`decibell`") && bad[0].line == 2);
    }
}
