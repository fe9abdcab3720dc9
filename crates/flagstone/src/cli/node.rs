//! `flagstone node ...`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::target::TargetArgs;
use super::{OutputArgs, series};
use crate::api_key::{self, KeyUse};
use crate::client::{Client, ClientError};
use crate::exit::{Exit, Failure};
use crate::node::{ArrivingVolume, NodeErrorKind, NodeInfo};
use crate::node_file::{DirLock, NodeFile};
use crate::output::{Output, duration, utc};
use crate::wait;

/// How often and how long to look whether a node has stopped.
const STOP_PAUSE: Duration = Duration::from_millis(50);
const STOP_TRIES: u32 = 2400;

#[derive(Args, Debug)]
pub(super) struct NodeArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Subcommand, Debug)]
enum NodeCommand {
    /// Show version, addresses, cores and what limits it
    Info,
    /// Print counters and latency histograms as Prometheus text, or with -o json as a list of
    /// {name, labels, type, value}
    Metrics {
        /// Leave the series of single volumes out
        #[arg(long)]
        no_volumes: bool,
    },
    /// Stop the node as SIGTERM does, and wait until it has
    Stop {
        /// Return at once
        #[arg(long)]
        no_wait: bool,
    },
    /// Replace the key of the API by a new one, in the node's folder; the old one is refused at once
    #[command(after_help = "\
Examples:
  flagstone node rotate-api-key --dir /run/flagstone
  flagstone node rotate-api-key --metrics                 what Prometheus reads, metrics.key")]
    RotateApiKey {
        /// Replace the key that opens /metrics alone
        #[arg(long)]
        metrics: bool,
    },
}

pub(super) fn run(args: NodeArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    if let NodeCommand::RotateApiKey { metrics } = args.command {
        let key_use = if metrics {
            KeyUse::Metrics
        } else {
            KeyUse::Api
        };
        return rotate(&args.target, key_use, output);
    }
    let client = args.target.client()?;
    match args.command {
        NodeCommand::RotateApiKey { .. } => unreachable!("handled above"),
        NodeCommand::Info => info(&client, output),
        NodeCommand::Metrics { no_volumes } => {
            let text = client.get_text(&format!("/metrics?volumes={}", !no_volumes))?;
            if output.is_json() {
                let series = series::parse(&text).map_err(|line| {
                    anyhow::anyhow!("reading the node's metrics: no series as expected: '{line}'")
                })?;
                output.json(&series)?;
            } else {
                write!(output.out, "{text}")?;
            }
            Ok(())
        }
        NodeCommand::Stop { no_wait } => {
            client.call("POST", "/v1/node/stop")?;
            if no_wait {
                output.sentence("the node is stopping")?;
            } else {
                wait_until_stopped(&args.target, &client)?;
                output.sentence("the node has stopped")?;
            }
            Ok(())
        }
    }
}

/// Replaces a key. A node that serves the folder is asked for something with the new one, so that it takes it and the
/// old one ends now, not when it next looks.
fn rotate(target: &TargetArgs, key_use: KeyUse, output: &mut Output<'_>) -> anyhow::Result<()> {
    let title = key_use.title();
    let Some(dir) = target.dir() else {
        anyhow::bail!(Failure {
            exit: Exit::Usage,
            message: format!(
                "replacing {title}: it is a file in the node's folder, and --api names none"
            ),
            next_step: "run the command on the node's machine, with --dir".to_string(),
        });
    };
    let secret = api_key::rotate(&dir, key_use)?;
    let path = dir.join(key_use.file_name());
    let file = NodeFile::read(&dir).ok().filter(|_| DirLock::is_held(&dir));
    let taken = file.map(|file| {
        let client = Client::new(file.api, path.display().to_string()).with_key(secret);
        client.get_text(match key_use {
            KeyUse::Api => "/v1/node",
            KeyUse::Metrics => "/metrics?volumes=false",
        })
    });
    let end = match taken {
        None => "no node serves the folder; the next one takes it".to_string(),
        Some(Ok(_)) => "the node has taken it, and refuses the old one".to_string(),
        Some(Err(ClientError::Problem(problem)))
            if problem.kind == NodeErrorKind::Unauthenticated =>
        {
            anyhow::bail!(Failure {
                exit: Exit::Refused,
                message: format!(
                    "replacing {title}: {} has a new one, and the node does not take it",
                    path.display()
                ),
                next_step: "see its log".to_string(),
            });
        }
        Some(Err(error)) => format!("the node takes it with the next request ({error})"),
    };
    output.sentence(&format!("{} has a new key: {end}", path.display()))?;
    Ok(())
}

fn info(client: &Client, output: &mut Output<'_>) -> anyhow::Result<()> {
    let info: NodeInfo = client.get("/v1/node")?;
    if output.is_json() {
        output.json(&info)?;
        return Ok(());
    }
    let mut rows = vec![
        ("version", info.version),
        ("state", format!("{:?}", info.state).to_lowercase()),
        ("process", info.pid.to_string()),
        (
            "started",
            format!(
                "{} UTC, {} ago",
                utc(info.started_ns),
                duration(info.uptime_s)
            ),
        ),
        ("api", info.api_address),
        ("nbd", info.nbd_addresses.join(", ")),
        (
            "nbd (unix)",
            info.nbd_unix.unwrap_or_else(|| "-".to_string()),
        ),
        (
            "native",
            match info.native_addresses.is_empty() {
                true => "-".to_string(),
                false => info.native_addresses.join(", "),
            },
        ),
    ];
    for core in &info.cores {
        let place = core
            .cpu
            .map_or("not pinned".to_string(), |cpu| format!("on cpu {cpu}"));
        let load = format!(
            "{} volumes, {} connections",
            core.volume_count, core.connection_count
        );
        rows.push(("core", format!("{} {place}, {load}", core.core)));
    }
    for one in &info.arriving {
        rows.push(("arriving", arriving(one)));
    }
    rows.extend(info.notices.into_iter().map(|notice| ("notice", notice)));
    output.card(&rows)?;
    Ok(())
}

/// A volume that is on its way here.
fn arriving(one: &ArrivingVolume) -> String {
    let from = one.from.as_deref().unwrap_or("another node");
    let (device, core) = (&one.device, one.core);
    let silent = duration(one.silent_s);
    let since = match (one.has_begun, &one.from) {
        (true, Some(_)) => format!("heard of {silent} ago"),
        (true, None) => format!("not heard of since the start {silent} ago"),
        (false, _) => format!("was promised a place {silent} ago"),
    };
    format!(
        "volume {} from {from} to device {device}, core {core}; {since}, given up in {} if that is all",
        one.volume,
        duration(one.ends_in_s)
    )
}

/// A local node holds its folder's lock to its last moment; of others the API is all we see.
fn wait_until_stopped(target: &TargetArgs, client: &Client) -> anyhow::Result<()> {
    let client = client.clone().without_retries();
    for _ in 0..STOP_TRIES {
        let is_stopped = match target.dir() {
            Some(dir) => !DirLock::is_held(&dir),
            None => matches!(
                client.call("GET", "/healthz"),
                Err(ClientError::NotReachable { .. })
            ),
        };
        if is_stopped {
            return Ok(());
        }
        wait::pause(STOP_PAUSE);
    }
    anyhow::bail!(Failure {
        exit: Exit::NotReachable,
        message: "stopping the node: it has not ended within two minutes".to_string(),
        next_step:
            "its log says why; kill its process if it must end (what was acknowledged is safe)"
                .to_string(),
    })
}
