//! Images as text: the blocks that aren't zero, in lines of 32 bytes that aren't zero.

use std::fmt::Write;

use flagstone_device::offline::{Overlay, Zeros};
use flagstone_types::BlockNo;

use super::{BLOCK, Builder};

const LINE_BYTES: usize = 32;

/// The text of an image: of its live blocks.
pub fn to_text(builder: &Builder, about: &str) -> String {
    let mut text = String::new();
    for line in about.lines() {
        writeln!(text, "# {line}").expect("memory");
    }
    writeln!(text, "blocks {}", builder.superblock.block_count).expect("memory");
    let live = builder.live_blocks();
    for (block, bytes) in builder
        .image
        .changed()
        .filter(|(block, _)| live.contains(block))
    {
        writeln!(text, "@{}", block.0).expect("memory");
        for (index, line) in bytes.chunks(LINE_BYTES).enumerate() {
            if line.iter().all(|&byte| byte == 0) {
                continue;
            }
            let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{:03x} {hex}", index * LINE_BYTES).expect("memory");
        }
    }
    text
}

/// The image of a text.
pub fn from_text(text: &str) -> Overlay<Zeros> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let first = lines.next().and_then(|line| line.strip_prefix("blocks "));
    let block_count = first
        .and_then(|n| n.parse().ok())
        .expect("the number of blocks");
    let mut image = Overlay::new(Zeros { block_count });
    let mut block: Option<(BlockNo, Vec<u8>)> = None;
    for line in lines {
        if let Some(number) = line.strip_prefix('@') {
            if let Some((at, bytes)) = block.take() {
                image.put(at, &bytes);
            }
            let number = number.parse().expect("a block's number");
            block = Some((BlockNo(number), vec![0; BLOCK]));
            continue;
        }
        let (offset, hex) = line.split_once(' ').expect("an offset and bytes");
        let offset = usize::from_str_radix(offset, 16).expect("an offset");
        let (_, bytes) = block.as_mut().expect("bytes belong to a block");
        for (at, pair) in hex.as_bytes().chunks(2).enumerate() {
            let pair = std::str::from_utf8(pair).expect("hexadecimal digits");
            bytes[offset + at] = u8::from_str_radix(pair, 16).expect("hexadecimal digits");
        }
    }
    if let Some((at, bytes)) = block {
        image.put(at, &bytes);
    }
    image
}
