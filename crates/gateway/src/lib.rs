//! Protocol servers. Thin: decode, call one function of [`volume::Volume`], encode.
//!
//! Promises: a gateway keeps no state that matters; what it answers as stable is stable; bytes from
//! a client never make it panic, and one client can't hurt another.
//!
//! Read first: [`volume`], then `nbd`. Of NFS there are the codecs only: [`xdr`], [`rpc`], [`nfs3`].
//! Protocol pages: `docs/protocols/nbd.md`, `docs/protocols/nfs3.md`.

pub mod nbd;
pub mod nfs3;
pub mod rpc;
pub mod volume;
pub mod xdr;
