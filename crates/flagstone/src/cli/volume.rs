//! `flagstone volume ...`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use flagstone_gateway::nfs3::Network;

use super::moves::{self, MoveArgs};
use super::schedule::{self, ScheduleArgs};
use super::slo::SloArgs;
use super::target::TargetArgs;
use super::token::{self, TokenArgs, TokenFile};
use super::{OutputArgs, SnapshotArg, listing};
use crate::api::requests::{
    CloneRequest, RenameRequest, ReserveRequest, ResizeRequest, RestrictRequest, RollbackRequest,
    SloRequest,
};
use crate::client::Client;
use crate::name::{SourceRef, parse_name};
use crate::node::{
    CreatedVolume, Reservation, Slo, StripeInfo, VolumeInfo, VolumePage, VolumeSpec,
};
use crate::output::{Output, utc};
use crate::size::{Size, counted, rounded};

#[derive(Args, Debug)]
pub(super) struct VolumeArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Subcommand, Debug)]
enum VolumeCommand {
    /// Create an empty volume
    #[command(after_help = "\
Behind the line that says where the volume is comes its owner's token, which is told only now. Who has it
may open the volume over the native protocol; NBD needs none. --token-to writes it to a file instead;
`flagstone volume token` makes others.

Examples:
  flagstone volume create vm-1 --size 10G
  flagstone volume create db --size 100G --reserve full     never fails for lack of space
  flagstone volume create web --size 20G --floor reads=5000,writes=1000 --limit bytes=200M
  flagstone volume create hot --size 500G --stripes 4       its work is done by four cores
  flagstone volume create vm-2 --size 10G --token-to vm-2.token")]
    Create {
        /// The new volume: letters, digits, '-', '_', '.'
        #[arg(value_parser = parse_name)]
        name: String,
        /// Its size (512M, 10G, 1.5T, or bytes); only what is written takes space
        #[arg(long)]
        size: Size,
        /// Space kept free for it: none, full, or a size up to its own
        #[arg(long, value_name = "SPACE", default_value = "none", value_parser = parse_reservation)]
        reserve: Reservation,
        /// The device that holds it [default: the node chooses]
        #[arg(long)]
        device: Option<String>,
        /// The core that owns it [default: the node chooses]
        #[arg(long)]
        core: Option<u32>,
        /// Give it a journal of its own, so that it can go to another core without being copied (`flagstone device hand-over`)
        #[arg(long)]
        apart: bool,
        /// Stripe it over so many cores, 2 to 16: for a volume that one core is not enough for. A write that crosses a border of stripe units
        /// may be there in part after a crash
        #[arg(long, value_name = "N")]
        stripes: Option<u32>,
        /// Bytes in a row on the same one, a power of two from 64K to 16M [default: 1M]
        #[arg(long, value_name = "SIZE", requires = "stripes")]
        stripe_unit: Option<Size>,
        #[command(flatten)]
        slo: SloArgs,
        /// Write the owner's token to this new file, which only you can read, and don't print it
        #[arg(long, value_name = "FILE")]
        token_to: Option<PathBuf>,
    },
    /// List volumes
    #[command(after_help = "\
CORE is the core that a volume belongs to; 0+3 is a volume striped over 4 dvols, of which the first is on core 0
(`flagstone volume show` says where the others are).")]
    List {
        /// Only those whose name begins with this
        prefix: Option<String>,
    },
    /// Show a volume
    Show {
        #[arg(value_parser = parse_name)]
        name: String,
    },
    /// Change a volume's size; clients see it when they next connect
    #[command(after_help = "\
Examples:
  flagstone volume resize vm-1 20G
  flagstone volume resize vm-1 5G --allow-data-loss      what lies behind 5G is gone")]
    Resize {
        #[arg(value_parser = parse_name)]
        name: String,
        /// The new size
        size: Size,
        /// Confirm that shrinking discards what lies behind the new size
        #[arg(long)]
        allow_data_loss: bool,
    },
    /// Give a volume another name
    Rename {
        #[arg(value_parser = parse_name)]
        name: String,
        #[arg(value_parser = parse_name)]
        new_name: String,
    },
    /// Delete volumes; clients that are attached get an error for each request
    Delete {
        /// The volumes; deleted one after the other, up to the first that can't be
        #[arg(required = true, value_parser = parse_name)]
        names: Vec<String>,
        /// Delete their snapshots, too
        #[arg(long)]
        with_snapshots: bool,
    },
    /// Start a new volume from a volume or a snapshot; instant, copies nothing
    #[command(after_help = "\
Examples:
  flagstone volume clone golden@v3 vm-7       from a snapshot
  flagstone volume clone vm-7 vm-7-test       from a volume as it is now")]
    Clone {
        /// VOLUME or VOLUME@SNAPSHOT
        source: SourceRef,
        #[arg(value_parser = parse_name)]
        new_name: String,
    },
    /// Make a volume what it was when a snapshot was taken, its size too; what was written since is
    /// lost
    #[command(after_help = "\
The volume gets the size it had at the snapshot. Clients that are attached stay so and read the
snapshot at once, under whatever they have cached: unmount and detach first.

Example:
  flagstone snapshot create vm-1@before-rollback      keep the present state
  flagstone volume rollback vm-1@installed")]
    Rollback {
        #[command(flatten)]
        snapshot: SnapshotArg,
    },
    /// Change what a volume is promised of its device and what it may not exceed, at once and for its clients, too
    #[command(after_help = "\
What is not named stays as it is. Promises need a device with a ceiling (`flagstone device schedule`).

Examples:
  flagstone volume slo db --floor reads=5000,writes=1000     so much, whatever others do
  flagstone volume slo db --floor none                       nothing is promised any more but a share of 1
  flagstone volume slo web --share 3                         three times what one with share 1 gets
  flagstone volume slo batch --limit reads=2000,bytes=100M   never more, also if nobody else wants anything
  flagstone volume slo batch --limit none")]
    Slo {
        #[arg(value_parser = parse_name)]
        name: String,
        #[command(flatten)]
        slo: SloArgs,
    },
    /// Have snapshots of a volume taken by themselves, and say which of them stay; without options show it
    Schedule(ScheduleArgs),
    /// Make, list, revoke and rotate tokens, with which a volume is opened over the native protocol
    Token(TokenArgs),
    /// Restrict from where a volume may be used, over the native protocol, NBD and NFS
    #[command(after_help = "\
Clients of the native protocol need a token all the same. What is open stays open; NFS opens nothing. What is not named stays as it is; `any` lifts it.

Examples:
  flagstone volume restrict db --allow-from 10.1.0.0/16 10.2.0.7      clients in these networks
  flagstone volume restrict db --allow-on 10.1.0.1                    and by this address of the node
  flagstone volume restrict db --allow-from any
  flagstone volume restrict db --none")]
    Restrict {
        #[arg(value_parser = parse_name)]
        name: String,
        /// Networks or addresses that clients have to have one of, or any
        #[arg(long, value_name = "NETWORK", num_args = 1.., value_parser = parse_network)]
        allow_from: Option<Vec<String>>,
        /// Addresses of the node that they have to connect to one of, or any
        #[arg(long, value_name = "ADDRESS", num_args = 1.., value_parser = parse_local)]
        allow_on: Option<Vec<String>>,
        /// Lift all restrictions
        #[arg(long, conflicts_with_all = ["allow_from", "allow_on"])]
        none: bool,
    },
    /// Move a volume to another device or core, or to another node, with its snapshots, while it is used
    Move(MoveArgs),
    /// Change how much space is kept free for a volume
    Reserve {
        #[arg(value_parser = parse_name)]
        name: String,
        /// none, full, or a size up to that of the volume
        #[arg(value_name = "SPACE", value_parser = parse_reservation)]
        reserve: Reservation,
    },
}

fn parse_reservation(text: &str) -> Result<Reservation, String> {
    match text {
        "none" => Ok(Reservation::None),
        "full" => Ok(Reservation::Full),
        size => match size.parse() {
            Ok(Size(bytes)) => Ok(Reservation::Bytes(bytes)),
            Err(error) => Err(format!("expected none, full or a size; {error}")),
        },
    }
}

const ANY: &str = "any";

fn parse_network(text: &str) -> Result<String, String> {
    match text.parse::<Network>() {
        _ if text == ANY => Ok(text.to_owned()),
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_local(text: &str) -> Result<String, String> {
    match text.parse::<IpAddr>() {
        _ if text == ANY => Ok(text.to_owned()),
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}: write an address as 10.1.0.1 or fd00::1")),
    }
}

pub(super) fn run(args: VolumeArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    // What is no name is said before a node is looked for.
    if let VolumeCommand::Rollback { snapshot } = &args.command {
        snapshot.read()?;
    }
    let client = args.target.client()?;
    match args.command {
        VolumeCommand::Create {
            name,
            size,
            reserve,
            device,
            core,
            apart,
            stripes,
            stripe_unit,
            slo,
            token_to,
        } => {
            let spec = VolumeSpec {
                name,
                size_bytes: size.0,
                reserve,
                device,
                core,
                apart,
                stripes,
                stripe_unit_bytes: stripe_unit.map(|unit| unit.0),
                slo: slo.over(Slo::default()),
                oversubscribe: slo.oversubscribe,
            };
            create(&client, &spec, token_to.as_deref(), output)
        }
        VolumeCommand::List { prefix } => list(&client, prefix.as_deref(), output),
        VolumeCommand::Show { name } => {
            let info: VolumeInfo = client.get(&format!("/v1/volumes/{name}"))?;
            show(&info, output)
        }
        VolumeCommand::Resize {
            name,
            size,
            allow_data_loss,
        } => {
            let request = ResizeRequest {
                size_bytes: size.0,
                allow_data_loss,
            };
            let path = format!("/v1/volumes/{name}/resize");
            let info: VolumeInfo = client.send("POST", &path, &request)?;
            outcome(output, &info, "resized")
        }
        VolumeCommand::Rename { name, new_name } => {
            let path = format!("/v1/volumes/{name}/rename");
            let info: VolumeInfo = client.send("POST", &path, &RenameRequest { new_name })?;
            outcome(output, &info, "renamed to")
        }
        VolumeCommand::Delete {
            names,
            with_snapshots,
        } => {
            for name in names {
                let path = format!("/v1/volumes/{name}");
                let before: Option<VolumeInfo> = client.get(&path).ok();
                client.call("DELETE", &format!("{path}?with_snapshots={with_snapshots}"))?;
                let attached = before.map_or(0, |volume| volume.connection_count);
                let clients = match attached {
                    0 => String::new(),
                    n => format!(
                        "; each request on its {} fails now",
                        counted(n, "connection")
                    ),
                };
                output.sentence(&format!("deleted volume {name}{clients}"))?;
            }
            Ok(())
        }
        VolumeCommand::Clone { source, new_name } => clone(&client, source, new_name, output),
        VolumeCommand::Rollback { snapshot } => rollback(&client, &snapshot, output),
        VolumeCommand::Move(args) => moves::run(&client, &args, output),
        VolumeCommand::Slo { name, slo } => {
            let path = format!("/v1/volumes/{name}");
            let before: VolumeInfo = client.get(&path)?;
            if slo.says_nothing() {
                show_slo(&before, output)?;
                return warn_of_slo(&before, output);
            }
            let request = SloRequest {
                slo: slo.over(before.slo),
                oversubscribe: slo.oversubscribe,
            };
            let info: VolumeInfo = client.send("PUT", &format!("{path}/slo"), &request)?;
            output.outcome(&info, &slo_sentence(&info))?;
            warn_of_slo(&info, output)
        }
        VolumeCommand::Restrict {
            name,
            allow_from,
            allow_on,
            none,
        } => {
            let lifted = || none.then(Vec::new);
            let (from, on) = (allow_from.or_else(lifted), allow_on.or_else(lifted));
            restrict(&client, &name, from, on, output)
        }
        VolumeCommand::Schedule(args) => schedule::run(&client, &args, output),
        VolumeCommand::Token(args) => token::run(args, &client, output),
        VolumeCommand::Reserve { name, reserve } => {
            let path = format!("/v1/volumes/{name}/reservation");
            let info: VolumeInfo = client.send("PUT", &path, &ReserveRequest { reserve })?;
            let space = rounded(info.reserved_bytes);
            output.outcome(&info, &format!("{space} reserved for volume {}", info.name))?;
            Ok(())
        }
    }
}

/// The first line is what it always was; the token comes behind it, for those who look for it.
fn create(
    client: &Client,
    spec: &VolumeSpec,
    token_to: Option<&Path>,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let file = token_to.map(TokenFile::new).transpose()?;
    let created: CreatedVolume = client.send("POST", "/v1/volumes", spec)?;
    let CreatedVolume { volume, token } = &created;
    match (file, token) {
        (Some(file), Some(token)) => {
            file.write(token)?;
            outcome(output, volume, "created")
        }
        _ if output.is_json() => Ok(output.json(&created)?),
        (_, token) => {
            outcome(output, volume, "created")?;
            if let Some(token) = token {
                output.sentence(&format!("owner's token, told only now: {}", token.0))?;
            }
            Ok(())
        }
    }?;
    let stripe = volume.stripe.as_ref();
    match stripe.and_then(|stripe| stripe.warning.as_ref()) {
        Some(warning) if !output.is_json() => Ok(output.sentence(&format!("warning: {warning}"))?),
        _ => Ok(()),
    }
}

/// What isn't named stays. `any`, alone, is no network and no address; beside others the node refuses it.
fn restrict(
    client: &Client,
    name: &str,
    allow_from: Option<Vec<String>>,
    allow_on: Option<Vec<String>>,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let path = format!("/v1/volumes/{name}");
    let before: VolumeInfo = client.get(&path)?;
    if allow_from.is_none() && allow_on.is_none() {
        output.outcome(&before.restrictions, &restricted(&before))?;
        return Ok(());
    }
    let was = &before.restrictions;
    let texts = |wanted: Option<Vec<String>>, before: Vec<String>| match wanted {
        None => before,
        Some(all) if all == [ANY] => Vec::new(),
        Some(all) => all,
    };
    let from = was.allow_from.iter().map(ToString::to_string).collect();
    let on = was.allow_on.iter().map(ToString::to_string).collect();
    let request = RestrictRequest {
        allow_from: texts(allow_from, from),
        allow_on: texts(allow_on, on),
    };
    let info: VolumeInfo = client.send("PUT", &format!("{path}/restrictions"), &request)?;
    output.outcome(&info, &restricted(&info))?;
    Ok(())
}

fn restricted(info: &VolumeInfo) -> String {
    format!("volume {}: restricted {}", info.name, info.restrictions)
}

/// Says why its promise isn't kept, if it isn't; as JSON that is part of the volume.
fn warn_of_slo(info: &VolumeInfo, output: &mut Output<'_>) -> anyhow::Result<()> {
    match &info.slo_warning {
        Some(warning) if !output.is_json() => Ok(output.sentence(&format!("warning: {warning}"))?),
        _ => Ok(()),
    }
}

fn show_slo(info: &VolumeInfo, output: &mut Output<'_>) -> anyhow::Result<()> {
    match output.is_json() {
        true => output.json(&info.slo)?,
        false => output.sentence(&slo_sentence(info))?,
    }
    Ok(())
}

fn slo_sentence(info: &VolumeInfo) -> String {
    let Slo { promise, limit } = info.slo;
    format!("volume {}: {promise}, limit {limit}", info.name)
}

fn rollback(client: &Client, args: &SnapshotArg, output: &mut Output<'_>) -> anyhow::Result<()> {
    let target = args.read()?;
    let path = format!("/v1/volumes/{}/rollback", target.volume);
    let request = RollbackRequest {
        snapshot: target.snapshot.clone(),
    };
    let before: VolumeInfo = client.get(&format!("/v1/volumes/{}", target.volume))?;
    let info: VolumeInfo = client.send("POST", &path, &request)?;
    output.outcome(&info, &rolled_back(&target.to_string(), &before, &info))?;
    Ok(())
}

fn rolled_back(target: &str, before: &VolumeInfo, after: &VolumeInfo) -> String {
    let mut sentence = format!("rolled back to {target}");
    if before.size_bytes != after.size_bytes {
        let bytes = |bytes: u64| format!("{} ({bytes} bytes)", rounded(bytes));
        sentence += &format!(
            ", and with it the size from {} to {}: clients see that when they next connect",
            bytes(before.size_bytes),
            bytes(after.size_bytes)
        );
    }
    if after.connection_count > 0 {
        sentence += &format!(
            "; it has {}, whose clients read the snapshot from now on, whatever they have cached: \
             detach them, and what was mounted, before you use it",
            counted(after.connection_count, "connection")
        );
    }
    sentence
}

/// Also `flagstone snapshot clone`.
pub(super) fn clone(
    client: &Client,
    source: SourceRef,
    new_name: String,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let path = format!("/v1/volumes/{}/clone", source.volume);
    let request = CloneRequest {
        new_name,
        snapshot: source.snapshot,
    };
    let info: VolumeInfo = client.send("POST", &path, &request)?;
    outcome(output, &info, "cloned as")
}

fn outcome(output: &mut Output<'_>, info: &VolumeInfo, done: &str) -> anyhow::Result<()> {
    let size = rounded(info.size_bytes);
    let sentence = format!(
        "{done} volume {} ({size}) at {}",
        info.name, info.export_url
    );
    output.outcome(info, &sentence)?;
    Ok(())
}

fn list(client: &Client, prefix: Option<&str>, output: &mut Output<'_>) -> anyhow::Result<()> {
    let wanted = prefix.map(|prefix| ("prefix", prefix));
    let all: VolumePage = listing::all(client, "/v1/volumes", wanted)?;
    if output.is_json() {
        output.json(&all)?;
        return Ok(());
    }
    let rows = all.items.into_iter().map(|volume| {
        vec![
            volume.name,
            rounded(volume.size_bytes),
            rounded(volume.mapped_bytes),
            rounded(volume.reserved_bytes),
            volume.snapshot_count.to_string(),
            core_of(volume.core, volume.stripes),
            volume.device,
            utc(volume.created_ns),
            volume.origin.unwrap_or_else(|| "-".to_string()),
        ]
    });
    const HEADINGS: [&str; 9] = [
        "NAME",
        "SIZE",
        "MAPPED",
        "RESERVED",
        "SNAPSHOTS",
        "CORE",
        "DEVICE",
        "CREATED (UTC)",
        "ORIGIN",
    ];
    output.table(&HEADINGS, &[1, 2, 3, 4, 5], rows)?;
    Ok(())
}

/// A volume's core; of a striped one that of the first member, and how many others there are.
fn core_of(core: u32, stripes: Option<u32>) -> String {
    match stripes {
        Some(stripes) if stripes > 1 => format!("{core}+{}", stripes - 1),
        _ => core.to_string(),
    }
}

/// How a volume is striped: over how many, in what units, and where each is; or that it can't be served.
fn striped(stripe: &StripeInfo) -> String {
    if stripe.closed {
        return "not whole, and closed: the node's log says what is missing".to_owned();
    }
    let members: Vec<String> = stripe
        .members
        .iter()
        .map(|member| format!("{}/{}", member.core, member.journal))
        .collect();
    format!(
        "{} in units of {}; core/journal {}",
        stripe.members.len(),
        rounded(stripe.unit_bytes),
        members.join(" ")
    )
}

fn show(info: &VolumeInfo, output: &mut Output<'_>) -> anyhow::Result<()> {
    if output.is_json() {
        output.json(info)?;
        return Ok(());
    }
    let bytes = |bytes: u64| format!("{} ({bytes} bytes)", rounded(bytes));
    let reserve = match info.reserve {
        Reservation::None => "none".to_string(),
        Reservation::Full => format!("full, {}", bytes(info.reserved_bytes)),
        Reservation::Bytes(_) => bytes(info.reserved_bytes),
    };
    let promised = match &info.slo_warning {
        Some(warning) => format!("{}; {warning}", info.slo.promise),
        None => info.slo.promise.to_string(),
    };
    let mut rows = vec![
        ("name", info.name.clone()),
        ("export", info.export_url.clone()),
        ("size", bytes(info.size_bytes)),
        ("mapped", bytes(info.mapped_bytes)),
    ];
    if let Some(exclusive_bytes) = info.exclusive_bytes {
        rows.push(("exclusive", bytes(exclusive_bytes)));
    }
    rows.extend([
        ("reserved", reserve),
        ("promised", promised),
        ("limit", info.slo.limit.to_string()),
        ("restricted", info.restrictions.to_string()),
        ("snapshots", info.snapshot_count.to_string()),
        ("schedule", schedule::shown(info)),
        ("connections", info.connection_count.to_string()),
    ]);
    if let Some(moving) = &info.moving {
        rows.push(("moving", moves::progress(moving)));
    }
    if info.receiving {
        let sentence =
            "a stream, which `snapshot receive` brings; clients are refused until it has ended";
        rows.push(("receiving", sentence.to_owned()));
    }
    if let Some(fork) = &info.fork {
        rows.push(("fork", moves::fork(fork)));
    }
    rows.extend([
        (
            "origin",
            info.origin.clone().unwrap_or_else(|| "-".to_string()),
        ),
        ("created", format!("{} UTC", utc(info.created_ns))),
        ("device", info.device.clone()),
        ("core", info.core.to_string()),
        ("journal", info.journal.to_string()),
    ]);
    if let Some(stripe) = &info.stripe {
        rows.push(("stripes", striped(stripe)));
        rows.extend(
            stripe
                .warning
                .iter()
                .map(|warning| ("warning", warning.clone())),
        );
    }
    rows.extend([
        ("id", info.id.clone()),
        ("lsn", info.lsn.to_string()),
        ("epoch", info.epoch.to_string()),
    ]);
    output.card(&rows)?;
    Ok(())
}
