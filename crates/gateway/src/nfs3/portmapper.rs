//! The portmapper as a service of its own, for where nobody else listens on port 111: it says on which port
//! our programs are, and nothing else. [rfc1833]
//!
//! QEMU's and other clients built on libnfs know no other way to find a server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use flagstone_fs::Pieces;

use super::portmap::{
    Arguments, GetAddr, Mapping, RPCBIND_VERSIONS, VERSION, procedure, put_address, put_bool,
    put_mappings, put_port, transport,
};
use crate::rpc::call::{Call, decode_call};
use crate::rpc::program;
use crate::rpc::reply::{Accepted, put_accepted};
use crate::rpc::server::{Answer, Plan, Request, Service};
use crate::xdr::{Reader, Writer};

/// What an answer takes, in bytes: a handful of programs.
const ANSWER_BYTES: u64 = 512;

/// Where NFS and MOUNT are, both in version 3 and on one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portmapper {
    /// Their port.
    pub port: u16,
}

impl Portmapper {
    fn mappings(&self) -> [Mapping; 3] {
        let at = |program, version, port: u16| Mapping {
            program,
            version,
            transport: transport::TCP,
            port: u32::from(port),
        };
        [
            at(program::PORTMAP, VERSION, super::portmap::PORT),
            at(program::NFS, super::wire::VERSION, self.port),
            at(program::MOUNT, super::mount::VERSION, self.port),
        ]
    }

    /// Zero if there is no such program. A version that it doesn't have is asked for by clients that want
    /// to hear so from the program itself. [rfc1833 3.2]
    fn port_of(&self, program: u32, transport: u32) -> u16 {
        let mappings = self.mappings();
        let found = mappings
            .iter()
            .find(|mapping| mapping.program == program && mapping.transport == transport);
        found.map_or(0, |mapping| mapping.port as u16)
    }

    fn carry_out(
        &self,
        call: &Call<'_>,
        record: &mut Reader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Accepted> {
        if call.program != program::PORTMAP {
            return Err(Accepted::ProgramUnavailable);
        }
        if call.version == VERSION {
            return self.version_2(call, record, out);
        }
        if !RPCBIND_VERSIONS.contains(&call.version) {
            let [_, high] = RPCBIND_VERSIONS;
            return Err(Accepted::ProgramMismatch { low: VERSION, high });
        }
        match call.procedure {
            procedure::NULL => {
                succeed(call, out);
                Ok(())
            }
            procedure::GETPORT => {
                let asked = GetAddr::decode(record).map_err(|_| Accepted::GarbageArguments)?;
                let address = self.address_of(&asked);
                put_address(&mut succeed(call, out), address);
                Ok(())
            }
            _ => Err(Accepted::ProcedureUnavailable),
        }
    }

    /// At the address at which the client has reached us, if it says so: then it can go on from there.
    fn address_of(&self, asked: &GetAddr<'_>) -> Option<SocketAddr> {
        let any: IpAddr = match asked.network {
            b"tcp" => Ipv4Addr::UNSPECIFIED.into(),
            b"tcp6" => Ipv6Addr::UNSPECIFIED.into(),
            _ => return None,
        };
        let port = self.port_of(asked.program, transport::TCP);
        let here = host_of(asked.address).filter(|here| here.is_ipv4() == any.is_ipv4());
        (port != 0).then(|| SocketAddr::new(here.unwrap_or(any), port))
    }

    fn version_2(
        &self,
        call: &Call<'_>,
        record: &mut Reader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Accepted> {
        let arguments = Arguments::decode(call.procedure, record);
        let arguments = arguments
            .ok_or(Accepted::ProcedureUnavailable)?
            .map_err(|_| Accepted::GarbageArguments)?;
        let mut out = succeed(call, out);
        match arguments {
            Arguments::Null => {}
            Arguments::Set(_) | Arguments::Unset(_) => put_bool(&mut out, false),
            Arguments::GetPort(asked) => {
                put_port(&mut out, self.port_of(asked.program, asked.transport));
            }
            Arguments::Dump => put_mappings(&mut out, &self.mappings()),
        }
        Ok(())
    }
}

/// The host in an address with its port as rpcbind writes it. [rfc1833 2.1]
fn host_of(address: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(address).ok()?;
    let (rest, _low) = text.rsplit_once('.')?;
    let (host, _high) = rest.rsplit_once('.')?;
    host.parse().ok()
}

/// Writes the header of a reply that has a result.
fn succeed<'o>(call: &Call<'_>, out: &'o mut Vec<u8>) -> Writer<'o> {
    let mut out = Writer::new(out);
    put_accepted(&mut out, call.xid, Accepted::Success);
    out
}

impl Service for Portmapper {
    type Note = ();

    fn plan(&self, _: &Call<'_>, _: Reader<'_>) -> Plan {
        Plan {
            answer_bytes: ANSWER_BYTES,
            payload: None,
        }
    }

    async fn serve(&self, request: Request, out: &mut Vec<u8>) -> Answer<()> {
        let mut record = request.reader();
        match decode_call(&mut record) {
            Ok(call) => {
                if let Err(refused) = self.carry_out(&call, &mut record, out) {
                    put_accepted(&mut Writer::new(out), call.xid, refused);
                }
            }
            // It was decoded once already.
            Err(_) => put_accepted(&mut Writer::new(out), 0, Accepted::SystemError),
        }
        Answer {
            payload: Pieces::new(),
            payload_bytes: 0,
            note: (),
        }
    }

    fn note_sent(&self, (): (), _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_in_universal_addresses() {
        let host = |address: &str| host_of(address.as_bytes()).map(|host| host.to_string());
        assert_eq!(host("192.0.2.7.0.111").as_deref(), Some("192.0.2.7"));
        assert_eq!(host("::1.8.1").as_deref(), Some("::1"));
        assert_eq!(host("2001:db8::7.8.1").as_deref(), Some("2001:db8::7"));
        for bad in ["", ".", "..", "192.0.2.7", "\u{7f}.1.1"] {
            assert_eq!(host(bad), None, "{bad}");
        }
    }
}
