//! The portmapper (version 2) and rpcbind (versions 3 and 4): which program listens on which port.
//! [rfc1833 2] [rfc1833 3]
//!
//! As a server we answer NULL, GETPORT and DUMP, where port 111 is free, and GETADDR. As a client we
//! SET and UNSET our programs with the portmapper that runs.

use std::net::SocketAddr;

use crate::rpc::call::{Call, Credential, put_call};
use crate::rpc::program;
use crate::xdr::{Reader, Writer, XdrError};

/// The version of the portmapper.
pub const VERSION: u32 = 2;
/// The versions of rpcbind that know GETADDR as we do.
pub const RPCBIND_VERSIONS: [u32; 2] = [3, 4];
/// Where it listens.
pub const PORT: u16 = 111;
/// The longest network name, address or owner in rpcbind's arguments, in bytes. The standard has no
/// limit; an address with its port has 64 at most.
pub const TEXT_BYTES_MAX: u32 = 255;

/// Procedures of version 2. [rfc1833 3.2] GETADDR has GETPORT's number in versions 3 and 4.
pub mod procedure {
    /// Does nothing.
    pub const NULL: u32 = 0;
    /// Enters a program.
    pub const SET: u32 = 1;
    /// Strikes a program out.
    pub const UNSET: u32 = 2;
    /// The port of a program.
    pub const GETPORT: u32 = 3;
    /// All programs.
    pub const DUMP: u32 = 4;
}

/// Numbers of transports. [rfc1833 3.1]
pub mod transport {
    /// TCP.
    pub const TCP: u32 = 6;
    /// UDP.
    pub const UDP: u32 = 17;
}

/// A program and its port. [rfc1833 3.1, mapping]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// One of [`transport`].
    pub transport: u32,
    /// Its port; anything in a GETPORT.
    pub port: u32,
}

impl Mapping {
    fn decode(record: &mut Reader<'_>) -> Result<Mapping, XdrError> {
        Ok(Mapping {
            program: record.u32()?,
            version: record.u32()?,
            transport: record.u32()?,
            port: record.u32()?,
        })
    }

    fn put(&self, out: &mut Writer<'_>) {
        out.u32(self.program);
        out.u32(self.version);
        out.u32(self.transport);
        out.u32(self.port);
    }
}

/// A call's arguments, in version 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arguments {
    /// Nothing.
    Null,
    /// We serve our own programs only: answer false.
    Set(Mapping),
    /// We serve our own programs only: answer false.
    Unset(Mapping),
    /// [rfc1833 3.2]
    GetPort(Mapping),
    /// [rfc1833 3.2]
    Dump,
}

impl Arguments {
    /// Reads the arguments of a procedure; `None` if there is no such procedure.
    pub fn decode(procedure: u32, record: &mut Reader<'_>) -> Option<Result<Arguments, XdrError>> {
        Some(match procedure {
            procedure::NULL => Ok(Arguments::Null),
            procedure::SET => Mapping::decode(record).map(Arguments::Set),
            procedure::UNSET => Mapping::decode(record).map(Arguments::Unset),
            procedure::GETPORT => Mapping::decode(record).map(Arguments::GetPort),
            procedure::DUMP => Ok(Arguments::Dump),
            _ => return None,
        })
    }
}

/// Whether a SET or UNSET has worked.
pub fn put_bool(out: &mut Writer<'_>, worked: bool) {
    out.bool(worked);
}

/// The port that GETPORT asked for; zero if there is none. [rfc1833 3.2]
pub fn put_port(out: &mut Writer<'_>, port: u16) {
    out.u32(u32::from(port));
}

/// All programs, for DUMP. [rfc1833 3.2]
pub fn put_mappings(out: &mut Writer<'_>, mappings: &[Mapping]) {
    for mapping in mappings {
        out.bool(true);
        mapping.put(out);
    }
    out.bool(false);
}

/// What rpcbind's GETADDR asks for. [rfc1833 2.1, rpcb]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GetAddr<'a> {
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Name of the network: `tcp`, `tcp6`, or anything else.
    pub network: &'a [u8],
    /// The address at which the client reached us, or nothing.
    pub address: &'a [u8],
}

impl<'a> GetAddr<'a> {
    /// Reads the arguments.
    pub fn decode(record: &mut Reader<'a>) -> Result<GetAddr<'a>, XdrError> {
        let asked = GetAddr {
            program: record.u32()?,
            version: record.u32()?,
            network: record.opaque("network", TEXT_BYTES_MAX)?,
            address: record.opaque("address", TEXT_BYTES_MAX)?,
        };
        record.opaque("owner", TEXT_BYTES_MAX)?;
        Ok(asked)
    }
}

/// The address that GETADDR asked for; empty if there is none.
pub fn put_address(out: &mut Writer<'_>, address: Option<SocketAddr>) {
    let text = address.map_or_else(String::new, universal_address);
    out.opaque(text.as_bytes());
}

/// An address and its port the way rpcbind writes them: the port's two bytes behind further dots.
fn universal_address(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// A whole call that enters a program with the portmapper, or strikes it out, which looks at neither
/// transport nor port. The result is [a boolean](crate::xdr::Reader::bool) behind the
/// [reply's header](crate::rpc::reply::decode_reply).
pub fn put_registration(out: &mut Writer<'_>, xid: u32, mapping: &Mapping, is_entered: bool) {
    let call = Call {
        xid,
        program: program::PORTMAP,
        version: VERSION,
        procedure: if is_entered {
            procedure::SET
        } else {
            procedure::UNSET
        },
        credential: Credential::None,
    };
    put_call(out, &call);
    mapping.put(out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::call::decode_call;

    const NFS: Mapping = Mapping {
        program: program::NFS,
        version: 3,
        transport: transport::TCP,
        port: 2049,
    };

    const NFS_BYTES: [u8; 16] = [
        0, 1, 0x86, 0xa3, // program
        0, 0, 0, 3, // version
        0, 0, 0, 6, // TCP
        0, 0, 8, 1, // port
    ];

    /// [rfc1833 3.1] test
    #[test]
    fn calls_by_hand() {
        let decode = |number| Arguments::decode(number, &mut Reader::new(&NFS_BYTES));
        assert_eq!(decode(0), Some(Ok(Arguments::Null)));
        assert_eq!(decode(1), Some(Ok(Arguments::Set(NFS))));
        assert_eq!(decode(2), Some(Ok(Arguments::Unset(NFS))));
        assert_eq!(decode(3), Some(Ok(Arguments::GetPort(NFS))));
        assert_eq!(decode(4), Some(Ok(Arguments::Dump)));
        // CALLIT lets others call in our name: there is none.
        assert_eq!(decode(5), None);
        for end in 0..NFS_BYTES.len() {
            for number in 1..=3 {
                let cut = Arguments::decode(number, &mut Reader::new(&NFS_BYTES[..end]));
                assert!(matches!(cut, Some(Err(XdrError::Truncated { .. }))));
            }
        }
    }

    /// [rfc1833 3.2] test
    #[test]
    fn answers_by_hand() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        put_port(&mut writer, 2049);
        put_bool(&mut writer, false);
        put_mappings(&mut writer, &[NFS]);
        let expected = [
            &[0, 0, 8, 1][..],
            &[0, 0, 0, 0],
            &[0, 0, 0, 1],
            &NFS_BYTES,
            &[0, 0, 0, 0],
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn our_own_registration_is_a_call() {
        for (is_entered, expected) in [(true, Arguments::Set(NFS)), (false, Arguments::Unset(NFS))]
        {
            let mut out = Vec::new();
            put_registration(&mut Writer::new(&mut out), 7, &NFS, is_entered);
            let mut record = Reader::new(&out);
            let call = decode_call(&mut record).expect("a call");
            assert_eq!((call.xid, call.program, call.version), (7, 100_000, 2));
            let arguments = Arguments::decode(call.procedure, &mut record);
            assert_eq!(arguments, Some(Ok(expected)));
            assert_eq!(record.left_bytes(), 0);
        }
    }

    /// [rfc1833 2.1] test
    #[test]
    fn rpcbind_by_hand() {
        let bytes = [
            &NFS_BYTES[..8],
            &[0, 0, 0, 4],
            b"tcp6",
            &[0, 0, 0, 0, 0, 0, 0, 2],
            b"me\0\0",
        ]
        .concat();
        let expected = GetAddr {
            program: program::NFS,
            version: 3,
            network: b"tcp6",
            address: b"",
        };
        assert_eq!(GetAddr::decode(&mut Reader::new(&bytes)), Ok(expected));
        for end in 0..bytes.len() {
            let cut = GetAddr::decode(&mut Reader::new(&bytes[..end]));
            assert!(matches!(cut, Err(XdrError::Truncated { .. })));
        }
        let address = |text: &str| {
            let mut out = Vec::new();
            let address = text.parse().expect("an address");
            put_address(&mut Writer::new(&mut out), Some(address));
            out
        };
        assert_eq!(address("10.1.2.3:2049")[4..], *b"10.1.2.3.8.1");
        assert_eq!(address("[::1]:111")[4..], *b"::1.0.111\0\0\0");
        let mut out = Vec::new();
        put_address(&mut Writer::new(&mut out), None);
        assert_eq!(out, [0; 4]);
    }
}
