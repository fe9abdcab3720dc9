//! Streams and listeners on the real kernel, over loopback.

#![allow(clippy::unwrap_used)]

use crate::common;

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{TempDir, all, kernels, pattern, poll_once, run};
use flagstone_platform::{IoBuf, Listener, Platform, Stream};
use flagstone_runtime::{Runtime, RuntimeConfig, UringListener, UringPlatform, UringStream};
use socket2::SockRef;

const MIB: usize = 1 << 20;

fn thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new().spawn(work).unwrap()
}

fn pair(platform: &UringPlatform) -> (UringStream, UringStream) {
    let (near, far) = UnixStream::pair().unwrap();
    let take = |end: UnixStream| UringStream::from_fd(platform, end.into()).unwrap();
    (take(near), take(far))
}

/// Sends `mebibytes` back, each in pieces of odd sizes, so that there is something to gather.
async fn echo(platform: UringPlatform, stream: UringStream, mebibytes: usize) {
    for _ in 0..mebibytes {
        let (buf, result) = stream.read_exact(platform.buffers().take(MIB)).await;
        result.unwrap();
        let mut parts = Vec::new();
        let mut at = 0;
        while at < MIB {
            let end = MIB.min(at + 1 + (at * 7919) % 50_000);
            parts.push(buf.slice(at..end));
            at = end;
        }
        stream.write_all(parts).await.1.unwrap();
    }
    let (_, result) = stream.read(platform.buffers().take(1)).await;
    assert_eq!(result.unwrap(), 0);
    stream.shutdown();
}

/// Writes from one thread and reads from another, so that neither side waits for the other.
fn echo_client(mut reader: impl Read, mut writer: impl Write + Send + 'static) -> bool {
    let sent = pattern(8 * MIB, 1).to_vec();
    let copy = sent.clone();
    let writing = thread(move || {
        writer.write_all(&copy).unwrap();
        writer
    });
    let mut back = vec![0; 8 * MIB];
    reader.read_exact(&mut back).unwrap();
    drop(writing.join().unwrap());
    sent == back
}

#[test]
fn eight_mebibytes_come_back_through_tcp() {
    for (name, config) in kernels() {
        run(&config, move |platform| async move {
            let listener = UringListener::bind_tcp(&platform, "127.0.0.1:0").unwrap();
            let address = listener.tcp_address().unwrap();
            assert_eq!(listener.local_address(), address.to_string());
            let client = thread(move || {
                let stream = TcpStream::connect(address).unwrap();
                let same = echo_client(&stream, stream.try_clone().unwrap());
                stream.shutdown(Shutdown::Write).unwrap();
                (same, stream.local_addr().unwrap().to_string())
            });
            let stream = listener.accept().await.unwrap();
            let peer = stream.peer();
            echo(platform.clone(), stream, 8).await;
            let (same, address) = client.join().unwrap();
            assert!(same, "{name}: the bytes came back changed");
            assert_eq!(peer, address);
            let short = platform.counters().short_transfers;
            assert!(
                name != "short transfers" || short > 1000,
                "{short} short transfers"
            );
        });
    }
}

#[test]
fn a_stream_that_was_connected_carries_bytes() {
    for (_, config) in kernels() {
        run(&config, move |platform| async move {
            let listener = UringListener::bind_tcp(&platform, "127.0.0.1:0").unwrap();
            let address = listener.tcp_address().unwrap();
            let connecting = UringStream::connect_tcp(&platform, address);
            let near = connecting.await.unwrap();
            let far = listener.accept().await.unwrap();
            assert_eq!(near.peer(), address.to_string());
            assert_eq!(near.addresses().1.map(|a| a.to_string()), Some(far.peer()));
            let sent = pattern(1000, 7);
            near.write_all(vec![sent.clone()]).await.1.unwrap();
            let (found, read) = far.read_exact(IoBuf::zeroed(1000)).await;
            read.unwrap();
            assert!(found[..] == sent[..]);
        });
    }
}

#[test]
fn connecting_where_nobody_listens_fails_and_can_be_given_up() {
    for (_, config) in kernels() {
        run(&config, move |platform| async move {
            let closed = {
                let listener = UringListener::bind_tcp(&platform, "127.0.0.1:0").unwrap();
                listener.tcp_address().unwrap()
            };
            let failed = UringStream::connect_tcp(&platform, closed).await;
            let error = failed.err().expect("nobody listens there");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            // Documentation's addresses answer nobody. Whatever becomes of it, giving it up frees the core to end.
            let nowhere = "192.0.2.1:9".parse().unwrap();
            let mut connecting = Box::pin(UringStream::connect_tcp(&platform, nowhere));
            let _ = poll_once(connecting.as_mut()).await;
            drop(connecting);
        });
    }
}

/// The kernel took 2 to 4 MiB for a peer that reads nothing: copied at once, while others of the core waited.
#[test]
fn the_kernel_takes_little_for_a_peer_that_takes_nothing() {
    const PIECE: usize = 64 << 10;
    for (name, config) in kernels() {
        run(&config, move |platform| async move {
            let listener = UringListener::bind_tcp(&platform, "127.0.0.1:0").unwrap();
            let peer = TcpStream::connect(listener.tcp_address().unwrap()).unwrap();
            let stream = listener.accept().await.unwrap();
            let taken = Rc::new(Cell::new(0));
            let (writer, counted, buffers) = (stream.clone(), taken.clone(), platform.clone());
            platform.spawn(async move {
                loop {
                    let piece = buffers.buffers().take(PIECE);
                    if writer.write_all(vec![piece]).await.1.is_err() {
                        return;
                    }
                    counted.set(counted.get() + PIECE);
                }
            });
            let mut before = usize::MAX;
            while before != taken.get() {
                before = taken.get();
                platform.sleep_ns(100_000_000).await;
            }
            // What the peer's kernel takes unasked, what may be unsent, and the piece that crosses that.
            let taken = taken.get();
            assert!((PIECE..=MIB).contains(&taken), "{name}: {taken}");
            stream.shutdown();
            drop(peer);
        });
    }
}

/// A mebibyte is more than a Unix socket takes at once, so without the kernel's help each send
/// comes up short.
#[test]
fn eight_mebibytes_come_back_through_a_unix_socket() {
    for (name, config) in kernels() {
        run(&config, move |platform| async move {
            let (near, far) = UnixStream::pair().unwrap();
            let client = thread(move || {
                let same = echo_client(&far, far.try_clone().unwrap());
                far.shutdown(Shutdown::Write).unwrap();
                same
            });
            let stream = UringStream::from_fd(&platform, near.into()).unwrap();
            echo(platform.clone(), stream, 8).await;
            assert!(
                client.join().unwrap(),
                "{name}: the bytes came back changed"
            );
            let short = platform.counters().short_transfers;
            assert!(name != "least" || short >= 8, "{short} short transfers");
        });
    }
}

#[test]
fn many_buffers_are_sent_in_order_and_completely() {
    for (name, config) in kernels() {
        run(&config, move |platform| async move {
            let (near, far) = pair(&platform);
            let mut expected = Vec::new();
            let mut bufs = Vec::new();
            for n in 0..3000u64 {
                let part = pattern((n % 7 * 321) as usize, n);
                expected.extend_from_slice(&part);
                bufs.push(part);
            }
            let total = expected.len();
            let sending = near.write_all(bufs);
            platform.spawn(async move {
                let (bufs, result) = sending.await;
                result.unwrap();
                assert!(bufs.is_empty() || bufs.len() == 3000);
            });
            let (back, result) = far.read_exact(IoBuf::zeroed(total)).await;
            result.unwrap();
            assert!(back[..] == expected[..], "{name}");
            near.write_all(Vec::new()).await.1.unwrap();
            near.write_all(vec![IoBuf::zeroed(0)]).await.1.unwrap();
            near.write_all(vec![IoBuf::zeroed(0), IoBuf::zeroed(0)])
                .await
                .1
                .unwrap();
            near.write_all(vec![pattern(10, 5)]).await.1.unwrap();
            let (back, result) = far.read(IoBuf::zeroed(100)).await;
            assert_eq!(result.unwrap(), 10);
            assert_eq!(back[..10], pattern(10, 5)[..]);
        });
    }
}

#[test]
fn both_directions_work_at_once() {
    for (_, config) in kernels() {
        run(&config, |platform| async move {
            let (near, far) = pair(&platform);
            let transfer = |from: UringStream, to: UringStream, seed: u64| async move {
                let sending = from.write_all(vec![pattern(3 * MIB, seed)]);
                let receiving = to.read_exact(IoBuf::zeroed(3 * MIB));
                let sent: std::pin::Pin<Box<dyn Future<Output = ()>>> =
                    Box::pin(async move { sending.await.1.unwrap() });
                let received = Box::pin(async move {
                    let (back, result) = receiving.await;
                    result.unwrap();
                    assert!(back[..] == pattern(3 * MIB, seed)[..]);
                });
                all([sent, received]).await;
            };
            let there = transfer(near.clone(), far.clone(), 1);
            let back = transfer(far, near, 2);
            all([
                Box::pin(there) as std::pin::Pin<Box<dyn Future<Output = ()>>>,
                Box::pin(back),
            ])
            .await;
        });
    }
}

#[test]
fn a_peer_that_closes_is_an_end_or_an_error() {
    for (_, config) in kernels() {
        run(&config, |platform| async move {
            let (near, far) = pair(&platform);
            near.write_all(vec![pattern(100, 1)]).await.1.unwrap();
            drop(near);
            let (_, result) = far.read_exact(IoBuf::zeroed(200)).await;
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            let (_, result) = far.read(IoBuf::zeroed(10)).await;
            assert_eq!(result.unwrap(), 0);
            let (_, result) = far.write_all(vec![pattern(100, 1)]).await;
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            let (_, result) = far.write_all(vec![pattern(9, 1), pattern(9, 2)]).await;
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            let (_, result) = far.read(IoBuf::zeroed(0)).await;
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        });
    }
}

#[test]
fn shutdown_and_the_last_drop_end_pending_reads() {
    for (_, config) in kernels() {
        run(&config, |platform| async move {
            let (near, far) = pair(&platform);
            let ended = Rc::new(Cell::new(0));
            for exact in [false, true] {
                let (near, ended) = (near.clone(), ended.clone());
                platform.spawn(async move {
                    if exact {
                        near.read_exact(IoBuf::zeroed(10)).await.1.unwrap_err();
                    } else {
                        assert_eq!(near.read(IoBuf::zeroed(10)).await.1.unwrap(), 0);
                    }
                    ended.set(ended.get() + 1);
                });
                platform.yield_now().await;
            }
            platform.sleep_ns(1_000_000).await;
            assert_eq!(ended.get(), 0);
            near.shutdown();
            while ended.get() < 2 {
                platform.sleep_ns(100_000).await;
            }
            assert_eq!(far.read(IoBuf::zeroed(10)).await.1.unwrap(), 0);

            let (near, _far) = pair(&platform);
            let mut read = Box::pin(near.read(IoBuf::zeroed(10)));
            assert!(poll_once(read.as_mut()).await.is_none());
            drop(near);
            assert_eq!(read.await.1.unwrap(), 0);
        });
    }
}

/// Of clients that come at once, and sooner than the core accepts them, none has to try again, which takes a second.
#[test]
fn many_connections_wait_to_be_accepted() {
    const CLIENTS: usize = 400;
    let most = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    if most.trim().parse::<usize>().unwrap() < CLIENTS {
        eprintln!("the kernel queues no more than {most}");
        return;
    }
    run(&RuntimeConfig::default(), move |platform| async move {
        let listener = UringListener::bind_tcp(&platform, "127.0.0.1:0").unwrap();
        let address = listener.tcp_address().unwrap();
        // The core is busy with this.
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(900));
        let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| connect().unwrap()).collect();
        for mut client in &clients {
            client.write_all(b"a").unwrap();
        }
        for _ in 0..CLIENTS {
            let stream = listener.accept().await.unwrap();
            let (buf, result) = stream.read_exact(IoBuf::zeroed(1)).await;
            result.unwrap();
            assert_eq!(&buf[..], b"a");
        }
    });
}

#[test]
fn a_dropped_accept_loses_no_connection() {
    for (name, config) in kernels() {
        run(&config, move |platform| async move {
            let listener = UringListener::bind_tcp(&platform, "127.0.0.1:0").unwrap();
            let address = listener.tcp_address().unwrap();
            for n in 0..20u8 {
                let mut accept = Box::pin(listener.accept());
                assert!(poll_once(accept.as_mut()).await.is_none());
                platform.sleep_ns(100_000).await;
                drop(accept);
                let client = thread(move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.write_all(&[n]).unwrap();
                    let mut end = Vec::new();
                    stream.read_to_end(&mut end).unwrap();
                });
                let stream = listener.accept().await.unwrap();
                let (buf, result) = stream.read_exact(IoBuf::zeroed(1)).await;
                result.unwrap();
                assert_eq!(
                    buf[0], n,
                    "{name}: connections arrive in order, none is lost"
                );
                drop(stream);
                client.join().unwrap();
            }
            let mut accept = Box::pin(listener.accept());
            assert!(poll_once(accept.as_mut()).await.is_none());
            platform.sleep_ns(100_000).await;
            drop(accept);
            drop(listener);
            // The kernel lets go of the socket when the abandoned accept has ended.
            for _ in 0..10_000 {
                // Connecting would end the abandoned accept; binding shows whether it is there.
                if std::net::TcpListener::bind(address).is_ok() {
                    return;
                }
                platform.sleep_ns(1_000_000).await;
            }
            panic!("{name}: the listener's socket is still open");
        });
    }
}

#[test]
fn several_may_wait_for_one_listener() {
    run(&common::config(), |platform| async move {
        let listener = Rc::new(UringListener::bind_tcp(&platform, "127.0.0.1:0").unwrap());
        let address = listener.tcp_address().unwrap();
        let accepted = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let (listener, accepted) = (listener.clone(), accepted.clone());
            platform.spawn(async move {
                listener.accept().await.unwrap();
                accepted.set(accepted.get() + 1);
            });
        }
        // This one polls last, and goes away while the operation would wake it.
        let mut dropped = Box::pin(listener.accept());
        platform.yield_now().await;
        assert!(poll_once(dropped.as_mut()).await.is_none());
        drop(dropped);
        let clients = thread(move || {
            let clients: Vec<_> = (0..3)
                .map(|_| TcpStream::connect(address).unwrap())
                .collect();
            clients.len()
        });
        while accepted.get() < 3 {
            platform.sleep_ns(100_000).await;
        }
        assert_eq!(clients.join().unwrap(), 3);
    });
}

#[test]
fn a_unix_socket_is_private_and_replaces_only_a_dead_one() {
    let dir = TempDir::new();
    let path = dir.path("socket");
    let file = path.clone();
    run(&common::config(), move |platform| async move {
        fs::write(&path, "precious").unwrap();
        let error = UringListener::bind_unix(&platform, &path).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();

        // A listener that died without removing its socket.
        drop(UnixListener::bind(&path).unwrap());
        let listener = UringListener::bind_unix(&platform, &path).unwrap();
        assert_eq!(listener.local_address(), path.to_str().unwrap());
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let error = UringListener::bind_unix(&platform, &path).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");

        let client = path.clone();
        let client = thread(move || {
            let mut stream = UnixStream::connect(client).unwrap();
            stream.write_all(b"hello").unwrap();
            let mut back = String::new();
            stream.read_to_string(&mut back).unwrap();
            back
        });
        // The refused listener's probe comes first; it has closed again.
        let probe = listener.accept().await.unwrap();
        assert_eq!(probe.read(IoBuf::zeroed(5)).await.1.unwrap(), 0);
        let stream = listener.accept().await.unwrap();
        assert_eq!(stream.peer(), "unix");
        let (buf, result) = stream.read_exact(IoBuf::zeroed(5)).await;
        result.unwrap();
        stream.write_all(vec![buf]).await.1.unwrap();
        drop(stream);
        assert_eq!(client.join().unwrap(), "hello");

        // Somebody else's file in its place is not removed with it.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "other").unwrap();
        drop(listener);
        assert_eq!(fs::read(&path).unwrap(), b"other");
        fs::remove_file(&path).unwrap();
        drop(UringListener::bind_unix(&platform, &path).unwrap());
    });
    assert!(!file.exists(), "the socket's file goes with the listener");
}

#[test]
fn a_stream_moves_between_cores() {
    let config = RuntimeConfig {
        cores: 2,
        ..common::config()
    };
    let runtime = Runtime::start(&config, |_| |_| ()).unwrap();
    let [first, second] = [0, 1].map(|n| runtime.cores()[n].remote().clone());
    let (client, server) = UnixStream::pair().unwrap();
    let client = thread(move || {
        let mut client = client;
        client.write_all(b"one").unwrap();
        let mut back = [0; 3];
        client.read_exact(&mut back).unwrap();
        client.write_all(b"two").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        (back, rest)
    });
    let serve = |word: &'static [u8]| {
        move |platform: UringPlatform, fd| async move {
            let stream = UringStream::from_fd(&platform, fd).unwrap();
            let (buf, result) = stream.read_exact(IoBuf::zeroed(3)).await;
            result.unwrap();
            assert_eq!(&buf[..], word);
            stream.write_all(vec![buf]).await.1.unwrap();
            stream
        }
    };
    let (sender, receiver) = std::sync::mpsc::channel();
    let move_on = move |platform: UringPlatform| async move {
        let mut stream = serve(b"one")(platform.clone(), server.into()).await;
        let clone = stream.clone();
        stream = stream.into_fd().expect_err("there is another handle");
        drop(clone);
        stream.into_fd().ok().unwrap()
    };
    first
        .call_then(move_on, move |fd| sender.send(fd).unwrap())
        .unwrap();
    let fd = receiver.recv().unwrap();
    let finish = move |platform| async move { drop(serve(b"two")(platform, fd).await) };
    second.call_then(finish, |()| ()).unwrap();
    assert_eq!(client.join().unwrap(), (*b"one", "two".to_owned()));
    runtime.stop();
}

#[test]
fn a_stream_with_a_read_in_flight_does_not_move() {
    run(&common::config(), |platform| async move {
        let (near, _far) = pair(&platform);
        let mut read = Box::pin(near.read(IoBuf::zeroed(10)));
        assert!(poll_once(read.as_mut()).await.is_none());
        let near = near.into_fd().expect_err("a read is in flight");
        drop(read);
        let near = near
            .into_fd()
            .expect_err("the dropped read is still in flight");
        near.shutdown();
        let near = Rc::new(RefCell::new(Some(near)));
        for _ in 0..10_000 {
            let taken = near.borrow_mut().take().unwrap();
            match taken.into_fd() {
                Ok(_) => return,
                Err(back) => *near.borrow_mut() = Some(back),
            }
            platform.sleep_ns(100_000).await;
        }
        panic!("the read has not ended");
    });
}

/// A connection over loopback comes by the interface that has the address, whichever of the two families it is of.
#[test]
fn a_connection_says_by_which_interface_it_came() {
    let addresses = flagstone_runtime::interface_addresses().unwrap();
    let has_ipv6 = addresses
        .iter()
        .any(|one| one.address.is_loopback() && one.address.is_ipv6());
    run(&RuntimeConfig::default(), move |platform| async move {
        for bound in ["127.0.0.1:0", "[::1]:0"] {
            if bound.starts_with('[') && !has_ipv6 {
                continue;
            }
            let listener = UringListener::bind_tcp(&platform, bound).unwrap();
            let at = listener.tcp_address().unwrap();
            let client = thread(move || TcpStream::connect(at).unwrap());
            let stream = listener.accept().await.unwrap();
            let interface = stream.interface().expect("the kernel says it");
            let mut known = addresses.iter().filter(|one| one.address == at.ip());
            let known = known.next().unwrap();
            assert_eq!((known.interface, known.is_inner), (interface, true));
            client.join().unwrap();
        }
        let (near, _far) = pair(&platform);
        assert_eq!(near.interface(), None);
    });
}

/// Both of the connection that is accepted and of the one that is made, where the system's own rule is another one.
#[test]
fn within_the_machine_nothing_is_paced() {
    run(&RuntimeConfig::default(), |platform| async move {
        let listener = UringListener::bind_tcp(&platform, "127.0.0.1:0").unwrap();
        let at = listener.tcp_address().unwrap();
        let made = UringStream::connect_tcp(&platform, at).await.unwrap();
        let accepted = listener.accept().await.unwrap();
        for stream in [made, accepted] {
            let fd = stream.into_fd().ok().expect("nobody else has it");
            let rule = SockRef::from(&fd).tcp_congestion().unwrap();
            let name = rule.split(|byte| *byte == 0).next().unwrap();
            assert_eq!(name, b"reno");
        }
    });
}
