//! What the node in memory gives and takes of streams: a block of data and a run of zeros.

use std::collections::BTreeMap;

use flagstone::name::SnapshotRef;
use flagstone::node::{
    NodeErrorKind, ReceiveId, ReceiveSpec, Reservation, SnapshotInfo, StreamPart, StreamRun,
    StreamSource, VolumeSpec,
};
use flagstone_types::{DvolId, Lsn};
use flagstone_wire::stream::{StreamBase, StreamHeader};

use crate::fake_state::{Answer, State, error};

const BLOCK: u64 = 4096;

/// Streams that are being received, and what became of others.
#[derive(Default)]
pub(crate) struct Streams {
    last: u64,
    open: BTreeMap<ReceiveId, (ReceiveSpec, Vec<StreamRun>)>,
    /// What was received, by `volume@snapshot`.
    pub(crate) received: BTreeMap<String, Vec<StreamRun>>,
    pub(crate) abandoned: u32,
}

impl State {
    pub(crate) fn open_stream(
        &mut self,
        key: &SnapshotRef,
        since: Option<String>,
    ) -> Answer<StreamSource> {
        let info = self.snapshot("sending", key)?.clone();
        let base = match since {
            None => None,
            Some(snapshot) => {
                let key = SnapshotRef::new(&key.volume, &snapshot).expect("checked names");
                let base = self.snapshot("sending since", &key)?;
                Some(StreamBase {
                    snapshot,
                    lsn: base.lsn,
                    size_bytes: base.size_bytes,
                })
            }
        };
        Ok(StreamSource {
            header: StreamHeader {
                volume_id: DvolId(1),
                volume: info.volume,
                snapshot: info.name,
                lsn: info.lsn,
                size_bytes: info.size_bytes,
                taken_ns: info.created_ns,
                expected_bytes: BLOCK,
                base,
            },
            since: None,
            slot: 0,
            layer: info.layer,
            hold: Default::default(),
        })
    }

    /// In two parts; the second fails for a snapshot called `broken`.
    pub(crate) fn read_stream(&mut self, source: &StreamSource, from: u64) -> Answer<StreamPart> {
        if from == 0 {
            return Ok(StreamPart {
                runs: vec![StreamRun::Data {
                    offset_bytes: 0,
                    bytes: vec![7; BLOCK as usize],
                }],
                next_bytes: 2 * BLOCK,
            });
        }
        if source.header.snapshot == "broken" {
            let doing = "sending a snapshot".to_owned();
            return Err(error(NodeErrorKind::NotFound, doing, "it was deleted"));
        }
        Ok(StreamPart {
            runs: vec![StreamRun::Zeros {
                offset_bytes: from,
                len_bytes: BLOCK,
            }],
            next_bytes: source.header.size_bytes,
        })
    }

    pub(crate) fn begin_receive(&mut self, spec: ReceiveSpec) -> Answer<ReceiveId> {
        if spec.header.base.is_none() && self.volumes.contains_key(&spec.volume) {
            let doing = format!("receiving volume '{}'", spec.volume);
            let found = "there already is a volume of that name";
            return Err(error(NodeErrorKind::AlreadyExists, doing, found));
        }
        self.streams.last += 1;
        let id = ReceiveId(self.streams.last);
        self.streams.open.insert(id, (spec, Vec::new()));
        Ok(id)
    }

    pub(crate) fn receive_part(&mut self, id: ReceiveId, runs: Vec<StreamRun>) -> Answer<()> {
        let open = self.streams.open.get_mut(&id).expect("begun");
        open.1.extend(runs);
        Ok(())
    }

    pub(crate) fn finish_receive(&mut self, id: ReceiveId) -> Answer<SnapshotInfo> {
        let (spec, runs) = self.streams.open.remove(&id).expect("begun");
        if spec.header.base.is_none() {
            self.create(VolumeSpec {
                name: spec.volume.clone(),
                size_bytes: spec.header.size_bytes,
                reserve: Reservation::None,
                device: spec.device,
                core: spec.core,
                apart: false,
                stripes: None,
                stripe_unit_bytes: None,
                slo: Default::default(),
                oversubscribe: false,
            })?;
        }
        let key = SnapshotRef::new(&spec.volume, &spec.snapshot).expect("checked names");
        let name = format!("{key}{}", if spec.force { " by force" } else { "" });
        self.streams.received.insert(name, runs);
        let mut taken = self.create_snapshots(&[key])?;
        let mut info = taken.remove(0);
        info.lsn = Lsn(spec.header.lsn.0);
        Ok(info)
    }

    pub(crate) fn abandon_receive(&mut self, id: ReceiveId) -> Answer<()> {
        self.streams.open.remove(&id).expect("begun");
        self.streams.abandoned += 1;
        Ok(())
    }
}
