//! One volume out of several: its units are dealt to the members in turn.
//!
//! [`Layout`] is the arithmetic of it, [`Striped`] the volume.
//!
//! Promises: every byte of the volume has one place in one member, which nothing but the layout says. What
//! lies within one unit is one call of one member, and what that promises. What crosses a border is cut; the
//! parts are begun in order, all at once, before anything else that is asked for later. Whoever is told of
//! an error has none of the parts still under way.

mod all;
mod layout;

use std::future::Future;
use std::rc::Rc;

use flagstone_platform::IoBuf;
use flagstone_types::Lsn;

use crate::volume::{
    self, AllocationExtent, ChangedExtent, Payload, Stability, Volume, VolumeError,
};

use all::all;
pub use layout::{Layout, MEMBERS_MAX, MEMBERS_MIN, Piece, Span, UNIT_BYTES_MAX, UNIT_BYTES_MIN};

/// A volume whose bytes are those of its members. A cheap handle.
///
/// What lies within one unit is handed to its member as it is, and is what the member makes of it: atomic,
/// ordered. Of a change that crosses a border of units each part is atomic by itself, and not all of them: after a
/// crash, or an error, some may be there and others not; and who reads meanwhile may see some of
/// them. Changes that overlap in time apply in the same order in each member.
pub struct Striped<V: Volume> {
    inner: Rc<Inner<V>>,
}

struct Inner<V> {
    layout: Layout,
    members: Vec<V>,
    size: Box<dyn Fn() -> Option<u64>>,
}

impl<V: Volume> Clone for Striped<V> {
    fn clone(&self) -> Striped<V> {
        Striped {
            inner: self.inner.clone(),
        }
    }
}

impl<V: Volume> Striped<V> {
    /// A volume over `members`, in their order. `None` unless there are as many as the layout has.
    ///
    /// `size` says how long the volume is now, in bytes, or `None` once it is gone. It is asked with each
    /// request. A member may be longer than it needs; nothing comes to what is behind.
    pub fn new(
        layout: Layout,
        members: Vec<V>,
        size: impl Fn() -> Option<u64> + 'static,
    ) -> Option<Striped<V>> {
        let inner = Inner {
            layout,
            members,
            size: Box::new(size),
        };
        (inner.members.len() == layout.members()).then(|| Striped {
            inner: Rc::new(inner),
        })
    }

    /// Where its bytes are.
    pub fn layout(&self) -> Layout {
        self.inner.layout
    }

    /// Its members, by their numbers.
    pub fn members(&self) -> &[V] {
        &self.inner.members
    }

    /// Whether a change of this range has more than one part.
    pub fn is_cut(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.alone(offset_bytes, len_bytes).is_none()
    }

    /// Whether a range lies within the volume as it is now.
    fn check(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), VolumeError> {
        let size = self.size_bytes().ok_or(VolumeError::Gone)?;
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= size => Ok(()),
            _ => Err(VolumeError::OutOfRange),
        }
    }

    /// The member of a range that lies within one unit, and where in it. An empty one does.
    fn alone(&self, offset_bytes: u64, len_bytes: u64) -> Option<(&V, u64)> {
        let layout = self.inner.layout;
        let (member, at) = layout.place(offset_bytes);
        (len_bytes <= layout.left_in_unit(offset_bytes)).then(|| (&self.inner.members[member], at))
    }

    /// Has each member do something with its part of a range, all at once. Ends when all have ended, with
    /// the first error in the order of the range.
    async fn each_span<'a, F>(
        &'a self,
        offset_bytes: u64,
        len_bytes: u64,
        change: impl Fn(&'a V, Span) -> F,
    ) -> Result<(), VolumeError>
    where
        F: Future<Output = Result<(), VolumeError>>,
    {
        let spans = self.inner.layout.spans(offset_bytes, len_bytes);
        let changes = spans.map(|span| change(&self.inner.members[span.member], span));
        all(changes).await.into_iter().collect()
    }
}

impl<V: Volume> Volume for Striped<V> {
    fn size_bytes(&self) -> Option<u64> {
        (self.inner.size)()
    }

    /// True if any member is.
    fn is_read_only(&self) -> bool {
        self.inner.members.iter().any(V::is_read_only)
    }

    /// Each piece is read by itself, and may be of another moment than its neighbour.
    async fn read(&self, offset_bytes: u64, len_bytes: u32) -> Result<Payload, VolumeError> {
        self.check(offset_bytes, len_bytes.into())?;
        if let Some((member, at)) = self.alone(offset_bytes, len_bytes.into()) {
            return member.read(at, len_bytes).await;
        }
        let pieces = || self.inner.layout.cut(offset_bytes, len_bytes.into());
        // No piece is longer than the range.
        let reads = pieces().map(|piece| {
            self.inner.members[piece.member].read(piece.offset_bytes, piece.len_bytes as u32)
        });
        let mut payload = Payload::new();
        for (piece, part) in pieces().zip(all(reads).await) {
            append(&mut payload, part?, piece)?;
        }
        Ok(payload)
    }

    /// Each piece is atomic by itself. An error is told when all have ended, and is the first in their order;
    /// the others may have been written.
    async fn write(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let len_bytes = data.len() as u64;
        self.check(offset_bytes, len_bytes)?;
        if let Some((member, at)) = self.alone(offset_bytes, len_bytes) {
            return member.write(at, data, stability).await;
        }
        let pieces = self.inner.layout.cut(offset_bytes, len_bytes);
        let writes = pieces.map(|piece| {
            let start = piece.at_bytes as usize;
            let part = data.slice(start..start + piece.len_bytes as usize);
            self.inner.members[piece.member].write(piece.offset_bytes, part, stability)
        });
        all(writes).await.into_iter().collect()
    }

    /// Flushes every member: what is to survive may have been written by somebody else, through another
    /// object.
    async fn flush(&self) -> Result<(), VolumeError> {
        self.check(0, 0)?;
        let flushes = all(self.inner.members.iter().map(V::flush));
        flushes.await.into_iter().collect()
    }

    /// One call of each member, however long the range is.
    async fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        self.check(offset_bytes, len_bytes)?;
        if let Some((member, at)) = self.alone(offset_bytes, len_bytes) {
            return member.deallocate(at, len_bytes, stability).await;
        }
        self.each_span(offset_bytes, len_bytes, |member, span| {
            member.deallocate(span.offset_bytes, span.len_bytes, stability)
        })
        .await
    }

    /// One call of each member, however long the range is.
    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_allocated: bool,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        self.check(offset_bytes, len_bytes)?;
        if let Some((member, at)) = self.alone(offset_bytes, len_bytes) {
            let zeroing = member.write_zeroes(at, len_bytes, keep_allocated, stability);
            return zeroing.await;
        }
        self.each_span(offset_bytes, len_bytes, |member, span| {
            let (at, len) = (span.offset_bytes, span.len_bytes);
            member.write_zeroes(at, len, keep_allocated, stability)
        })
        .await
    }

    /// One call of each member, however long the range is. Ends where one of them has told no more.
    async fn allocation(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        self.check(offset_bytes, len_bytes)?;
        if let Some((member, at)) = self.alone(offset_bytes, len_bytes) {
            return member.allocation(at, len_bytes, extents_max).await;
        }
        let Inner {
            layout, members, ..
        } = &*self.inner;
        let extents_max = extents_max.max(1);
        // All together have about as many as may be returned, so that a member more doesn't take more memory.
        let each_max = extents_max.min(extents_max.div_ceil(layout.members()) + 1);
        let spans = || layout.spans(offset_bytes, len_bytes);
        let asked = spans().map(|span| {
            members[span.member].allocation(span.offset_bytes, span.len_bytes, each_max)
        });
        let mut told: [Told; MEMBERS_MAX] = Default::default();
        for (span, extents) in spans().zip(all(asked).await) {
            told[span.member] = Told::new(span.offset_bytes, extents?);
        }
        let range = (offset_bytes, offset_bytes + len_bytes);
        let merged = merge(*layout, range, extents_max, |member, at| {
            told[member].state_at(at)
        });
        if merged.is_empty() {
            tracing::error!(
                offset_bytes,
                len_bytes,
                "a member of a striped volume told nothing of what is allocated"
            );
            return Err(VolumeError::Device);
        }
        Ok(merged)
    }

    /// Always [`VolumeError::Unsupported`] within the volume: members count their changes by themselves, so
    /// one number says nothing of all of them.
    async fn changed_since(
        &self,
        _since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        _extents_max: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        self.check(offset_bytes, len_bytes)?;
        Err(VolumeError::Unsupported)
    }
}

/// Adds what a piece's member read. One of another length would move all that follows, so it is an error.
fn append(payload: &mut Payload, part: Payload, piece: Piece) -> Result<(), VolumeError> {
    let mut found_bytes = 0u64;
    for part in part {
        let len = match &part {
            volume::Piece::Data(data) => data.len() as u64,
            volume::Piece::Zeros(len) => *len,
        };
        found_bytes = found_bytes.saturating_add(len);
        match (payload.last_mut(), part) {
            (_, _) if len == 0 => {}
            (Some(volume::Piece::Zeros(before)), volume::Piece::Zeros(_)) => {
                *before = before.saturating_add(len);
            }
            (_, part) => payload.push(part),
        }
    }
    if found_bytes != piece.len_bytes {
        let Piece {
            member,
            offset_bytes,
            len_bytes,
            ..
        } = piece;
        tracing::error!(
            member,
            offset_bytes,
            len_bytes,
            found_bytes,
            "a member of a striped volume returned a wrong length"
        );
        return Err(VolumeError::Device);
    }
    Ok(())
}

/// What a member has told of what it has allocated.
#[derive(Default)]
struct Told {
    rest: std::vec::IntoIter<AllocationExtent>,
    /// The extent at hand.
    allocated: bool,
    /// Where in the member it ends.
    end_bytes: u64,
}

impl Told {
    /// Extents that begin at `offset_bytes` of the member.
    fn new(offset_bytes: u64, extents: Vec<AllocationExtent>) -> Told {
        Told {
            rest: extents.into_iter(),
            allocated: false,
            end_bytes: offset_bytes,
        }
    }

    /// Whether the byte of the member is allocated, and up to where it stays so. `None`: that wasn't told.
    /// It is asked for one byte after another.
    fn state_at(&mut self, offset_bytes: u64) -> Option<(bool, u64)> {
        while self.end_bytes <= offset_bytes {
            let next = self.rest.next()?;
            self.allocated = next.allocated;
            self.end_bytes = self.end_bytes.saturating_add(next.len_bytes);
        }
        Some((self.allocated, self.end_bytes))
    }
}

/// Extents of a range of the volume (start and end), from what is known of the members: `state_at` says
/// of a byte of a member whether it is allocated and up to where in the member it stays so. Ends where that
/// isn't known. It is asked at most once per member for each extent, not for each unit.
fn merge(
    layout: Layout,
    (start, end): (u64, u64),
    extents_max: usize,
    mut state_at: impl FnMut(usize, u64) -> Option<(bool, u64)>,
) -> Vec<AllocationExtent> {
    let mut extents: Vec<AllocationExtent> = Vec::new();
    let mut at = start;
    while at < end {
        let (first, offset_bytes) = layout.place(at);
        let Some((allocated, until)) = state_at(first, offset_bytes) else {
            break;
        };
        // The run ends where any member's does. What comes first of each of the others is in one of the
        // units behind this one.
        let mut run_end = end.min(layout.volume_offset(first, until));
        let mut unit_start = at;
        for member in (first + 1..layout.members()).chain(0..first) {
            unit_start = unit_start.saturating_add(layout.left_in_unit(unit_start));
            if unit_start >= run_end {
                break;
            }
            let (_, offset_bytes) = layout.place(unit_start);
            match state_at(member, offset_bytes) {
                Some((same, until)) if same == allocated => {
                    run_end = run_end.min(layout.volume_offset(member, until));
                }
                _ => run_end = unit_start,
            }
        }
        let len_bytes = run_end - at;
        let is_full = extents.len() >= extents_max;
        match extents.last_mut() {
            Some(last) if last.allocated == allocated => last.len_bytes += len_bytes,
            _ if is_full => break,
            _ => extents.push(AllocationExtent {
                len_bytes,
                allocated,
            }),
        }
        at = run_end;
    }
    extents
}

#[cfg(test)]
mod tests;
