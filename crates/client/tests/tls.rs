//! A client whose connections have TLS.

use std::io;
use std::net::SocketAddr;

use flagstone_client::{Client, Connect, Durability, Error, Options, TlsConnect};
use flagstone_platform::{IoBuf, Listener, Platform, Stream};
use flagstone_sim::{SimNetwork, SimPlatform, SimStream};
use flagstone_tls::{ClientTls, ServerTls, TlsStream};

use crate::basics::{MS, SHARED, Stage, block, target};

struct Plain(SimNetwork);

impl Connect for Plain {
    type Stream = SimStream;

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<SimStream>> + 'static {
        self.0.connect(&address.to_string())
    }
}

const FRONT: &str = "10.9.9.9:1";

/// Takes connections with TLS and passes what they bring on to a server without.
fn front(stage: &Stage, tls: ServerTls) {
    let platform = stage.world.platform(0);
    let behind = stage.server.with(|state| state.addresses[0]);
    let listener = platform.network().listen(FRONT).unwrap();
    platform.clone().spawn(async move {
        loop {
            let stream = listener.accept().await.unwrap();
            let (platform, tls) = (platform.clone(), tls.clone());
            platform.clone().spawn(async move {
                let Ok(near) = TlsStream::accept(&platform, stream, &tls, &[]).await else {
                    return;
                };
                let far = platform.network().connect(&behind.to_string()).await;
                let far = far.unwrap();
                platform.spawn(pass(near.clone(), far.clone()));
                platform.spawn(pass(far, near));
            });
        }
    });
}

async fn pass<A: Stream, B: Stream>(from: A, to: B) {
    loop {
        let (buf, result) = from.read(IoBuf::zeroed(10_000)).await;
        let count = result.unwrap_or(0);
        if count == 0 || to.write_all(vec![buf.narrow(0..count)]).await.1.is_err() {
            to.shutdown();
            return;
        }
    }
}

/// A node's certificate, and the authority that a client trusts.
fn settings(name: &str) -> (ServerTls, ClientTls) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let (certificate, key) = (certificate.as_bytes(), key.serialize_pem());
    (
        ServerTls::from_pem(certificate, key.as_bytes(), None, true).unwrap(),
        ClientTls::from_pem(name, certificate, None).unwrap(),
    )
}

type Secured = Client<SimPlatform, TlsConnect<SimPlatform, Plain>>;

fn client(stage: &Stage, connect: TlsConnect<SimPlatform, Plain>) -> Secured {
    let mut options = Options::new(vec![FRONT.parse().unwrap()], "test");
    options.call_timeout_ns = 2_000 * MS;
    Client::new(stage.world.platform(0), connect, options)
}

#[test]
fn a_volume_is_used_over_tls() {
    for (name, by_address) in [("node", false), ("10.9.9.9", true)] {
        let stage = Stage::new(1);
        let (server, tls) = settings(name);
        front(&stage, server);
        let plain = Plain(stage.world.network());
        let platform = stage.world.platform(0);
        let connect = match by_address {
            true => TlsConnect::by_address(platform, plain, tls),
            false => TlsConnect::new(platform, plain, tls),
        };
        let (client, token) = (client(&stage, connect), stage.token.clone());
        let network = stage.world.network();
        stage.run(async move {
            let volume = client.open(target(), token, SHARED).await.unwrap();
            volume
                .write(0, block(5), Durability::Durable)
                .await
                .unwrap();
            // What was carried out is not repeated, and the rest is.
            network.reset_all();
            volume
                .write(0, block(6), Durability::Durable)
                .await
                .unwrap();
            let read = volume.read(0, 8).await.unwrap();
            assert_eq!(read[..8], 6_u64.to_le_bytes());
        });
        assert_eq!(stage.log(), [5, 6]);
        stage.rules_hold();
    }
}

#[test]
fn a_server_that_is_not_trusted_gets_no_request() {
    let stage = Stage::new(2);
    let ((server, _), (_, tls)) = (settings("node"), settings("node"));
    front(&stage, server);
    let plain = Plain(stage.world.network());
    let connect = TlsConnect::new(stage.world.platform(0), plain, tls);
    let (client, token) = (client(&stage, connect), stage.token.clone());
    let error = stage.run(async move {
        let opened = client.open(target(), token, SHARED).await;
        opened.map(|_| ()).unwrap_err()
    });
    assert!(matches!(error, Error::NotCarriedOut(_)), "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
}
