//! `flagstone volume move`.

use std::time::Duration;

use clap::Args;

use super::progress::Bar;
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::name::parse_name;
use crate::node::{MoveInfo, MovePlace, MoveSpec, MoveState};
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

Examples:
  flagstone volume move db --device fast
  flagstone volume move db --core 1 --limit 100M      copy no more than 100 MiB a second
  flagstone volume move db --status
  flagstone volume move db --cancel")]
pub(super) struct MoveArgs {
    #[arg(value_parser = parse_name)]
    name: String,
    /// The device to move it to [default: the one it is on]
    #[arg(long)]
    device: Option<String>,
    /// The core to move it to [default: the one it is on, if that can have it]
    #[arg(long, value_name = "N")]
    core: Option<u32>,
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
    #[arg(long, conflicts_with_all = ["device", "core", "limit", "oversubscribe", "no_wait", "cancel"])]
    status: bool,
    /// End its move: it stays where it is
    #[arg(long, conflicts_with_all = ["device", "core", "limit", "oversubscribe", "no_wait"])]
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
        _ => {
            let spec = MoveSpec {
                device: args.device.clone(),
                core: args.core,
                limit_bytes: args.limit.map(|limit| limit.0),
                oversubscribe: args.oversubscribe,
            };
            client.send("POST", &path, &spec)?
        }
    };
    if !(args.status || args.cancel || args.no_wait) {
        info = watch(client, &path, info)?;
    }
    output.outcome(&info, &sentence(&info))?;
    // To look at one, or to end it, is done whatever came of the move.
    let waited = !(args.status || args.cancel || args.no_wait);
    match info.state {
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
    format!("device {}, core {}", place.device, place.core)
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
        MoveState::Cancelled | MoveState::Failed => {
            format!("volume {volume}: stays on {from}: {}", why(info))
        }
    }
}
