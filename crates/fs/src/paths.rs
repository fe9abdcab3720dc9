//! Files by their paths, for those who have no handles: the command line names files so.

use crate::error::FileError;
use crate::files::{Caller, Files, Found, Node};

/// Where a path could not be followed further.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathError {
    /// Why.
    pub error: FileError,
    /// The path up to there.
    pub path: String,
}

/// Follows a path from a directory, such as the topmost one, as it is now or in a snapshot. The path begins with
/// a slash; symbolic links in it are not followed, since what they say is said to clients.
pub async fn find<F: Files>(
    files: &F,
    caller: &Caller,
    top: Node,
    path: &str,
) -> Result<Found, PathError> {
    let failed = |error, end: usize| PathError {
        error,
        path: path[..end].to_owned(),
    };
    if !path.starts_with('/') {
        return Err(failed(FileError::Invalid, path.len()));
    }
    let begun = files.lookup(caller, top, b".").await;
    let mut found = begun.map_err(|error| failed(error, 1))?;
    let mut end = 0;
    for name in path.split('/') {
        let begin = end;
        end = begin + name.len() + 1;
        if name.is_empty() || name == "." {
            continue;
        }
        let next = files.lookup(caller, found.node, name.as_bytes()).await;
        found = next.map_err(|error| match error {
            // It is what came before that is none.
            FileError::NotDirectory => failed(error, begin.saturating_sub(1).max(1)),
            error => failed(error, end - 1),
        })?;
    }
    Ok(found)
}

/// The directory that a path's last name is in, and that name. `None` if the path ends with no name of its own.
pub fn split_last(path: &str) -> Option<(&str, &str)> {
    let (directory, name) = path.rsplit_once('/')?;
    let directory = if directory.is_empty() { "/" } else { directory };
    let is_own = !matches!(name, "" | "." | "..");
    (is_own && path.starts_with('/')).then_some((directory, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_end_with_a_name() {
        assert_eq!(split_last("/a"), Some(("/", "a")));
        assert_eq!(split_last("/a/b c/d"), Some(("/a/b c", "d")));
        for path in ["", "/", "a", "a/b", "/a/", "/a/..", "/."] {
            assert_eq!(split_last(path), None, "{path}");
        }
    }
}
