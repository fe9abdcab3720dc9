//! Records of every kind, right, nearly right or nonsense, checked against a state and applied to it:
//! none of them makes the state panic, and what passes leaves an image that `verify` calls clean. The
//! input is the choices that the generator makes.

#![no_main]

use flagstone_device::offline::verify::{Options, verify};
use libfuzzer_sys::fuzz_target;
use support::{Builder, Rng, records, script};

#[path = "../../crates/device/tests/support/mod.rs"]
mod support;

fuzz_target!(|data: &[u8]| {
    let Some((&seed, mut choices)) = data.split_first() else {
        return;
    };
    let mut builder = Builder::format(2 * 32_768 + 300, 1, 512);
    builder.start(0);
    builder.reserve(0, 0);
    script::run(&mut builder, 0, &mut Rng::new(u64::from(seed % 16)), 30);
    builder.checkpoint(0, false);
    while !choices.is_empty() && builder.ring_live(0).len() < 200 && builder.open_blocks(0) > 2000 {
        let mut choose = |below: u64| {
            let mut bytes = [0; 8];
            let len = choices.len().min(if below > 256 { 2 } else { 1 });
            bytes[..len].copy_from_slice(&choices[..len]);
            choices = &choices[len..];
            u64::from_le_bytes(bytes) % below
        };
        let record = records::record(&builder, &mut choose);
        let Some(record) = records::through_the_device(&record) else {
            continue;
        };
        if builder.check(0, &record).is_err() {
            continue;
        }
        builder.unit(0, vec![record]);
        builder.flush();
        assert_eq!(builder.state(0).pool.misfit(), None);
    }
    // A last group says that all before it is there.
    builder.group(0, &[]);
    let report = verify(&builder.image, Options { fast: true }, &mut |_, _| {});
    assert!(report.is_clean(), "{}", report.words());
});
