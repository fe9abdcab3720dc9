//! What is refused, what is changed, and which loads there are. How quick a device is found to be is tested in virtual
//! time (`flagstone-sched`).

use std::fs;
use std::path::PathBuf;

use super::*;

const SIZE_BYTES: u64 = 64 << 20;

/// A file that is removed in the end.
struct Image(PathBuf);

impl Image {
    fn new(name: &str, size_bytes: u64) -> Image {
        let name = format!("flagstone-calibrate-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::create(&path).expect("made");
        file.set_len(size_bytes).expect("sparse");
        Image(path)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(&self.0).expect("there");
        file.write_all_at(bytes, at).expect("written");
    }

    fn run(&self, options: &CalibrateOptions) -> Result<CalibrateReport, NodeError> {
        calibrate(&self.0, options, &mut |_, _| {})
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn quick(writes: bool, destroy_contents: bool) -> CalibrateOptions {
    CalibrateOptions {
        writes,
        destroy_contents,
        load_ms: 20,
        region_bytes: 1 << 30,
        layers: Vec::new(),
    }
}

#[test]
fn reads_change_nothing_and_promise_no_ceiling() {
    let image = Image::new("reads", SIZE_BYTES);
    image.put(5 << 20, b"something");
    let before = fs::read(&image.0).expect("read");
    let mut told = Vec::new();
    let report = calibrate(&image.0, &quick(false, false), &mut |done, total| {
        told.push((done, total));
    })
    .expect("reads");
    assert!(fs::read(&image.0).expect("read") == before, "it is changed");
    assert_eq!(report.region_bytes, SIZE_BYTES);
    assert_eq!((told[0], told.last()), ((0, 17), Some(&(17, 17))));
    assert!(report.points.iter().all(|point| point.kind == "reads"));
    assert!(report.prices.read_op_ns.is_some() && report.prices.write_op_ns.is_none());
    assert_eq!(report.ceiling, None);
    assert!(report.notes.iter().any(|note| note.contains("--writes")));
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("never written"))
    );
}

/// A device that answers one request in a second, and loads of 20 ms.
#[test]
fn loads_without_an_answer_are_named_and_not_shown() {
    let image = Image::new("slow", SIZE_BYTES);
    let point = |len_bytes, depth, per_second| Measured {
        load: Load {
            ask: Ask::Reads,
            len_bytes,
            depth,
            run_ns: 20_000_000,
        },
        per_second,
        flushes_per_second: 0.0,
        p50_ns: 0,
        p99_ns: 0,
    };
    let points = [
        point(4096, 1, 50.0),
        point(65536, 16, 0.0),
        point(262_144, 128, 0.0),
    ];
    let found = report(&image.0, SIZE_BYTES, SIZE_BYTES, &points);
    let shown: Vec<u64> = found.points.iter().map(|point| point.bytes).collect();
    assert_eq!(shown, [4096]);
    let note = found.notes.iter().find(|note| note.contains("left out"));
    let note = note.expect("it is said");
    for part in [
        "reads of 64 KiB, 16 in flight; reads of 256 KiB, 128 in flight",
        "--load-ms",
    ] {
        assert!(note.contains(part), "{part}: {note}");
    }
    let full = report(&image.0, SIZE_BYTES, SIZE_BYTES, &points[..1]);
    assert!(full.notes.iter().all(|note| !note.contains("left out")));
}

#[test]
fn what_is_not_blank_is_written_only_if_it_may_be_lost() {
    let image = Image::new("contents", SIZE_BYTES);
    image.put(512, b"EFI PART");
    let error = image.run(&quick(true, false)).expect_err("refused");
    assert_eq!(error.kind, NodeErrorKind::Refused);
    let text = error.to_string();
    assert!(text.contains("a GPT partition table"), "{text}");
    assert!(text.contains("--destroy-contents"), "{text}");
    let kept = fs::read(&image.0).expect("read");
    assert_eq!(&kept[512..520], b"EFI PART");
    let report = image.run(&quick(true, true)).expect("may be lost");
    // On a busy machine 20 ms may be too short for some.
    let left_out = report.notes.iter().find(|note| note.contains("left out"));
    let left_out = left_out.map_or(0, |note| note.matches("in flight").count());
    assert_eq!(report.points.len() + left_out, 35, "{:?}", report.notes);
    assert!(
        report
            .ceiling
            .is_some_and(|ceiling| ceiling.reads > 0 && ceiling.writes > 0)
    );
    let zeros = fs::read(&image.0).expect("read");
    assert!(zeros.iter().all(|&byte| byte == 0), "it can be formatted");
}

#[test]
fn a_blank_device_is_blank_again() {
    let image = Image::new("blank", SIZE_BYTES);
    image.run(&quick(true, false)).expect("it is blank");
    let content = foreign::look(&image.0).expect("can be read");
    assert!(content.is_blank(), "{}", content.words());
}

#[test]
fn a_device_that_fails_is_cleared_all_the_same() {
    let image = Image::new("fails", SIZE_BYTES);
    let errors = "errors writes=1".parse::<crate::layers::LayerText>();
    let options = CalibrateOptions {
        layers: vec![errors.expect("a layer").layer],
        ..quick(true, false)
    };
    let error = image.run(&options).expect_err("each write fails");
    assert!(error.to_string().contains("layer of the device"), "{error}");
    assert!(foreign::look(&image.0).expect("can be read").is_blank());
}

#[test]
fn one_in_use_is_left_alone() {
    let image = Image::new("busy", SIZE_BYTES);
    let _lock = lock_device(&image.0).expect("nobody has it");
    let error = image.run(&quick(false, false)).expect_err("in use");
    assert_eq!(error.kind, NodeErrorKind::Busy);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let small = Image::new("small", SIZE_BYTES - 1);
    let error = small.run(&quick(false, false)).expect_err("too small");
    assert!(error.to_string().contains("at least 64 MiB"), "{error}");
    let image = Image::new("sense", SIZE_BYTES);
    for options in [
        CalibrateOptions {
            region_bytes: 1 << 20,
            ..quick(true, false)
        },
        CalibrateOptions {
            load_ms: 0,
            ..quick(true, false)
        },
        CalibrateOptions {
            layers: vec![Layer::Trace { operations: 1024 }],
            ..quick(true, false)
        },
    ] {
        let error = image.run(&options).expect_err("makes no sense");
        assert_eq!(error.kind, NodeErrorKind::InvalidArgument, "{error}");
    }
    let missing = Path::new("/nonexistent/device.img");
    let error = calibrate(missing, &quick(false, false), &mut |_, _| {});
    assert_eq!(error.expect_err("missing").kind, NodeErrorKind::NotFound);
}

#[test]
fn it_takes_as_long_as_its_loads() {
    let options = CalibrateOptions {
        load_ms: 1000,
        ..quick(true, false)
    };
    assert_eq!(takes(&options), Duration::from_secs(35));
    let depths: Vec<u32> = loads(&options).iter().map(|load| load.depth).collect();
    assert!(
        depths.contains(&FLUSH_DEPTH),
        "flushes are compared with the same writes"
    );
}
