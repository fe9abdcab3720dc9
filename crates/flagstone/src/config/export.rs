//! What a configuration says of NFS and of exports.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use flagstone_gateway::nfs3::{Network, Squash};
use serde::Deserialize;

use super::{ConfigError, OptionalAddress};
use crate::name::check_name;
use crate::node::{ExportOptions, VOLUMES_EXPORT};

/// Where `dev` serves NFS: 2049, NFS's own, is likely to be somebody's already.
const DEV_PORT: u16 = 12049;

/// The NFS gateway.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NfsConfig {
    /// Where it listens (TCP), with MOUNT on the same port.
    pub listen: OptionalAddress,
    /// Whether a portmapper is to say where that is.
    pub portmapper: bool,
}

impl Default for NfsConfig {
    fn default() -> NfsConfig {
        NfsConfig {
            listen: OptionalAddress(None),
            portmapper: true,
        }
    }
}

impl NfsConfig {
    /// What `dev` does.
    pub fn of_dev() -> NfsConfig {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, DEV_PORT));
        NfsConfig {
            listen: OptionalAddress(Some(address)),
            portmapper: true,
        }
    }
}

/// To whom a filesystem is exported, or the directory of volumes.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// A slash and the filesystem's name, and perhaps a directory of it; or `/.volumes`.
    pub path: String,
    /// Of a directory: what handles of its clients have it by. One that is made of the path if nothing is said.
    #[serde(default)]
    pub number: Option<u16>,
    /// Addresses and networks.
    #[serde(default = "this_machine")]
    pub clients: Vec<String>,
    /// Nothing can be changed through it.
    #[serde(default)]
    pub read_only: bool,
    /// Who is not believed.
    #[serde(default)]
    pub squash: SquashConfig,
    /// Nobody's user.
    #[serde(default = "nobody")]
    pub anonymous_uid: u32,
    /// Nobody's group.
    #[serde(default = "nobody")]
    pub anonymous_gid: u32,
}

/// Whose claim to be somebody is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SquashConfig {
    /// Everybody is believed.
    None,
    /// Everybody but root.
    #[default]
    Root,
    /// Nobody is believed.
    All,
}

impl ExportConfig {
    /// What `dev` does with its volumes: they are this machine's over NBD, too.
    pub fn of_dev_volumes() -> ExportConfig {
        ExportConfig {
            path: format!("/{VOLUMES_EXPORT}"),
            number: None,
            clients: this_machine(),
            read_only: false,
            squash: SquashConfig::None,
            anonymous_uid: nobody(),
            anonymous_gid: nobody(),
        }
    }

    /// Whether anybody may read what is exported. Volumes are root's.
    fn lets_anybody_in(&self) -> bool {
        match self.squash {
            SquashConfig::None => true,
            SquashConfig::Root => false,
            SquashConfig::All => self.anonymous_uid == 0,
        }
    }
}

fn this_machine() -> Vec<String> {
    vec!["127.0.0.0/8".to_owned(), "::1".to_owned()]
}

fn nobody() -> u32 {
    65534
}

/// A directory's number if nothing else is said: the same for the same path, whatever other sections there are, since it
/// is in handles that clients keep. FNV-1a of 32 bits, folded; never that of a topmost directory.
fn number_of(path: &str) -> u16 {
    let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = path.bytes().fold(0x811c_9dc5, fold);
    ((hash ^ (hash >> 16)) as u16).max(1)
}

/// What a path names: the filesystem, and the way from its topmost directory. `None` if it can't be a path of an export.
fn place_of(path: &str) -> Option<(&str, Vec<String>)> {
    let mut names = path.strip_prefix('/')?.split('/');
    let filesystem = names.next()?;
    let below: Vec<String> = names.map(str::to_owned).collect();
    let is_name = |name: &String| !matches!(name.as_str(), "" | "." | "..") && !name.contains('\0');
    let is_known = match filesystem {
        VOLUMES_EXPORT => below.is_empty(),
        name => check_name(name).is_ok() && below.iter().all(is_name),
    };
    is_known.then_some((filesystem, below))
}

/// Checks the sections, and says what a node is started with.
pub(super) fn options(exports: &[ExportConfig]) -> Result<Vec<ExportOptions>, ConfigError> {
    let mut numbers = BTreeMap::new();
    let mut options = Vec::new();
    for export in exports {
        let path = &export.path;
        let wrong = |found: String| {
            ConfigError::new(format!(
                "reading the [[export]] with path \"{path}\": {found}"
            ))
        };
        let Some((filesystem, directory)) = place_of(path) else {
            return Err(wrong(
                "expected a slash and a filesystem's name, such as \"/data\", or a directory of it, such as \
                 \"/data/projects\", or \"/.volumes\"; snapshots go by the same rules and need no section"
                    .to_owned(),
            ));
        };
        if filesystem == VOLUMES_EXPORT && !export.lets_anybody_in() {
            return Err(wrong(
                "volumes are root's, so nobody could read them; say squash = \"none\" to let root of its \
                 clients in, or squash = \"all\" with anonymous_uid = 0 for everybody there"
                    .to_owned(),
            ));
        }
        let number = match (directory.is_empty(), export.number) {
            (true, None) => 0,
            (false, None) => number_of(path),
            (false, Some(number)) if number > 0 => number,
            (_, Some(number)) => {
                return Err(wrong(format!(
                    "found number = {number}; only a directory below a filesystem's topmost one has a number, of 1 to 65535"
                )));
            }
        };
        match numbers.insert((filesystem, number), path) {
            Some(other) if other == path => {
                return Err(wrong(
                    "there is another section for it; join the two".to_owned(),
                ));
            }
            Some(other) => {
                return Err(wrong(format!(
                    "its number is {number}, as is that of \"{other}\"; say number = N for the newer of the two, with a number \
                     that no directory of this filesystem has had"
                )));
            }
            None => {}
        }
        let clients = export.clients.iter().map(|text| text.parse());
        let clients: Result<Vec<Network>, _> = clients.collect();
        let clients = clients.map_err(|error| wrong(error.to_string()))?;
        if clients.is_empty() {
            return Err(wrong(
                "clients is empty, so nobody could mount it; name networks, or leave it out for this \
                 machine alone"
                    .to_owned(),
            ));
        }
        options.push(ExportOptions {
            filesystem: filesystem.to_owned(),
            directory,
            number,
            clients,
            read_only: export.read_only,
            squash: match export.squash {
                SquashConfig::None => Squash::None,
                SquashConfig::Root => Squash::Root,
                SquashConfig::All => Squash::All,
            },
            anonymous: (export.anonymous_uid, export.anonymous_gid),
        });
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// Of `/data/projects` and `/a/b`, by a program of its own.
    const GOLDEN: (u16, u16) = (61907, 940);

    fn read(text: &str) -> Result<Vec<ExportOptions>, ConfigError> {
        options(&Config::parse(text, "test")?.exports)
    }

    #[test]
    fn a_section_is_for_this_machine_and_does_not_believe_root_unless_it_says_so() {
        let found = read("[[export]]\npath = \"/data\"").expect("a path is enough");
        let [export] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(export.filesystem, "data");
        let texts: Vec<_> = export.clients.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["127.0.0.0/8", "::1/128"]);
        assert!(!export.read_only);
        assert_eq!(
            (export.squash, export.anonymous),
            (Squash::Root, (65534, 65534))
        );
    }

    #[test]
    fn directories_have_numbers_that_stay_theirs() {
        let text = "[[export]]\npath = \"/data/a/b c\"\n[[export]]\npath = \"/data\"\n[[export]]\npath = \"/data/a\"\nnumber = 7";
        let found = read(text).expect("it makes sense");
        let found: Vec<_> = found
            .into_iter()
            .map(|each| (each.filesystem, each.directory.join("|"), each.number))
            .collect();
        let data = "data".to_owned();
        let expected = [
            (data.clone(), "a|b c".to_owned(), number_of("/data/a/b c")),
            (data.clone(), String::new(), 0),
            (data, "a".to_owned(), 7),
        ];
        assert_eq!(found, expected);
        // Handles outlive every release: these may never change.
        assert_eq!(number_of("/data/projects"), GOLDEN.0);
        assert_eq!(number_of("/a/b"), GOLDEN.1);
        let of_others =
            "[[export]]\npath = \"/a/x\"\nnumber = 7\n[[export]]\npath = \"/b/x\"\nnumber = 7";
        assert_eq!(read(of_others).expect("two filesystems").len(), 2);
    }

    #[test]
    fn volumes_are_exported_to_whom_it_is_said() {
        for squash in ["squash = \"none\"", "squash = \"all\"\nanonymous_uid = 0"] {
            let text = format!("[[export]]\npath = \"/.volumes\"\n{squash}");
            let found = read(&text).expect("it makes sense");
            assert_eq!(found[0].filesystem, VOLUMES_EXPORT);
        }
        assert_eq!(read("").expect("nothing is said"), []);
        let of_dev = options(&[ExportConfig::of_dev_volumes()]).expect("it makes sense");
        assert_eq!(of_dev[0].clients.len(), 2);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        let cases = [
            ("path = \"data\"", "such as \"/data\""),
            ("path = \"/data/\"", "such as \"/data/projects\""),
            ("path = \"/data//a\"", "such as \"/data/projects\""),
            ("path = \"/data/a/../b\"", "such as \"/data/projects\""),
            ("path = \"/data@monday/a\"", "such as \"/data/projects\""),
            ("path = \"/.volumes/a\"\nsquash = \"none\"", "such as"),
            ("path = \"/a\"\nnumber = 1", "1 to 65535"),
            ("path = \"/a/b\"\nnumber = 0", "1 to 65535"),
            ("path = \"/a/b\"\nnumber = 65536", "65536"),
            (
                "path = \"/a/b\"\nnumber = 5\n[[export]]\npath = \"/a/c\"\nnumber = 5",
                "as is that of \"/a/b\"",
            ),
            (
                "path = \"/a/b\"\n[[export]]\npath = \"/a/b\"",
                "join the two",
            ),
            ("path = \"/a\"\nclients = [\"host\"]", "10.0.0.0/8"),
            ("path = \"/a\"\nclients = []", "nobody could mount it"),
            ("path = \"/.volumes\"", "volumes are root's"),
            (
                "path = \"/.volumes\"\nsquash = \"all\"",
                "volumes are root's",
            ),
            ("path = \"/.other\"", "such as \"/data\""),
            ("path = \"/a\"\nsquash = \"some\"", "`root`"),
            ("path = \"/a\"\n[[export]]\npath = \"/a\"", "join the two"),
        ];
        for (text, hint) in cases {
            let error = read(&format!("[[export]]\n{text}")).expect_err(text);
            assert!(error.to_string().contains(hint), "{text}: {error}");
        }
    }
}
