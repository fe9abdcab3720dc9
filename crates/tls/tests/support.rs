//! Two ends of a stream in a simulated network, and certificates for them.

use std::rc::Rc;
use std::time::Duration;

use flagstone_platform::{IoBuf, Listener, Platform, Stream};
use flagstone_sim::{NetworkConfig, SimPlatform, SimStream, World, WorldConfig};
use flagstone_tls::{ClientTls, HandshakeError, ServerTls, TlsStream};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

pub type Tls = TlsStream<SimPlatform>;

/// An authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for this name, good until the last day of that year.
    pub fn issue_until(&self, name: &str, year: i32) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 12, 31);
        self.sign(params)
    }

    /// The same, good until so many nanoseconds after the beginning of 1970.
    pub fn issue_until_ns(&self, name: &str, until_ns: u64) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let until = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_nanos(until_ns);
        params.not_after = until;
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    pub fn issue(&self, name: &str) -> Identity {
        self.issue_until(name, 4000)
    }
}

/// A server called `node`, and clients that trust its authority.
pub struct Party {
    pub ca: Authority,
    pub server: ServerTls,
    pub client: ClientTls,
}

impl Party {
    pub fn new() -> Party {
        Party::of("authority")
    }

    pub fn of(authority: &str) -> Party {
        let ca = Authority::new(authority);
        let node = ca.issue("node");
        let (certificate, key) = (node.certificate.as_bytes(), node.key.as_bytes());
        Party {
            server: ServerTls::from_pem(certificate, key, None, false).unwrap(),
            client: ClientTls::from_pem("node", ca.pem().as_bytes(), None).unwrap(),
            ca,
        }
    }
}

pub fn world(seed: u64, network: NetworkConfig) -> World {
    World::with_config(WorldConfig {
        network,
        ..WorldConfig::new(seed)
    })
}

/// Both ends of a connection: the caller's first.
pub async fn pair(platform: &SimPlatform) -> (SimStream, SimStream) {
    let listener = platform.network().listen("node:1").unwrap();
    let called = platform.network().connect("node:1").await.unwrap();
    (called, listener.accept().await.unwrap())
}

pub type Shaken = (Result<Tls, HandshakeError>, Result<Tls, HandshakeError>);

/// Client and server shake hands.
pub async fn shake_hands(platform: &SimPlatform, client: ClientTls, server: ServerTls) -> Shaken {
    let (near, far) = pair(platform).await;
    let (promise, accepted) = flagstone_platform::sync::promise();
    let there = platform.clone();
    platform.spawn(async move {
        promise.fulfil(TlsStream::accept(&there, far, &server, &[]).await);
    });
    let connected = TlsStream::connect(platform, near, &client).await;
    (connected, accepted.await.unwrap())
}

/// The same, where both are content.
pub async fn shaken(platform: &SimPlatform, party: &Party) -> (Tls, Tls) {
    let (client, server) = (party.client.clone(), party.server.clone());
    let (near, far) = shake_hands(platform, client, server).await;
    (near.unwrap(), far.unwrap())
}

pub async fn send<S: Stream>(stream: &S, bytes: &[u8]) {
    let (_, result) = stream.write_all(vec![IoBuf::copy_of(bytes)]).await;
    result.unwrap();
}

pub async fn receive<S: Stream>(stream: &S, len: usize) -> Vec<u8> {
    let (buf, result) = stream.read_exact(IoBuf::zeroed(len)).await;
    result.unwrap();
    buf.to_vec()
}

/// Bytes that are nowhere the same.
pub fn pattern(len: usize, salt: u32) -> Rc<Vec<u8>> {
    let mut x = salt | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    };
    Rc::new((0..len).map(|_| next()).collect())
}
