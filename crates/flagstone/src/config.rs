//! The configuration file of `flagstone serve`: TOML, every key optional, unknown keys refused.
//!
//! The command line overrides the file, the file overrides the defaults. `flagstone config example`
//! prints [`EXAMPLE`], whose values are the defaults.

mod export;
mod tls;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flagstone_platform::layers::Layer;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::api::{Authentication, BindError, MetricsAccess};
use crate::exit::Exit;
use crate::layers::LayerText;
use crate::name::check_name;
use crate::node::{
    BACKGROUND_DEFAULT_PERCENT, BACKGROUND_MAX_PERCENT, BLOCK_CACHE_DEFAULT_BYTES, DeviceOptions,
    FAILURE_DOMAIN_MAX_BYTES, KeepAwake, MAP_CACHE_DEFAULT_BYTES, NATIVE_CONNECTIONS_DEFAULT,
    NBD_CONNECTIONS_DEFAULT, NodeErrorKind, NodeOptions, SCRUB_DAYS_DEFAULT, STOP_GRACE_DEFAULT_MS,
    Schedule, SchedulePolicy,
};
use crate::size::Size;
use crate::slo_text::CeilingText;

pub use export::{ExportConfig, NfsConfig, SquashConfig};
pub use tls::{TlsConfig, TlsFiles};

/// The folder of a node's files unless something else is said.
pub const DIR_DEFAULT: &str = "./flagstone-data";

/// The port registered for NBD.
const NBD_PORT: u16 = 10809;

/// Cores at most. A core beyond the journals of the devices has no volumes, each takes a ring and
/// memory for transfers, and a larger number is more likely a slip than meant.
pub const CORES_CEILING: usize = 64;

/// Less memory for maps than this would be read and dropped again all the time.
const MAP_CACHE_MIN_BYTES: u64 = 16 << 20;

/// The API's port.
pub const API_PORT: u16 = 7878;

/// A configuration file with every key, explained. Its values are the defaults.
pub const EXAMPLE: &str = r#"# Configuration of `flagstone serve --config FILE`. Every key is optional; the values shown
# are the defaults. Options on the command line override this file. Sizes are written
# "512M", "20G", "1.5T" (binary units: 1K is 1024 bytes) or as a number of bytes.

# The folder for the node's own files: node.json, by which commands find the node, and its lock.
dir = "./flagstone-data"

# Number of cores: threads that do all I/O. 0: half as many as there are processors the process may
# run on, one to eight. With one for each processor they are pinned; with fewer the scheduler places
# them; more slow each other down. At most 64.
cores = 0

# Keep this machine's processors from sleeping while clients ask for one thing after the other and a core finds work as soon as it
# looks: on a virtual machine each wake takes some tens of microseconds, twice for each request. Needs /dev/cpu_dma_latency, which
# root may open, and counts for all processors, whatever else runs there. "auto": on virtual machines whose kernel can look for work
# before it halts a processor (cpuidle's haltpoll), with at most four processors for each core, and eight in all. "yes" or "no".
keep_awake = "auto"

# Memory for the maps of volumes (which block lies where), all cores and devices together. What
# doesn't fit is read from the device when it is needed. At least "16M".
map_cache = "1G"

# Memory for blocks that filesystems have read and read again, all cores together. "0": none.
block_cache = "256M"

# Small reads of volumes go through that memory, too, and each core has its share. It pays if several
# machines read the same blocks, as clones of an image do; a read that finds nothing takes a little longer.
cache_volumes = false

# In so many days everything on the devices is read and checked once, slowly, in the background, and
# then again. Findings are in the log and in the metrics. 0: never.
scrub_days = 30

# What fails together with this node, such as the name of its rack. Clients of the native protocol are told.
failure_domain = ""

[nbd]
# Where NBD clients connect. Port 0 takes any free port; "none" turns TCP off. There is no
# authentication: give it an address that only trusted machines reach.
listen = "127.0.0.1:10809"

# A Unix socket for NBD clients on this machine; "" for none.
unix = ""

# Connections at the same time; each core takes its share of them.
connections_max = 1024

[native]
# Where programs connect that know Flagstone's own protocol, with a token for each volume. The first core has this
# port, the next one the next, and so on; port 0: each any free one; "none": nowhere.
listen = "none"

# Connections at the same time; each core takes its share of them.
connections_max = 1024

[tls]
# TLS for NBD and the native protocol: the node's certificate and its key, as PEM; "" for no TLS. They are read at the
# start. The key's file must not be readable by others than its owner and group.
certificate = ""
key = ""

# Clients must show a certificate that one of these authorities has given; "": none is asked for.
client_ca = ""

# Who does not begin TLS is not served.
required = false

[nfs]
# Where NFS clients connect, and ask MOUNT. Port 0 takes any free port; "none" turns NFS off. (`flagstone
# dev` takes 127.0.0.1:12049.) Clients say themselves who they are: only for networks that are trusted.
listen = "none"

# Have a portmapper say on which port that is, as QEMU's nfs:// and a mount without options need it: the node's
# own on port 111 of the same address if that is free (and the node may: root, or CAP_NET_BIND_SERVICE), or else
# this machine's rpcbind, if others reach the address.
portmapper = true

[api]
# Where the HTTP API listens. Port 0 takes any free port.
listen = "127.0.0.1:7878"

# Requests need a key, but it travels in plain HTTP: an address that other machines reach has to be confirmed.
allow_remote = false

# "key": requests need the key that the node makes in its folder, api.key. "none": they need none, and whoever on
# this machine reaches the API may do everything; with any address but a loopback one the node does not start then.
authentication = "key"

# "key": scrapes of /metrics need that key or the one in metrics.key, which opens nothing else. "open": they need none.
metrics = "key"

# Names, besides addresses and "localhost", by which clients may call the API.
allowed_hosts = []

[log]
# "text" or "json", one line per event, to standard error.
format = "text"

# "error", "warn", "info", "debug" or "trace"; also per module: "info,flagstone_device=debug".
level = "info"

# One section per device. `serve` never formats: use `flagstone device format PATH[:SIZE]` first.
# [[device]]
# path = "/var/lib/flagstone/device.img"
# The name on this node; without it the file's name without its extension: "device".
# name = "fast"
# The size it must have been formatted with; without it any size is accepted.
# size = "20G"
# For measuring and testing: what the device is asked for passes these first, in order. A ceiling (a second), latency on
# top of its own, operations that fail without being begun. With a device in memory (on tmpfs) it seems to be any device.
# A trace changes nothing, and keeps the last operations to be read (`flagstone device trace`), in 64 bytes of memory each.
# layers = ["trace operations=65536", "ceiling reads=20000 writes=10000 flushes=2000 bytes=1G", "latency reads=80us jitter=20%", "errors reads=0.001"]
# What the device may be asked for, so that its volumes can be promised parts of it: reads and writes of 4 KiB, flushes and
# bytes a second, and how long a request may be in it. Without one nothing is divided. A little below what it can do.
# ceiling = "reads=80000 writes=50000 flushes=10000 bytes=1G latency=1ms"
# Who goes next: "deficit" (by promises; what one doesn't use, others get), "strict" (by promises only) or "first-come",
# which keeps no ceiling and no promise: for comparison.
# policy = "deficit"
# What the device's own work (checkpoints, scrub, reaping) is promised, in percent, up to 50; and it takes what nobody else wants.
# background = 5

# One section per filesystem that not only this machine may mount, or not like that: without one it is
# exported to loopback addresses, and users are believed to be who they say. And one per directory of a filesystem
# that others may mount than the filesystem, or not like that.
# [[export]]
# What clients mount: a slash and the filesystem's name. Its snapshots, /data@SNAPSHOT, go by the same rules.
# Or /.volumes: the node's volumes as files. Without a section they are not exported; only `flagstone dev` does.
# path = "/data"
# Addresses and networks that may mount it.
# clients = ["127.0.0.0/8", "10.0.0.0/8", "2001:db8::/32"]
# Nothing can be changed through it.
# read_only = false
# Who is not believed, and acts as the anonymous user: "root", "all" or "none". Volumes are root's: "none", or
# "all" with 0 for the anonymous user.
# squash = "root"
# anonymous_uid = 65534
# anonymous_gid = 65534
# [[export]]
# A directory of a filesystem: its clients see nothing above it. It goes by these rules alone, with the same keys.
# path = "/data/projects"
# By this number, 1 to 65535, handles of its clients have it. It is made of the path unless it is said; two directories of a
# filesystem can't have the same, and a directory that gets one that another had gets its clients' handles.
# number = 1
"#;

/// A node's configuration.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The folder for the node's own files.
    pub dir: PathBuf,
    /// Number of cores; 0 for half of the processors, one to eight.
    pub cores: usize,
    /// Whether processors are kept from sleeping while clients come back at once.
    pub keep_awake: KeepAwake,
    /// Memory for maps.
    pub map_cache: Size,
    /// Memory for blocks of data; 0 for none.
    pub block_cache: Size,
    /// Whether reads of volumes go through it.
    pub cache_volumes: bool,
    /// Days in which everything is scrubbed once; 0 for never.
    pub scrub_days: u32,
    /// The NBD gateway.
    pub nbd: NbdConfig,
    /// What fails together with this node.
    pub failure_domain: String,
    /// The native protocol.
    pub native: NativeConfig,
    /// TLS of both.
    pub tls: TlsConfig,
    /// The NFS gateway.
    pub nfs: NfsConfig,
    /// The HTTP API.
    pub api: ApiConfig,
    /// The log.
    pub log: LogConfig,
    /// The devices.
    #[serde(rename = "device")]
    pub devices: Vec<DeviceConfig>,
    /// To whom filesystems are exported.
    #[serde(rename = "export")]
    pub exports: Vec<ExportConfig>,
}

/// The NBD gateway.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NbdConfig {
    /// Where it listens (TCP).
    pub listen: OptionalAddress,
    /// Where it listens (Unix socket); empty for nowhere.
    pub unix: PathBuf,
    /// Connections at the same time.
    pub connections_max: usize,
}

/// The native protocol.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NativeConfig {
    /// Where the first core listens; the others on the ports behind it.
    pub listen: OptionalAddress,
    /// Connections at the same time.
    pub connections_max: usize,
}

/// The HTTP API.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// Where it listens.
    pub listen: Address,
    /// Confirms an address that other machines reach.
    pub allow_remote: bool,
    /// Whether requests need a key.
    pub authentication: Authentication,
    /// Whether scrapes of the metrics need one.
    pub metrics: MetricsAccess,
    /// Names besides `localhost` that requests may be addressed to.
    pub allowed_hosts: Vec<String>,
}

/// The log.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// How a line looks.
    pub format: LogFormat,
    /// What is logged.
    pub level: String,
}

/// How a log line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// The file or block device.
    pub path: PathBuf,
    /// Its name on this node.
    #[serde(default)]
    pub name: Option<String>,
    /// The size it must have been formatted with.
    #[serde(default)]
    pub size: Option<Size>,
    /// What it is asked for passes these first.
    #[serde(default)]
    pub layers: Vec<LayerText>,
    /// What it may be asked for.
    #[serde(default)]
    pub ceiling: Option<CeilingText>,
    /// Who goes next.
    #[serde(default)]
    pub policy: SchedulePolicy,
    /// What its own work is promised, in percent.
    #[serde(default = "background_default")]
    pub background: u8,
}

fn background_default() -> u8 {
    BACKGROUND_DEFAULT_PERCENT
}

impl Default for Config {
    fn default() -> Config {
        Config {
            dir: PathBuf::from(DIR_DEFAULT),
            cores: 0,
            keep_awake: KeepAwake::default(),
            map_cache: Size(MAP_CACHE_DEFAULT_BYTES),
            block_cache: Size(BLOCK_CACHE_DEFAULT_BYTES),
            cache_volumes: false,
            scrub_days: SCRUB_DAYS_DEFAULT,
            nbd: NbdConfig::default(),
            failure_domain: String::new(),
            native: NativeConfig::default(),
            tls: TlsConfig::default(),
            nfs: NfsConfig::default(),
            api: ApiConfig::default(),
            log: LogConfig::default(),
            devices: Vec::new(),
            exports: Vec::new(),
        }
    }
}

impl Default for NbdConfig {
    fn default() -> NbdConfig {
        NbdConfig {
            listen: OptionalAddress(Some(loopback(NBD_PORT))),
            unix: PathBuf::new(),
            connections_max: NBD_CONNECTIONS_DEFAULT,
        }
    }
}

impl Default for NativeConfig {
    fn default() -> NativeConfig {
        NativeConfig {
            listen: OptionalAddress(None),
            connections_max: NATIVE_CONNECTIONS_DEFAULT,
        }
    }
}

impl Default for ApiConfig {
    fn default() -> ApiConfig {
        ApiConfig {
            listen: Address(loopback(API_PORT)),
            allow_remote: false,
            authentication: Authentication::Key,
            metrics: MetricsAccess::Key,
            allowed_hosts: Vec::new(),
        }
    }
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            format: LogFormat::Text,
            level: "info".to_string(),
        }
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// `ADDRESS:PORT`; `localhost` stands for 127.0.0.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address(pub SocketAddr);

/// `ADDRESS:PORT`, or `none`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionalAddress(pub Option<SocketAddr>);

/// Why a configuration can't be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    message: String,
    exit: Exit,
}

impl ConfigError {
    fn new(message: impl Into<String>) -> ConfigError {
        ConfigError {
            message: message.into(),
            exit: Exit::Usage,
        }
    }

    /// The exit code of a command that fails with it.
    pub fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

impl FromStr for Address {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Address, ConfigError> {
        let numeric = text
            .strip_prefix("localhost:")
            .map(|port| format!("127.0.0.1:{port}"));
        let address = numeric.as_deref().unwrap_or(text).parse();
        address.map(Address).map_err(|_| {
            ConfigError::new(format!(
                "'{text}' is not an address to listen on; write ADDRESS:PORT, for example \
                 127.0.0.1:{API_PORT} or [::1]:{API_PORT} (port 0 takes any free port)"
            ))
        })
    }
}

impl FromStr for OptionalAddress {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<OptionalAddress, ConfigError> {
        if text == "none" {
            return Ok(OptionalAddress(None));
        }
        text.parse()
            .map(|Address(address)| OptionalAddress(Some(address)))
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Address, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for OptionalAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OptionalAddress, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

/// `PATH` or `PATH:SIZE`. What follows the last colon is meant as a size if it begins like one, unless
/// there is a file of the whole name (`/dev/disk/by-path/pci-0000:00:1f.2-ata-1`).
impl FromStr for DeviceConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<DeviceConfig, ConfigError> {
        let (path, size) = match text.rsplit_once(':') {
            Some((path, size)) if begins_like_a_size(size) => match size.parse() {
                Ok(size) => (path, Some(size)),
                Err(_) if Path::new(text).exists() => (text, None),
                Err(error) => {
                    return Err(ConfigError::new(format!(
                        "reading the device '{text}' (PATH[:SIZE]): {error}"
                    )));
                }
            },
            _ => (text, None),
        };
        if path.is_empty() {
            return Err(ConfigError::new(format!(
                "'{text}' names no device; write PATH[:SIZE]"
            )));
        }
        Ok(DeviceConfig {
            path: PathBuf::from(path),
            name: None,
            size,
            layers: Vec::new(),
            ceiling: None,
            policy: Default::default(),
            background: BACKGROUND_DEFAULT_PERCENT,
        })
    }
}

fn begins_like_a_size(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_digit() || "-+.".contains(c));
    (text.is_empty() || begins) && !text.contains('/')
}

impl Config {
    /// Reads a configuration from its text; `origin` says where that is from.
    pub fn parse(text: &str, origin: &str) -> Result<Config, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let error = error.to_string();
            ConfigError::new(format!(
                "reading the configuration {origin}: {}\nsee `flagstone config example` for every \
                 key there is",
                error.trim_end()
            ))
        })
    }

    /// Reads a configuration file; `-` is standard input.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let is_input = path.as_os_str() == "-";
        let origin = match is_input {
            true => "standard input".to_string(),
            false => path.display().to_string(),
        };
        let text = match is_input {
            true => io::read_to_string(io::stdin()),
            false => std::fs::read_to_string(path),
        };
        let text = text.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ConfigError::new(format!(
                "reading the configuration {origin}: expected UTF-8 text, and it is something else; \
                 `flagstone config example` prints what one looks like"
            )),
            _ => ConfigError {
                message: format!("reading the configuration {origin}: {error}"),
                exit: NodeErrorKind::of_io(&error).exit(),
            },
        })?;
        Config::parse(&text, &origin)
    }

    /// Checks what can be checked without opening anything, and says what a node is started with.
    pub fn node_options(&self) -> Result<NodeOptions, ConfigError> {
        if self.devices.is_empty() {
            return Err(ConfigError::new(
                "the node has no device; add a [[device]] section or --device PATH (and format it \
                 with `flagstone device format PATH:SIZE` if it is new)",
            ));
        }
        self.options_without_devices_too()
    }

    /// The same, for a configuration whose devices are named on the command line.
    pub fn options_without_devices_too(&self) -> Result<NodeOptions, ConfigError> {
        let nbd_unix = Some(self.nbd.unix.clone()).filter(|path| !path.as_os_str().is_empty());
        let listens = self
            .nbd
            .listen
            .0
            .or(self.native.listen.0)
            .or(self.nfs.listen.0);
        if listens.is_none() && nbd_unix.is_none() {
            return Err(ConfigError::new(
                "nobody could use the volumes: nbd.listen and native.listen are \"none\" and nbd.unix is \
                 empty; set one of them (or nfs.listen, to serve filesystems alone)"
                    .to_string(),
            ));
        }
        let listen = self.api.listen.0;
        if self.api.authentication == Authentication::None && !listen.ip().is_loopback() {
            return Err(ConfigError {
                message: BindError::Open(listen).to_string(),
                exit: Exit::Refused,
            });
        }
        self.tls.files()?;
        if self.cores > CORES_CEILING {
            return Err(ConfigError::new(format!(
                "cores is {}; give it 1 to {CORES_CEILING}, or 0 for half as many as there are \
                 processors",
                self.cores
            )));
        }
        if self.map_cache.0 < MAP_CACHE_MIN_BYTES {
            return Err(ConfigError::new(
                "map_cache is too small to work with; give it \"16M\" or more".to_string(),
            ));
        }
        Ok(NodeOptions {
            devices: self.device_options()?,
            cores: (self.cores > 0).then_some(self.cores),
            keep_awake: self.keep_awake,
            nbd: self.nbd.listen.0,
            nbd_unix,
            native: self.native.listen.0,
            native_connections_max: self.native.connections_max,
            tls: None,
            failure_domain: self.failure_domain()?,
            nfs: self.nfs.listen.0,
            portmapper: self.nfs.portmapper,
            exports: export::options(&self.exports)?,
            map_cache_bytes: Some(self.map_cache.0),
            block_cache_bytes: Some(self.block_cache.0),
            cache_volumes: self.cache_volumes,
            scrub_days: self.scrub_days,
            nbd_connections_max: self.nbd.connections_max,
            stop_grace_ms: STOP_GRACE_DEFAULT_MS,
            record: None,
            tuning: None,
            move_hooks: Default::default(),
        })
    }

    fn failure_domain(&self) -> Result<String, ConfigError> {
        let name = &self.failure_domain;
        if name.len() > FAILURE_DOMAIN_MAX_BYTES || name.chars().any(char::is_control) {
            return Err(ConfigError::new(format!(
                "failure_domain has {} bytes; give it a name of at most {FAILURE_DOMAIN_MAX_BYTES}, without \
                 control characters",
                name.len()
            )));
        }
        Ok(name.clone())
    }

    fn device_options(&self) -> Result<Vec<DeviceOptions>, ConfigError> {
        let mut names = BTreeSet::new();
        let mut paths = BTreeSet::new();
        let mut devices = Vec::new();
        for device in &self.devices {
            let path = device.path.display();
            if !paths.insert(&device.path) {
                return Err(ConfigError::new(format!(
                    "the device {path} is listed twice"
                )));
            }
            let name = device
                .name
                .clone()
                .unwrap_or_else(|| default_name(&device.path));
            check_name(&name).map_err(|error| {
                ConfigError::new(format!("naming the device {path}: {error}; set its `name`"))
            })?;
            if !names.insert(name.clone()) {
                return Err(ConfigError::new(format!(
                    "two devices are called '{name}', one of them {path}; set their `name`s"
                )));
            }
            if device.background > BACKGROUND_MAX_PERCENT {
                return Err(ConfigError::new(format!(
                    "the device {path} has a `background` of {} %; expected at most {BACKGROUND_MAX_PERCENT}",
                    device.background
                )));
            }
            let is_trace = |text: &&LayerText| matches!(text.layer, Layer::Trace { .. });
            if device.layers.iter().filter(is_trace).count() > 1 {
                return Err(ConfigError::new(format!(
                    "the device {path} has several traces among its layers; expected one at most"
                )));
            }
            devices.push(DeviceOptions {
                name,
                path: device.path.clone(),
                expected_size_bytes: device.size.map(|size| size.0),
                layers: device.layers.clone(),
                schedule: Schedule {
                    ceiling: device.ceiling.map(|text| text.0),
                    policy: device.policy,
                    background_percent: device.background,
                },
            });
        }
        Ok(devices)
    }
}

/// The file's name without its extension: `device` for `/data/device.img`.
fn default_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_the_defaults() {
        assert_eq!(Config::parse(EXAMPLE, "example"), Ok(Config::default()));
        assert_eq!(Config::parse("", "empty"), Ok(Config::default()));
    }

    #[test]
    fn the_example_shows_every_key() {
        // Uncomment the device section: lines "# key = value" and "# [[table]]".
        let is_setting = |line: &str| line.contains(" = ") || line.starts_with("[[");
        let all: Vec<&str> = EXAMPLE
            .lines()
            .map(|line| {
                line.strip_prefix("# ")
                    .filter(|rest| is_setting(rest))
                    .unwrap_or(line)
            })
            .collect();
        let config = Config::parse(&all.join("\n"), "example").expect("it parses");
        let device = DeviceConfig {
            path: "/var/lib/flagstone/device.img".into(),
            name: Some("fast".into()),
            size: Some(Size(20 << 30)),
            layers: [
                "trace operations=65536",
                "ceiling reads=20000 writes=10000 flushes=2000 bytes=1G",
                "latency reads=80us jitter=20%",
                "errors reads=0.001",
            ]
            .map(|layer| layer.parse().expect(layer))
            .into(),
            ceiling: Some(
                "reads=80000 writes=50000 flushes=10000 bytes=1G latency=1ms"
                    .parse()
                    .expect("a ceiling"),
            ),
            policy: SchedulePolicy::Deficit,
            background: 5,
        };
        assert_eq!(config.devices, vec![device]);
        assert_eq!(
            config.node_options().expect("it makes sense").exports.len(),
            2
        );
        // The reader lists all keys it knows when it meets one it doesn't.
        for table in [
            "",
            "[nbd]\n",
            "[tls]\n",
            "[api]\n",
            "[log]\n",
            "[[device]]\npath = \"x\"\n",
            "[[export]]\npath = \"/x\"\n",
        ] {
            let error = Config::parse(&format!("{table}surplus = 1"), "test").expect_err(table);
            let text = error.to_string();
            let (_, expected) = text.split_once("expected").expect("a list of keys");
            let keys: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
            assert!(keys.len() >= 2, "{text}");
            for key in keys.iter().filter(|key| !key.contains(' ')) {
                let shown = [
                    format!("{key} = "),
                    format!("[{key}]"),
                    format!("[[{key}]]"),
                ];
                assert!(
                    shown.iter().any(|s| EXAMPLE.contains(s)),
                    "{key} is not in the example"
                );
            }
        }
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let cases = [
            (
                "[nbd]\nlisen = \"x\"",
                ["unknown field `lisen`", "`listen`", "line 2"],
            ),
            (
                "[nbd]\nlisten = \"x\"",
                ["'x' is not an address", "127.0.0.1", "line 2"],
            ),
            ("cores = -1", ["cores", "line 1", "invalid value"]),
            (
                "[[device]]\nname = \"a\"",
                ["missing field `path`", "line 1", "device"],
            ),
            (
                "[[device]]\npath=\"a\"\nsize=\"2GB\"",
                ["'2GB' is not a size", "line 3", "2GB"],
            ),
            (
                "[log]\nformat = \"xml\"",
                ["unknown variant `xml`", "`json`", "line 2"],
            ),
        ];
        for (text, expected) in cases {
            let error = Config::parse(text, "/etc/f.toml")
                .expect_err(text)
                .to_string();
            assert!(error.contains("/etc/f.toml"), "{error}");
            assert!(error.contains("flagstone config example"), "{error}");
            for part in expected {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
    }

    #[test]
    fn devices_as_arguments() {
        let device = |text: &str| text.parse::<DeviceConfig>();
        let plain = device("/dev/vdb").expect("a path");
        assert_eq!((plain.path, plain.size), ("/dev/vdb".into(), None));
        let sized = device("a:b.img:20G").expect("a path and a size");
        assert_eq!(
            (sized.path, sized.size),
            ("a:b.img".into(), Some(Size(20 << 30)))
        );
        let colon = device("a:b.img").expect("a path");
        assert_eq!((colon.path, colon.size), ("a:b.img".into(), None));
        assert!(device("").is_err());
        assert!(device(":20G").is_err());
        for text in ["z:-1", "z:+1G", "z:", "z:.5G", "z:1x", "z:20GB"] {
            let error = device(text).expect_err(text).to_string();
            for part in [text, "PATH[:SIZE]", "10G, 512M"] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
        let path = "./with:-/colon".parse::<DeviceConfig>().expect("a path");
        assert_eq!(path.size, None);
        assert!(
            device("x:20Q")
                .expect_err("unit")
                .to_string()
                .contains("PATH[:SIZE]")
        );
    }

    #[test]
    fn what_a_node_needs_is_checked() {
        let config = |text: &str| Config::parse(text, "test").expect(text).node_options();
        let text = "[[device]]\npath=\"/d/a.img\"\n[[device]]\npath=\"/e/b.img\"\nsize=4096";
        let options = config(text).expect("two devices");
        assert_eq!(options.devices[0].name, "a");
        assert_eq!(options.devices[1].expected_size_bytes, Some(4096));
        assert_eq!(
            (options.cores, options.nbd),
            (None, Some(loopback(NBD_PORT)))
        );
        let bad = [
            ("", "no device"),
            (
                "[[device]]\npath=\"/d/a\"\n[[device]]\npath=\"/e/a\"",
                "two devices are called",
            ),
            (
                "[[device]]\npath=\"/d/a\"\n[[device]]\npath=\"/d/a\"",
                "listed twice",
            ),
            (
                "[[device]]\npath=\"/d/a\"\nlayers=[\"trace\", \"errors\", \"trace operations=2000\"]",
                "the device /d/a has several traces",
            ),
            ("[[device]]\npath=\"/d/a b\"", "set its `name`"),
            (
                "[nbd]\nlisten=\"none\"\n[[device]]\npath=\"a\"",
                "nobody could use",
            ),
            (
                "[tls]\nkey=\"k\"\n[[device]]\npath=\"a\"",
                "tls.certificate is not",
            ),
            (
                "cores=65\n[[device]]\npath=\"a\"",
                "cores is 65; give it 1 to 64",
            ),
        ];
        for (text, expected) in bad {
            let error = config(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn localhost_is_an_address() {
        assert_eq!("localhost:0".parse(), Ok(Address(loopback(0))));
        assert_eq!("none".parse(), Ok(OptionalAddress(None)));
        assert!("none".parse::<Address>().is_err());
        assert!("127.0.0.1".parse::<Address>().is_err());
        assert!("example.org:80".parse::<Address>().is_err());
    }
}
