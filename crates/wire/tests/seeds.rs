//! The inputs that fuzzing the frames starts from (`fuzz/seeds/native_frames`): the golden frames that have a body, behind the byte that says what
//! they are. With `FLAGSTONE_WRITE_SEEDS` set, the files are written anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use flagstone_wire::{
    InFlight, Limits, REQUEST_HEADER_BYTES, RequestHeader, Verdict, check, check_hello,
};

use crate::support::{Frame, cases, frames};

fn seed(frame: &Frame) -> Vec<u8> {
    let choice = u8::from(!frame.is_request());
    [&[choice], frame.head(), frame.body()].concat()
}

#[test]
fn the_seeds_are_the_golden_frames_and_are_read_as_such() {
    let with_body = frames();
    let with_body = with_body.iter().filter(|frame| !frame.body().is_empty());
    let expected: BTreeMap<String, Vec<u8>> = with_body
        .map(|frame| (frame.name.to_owned(), seed(frame)))
        .collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/native_frames");
    if std::env::var_os("FLAGSTONE_WRITE_SEEDS").is_some() {
        fs::create_dir_all(&folder).expect("a folder");
        for (name, bytes) in &expected {
            fs::write(folder.join(name), bytes).expect("written");
        }
    }
    let files = fs::read_dir(&folder).expect("a folder of seeds");
    let kept: BTreeMap<String, Vec<u8>> = files
        .map(|file| {
            let file = file.expect("an entry");
            let name = file.file_name().into_string().expect("text");
            (name, fs::read(file.path()).expect("can be read"))
        })
        .collect();
    assert_eq!(kept, expected);
    for (name, bytes) in &kept {
        cases::any(bytes);
        let Some(head) = bytes[1..].first_chunk::<REQUEST_HEADER_BYTES>() else {
            continue;
        };
        if bytes[0] == 0 && name != "hello_request" {
            let header = RequestHeader::decode(head).expect(name);
            let verdict = check(&header, &Limits::default(), &InFlight::default());
            assert!(matches!(verdict, Verdict::Run(_)), "{name}: {verdict:?}");
            assert!(header.check_body(&bytes[1 + head.len()..]), "{name}");
        }
    }
    let hello = &kept["hello_request"][1..];
    let head = hello.first_chunk::<REQUEST_HEADER_BYTES>();
    let header = RequestHeader::decode(head.expect("is long enough")).expect("sealed");
    check_hello(&header).expect("a good one");
}
