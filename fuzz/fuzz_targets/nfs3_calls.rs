//! Bytes of a client as arguments of NFS version 3. The first word picks the procedure.
#![no_main]

#[path = "../../crates/gateway/tests/nfs_support/mod.rs"]
mod nfs_support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    nfs_support::cases::nfs_call(bytes);
});
