//! What a ring holds behind a root: which groups continue the chain, and what the rest tells of how
//! it ends.

use flagstone_platform::Platform;
use flagstone_types::{BlockNo, ChainHash};

use super::journal::Position;
use super::recovery::OpenError;
use super::ring::Ring;
use crate::format::FormatError;
use crate::format::geometry::Geometry;
use crate::format::group;
use crate::format::record::Record;
use crate::format::root::Root;
use crate::format::superblock::Superblock;
use crate::planted::{Bug, planted};

/// A unit read from the ring.
pub(super) struct FoundUnit {
    pub seq: u64,
    pub records: Vec<Record>,
}

/// What the ring holds behind a root.
pub(super) struct Chain {
    pub units: Vec<FoundUnit>,
    pub position: Position,
    pub watermark: u64,
    pub groups: u64,
    /// Each group's place: its sequence number, first ring block, and blocks with bytes of it.
    pub places: Vec<(u64, u32, u32)>,
}

/// The group at `position` of a ring, with its bytes and hash, if it continues the chain.
pub(super) async fn group_at<'a, P: Platform>(
    ring: &'a mut Ring<'_, P>,
    superblock: &Superblock,
    root: &Root,
    position: &Position,
) -> Result<Option<(group::GroupHeader, &'a [u8], ChainHash)>, OpenError> {
    let at = position.ring_index;
    let Ok(header) = group::decode_header(ring.blocks(at, 1).await?) else {
        return Ok(None);
    };
    let continues = is_ours(&header, superblock, root)
        && header.seq == position.next_seq
        && (header.prev_hash == position.prev_hash || planted(Bug::NoChain));
    if !continues {
        return Ok(None);
    }
    let whole = whole_group(ring, at, &header).await?;
    Ok(whole.map(|(bytes, hash)| (header, bytes, hash)))
}

/// The bytes and hash of the group whose header is at `at` of the ring, if it ends within the ring and is whole.
async fn whole_group<'a, P: Platform>(
    ring: &'a mut Ring<'_, P>,
    at: u32,
    header: &group::GroupHeader,
) -> Result<Option<(&'a [u8], ChainHash)>, OpenError> {
    let taken = u32::from(header.block_count);
    if taken > ring.len_blocks() - at {
        return Ok(None);
    }
    let stored = if header.pad { 1 } else { taken };
    let bytes = ring.blocks(at, stored).await?;
    Ok(group::check_hash(bytes).map(|hash| (bytes, hash)))
}

fn is_of_journal(header: &group::GroupHeader, superblock: &Superblock, root: &Root) -> bool {
    header.device_id_low == group::device_id_low(superblock.device_id)
        && header.journal == root.journal
}

fn is_ours(header: &group::GroupHeader, superblock: &Superblock, root: &Root) -> bool {
    is_of_journal(header, superblock, root)
        && (header.incarnation == root.incarnation || planted(Bug::NoChain))
}

/// A chain may end anywhere above its watermark. But if some later group says that the one which is
/// missing was on stable media, then that one is damaged, and what it held was acknowledged. And a
/// group of a later incarnation was written behind a root that is missing: a root is durable before
/// the first group of its incarnation.
///
/// Only whole groups tell. If all groups that could tell are damaged, or there are none, the end of
/// the chain looks like any other: see "Flipped bits" in the format's page.
pub(super) async fn check_end<P: Platform>(
    ring: &mut Ring<'_, P>,
    superblock: &Superblock,
    root: &Root,
    chain: &Chain,
) -> Result<(), OpenError> {
    let missing = chain.position.next_seq;
    let wrong = |what: String| {
        let message = format!("journal {}: {what}; run `flagstone verify`", root.journal);
        Err(OpenError::Format(FormatError { message }))
    };
    for at in blocks_behind(chain, ring.len_blocks()) {
        let Ok(header) = group::decode_header(ring.blocks(at, 1).await?) else {
            continue;
        };
        let is_later = header.incarnation > root.incarnation && !planted(Bug::NoChain);
        let tells = is_ours(&header, superblock, root)
            && header.seq > missing
            && header.watermark >= missing;
        if !(is_later && is_of_journal(&header, superblock, root) || tells)
            || whole_group(ring, at, &header).await?.is_none()
        {
            continue;
        }
        if is_later {
            return wrong(format!(
                "the ring holds group {} of incarnation {}, but the newest root that can be read is \
                 of incarnation {}: a later root is damaged",
                header.seq, header.incarnation, root.incarnation
            ));
        }
        return wrong(format!(
            "group {missing} was on stable media (group {} says so) and can't be read; what it held \
             is lost",
            header.seq
        ));
    }
    Ok(())
}

/// The ring's blocks in order from where the chain ends, but for those of its own groups, which were read already and
/// tell nothing of what is behind them.
fn blocks_behind(chain: &Chain, ring_blocks: u32) -> impl Iterator<Item = u32> {
    let end = chain.position.ring_index;
    let mut groups = chain.places.iter().peekable();
    let mut group_end = 0;
    (end..end + ring_blocks)
        .filter(move |&step| {
            if let Some(&(_, _, held)) =
                groups.next_if(|(_, first, _)| *first == step % ring_blocks)
            {
                group_end = step + held;
            }
            step >= group_end
        })
        .map(move |step| step % ring_blocks)
}

/// The ring blocks of groups above the watermark.
pub(super) fn suspect_groups(geometry: &Geometry, journal: u16, chain: &Chain) -> Vec<BlockNo> {
    let suspects = chain
        .places
        .iter()
        .filter(|(seq, ..)| *seq > chain.watermark);
    suspects
        .flat_map(|&(_, first, count)| first..first + count)
        .map(|index| geometry.ring_block(journal, index))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(end: u32, places: &[(u64, u32, u32)]) -> Vec<u32> {
        let chain = Chain {
            units: Vec::new(),
            position: Position {
                next_seq: 9,
                ring_index: end,
                prev_hash: ChainHash(0),
            },
            watermark: 0,
            groups: places.len() as u64,
            places: places.to_vec(),
        };
        blocks_behind(&chain, 8).collect()
    }

    #[test]
    fn what_is_behind_a_chain_is_looked_at_once() {
        assert_eq!(behind(3, &[]), [3, 4, 5, 6, 7, 0, 1, 2]);
        assert_eq!(behind(5, &[(1, 2, 2), (2, 4, 1)]), [5, 6, 7, 0, 1]);
        // Around the end, with blocks that a group of one block leaves out there.
        assert_eq!(behind(2, &[(1, 4, 2), (2, 6, 1), (3, 0, 2)]), [2, 3, 7]);
        // All of the ring.
        assert_eq!(behind(3, &[(1, 3, 5), (2, 0, 3)]), []);
    }
}
