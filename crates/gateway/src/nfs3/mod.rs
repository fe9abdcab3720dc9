//! NFS version 3 and the protocols around it, as bytes. There is no server yet.
//!
//! Pure codecs over [`crate::xdr`] behind the headers of [`crate::rpc`]: [`wire`] (the 22 procedures),
//! [`mount`] (handles of exports), [`acl`] (POSIX ACLs), [`portmap`] (who listens where). Decoding
//! borrows from the record; payload is passed by as a range of bytes. Limits and decisions:
//! `docs/protocols/nfs3.md`.

pub mod acl;
pub mod mount;
pub mod portmap;
pub mod wire;
