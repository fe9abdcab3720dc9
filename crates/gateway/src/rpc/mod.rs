//! ONC RPC version 2: what all protocols of the NFS family are carried in. [rfc5531 9]
//!
//! Pure codecs over [`crate::xdr`], no I/O: [`record`] (where a message ends in a TCP stream),
//! [`call`] (call headers and credentials), [`reply`] (reply headers). What is supported and what is
//! refused in which way: `docs/protocols/nfs3.md`.

pub mod call;
pub mod record;
pub mod reply;
pub mod server;

/// The version of RPC itself.
pub const RPC_VERSION: u32 = 2;

/// Says that a message is a call. [rfc5531 9]
const CALL: u32 = 0;
/// Says that a message is a reply.
const REPLY: u32 = 1;

/// Program numbers that we serve or call. [rfc1833 3.1] [rfc1813 2.2]
pub mod program {
    /// The portmapper, and rpcbind.
    pub const PORTMAP: u32 = 100_000;
    /// NFS.
    pub const NFS: u32 = 100_003;
    /// MOUNT. [rfc1813 5.1.2]
    pub const MOUNT: u32 = 100_005;
    /// POSIX ACLs beside NFS version 3.
    pub const NFS_ACL: u32 = 100_227;
}
