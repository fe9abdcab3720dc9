//! One map and many copies of it against a model, with loading, eviction and checkpoints between.

use std::ops::Range;
use std::rc::Rc;

use flagstone_types::{LayerNo, Lsn, VBlock};

use super::support::*;
use crate::format::record::MappedBlock;
use crate::v2p::{Edit, Entry, EvictState, Key, Map, MapStats};

struct Run {
    random: Random,
    stats: Rc<MapStats>,
    store: Store,
    next_node: u64,
    next_block: u64,
    layer: LayerNo,
    lsn: Lsn,
    /// Blocks that are changed lie in one of these.
    regions: Vec<Range<u64>>,
    map: Map,
    model: Model,
    copies: Vec<(Map, Model)>,
}

impl Run {
    fn new(seed: u64, fanout: usize, regions: Vec<Range<u64>>) -> Run {
        let stats = Rc::new(MapStats::with_fanout(fanout));
        Run {
            random: Random(seed),
            store: Store::default(),
            next_node: 1,
            next_block: 1,
            layer: LayerNo(1),
            lsn: Lsn(1),
            regions,
            map: Map::empty(stats.clone()),
            model: Model::default(),
            copies: Vec::new(),
            stats,
        }
    }

    /// Consecutive blocks, at most `max` of them.
    fn range(&mut self, max: u64) -> Range<u64> {
        let region = self.random.pick(&self.regions).clone();
        let start = region.start + self.random.below(region.end - region.start);
        start..(start + 1 + self.random.below(max)).min(region.end)
    }

    fn block(&mut self) -> u64 {
        self.next_block += 1;
        self.next_block
    }

    fn prepare(&mut self, range: &Range<u64>) {
        let range = VBlock(range.start)..VBlock(range.end);
        self.store.prepare(&self.map, range, &mut self.random);
    }

    fn change(&mut self) {
        let mut edit = Edit::new(self.layer);
        let dirty_before = self.stats.dirty_nodes();
        let expected: Vec<Entry> = match self.random.below(11) {
            0..3 => {
                let range = self.range(1);
                self.prepare(&range);
                let entry = data(range.start, self.block(), self.layer, self.lsn);
                put(&mut self.map, &mut edit, &entry);
                self.model.write(entry)
            }
            3..5 => {
                let range = self.range(1);
                self.prepare(&range);
                let entry = delta(range.start, self.block(), self.layer, self.lsn);
                put(&mut self.map, &mut edit, &entry);
                self.model.write_delta(entry)
            }
            5..7 => self.write_run(&mut edit),
            7..9 => self.deallocate(&mut edit),
            9 => {
                let range = self.range(1);
                self.prepare(&range);
                let entry = data(range.start, self.block(), self.layer, self.lsn);
                put_under(&mut self.map, &mut edit, &entry);
                self.model.write_under(entry)
            }
            _ => {
                let up_to = Lsn(self.lsn.0.saturating_sub(self.random.below(40)));
                let mut from = Some(VBlock(0));
                while let Some(start) = from {
                    let limit = 1 + self.random.below(9) as usize;
                    let (map, store) = (&mut self.map, &mut self.store);
                    from = store.load(|| map.drop_tombstones(&mut edit, up_to, start, limit));
                }
                self.model.drop_tombstones(up_to);
                Vec::new()
            }
        };
        let sorted = |mut entries: Vec<Entry>| {
            entries.sort_by_key(|entry| (entry.key, entry.block));
            entries
        };
        assert_eq!(
            sorted(std::mem::take(&mut edit.displaced)),
            sorted(expected)
        );
        assert!(self.stats.dirty_nodes() <= dirty_before + edit.dirtied);
        for retired in &edit.retired {
            assert!(retired.birth <= self.layer);
        }
        self.lsn = self.lsn.next();
    }

    fn write_run(&mut self, edit: &mut Edit) -> Vec<Entry> {
        let range = self.range(60);
        self.prepare(&range);
        let mut blocks = Vec::new();
        let mut displaced = Vec::new();
        for vblock in range.clone() {
            let entry = data(vblock, self.block(), self.layer, self.lsn);
            let Entry {
                block,
                checksum,
                meta,
                ..
            } = entry;
            blocks.push(MappedBlock {
                block,
                checksum,
                meta,
            });
            displaced.extend(self.model.write(entry));
        }
        self.map
            .write_run(edit, VBlock(range.start), &blocks, self.lsn);
        displaced
    }

    /// Sometimes in pieces of one LSN, which must come to the same.
    fn deallocate(&mut self, edit: &mut Edit) -> Vec<Entry> {
        let max = *self.random.pick(&[1, 10, 300]);
        let range = self.range(max);
        let pieces = 1 + self.random.below(3);
        let step = (range.end - range.start).div_ceil(pieces);
        let mut displaced = Vec::new();
        for start in range.clone().step_by(step as usize) {
            let piece = start..(start + step).min(range.end);
            self.prepare(&piece);
            self.map
                .deallocate(edit, VBlock(piece.start)..VBlock(piece.end), self.lsn);
            displaced.extend(self.model.deallocate(piece, self.lsn));
        }
        displaced
    }

    fn read(&mut self) {
        let range = self.range(30);
        let (map, store) = (&self.map, &mut self.store);
        for vblock in range.clone() {
            let found = store.load(|| map.get(VBlock(vblock)));
            let cell = self.model.0.get(&vblock).copied().unwrap_or_default();
            assert_eq!(
                (found.data().copied(), found.delta),
                (cell.data, cell.delta)
            );
            let lsn = self.model.0.get(&vblock).map(Cell::lsn);
            assert_eq!(found.lsn(), lsn);
        }
        // The range in pieces, going on behind the last entry of each.
        let since = Lsn(self.lsn.0.saturating_sub(self.random.below(60)));
        let limit = 1 + self.random.below(5) as usize;
        let (mut all, mut changed) = (Vec::new(), Vec::new());
        for (out, since) in [(&mut all, None), (&mut changed, Some(since))] {
            let mut from = VBlock(range.start);
            loop {
                let before = out.len();
                store.load(|| {
                    let range = from..VBlock(range.end);
                    match since {
                        None => map.lookup(range, limit, out),
                        Some(since) => map.changed_since(range, since, limit, out),
                    }
                });
                let got = out.len() - before;
                assert!(got <= limit + 1);
                if got < limit {
                    break;
                }
                from = out.last().expect("there are some").end_vblock();
            }
        }
        let clip = |model: Model| -> Model {
            Model(
                model
                    .0
                    .range(range.clone())
                    .map(|(&vblock, &cell)| (vblock, cell))
                    .collect(),
            )
        };
        assert_eq!(clip(Model::of(&all)), clip(self.model.clone()));
        changed.retain(|entry| entry.key >= Key::block(VBlock(range.start)));
        let newer = |entry: &&Entry| entry.lsn > since;
        let all_newer: Vec<Entry> = all.iter().filter(newer).copied().collect();
        let changed_all: Vec<Entry> = changed.iter().filter(newer).copied().collect();
        assert_eq!(changed.len(), changed_all.len(), "only what is newer");
        let inside = |e: &&Entry| e.key >= Key::block(VBlock(range.start));
        assert_eq!(
            changed,
            all_newer.iter().filter(inside).copied().collect::<Vec<_>>()
        );
    }

    fn checkpoint(&mut self) {
        let frozen = self.map.clone();
        let next = &mut self.next_node;
        self.store.write(&frozen, || {
            *next += 1;
            *next
        });
        assert!(!frozen.is_dirty() && !self.map.is_dirty());
        if self.random.one_in(2) {
            // As after a restart.
            self.map = match frozen.root_ptr() {
                Some(root) => {
                    let (mapped, lsn) = (frozen.mapped_count(), frozen.max_lsn());
                    Map::from_root(root, mapped, lsn, self.stats.clone())
                }
                None => Map::empty(self.stats.clone()),
            };
        }
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0 => {
                self.copies.push((self.map.clone(), self.model.clone()));
                self.layer.0 += 1;
                if self.copies.len() > 8 {
                    let index = self.random.below(8) as usize;
                    self.copies.remove(index);
                }
            }
            1 => self.checkpoint(),
            2 => {
                let visits = self.random.below(50) as usize;
                let mut state = EvictState::default();
                self.map.evict(&mut state, visits);
                self.map.evict(&mut state, visits);
                if !self.copies.is_empty() {
                    let (map, _) = self.random.pick(&self.copies);
                    map.evict(&mut state, 1000);
                    map.evict(&mut state, 1000);
                }
            }
            3 => {
                if !self.copies.is_empty() {
                    let (map, model) = self.random.pick(&self.copies);
                    compare(map, model, &mut self.store);
                }
            }
            4..8 => self.read(),
            _ => self.change(),
        }
        self.map.check_invariants();
    }

    fn run(mut self, steps: usize) {
        for step in 0..steps {
            self.step();
            if step % 16 == 0 {
                compare(&self.map, &self.model, &mut self.store);
            }
        }
        for (map, model) in &self.copies {
            compare(map, model, &mut self.store);
        }
        drop((self.map, self.copies));
        assert_eq!(self.stats.loaded_nodes(), 0, "nodes outlive their maps");
        assert_eq!(
            (self.stats.loaded_bytes(), self.stats.dirty_nodes()),
            (0, 0)
        );
    }
}

const FAR: u64 = (1 << 52) - 400;

#[test]
fn small_nodes_against_the_model() {
    for seed in 0..60 {
        let fanout = [4, 5, 6, 8, 13][seed as usize % 5];
        let regions = vec![0..200, 1000..1300, FAR..1 << 52];
        Run::new(seed, fanout, regions).run(1200);
    }
}

#[test]
fn dense_small_nodes_against_the_model() {
    for seed in 100..140 {
        Run::new(seed, 4 + seed as usize % 3, vec![50..170; 1]).run(1500);
    }
}

#[test]
fn full_size_nodes_against_the_model() {
    for seed in 200..206 {
        Run::new(seed, 100, vec![0..3000, 1 << 40..(1 << 40) + 3000]).run(2500);
    }
}
