//! NFS-Ganesha with its VFS back end on a folder of the machine's own filesystem.
//!
//! It registers with a portmapper and ends if there is none. It gets one that says yes to everything, on a
//! socket that it alone sees: a mount namespace of its own hides `/run`, so that nothing else on the machine
//! hears of it, and no port below 1024 is taken. That takes root, as does its way of opening files.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, thread};

use anyhow::{Context, Result, ensure};

use crate::daemon::{Daemon, free_port};
use crate::repo;

/// A running server.
pub(super) struct Ganesha {
    pub(super) daemon: Daemon,
    pub(super) port: u16,
    pub(super) mount_port: u16,
    /// The folder that it exports, and by which name.
    pub(super) folder: PathBuf,
}

const PROGRAM: &str = "ganesha.nfsd";
const EXPORT_ID: u32 = 1;
/// No call to a portmapper comes near.
const CALL_BYTES_MAX: usize = 4096;

/// What it calls itself.
pub(super) fn version() -> String {
    let mut command = Command::new(PROGRAM);
    command.arg("-v");
    let text = repo::output(command).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Starts it on an empty folder below `dir`.
pub(super) fn start(dir: &Path) -> Result<Ganesha> {
    ensure!(
        repo::has_program(PROGRAM),
        "{PROGRAM} is missing: apt install nfs-ganesha nfs-ganesha-vfs, or measure with --no-peers"
    );
    let home = dir.join("ganesha");
    let folder = home.join("export");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let (port, mount_port) = (free_port()?, free_port()?);
    let settings = home.join("ganesha.conf");
    fs::write(&settings, configuration(&folder, port, mount_port))
        .with_context(|| format!("writing {}", settings.display()))?;
    let socket = home.join("portmapper");
    serve_portmapper(&socket)?;

    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]);
    // Arguments, not text put together: a folder's name may hold anything.
    command.arg(
        "mount -t tmpfs none /run && ln -s \"$1\" /run/rpcbind.sock && \
         exec \"$2\" -F -L \"$3\" -N EVENT -f \"$4\" -p \"$5\"",
    );
    command.arg("sh").arg(&socket).arg(PROGRAM);
    command.args([home.join("ganesha.log"), settings, home.join("pid")]);
    let mut daemon = Daemon::start("ganesha", command, &home.join("errors.log"))?;
    for each in [port, mount_port] {
        daemon.wait_for_port(each).with_context(|| {
            format!(
                "starting NFS-Ganesha, which takes root (its log is {})",
                home.join("ganesha.log").display()
            )
        })?;
    }
    Ok(Ganesha {
        daemon,
        port,
        mount_port,
        folder,
    })
}

/// Version 3 over TCP on loopback, nothing else; all that is not named is as it comes.
fn configuration(folder: &Path, port: u16, mount_port: u16) -> String {
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {port}; MNT_Port = {mount_port}; Bind_addr = 127.0.0.1; \
         Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}\n\
         EXPORT {{ Export_Id = {EXPORT_ID}; Path = \"{path}\"; Pseudo = /bench; Protocols = 3; \
         Transports = TCP; Access_Type = RW; Squash = None; SecType = sys; FSAL {{ Name = VFS; }} }}\n",
        path = folder.display()
    )
}

/// Says yes to every call, for as long as this process lives.
fn serve_portmapper(socket: &Path) -> Result<()> {
    // One that a run before left behind.
    let _ = fs::remove_file(socket);
    let listener =
        UnixListener::bind(socket).with_context(|| format!("listening at {}", socket.display()))?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || answer_all(stream));
        }
    });
    Ok(())
}

fn answer_all(mut stream: UnixStream) -> Option<()> {
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).ok()?;
        let len = (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize;
        if !(4..=CALL_BYTES_MAX).contains(&len) {
            return None;
        }
        let mut call = vec![0; len];
        stream.read_exact(&mut call).ok()?;
        stream.write_all(&yes(call.first_chunk()?)).ok()?;
    }
}

/// The answer to call `number`: accepted, done, true. [rfc5531 9]
fn yes(number: &[u8; 4]) -> Vec<u8> {
    let words = [
        0x8000_0000 | 28,
        u32::from_be_bytes(*number),
        1,
        0,
        0,
        0,
        0,
        1,
    ];
    words
        .iter()
        .flat_map(|word: &u32| word.to_be_bytes())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portmapper_answers_each_call_by_its_number() {
        let (mut near, far) = UnixStream::pair().expect("a pair of sockets");
        let server = thread::spawn(move || answer_all(far));
        for number in [7_u32, 8] {
            let call = [0x8000_0000 | 4, number].map(u32::to_be_bytes).concat();
            near.write_all(&call).expect("sends");
            let mut answer = [0; 32];
            near.read_exact(&mut answer).expect("is answered");
            assert_eq!(answer[4..8], number.to_be_bytes());
            assert_eq!(answer[28..], [0, 0, 0, 1]);
        }
        drop(near);
        assert!(server.join().expect("ends").is_none());
    }
}
