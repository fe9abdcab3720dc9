//! What a scrape shows of devices.

use flagstone::metrics::render;
use flagstone::node::DeviceMetrics;

use crate::client::{FLUSH, READ, TRIM};
use crate::support::Scene;

fn device(scene: &Scene) -> DeviceMetrics {
    let snapshot = scene.ask(|node| node.metrics()).expect("collected");
    let text = render(&snapshot, "test");
    for family in ["operations_total", "bytes_total", "operation_seconds_count"] {
        let series = format!("flagstone_device_{family}{{device=\"main\",op=\"write\"}}");
        assert!(text.contains(&series), "{series} in\n{text}");
    }
    snapshot.devices.into_iter().next().expect("one device")
}

#[test]
fn what_the_device_is_asked_for_is_shown() {
    let scene = Scene::new();
    scene.create("disk", 8 << 20).expect("created");
    let mut client = scene.attach("disk");
    let before = device(&scene);
    assert_eq!(client.write(0, &[7; 1 << 20]), 0);
    assert_eq!(client.call(FLUSH, 0, 0).0, 0);
    assert_eq!(client.call(READ, 0, 1 << 20), (0, vec![7; 1 << 20]));
    let after = device(&scene);
    let bytes = |m: &DeviceMetrics| (m.read.bytes, m.write.bytes);
    assert_eq!(bytes(&after).0 - bytes(&before).0, 1 << 20, "read");
    assert!(
        bytes(&after).1 - bytes(&before).1 > 1 << 20,
        "data and journal"
    );
    assert!(after.flush.operations > before.flush.operations);
    for io in [&after.read, &after.write, &after.flush] {
        assert_eq!(io.latency.count(), io.operations);
        assert!(io.errors.iter().all(|e| e.count == 0));
    }
    assert_eq!(client.call(TRIM, 0, 1 << 20).0, 0);
}

/// Journals are added up: the help says so, in the unit of the series.
#[test]
fn the_time_of_checkpoints_says_what_it_is() {
    let scene = Scene::with_two_cores();
    let snapshot = scene.ask(|node| node.metrics()).expect("collected");
    let text = render(&snapshot, "test");
    let help = "# HELP flagstone_device_checkpoint_seconds ";
    let help = text.lines().find_map(|line| line.strip_prefix(help));
    let help = help.expect("it is shown");
    assert!(help.contains("added up over the journals"), "{help}");
    assert!(!help.contains("nanoseconds"), "{help}");
}
