//! A device whose metadata is changed at random, with all checksums made right again: `verify` and
//! `inspect` answer. The first bytes choose what is changed, the rest is what it is changed to.

#![no_main]

use std::sync::LazyLock;

use flagstone_device::format::table::TableKind;
use flagstone_device::offline::verify::{Options, verify};
use flagstone_device::offline::{Image, inspect};
use flagstone_types::Slot;
use libfuzzer_sys::fuzz_target;
use support::patch::{self, TestImage};
use support::{Builder, Rng, script};

#[path = "../../crates/device/tests/support/mod.rs"]
mod support;

/// The image to be changed, and slots in use on it.
static BASE: LazyLock<(TestImage, Vec<Slot>)> = LazyLock::new(|| {
    let mut rng = Rng::new(1);
    let mut builder = Builder::format(4600, 1, 128);
    builder.start(0);
    builder.reserve(0, 0);
    script::run(&mut builder, 0, &mut rng, 80);
    builder.checkpoint(0, false);
    let dvol = builder.create(0, "last", None);
    for start in 0..3 {
        let record = builder.data(0, dvol, start, 2, 0);
        builder.unit(0, vec![record]);
    }
    let slots = builder.state(0).slots().map(|(slot, _)| slot);
    let slots = slots.filter(|slot| *slot != dvol).collect();
    (builder.image, slots)
});

fuzz_target!(|data: &[u8]| {
    let [what, which, at_low, at_high, bytes @ ..] = data else {
        return;
    };
    let (mut image, slots) = (BASE.0.clone(), &BASE.1);
    let at = usize::from(u16::from_le_bytes([*at_low, *at_high]));
    let put = |block: &mut [u8]| {
        let at = at % block.len();
        let len = bytes.len().min(block.len() - at);
        block[at..at + len].copy_from_slice(&bytes[..len]);
    };
    match what % 4 {
        0 => patch::patch_page(&mut image, 0, TableKind::Segments, 0, put),
        1 => patch::patch_page(&mut image, 0, TableKind::Catalogue, 0, put),
        2 => {
            patch::patch_group(&mut image, 0, usize::from(which % 4), put);
        }
        _ => {
            let slot = slots[usize::from(*which) % slots.len()];
            patch::patch_node(&mut image, 0, slot, &mut Rng::new(u64::from(*what)), put);
        }
    }
    let report = verify(&image, Options::default(), &mut |_, _| {});
    let _ = report.words();
    if let Ok(opened) = Image::open(&image) {
        let _ = inspect::inspect(&opened, true).words();
    }
});
