//! What is shown of a striped volume on a device that no node serves.

use std::collections::BTreeSet;

use flagstone::offline::{InspectOptions, Inspection, inspect};
use serde_json::Value;

use super::{UNIT, create, scene, snapshot};
use crate::support::Scene;

/// Blocks of 4 KiB that are written, as offsets in the volume: in the first row of units, and behind it.
const WRITTEN: [u64; 5] = [
    0,
    UNIT + 4096,
    2 * UNIT + 3 * 4096,
    4 * UNIT,
    7 * UNIT + 15 * 4096,
];

fn map_of(scene: Scene, name: &str) -> (Inspection, Scene) {
    let path = scene.device_path();
    let down = scene.down();
    let options = InspectOptions {
        map_of: Some(name.to_owned()),
        ..InspectOptions::default()
    };
    let found = inspect(&path, &options).expect("inspected");
    (found, down.up(super::two_cores))
}

/// Where in the volume something is, by the maps of all parts, which are in order.
fn offsets(map: &Value) -> BTreeSet<u64> {
    let others = map["other_parts"].as_array().expect("the others");
    let mut offsets = BTreeSet::new();
    for (number, part) in [map].into_iter().chain(others).enumerate() {
        assert_eq!((&part["part"], &part["parts"]), (&number.into(), &3.into()));
        let lines = part["lines"].as_array().expect("lines");
        let data = lines.iter().filter(|line| line["entry"] == "data");
        offsets.extend(data.filter_map(|line| line["volume_offset_bytes"].as_u64()));
    }
    offsets
}

#[test]
fn maps_of_all_parts_are_shown_with_offsets_in_the_volume() {
    let scene = scene();
    create(&scene, "hot", 3);
    let mut client = scene.attach("hot");
    for at in WRITTEN {
        assert_eq!(client.write(at, &[7; 4096]), 0);
    }
    snapshot(&scene, "hot", "s").expect("taken");
    assert_eq!(client.write(5 * UNIT, &[7; 4096]), 0);
    drop(client);
    let (map, scene) = map_of(scene, "hot@s");
    assert_eq!(offsets(&map.value), BTreeSet::from(WRITTEN));
    for words in [
        "striped over 3 parts in units of 64",
        "map of part 0 of 3, snapshot 's'",
        "map of part 2 of 3, ",
    ] {
        assert!(map.words.contains(words), "{words}: {}", map.words);
    }
    let place = format!(", at {} of the volume", WRITTEN[4]);
    assert!(map.words.contains(&place), "{}", map.words);
    let (map, _scene) = map_of(scene, "hot");
    assert!(offsets(&map.value).contains(&(5 * UNIT)));
}
