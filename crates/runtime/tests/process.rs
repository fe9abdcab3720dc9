//! What concerns a whole process: a panic ends it, a forbidden io_uring is explained, and nothing
//! needs privileges. Each test runs this program again as a child.

#![allow(unsafe_code, clippy::unwrap_used)]

mod common;

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{TempDir, pattern, run};
use flagstone_platform::{BlockDevice, IoBuf, Listener, Platform, Stream};
use flagstone_runtime::{
    DeviceOptions, Fill, Runtime, RuntimeConfig, StartError, UringDevice, UringListener,
    UringPlatform, UringStream, block_on, create_device_file,
};

const ROLE: &str = "FLAGSTONE_TEST_CHILD";
const NOBODY: u32 = 65_534;
/// Where a filesystem in memory is, that is as small as [`ROOM`].
const FOLDER: &str = "FLAGSTONE_TEST_FOLDER";
const ROOM: &str = "size=1m";

/// This program, to be run as a child that only plays `role`.
fn child(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["the_child", "--exact", "--nocapture"])
        .env(ROLE, role);
    command
}

fn run_child(mut command: Command) -> (Output, String) {
    let output = command.output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output, String::from_utf8(text).unwrap())
}

/// Does nothing unless it is run by one of the others.
#[test]
fn the_child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    match role.as_str() {
        "panic in a task" => run(&common::config(), |platform| async move {
            platform.spawn(async { panic!("the sky is falling") });
            platform.yield_now().await;
            println!("survived");
        }),
        "panic in a message" => {
            let runtime = Runtime::start(&common::config(), |_| |_| ()).unwrap();
            let fall = |_: &UringPlatform| panic!("the sky is falling");
            let answer = runtime.cores()[0].remote().call(fall).unwrap();
            let _ = answer.recv_timeout(std::time::Duration::from_secs(60));
            println!("survived");
        }
        "panic at start" => {
            let fall = |_| |_: UringPlatform| panic!("the sky is falling");
            Runtime::start(&common::config(), fall).unwrap().wait();
            println!("survived");
        }
        "forbidden" => match block_on(&common::config(), |_| async {}) {
            Ok(()) => println!("allowed"),
            Err(StartError::Ring { core: 0, error }) => println!("refused: {error}"),
            Err(error) => println!("another error: {error}"),
        },
        "unprivileged" => unprivileged(),
        "full memory" => full_memory(&PathBuf::from(std::env::var(FOLDER).unwrap())),
        role => panic!("no such role: {role}"),
    }
}

#[test]
fn a_panic_on_a_core_ends_the_process_with_a_reason() {
    for role in ["panic in a task", "panic in a message", "panic at start"] {
        let (output, text) = run_child(child(role));
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGABRT),
            "{role}: {text}"
        );
        assert!(!text.contains("survived"), "{role}: {text}");
        assert!(
            text.contains("(the sky is falling). Aborting"),
            "{role}: {text}"
        );
    }
}

/// Makes io_uring_setup fail with `errno`, as container runtimes do.
fn forbid_io_uring(command: &mut Command, errno: i32) {
    let statement = |code, k| libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let give = (libc::BPF_RET | libc::BPF_K) as u16;
    let setup = libc::SYS_io_uring_setup as u32;
    let filter = [
        // The call's number is the first word of what a filter sees.
        statement(load, 0),
        libc::sock_filter {
            code: equal,
            jt: 0,
            jf: 1,
            k: setup,
        },
        statement(give, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(give, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let mut filter = filter;
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: prctl takes integers here, and a program whose filter lives until it returns.
        let result = unsafe {
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
                -1
            } else {
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
            }
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    // SAFETY: between fork and exec it only makes system calls, and allocates nothing.
    unsafe { command.pre_exec(install) };
}

#[test]
fn a_forbidden_io_uring_is_explained() {
    for (errno, hint) in [(libc::EPERM, "seccomp"), (libc::ENOSYS, "CONFIG_IO_URING")] {
        let mut command = child("forbidden");
        forbid_io_uring(&mut command, errno);
        let (_, text) = run_child(command);
        assert!(
            text.contains("refused: io_uring is not available"),
            "{text}"
        );
        assert!(text.contains(hint), "{text}");
        assert!(
            text.contains("io_uring_setup, io_uring_enter and io_uring_register"),
            "{text}"
        );
    }
}

#[test]
fn nothing_needs_privileges() {
    let dir = TempDir::new();
    fs::set_permissions(dir.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    // A copy, since the original may lie where others have no access. By another program: what this one has open for writing a child that another test
    // forks just now has open, too, and then it can't be run.
    let copy = dir.path("program");
    let mut copying = Command::new("cp");
    copying.arg(std::env::current_exe().unwrap()).arg(&copy);
    assert!(copying.status().unwrap().success());
    let mut command = Command::new(&copy);
    command
        .args(["the_child", "--exact", "--nocapture"])
        .env(ROLE, "unprivileged");
    command
        .env("TMPDIR", dir.path(""))
        .current_dir(dir.path(""));
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    let limit = || {
        let limit = libc::rlimit {
            rlim_cur: 64 << 10,
            rlim_max: 64 << 10,
        };
        // SAFETY: `limit` is valid for reads.
        match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it only makes a system call.
    unsafe { command.pre_exec(limit) };
    let (output, text) = run_child(command);
    assert!(
        output.status.success() && text.contains("all is well"),
        "{text}"
    );
}

fn unprivileged() {
    assert_ne!(fs::metadata("/proc/self").unwrap().uid(), 0);
    let dir = TempDir::new();
    let path = dir.path("device");
    create_device_file(&path, 1 << 20, Fill::Reserve).unwrap();
    let socket = dir.path("socket");
    let support = run(&RuntimeConfig::default(), move |platform| async move {
        let device = UringDevice::open(&platform, &path, DeviceOptions::default()).unwrap();
        let (_, result) = device.write(4096, pattern(65_536, 1)).await;
        result.unwrap();
        device.flush().await.unwrap();
        let (back, result) = device.read(4096, IoBuf::zeroed(65_536)).await;
        result.unwrap();
        assert_eq!(back[..], pattern(65_536, 1)[..]);
        device.discard(4096, 4096).await.unwrap();
        let tcp = UringListener::bind_tcp(&platform, "127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(tcp.tcp_address().unwrap()).unwrap();
        let client = UringStream::from_fd(&platform, client.into()).unwrap();
        let server = tcp.accept().await.unwrap();
        server.write_all(vec![pattern(100, 2)]).await.1.unwrap();
        client.read_exact(IoBuf::zeroed(100)).await.1.unwrap();
        let unix = UringListener::bind_unix(&platform, &socket).unwrap();
        let _client = UnixStream::connect(&socket).unwrap();
        unix.accept().await.unwrap();
        platform.kernel_support().clone()
    });
    assert!(support.registered_bytes <= 64 << 10, "{support:?}");
    println!("all is well: {support}");
}

/// A store to memory that can't be had is a signal, which nobody could answer.
#[test]
fn a_device_in_memory_that_is_full_says_so_and_ends_nothing() {
    let dir = TempDir::new();
    // A mount of its own, which goes with the process.
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-c"]);
    command.arg(format!(
        "mount -t tmpfs -o {ROOM} none \"${FOLDER}\" && exec \"$0\" \"$@\""
    ));
    command
        .arg(std::env::current_exe().unwrap())
        .args(["the_child", "--exact", "--nocapture"])
        .env(ROLE, "full memory")
        .env(FOLDER, dir.path(""));
    let (output, text) = run_child(command);
    if text.contains("unshare: ") {
        println!("left out, as this machine has no mounts for everybody: {text}");
        return;
    }
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(text.contains("all is well"), "{text}");
}

fn full_memory(folder: &Path) {
    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 512;
    let path = folder.join("device");
    create_device_file(&path, BLOCKS * BLOCK as u64, Fill::Sparse).unwrap();
    let allocated = {
        let path = path.clone();
        move || fs::metadata(&path).unwrap().blocks() * 512
    };
    run(&common::config(), move |platform| async move {
        let options = DeviceOptions {
            memory_at_once: true,
            ..DeviceOptions::default()
        };
        let device = UringDevice::open(&platform, &path, options).unwrap();
        assert!(device.is_memory() && device.is_mapped());
        let at = |block: u64| block * BLOCK as u64;
        let write = async |block: u64, seed: u64| {
            let (_, result) = device.write(at(block), pattern(BLOCK, seed)).await;
            result
        };
        let read = async |block: u64| {
            let (back, result) = device.read(at(block), IoBuf::zeroed(BLOCK)).await;
            result.unwrap();
            back
        };
        // What is there is written again, and read, when nothing more fits.
        let mut written = 0;
        let error = loop {
            match write(written, written).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        assert!((200..300).contains(&written), "{written}");
        let full = allocated();
        for block in 0..written {
            write(block, block + 1).await.unwrap();
        }
        for block in 0..BLOCKS {
            let expected = match block < written {
                true => pattern(BLOCK, block + 1),
                false => IoBuf::zeroed(BLOCK),
            };
            assert!(read(block).await[..] == expected[..], "{block}");
        }
        assert_eq!(allocated(), full, "nothing came of reading");
        let across = vec![pattern(BLOCK, 1), pattern(BLOCK, 2)];
        let (_, result) = device.write_gathered(at(written - 1), across).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
        // What is given back is gone, and somebody else's.
        device.discard(at(7), BLOCK as u64).await.unwrap();
        assert!(read(7).await.iter().all(|&byte| byte == 0));
        assert_eq!(allocated(), full - BLOCK as u64);
        write(written, 1).await.unwrap();
        let error = write(7, 7).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        // Behind another start it is seen what is there.
        drop(device);
        let device = UringDevice::open(&platform, &path, options).unwrap();
        let (_, result) = device.write(at(8), pattern(BLOCK, 3)).await;
        result.unwrap();
        let (_, result) = device.write(at(7), pattern(BLOCK, 3)).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
        println!("all is well");
    });
}
