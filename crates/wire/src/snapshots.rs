//! Bodies of `SNAPSHOT`, `DELETE_SNAPSHOT`, `ROLL_BACK` and `LIST_SNAPSHOTS`.

use flagstone_types::Lsn;

use crate::fields::{Fields, bounded, text};
use crate::hello::cut;
use crate::open::{NAME_MAX_BYTES, put_name, take_name};
use crate::{BodyError, VolumeNo};

pub use crate::open::decode_name;

/// Volumes of which one `SNAPSHOT` may take snapshots.
pub const SNAPSHOTS_MAX: usize = 1024;

/// One snapshot that is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewSnapshot<'a> {
    /// Of which volume.
    pub volume: VolumeNo,
    /// Its name, 1 to 128 bytes.
    pub name: &'a str,
}

/// Appends the body of `SNAPSHOT`. `None`, and nothing is appended, if there are more of them than
/// there may be, or if a name is too long or empty.
pub fn encode_snapshots(snapshots: &[NewSnapshot<'_>], out: &mut Vec<u8>) -> Option<()> {
    let is_name = |name: &str| (1..=NAME_MAX_BYTES).contains(&name.len());
    if snapshots.len() > SNAPSHOTS_MAX || !snapshots.iter().all(|new| is_name(new.name)) {
        return None;
    }
    out.extend((snapshots.len() as u16).to_le_bytes());
    for new in snapshots {
        out.extend(new.volume.0.to_le_bytes());
        put_name(new.name, out);
    }
    Some(())
}

/// A body of `SNAPSHOT` that came: 1 to [`SNAPSHOTS_MAX`] of them.
pub fn decode_snapshots(body: &[u8]) -> Result<NewSnapshots<'_>, BodyError> {
    let mut fields = Fields::new(body);
    let count = fields.u16("the count of snapshots")?;
    bounded(
        "the count of snapshots",
        count.into(),
        1,
        SNAPSHOTS_MAX as u64,
    )?;
    let snapshots = NewSnapshots {
        fields,
        left: count.into(),
    };
    for _ in 0..count {
        take_new(&mut fields)?;
    }
    fields.end()?;
    Ok(snapshots)
}

fn take_new<'a>(fields: &mut Fields<'a>) -> Result<NewSnapshot<'a>, BodyError> {
    let volume = fields.u32("the volume of a snapshot")?;
    bounded(
        "the volume of a snapshot",
        volume.into(),
        1,
        u32::MAX.into(),
    )?;
    Ok(NewSnapshot {
        volume: VolumeNo(volume),
        name: take_name(fields)?,
    })
}

/// Snapshots that are to be taken.
#[derive(Clone)]
pub struct NewSnapshots<'a> {
    fields: Fields<'a>,
    left: usize,
}

impl<'a> Iterator for NewSnapshots<'a> {
    type Item = NewSnapshot<'a>;

    fn next(&mut self) -> Option<NewSnapshot<'a>> {
        self.left = self.left.checked_sub(1)?;
        // All of them were looked at when the body was.
        take_new(&mut self.fields).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for NewSnapshots<'_> {}

/// The body of `LIST_SNAPSHOTS`: the name after which to go on, empty for the beginning.
pub fn decode_after(body: &[u8]) -> Result<&str, BodyError> {
    let most = NAME_MAX_BYTES as u64;
    bounded("the length of the name", body.len() as u64, 0, most)?;
    text("the name", body)
}

/// A snapshot that there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot<'a> {
    /// Of the last change in it.
    pub lsn: Lsn,
    /// When it was taken, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Size of the volume when it was taken, in bytes.
    pub size_bytes: u64,
    /// Its name, 1 to 128 bytes.
    pub name: &'a str,
}

impl<'a> Snapshot<'a> {
    /// Bytes of it in a body.
    pub fn encoded_bytes(&self) -> usize {
        8 + 8 + 8 + 2 + self.name.len()
    }

    /// Appends it to the body of a reply to `LIST_SNAPSHOTS`. A name that is too long is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.lsn.0.to_le_bytes());
        out.extend(self.created_ns.to_le_bytes());
        out.extend(self.size_bytes.to_le_bytes());
        put_name(cut(self.name, NAME_MAX_BYTES), out);
    }

    fn take(fields: &mut Fields<'a>) -> Result<Snapshot<'a>, BodyError> {
        Ok(Snapshot {
            lsn: Lsn(fields.u64("the LSN of a snapshot")?),
            created_ns: fields.u64("the time of a snapshot")?,
            size_bytes: fields.u64("the size of a snapshot")?,
            name: take_name(fields)?,
        })
    }
}

/// Snapshots of a volume.
#[derive(Clone)]
pub struct Snapshots<'a> {
    fields: Fields<'a>,
}

impl<'a> Snapshots<'a> {
    /// A reply to `LIST_SNAPSHOTS` that came, by name. Each name is above the one before, and the first
    /// above `after`, so that a client which goes on asking comes to an end.
    pub fn decode(body: &'a [u8], after: &str) -> Result<Snapshots<'a>, BodyError> {
        let mut fields = Fields::new(body);
        let snapshots = Snapshots { fields };
        let mut before = after;
        while !fields.rest().is_empty() {
            let snapshot = Snapshot::take(&mut fields)?;
            if snapshot.name <= before {
                return Err(BodyError::Order { field: "names" });
            }
            before = snapshot.name;
        }
        Ok(snapshots)
    }
}

impl<'a> Iterator for Snapshots<'a> {
    type Item = Snapshot<'a>;

    fn next(&mut self) -> Option<Snapshot<'a>> {
        // Nothing but whole snapshots is left: the body was looked through.
        Snapshot::take(&mut self.fields).ok()
    }
}
