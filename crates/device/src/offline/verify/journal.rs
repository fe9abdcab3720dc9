//! Checking one journal: its roots, its tables, its ring, and what they lead to.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_types::unit::SEGMENT_BLOCKS;
use flagstone_types::{BlockNo, SegmentNo};

use super::maps::MapCheck;
use super::problem::{Findings, Kind, Severity};
use super::replay::{Replay, replay};
use super::space::{SpaceCheck, read_bitmap};
use super::{Counts, Options, Progress};
use crate::format::catalogue::RecordKind;
use crate::format::root::Root;
use crate::format::segment::SegmentRecord;
use crate::offline::claims::Claims;
use crate::offline::image::{Found, Roots};
use crate::offline::layers::Layers;
use crate::offline::ring::Ring;
use crate::offline::table::{TableItem, walk_catalogue, walk_segments};
use crate::offline::walk::Nodes;
use crate::offline::{Image, ReadBlocks};
use crate::space::Bitmap;
use crate::v2p::Key;

/// What journals must agree on.
#[derive(Default)]
pub(super) struct DeviceWide {
    /// Who owns each segment.
    segments: BTreeMap<SegmentNo, u16>,
}

/// Checks a journal.
pub(super) struct JournalCheck<'a, 'p, R> {
    pub(super) image: &'a Image<R>,
    pub(super) number: u16,
    pub(super) options: Options,
    pub(super) findings: &'a mut Findings,
    pub(super) counts: &'a mut Counts,
    pub(super) progress: &'a mut Progress<'p>,
    pub(super) device: &'a mut DeviceWide,
}

/// The state that a root describes, as far as it can be read.
#[derive(Default)]
pub(super) struct Checkpoint {
    pub(super) layers: Layers,
    pub(super) segments: BTreeMap<SegmentNo, SegmentRecord>,
    pub(super) bitmaps: BTreeMap<SegmentNo, Bitmap>,
    /// Segments whose bitmap can't be trusted.
    pub(super) unknown: Vec<SegmentNo>,
    /// Blocks of tables, then of everything.
    pub(super) claims: Claims,
    /// Blocks of map nodes alone.
    pub(super) node_claims: Claims,
    /// Blocks of tables alone.
    pub(super) tables: Vec<BlockNo>,
    /// Nothing is missing.
    pub(super) is_complete: bool,
}

impl<R: ReadBlocks> JournalCheck<'_, '_, R> {
    pub(super) fn run(mut self) {
        let roots = self.image.roots(self.number);
        self.check_roots(&roots);
        let Some(root) = roots.current() else { return };
        let ring = Ring::scan(self.image, root);
        self.check_ring(root, &ring);
        let problems_before = self.findings.problem_count();
        let before_journal = *self.counts;
        let mut state = self.load(root);
        let has_records = ring.has_records();
        let nodes = Nodes::new(self.image);
        let counted = *self.counts;
        let maps_complete = MapCheck {
            nodes: &nodes,
            layers: &state.layers,
            with_data: !self.options.fast && !has_records,
            claims: &mut state.claims,
            node_claims: &mut state.node_claims,
            findings: self.findings,
            counts: self.counts,
            progress: self.progress,
        }
        .run();
        state.is_complete &= maps_complete;
        self.check_space(&state);
        if !has_records {
            return;
        }
        if self.findings.problem_count() > problems_before {
            let what = format!(
                "the ring of journal {} was not replayed: what it would be replayed on is damaged",
                self.number
            );
            return self.findings.note(what);
        }
        // What was counted before the replay is not what a node would serve.
        *self.counts = counted;
        self.check_replayed(root, &ring, &state, before_journal);
    }

    fn check_roots(&mut self, roots: &Roots) {
        let (number, current) = (self.number, roots.current_slot());
        for (slot, place) in roots.slots.iter().enumerate() {
            let name = format!("root slot {slot} of journal {number} ({})", place.block);
            match &place.found {
                Found::Valid(_) | Found::Blank => {}
                Found::Flipped(root) => {
                    let which = match current == Some(slot) {
                        false => "which is not needed",
                        true => "the newest one; a node flips it back",
                    };
                    let what = format!(
                        "{name} is damaged: one bit is flipped. It held root {}, {which}",
                        root.root_seq
                    );
                    self.findings
                        .add(Severity::Harmless, Kind::Root, &[place.block], what);
                }
                Found::Invalid(why) => self.findings.note(format!(
                    "{name} is not valid: {why}. It was never written, or its writing was \
                     interrupted"
                )),
                Found::Unreadable(why) => {
                    let what = format!("{name}: {why}");
                    self.findings
                        .add(Severity::Loss, Kind::Root, &[place.block], what);
                }
            }
        }
        match (roots.slots[0].found.mended(), roots.slots[1].found.mended()) {
            (Some(a), Some(b)) if a.root_seq.abs_diff(b.root_seq) != 1 => {
                let what = format!(
                    "the roots of journal {number} have the numbers {} and {}, which don't follow \
                     each other: one between is lost",
                    a.root_seq, b.root_seq
                );
                let blocks = [roots.slots[0].block, roots.slots[1].block];
                self.findings.add(Severity::Loss, Kind::Root, &blocks, what);
            }
            _ => {}
        }
        if current.is_none() {
            let what = format!("journal {number} has no valid root: all it owns is lost");
            let blocks = [roots.slots[0].block, roots.slots[1].block];
            self.findings.add(Severity::Loss, Kind::Root, &blocks, what);
        }
    }

    fn check_ring(&mut self, root: &Root, ring: &Ring) {
        self.counts.groups += ring.groups.len() as u64;
        let number = self.number;
        if let Some(what) = ring.missing(root.incarnation) {
            let at = self.image.geometry.ring_block(number, ring.end_index);
            let what = format!("journal {number}: {what}");
            self.findings
                .add(Severity::Loss, Kind::Journal, &[at], what);
        } else if let Some((place, is_certain)) = &ring.flipped {
            let which = format!(
                "journal {number}: group {} at {}",
                place.header.seq, place.block
            );
            if *is_certain {
                let what = format!(
                    "{which} is damaged: one bit is flipped. What it and later groups say is lost"
                );
                self.findings
                    .add(Severity::Loss, Kind::Journal, &[place.block], what);
            } else {
                self.findings.note(format!(
                    "{which} is one bit away from being whole: it was torn, or damaged since"
                ));
            }
        }
        for fault in &ring.unreadable {
            let what = format!("journal {number}: the ring may go on there: {fault}");
            self.findings
                .add(Severity::Loss, Kind::Journal, &[fault.block], what);
        }
        if root.clean && !ring.groups.is_empty() {
            let what = format!(
                "journal {number} was closed in order, but {} groups follow its root",
                ring.groups.len()
            );
            // Groups that only tell a watermark change nothing.
            match ring.has_records() {
                false => self.findings.note(what),
                true => {
                    let at = ring.groups[0].block;
                    self.findings
                        .add(Severity::Harmless, Kind::Journal, &[at], what);
                }
            }
        }
    }

    /// Reads the tables and bitmaps.
    fn load(&mut self, root: &Root) -> Checkpoint {
        let mut state = Checkpoint {
            is_complete: true,
            ..Checkpoint::default()
        };
        self.load_catalogue(root, &mut state);
        self.load_segments(root, &mut state);
        state
    }

    fn load_catalogue(&mut self, root: &Root, state: &mut Checkpoint) {
        let mut items = Vec::new();
        walk_catalogue(self.image, &root.catalogue, |item| match item {
            TableItem::Record {
                number,
                block,
                record,
            } => {
                state.layers.insert(number, record, block);
            }
            TableItem::Index { block, .. } | TableItem::Page { block, .. } => {
                items.push(Ok(block));
            }
            TableItem::Fault(fault) => items.push(Err(fault)),
        });
        self.take_table("catalogue", "dvols and layers", items, state);
        for (slot, problem) in state.layers.link() {
            let what = format!("{}: {problem}", state.layers.words(slot));
            let page = state
                .layers
                .get(slot)
                .map_or(BlockNo(0), |layer| layer.page);
            self.findings
                .add(Severity::Loss, Kind::Catalogue, &[page], what);
            state.is_complete = false;
        }
        let wrong = check_layers(&state.layers, root.next_layer);
        for (block, what) in wrong {
            self.findings
                .add(Severity::Loss, Kind::Catalogue, &[block], what);
        }
        self.counts.count_layers(&state.layers);
        // A dvol that another journal has as well is no damage: a move leaves that, and the next start settles it.
    }

    fn load_segments(&mut self, root: &Root, state: &mut Checkpoint) {
        let mut items = Vec::new();
        let mut records = Vec::new();
        walk_segments(self.image, &root.segments, |item| match item {
            TableItem::Record {
                number,
                block,
                record,
            } => records.push((number, block, record)),
            TableItem::Index { block, .. } | TableItem::Page { block, .. } => {
                items.push(Ok(block));
            }
            TableItem::Fault(fault) => items.push(Err(fault)),
        });
        self.take_table("segment table", "segments", items, state);
        for (number, page, record) in records {
            let segment = SegmentNo(number);
            if !self.image.geometry.is_usable_segment(segment) {
                let what = format!(
                    "journal {} owns segment {number}, which can't be used",
                    self.number
                );
                self.findings
                    .add(Severity::Loss, Kind::Segment, &[page], what);
                continue;
            }
            if let Some(other) = self.device.segments.insert(segment, self.number) {
                let what = format!(
                    "segment {number} belongs to journal {other} and to journal {}",
                    self.number
                );
                self.findings
                    .add(Severity::Loss, Kind::Segment, &[page], what);
            }
            self.counts.segments += 1;
            self.progress.expect(u64::from(record.used_blocks));
            state.segments.insert(segment, record);
            match read_bitmap(self.image, segment, &record) {
                Ok(bitmap) => {
                    state.bitmaps.insert(segment, bitmap);
                }
                Err(fault) => {
                    let what = fault.to_string();
                    self.findings
                        .add(Severity::Loss, Kind::Segment, &[fault.block], what);
                    state.unknown.push(segment);
                }
            }
        }
    }

    /// Claims a table's blocks and reports those that can't be read.
    fn take_table(
        &mut self,
        table: &str,
        holds: &str,
        items: Vec<Result<BlockNo, crate::offline::Fault>>,
        state: &mut Checkpoint,
    ) {
        let number = self.number;
        for item in items {
            match item {
                Ok(block) => {
                    self.counts.table_blocks += 1;
                    state.tables.push(block);
                    if state.claims.claim(block, &self.image.geometry).is_err() {
                        let what = format!(
                            "{block} of journal {number}'s {table} has another use, or is none \
                             that can be handed out"
                        );
                        self.findings
                            .add(Severity::Loss, Kind::DoubleUse, &[block], what);
                    }
                }
                Err(fault) => {
                    let what = format!("journal {number}: {table}: {fault}; some {holds} are lost");
                    self.findings
                        .add(Severity::Loss, Kind::Table, &[fault.block], what);
                    state.is_complete = false;
                }
            }
        }
    }

    fn check_space(&mut self, state: &Checkpoint) {
        SpaceCheck {
            bitmaps: &state.bitmaps,
            unknown: &state.unknown,
            claims: &state.claims,
            is_complete: state.is_complete,
            after: "",
            findings: self.findings,
        }
        .run();
        if !state.is_complete {
            self.findings.note(format!(
                "journal {}: leaked blocks were not looked for, because not all that refers to \
                 blocks could be read",
                self.number
            ));
        }
    }

    /// Replays the ring in memory and checks what comes of it.
    fn check_replayed(
        &mut self,
        root: &Root,
        ring: &Ring,
        before: &Checkpoint,
        counts_before: Counts,
    ) {
        let replayed = match replay(self.image, root, ring, before, self.findings) {
            Ok(replayed) => replayed,
            Err(fault) => {
                let what = format!(
                    "journal {}: a group that is in order can't be replayed: {fault}",
                    self.number
                );
                return self
                    .findings
                    .add(Severity::Loss, Kind::Journal, &[fault.block], what);
            }
        };
        let Replay {
            layers,
            mut claims,
            mut bitmaps,
            placed,
            units,
            dropped,
            segments,
            next_layer,
        } = replayed;
        // Instead of what the tables say: a node would serve what the replay leads to.
        self.counts.dvols = counts_before.dvols;
        self.counts.snapshots = counts_before.snapshots;
        self.counts.hidden_layers = counts_before.hidden_layers;
        self.counts.count_layers(&layers);
        self.counts.segments = counts_before.segments + segments;
        self.counts.units += units;
        self.counts.dropped_units += dropped;
        if dropped > 0 {
            self.findings.note(format!(
                "journal {}: {dropped} units at its end were never acknowledged and their data is \
                 not there; a node would leave them out, and so does this check",
                self.number
            ));
        }
        for (block, what) in check_layers(&layers, next_layer) {
            let what = format!("after replay: {what}");
            self.findings
                .add(Severity::Loss, Kind::Catalogue, &[block], what);
        }
        let nodes = Nodes {
            image: self.image,
            placed,
        };
        let mut node_claims = Claims::default();
        let is_complete = MapCheck {
            nodes: &nodes,
            layers: &layers,
            with_data: !self.options.fast,
            claims: &mut claims,
            node_claims: &mut node_claims,
            findings: self.findings,
            counts: self.counts,
            progress: self.progress,
        }
        .run();
        forget_retired(&mut bitmaps, &before.node_claims, &claims);
        SpaceCheck {
            bitmaps: &bitmaps,
            unknown: &before.unknown,
            claims: &claims,
            is_complete,
            after: " after replay",
            findings: self.findings,
        }
        .run();
    }
}

/// Nodes that replay has replaced are in use until the next checkpoint: that is no leak.
fn forget_retired(
    bitmaps: &mut BTreeMap<SegmentNo, Bitmap>,
    nodes_before: &Claims,
    claims: &Claims,
) {
    for (segment, nodes) in nodes_before.segments() {
        let Some(bitmap) = bitmaps.get_mut(&segment) else {
            continue;
        };
        let first = segment.first_block().0;
        for index in (0..SEGMENT_BLOCKS as usize).filter(|&index| nodes.get(index)) {
            if !claims.contains(BlockNo(first + index as u64)) {
                bitmap.clear(index);
            }
        }
    }
}

/// What must hold between the records of a catalogue: page and problem of each that is wrong.
fn check_layers(layers: &Layers, next_layer: u32) -> Vec<(BlockNo, String)> {
    let mut wrong = Vec::new();
    let mut names = BTreeSet::new();
    let mut numbers = BTreeMap::new();
    for (slot, layer) in layers.iter() {
        let record = &layer.record;
        let mut say =
            |what: String| wrong.push((layer.page, format!("{}: {what}", layer.words(slot))));
        if record.layer.0 >= next_layer {
            say(format!(
                "its number was never given out; the next one would be {next_layer}"
            ));
        }
        if let Some(other) = numbers.insert(record.layer, slot) {
            say(format!("it has the same number as {}", layers.words(other)));
        }
        let is_dvol = record.kind == RecordKind::Dvol;
        if !layer.is_hidden() {
            let of_dvol = (!is_dvol).then_some(record.id);
            if !names.insert((of_dvol, record.name.as_str())) {
                say("another one has the same name".to_owned());
            }
        }
        if is_dvol && layer.is_hidden() {
            say("a dvol can't be hidden".to_owned());
        }
        if record.reap_cursor > Key(0) && !layer.is_reaped() {
            say("it was being freed, but it isn't deleted or has several children".to_owned());
        }
        if layers.lineage(slot).is_none() {
            say("too many layers below it are being freed at the same time".to_owned());
        }
    }
    wrong
}
