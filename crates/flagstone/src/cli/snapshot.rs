//! `flagstone snapshot ...`.

use clap::{Args, Subcommand};

use super::target::TargetArgs;
use super::{OutputArgs, SnapshotArg, listing, streams, volume};
use crate::api::requests::{RenameRequest, SnapshotGroup, SnapshotRequest};
use crate::client::Client;
use crate::name::{SnapshotRef, SourceRef, parse_name, snapshots_from_args};
use crate::node::{SnapshotInfo, SnapshotPage};
use crate::output::{Output, utc};
use crate::size::rounded;

#[derive(Args, Debug)]
pub(super) struct SnapshotArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Subcommand, Debug)]
enum SnapshotCommand {
    /// Take a snapshot, or several in one instant (all or none)
    #[command(after_help = "\
Examples:
  flagstone snapshot create vm-1@monday
  flagstone snapshot create vm-1 monday                   the same
  flagstone snapshot create db-data@t1 db-log@t1          no write lies between the two
  qemu-img convert nbd://127.0.0.1:10809/vm-1@monday ...  snapshots are read-only exports

Several in one instant have to be of volumes of one journal. A node with several cores spreads
volumes over them, and each has journals of its own, so make those that belong together on one:
  flagstone volume create db-log --size 10G --core 0      `flagstone volume show` says in which journal")]
    Create {
        /// VOLUME@SNAPSHOT, or VOLUME SNAPSHOT
        #[arg(required = true, value_name = "VOLUME@SNAPSHOT")]
        snapshots: Vec<String>,
    },
    /// List snapshots
    List {
        /// Only those of this volume
        #[arg(value_parser = parse_name)]
        volume: Option<String>,
    },
    /// Show a snapshot
    Show {
        #[command(flatten)]
        snapshot: SnapshotArg,
    },
    /// Delete snapshots, in any order
    Delete {
        /// VOLUME@SNAPSHOT, or VOLUME SNAPSHOT; deleted up to the first that can't be
        #[arg(required = true, value_name = "VOLUME@SNAPSHOT")]
        snapshots: Vec<String>,
    },
    /// Give a snapshot another name
    Rename {
        /// The snapshot
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: SnapshotRef,
        #[arg(value_parser = parse_name)]
        new_name: String,
    },
    /// Write a snapshot to a file or pipe, or what changed since an older one
    #[command(after_help = streams::SEND_EXAMPLES)]
    Send(streams::SendArgs),
    /// Make a volume, or a newer state of one, of what was sent
    #[command(after_help = streams::RECEIVE_EXAMPLES)]
    Receive(streams::ReceiveArgs),
    /// Start a new volume from a snapshot; the same as `flagstone volume clone`
    Clone {
        /// The snapshot
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: SnapshotRef,
        #[arg(value_parser = parse_name)]
        new_name: String,
    },
}

pub(super) fn run(args: SnapshotArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    // What is no name is said before a node is looked for.
    match &args.command {
        SnapshotCommand::Create { snapshots } | SnapshotCommand::Delete { snapshots } => {
            snapshots_from_args(snapshots)?;
        }
        SnapshotCommand::Show { snapshot } => {
            snapshot.read()?;
        }
        SnapshotCommand::Send(args) => args.check()?,
        SnapshotCommand::Receive(args) => args.check()?,
        _ => {}
    }
    let client = args.target.client()?;
    match args.command {
        SnapshotCommand::Create { snapshots } => {
            let request = SnapshotRequest {
                snapshots: snapshots_from_args(&snapshots)?,
            };
            let group: SnapshotGroup = client.send("POST", "/v1/snapshots", &request)?;
            if output.is_json() {
                output.json(&group)?;
                return Ok(());
            }
            for info in &group.items {
                output.sentence(&format!("took snapshot {}@{}", info.volume, info.name))?;
            }
            Ok(())
        }
        SnapshotCommand::List { volume } => list(&client, volume, output),
        SnapshotCommand::Show { snapshot } => {
            let info: SnapshotInfo = client.get(&path_of(&snapshot.read()?))?;
            show(&info, output)
        }
        SnapshotCommand::Delete { snapshots } => {
            for snapshot in snapshots_from_args(&snapshots)? {
                client.call("DELETE", &path_of(&snapshot))?;
                output.sentence(&format!("deleted snapshot {snapshot}"))?;
            }
            Ok(())
        }
        SnapshotCommand::Rename { snapshot, new_name } => {
            let path = format!("{}/rename", path_of(&snapshot));
            let info: SnapshotInfo = client.send("POST", &path, &RenameRequest { new_name })?;
            let sentence = format!("renamed to snapshot {}@{}", info.volume, info.name);
            output.outcome(&info, &sentence)?;
            Ok(())
        }
        SnapshotCommand::Send(args) => streams::send(&client, &args, output),
        SnapshotCommand::Receive(args) => streams::receive(&client, &args, output),
        SnapshotCommand::Clone { snapshot, new_name } => {
            let source = SourceRef {
                volume: snapshot.volume,
                snapshot: Some(snapshot.snapshot),
            };
            volume::clone(&client, source, new_name, output)
        }
    }
}

pub(super) fn path_of(snapshot: &SnapshotRef) -> String {
    format!("/v1/snapshots/{}/{}", snapshot.volume, snapshot.snapshot)
}

fn list(client: &Client, volume: Option<String>, output: &mut Output<'_>) -> anyhow::Result<()> {
    let wanted = volume.as_deref().map(|volume| ("volume", volume));
    let all: SnapshotPage = listing::all(client, "/v1/snapshots", wanted)?;
    if output.is_json() {
        output.json(&all)?;
        return Ok(());
    }
    let rows = all.items.into_iter().map(|info| {
        vec![
            format!("{}@{}", info.volume, info.name),
            rounded(info.size_bytes),
            rounded(info.referenced_bytes),
            rounded(info.unique_bytes),
            info.clones.to_string(),
            utc(info.created_ns),
        ]
    });
    const HEADINGS: [&str; 6] = [
        "SNAPSHOT",
        "SIZE",
        "REFERENCED",
        "UNIQUE",
        "CLONES",
        "CREATED (UTC)",
    ];
    output.table(&HEADINGS, &[1, 2, 3, 4], rows)?;
    Ok(())
}

fn show(info: &SnapshotInfo, output: &mut Output<'_>) -> anyhow::Result<()> {
    if output.is_json() {
        output.json(info)?;
        return Ok(());
    }
    let bytes = |bytes: u64| format!("{} ({bytes} bytes)", rounded(bytes));
    output.card(&[
        ("snapshot", format!("{}@{}", info.volume, info.name)),
        ("size", bytes(info.size_bytes)),
        ("referenced", bytes(info.referenced_bytes)),
        (
            "unique",
            format!("{}; deleting it frees that", bytes(info.unique_bytes)),
        ),
        ("clones", info.clones.to_string()),
        ("created", format!("{} UTC", utc(info.created_ns))),
        ("lsn", info.lsn.to_string()),
        ("layer", info.layer.to_string()),
    ])?;
    Ok(())
}
