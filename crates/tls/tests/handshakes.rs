//! How connections with TLS begin, and which don't.

use std::io;

use flagstone_platform::{IoBuf, Platform, Stream};
use flagstone_sim::NetworkConfig;
use flagstone_tls::{
    ClientTls, HANDSHAKE_RECORD, HandshakeError, ServerTls, SettingsError, TlsStream, validity,
};

use crate::support::*;

/// A network that delivers a byte or two at a time.
fn crumbs() -> NetworkConfig {
    NetworkConfig {
        segment_max_bytes: 2,
        short_read: 1.0,
        ..NetworkConfig::default()
    }
}

fn refusal<T>(result: Result<T, HandshakeError>) -> String {
    match result {
        Err(HandshakeError::Refused(why)) => why,
        Err(error) => panic!("not refused: {error}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn both_sides_talk_after_a_handshake() {
    for network in [NetworkConfig::default(), crumbs()] {
        let world = world(1, network);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let (near, far) = shaken(&platform, &Party::new()).await;
            send(&near, b"question").await;
            assert_eq!(receive(&far, 8).await, b"question");
            send(&far, b"answer").await;
            assert_eq!(receive(&near, 6).await, b"answer");
        });
    }
}

#[test]
fn what_was_received_already_counts() {
    let world = world(2, NetworkConfig::default());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let party = Party::new();
        let (near, far) = pair(&platform).await;
        let (there, server) = (platform.clone(), party.server.clone());
        let (promise, accepted) = flagstone_platform::sync::promise();
        platform.spawn(async move {
            let first = receive(&far, 1).await;
            assert_eq!(first, [HANDSHAKE_RECORD]);
            promise.fulfil(TlsStream::accept(&there, far, &server, &first).await);
        });
        let near = TlsStream::connect(&platform, near, &party.client)
            .await
            .unwrap();
        let far = accepted.await.unwrap().unwrap();
        send(&near, b"x").await;
        assert_eq!(receive(&far, 1).await, b"x");
    });
}

#[test]
fn a_server_of_another_name_or_authority_is_not_trusted() {
    let world = world(3, NetworkConfig::default());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let party = Party::new();
        let ca = party.ca.pem();
        let client = ClientTls::from_pem("other", ca.as_bytes(), None).unwrap();
        let (near, far) = shake_hands(&platform, client, party.server.clone()).await;
        assert!(refusal(near).contains("not valid for name"));
        assert!(refusal(far).contains("BadCertificate"));
    });
    let world = crate::support::world(4, NetworkConfig::default());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let stranger = Party::of("another");
        let party = Party::new();
        let (near, far) = shake_hands(&platform, stranger.client, party.server).await;
        assert!(refusal(near).contains("UnknownIssuer"));
        assert!(refusal(far).contains("UnknownCA"));
    });
}

/// The simulated clock is what certificates are judged by.
#[test]
fn an_expired_certificate_is_not_trusted() {
    let world = world(5, NetworkConfig::default());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let ca = Authority::new("authority");
        let node = ca.issue_until("node", 1999);
        let (certificate, key) = (node.certificate.as_bytes(), node.key.as_bytes());
        let until_s = validity(certificate).unwrap().unwrap().until_s;
        assert_eq!(until_s, 946_598_400);
        let server = ServerTls::from_pem(certificate, key, None, false).unwrap();
        let client = ClientTls::from_pem("node", ca.pem().as_bytes(), None).unwrap();
        let (near, far) = shake_hands(&platform, client, server).await;
        assert!(refusal(near).contains("expired"));
        assert!(refusal(far).contains("CertificateExpired"));
    });
}

/// What time it is is asked when a certificate is judged, not when the handshake began.
#[test]
fn a_certificate_that_expires_meanwhile_is_not_trusted() {
    const DAY_NS: u64 = 86_400_000_000_000;
    let network = NetworkConfig {
        delay_ns: 2 * DAY_NS..=2 * DAY_NS,
        ..NetworkConfig::default()
    };
    let world = world(9, network);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (near, far) = pair(&platform).await;
        let ca = Authority::new("authority");
        let until_ns = platform.wall_clock_ns() + DAY_NS;
        let node = ca.issue_until_ns("node", until_ns);
        let (certificate, key) = (node.certificate.as_bytes(), node.key.as_bytes());
        let server = ServerTls::from_pem(certificate, key, None, false).unwrap();
        let client = ClientTls::from_pem("node", ca.pem().as_bytes(), None).unwrap();
        let there = platform.clone();
        platform.spawn(async move {
            let _ = TlsStream::accept(&there, far, &server, &[]).await;
        });
        let near = TlsStream::connect(&platform, near, &client).await;
        assert!(refusal(near).contains("expired"));
    });
}

#[test]
fn a_client_shows_a_certificate_if_it_is_asked_for_one() {
    let ca = Authority::new("authority");
    let node = ca.issue("node");
    let clients = Authority::new("clients");
    let strangers = Authority::new("strangers");
    let (certificate, key) = (node.certificate.as_bytes(), node.key.as_bytes());
    let client_ca = clients.pem();
    let server = ServerTls::from_pem(certificate, key, Some(client_ca.as_bytes()), false).unwrap();
    let one = clients.issue("client");
    let other = strangers.issue("client");
    for (seed, own, expected) in [
        (6, Some(&one), None),
        (7, None, Some("sent no certificates")),
        (8, Some(&other), Some("UnknownIssuer")),
    ] {
        let own = own.map(|own| (own.certificate.as_bytes(), own.key.as_bytes()));
        let client = ClientTls::from_pem("node", ca.pem().as_bytes(), own).unwrap();
        let server = server.clone();
        let world = world(seed, NetworkConfig::default());
        let platform = world.platform(0);
        world.block_on(0, async move {
            let (near, far) = shake_hands(&platform, client, server).await;
            // The client has done its part before the server judges it, and learns of it when it reads.
            let near = near.unwrap();
            match expected {
                None => {
                    send(&far.unwrap(), b"x").await;
                    assert_eq!(receive(&near, 1).await, b"x");
                }
                Some(expected) => {
                    let why = refusal(far);
                    assert!(why.contains(expected), "{why}");
                    let (_, result) = near.read(IoBuf::zeroed(1)).await;
                    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidData);
                }
            }
        });
    }
}

#[test]
fn garbage_instead_of_a_hello_is_refused() {
    let hello = b"\x16\x03\x01\x00\x04\xff\x00\x00\x00".as_slice();
    for (seed, garbage) in [
        b"GET / HTTP/1.1\r\n\r\n".as_slice(),
        &[0; 64],
        &[0xff; 64],
        hello,
        // The longest that a message of a handshake may claim to be.
        b"\x16\x03\x01\x40\x00\x01\xff\xff\xff",
    ]
    .into_iter()
    .enumerate()
    {
        let world = world(10 + seed as u64, NetworkConfig::default());
        let platform = world.platform(0);
        world.block_on(0, async move {
            let party = Party::new();
            let (near, far) = pair(&platform).await;
            let there = platform.clone();
            let (promise, accepted) = flagstone_platform::sync::promise();
            platform.spawn(async move {
                promise.fulfil(TlsStream::accept(&there, far, &party.server, &[]).await);
            });
            send(&near, garbage).await;
            near.close_writing();
            match accepted.await.unwrap() {
                Err(HandshakeError::Refused(_)) => {
                    // An alert.
                    assert_eq!(receive(&near, 7).await[0], 0x15);
                }
                Err(HandshakeError::Closed) => assert!(garbage.len() < 16),
                other => panic!("{other:?}"),
            }
        });
    }
}

/// A stream that is shut down ends the handshake, whoever keeps silent: that is how its time is limited.
#[test]
fn a_shutdown_ends_a_handshake() {
    let world = world(20, NetworkConfig::default());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let party = Party::new();
        let (near, far) = pair(&platform).await;
        let (there, handle) = (platform.clone(), far.clone());
        platform.spawn(async move {
            there.sleep_ns(1_000_000_000).await;
            handle.shutdown();
        });
        let result = TlsStream::accept(&platform, far, &party.server, &[]).await;
        assert!(matches!(result, Err(HandshakeError::Closed)), "{result:?}");
        drop(near);
    });
}

#[test]
fn settings_say_what_is_wrong() {
    let ca = Authority::new("authority");
    let (one, other) = (ca.issue("node"), ca.issue("node"));
    let (certificate, key) = (one.certificate.as_bytes(), one.key.as_bytes());
    let error =
        |certificate, key, ca| ServerTls::from_pem(certificate, key, ca, false).unwrap_err();
    assert_eq!(error(b"", key, None), SettingsError::NoCertificate);
    assert_eq!(error(key, key, None), SettingsError::NoCertificate);
    assert_eq!(error(certificate, b"", None), SettingsError::NoKey);
    assert_eq!(error(certificate, certificate, None), SettingsError::NoKey);
    assert_eq!(
        error(certificate, other.key.as_bytes(), None),
        SettingsError::KeyMismatch
    );
    assert_eq!(
        error(certificate, key, Some(b"")),
        SettingsError::NoCertificate
    );
    let cut = &certificate[..certificate.len() / 2];
    assert!(matches!(error(cut, key, None), SettingsError::NotPem(_)));
    let damaged = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(
        error(damaged, key, None),
        SettingsError::BadCertificate(_)
    ));
    assert!(matches!(
        error(certificate, key, Some(damaged)),
        SettingsError::BadAuthority(_)
    ));
    let ca = ca.pem();
    let name = |name| ClientTls::from_pem(name, ca.as_bytes(), None).map(|_| ());
    assert_eq!(name(""), Err(SettingsError::BadName));
    assert_eq!(name("a b"), Err(SettingsError::BadName));
    assert_eq!(name("192.0.2.1"), Ok(()));
    assert_eq!(name("::1"), Ok(()));
}
