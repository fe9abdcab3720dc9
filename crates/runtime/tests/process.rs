//! What concerns a whole process: a panic ends it, a forbidden io_uring is explained, and nothing
//! needs privileges. Each test runs this program again as a child.

#![allow(unsafe_code, clippy::unwrap_used)]

mod common;

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};

use common::{TempDir, pattern, run};
use flagstone_platform::{BlockDevice, IoBuf, Listener, Platform, Stream};
use flagstone_runtime::{
    DeviceOptions, Fill, Runtime, RuntimeConfig, StartError, UringDevice, UringListener,
    UringPlatform, UringStream, block_on, create_device_file,
};

const ROLE: &str = "FLAGSTONE_TEST_CHILD";
const NOBODY: u32 = 65_534;

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
    // A copy, since the original may lie where others have no access.
    let copy = dir.path("program");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
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
