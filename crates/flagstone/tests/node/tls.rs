//! A node that wants TLS: both protocols do, on all cores, and its volumes are shown so.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use flagstone_tls::ServerTls;

use crate::support::Scene;

pub(crate) fn tls() -> ServerTls {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["node".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let key = key.serialize_pem();
    ServerTls::from_pem(certificate.as_bytes(), key.as_bytes(), None, true).expect("good")
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).expect("a time-out");
    stream
}

/// The kind of the answer to an option without data.
fn ask(stream: &mut TcpStream, option: u32) -> u32 {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend([0; 4]);
    stream.write_all(&bytes).expect("sent");
    let mut head = [0; 20];
    stream.read_exact(&mut head).expect("an answer");
    let [.., k0, k1, k2, k3, l0, l1, l2, l3] = head;
    let len = u32::from_be_bytes([l0, l1, l2, l3]);
    stream
        .read_exact(&mut vec![0; len as usize])
        .expect("a sentence");
    u32::from_be_bytes([k0, k1, k2, k3])
}

#[test]
fn a_node_that_wants_tls_serves_nobody_without() {
    let scene = Scene::with(|options| {
        options.tls = Some(tls());
        options.native = Some("127.0.0.1:0".parse().expect("an address"));
    });
    scene.create("disk", 1 << 20).expect("made");
    let shown = scene.show("disk").expect("there");
    assert_eq!(shown.export_url, format!("nbds://{}/disk", scene.tcp));

    const LIST: u32 = 3;
    const STARTTLS: u32 = 5;
    const TLS_REQD: u32 = 1 << 31 | 5;
    const ACK: u32 = 1;
    const ALERT: u8 = 0x15;
    let mut nbd = connect(scene.tcp);
    nbd.read_exact(&mut [0; 18]).expect("a greeting");
    nbd.write_all(&3u32.to_be_bytes()).expect("sent");
    assert_eq!(ask(&mut nbd, LIST), TLS_REQD);
    assert_eq!(ask(&mut nbd, STARTTLS), ACK);
    nbd.write_all(&[0xff; 64]).expect("sent");
    let mut first = [0];
    nbd.read_exact(&mut first).expect("an alert");
    assert_eq!(first, [ALERT]);

    let info = scene.ask(|node| node.info()).expect("its description");
    let native = info.native_addresses[0].parse().expect("an address");
    // HELLO is not even looked at.
    let mut plain = connect(native);
    plain.write_all(&[1; 100]).expect("sent");
    assert!(matches!(plain.read(&mut first), Ok(0) | Err(_)));
    let mut garbage = connect(native);
    garbage
        .write_all(&[&[0x16][..], &[0xff; 63]].concat())
        .expect("sent");
    garbage.read_exact(&mut first).expect("an alert");
    assert_eq!(first, [ALERT]);
}
