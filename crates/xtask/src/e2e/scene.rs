//! What every scenario needs: a folder, a node, and the commands of its user.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::daemon::{Node, NodeOptions};
use crate::repo;

/// What a node for guests exports, as `flagstone dev` does.
pub(crate) const FILESYSTEM: &str = "demo-files";
/// For a network of one's own: the port that clients take who are told none.
pub(crate) const NFS_PORT: u16 = 2049;
const GUESTS_CONFIG: &str = r#"
[nfs]
listen = "0.0.0.0:2049"
[[export]]
path = "/demo-files"
clients = ["127.0.0.0/8", "10.77.0.0/16"]
squash = "none"
"#;
/// Deallocated space must be usable by others within this time.
const FREE_LIMIT: Duration = Duration::from_secs(30);

/// One scenario's folder and binary. The folder is emptied at the start and removed at the end of
/// a scenario that passed; a failed one leaves it for whoever looks.
pub(crate) struct Scene {
    pub(crate) root: PathBuf,
    pub(crate) binary: PathBuf,
    /// What judges crash images, if it needn't be built.
    pub(crate) judge: Option<PathBuf>,
    pub(crate) dir: PathBuf,
}

impl Scene {
    pub(crate) fn new(root: &Path, binary: &Path, name: &str) -> Result<Scene> {
        let dir = repo::target_dir(root).join("e2e").join(name);
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("emptying {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        Ok(Scene {
            root: root.to_path_buf(),
            binary: binary.to_path_buf(),
            judge: None,
            dir,
        })
    }

    /// Starts a node on a new device in this scene's folder.
    pub(crate) fn node(&self, size: &str, cores: u32) -> Result<Node> {
        Node::start(self.options(size, cores))
    }

    /// The same on a file that takes only the space of what is written to it.
    pub(crate) fn node_on_sparse_file(&self, size: &str, cores: u32) -> Result<Node> {
        let options = self.options(size, cores);
        fs::create_dir_all(&options.dir)
            .with_context(|| format!("creating {}", options.dir.display()))?;
        let device = options.dir.join("device.img");
        let mut truncate = Command::new("truncate");
        truncate.args(["--size", size]).arg(&device);
        repo::output(truncate)?;
        let mut format = Command::new(&self.binary);
        format.args(["device", "format"]).arg(&device);
        repo::output(format)?;
        Node::start(options)
    }

    /// A node that guests of another address may use as well, with a filesystem.
    pub(crate) fn node_for_guests(&self) -> Result<Node> {
        self.node_for_guests_with("4G", &[])
    }

    /// The same with a device of that size, and further arguments.
    pub(crate) fn node_for_guests_with(&self, size: &str, arguments: &[&str]) -> Result<Node> {
        let mut options = self.options(size, 1);
        options.arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        fs::create_dir_all(&options.dir).context("making the node's folder")?;
        let device = options.dir.join("device.img");
        let mut format = Command::new(&self.binary);
        format
            .args(["device", "format"])
            .arg(format!("{}:{}", device.display(), options.size));
        repo::output(format)?;
        let config = self.dir.join("node.toml");
        let device = device.display().to_string();
        let text = format!("{GUESTS_CONFIG}[[device]]\npath = {device:?}\n");
        fs::write(&config, text).context("writing the configuration")?;
        options.config = Some(config);
        let node = Node::start(options)?;
        node.run(&["fs", "create", FILESYSTEM])?;
        Ok(node)
    }

    pub(crate) fn options(&self, size: &str, cores: u32) -> NodeOptions {
        NodeOptions {
            binary: self.binary.clone(),
            dir: self.dir.join("node"),
            size: size.to_owned(),
            cores,
            config: None,
            more_devices: 0,
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Runs a stock tool that must succeed; returns what it printed.
    pub(crate) fn tool(&self, program: &str, arguments: &[&str]) -> Result<String> {
        ensure!(
            repo::has_program(program),
            "{program} is missing; ./.ci/test installs it"
        );
        let mut command = Command::new(tool_path(program));
        command.current_dir(&self.dir).args(arguments);
        repo::output(command)
    }

    pub(crate) fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.dir).with_context(|| format!("removing {}", self.dir.display()))
    }
}

/// Debian keeps some of the tools out of the path of ordinary users.
fn tool_path(program: &str) -> PathBuf {
    let hidden = Path::new("/usr/sbin").join(program);
    if hidden.is_file() {
        hidden
    } else {
        PathBuf::from(program)
    }
}

/// Free bytes of the node's only device.
pub(crate) fn free_bytes(node: &Node) -> Result<u64> {
    let devices = node.json(&["device", "list"])?;
    find_number(&devices, "free_bytes").with_context(|| format!("no free_bytes in {devices}"))
}

/// Waits until the device has at least that much free.
pub(crate) fn wait_for_free(node: &Node, at_least: u64) -> Result<u64> {
    let started = Instant::now();
    loop {
        let free = free_bytes(node)?;
        if free >= at_least {
            return Ok(free);
        }
        if started.elapsed() > FREE_LIMIT {
            bail!("{free} bytes are free after {FREE_LIMIT:?}, expected at least {at_least}");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The first number of that name anywhere in a JSON value.
pub(crate) fn find_number(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Object(fields) => fields
            .get(name)
            .and_then(Value::as_u64)
            .or_else(|| fields.values().find_map(|inner| find_number(inner, name))),
        Value::Array(items) => items.iter().find_map(|inner| find_number(inner, name)),
        _ => None,
    }
}

/// All strings of that name anywhere in a JSON value.
pub(crate) fn find_strings(value: &Value, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                match inner {
                    Value::String(text) if key == name => found.push(text.clone()),
                    _ => found.extend(find_strings(inner, name)),
                }
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|inner| found.extend(find_strings(inner, name))),
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_at_any_depth() {
        let text = r#"{"devices": [{"name": "a", "space": {"free_bytes": 7}}, {"name": "b"}]}"#;
        let value: Value = serde_json::from_str(text).expect("is JSON");
        assert_eq!(find_number(&value, "free_bytes"), Some(7));
        assert_eq!(find_strings(&value, "name"), ["a", "b"]);
        assert_eq!(find_number(&value, "absent"), None);
    }
}
