//! The options of `flagstone dev` and `flagstone serve`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::target::dir_of_environment;
use crate::api::Authentication;
use crate::config::{
    Address, CORES_CEILING, Config, ConfigError, DIR_DEFAULT, DeviceConfig, ExportConfig,
    NfsConfig, OptionalAddress,
};
use crate::layers::LayerText;
use crate::node::SchedulePolicy;
use crate::serve::{DevPlan, ServePlan};
use crate::size::Size;
use crate::slo_text::CeilingText;

/// Starts a node in a folder. Creates the folder, a file-backed device in it, a volume called 'demo' and
/// a filesystem called 'demo-files', if they are missing. Serves in the foreground; prints how to attach the
/// volume (its token is in DIR/demo.token) and mount the filesystem, then a line that begins with 'ready'. SIGTERM and Ctrl-C stop it cleanly, a second one at once.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone dev
  flagstone dev --dir /data/fs --size 100G --cores 2
  flagstone dev --nbd 127.0.0.1:0 --nfs 127.0.0.1:0 --api 127.0.0.1:0
                                                          any free ports; see 'ready' and node.json")]
pub(super) struct DevArgs {
    /// Size of the device, if it has to be created; its space is set aside at once
    /// [default: 20G, or half of what is free there if that is less, and 2G at least]
    #[arg(long)]
    size: Option<Size>,
    #[command(flatten)]
    common: CommonArgs,
}

/// Starts a node on devices that are formatted already, from a configuration file or named here.
/// Serves in the foreground as `dev` does.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone device format /data/flagstone.img:100G
  flagstone serve --device /data/flagstone.img --dir /run/flagstone
  flagstone serve --config /etc/flagstone.toml            see `flagstone config example`")]
pub(super) struct ServeArgs {
    /// A configuration file; options given here override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A device, instead of those in the configuration; with SIZE it must have been formatted with
    /// that size. Can be given several times
    #[arg(long = "device", value_name = "PATH[:SIZE]")]
    devices: Vec<DeviceConfig>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args, Debug)]
struct CommonArgs {
    /// The folder for the node's files; commands find the node by it [env: FLAGSTONE_DIR]
    /// [default: ./flagstone-data]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Number of cores, threads that do all I/O, 1 to 64; more than there are processors slow each
    /// other down [default: half of the processors, at most 8]
    #[arg(long, value_name = "N", value_parser = parse_cores)]
    cores: Option<usize>,
    /// Memory for the maps of volumes, on all cores together [default: 1G]
    #[arg(long, value_name = "SIZE")]
    map_cache: Option<Size>,
    /// Memory for blocks that filesystems read again, on all cores together, 0 for none
    /// [default: 256M]
    #[arg(long, value_name = "SIZE")]
    block_cache: Option<Size>,
    /// Have small reads of volumes go through that memory, too
    #[arg(long)]
    cache_volumes: bool,
    /// Where NBD clients connect; port 0 for any free one, 'none' for nowhere
    /// [default: 127.0.0.1:10809]
    #[arg(long, value_name = "ADDR:PORT")]
    nbd: Option<OptionalAddress>,
    /// A Unix socket for NBD clients on this machine
    #[arg(long, value_name = "PATH")]
    nbd_unix: Option<PathBuf>,
    /// Where clients of the native protocol connect: the first core has this port, the others those behind it; port 0
    /// for any free one for each, 'none' for nowhere [default: none]
    #[arg(long, value_name = "ADDR:PORT")]
    native: Option<OptionalAddress>,
    /// Where NFS clients connect, and ask MOUNT; port 0 for any free one, 'none' for nowhere
    /// [default: 127.0.0.1:12049 for `dev`, else none]
    #[arg(long, value_name = "ADDR:PORT")]
    nfs: Option<OptionalAddress>,
    /// Have no portmapper say where that is
    #[arg(long)]
    no_portmapper: bool,
    /// Where the HTTP API listens; port 0 for any free one [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDR:PORT")]
    api: Option<Address>,
    /// Confirm that --api may be an address other machines reach: the key, with which one may do
    /// everything, travels in plain HTTP
    #[arg(long)]
    allow_remote_api: bool,
    /// Have the API ask for no key: whoever on this machine reaches it may do everything. With any
    /// address but a loopback one the node does not start then
    #[arg(long)]
    api_open: bool,
    /// For measuring and testing: what devices are asked for passes this first. 'ceiling reads=20000
    /// writes=10000 flushes=2000 bytes=1G' (a second), 'latency reads=80us writes=20us flushes=1ms
    /// jitter=20%', 'errors reads=0.001'. Or 'trace', which changes nothing and keeps what passes it
    /// (`flagstone device trace`). Can be given several times
    #[arg(long = "layer", value_name = "LAYER")]
    layers: Vec<LayerText>,
    /// What devices may be asked for, so that volumes can be promised parts of them: 'reads=80000 writes=50000
    /// flushes=10000 bytes=1G latency=1ms' (a second; how long a request may be in it)
    #[arg(long, value_name = "RATES")]
    ceiling: Option<CeilingText>,
    /// Who goes next where there is a ceiling [default: deficit]. first-come keeps no ceiling and no promise
    #[arg(long)]
    policy: Option<SchedulePolicy>,
}

/// In a configuration file 0 stands for the default; here the option would be left out.
fn parse_cores(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(cores) if (1..=CORES_CEILING).contains(&cores) => Ok(cores),
        _ => Err(format!("expected a number from 1 to {CORES_CEILING}")),
    }
}

impl CommonArgs {
    /// Takes what was given in front of the command, where nothing was given behind it.
    fn take(&mut self, dir: Option<PathBuf>, api: Option<String>) -> Result<(), ConfigError> {
        self.dir = self.dir.take().or(dir);
        if let Some(text) = api
            && self.api.is_none()
        {
            self.api = Some(text.parse()?);
        }
        Ok(())
    }

    fn apply(self, config: &mut Config) {
        // The environment says it where neither the command line nor the file does: a folder that a file names is not to be another node's.
        let of_environment =
            || dir_of_environment().filter(|_| config.dir == Path::new(DIR_DEFAULT));
        if let Some(dir) = self.dir.or_else(of_environment) {
            config.dir = dir;
        }
        if let Some(cores) = self.cores {
            config.cores = cores;
        }
        if let Some(size) = self.map_cache {
            config.map_cache = size;
        }
        if let Some(size) = self.block_cache {
            config.block_cache = size;
        }
        config.cache_volumes |= self.cache_volumes;
        if let Some(nbd) = self.nbd {
            config.nbd.listen = nbd;
        }
        if let Some(native) = self.native {
            config.native.listen = native;
        }
        if let Some(nfs) = self.nfs {
            config.nfs.listen = nfs;
        }
        config.nfs.portmapper &= !self.no_portmapper;
        if let Some(path) = self.nbd_unix {
            config.nbd.unix = path;
        }
        if let Some(api) = self.api {
            config.api.listen = api;
        }
        config.api.allow_remote |= self.allow_remote_api;
        if self.api_open {
            config.api.authentication = Authentication::None;
        }
    }
}

impl DevArgs {
    pub(super) fn take(
        &mut self,
        dir: Option<PathBuf>,
        api: Option<String>,
    ) -> Result<(), ConfigError> {
        self.common.take(dir, api)
    }

    pub(super) fn plan(self) -> Result<ServePlan, ConfigError> {
        let mut config = Config {
            nfs: NfsConfig::of_dev(),
            exports: vec![ExportConfig::of_dev_volumes()],
            ..Config::default()
        };
        let layers = self.common.layers.clone();
        let (ceiling, policy) = (self.common.ceiling, self.common.policy);
        self.common.apply(&mut config);
        Ok(ServePlan {
            config,
            layers,
            ceiling,
            policy,
            dev: Some(DevPlan {
                size_bytes: self.size.map(|size| size.0),
            }),
        })
    }
}

impl ServeArgs {
    pub(super) fn take(
        &mut self,
        dir: Option<PathBuf>,
        api: Option<String>,
    ) -> Result<(), ConfigError> {
        self.common.take(dir, api)
    }

    pub(super) fn plan(self) -> Result<ServePlan, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::load(path)?,
            None => Config::default(),
        };
        let layers = self.common.layers.clone();
        let (ceiling, policy) = (self.common.ceiling, self.common.policy);
        self.common.apply(&mut config);
        if !self.devices.is_empty() {
            config.devices = self.devices;
        }
        // Before a lock is taken or a port opened.
        config.node_options()?;
        Ok(ServePlan {
            config,
            layers,
            ceiling,
            policy,
            dev: None,
        })
    }
}
