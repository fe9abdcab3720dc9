//! The house style that a program can check. Errors fail the check, warnings only ask a question.

mod arrows;
mod citations;
mod planted;
mod programs;
mod shape;
mod source;
mod words;

use std::path::Path;

use anyhow::{Context, Result};

use crate::repo;
use crate::steps::Counts;

pub(crate) use citations::report as report_citations;

/// One complaint about one line.
pub(crate) struct Finding {
    path: String,
    line: usize,
    message: String,
    is_error: bool,
}

impl Finding {
    fn error(path: impl Into<String>, line: usize, message: String) -> Finding {
        Finding {
            path: path.into(),
            line,
            message,
            is_error: true,
        }
    }

    fn warning(path: impl Into<String>, line: usize, message: String) -> Finding {
        Finding {
            path: path.into(),
            line,
            message,
            is_error: false,
        }
    }
}

/// Checks the whole repository and prints what it finds. Counts as one test.
pub(crate) fn run(root: &Path) -> Result<Counts> {
    let mut findings = arrows::check(root)?;
    findings.extend(planted::check(root)?);
    findings.extend(programs::check(root)?);
    let keys = citations::known_keys(root)?;
    for path in repo::files(root)? {
        if !is_text(&path) {
            continue;
        }
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("reading {shown}"))?;
        findings.extend(words::check(&shown, &text));
        if shown.ends_with(".rs") {
            findings.extend(shape::check(&path, &text));
            findings.extend(citations::check(&shown, &text, &keys));
        }
    }
    findings.sort_by(|a, b| (a.is_error, &a.path, a.line).cmp(&(b.is_error, &b.path, b.line)));
    for finding in &findings {
        let level = if finding.is_error { "error" } else { "warning" };
        println!(
            "{level}: {}:{}: {}",
            finding.path, finding.line, finding.message
        );
    }
    let errors = findings.iter().filter(|finding| finding.is_error).count();
    println!(
        "tidy: {errors} errors, {} warnings",
        findings.len() - errors
    );
    Ok(Counts::one(errors == 0))
}

/// Whether we write that kind of file by hand as text.
fn is_text(path: &Path) -> bool {
    const TEXT: [&str; 11] = [
        "rs", "md", "toml", "sh", "c", "h", "json", "svg", "yml", "yaml", "txt",
    ];
    match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) => TEXT.contains(&extension),
        // Scripts such as `.ci/run` have no extension.
        None => path.starts_with(".ci") || path.starts_with("tools"),
    }
}
