//! Bytes of a client as an NBD negotiation: whole and in portions, with the same result; and the same where TLS is required.
#![no_main]

#[path = "../../crates/gateway/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let whole = support::cases::negotiation(bytes, bytes.len());
    let portion = 1 + bytes.len() % 13;
    assert_eq!(support::cases::negotiation(bytes, portion), whole);
    // Whether something came behind STARTTLS is up to the portions, so these results differ.
    support::cases::negotiation_with_tls(bytes, portion);
});
