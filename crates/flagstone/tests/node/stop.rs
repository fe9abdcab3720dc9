//! What a stop does to clients that are attached.

use std::io::Read;

use crate::client::{Client, READ};
use crate::support::Scene;

const LONG: u32 = 32 << 20;

/// A client with two long reads under way, of which it has seen the beginning of the first answer.
/// Both are far from sent: no socket holds that much.
fn busy(scene: &Scene) -> Client {
    scene.create("disk", 64 << 20).expect("created");
    let mut client = scene.attach("disk");
    client.submit_many(READ, &[(0, LONG), (u64::from(LONG), LONG)]);
    assert_eq!(client.answer(), (0, 1));
    client
}

#[test]
fn what_is_under_way_is_answered() {
    let mut scene = Scene::new();
    let mut client = busy(&scene);
    let reading = std::thread::Builder::new().spawn(move || {
        let mut data = vec![1; LONG as usize];
        client.stream.read_exact(&mut data).expect("the first one");
        assert_eq!(client.answer(), (0, 2));
        client.stream.read_exact(&mut data).expect("the second one");
        assert_eq!(client.stream.read(&mut [0]).expect("closed"), 0);
    });
    scene.stop().expect("stopped");
    reading.expect("a thread").join().expect("all answers");
}

#[test]
fn a_client_that_takes_no_answers_does_not_hold_it_up() {
    let mut scene = Scene::with(|options| options.stop_grace_ms = 100);
    let mut client = busy(&scene);
    scene.stop().expect("stopped");
    let mut rest = Vec::new();
    // Cut off: an end or a reset, before all has come.
    let _ = client.stream.read_to_end(&mut rest);
    assert!(rest.len() < LONG as usize, "{} bytes", rest.len());
}
