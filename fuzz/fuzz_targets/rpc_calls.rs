//! Bytes of a client as a stream of RPC records: calls of NFS, MOUNT, NFSACL and the portmapper. The
//! first byte chooses the portions in which the stream arrives.
#![no_main]

#[path = "../../crates/gateway/tests/nfs_support/mod.rs"]
mod nfs_support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let [first, stream @ ..] = bytes {
        let whole = nfs_support::cases::stream(stream, usize::MAX);
        assert_eq!(
            nfs_support::cases::stream(stream, usize::from(*first)),
            whole
        );
        // Also without the chance to lose step.
        nfs_support::cases::call(stream);
    }
});
