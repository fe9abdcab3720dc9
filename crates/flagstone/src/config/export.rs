//! What a configuration says of NFS and of exports.

use std::collections::BTreeSet;
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
    /// A slash and the filesystem's name, or `/.volumes`.
    pub path: String,
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

/// Checks the sections, and says what a node is started with.
pub(super) fn options(exports: &[ExportConfig]) -> Result<Vec<ExportOptions>, ConfigError> {
    let mut names = BTreeSet::new();
    let mut options = Vec::new();
    for export in exports {
        let path = &export.path;
        let wrong = |found: String| {
            ConfigError::new(format!(
                "reading the [[export]] with path \"{path}\": {found}"
            ))
        };
        let name = path.strip_prefix('/').unwrap_or_default();
        if name == VOLUMES_EXPORT {
            if !export.lets_anybody_in() {
                return Err(wrong(
                    "volumes are root's, so nobody could read them; say squash = \"none\" to let root of its \
                     clients in, or squash = \"all\" with anonymous_uid = 0 for everybody there"
                        .to_owned(),
                ));
            }
        } else if check_name(name).is_err() {
            return Err(wrong(
                "expected a slash and a filesystem's name, such as \"/data\", or \"/.volumes\"; directories in it and \
                 snapshots of it go by the same rules and need no section"
                    .to_owned(),
            ));
        }
        if !names.insert(name) {
            return Err(wrong(
                "there is another section for it; join the two".to_owned(),
            ));
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
            filesystem: name.to_owned(),
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
            ("path = \"/data/below\"", "such as \"/data\""),
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
