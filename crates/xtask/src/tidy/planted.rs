//! The table of planted bugs in `docs/verification.md` is about the runs that `crates/sim/planted.txt`
//! lists: the same bugs in the same order, each with the first of its runs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;

const LIST: &str = "crates/sim/planted.txt";
const PAGE: &str = "docs/verification.md";
const HEADING: &str = "### Planted bugs";

pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let read =
        |path: &str| fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"));
    Ok(compare(&read(LIST)?, &read(PAGE)?))
}

/// What the list and the page don't agree about.
fn compare(list: &str, page: &str) -> Vec<Finding> {
    let listed: Vec<(&str, &str)> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            Some((words.next()?, words.next().unwrap_or_default()))
        })
        .collect();
    let mut rows = rows(page).into_iter();
    let mut findings = Vec::new();
    for (bug, by) in listed {
        let Some((line, told_bug, told_by)) = rows.next() else {
            let text = format!("the table of planted bugs has no row for `{bug}` of {LIST}");
            findings.push(Finding::error(PAGE, 0, text));
            continue;
        };
        if (told_bug, told_by) != (bug, by) {
            let text = format!(
                "`{told_bug}` by {told_by}, but {LIST} has `{bug}` here, noticed first by {by}; \
                 `cargo xtask sim --bugs` prints what to write"
            );
            findings.push(Finding::error(PAGE, line, text));
        }
    }
    for (line, bug, _) in rows {
        let text = format!("`{bug}` is not in {LIST}");
        findings.push(Finding::error(PAGE, line, text));
    }
    findings
}

/// Line, bug and run of each row of the table below the heading.
fn rows(page: &str) -> Vec<(usize, &str, &str)> {
    let lines = page.lines().enumerate();
    let section = lines
        .skip_while(|(_, line)| !line.starts_with(HEADING))
        .skip(1)
        .take_while(|(_, line)| !line.starts_with("### "));
    section
        .filter_map(|(index, line)| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let bug = cells.next()?.trim_end_matches('`');
            Some((index + 1, bug, cells.nth(1)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# bugs\nfirst reuse/0 3\nsecond 7\n";

    fn page(rows: &str) -> String {
        format!(
            "x\n### Planted bugs\n| bug | rule | by | what |\n{rows}\n### Other\n| `z` | a | b |\n"
        )
    }

    #[test]
    fn a_table_like_the_list_passes() {
        let rows = "| `first` | a rule | reuse/0 | said |\n| `second` | a rule | 7 | said |";
        assert!(compare(LIST, &page(rows)).is_empty());
    }

    #[test]
    fn other_runs_missing_rows_and_additional_ones_are_found() {
        let other = "| `first` | a rule | 3 | said |\n| `second` | a rule | 7 | said |";
        assert_eq!(compare(LIST, &page(other)).len(), 1);
        let missing = "| `first` | a rule | reuse/0 | said |";
        assert_eq!(compare(LIST, &page(missing)).len(), 1);
        let more =
            "| `first` | a | reuse/0 | s |\n| `second` | a | 7 | s |\n| `third` | a | 1 | s |";
        assert_eq!(compare(LIST, &page(more)).len(), 1);
    }
}
