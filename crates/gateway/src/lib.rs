//! Protocol servers. Thin: decode, call one function of a volume or a filesystem, encode.
//!
//! Promises: a gateway keeps no state that matters; what it answers as stable is stable; bytes from
//! a client never make it panic, and one client can't hurt another.
//!
//! Read first: [`volume`], then `nbd`. One volume out of several: [`striped`]. Everything that the device layer can do: [`native`]. NFS: [`nfs3`] over [`rpc`] over [`xdr`], on [`flagstone_fs::Files`].
//! What servers share: `inbox` (bytes in), `gathered` (bytes out), `window` (what may be in flight), `stall`, `sparingly` (the log).
//! Protocol pages: `docs/protocols/native.md`, `docs/protocols/nbd.md`, `docs/protocols/nfs3.md`.

mod gathered;
mod inbox;
pub mod native;
pub mod nbd;
pub mod nfs3;
pub mod rpc;
mod sparingly;
mod stall;
pub mod striped;
pub mod volume;
mod window;
pub mod xdr;
