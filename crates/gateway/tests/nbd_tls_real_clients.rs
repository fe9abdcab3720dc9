//! Stock clients that speak TLS (GnuTLS in all of them) against the gateway on the real platform. As in
//! `nbd_real_clients`, one that is not installed is skipped.

use crate::nbd_real_clients::{SIZE, TempDir, installed, run, sample, text};
use crate::node;

use std::fs;
use std::process::Command;

use flagstone_tls::ServerTls;
use node::{Node, Plan};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
}

/// A certificate and its key, as PEM.
fn issue(authority: &Authority, name: &str) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, authority).expect("signed");
    (certificate.pem(), key.serialize_pem())
}

/// A node that wants TLS, and two folders as clients of libnbd and QEMU have them: with a certificate of their own
/// and without.
fn start(folder: &TempDir, asks_clients: bool) -> Node {
    let (nodes, clients) = (authority("nodes"), authority("clients"));
    let (certificate, key) = issue(&nodes, "127.0.0.1");
    let client_ca = asks_clients.then(|| clients.pem());
    let tls = ServerTls::from_pem(
        certificate.as_bytes(),
        key.as_bytes(),
        client_ca.as_deref().map(str::as_bytes),
        true,
    );
    for name in ["with", "without"] {
        fs::create_dir_all(folder.path(name)).expect("a folder");
        fs::write(folder.path(name).join("ca-cert.pem"), nodes.pem()).expect("written");
    }
    let (certificate, key) = issue(&clients, "client");
    let with = folder.path("with");
    fs::write(with.join("client-cert.pem"), certificate).expect("written");
    fs::write(with.join("client-key.pem"), key).expect("written");
    let plan = |name, core| Plan {
        name,
        size_bytes: SIZE,
        core,
    };
    let plans = vec![plan("disk", 0), plan("far", 1)];
    Node::start_with_tls(2, folder.0.clone(), plans, 0, tls.ok())
}

fn uri(node: &Node, folder: &TempDir, certificates: &str, export: &str) -> String {
    let folder = text(&folder.path(certificates));
    format!("nbds://{}/{export}?tls-certificates={folder}", node.tcp)
}

/// What a tool says that must fail.
fn fail(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool).args(arguments).output();
    let output = output.expect("the tool runs");
    assert!(!output.status.success(), "{tool} {arguments:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// To and from volumes of both cores, one of which the connection moves to after it has begun TLS.
#[test]
fn nbdcopy_and_nbdinfo() {
    if !installed("nbdinfo") || !installed("nbdcopy") {
        return;
    }
    let folder = TempDir::new("tls-libnbd");
    let node = start(&folder, true);
    let info = run("nbdinfo", &[&uri(&node, &folder, "with", "far")]);
    assert!(info.contains("newstyle-fixed with TLS"), "{info}");
    let list = run("nbdinfo", &["--list", &uri(&node, &folder, "with", "")]);
    assert!(list.contains("export=\"disk\""), "{list}");
    let (image, copy) = (folder.path("image"), folder.path("copy"));
    sample(&image);
    for export in ["disk", "far"] {
        let uri = uri(&node, &folder, "with", export);
        run("nbdcopy", &[&text(&image), &uri]);
        run("nbdcopy", &[&uri, &text(&copy)]);
        assert!(fs::read(&image).expect("read") == fs::read(&copy).expect("read"));
    }
    // Without a certificate of its own, and without TLS, a client gets nothing.
    fail("nbdinfo", &[&uri(&node, &folder, "without", "disk")]);
    fail("nbdinfo", &[&node.uri("disk")]);
}

#[test]
fn qemu_img_and_qemu_io() {
    if !installed("qemu-img") || !installed("qemu-io") {
        return;
    }
    let folder = TempDir::new("tls-qemu");
    let node = start(&folder, false);
    let certificates = text(&folder.path("without"));
    let object = format!("tls-creds-x509,id=tls0,endpoint=client,dir={certificates}");
    let (host, port) = node.tcp.split_once(':').expect("an address");
    let disk = format!("driver=nbd,host={host},port={port},export=far,tls-creds=tls0");
    let (image, copy) = (folder.path("image"), folder.path("copy"));
    sample(&image);
    run(
        "qemu-img",
        &[
            "convert",
            "-n",
            "-f",
            "raw",
            "--object",
            &object,
            "--target-image-opts",
            &text(&image),
            &disk,
        ],
    );
    run(
        "qemu-img",
        &[
            "convert",
            "-O",
            "raw",
            "--object",
            &object,
            "--image-opts",
            &disk,
            &text(&copy),
        ],
    );
    assert!(fs::read(&image).expect("read") == fs::read(&copy).expect("read"));
    let said = run(
        "qemu-io",
        &[
            "--object",
            &object,
            "--image-opts",
            &disk,
            "-c",
            "write -P 7 4096 1M",
            "-c",
            "flush",
            "-c",
            "read -P 7 4096 1M",
        ],
    );
    assert!(!said.contains("verification failed"), "{said}");
    let plain = format!("nbd://{}/disk", node.tcp);
    let said = fail("qemu-img", &["info", &plain]);
    assert!(said.contains("TLS"), "{said}");
}
