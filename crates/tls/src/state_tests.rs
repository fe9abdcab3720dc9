//! Two states that talk to each other without a stream: what a peer can make one of them do.

use rcgen::{CertificateParams, KeyPair};
use rustls::{ClientConnection, ServerConnection};

use super::*;
use crate::settings::{ClientTls, ServerTls};

/// Moves what one side has to send to the other, which looks at all of it.
fn carry(from: &mut State, to: &mut State) -> Result<(), String> {
    while from.owes() {
        let mut buf = IoBuf::zeroed(SEALED_BYTES);
        let count = from.take_sealed(buf.bytes_mut()).unwrap();
        to.put(buf, count);
        while to.step()? {}
    }
    Ok(())
}

/// A client and a server that have shaken hands.
fn shaken() -> (State, State) {
    crate::clock::tell_ns(1_000_000_000 * 86_400 * 365 * 50);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["node".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let (certificate, key) = (certificate.as_bytes(), key.serialize_pem());
    let server = ServerTls::from_pem(certificate, key.as_bytes(), None, false).unwrap();
    let client = ClientTls::from_pem("node", certificate, None).unwrap();
    let client = ClientConnection::new(client.config(), client.server()).unwrap();
    let server = ServerConnection::new(server.config()).unwrap();
    let mut client = State::new(Box::new(client.into()), &[]);
    let mut server = State::new(Box::new(server.into()), &[]);
    while client.is_handshaking() || server.is_handshaking() {
        carry(&mut client, &mut server).unwrap();
        carry(&mut server, &mut client).unwrap();
    }
    (client, server)
}

fn say(from: &mut State, to: &mut State, text: &[u8]) {
    from.seal(&[IoSlice::new(text)]).unwrap();
    carry(from, to).unwrap();
    let mut out = vec![0; text.len()];
    assert_eq!(to.open(&mut out).unwrap(), Some(text.len()));
    assert_eq!(out, text);
}

/// [rfc8446 4.6.3] Either side may change its keys at any time, and ask the other to change its own.
#[test]
fn keys_change_on_the_way() {
    let (mut client, mut server) = shaken();
    say(&mut client, &mut server, b"old keys");
    for _ in 0..100 {
        client.connection.refresh_traffic_keys().unwrap();
        say(&mut client, &mut server, b"new keys");
        say(&mut server, &mut client, b"new keys of the other");
    }
}

/// A peer can't make us work, or keep, without end by what is no data.
#[test]
fn a_flood_of_key_changes_is_refused() {
    let (mut client, mut server) = shaken();
    let mut result = Ok(());
    let mut rounds = 0;
    while result.is_ok() && rounds < 1000 {
        client.connection.refresh_traffic_keys().unwrap();
        result = carry(&mut client, &mut server);
        rounds += 1;
    }
    assert!(result.unwrap_err().contains("TooManyKeyUpdateRequests"));
    let mut owed = vec![0; 1 << 20];
    let count = server.take_sealed(&mut owed).unwrap();
    assert!(count < 100, "{count} bytes are owed");
}

/// What is opened and not taken is one record, however much has come.
#[test]
fn what_nobody_takes_is_not_opened() {
    let (mut client, mut server) = shaken();
    client.seal(&[IoSlice::new(&[7; SEAL_BYTES])]).unwrap();
    let mut buf = IoBuf::zeroed(SEALED_BYTES);
    let count = client.take_sealed(buf.bytes_mut()).unwrap();
    assert!(!client.owes(), "what is sealed in one go is sent in one");
    server.put(buf, count);
    let mut one = [0];
    assert_eq!(server.open(&mut one).unwrap(), Some(1));
    assert!(count - server.unread().len() <= 24 << 10);
    let mut rest = vec![0; SEAL_BYTES];
    assert_eq!(server.open(&mut rest).unwrap(), Some(SEAL_BYTES - 1));
    assert_eq!(server.open(&mut rest).unwrap(), None);
}

/// Nothing counts behind the peer's good-bye, and nothing is looked at for ever.
#[test]
fn what_comes_behind_a_good_bye_is_left_out() {
    let (mut client, mut server) = shaken();
    client.seal_end();
    carry(&mut client, &mut server).unwrap();
    server.put(IoBuf::copy_of(&[7; 100]), 100);
    assert_eq!(server.step(), Ok(true));
    assert_eq!(server.step(), Ok(false));
    assert_eq!(server.open(&mut [0; 10]).unwrap(), Some(0));
}
