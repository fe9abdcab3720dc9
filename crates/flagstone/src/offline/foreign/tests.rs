//! The placed signatures at odd sizes, and devices too short to hold them.

use std::os::unix::fs::FileExt;

use super::*;

/// A device that is zero but for some places.
struct Parts(u64, Vec<(u64, Vec<u8>)>);

impl FileExt for Parts {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        assert!(offset + into.len() as u64 <= self.0, "read behind the end");
        into.fill(0);
        for (start, bytes) in &self.1 {
            for (at, byte) in (*start..).zip(bytes) {
                if let Some(index) = at.checked_sub(offset)
                    && let Some(place) = into.get_mut(index as usize)
                {
                    *place = *byte;
                }
            }
        }
        Ok(into.len())
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        panic!("it is only read")
    }
}

fn words(size_bytes: u64, offset: u64, bytes: &[u8]) -> String {
    let device = Parts(size_bytes, vec![(offset, bytes.to_vec())]);
    look_at(&device, size_bytes)
        .expect("it can be read")
        .words()
}

#[test]
fn every_signature_is_found_where_it_stands() {
    for (what, offset, magic) in SIGNATURES {
        let found = words(1 << 30, *offset, magic);
        assert!(
            found.contains(&format!("{what} at byte {offset}")),
            "{found}"
        );
    }
}

#[test]
fn zero_is_blank_at_any_size() {
    for size in [
        0,
        1,
        511,
        512,
        4096,
        4097,
        1 << 20,
        (1 << 20) + 1,
        65 << 20,
        1 << 50,
    ] {
        let blank = look_at(&Parts(size, Vec::new()), size).expect("it can be read");
        assert!(blank.is_blank(), "{size}: {}", blank.words());
    }
}

#[test]
fn any_byte_of_a_small_device_counts() {
    for size in [1, 4096, (3 << 20) + 7, 64 << 20] {
        for offset in [0, size / 2, size - 1] {
            let found = words(size, offset, b"\x01");
            assert_eq!(
                found,
                format!("data (bytes other than zero) at byte {offset}")
            );
        }
    }
}

#[test]
fn several_findings_are_listed_and_bounded() {
    let gpt = Parts(
        1 << 30,
        vec![
            (510, b"\x55\xaaEFI PART".to_vec()),
            ((1 << 30) - 512, b"EFI PART".to_vec()),
        ],
    );
    let found = look_at(&gpt, 1 << 30).expect("it can be read").words();
    assert_eq!(
        found,
        "a boot sector or MBR partition table at byte 510, a GPT partition table at byte 512 and \
         a GPT partition table (backup) at byte 1073741312"
    );
}
