//! How a volume is attached and a filesystem mounted: URLs, and command lines of stock clients that can be pasted.

use std::fmt::Write;
use std::net::SocketAddr;

use crate::size;

/// Where a node's NBD gateway answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdTarget {
    /// Host as a client on this machine writes it, without brackets.
    host: String,
    port: u16,
    /// Nothing but TLS is answered.
    is_secure: bool,
}

impl NbdTarget {
    /// The target behind a listening address. An unspecified address ("every address of this
    /// machine") becomes loopback, which can be connected to.
    pub fn new(address: SocketAddr) -> NbdTarget {
        let host = match address {
            SocketAddr::V4(v4) if v4.ip().is_unspecified() => "127.0.0.1".to_string(),
            SocketAddr::V6(v6) if v6.ip().is_unspecified() => "::1".to_string(),
            _ => address.ip().to_string(),
        };
        NbdTarget {
            host,
            port: address.port(),
            is_secure: false,
        }
    }

    /// The same; `is_secure` if clients have to begin TLS.
    pub fn with_tls(self, is_secure: bool) -> NbdTarget {
        NbdTarget { is_secure, ..self }
    }

    /// The URL of an export (`volume` or `volume@snapshot`).
    pub fn url(&self, export: &str) -> String {
        let scheme = scheme(self.is_secure);
        format!("{scheme}://{}:{}/{export}", self.host_in_url(), self.port)
    }

    fn host_in_url(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        }
    }
}

/// [nbduri "NBD URI scheme"] how a URL says that TLS is required.
fn scheme(is_secure: bool) -> &'static str {
    if is_secure { "nbds" } else { "nbd" }
}

/// Where a node's NFS server answers, MOUNT included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NfsTarget(NbdTarget);

impl NfsTarget {
    /// The target behind a listening address, as for NBD.
    pub fn new(address: SocketAddr) -> NfsTarget {
        NfsTarget(NbdTarget::new(address))
    }

    /// The URL of a path in a filesystem (`data`, `data@monday/file`), as libnfs takes it: it would ask a
    /// portmapper if it weren't told both ports.
    pub fn url(&self, path: &str) -> String {
        let (host, port) = (self.0.host_in_url(), self.0.port);
        format!("nfs://{host}/{path}?version=3&nfsport={port}&mountport={port}")
    }

    /// What a Linux client types.
    pub fn mount_command(&self, filesystem: &str) -> String {
        let (host, port) = (self.0.host_in_url(), self.0.port);
        format!(
            "mount -t nfs -o port={port},mountport={port},vers=3,tcp,nolock {host}:/{filesystem} /mnt"
        )
    }
}

/// The lines that use a filesystem: the kernel's client, one that needs no root, and a virtual machine, whose
/// client asks a portmapper and has no other way.
pub fn mount_lines(target: &NfsTarget, filesystem: &str, has_portmapper: bool) -> String {
    let (mount, url) = (target.mount_command(filesystem), target.url(filesystem));
    let file = target.url(&format!("{filesystem}/FILE"));
    let machine = match has_portmapper {
        true => format!(
            "qemu-system-x86_64 -m 2G -machine accel=kvm:tcg -drive file=nfs://{}/{filesystem}/IMAGE,if=virtio,format=raw",
            target.0.host_in_url()
        ),
        false => {
            "QEMU's nfs:// asks a portmapper, and none answers: start the node as root, or mount it"
                .to_owned()
        }
    };
    format!(
        "  mount            sudo {mount}\n  list             nfs-ls '{url}'\n  copy a file in   nfs-cp FILE '{file}'\n  virtual machine  {machine}\n"
    )
}

/// The URL of an export over a Unix socket; `is_secure` if clients have to begin TLS.
pub fn unix_url(socket: &str, export: &str, is_secure: bool) -> String {
    format!("{}+unix:///{export}?socket={socket}", scheme(is_secure))
}

/// The lines that attach `volume`: copying in and out, a virtual machine, the kernel's client, a
/// benchmark.
pub fn attach_lines(target: &NbdTarget, volume: &str, size_bytes: u64) -> String {
    if target.is_secure {
        return secure_lines(target, volume, size_bytes);
    }
    let url = target.url(volume);
    let NbdTarget { host, port, .. } = target;
    let mut text = String::new();
    let mut line = |what: &str, command: String| {
        // Writing to a string can't fail.
        let _ = writeln!(text, "  {what:<16}{command}");
    };
    line(
        "copy an image in",
        format!(" qemu-img convert -n -O raw IMAGE {url}"),
    );
    line("", format!(" nbdcopy disk.raw {url}"));
    line("copy it out", format!(" nbdcopy {url} disk.raw"));
    line(
        "virtual machine",
        " qemu-system-x86_64 -m 2G -machine accel=kvm:tcg -device virtio-blk-pci,drive=disk0 \\"
            .to_string(),
    );
    line(
        "",
        format!(
            "   -blockdev driver=nbd,node-name=disk0,server.type=inet,server.host={host},\
             server.port={port},export={volume},reconnect-delay=60,discard=unmap"
        ),
    );
    line(
        "kernel device",
        format!(" sudo nbd-client {host} {port} /dev/nbd0 -N {volume} -b 4096 -persist"),
    );
    line(
        "benchmark",
        format!(
            " fio --name={volume} --ioengine=nbd --uri={url} --rw=randread --bs=4k --iodepth=32 \
             --size={} --time_based --runtime=10",
            size::Size(size_bytes),
        ),
    );
    text
}

/// The same with TLS. `CERTS` is a folder with `ca-cert.pem`, and `client-cert.pem` and `client-key.pem` if clients
/// have to show a certificate: QEMU and libnbd name these files alike.
fn secure_lines(target: &NbdTarget, volume: &str, size_bytes: u64) -> String {
    let (host, port) = (&target.host, target.port);
    let url = format!("'{}?tls-certificates=CERTS'", target.url(volume));
    let size = size::Size(size_bytes);
    let object = "--object tls-creds-x509,id=tls0,endpoint=client,dir=CERTS";
    format!(
        "  copy an image in  qemu-img convert -n {object} \\\n\
         \x20                   --target-image-opts IMAGE driver=nbd,host={host},port={port},export={volume},tls-creds=tls0\n\
         \x20                   nbdcopy disk.raw {url}\n\
         \x20 copy it out       nbdcopy {url} disk.raw\n\
         \x20 virtual machine   qemu-system-x86_64 -m 2G -machine accel=kvm:tcg -device virtio-blk-pci,drive=disk0 \\\n\
         \x20                     -object tls-creds-x509,id=tls0,endpoint=client,dir=CERTS \\\n\
         \x20                     -blockdev driver=nbd,node-name=disk0,server.type=inet,server.host={host},\
         server.port={port},export={volume},tls-creds=tls0,reconnect-delay=60,discard=unmap\n\
         \x20 benchmark         fio --name={volume} --ioengine=nbd --uri={url} --rw=randread --bs=4k --iodepth=32 \
         --size={size} --time_based --runtime=10\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(address: &str) -> NbdTarget {
        NbdTarget::new(address.parse().expect("an address"))
    }

    #[test]
    fn urls_can_be_connected_to() {
        let cases = [
            ("127.0.0.1:10809", "nbd://127.0.0.1:10809/vol@snap"),
            ("0.0.0.0:4000", "nbd://127.0.0.1:4000/vol@snap"),
            ("[::]:4000", "nbd://[::1]:4000/vol@snap"),
            ("[fd00::7]:1", "nbd://[fd00::7]:1/vol@snap"),
        ];
        for (address, url) in cases {
            assert_eq!(target(address).url("vol@snap"), url);
        }
    }

    #[test]
    fn lines_to_mount() {
        let target = NfsTarget::new("0.0.0.0:12049".parse().expect("an address"));
        let mount =
            "mount -t nfs -o port=12049,mountport=12049,vers=3,tcp,nolock 127.0.0.1:/data /mnt";
        assert_eq!(target.mount_command("data"), mount);
        let lines = mount_lines(&target, "data", true);
        assert!(
            lines.contains("file=nfs://127.0.0.1/data/IMAGE,"),
            "{lines}"
        );
        let without = mount_lines(&target, "data", false);
        assert!(without.contains("none answers") && !without.contains("file="));
        assert!(lines.contains(&format!("sudo {mount}\n")), "{lines}");
        let url = "'nfs://127.0.0.1/data/FILE?version=3&nfsport=12049&mountport=12049'";
        assert!(lines.contains(url), "{lines}");
        let six = NfsTarget::new("[::1]:2049".parse().expect("an address"));
        assert!(six.mount_command("data").contains(" [::1]:/data /mnt"));
    }

    #[test]
    fn lines_to_paste() {
        let lines = attach_lines(&target("127.0.0.1:10809"), "demo", 1 << 30);
        insta::assert_snapshot!(lines);
    }

    #[test]
    fn lines_to_paste_with_tls() {
        let secure = target("127.0.0.1:10809").with_tls(true);
        assert_eq!(secure.url("v"), "nbds://127.0.0.1:10809/v");
        assert_eq!(unix_url("/s", "v", true), "nbds+unix:///v?socket=/s");
        let lines = attach_lines(&secure, "demo", 1 << 30);
        assert!(!lines.contains("nbd://"), "{lines}");
        insta::assert_snapshot!(lines);
    }
}
