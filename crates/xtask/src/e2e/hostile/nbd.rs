//! Clients of volumes.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::load::Random;
use super::super::nbd::{self, Connection};
use super::super::scene::Scene;
use super::Usage;
use crate::daemon::Node;

/// What hundreds of hostile connections may cost in memory, together.
const MEMORY_BYTES_MAX: u64 = 256 << 20;
const VOLUME_BYTES: u64 = 256 << 20;
/// How long the node has to close a connection that broke the protocol.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// An attack: what it is, and what it leaves open on purpose.
type Attack = (&'static str, fn(u16, &mut Random) -> Result<Vec<TcpStream>>);

const ATTACKS: [Attack; 10] = [
    ("hundreds that connect and hang up", hang_up),
    ("hundreds that connect and say nothing", say_nothing),
    ("random bytes instead of an option", random_options),
    ("an option of four gigabytes", huge_option),
    ("thousands of unknown options", endless_options),
    ("a handshake byte by byte, never finished", slow_handshake),
    ("requests with a wrong magic or command", broken_requests),
    (
        "requests beyond the end and of absurd lengths",
        absurd_requests,
    ),
    ("writes whose payload never comes", starved_writes),
    (
        "thousands of reads whose answers nobody takes",
        unread_answers,
    ),
];

pub(in crate::e2e) fn run(scene: &Scene, seed: u64) -> Result<()> {
    let mut node = scene.node("4G", 1)?;
    node.run(&[
        "volume",
        "create",
        "good",
        "--size",
        &VOLUME_BYTES.to_string(),
    ])?;
    node.run(&[
        "volume",
        "create",
        "bad",
        "--size",
        &VOLUME_BYTES.to_string(),
    ])?;
    let mut random = Random::new(seed);
    // One round of ordinary use first, so that caches have their size.
    fio_verify(scene, &node)?.wait_checked()?;
    let usage = Usage::of(&node)?;

    for (what, attack) in ATTACKS {
        let good = fio_verify(scene, &node)?;
        let held = attack(node.nbd_port, &mut random).with_context(|| what.to_owned())?;
        good.wait_checked()
            .with_context(|| format!("the ordinary client, during: {what}"))?;
        let grown = usage.check(&mut node, MEMORY_BYTES_MAX);
        let grown = grown.with_context(|| format!("after: {what}"))?;
        println!(
            "{what}: {} held open, memory {} MiB more",
            held.len(),
            grown >> 20
        );
        drop(held);
    }
    usage.wait_for_files()?;
    node.stop()?;
    node.verify().map(|_| ())
}

struct Fio(Child);

impl Fio {
    fn wait_checked(self) -> Result<()> {
        let output = self.0.wait_with_output().context("waiting for fio")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "fio ended with {}: {errors}",
            output.status
        );
        Ok(())
    }
}

/// Writes, reads back and checks for a few seconds.
fn fio_verify(scene: &Scene, node: &Node) -> Result<Fio> {
    let mut command = Command::new("fio");
    command
        .current_dir(&scene.dir)
        .args([
            "--name=good",
            "--ioengine=nbd",
            "--iodepth=8",
            "--rw=randwrite",
            "--bs=16k",
        ])
        .args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--fsync=64",
            "--io_size=64M",
        ])
        .args([
            format!("--uri={}", node.uri("good")),
            format!("--size={VOLUME_BYTES}"),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    Ok(Fio(command.spawn().context("starting fio")?))
}

fn hang_up(port: u16, _: &mut Random) -> Result<Vec<TcpStream>> {
    for _ in 0..300 {
        drop(nbd::greet(port)?);
    }
    for _ in 0..100 {
        // In the middle of the transmission phase.
        drop(Connection::open(port, "bad")?);
    }
    Ok(Vec::new())
}

fn say_nothing(port: u16, _: &mut Random) -> Result<Vec<TcpStream>> {
    (0..200).map(|_| nbd::greet(port)).collect()
}

fn random_options(port: u16, random: &mut Random) -> Result<Vec<TcpStream>> {
    for _ in 0..50 {
        let mut stream = nbd::greet(port)?;
        let noise: Vec<u8> = (0..512).flat_map(|_| random.next().to_le_bytes()).collect();
        // The node may close while we are still sending.
        let _ = stream
            .write_all(&nbd::client_flags())
            .and_then(|()| stream.write_all(&noise));
        ensure!(
            nbd::is_closed(&mut stream, CLOSE_LIMIT),
            "noise didn't end the connection"
        );
    }
    Ok(Vec::new())
}

fn huge_option(port: u16, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut held = Vec::new();
    for code in [1, 3, 6, 7, 10, 99] {
        let mut stream = nbd::greet(port)?;
        stream
            .write_all(&nbd::client_flags())
            .context("sending flags")?;
        let _ = stream.write_all(&nbd::option(code, u32::MAX, &[b'x'; 8192]));
        held.push(stream);
    }
    Ok(held)
}

fn endless_options(port: u16, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut stream = nbd::greet(port)?;
    stream
        .write_all(&nbd::client_flags())
        .context("sending flags")?;
    stream
        .set_write_timeout(Some(Duration::from_secs(1)))
        .context("setting a time limit")?;
    for code in 0..5_000 {
        // Nobody reads the refusals, so the node may well stop reading, or hang up.
        if stream
            .write_all(&nbd::option(0x4000_0000 + code, 4, b"what"))
            .is_err()
        {
            break;
        }
    }
    Ok(vec![stream])
}

fn slow_handshake(port: u16, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut held = Vec::new();
    for stop in [1, 3, 9, 17, 20, 25] {
        let mut stream = nbd::greet(port)?;
        let all = [nbd::client_flags().to_vec(), nbd::go("bad")].concat();
        for byte in &all[..stop] {
            stream.write_all(&[*byte]).context("sending one byte")?;
        }
        held.push(stream);
    }
    Ok(held)
}

fn broken_requests(port: u16, random: &mut Random) -> Result<Vec<TcpStream>> {
    for round in 0..20 {
        let mut stream = Connection::open(port, "bad")?.into_stream();
        let mut bytes = nbd::request(0xffff, 60_000 + round, 1, 0, 4096);
        if round % 2 == 0 {
            bytes[0] ^= 0xff;
        }
        bytes.extend((0..64).flat_map(|_| random.next().to_le_bytes()));
        let _ = stream.write_all(&bytes);
        let limit = if round % 2 == 0 {
            CLOSE_LIMIT
        } else {
            Duration::from_millis(1)
        };
        let closed = nbd::is_closed(&mut stream, limit);
        ensure!(
            closed || round % 2 != 0,
            "a wrong magic didn't end the connection"
        );
    }
    Ok(Vec::new())
}

fn absurd_requests(port: u16, _: &mut Random) -> Result<Vec<TcpStream>> {
    for (offset, length) in [
        (VOLUME_BYTES, 4096),
        (VOLUME_BYTES - 512, 4096),
        (u64::MAX - 100, 4096),
        (u64::MAX, u32::MAX),
        (0, u32::MAX),
        (0, 0),
    ] {
        for command in [0, 1, 4, 5, 6, 7] {
            let mut stream = Connection::open(port, "bad")?.into_stream();
            let _ = stream.write_all(&nbd::request(0, command, 7, offset, length));
            let _ = nbd::is_closed(&mut stream, Duration::from_millis(1));
        }
    }
    Ok(Vec::new())
}

fn starved_writes(port: u16, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut held = Vec::new();
    for _ in 0..100 {
        let mut stream = Connection::open(port, "bad")?.into_stream();
        stream
            .write_all(&nbd::request(0, 1, 7, 0, 1 << 20))
            .context("announcing a write")?;
        stream
            .write_all(&[7; 1000])
            .context("sending a little of it")?;
        held.push(stream);
    }
    Ok(held)
}

fn unread_answers(port: u16, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut held = Vec::new();
    for _ in 0..20 {
        let mut stream = Connection::open(port, "bad")?.into_stream();
        stream
            .set_write_timeout(Some(Duration::from_millis(200)))
            .context("setting a limit")?;
        let read = nbd::request(0, 0, 7, 0, 1 << 20);
        // The node must stop taking requests long before this has gone through.
        for _ in 0..5_000 {
            if stream.write_all(&read).is_err() {
                break;
            }
        }
        held.push(stream);
    }
    Ok(held)
}
