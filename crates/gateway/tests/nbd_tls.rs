//! Connections that begin TLS: the server's side of `STARTTLS`, with a client in memory.

use crate::support;

use std::cell::Cell;
use std::rc::Rc;

use flagstone_gateway::nbd::{CloseReason, NbdLimits, NbdServer, Outcome};
use flagstone_platform::{IoBuf, Platform, Stream};
use flagstone_tls::{ClientTls, ServerTls, TlsStream};
use support::client::*;
use support::memory::{MemoryDirectory, MemoryVolume};
use support::stage::{SIZE, Server, Stage};
use support::stream::{Link, MemoryStream};
use support::world::World;

const STARTTLS: u32 = 5;
const LIST: u32 = 3;
const TLS_REQD: u32 = 5;

/// A server's certificate, and who trusts it.
pub(crate) fn settings(required: bool) -> (ServerTls, ClientTls) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(vec!["node".to_owned()]).expect("a name");
    // The world's clock begins in 1970.
    params.not_before = rcgen::date_time_ymd(1970, 1, 1);
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let (certificate, key) = (certificate.as_bytes(), key.serialize_pem());
    let server = ServerTls::from_pem(certificate, key.as_bytes(), None, required);
    let client = ClientTls::from_pem("node", certificate, None);
    (server.expect("good"), client.expect("good"))
}

/// A stage whose server has TLS.
fn stage(seed: u64, required: bool) -> (Stage, ClientTls) {
    stage_with(seed, required, NbdLimits::default())
}

fn stage_with(seed: u64, required: bool, limits: NbdLimits) -> (Stage, ClientTls) {
    let (server, client) = settings(required);
    let stage = Stage::with_limits(seed, limits);
    let (world, directory) = (stage.world.clone(), stage.directory.clone());
    let server = NbdServer::with_tls(world, directory, limits, Some(server));
    (Stage { server, ..stage }, client)
}

/// Past greeting, flags and handshake.
async fn secured(world: &World, stream: MemoryStream, tls: &ClientTls) -> Client<TlsStream<World>> {
    let mut plain = Client::greet(stream).await.expect("greeted");
    plain.option(STARTTLS, b"").await.expect("acknowledged");
    let stream = TlsStream::connect(world, plain.stream.clone(), tls).await;
    Client::detached(stream.expect("shaken hands"), Mode::Simple)
}

/// What it writes is there, and what it reads is that.
async fn try_volume<S: Stream>(client: &mut Client<S>) {
    let data: Vec<u8> = (0..300_000u32).map(|at| (at * 7 / 3) as u8).collect();
    assert_eq!(client.write(FUA, 4096, &data).await.result, Ok(()));
    let answer = client.call(READ, 0, 4096, data.len() as u64).await;
    assert!(answer.data == data);
    // Several at once, so that replies are sent while requests come.
    for at in 0..40 {
        client.submit_write(0, at * 5000, &data[..5000]).await;
    }
    for _ in 0..40 {
        assert_eq!(client.answer().await.expect("an answer").result, Ok(()));
    }
}

#[test]
fn a_volume_is_used_over_tls() {
    for (seed, mode) in MODES.into_iter().enumerate() {
        for link in [
            Link::default(),
            Link {
                capacity: 5000,
                portion_max: 300,
                ..Link::default()
            },
        ] {
            let (stage, tls) = stage(seed as u64, true);
            let (near, end) = stage.connect(link);
            let world = stage.world.clone();
            stage.world.run(async move {
                let mut client = secured(&world, near, &tls).await;
                client.choose_mode(mode).await.expect("mode");
                client.go("disk").await.expect("attached");
                assert_eq!(client.size_bytes, SIZE);
                try_volume(&mut client).await;
                client.stream.shutdown();
                world.sleep_ns(1_000_000_000).await;
                assert_eq!(end.get(), Some(CloseReason::Finished));
            });
        }
    }
}

/// An end that nobody has said good-bye to may be the work of anybody on the way.
#[test]
fn a_connection_that_is_cut_counts_as_broken() {
    let (stage, tls) = stage(1, true);
    let (near, end) = stage.connect(Link::default());
    let world = stage.world.clone();
    stage.world.run(async move {
        let mut client = secured(&world, near.clone(), &tls).await;
        client.go("disk").await.expect("attached");
        near.shutdown();
        world.sleep_ns(1_000_000_000).await;
        assert_eq!(end.get(), Some(CloseReason::Broken));
    });
}

#[test]
fn without_tls_a_client_gets_nothing_where_it_is_required_and_all_where_it_is_offered() {
    let (required, _) = stage(1, true);
    let (near, end) = required.connect(Link::default());
    let (named, named_end) = required.connect(Link::default());
    let world = required.world.clone();
    required.world.run(async move {
        let mut client = Client::greet(near).await.expect("greeted");
        for (option, data) in [(LIST, Vec::new()), (7, go_data("disk")), (8, Vec::new())] {
            let refused = client.option(option, &data).await;
            assert_eq!(refused, Err(Refused::Error(TLS_REQD)));
        }
        client.stream.shutdown();
        let mut client = Client::greet(named).await.expect("greeted");
        client.send(&option_message(1, b"disk")).await;
        assert_eq!(client.take(1).await, None);
        world.sleep_ns(1_000_000).await;
        assert_eq!(end.get(), Some(CloseReason::Finished));
        assert!(matches!(named_end.get(), Some(CloseReason::Violation(_))));
    });
    let (offered, _) = stage(1, false);
    let (near, _) = offered.connect(Link::default());
    offered.world.run(async move {
        let client = Client::attach(near, Mode::Structured, "disk", &[]).await;
        try_volume(&mut client.expect("attached")).await;
    });
}

/// What is sent behind STARTTLS in plain text is never looked at, whether it comes with it or later.
#[test]
fn plain_text_behind_starttls_ends_the_connection() {
    for (seed, apart) in [(1, false), (2, true)] {
        let (stage, _) = stage(seed, false);
        let (near, end) = stage.connect(Link {
            portion_max: 4096,
            ..Link::default()
        });
        let world = stage.world.clone();
        stage.world.run(async move {
            let mut client = Client::greet(near).await.expect("greeted");
            let mut bytes = option_message(STARTTLS, b"");
            if apart {
                client.option(STARTTLS, b"").await.expect("acknowledged");
                bytes.clear();
            }
            bytes.extend(option_message(LIST, b""));
            client.send(&bytes).await;
            let rest = client.take(1).await;
            world.sleep_ns(1_000_000_000).await;
            match end.get() {
                Some(CloseReason::NoTls) => assert_eq!(rest, Some(vec![0x15]), "an alert"),
                Some(CloseReason::Violation(_)) if !apart => assert_eq!(rest, None),
                other => panic!("{other:?}"),
            }
            while let Some(byte) = client.take(1).await {
                assert_ne!(byte, b"d", "no name of a volume");
            }
        });
    }
}

/// Silence in a handshake costs a client its place after the time that an option has.
#[test]
fn a_handshake_has_the_time_of_an_option() {
    let (stage, _) = stage(1, false);
    let (near, end) = stage.connect(Link::default());
    let world = stage.world.clone();
    stage.world.run(async move {
        let mut client = Client::greet(near).await.expect("greeted");
        client.option(STARTTLS, b"").await.expect("acknowledged");
        // A record that never gets whole, a byte now and then.
        for byte in [0x16, 3, 1, 1, 0] {
            world.sleep_ns(1_900_000_000).await;
            assert_eq!(end.get(), None);
            let _ = client.stream.write_all(vec![IoBuf::copy_of(&[byte])]).await;
        }
        assert_eq!(client.take(1).await, None);
        world.sleep_ns(1_000_000).await;
        assert_eq!(end.get(), Some(CloseReason::NegotiationTimeout));
    });
}

#[test]
fn a_connection_with_tls_moves_to_the_core_of_its_volume() {
    let (server_tls, tls) = settings(true);
    let stage = Stage::new(1);
    let volume = MemoryVolume::new(&stage.world, 1 << 20);
    let directory = MemoryDirectory::new();
    directory.add("far", 1, &volume);
    let servers: [Server; 2] = [0, 1].map(|core| {
        let (world, directory) = (stage.world.clone(), directory.on_core(core));
        let tls = Some(server_tls.clone());
        NbdServer::with_tls(world, directory, NbdLimits::default(), tls)
    });
    let (near, far) = Link::default().connect();
    let moved = Rc::new(Cell::new(false));
    let noted = moved.clone();
    stage.world.clone().spawn(async move {
        let Outcome::HandOver {
            core: 1,
            stream,
            session,
        } = servers[0].serve_connection(far).await
        else {
            panic!("`far` is on core 1")
        };
        noted.set(true);
        servers[1].resume_connection(stream, session).await;
    });
    let world = stage.world.clone();
    stage.world.clone().run(async move {
        let mut client = secured(&world, near, &tls).await;
        client.choose_mode(Mode::Structured).await.expect("mode");
        client.go("far").await.expect("attached");
        assert!(moved.get());
        try_volume(&mut client).await;
    });
}
