//! `flagstone volume move`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::progress::Bar;
use super::target::parse_api_address;
use crate::api::requests::MoveLimitRequest;
use crate::api_key;
use crate::client::{Client, ClientError, MOVES_TO};
use crate::exit::{Exit, Failure};
use crate::name::parse_name;
use crate::node::{
    Arrival, ArrivalSpec, ForceMoveSpec, ForcedMove, ForcedOutcome, Fork, ForkState, MoveInfo,
    MovePlace, MoveSpec, MoveState, MoveWait, MoveWaitsFor, MoveWord, NodeErrorKind, VolumeInfo,
};
use crate::output::{Output, duration, utc};
use crate::size::{Size, counted, rounded};
use crate::wait;

/// How often it is looked how far a move is.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args, Debug)]
#[command(after_help = "\
To another device or core of this node (--device, --core, or both) it goes with its snapshots, tokens, SLO and
reservation. First its snapshots are copied, then what it is now, then, round after round, what was written
meanwhile, while clients go on. At the end their changes wait for a moment (the command says for how long). NBD
clients notice nothing else, those of the native protocol are sent to the new address. Meanwhile its size,
snapshots, name and settings can't be changed. A device that has no room for it is refused at once (exit code 5);
if it fills up meanwhile, the move ends with the same code and the volume stays where it is.

The move is the node's: ending this command doesn't end it. --status says how far it is: copying (which snapshot,
which round, how long that will take about), switching, waiting, or what came of it; `volume show` says so too.
--limit without a place changes how fast a move that runs copies, at once. --cancel ends it, for good: what
was copied is deleted. If the node is stopped or killed before the end, the volume is where it was, and the next
start goes on with the move about where it was cut off. If the device that it goes to isn't there at that start,
the move waits for it: start the node with it, or say --cancel. A command that waits for a move which another one
ends has exit code 11.

With --to it goes to another node, with its snapshots and tokens. Whoever has the keys of both nodes' APIs may
do that. Clients of the native protocol follow; what those of NBD ask that are attached is passed on. If either
node is stopped or dies before the end, or they don't reach each other, the move waits (--status says since when)
and goes on when both are back, for a day at the other node; --cancel ends it, some seconds later (--status says
when), also at the other node, for a volume that is on its way there. If either node dies at the end, the volume
is held: served by neither until the two can talk, and never at both (--status says so; exit code 7).

If one of them never comes back, say so. --stay --force, where the volume was: it goes on there. What the other
node has is a fork then; delete it there if that node comes back after all. Whoever had the volume open opens it
again. --settled --force, where it has come: it may be deleted and moved on, though the node that it came from
doesn't know that it went. If that one comes back it learns so, and deletes what it has.

Examples:
  flagstone volume move db --device fast
  flagstone volume move db --core 1 --limit 100M      copy no more than 100 MiB a second
  flagstone volume move db --device fast --no-wait    return at once, and look later:
  flagstone volume move db --status
  flagstone volume move db --limit 400M               of the move that runs, from now on; or none
  flagstone volume move db --cancel
  flagstone volume move db --to storage-2:9443 --to-api-key-file storage-2.key
  flagstone volume move db --stay --force             the node that it was moving to never comes back")]
pub(super) struct MoveArgs {
    /// The volume to move; in use or not
    #[arg(value_parser = parse_name)]
    name: String,
    /// The device to move it to, by name or id [default: the one it is on; of another node the first]
    #[arg(long)]
    device: Option<String>,
    /// The core to move it to [default: the one it is on, if that can have it]
    #[arg(long, value_name = "N")]
    core: Option<u32>,
    /// Move it to the node whose API is at this address; its native protocol has another one, which is found by that
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_api_address)]
    to: Option<String>,
    /// The file of that API's key, a copy of api.key in that node's folder
    #[arg(long, value_name = "FILE", requires = "to")]
    to_api_key_file: Option<PathBuf>,
    /// Bytes a second to be copied at most, or none. Alone: of the move that runs, from now on
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    limit: Option<LimitArg>,
    /// Do it although the device can't keep what the volume is promised beside its other promises
    #[arg(long)]
    oversubscribe: bool,
    /// Return at once; --status says how far it is
    #[arg(long)]
    no_wait: bool,
    /// Say how far its last move is, or what came of it
    #[arg(long, conflicts_with_all = ["device", "core", "to", "limit", "oversubscribe", "no_wait", "cancel"])]
    status: bool,
    /// End its move, also one that waits for a device or a node, or of a volume on its way here: it stays where it is
    #[arg(long, conflicts_with_all = ["device", "core", "to", "limit", "oversubscribe", "no_wait"])]
    cancel: bool,
    /// It goes on here, though the node that it was moving to doesn't say whether it has come (with --force)
    #[arg(long, conflicts_with_all = ["device", "core", "to", "limit", "oversubscribe", "no_wait", "status", "cancel"])]
    stay: bool,
    /// It may be deleted or moved on here, though the node that it came from has not confirmed (with --force)
    #[arg(long, conflicts_with_all = ["device", "core", "to", "limit", "oversubscribe", "no_wait", "status", "cancel", "stay"])]
    settled: bool,
    /// Say it in the place of the other node, which is not to come back: with --stay or --settled
    #[arg(long, conflicts_with_all = ["device", "core", "to", "limit", "oversubscribe", "no_wait", "status", "cancel"])]
    force: bool,
}

/// A limit, or that there is to be none.
#[derive(Clone, Copy, Debug)]
struct LimitArg(Option<Size>);

fn parse_limit(text: &str) -> Result<LimitArg, String> {
    match text {
        "none" => Ok(LimitArg(None)),
        text => match text.parse() {
            Ok(size) => Ok(LimitArg(Some(size))),
            Err(error) => Err(format!("expected bytes a second, or none; {error}")),
        },
    }
}

impl MoveArgs {
    fn limit_bytes(&self) -> Option<u64> {
        let LimitArg(limit) = self.limit?;
        limit.map(|limit| limit.0)
    }

    /// Whether it is said where to.
    fn names_place(&self) -> bool {
        self.device.is_some() || self.core.is_some() || self.to.is_some()
    }
}

pub(super) fn run(client: &Client, args: &MoveArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    let word = match (args.stay, args.settled) {
        (true, _) => Some(MoveWord::Stay),
        (_, true) => Some(MoveWord::Settled),
        _ => None,
    };
    match (word, args.force) {
        (Some(word), true) => return force(client, &args.name, word, output),
        (None, false) => {}
        (word, _) => return Err(half_said(&args.name, word)),
    }
    let path = format!("/v1/volumes/{}/move", args.name);
    if args.limit.is_some() && !args.names_place() && !args.oversubscribe {
        let limit_bytes = args.limit_bytes();
        let request = MoveLimitRequest { limit_bytes };
        let info: MoveInfo = client.send("PUT", &format!("{path}/limit"), &request)?;
        output.outcome(&info, &sentence(&info))?;
        return Ok(());
    }
    let mut info: MoveInfo = match (args.status, args.cancel) {
        (true, _) => client.get(&path)?,
        (_, true) => {
            let info: MoveInfo = client.delete(&path)?;
            watch(client, &path, info)?
        }
        _ => begin(client, args, &path)?,
    };
    if !(args.status || args.cancel || args.no_wait) {
        info = watch(client, &path, info)?;
    }
    let exit = match (info.state, info.error_kind) {
        (MoveState::Cancelled, _) => Exit::Cancelled,
        (
            _,
            Some(kind @ (NodeErrorKind::NoSpace | NodeErrorKind::Corrupt | NodeErrorKind::Fenced)),
        ) => kind.exit(),
        _ => Exit::Internal,
    };
    output.outcome(&info, &sentence(&info))?;
    // To look at one, or to end it, is done whatever came of the move.
    let waited = !(args.status || args.cancel || args.no_wait);
    match info.state {
        // Nobody is served: whoever waits, or wants it ended, has to know that at once.
        MoveState::Held if waited || args.cancel => Err(Failure {
            exit: Exit::NotReachable,
            message: format!(
                "moving volume '{}': it is held, and served by nobody: {}",
                info.volume,
                why(&info)
            ),
            next_step: format!(
                "bring {} back: then the volume is where that says, and `--status` says what came of it. If it never comes back: `flagstone volume move {} \
                 --stay --force`",
                node(&info),
                info.volume
            ),
        }
        .into()),
        MoveState::Unknown if waited => Err(Failure {
            exit: Exit::Internal,
            message: format!("moving volume '{}': {}", info.volume, why(&info)),
            next_step: "see that the other node runs, and restart this one: it then asks whose the volume is".to_owned(),
        }
        .into()),
        MoveState::Failed | MoveState::Cancelled if waited => Err(Failure {
            exit,
            message: format!("moving volume '{}': {}", info.volume, why(&info)),
            next_step: match exit {
                Exit::Cancelled => "its clients go on where it is; move it again if that is still wanted",
                Exit::NoSpace => "its clients go on where it is; make room on that device, or move it to one that has room (`flagstone device list`)",
                _ => "its clients go on where it is; move it again once that is mended",
            }
            .to_owned(),
        }
        .into()),
        _ => Ok(()),
    }
}

/// Only one of what has to be said together.
fn half_said(name: &str, word: Option<MoveWord>) -> anyhow::Error {
    let (message, next_step) = match word {
        None => (
            "--force forces nothing by itself",
            "say what is so although another node can't be asked: `--stay --force` where a volume was, `--settled --force` where it has come. To begin \
             a move nothing has to be forced",
        ),
        Some(MoveWord::Stay) => (
            "--stay is said in the place of the other node, which may have the volume",
            "bring that node back: then the volume is where it says, and nothing is lost. If it never comes back, say `--stay --force`. To end a move \
             that is copying: `--cancel`",
        ),
        Some(MoveWord::Settled) => (
            "--settled is said in the place of the node that it came from, which may not know that it has gone",
            "bring that node back: it confirms by itself. If it never comes back, say `--settled --force`",
        ),
    };
    Failure {
        exit: Exit::Usage,
        message: format!("moving volume '{name}': {message}"),
        next_step: next_step.to_owned(),
    }
    .into()
}

/// Says something in the place of another node.
fn force(
    client: &Client,
    name: &str,
    word: MoveWord,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let path = format!("/v1/volumes/{name}/move/force");
    let forced: ForcedMove = client.send("POST", &path, &ForceMoveSpec { word })?;
    output.outcome(&forced, &forced_sentence(&forced))?;
    Ok(())
}

fn forced_sentence(forced: &ForcedMove) -> String {
    let volume = &forced.volume;
    let node = forced.node.as_deref().unwrap_or("the other node");
    match forced.outcome {
        ForcedOutcome::Forced => format!(
            "volume {volume}: goes on here, in epoch {}; whoever had it open opens it again. {node} may have it, too: if that node comes back, \
             delete it there",
            forced.epoch.unwrap_or(0)
        ),
        ForcedOutcome::Stayed => format!(
            "volume {volume}: goes on here; the other node answers now, and doesn't have it: nothing was forced"
        ),
        ForcedOutcome::Went => format!(
            "volume {volume}: went to {node}, which answers now, and has it: nothing was forced"
        ),
        ForcedOutcome::Settled => format!(
            "volume {volume}: may be deleted and moved; if the node that it came from comes back, it deletes what it has"
        ),
    }
}

/// What is known of the other copy of a volume.
pub(super) fn fork(fork: &Fork) -> String {
    let node = fork.node.as_deref().unwrap_or("the other node");
    match fork.state {
        ForkState::Unknown => format!(
            "went on by force; whether {node} has it, too, isn't known until that node answers"
        ),
        ForkState::There => format!("went on by force, and {node} has it, too: delete it there"),
        ForkState::Here => {
            "this is a copy; the volume goes on at the node that it came from: delete it here"
                .to_owned()
        }
    }
}

/// Has a move begin. For another node a place is asked for there first, which is given back if the one that has the volume refuses it.
fn begin(client: &Client, args: &MoveArgs, path: &str) -> anyhow::Result<MoveInfo> {
    let (spec, there) = spec(client, args)?;
    let begun = client.send("POST", path, &spec);
    if let (Err(error), Some(there), Some(arrival)) = (&begun, &there, &spec.arrival)
        && is_refused(error)
    {
        give_back(there, arrival);
    }
    Ok(begun?)
}

/// Whether it is sure that nothing has begun and nothing will: not where a node didn't answer in time.
fn is_refused(error: &ClientError) -> bool {
    let is_sure = |kind| !matches!(kind, NodeErrorKind::Unavailable | NodeErrorKind::Internal);
    matches!(error, ClientError::Problem(problem) if is_sure(problem.kind))
}

/// The other node needs to keep no place. Otherwise that ends there by itself, some minutes later.
fn give_back(there: &Client, arrival: &Arrival) {
    let _ = there.call("DELETE", &format!("/v1/arrivals/{}", arrival.number));
}

/// What is asked of the node that has it, and the other node, if it goes to one.
fn spec(client: &Client, args: &MoveArgs) -> anyhow::Result<(MoveSpec, Option<Client>)> {
    let within = MoveSpec {
        device: args.device.clone(),
        core: args.core,
        limit_bytes: args.limit_bytes(),
        oversubscribe: args.oversubscribe,
        arrival: None,
    };
    let Some(to) = &args.to else {
        return Ok((within, None));
    };
    let volume: VolumeInfo = client.get(&format!("/v1/volumes/{}/departure", args.name))?;
    let key = args.to_api_key_file.as_deref().map(api_key::read_given);
    let there = Client::new(to, MOVES_TO).with_key(key.transpose()?);
    let wanted = ArrivalSpec {
        volume: volume.name.clone(),
        id: volume.id.clone(),
        device: args.device.clone(),
        core: args.core,
        slo: volume.slo,
        oversubscribe: args.oversubscribe,
    };
    let promised = there.send("POST", "/v1/arrivals", &wanted);
    let mut arrival: Arrival = promised.map_err(|error| with_its_key(error, to))?;
    arrival.address =
        reachable(&arrival.address, to).inspect_err(|_| give_back(&there, &arrival))?;
    let spec = MoveSpec {
        device: None,
        core: None,
        oversubscribe: false,
        arrival: Some(arrival),
        ..within
    };
    Ok((spec, Some(there)))
}

/// Of two keys the one of the other node, if that is what is wrong.
fn with_its_key(error: ClientError, to: &str) -> ClientError {
    match error {
        ClientError::Problem(mut problem) if problem.kind == NodeErrorKind::Unauthenticated => {
            problem.next_step = format!(
                "--to-api-key-file names the key of the node at {to}: a copy of the file api.key in that node's folder"
            );
            ClientError::Problem(problem)
        }
        error => error,
    }
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

/// Waits for the end of a move, or until nobody is served.
fn watch(client: &Client, path: &str, mut info: MoveInfo) -> anyhow::Result<MoveInfo> {
    let mut bar = Bar::new("move");
    // One that waits for another node goes on by itself, or ends.
    loop {
        let waits = info.state == MoveState::Waiting && for_node(&info).is_some();
        if info.state != MoveState::Running && !waits {
            return Ok(info);
        }
        // Before it is known how much there is to copy, a bar would say that all is done.
        if waits || info.expected_bytes > 0 {
            bar.name(&match (info.phase, waits) {
                (_, true) => format!("move, waiting for {}", node(&info)),
                (Some(phase), _) => format!("move, {phase}{}", slowed(&info)),
                _ => "move".to_owned(),
            });
            bar.wait(waits);
            bar.show(info.copied_bytes, info.expected_bytes);
        }
        wait::pause(LOOK);
        info = client.get(path)?;
    }
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

/// That it waits for another node, if it does.
fn for_node(info: &MoveInfo) -> Option<MoveWait> {
    info.waits.filter(|wait| wait.what == MoveWaitsFor::Node)
}

/// The node that it goes to.
fn node(info: &MoveInfo) -> String {
    match &info.to.node {
        Some(node) => format!("node {node}"),
        None => "the other node".to_owned(),
    }
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
    if let (Some(wait), Some(error)) = (for_node(info), &info.error) {
        let tried = counted(wait.attempts.into(), "attempt");
        let since = utc(wait.since_ns);
        let what = match info.state {
            MoveState::Held => "held, served by nobody".to_owned(),
            _ => format!("waiting for {}", node(info)),
        };
        return format!("{what} (since {since}, {tried}): {error}");
    }
    match (&info.error, info.state) {
        // Which core that device will be on isn't known.
        (Some(error), MoveState::Waiting) => return format!("waiting: {error}"),
        (Some(error), _) => return format!("to {}: {error}", place(&info.to)),
        (None, _) => {}
    }
    // Behind a start, before it was asked in vain.
    if info.to.device.is_empty() {
        return format!(
            "to {}, which is being asked whether it has come",
            node(info)
        );
    }
    let (to, copied) = (place(&info.to), rounded(info.copied_bytes));
    let copied = match info.copied_bytes < info.expected_bytes {
        true => format!("{copied} of about {}", rounded(info.expected_bytes)),
        // Once all there was is copied, or what is written meanwhile is much.
        false => copied,
    };
    let limit = match info.limit_bytes {
        Some(limit) => format!(", at most {} a second", rounded(limit)),
        None => String::new(),
    };
    let left = match info.left_s {
        Some(left_s) => format!(", about {} left", duration(left_s)),
        None => String::new(),
    };
    let phase = match info.phase {
        Some(phase) => phase.to_string(),
        None => "beginning".to_owned(),
    };
    format!(
        "to {to}, {copied} copied{limit}{left}; {phase}{}",
        slowed(info)
    )
}

/// How quickly it may be written, if that is less than usual.
fn slowed(info: &MoveInfo) -> String {
    match info.slowed_to_bytes {
        Some(bytes) => format!(", its writes slowed to {}/s", rounded(bytes)),
        None => String::new(),
    }
}

fn sentence(info: &MoveInfo) -> String {
    let (volume, copied) = (&info.volume, rounded(info.copied_bytes));
    let (from, to) = (place(&info.from), place(&info.to));
    match info.state {
        MoveState::Running if info.to.device.is_empty() => {
            format!("volume {volume}: was moving {}", progress(info))
        }
        MoveState::Running => format!("volume {volume}: moving from {from} {}", progress(info)),
        MoveState::Waiting => format!(
            "volume {volume}: stays on {from} for now, its move is {}",
            progress(info)
        ),
        MoveState::Held => format!(
            "volume {volume}: on its way from {from} to {to}, it is {}",
            progress(info)
        ),
        MoveState::Done if info.to.device.is_empty() => format!(
            "volume {volume}: went to {}, as it says itself; nothing else of its move is remembered",
            node(info)
        ),
        MoveState::Done => format!(
            "volume {volume}: moved from {from} to {to}, {copied} copied; its changes waited {:.1} ms at the end",
            info.held_us as f64 / 1000.0
        ),
        MoveState::Unknown => format!(
            "volume {volume}: whether it went from {from} to {to} isn't known: {}",
            why(info)
        ),
        // At the node that it was coming to: where it is there isn't known here.
        MoveState::Cancelled if info.from.node.is_some() => {
            format!(
                "volume {volume}: doesn't come; it stays at the node that it was to come from, which is told so when it asks"
            )
        }
        MoveState::Cancelled | MoveState::Failed => {
            format!("volume {volume}: stays on {from}: {}", why(info))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_that_ended_before_a_start_is_told_by_what_is_known() {
        let place = |node: Option<&str>| MovePlace {
            device: String::new(),
            core: 0,
            node: node.map(str::to_owned),
        };
        let mut info = MoveInfo::that_begins("db", place(None), place(Some("10.0.0.2:4421")), 1);
        assert_eq!(
            sentence(&info),
            "volume db: was moving to node 10.0.0.2:4421, which is being asked whether it has come"
        );
        info.state = MoveState::Done;
        assert_eq!(
            sentence(&info),
            "volume db: went to node 10.0.0.2:4421, as it says itself; nothing else of its move is remembered"
        );
    }
}
