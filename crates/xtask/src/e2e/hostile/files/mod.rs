//! Clients of filesystems: NFS and MOUNT.
//!
//! Each attack holds every answer to what RFC 1813 and RFC 5531 have for it. Meanwhile an ordinary client works in a
//! filesystem of its own, on the same and only core. Afterwards everything that was there is as it was.

mod answers;
mod arguments;
mod calls;
mod files_gone;
mod handles;
mod headers;
mod names;
mod ordinary;
mod streams;
mod trespass;

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Usage;
use crate::daemon::{self, Node, NodeOptions};
use crate::e2e::load::Random;
use crate::e2e::nfs::{Client, Handle, How};
use crate::e2e::rpc::Rpc;
use crate::e2e::scene::Scene;
use crate::repo;
use ordinary::{Experience, Ordinary};

/// Answers that nobody takes may hold 512 MiB of all connections of a core, and a single call of each connection
/// 256 MiB (`docs/protocols/nfs3.md`, "Limits").
const MEMORY_BYTES_MAX: u64 = 800 << 20;
/// The longest that the ordinary client may wait for an answer: others build and test on the machine, too.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Whose address may use what `127.0.0.1` may not.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// A file that is a dvol.
const LARGE_BYTES: usize = 8 << 20;
const CONTENT: &[u8] = b"what was there before";
/// Who owns `/squashed`.
const OWNER: u32 = 4711;

/// An attack: what it is, and what it leaves open on purpose.
type Attack = (
    &'static str,
    fn(&Ground, &mut Random) -> Result<Vec<TcpStream>>,
);

const ATTACKS: [Attack; 20] = [
    (
        "hundreds that connect, and hang up or say nothing",
        streams::nothing,
    ),
    ("random bytes", streams::noise),
    (
        "records of two gigabytes and of endless fragments",
        streams::endless,
    ),
    ("calls in fragments of one byte", streams::crumbs),
    ("calls that break off", streams::starved),
    ("wrong versions, programs, procedures", headers::numbers),
    ("wrong and huge credentials", headers::credentials),
    ("arguments that end early", arguments::truncated),
    ("arguments with a wrong word", arguments::wrong_words),
    ("absurd lengths and offsets", arguments::absurd),
    ("names that are none", names::all),
    ("handles that are forged", handles::forged),
    ("handles of others' filesystems", trespass::exports),
    ("paths and names that lead out", trespass::ways_out),
    ("changes where nothing may be changed", trespass::read_only),
    (
        "root where root isn't believed, and other users",
        trespass::users,
    ),
    ("handles of what was deleted", files_gone::all),
    ("calls that are somebody else's", answers::repeated),
    (
        "hundreds of connections with hundreds of calls",
        answers::crowd,
    ),
    ("answers that nobody takes", answers::unread),
];

/// What attackers find.
struct Ground {
    /// For commands of its operator.
    node: NodeOptions,
    port: u16,
    /// `/open`: both addresses may use it.
    root: Handle,
    file: Handle,
    directory: Handle,
    /// Of `LARGE_BYTES`.
    large: Handle,
    /// `/secret` and a file there: `STRANGER`'s alone.
    secret: Handle,
    secret_file: Handle,
    /// `/fixed` and a file there: nothing can be changed.
    fixed: Handle,
    fixed_file: Handle,
}

impl Ground {
    /// One that says to be root, which `/open` believes.
    fn client(&self) -> Result<Client> {
        Ok(Client::new(Rpc::connect(self.port)?))
    }

    fn stranger(&self) -> Result<Client> {
        Ok(Client::new(Rpc::connect_from(STRANGER, self.port)?))
    }
}

pub(in crate::e2e) fn run(scene: &Scene, seed: u64) -> Result<()> {
    let (mut node, port) = start(scene)?;
    let ground = prepare(&node, port)?;
    // From here on nothing of `/fixed` can be changed. Handles hold.
    node.stop()?;
    write_config(scene, port, true)?;
    node.restart()?;
    let mut random = Random::new(seed);
    // Some ordinary use first, so that caches have their size.
    let (_, quiet) = watched(&ground, &mut random, warm_up)?;
    println!(
        "the ordinary client alone: {} calls, longest wait {:.1} ms",
        quiet.calls,
        milliseconds(quiet.longest)
    );
    let usage = Usage::of(&node)?;
    for (what, attack) in ATTACKS {
        let started = Instant::now();
        let (held, seen) = watched(&ground, &mut random, attack)
            .with_context(|| format!("{what} (seed {seed})"))?;
        let grown = usage.check(&mut node, MEMORY_BYTES_MAX);
        let grown = grown.with_context(|| format!("after: {what}"))?;
        println!(
            "{what}: {:.1} s, {} held open, memory {} MiB more; the ordinary client: {} calls, longest wait {:.1} ms",
            started.elapsed().as_secs_f64(),
            held.len(),
            grown >> 20,
            seen.calls,
            milliseconds(seen.longest)
        );
    }
    usage.wait_for_files()?;
    untouched(&ground)?;
    node.run(&["fs", "check"])
        .context("a filesystem is not whole after the attacks")?;
    node.stop()?;
    node.verify().map(|_| ())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// An attack while the ordinary client works. Returns what it holds open, and what the client has seen.
fn watched(
    ground: &Ground,
    random: &mut Random,
    attack: fn(&Ground, &mut Random) -> Result<Vec<TcpStream>>,
) -> Result<(Vec<TcpStream>, Experience)> {
    let ordinary = Ordinary::start(ground.port, "/good", random.next());
    let held = attack(ground, random);
    let seen = ordinary.finish();
    let (held, seen) = (held?, seen?);
    ensure!(
        seen.longest < WAIT_MAX,
        "the ordinary client has waited for {:?}, expected at most {WAIT_MAX:?}",
        seen.longest
    );
    Ok((held, seen))
}

/// No attack: the large file is read, as it will be again and again.
fn warm_up(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut client = ground.client()?;
    for _ in 0..20 {
        client.read(&ground.large, 0, LARGE_BYTES)?;
    }
    Ok(Vec::new())
}

fn config(scene: &Scene) -> std::path::PathBuf {
    scene.dir.join("node.toml")
}

fn write_config(scene: &Scene, port: u16, is_fixed: bool) -> Result<()> {
    let device = scene.options("", 1).dir.join("device.img");
    let device = device.display().to_string();
    let text = format!(
        r#"
[nfs]
listen = "127.0.0.1:{port}"
portmapper = false
[[export]]
path = "/open"
clients = ["127.0.0.1", "{STRANGER}"]
squash = "none"
[[export]]
path = "/secret"
clients = ["{STRANGER}"]
squash = "none"
[[export]]
path = "/fixed"
read_only = {is_fixed}
squash = "none"
[[export]]
path = "/squashed"
[[device]]
path = {device:?}
"#
    );
    fs::write(config(scene), text).context("writing the configuration")
}

/// A node with one core and its filesystems.
fn start(scene: &Scene) -> Result<(Node, u16)> {
    let mut options = scene.options("4G", 1);
    fs::create_dir_all(&options.dir).context("making the node's folder")?;
    let device = options.dir.join("device.img");
    let mut format = Command::new(&scene.binary);
    format
        .args(["device", "format"])
        .arg(format!("{}:{}", device.display(), options.size));
    repo::output(format)?;
    let port = daemon::free_port()?;
    write_config(scene, port, false)?;
    options.config = Some(config(scene));
    let node = Node::start(options)?;
    for name in ["good", "open", "secret", "fixed"] {
        node.run(&["fs", "create", name, "--owner", "0:0"])?;
    }
    let owner = format!("{OWNER}:{OWNER}");
    node.run(&["fs", "create", "squashed", "--owner", &owner])?;
    Ok((node, port))
}

fn prepare(node: &Node, port: u16) -> Result<Ground> {
    let mut client = Client::new(Rpc::connect(port)?);
    let mut stranger = Client::new(Rpc::connect_from(STRANGER, port)?);
    let root = client.mount("/open")?;
    let large = client.create(&root, "large")?;
    let piece = vec![0xa5; 1 << 20];
    for offset in (0..LARGE_BYTES).step_by(piece.len()) {
        client.write(&large, offset as u64, &piece, How::Unstable)?;
    }
    client.commit(&large)?;
    let (secret, fixed) = (stranger.mount("/secret")?, client.mount("/fixed")?);
    let with_content = |client: &mut Client, directory: &[u8]| -> Result<Handle> {
        let file = client.create(directory, "file")?;
        client.write(&file, 0, CONTENT, How::FileSync)?;
        Ok(file)
    };
    Ok(Ground {
        node: node.options.clone(),
        port,
        file: with_content(&mut client, &root)?,
        directory: client.make_directory(&root, "directory")?,
        large,
        secret_file: with_content(&mut stranger, &secret)?,
        fixed_file: with_content(&mut client, &fixed)?,
        root,
        secret,
        fixed,
    })
}

/// What was there before is there, and nothing else.
fn untouched(ground: &Ground) -> Result<()> {
    let (mut client, mut stranger) = (ground.client()?, ground.stranger()?);
    let names = client.names(&ground.root)?;
    ensure!(
        names == ["directory", "file", "large"],
        "/open has {names:?} after the attacks"
    );
    let names = client.names(&ground.directory)?;
    ensure!(names.is_empty(), "a directory has {names:?}");
    let large = client.read(&ground.large, 0, LARGE_BYTES + 1)?;
    ensure!(
        large.len() == LARGE_BYTES && large.iter().all(|byte| *byte == 0xa5),
        "the large file holds something else"
    );
    let same = |client: &mut Client, directory: &[u8], file: &[u8]| -> Result<()> {
        let found = client.read(file, 0, CONTENT.len() + 1)?;
        ensure!(found == CONTENT, "a file holds something else");
        let names = client.names(directory)?;
        ensure!(
            names.contains(&"file".to_owned()),
            "a file has lost its name"
        );
        Ok(())
    };
    same(&mut client, &ground.root, &ground.file)?;
    same(&mut client, &ground.fixed, &ground.fixed_file)?;
    same(&mut stranger, &ground.secret, &ground.secret_file)?;
    for (client, directory) in [
        (&mut client, &ground.fixed),
        (&mut stranger, &ground.secret),
    ] {
        let names = client.names(directory)?;
        ensure!(names == ["file"], "an export has {names:?}");
    }
    Ok(())
}
