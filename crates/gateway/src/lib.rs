//! Protocol servers. Thin: decode, call one function of [`volume::Volume`], encode.
//!
//! Promises: a gateway keeps no state that matters; what it answers as stable is stable; bytes from
//! a client never make it panic, and one client can't hurt another.
//!
//! Read first: [`volume`], then `nbd`. Of NFS there are the lowest codecs only: [`xdr`], [`rpc`].
//! Protocol page: `docs/protocols/nbd.md`.

pub mod nbd;
pub mod rpc;
pub mod volume;
pub mod xdr;
