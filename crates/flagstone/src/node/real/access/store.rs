//! Where a journal keeps the tokens of its volumes: [records](crate::node::real::records) that go by the volume's id, which no
//! other volume ever has. So:
//!
//! - A volume's first record is durable before the volume is made: whoever finds the volume after a crash finds the
//!   record. A flush for both would not do. If the power fails during it, the volume may be there, while the record, written
//!   and not flushed, is lost.
//! - A record goes after its volume is deleted. One whose volume isn't there belongs to nobody; it is
//!   removed at the next start. That of a volume which went to another node stays as long as clients are sent on.

use std::collections::BTreeSet;

use flagstone_device::engine::{Attributes, CreateDvol, DvolError, Stability};
use flagstone_fs::{ATTRIBUTE_KIND_TOKENS, DvolRole};
use flagstone_platform::Platform;
use flagstone_types::DvolId;

use super::record::{BadRecord, Record};
use crate::node::real::records::{Kept, Loaded, RECORD_BYTES, RecordStore};

/// The tokens of one journal's volumes, on the device.
pub(in crate::node::real) type TokenStore<P> = RecordStore<P, Record>;

impl Kept for Record {
    const DVOL_NAME: &str = ".tokens";
    const ATTRIBUTE_KIND: u8 = ATTRIBUTE_KIND_TOKENS;
    type Key = DvolId;
    type Bad = BadRecord;

    fn key(&self) -> DvolId {
        self.volume
    }

    fn encode(&self) -> [u8; RECORD_BYTES] {
        Record::encode(self)
    }

    fn decode(block: &[u8]) -> Result<Record, BadRecord> {
        Record::decode(block)
    }

    fn is_newer(bad: &BadRecord) -> bool {
        matches!(bad, BadRecord::Version(_))
    }
}

impl<P: Platform> TokenStore<P> {
    /// Reads the records of volumes that are there, or are among `others`; removes the rest. Of two records of a volume neither counts.
    pub(super) async fn load_of_volumes(
        &self,
        others: &BTreeSet<DvolId>,
    ) -> Result<Loaded<Record>, DvolError> {
        let mut volumes = others.clone();
        self.engine().visit_dvols(|handle, attributes| {
            if DvolRole::of(attributes).is_none() {
                volumes.insert(handle.id);
            }
        });
        let mut loaded = self.load(|record| volumes.contains(&record.volume)).await?;
        let doubled = std::mem::take(&mut loaded.doubled);
        loaded.records.retain(|r| !doubled.contains(&r.volume));
        Ok(loaded)
    }

    /// Creates a volume that has a record from the beginning: both or neither.
    pub(super) async fn create_volume(
        &self,
        new: CreateDvol,
        attributes: Attributes,
        record: &Record,
    ) -> Result<(), DvolError> {
        let _turn = self.turn().await;
        let id = record.volume;
        assert_eq!(new.id, Some(id), "the record goes by the volume's id");
        self.put(record, Stability::Stable).await?;
        let created = self.engine().create_with(new, attributes).await;
        if let Err(error) = created {
            // What is left of it until the next start belongs to nobody.
            let _ = self.forget(id).await;
            return Err(error);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
