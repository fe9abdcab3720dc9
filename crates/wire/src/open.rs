//! Bodies of `OPEN` and of the replies to it and to `DESCRIBE`.

use flagstone_types::{DeviceId, DvolId, Epoch, Lsn};

use crate::BodyError;
use crate::fields::{Fields, bounded, text};
use crate::hello::cut;

/// The longest name of a volume or snapshot, in bytes.
pub const NAME_MAX_BYTES: usize = 128;
/// The longest name in `OPEN`, in bytes: `NAME@SNAPSHOT`.
pub const OPEN_NAME_MAX_BYTES: usize = 2 * NAME_MAX_BYTES + 1;
/// Bytes of a proof: HMAC-SHA-256.
pub const PROOF_BYTES: usize = 32;
/// The longest name of a failure domain, in bytes.
pub const FAILURE_DOMAIN_MAX_BYTES: usize = 255;

/// Which volume is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// `NAME` or `NAME@SNAPSHOT`, 1 to 257 bytes.
    Name(&'a str),
    /// The volume's id.
    Id(DvolId),
}

impl<'a> Target<'a> {
    /// Appends it: `name_bytes` u16 and the name, or 0 and the id. This is what a proof is made over,
    /// too. An empty name can't be said; a longer one than there can be is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Target::Name(name) => {
                put_name(cut(name, OPEN_NAME_MAX_BYTES), out);
            }
            Target::Id(id) => {
                out.extend(0_u16.to_le_bytes());
                out.extend(id.0.to_le_bytes());
            }
        }
    }

    fn take(fields: &mut Fields<'a>) -> Result<Target<'a>, BodyError> {
        let bytes = fields.u16("the length of the name")?;
        if bytes == 0 {
            return fields.u128("the id").map(|id| Target::Id(DvolId(id)));
        }
        let most = OPEN_NAME_MAX_BYTES as u64;
        bounded("the length of the name", bytes.into(), 1, most)?;
        fields.text("the name", bytes.into()).map(Target::Name)
    }
}

/// The header's `lsn` of an `OPEN`: the epoch in which the client has had the volume open for writing, and 1; or 0.
pub fn held_field(held: Option<Epoch>) -> u64 {
    held.map_or(0, |held| u64::from(held.0) + 1)
}

/// What that says. What no epoch can be is higher than any.
pub fn held_of(field: u64) -> Option<Epoch> {
    let held = field.checked_sub(1)?;
    Some(Epoch(u32::try_from(held).unwrap_or(u32::MAX)))
}

/// Body of an `OPEN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenRequest<'a> {
    /// What to open.
    pub target: Target<'a>,
    /// The number of the token.
    pub token: u32,
    /// That the client has the token's key.
    pub proof: [u8; PROOF_BYTES],
}

impl<'a> OpenRequest<'a> {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.target.encode(out);
        out.extend(self.token.to_le_bytes());
        out.extend(self.proof);
    }

    /// A body that came.
    pub fn decode(body: &'a [u8]) -> Result<OpenRequest<'a>, BodyError> {
        let mut fields = Fields::new(body);
        let open = OpenRequest {
            target: Target::take(&mut fields)?,
            token: fields.u32("the token's number")?,
            proof: fields.array("the proof")?,
        };
        fields.end()?;
        Ok(open)
    }
}

/// What is said of an open volume. Flags of [`OpenReply`].
pub mod open_flag {
    /// Changes are refused.
    pub const READ_ONLY: u16 = 1 << 0;
    /// It is a snapshot.
    pub const SNAPSHOT: u16 = 1 << 1;
    /// All that have a meaning.
    pub const ALL: u16 = READ_ONLY | SNAPSHOT;
}

/// What a token allows. Rights of [`OpenReply`].
pub mod right {
    /// Reading.
    pub const READ: u16 = 1 << 0;
    /// Changing content, and flushing.
    pub const WRITE: u16 = 1 << 1;
    /// Snapshots, roll back, size, reservation.
    pub const OWN: u16 = 1 << 2;
    /// All that have a meaning.
    pub const ALL: u16 = READ | WRITE | OWN;
}

/// Body of the reply to `OPEN` and `DESCRIBE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenReply<'a> {
    /// The volume's id; a snapshot has that of its volume.
    pub id: DvolId,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its epoch.
    pub epoch: Epoch,
    /// [`open_flag`].
    pub flags: u16,
    /// [`right`].
    pub rights: u16,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// History up to here is forgotten.
    pub floor: Lsn,
    /// The device that it lies on.
    pub device: DeviceId,
    /// What fails together with the device; 0 to 255 bytes.
    pub failure_domain: &'a str,
}

impl<'a> OpenReply<'a> {
    /// Appends the body. A failure domain whose name is too long is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let domain = cut(self.failure_domain, FAILURE_DOMAIN_MAX_BYTES);
        out.extend(self.id.0.to_le_bytes());
        out.extend(self.size_bytes.to_le_bytes());
        out.extend(self.epoch.0.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        out.extend(self.rights.to_le_bytes());
        out.extend(self.block_bytes.to_le_bytes());
        out.extend(self.floor.0.to_le_bytes());
        out.extend(self.device.0.to_le_bytes());
        out.push(domain.len() as u8);
        out.extend(domain.as_bytes());
    }

    /// A body that came.
    pub fn decode(body: &'a [u8]) -> Result<OpenReply<'a>, BodyError> {
        let mut fields = Fields::new(body);
        let id = DvolId(fields.u128("the id")?);
        let size_bytes = fields.u64("the size")?;
        let epoch = Epoch(fields.u32("the epoch")?);
        bounded("the epoch", epoch.0.into(), 0, Epoch::MAX.0.into())?;
        let flags = known("the flags", fields.u16("the flags")?, open_flag::ALL)?;
        let rights = known("the rights", fields.u16("the rights")?, right::ALL)?;
        let block_bytes = fields.u32("the block size")?;
        bounded("the block size", block_bytes.into(), 1, u32::MAX.into())?;
        let floor = Lsn(fields.u64("the floor")?);
        let device = DeviceId(fields.u128("the device")?);
        let domain_bytes = fields.u8("the failure domain")?;
        let failure_domain = fields.text("the failure domain", domain_bytes.into())?;
        fields.end()?;
        Ok(OpenReply {
            id,
            size_bytes,
            epoch,
            flags,
            rights,
            block_bytes,
            floor,
            device,
            failure_domain,
        })
    }
}

/// The name that is all of a body: of a snapshot, 1 to 128 bytes.
pub fn decode_name(body: &[u8]) -> Result<&str, BodyError> {
    let most = NAME_MAX_BYTES as u64;
    bounded("the length of the name", body.len() as u64, 1, most)?;
    text("the name", body)
}

/// Appends `name_bytes` u16 and the name, which is below 64 KiB.
pub(crate) fn put_name(name: &str, out: &mut Vec<u8>) {
    out.extend((name.len() as u16).to_le_bytes());
    out.extend(name.as_bytes());
}

/// The name of a snapshot: `name_bytes` u16 and the name.
pub(crate) fn take_name<'a>(fields: &mut Fields<'a>) -> Result<&'a str, BodyError> {
    let bytes = fields.u16("the length of a name")?;
    let most = NAME_MAX_BYTES as u64;
    bounded("the length of a name", bytes.into(), 1, most)?;
    fields.text("a name", bytes.into())
}

/// `found` if it has no bits but those of `all`.
fn known(field: &'static str, found: u16, all: u16) -> Result<u16, BodyError> {
    match found & !all {
        0 => Ok(found),
        unknown => Err(BodyError::Unknown {
            field,
            found: unknown.into(),
        }),
    }
}
