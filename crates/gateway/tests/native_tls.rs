//! Connections of the native protocol that begin with TLS, and those that don't where they should.

use crate::native_support::client::{Client, hello_frame};
use crate::native_support::node::WRITER;
use crate::native_support::stage::{End, Stage};
use crate::nbd_tls::settings;
use crate::support::stream::{Link, MemoryStream};
use crate::support::world::World;

use flagstone_gateway::native::{CloseReason, NativeLimits, NativeServer};
use flagstone_platform::{IoBuf, Stream};
use flagstone_tls::{ClientTls, TlsStream};
use flagstone_wire::hello::{Nonce, SessionId};

type Secured = Client<TlsStream<World>>;

/// A stage whose server has TLS.
fn stage(seed: u64, required: bool) -> (Stage, ClientTls) {
    let (server, client) = settings(required);
    let stage = Stage::new(seed);
    let (world, node) = (stage.world.clone(), stage.node.clone());
    let limits = NativeLimits::default();
    let server = NativeServer::with_tls(world, node, limits, Some(server));
    (Stage { server, ..stage }, client)
}

async fn secured(stage: &Stage, tls: &ClientTls, session: SessionId, link: Link) -> (Secured, End) {
    let (near, end) = stage.connect(link);
    let stream = TlsStream::connect(&stage.world, near, tls).await;
    let client = Client::hello(stream.expect("shaken hands"), session).await;
    (client.expect("HELLO is answered"), end)
}

/// What it writes is there, and what it reads is that.
async fn try_volume<S: Stream>(client: &mut Client<S>) {
    let data: Vec<u8> = (0..300_000u32).map(|at| (at * 7 / 3) as u8).collect();
    let a = client.open("a", WRITER).await;
    client.write(a, 4096, &data).await.ok();
    let read = client.read(a, 4096, data.len() as u64).await.ok();
    assert!(read.payload == data);
}

#[test]
fn a_volume_is_used_over_tls_and_its_session_goes_on() {
    for (seed, link) in [
        (1, Link::default()),
        (
            2,
            Link {
                capacity: 5000,
                portion_max: 300,
                ..Link::default()
            },
        ),
    ] {
        let (stage, tls) = stage(seed, true);
        stage.run(|stage| async move {
            let (mut client, end) = secured(&stage, &tls, SessionId::NEW, link).await;
            try_volume(&mut client).await;
            let session = client.hello.session;
            client.stream.shutdown();
            stage.sleep_ms(1000).await;
            assert_eq!(end.get(), Some(CloseReason::Finished));
            let (client, _) = secured(&stage, &tls, session, Link::default()).await;
            assert_eq!(client.hello.session, session);
        });
    }
}

/// The first byte says whether it is TLS; where both are served, both are.
#[test]
fn without_tls_a_client_is_served_where_it_is_offered_and_closed_where_it_is_required() {
    let (offered, _) = stage(1, false);
    offered.run(|stage| async move {
        let mut client = stage.client().await;
        try_volume(&mut client).await;
    });
    let (required, _) = stage(1, true);
    required.run(|stage| async move {
        let (near, end) = stage.connect(Link::default());
        assert!(Client::hello(near, SessionId::NEW).await.is_none());
        stage.sleep_ms(1).await;
        assert_eq!(end.get(), Some(CloseReason::NoTls));
    });
    // Without a certificate TLS is nothing that the server knows.
    Stage::new(1).run(|stage| async move {
        let (near, end) = stage.connect(Link::default());
        send(&near, &[0x16; 64]).await;
        stage.sleep_ms(1).await;
        assert_eq!(end.get(), Some(CloseReason::HeadDamaged));
    });
}

async fn send(stream: &MemoryStream, bytes: &[u8]) {
    let (_, result) = stream.write_all(vec![IoBuf::copy_of(bytes)]).await;
    result.expect("sent");
}

#[test]
fn garbage_is_refused_with_tls_as_without() {
    let frame = hello_frame(SessionId::NEW, Nonce([0; 16]));
    for (required, bytes, expected) in [
        // It looks like TLS and is not.
        (
            false,
            [&[0x16][..], &[0xff; 80]].concat(),
            CloseReason::NoTls,
        ),
        (true, b"GET / HTTP/1.1\r\n\r\n".to_vec(), CloseReason::NoTls),
        (false, vec![0; 64], CloseReason::HeadDamaged),
        // A frame in a record of a handshake.
        (
            true,
            [b"\x16\x03\x03\x00\x60", &frame[..]].concat(),
            CloseReason::NoTls,
        ),
    ] {
        let (stage, _) = stage(3, required);
        stage.run(|stage| async move {
            let (near, end) = stage.connect(Link::default());
            send(&near, &bytes).await;
            stage.sleep_ms(1000).await;
            assert_eq!(end.get(), Some(expected), "{bytes:?}");
        });
    }
}

/// Handshake and `HELLO` have the time of one of them.
#[test]
fn silence_is_closed_after_ten_seconds_wherever_it_begins() {
    for begins in [None, Some([0x16, 3, 1, 2, 0]), Some([1; 5])] {
        let (stage, _) = stage(4, false);
        stage.run(|stage| async move {
            let (near, end) = stage.connect(Link::default());
            if let Some(bytes) = begins {
                send(&near, &bytes).await;
            }
            stage.sleep_ms(9_900).await;
            assert_eq!(end.get(), None);
            stage.sleep_ms(200).await;
            assert_eq!(end.get(), Some(CloseReason::HelloTimeout), "{begins:?}");
        });
    }
    let (stage, tls) = stage(5, false);
    stage.run(|stage| async move {
        let (near, end) = stage.connect(Link::default());
        stage.sleep_ms(6_000).await;
        let _shaken = TlsStream::connect(&stage.world, near, &tls).await;
        stage.sleep_ms(3_900).await;
        assert_eq!(end.get(), None);
        stage.sleep_ms(200).await;
        assert_eq!(end.get(), Some(CloseReason::HelloTimeout));
    });
}
