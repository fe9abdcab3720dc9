//! The shape of source files: module comments, lengths, where `unsafe` may live, and which locks are taken.

use std::path::Path;

use super::Finding;
use super::source::Source;

/// A crate's page says what it is; logic lives in modules.
const LIB_LINES_MAX: usize = 120;
/// Past this a file is asked what second thing it does.
const FILE_LINES_MAX: usize = 800;
/// Past this a function is asked the same.
const FUNCTION_LINES_MAX: usize = 70;
/// The only crate whose job can't be done in safe Rust.
const UNSAFE_HOME: &str = "crates/runtime/";

/// What runs on a node's cores, and what may be locked there.
const LOCKS_COUNTED: [&str; 7] = [
    "crates/platform/src/",
    "crates/runtime/src/",
    "crates/device/src/",
    "crates/sched/src/",
    "crates/tls/src/",
    "crates/gateway/src/",
    "crates/flagstone/src/node/real/",
];
const LOCKS: &str = "crates/platform/src/locks.rs";

/// Long on purpose: path, function (empty for the file itself), reason.
const LONG_ON_PURPOSE: [(&str, &str, &str); 0] = [];

pub(super) fn check(path: &Path, text: &str) -> Vec<Finding> {
    let shown = path.display().to_string();
    let source = Source::new(text);
    let mut findings = Vec::new();

    if !starts_with_module_comment(text) {
        let message = "has no module comment: start with `//!`, its purpose and invariants";
        findings.push(Finding::error(&shown, 1, message.to_owned()));
    }
    let lines = text.lines().count();
    if shown.ends_with("src/lib.rs") && lines > LIB_LINES_MAX {
        let message = format!("{lines} lines; a lib.rs is a page of {LIB_LINES_MAX}, no logic");
        findings.push(Finding::error(&shown, LIB_LINES_MAX, message));
    }
    if lines > FILE_LINES_MAX && !long_on_purpose(&shown, "") {
        let message =
            format!("{lines} lines, over {FILE_LINES_MAX}: what second thing does it do?");
        findings.push(Finding::warning(&shown, 1, message));
    }
    for function in source.functions() {
        if function.lines > FUNCTION_LINES_MAX && !long_on_purpose(&shown, &function.name) {
            let message = format!(
                "`{}` has {} lines, over {FUNCTION_LINES_MAX}: what second thing does it do?",
                function.name, function.lines
            );
            findings.push(Finding::warning(&shown, function.line, message));
        }
    }
    if !shown.starts_with(UNSAFE_HOME) {
        findings.extend(allowed_unsafe(&shown, &source.code));
    }
    if LOCKS_COUNTED.iter().any(|part| shown.starts_with(part)) && shown != LOCKS {
        findings.extend(counted_locks(&shown, &source.code));
    }
    findings
}

fn long_on_purpose(path: &str, function: &str) -> bool {
    LONG_ON_PURPOSE
        .iter()
        .any(|(file, name, _)| *file == path && *name == function)
}

/// Inner attributes such as `#![no_main]` may come first.
fn starts_with_module_comment(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    lines
        .find(|line| !line.is_empty() && !line.starts_with("#![") && !line.starts_with("// "))
        .is_some_and(|line| line.starts_with("//!"))
}

/// The lint denies `unsafe` in the whole workspace; nobody but the runtime may lift it.
fn allowed_unsafe(path: &str, code: &str) -> Vec<Finding> {
    let lifts = |line: &str| {
        line.contains("unsafe_code") && (line.contains("allow(") || line.contains("expect("))
    };
    let hits = code.lines().enumerate().filter(|(_, line)| lifts(line));
    let message = "unsafe code lives in crates/runtime only";
    hits.map(|(index, _)| Finding::error(path, index + 1, message.to_owned()))
        .collect()
}

/// A lock that a core may take is counted, so that a test can say that requests take none.
fn counted_locks(path: &str, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, _) in code.match_indices("std::sync::") {
        let rest = &code[at + "std::sync::".len()..];
        let end = match rest.starts_with('{') {
            true => rest.find('}'),
            false => rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':'),
        };
        let named = &rest[..end.unwrap_or(rest.len())];
        let mut words = named.split(|c: char| !c.is_alphanumeric());
        if words.any(|word| ["Mutex", "RwLock", "Condvar", "Barrier"].contains(&word)) {
            let message = "a lock that isn't counted: take `flagstone_platform::locks`";
            let line = super::source::line_of(code.as_bytes(), at);
            findings.push(Finding::error(path, line, message.to_owned()));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(Path::new(path), text)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn a_module_comment_is_asked_for() {
        assert!(
            messages(
                "crates/a/src/b.rs",
                "#![no_main]\n//! Purpose.\nfn a() {}\n"
            )
            .is_empty()
        );
        assert!(messages("crates/a/src/b.rs", "use x;\n//! Late.\n")[0].contains("module comment"));
    }

    #[test]
    fn a_long_lib_is_an_error_and_a_long_file_a_warning() {
        let long = format!("//! Page.\n{}", "use a;\n".repeat(LIB_LINES_MAX));
        assert_eq!(messages("crates/a/src/lib.rs", &long).len(), 1);
        assert!(messages("crates/a/src/other.rs", &long).is_empty());
        let longer = format!("//! Page.\n{}", "use a;\n".repeat(FILE_LINES_MAX));
        let found = check(Path::new("crates/a/src/other.rs"), &longer);
        assert!(found.len() == 1 && !found[0].is_error);
    }

    #[test]
    fn a_long_function_is_a_warning() {
        let text = format!(
            "//! P.\nfn long() {{\n{}}}\n",
            "    x();\n".repeat(FUNCTION_LINES_MAX)
        );
        assert!(messages("crates/a/src/b.rs", &text)[0].contains("`long` has 72 lines"));
    }

    #[test]
    fn lifting_the_unsafe_lint_is_for_the_runtime() {
        let text = "//! P.\n#![allow(unsafe_code)]\n";
        assert_eq!(messages("crates/device/src/b.rs", text).len(), 1);
        assert!(messages("crates/runtime/src/ring.rs", text).is_empty());
        assert!(messages("crates/device/src/b.rs", "//! P.\n// allow(unsafe_code)\n").is_empty());
    }

    #[test]
    fn locks_of_cores_are_counted_ones() {
        let path = "crates/sched/src/device.rs";
        for text in [
            "use std::sync::Mutex;",
            "use std::sync::{Arc,\n    RwLock};",
            "static A: std::sync::Mutex<u8> = std::sync::Mutex::new(1);",
        ] {
            let found = messages(path, &format!("//! P.\n{text}\n"));
            assert!(found[0].contains("isn't counted"), "{text}");
            assert!(messages("crates/xtask/src/a.rs", &format!("//! P.\n{text}\n")).is_empty());
        }
        for text in [
            "use std::sync::{Arc, MutexGuard, PoisonError};",
            "use flagstone_platform::locks::Mutex;",
            "// std::sync::Mutex",
        ] {
            assert!(
                messages(path, &format!("//! P.\n{text}\n")).is_empty(),
                "{text}"
            );
        }
    }
}
