//! Words that must not get into the repository: paths of one machine and hosts of registries.
//!
//! A path that exists on one machine only is a bug on every other; a registry's host pins where
//! packages come from, which is the user's and cargo's business.

use super::Finding;

/// What is banned, in two halves so that this file doesn't hold it, and what to write instead.
const BANNED: [(&str, &str, &str); 13] = [
    (
        "/wo",
        "rk/",
        "a path of one machine: write it relative to the repository",
    ),
    (
        "/ho",
        "me/",
        "a path of one machine: write it relative to the repository",
    ),
    (
        "/ro",
        "ot/",
        "a path of one machine: write it relative to the repository",
    ),
    (
        "/Use",
        "rs/",
        "a path of one machine: write it relative to the repository",
    ),
    (
        "/tm",
        "p/",
        "a path of one machine: use a temporary folder that the code asks for",
    ),
    ("crates", ".io", "the host of a package registry"),
    ("npm", "js.org", "the host of a package registry"),
    ("npm", "js.com", "the host of a package registry"),
    ("py", "pi.org", "the host of a package registry"),
    ("pythonho", "sted.org", "the host of a package registry"),
    ("proxy.go", "lang.org", "the host of a package registry"),
    ("deb.deb", "ian.org", "the host of a package mirror"),
    ("docker", ".io", "the host of an image registry"),
];

/// Files that tools write and that name registries by their nature.
const EXEMPT: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    if EXEMPT.contains(&path) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (first, second, why) in BANNED {
            let word = [first, second].concat();
            if stands_alone(line, &word) {
                findings.push(Finding::error(
                    path,
                    index + 1,
                    format!("`{word}` is {why}"),
                ));
            }
        }
    }
    findings
}

/// Whether `line` holds `word` other than in the middle of a longer path, where it is but the name of a
/// folder.
fn stands_alone(line: &str, word: &str) -> bool {
    let inside_path = |at: usize| {
        word.starts_with('/')
            && line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}>)".contains(c))
    };
    line.match_indices(word).any(|(at, _)| !inside_path(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_one_machine_is_found() {
        let word = ["/ho", "me/"].concat();
        assert_eq!(
            check("docs/a.md", &format!("fine\nsee {word}me/x\n")).len(),
            1
        );
        assert_eq!(check("docs/a.md", &format!("in \"{word}\"")).len(), 1);
        assert!(check("docs/a.md", &format!("crates{word}x, $DIR{word}x")).is_empty());
    }

    #[test]
    fn a_registry_host_is_found_except_in_the_lock_file() {
        let word = ["crates", ".io"].concat();
        assert_eq!(
            check("README.md", &format!("https://static.{word}/x")).len(),
            1
        );
        assert!(check("Cargo.lock", &word).is_empty());
    }
}
