//! `flagstone volume move`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::progress::Bar;
use super::target::parse_api_address;
use crate::api_key;
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::name::parse_name;
use crate::node::{Arrival, ArrivalSpec, MoveInfo, MovePlace, MoveSpec, MoveState, VolumeInfo};
use crate::output::Output;
use crate::size::{Size, rounded};
use crate::wait;

/// How often it is looked how far a move is.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args, Debug)]
#[command(after_help = "\
Its data is copied while clients go on; at the end their changes wait for a moment (the command says for how
long). NBD clients notice nothing else, those of the native protocol are sent to the new address. If the node
is stopped or killed before the end, the volume is where it was. Meanwhile its size, snapshots, name and
settings can't be changed.

With --to it goes to another node, with its snapshots and tokens. Whoever has the keys of both nodes' APIs may
do that. Clients of the native protocol follow; what those of NBD ask that are attached is passed on. If either
node dies at the end, the volume is served by neither until the two can talk: it is never at both.

Examples:
  flagstone volume move db --device fast
  flagstone volume move db --core 1 --limit 100M      copy no more than 100 MiB a second
  flagstone volume move db --to storage-2:9443 --to-api-key-file storage-2.key
  flagstone volume move db --status
  flagstone volume move db --cancel")]
pub(super) struct MoveArgs {
    #[arg(value_parser = parse_name)]
    name: String,
    /// The device to move it to [default: the one it is on; of another node the first]
    #[arg(long)]
    device: Option<String>,
    /// The core to move it to [default: the one it is on, if that can have it]
    #[arg(long, value_name = "N")]
    core: Option<u32>,
    /// Move it to the node whose API is at this address
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_api_address)]
    to: Option<String>,
    /// The file of that API's key, a copy of api.key in that node's folder
    #[arg(long, value_name = "FILE", requires = "to")]
    to_api_key_file: Option<PathBuf>,
    /// Bytes a second to be copied at most
    #[arg(long, value_name = "SIZE")]
    limit: Option<Size>,
    /// Do it although the device can't keep what the volume is promised beside its other promises
    #[arg(long)]
    oversubscribe: bool,
    /// Return at once; --status says how far it is
    #[arg(long)]
    no_wait: bool,
    /// Say how far its last move is
    #[arg(long, conflicts_with_all = ["device", "core", "to", "limit", "oversubscribe", "no_wait", "cancel"])]
    status: bool,
    /// End its move: it stays where it is
    #[arg(long, conflicts_with_all = ["device", "core", "to", "limit", "oversubscribe", "no_wait"])]
    cancel: bool,
}

pub(super) fn run(client: &Client, args: &MoveArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    let path = format!("/v1/volumes/{}/move", args.name);
    let mut info: MoveInfo = match (args.status, args.cancel) {
        (true, _) => client.get(&path)?,
        (_, true) => {
            client.call("DELETE", &path)?;
            watch(client, &path, client.get(&path)?)?
        }
        _ => client.send("POST", &path, &spec(client, args)?)?,
    };
    if !(args.status || args.cancel || args.no_wait) {
        info = watch(client, &path, info)?;
    }
    output.outcome(&info, &sentence(&info))?;
    // To look at one, or to end it, is done whatever came of the move.
    let waited = !(args.status || args.cancel || args.no_wait);
    match info.state {
        MoveState::Unknown if waited => Err(Failure {
            exit: Exit::Internal,
            message: format!("moving volume '{}': {}", info.volume, why(&info)),
            next_step: "see that the other node runs, and restart this one: it then asks whose the volume is".to_owned(),
        }
        .into()),
        MoveState::Failed | MoveState::Cancelled if waited => Err(Failure {
            exit: Exit::Internal,
            message: format!("moving volume '{}': {}", info.volume, why(&info)),
            next_step: "its clients go on where it is; move it again once that is mended"
                .to_owned(),
        }
        .into()),
        _ => Ok(()),
    }
}

/// What is asked of the node that has it. For another node a place is asked for there first.
fn spec(client: &Client, args: &MoveArgs) -> anyhow::Result<MoveSpec> {
    let within = MoveSpec {
        device: args.device.clone(),
        core: args.core,
        limit_bytes: args.limit.map(|limit| limit.0),
        oversubscribe: args.oversubscribe,
        arrival: None,
    };
    let Some(to) = &args.to else {
        return Ok(within);
    };
    let volume: VolumeInfo = client.get(&format!("/v1/volumes/{}", args.name))?;
    if let Some(info) = &volume.moving {
        let message = format!(
            "moving volume '{}': it is being moved already, {}",
            args.name,
            progress(info)
        );
        return Err(busy(message));
    }
    let key = args.to_api_key_file.as_deref().map(api_key::read_given);
    let there = Client::new(to, "--to").with_key(key.transpose()?);
    let wanted = ArrivalSpec {
        volume: volume.name.clone(),
        id: volume.id.clone(),
        device: args.device.clone(),
        core: args.core,
        slo: volume.slo,
        oversubscribe: args.oversubscribe,
    };
    let mut arrival: Arrival = there.send("POST", "/v1/arrivals", &wanted)?;
    arrival.address = reachable(&arrival.address, to)?;
    Ok(MoveSpec {
        device: None,
        core: None,
        oversubscribe: false,
        arrival: Some(arrival),
        ..within
    })
}

fn busy(message: String) -> anyhow::Error {
    Failure {
        exit: Exit::Busy,
        message,
        next_step: "wait for the end of that, or end it: `flagstone volume move NAME --cancel`"
            .to_owned(),
    }
    .into()
}

/// Where the other node is reached: one that listens on all its addresses by the one that its API was reached by.
fn reachable(told: &str, api: &str) -> anyhow::Result<String> {
    let refused = |what: String| {
        Failure {
        exit: Exit::NotReachable,
        message: format!("moving to the node of {api}: {what}"),
        next_step: "have that node serve the native protocol on an address that this node reaches (`native` in its configuration)".to_owned(),
    }
    };
    let address: SocketAddr = told.parse().map_err(|_| {
        refused(format!(
            "it says that it listens on '{told}', which is no ADDR:PORT"
        ))
    })?;
    let of_api = || {
        let mut found = api.to_socket_addrs().ok()?;
        found.next().map(|found| found.ip())
    };
    let api_ip = of_api().ok_or_else(|| refused("its name leads to no address".to_owned()))?;
    if address.ip().is_unspecified() {
        return Ok(SocketAddr::new(api_ip, address.port()).to_string());
    }
    if address.ip().is_loopback() && !api_ip.is_loopback() {
        return Err(refused(format!(
            "it serves the native protocol on {address} only, which no other machine reaches"
        ))
        .into());
    }
    Ok(told.to_owned())
}

/// Waits for the end of a move.
fn watch(client: &Client, path: &str, mut info: MoveInfo) -> anyhow::Result<MoveInfo> {
    let mut bar = Bar::new("move");
    while info.state == MoveState::Running {
        bar.show(info.copied_bytes, info.expected_bytes);
        wait::pause(LOOK);
        info = client.get(path)?;
    }
    Ok(info)
}

fn place(place: &MovePlace) -> String {
    let node = place.node.as_ref().map(|node| format!("node {node}, "));
    format!(
        "{}device {}, core {}",
        node.unwrap_or_default(),
        place.device,
        place.core
    )
}

fn why(info: &MoveInfo) -> String {
    match (&info.error, info.state) {
        (Some(error), _) => error.clone(),
        (None, MoveState::Cancelled) => "it was cancelled".to_owned(),
        _ => "it came to nothing".to_owned(),
    }
}

/// How far a move is that isn't over.
pub(super) fn progress(info: &MoveInfo) -> String {
    format!(
        "to {}, {} of about {} copied",
        place(&info.to),
        rounded(info.copied_bytes),
        rounded(info.expected_bytes.max(info.copied_bytes))
    )
}

fn sentence(info: &MoveInfo) -> String {
    let (volume, copied) = (&info.volume, rounded(info.copied_bytes));
    let (from, to) = (place(&info.from), place(&info.to));
    match info.state {
        MoveState::Running => format!("volume {volume}: moving from {from} {}", progress(info)),
        MoveState::Done => format!(
            "volume {volume}: moved from {from} to {to}, {copied} copied; its changes waited {:.1} ms at the end",
            info.held_us as f64 / 1000.0
        ),
        MoveState::Unknown => format!(
            "volume {volume}: whether it went from {from} to {to} isn't known: {}",
            why(info)
        ),
        MoveState::Cancelled | MoveState::Failed => {
            format!("volume {volume}: stays on {from}: {}", why(info))
        }
    }
}
