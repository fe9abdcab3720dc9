//! What the tests share: a generator, a fake device for nodes, a model of a map.

use std::collections::BTreeMap;
use std::ops::Range;

use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Lsn, VBlock};

use crate::format::record::MappedBlock;
use crate::v2p::{Changed, DirtyWalk, Edit, Entry, EntryKind, Key, Map, Missing};

/// Blocks of all dvols lie below this vblock, except where a test says otherwise.
pub(super) const ALL: Range<VBlock> = VBlock(0)..VBlock(1 << 52);

/// A generator of numbers that look random (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// Nodes on a device.
#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) nodes: BTreeMap<u64, Vec<u8>>,
    pub(super) loads: u64,
}

impl Store {
    pub(super) fn fill(&mut self, missing: &Missing) {
        self.loads += 1;
        let bytes = &self.nodes[&missing.block().0];
        missing
            .fill_from(bytes)
            .expect("what was written can be read");
    }

    /// Tries until nothing is missing.
    pub(super) fn load<T>(&mut self, mut attempt: impl FnMut() -> Result<T, Missing>) -> T {
        for _ in 0..1_000_000 {
            match attempt() {
                Ok(done) => return done,
                Err(missing) => self.fill(&missing),
            }
        }
        panic!("still missing something after a million nodes");
    }

    /// Loads what changing `range` needs, sometimes one at a time, sometimes several.
    pub(super) fn prepare(&mut self, map: &Map, range: Range<VBlock>, random: &mut Random) {
        loop {
            let max = 1 + random.below(4) as usize;
            let missing = if max == 1 {
                map.missing(range.clone()).into_iter().collect()
            } else {
                map.missing_many(range.clone(), max)
            };
            assert!(missing.len() <= max);
            if missing.is_empty() {
                return;
            }
            for missing in missing {
                self.fill(&missing);
            }
        }
    }

    /// Writes the dirty nodes of a map to blocks that `allocate` gives.
    pub(super) fn write(&mut self, map: &Map, mut allocate: impl FnMut() -> u64) {
        let mut walk = DirtyWalk::new(map);
        while let Some(node) = walk.next() {
            let block = allocate();
            let mut bytes = vec![0xee; 4096];
            node.write_to(BlockNo(block), &mut bytes);
            assert!(
                self.nodes.insert(block, bytes).is_none(),
                "block {block} was in use"
            );
        }
        map.stats().node_writes_done();
    }
}

/// What is known of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cell {
    pub(super) data: Option<Entry>,
    pub(super) delta: Option<Entry>,
    pub(super) tombstone: Option<Lsn>,
}

impl Cell {
    pub(super) fn blocks(&self) -> impl Iterator<Item = Entry> {
        self.data.into_iter().chain(self.delta)
    }

    pub(super) fn lsn(&self) -> Lsn {
        let lsns = self.blocks().map(|entry| entry.lsn).chain(self.tombstone);
        lsns.max().expect("there is something in a cell")
    }
}

/// A map, block by block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Model(pub(super) BTreeMap<u64, Cell>);

impl Model {
    pub(super) fn write(&mut self, data: Entry) -> Vec<Entry> {
        let cell = Cell {
            data: Some(data),
            ..Cell::default()
        };
        let old = self.0.insert(data.key.vblock().0, cell).unwrap_or_default();
        old.blocks().collect()
    }

    pub(super) fn write_delta(&mut self, delta: Entry) -> Vec<Entry> {
        let cell = self.0.entry(delta.key.vblock().0).or_default();
        cell.tombstone = None;
        cell.delta.replace(delta).into_iter().collect()
    }

    pub(super) fn write_under(&mut self, data: Entry) -> Vec<Entry> {
        let cell = self.0.entry(data.key.vblock().0).or_default();
        cell.tombstone = None;
        cell.data.replace(data).into_iter().collect()
    }

    pub(super) fn deallocate(&mut self, range: Range<u64>, lsn: Lsn) -> Vec<Entry> {
        let present: Vec<u64> = self.0.range(range).map(|(&vblock, _)| vblock).collect();
        let (Some(&first), Some(&last)) = (present.first(), present.last()) else {
            return Vec::new();
        };
        let mut displaced = Vec::new();
        for vblock in first..=last {
            let cell = Cell {
                tombstone: Some(lsn),
                ..Cell::default()
            };
            let old = self.0.insert(vblock, cell).unwrap_or_default();
            displaced.extend(old.blocks());
        }
        displaced
    }

    pub(super) fn drop_tombstones(&mut self, up_to: Lsn) {
        self.0
            .retain(|_, cell| cell.tombstone.is_none_or(|lsn| lsn > up_to));
    }

    /// The model that these entries describe.
    pub(super) fn of(entries: &[Entry]) -> Model {
        let mut model = Model::default();
        let mut before = None;
        for entry in entries {
            assert!(before < Some(entry.key), "entries come in order");
            before = Some(entry.key);
            for vblock in entry.key.vblock().0..entry.end_vblock().0 {
                let cell = model.0.entry(vblock).or_default();
                match entry.kind {
                    EntryKind::Data => assert!(cell.data.replace(*entry).is_none()),
                    EntryKind::Delta => assert!(cell.delta.replace(*entry).is_none()),
                    EntryKind::Tombstone => {
                        assert!(cell.tombstone.replace(entry.lsn).is_none());
                    }
                    EntryKind::Child => panic!("a child among the entries"),
                }
                assert!(cell.tombstone.is_none() || cell.blocks().next().is_none());
            }
        }
        model
    }

    pub(super) fn mapped_count(&self) -> u64 {
        self.0.values().filter(|cell| cell.data.is_some()).count() as u64
    }
}

/// All entries of a map.
pub(super) fn entries_of(map: &Map, store: &mut Store) -> Vec<Entry> {
    store.load(|| {
        let mut out = Vec::new();
        map.lookup(ALL, usize::MAX, &mut out).map(|()| out)
    })
}

/// Panics unless the map is what the model says.
pub(super) fn compare(map: &Map, model: &Model, store: &mut Store) {
    assert_eq!(&Model::of(&entries_of(map, store)), model);
    assert_eq!(map.mapped_count(), model.mapped_count());
    let max_lsn = model.0.values().map(Cell::lsn).max().unwrap_or(Lsn::ZERO);
    assert!(map.max_lsn() >= max_lsn);
    map.check_invariants();
}

/// An entry for data at `vblock`.
pub(super) fn data(vblock: u64, block: u64, birth: LayerNo, lsn: Lsn) -> Entry {
    Entry {
        key: Key::block(VBlock(vblock)),
        kind: EntryKind::Data,
        block: BlockNo(block),
        checksum: BlockChecksum(block as u32 ^ 0x5555),
        birth,
        lsn,
        meta: block * 3,
    }
}

/// An entry for a delta at `vblock`.
pub(super) fn delta(vblock: u64, block: u64, birth: LayerNo, lsn: Lsn) -> Entry {
    let key = Key::delta(VBlock(vblock));
    let start = (block % 1000) as usize;
    let one = Changed::of(start..start + 1 + (block % 3000) as usize);
    let several = Changed::of(0..start / 128 * 128 + 128).and_then(|one| one.and(&(2048..2560)));
    let changed = if block.is_multiple_of(4) {
        several
    } else {
        one
    };
    let meta = changed.expect("within a block").meta();
    Entry {
        key,
        kind: EntryKind::Delta,
        meta,
        ..data(vblock, block, birth, lsn)
    }
}

/// Writes a data entry made by [`data`].
pub(super) fn put(map: &mut Map, edit: &mut Edit, entry: &Entry) {
    assert_eq!(entry.birth, edit.layer);
    let vblock = entry.key.vblock();
    match entry.kind {
        EntryKind::Data => {
            map.write(
                edit,
                vblock,
                entry.block,
                entry.checksum,
                entry.meta,
                entry.lsn,
            );
        }
        _ => map.write_delta(
            edit,
            vblock,
            entry.block,
            entry.checksum,
            entry.changed(),
            entry.lsn,
        ),
    }
}

/// Writes a data entry made by [`data`] under the delta that there may be.
pub(super) fn put_under(map: &mut Map, edit: &mut Edit, entry: &Entry) {
    assert_eq!(entry.birth, edit.layer);
    let mapped = MappedBlock {
        block: entry.block,
        checksum: entry.checksum,
        meta: entry.meta,
    };
    map.write_under(edit, entry.key.vblock(), &mapped, entry.lsn);
}

/// Maps blocks `range` of an empty part, data block n for vblock n.
pub(super) fn fill_range(map: &mut Map, edit: &mut Edit, range: Range<u64>, lsn: Lsn) {
    for vblock in range {
        put(map, edit, &data(vblock, vblock + 1, edit.layer, lsn));
    }
}

/// Writes a map and gives it back as after a restart, with nothing in memory.
pub(super) fn reopen(map: &Map, store: &mut Store) -> Map {
    let mut next = store.nodes.keys().next_back().map_or(1, |last| last + 1);
    store.write(map, || {
        next += 1;
        next
    });
    let root = map.root_ptr().expect("not empty");
    Map::from_root(root, map.mapped_count(), map.max_lsn(), map.stats().clone())
}
