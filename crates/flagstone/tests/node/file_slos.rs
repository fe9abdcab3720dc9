//! SLOs of filesystems on a real node: beside those of volumes, over restarts, and as NFS clients feel them.

#![expect(clippy::disallowed_methods, reason = "a real node takes real time")]

use std::time::{Duration, Instant};

use flagstone::metrics::render;
use flagstone::node::{
    FilesystemChanges, FilesystemInfo, FilesystemSpec, NodeError, NodeErrorKind, NodeOptions,
    Rates, Schedule, Slo, SloLimit, SloPromise, VolumeSpec,
};

use crate::filesystems::with_nfs;
use crate::support::Scene;
use crate::volume_files::client::{FileSync, Files};

/// 1,000 reads or 500 writes a second, of which 911 reads can be promised.
const CEILING: &str = "reads=1000 writes=500";

fn divided(options: &mut NodeOptions) {
    with_nfs(options);
    options.devices[0].schedule = Schedule {
        ceiling: Some(CEILING.parse().expect("a ceiling")),
        ..Schedule::default()
    };
}

fn floor(reads: u64, writes: u64) -> Slo {
    Slo {
        promise: SloPromise::Floor(Rates { reads, writes }),
        limit: SloLimit::default(),
    }
}

fn limited(writes: u64) -> Slo {
    Slo {
        limit: SloLimit {
            writes: Some(writes),
            ..SloLimit::default()
        },
        ..Slo::default()
    }
}

pub(crate) fn create(scene: &Scene, name: &str, slo: Slo) -> Result<FilesystemInfo, NodeError> {
    let spec = FilesystemSpec {
        name: name.to_owned(),
        quota_bytes: None,
        quota_files: None,
        promote_bytes: None,
        zeros_to_holes: false,
        one_device: None,
        owner_uid: 0,
        owner_gid: 0,
        slo,
        oversubscribe: false,
    };
    scene.ask(|node| node.create_filesystem(spec))
}

fn set(
    scene: &Scene,
    name: &str,
    slo: Slo,
    oversubscribe: bool,
) -> Result<FilesystemInfo, NodeError> {
    let changes = FilesystemChanges {
        slo: Some(slo),
        oversubscribe,
        ..FilesystemChanges::default()
    };
    scene.ask(|node| node.change_filesystem(name.to_owned(), changes))
}

fn delete(scene: &Scene, name: &str) {
    let deleted = scene.ask(|node| node.delete_filesystem(name.to_owned(), false, true));
    deleted.expect("deleted");
}

fn show(scene: &Scene, name: &str) -> FilesystemInfo {
    let shown = scene.ask(|node| node.show_filesystem(name.to_owned()));
    shown.expect("there")
}

fn create_volume(scene: &Scene, name: &str, slo: Slo) -> Result<(), NodeError> {
    let spec = VolumeSpec {
        name: name.to_owned(),
        size_bytes: 8 << 20,
        reserve: Default::default(),
        device: None,
        core: None,
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo,
        oversubscribe: false,
    };
    scene.ask(|node| node.create_volume(spec)).map(drop)
}

fn kind<T>(result: Result<T, NodeError>) -> Option<NodeErrorKind> {
    result.err().map(|error| error.kind)
}

#[test]
fn an_slo_is_kept_with_its_filesystem() {
    let scene = Scene::with(divided);
    let both = Slo {
        promise: SloPromise::Share(7),
        limit: SloLimit {
            reads: None,
            writes: Some(5),
            bytes: Some(1 << 30),
        },
    };
    assert_eq!(create(&scene, "a", both).expect("made").slo, both);
    assert_eq!(
        create(&scene, "b", Slo::default()).expect("made").slo,
        Slo::default()
    );
    set(&scene, "b", floor(100, 10), false).expect("set");
    // What isn't named stays.
    let quota = FilesystemChanges {
        quota_bytes: Some(5 << 20),
        ..FilesystemChanges::default()
    };
    let changed = scene.ask(|node| node.change_filesystem("b".to_owned(), quota));
    assert_eq!(changed.expect("changed").slo, floor(100, 10));
    let scene = scene.restart(divided);
    assert_eq!(show(&scene, "a").slo, both);
    let b = show(&scene, "b");
    assert_eq!((b.slo, b.quota_bytes), (floor(100, 10), Some(5 << 20)));
    set(&scene, "b", Slo::default(), false).expect("set");
    let scene = scene.restart(divided);
    assert_eq!(show(&scene, "b").slo, Slo::default());
    let page = scene.ask(|node| node.list_filesystems(Default::default()));
    let slos: Vec<Slo> = page.expect("listed").items.iter().map(|i| i.slo).collect();
    assert_eq!(slos, [both, Slo::default()]);
}

#[test]
fn floors_of_volumes_and_filesystems_have_to_fit_together() {
    let scene = Scene::with(divided);
    create_volume(&scene, "volume", floor(500, 0)).expect("half of it");
    let error = create(&scene, "a", floor(500, 0)).expect_err("too much");
    assert_eq!(error.kind, NodeErrorKind::NoSpace);
    assert!(error.found.contains("which is 411 reads/s"), "{error}");
    create(&scene, "a", floor(400, 0)).expect("made");
    let refused = create_volume(&scene, "more", floor(20, 0));
    assert_eq!(kind(refused), Some(NodeErrorKind::NoSpace));
    set(&scene, "a", floor(410, 0), false).expect("its own is not in its way");
    let refused = set(&scene, "a", floor(412, 0), false);
    assert_eq!(kind(refused), Some(NodeErrorKind::NoSpace));
    assert_eq!(show(&scene, "a").slo, floor(410, 0));
    let promised = |scene: &Scene| {
        let device = scene.ask(|node| node.show_device("main".to_owned()));
        device.expect("there").promised.expect("divided")
    };
    let before = promised(&scene);
    assert!((0.97..1.0).contains(&before), "{before}");
    // Also of what was promised before a restart, to filesystems that nobody has used since.
    let scene = scene.restart(divided);
    assert_eq!(promised(&scene), before);
    let refused = create_volume(&scene, "more", floor(20, 0));
    assert_eq!(kind(refused), Some(NodeErrorKind::NoSpace));
    create(&scene, "b", Slo::default()).expect("shares always fit");
    let refused = set(&scene, "b", floor(20, 0), false);
    assert_eq!(kind(refused), Some(NodeErrorKind::NoSpace));
    set(&scene, "b", floor(600, 0), true).expect("as confirmed");
    assert!(promised(&scene) > 1.6);
    set(&scene, "b", Slo::default(), false).expect("set");
    delete(&scene, "a");
    create_volume(&scene, "more", floor(400, 0)).expect("what it had is free");
    let refused = set(&scene, "b", floor(0, 0), false);
    assert_eq!(kind(refused), Some(NodeErrorKind::InvalidArgument));
    let refused = create(&scene, "c", limited(0));
    assert_eq!(kind(refused), Some(NodeErrorKind::InvalidArgument));
}

/// What holds clients back can only make them take longer, so these times have a lower bound on any machine.
#[test]
fn limits_hold_nfs_clients_back_and_let_them_go_again() {
    let scene = Scene::with(with_nfs);
    create(&scene, "data", limited(10)).expect("made");
    create(&scene, "other", Slo::default()).expect("made");
    let mut files = Files::try_mount(&scene, "/data").expect("mounted");
    let mut other = Files::try_mount(&scene, "/other").expect("mounted");
    // A change of names counts as a write.
    let file = files.create("file").expect("made");
    let free = other.create("file").expect("made");
    let time = |files: &mut Files, file: &Vec<u8>, writes: u64| {
        let began = Instant::now();
        for at in 0..writes {
            let written = files.write(file, at * 4096, &[7; 4096], FileSync);
            written.expect("written");
        }
        began.elapsed()
    };
    // One at once, then 100 ms each.
    let held = time(&mut files, &file, 15);
    assert!(held > Duration::from_millis(1200), "{held:?}");
    let began = Instant::now();
    for number in 0..10 {
        assert_eq!(files.make_directory(&format!("{number}")), 0);
    }
    let names = began.elapsed();
    assert!(names > Duration::from_millis(800), "{names:?}");
    let value = |name: &str, filesystem: &str| {
        let text = render(&scene.ask(|node| node.metrics()).expect("answered"), "0");
        let name = format!("flagstone_filesystem_{name}{{filesystem=\"{filesystem}\"}}");
        let row = text.lines().find_map(|line| line.strip_prefix(&name));
        row.and_then(|value| value.trim().parse::<f64>().ok())
    };
    let waits = || value("wait_seconds_count", "data").expect("told");
    let waited = || value("wait_seconds_sum", "data").expect("told");
    // The file, 15 writes and 10 directories.
    assert_eq!(waits(), 26.0);
    let before = waited();
    assert!(before > 0.4, "{before}");
    // Reads are not writes, looks are nothing, and another filesystem is not this one.
    for number in 0..15 {
        files.attributes(&file).expect("there");
        let read = files.read(&file, number * 4096, 4096);
        assert_eq!(read.expect("read").0, [7; 4096]);
    }
    time(&mut other, &free, 15);
    assert_eq!(waits(), 41.0);
    assert!(waited() < before + 0.1, "{} {before}", waited());
    assert_eq!(value("wait_seconds_count", "other"), None);
    // Live, for who has it mounted.
    set(&scene, "data", limited(5), false).expect("set");
    assert!(time(&mut files, &file, 5) > Duration::from_millis(600));
    assert_eq!(waits(), 46.0);
    set(&scene, "data", Slo::default(), false).expect("set");
    time(&mut files, &file, 15);
    assert_eq!(waits(), 46.0, "nobody has to ask any more");
}

/// A filesystem's device time is told beside that of volumes, and what it is promised of it.
#[test]
fn a_divided_device_shows_what_filesystems_took_of_it() {
    let scene = Scene::with(with_nfs);
    create(&scene, "data", Slo::default()).expect("made");
    let mut files = Files::try_mount(&scene, "/data").expect("mounted");
    let file = files.create("file").expect("made");
    // For the first to write segments are laid out, which is much for so slow a device.
    let written = files.write(&file, 0, &[7; 4096], FileSync);
    written.expect("written");
    let divided = Schedule {
        ceiling: Some(CEILING.parse().expect("a ceiling")),
        ..Schedule::default()
    };
    let set_up = scene.ask(|node| node.set_schedule("main".to_owned(), divided));
    set_up.expect("set");
    set(&scene, "data", floor(100, 0), false).expect("set");
    let row = |name: &str| {
        let text = render(&scene.ask(|node| node.metrics()).expect("answered"), "0");
        let name = format!("flagstone_filesystem_{name}{{filesystem=\"data\"}}");
        let row = text.lines().find_map(|line| line.strip_prefix(&name));
        row.and_then(|value| value.trim().parse::<f64>().ok())
    };
    // 2 ms each. What was used is told at the next look.
    let began = Instant::now();
    let mut writes = 0;
    while row("device_seconds_total").is_none_or(|used| used < 0.4) {
        assert!(began.elapsed() < Duration::from_secs(60), "{writes} writes");
        let written = files.write(&file, 0, &[7; 4096], FileSync);
        written.expect("written");
        writes += 1;
    }
    assert!(writes > 180, "{writes}");
    let promised = row("promised_ratio").expect("told");
    assert!((0.09..0.11).contains(&promised), "{promised}");
    assert!(row("slo_missed_seconds_total").is_some());
}
