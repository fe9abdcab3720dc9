//! Reading the bitmap of a segment, and going on without one.
//!
//! A damaged bitmap says nothing of which blocks are free. The segment is kept, all its blocks count
//! as used, and what is freed from now on is free for certain: so everything else goes on, and what
//! is lost is space, which `flagstone verify` shows as leaked once a checkpoint has written it down.

use std::io;

use flagstone_platform::Platform;
use flagstone_types::{BlockChecksum, SegmentNo};

use super::format::read_again;
use crate::format::geometry::Geometry;
use crate::format::segment::SegmentRecord;
use crate::space::{Bitmap, Pool};

/// Reads the current bitmap of a segment. `None` if what is there does not match its checksum, also
/// when it is read once more.
pub(super) async fn read_bitmap<P: Platform>(
    platform: &P,
    device: &P::Device,
    geometry: &Geometry,
    segment: SegmentNo,
    record: &SegmentRecord,
) -> io::Result<Option<Bitmap>> {
    let place = geometry.bitmap_slots(segment)[usize::from(record.bitmap_slot & 1)];
    for _ in 0..2 {
        let bytes = read_again(platform, device, place).await?;
        if BlockChecksum::of(&bytes) == record.bitmap_checksum {
            return Ok(Some(Bitmap::from_bytes(&bytes)));
        }
    }
    Ok(None)
}

/// Gives a segment what was read. False if its bitmap is lost.
pub(super) fn take_bitmap(pool: &mut Pool, segment: SegmentNo, bitmap: Option<Bitmap>) -> bool {
    if pool.is_loaded(segment) != Some(false) {
        return true;
    }
    if bitmap.is_some_and(|bitmap| pool.loaded(segment, bitmap)) {
        return true;
    }
    pool.lose(segment);
    tracing::error!(
        segment = segment.0,
        "the bitmap of a segment is damaged: its free blocks stay unused; run `flagstone verify`"
    );
    false
}
