//! Addresses of cores: `bytes` u8 and text, such as `10.0.0.7:4420` or `[fd00::7]:4420`.
//!
//! As text, so that the kinds of addresses that will come need no layout of their own.

use std::io::Write;
use std::net::SocketAddr;

use crate::BodyError;
use crate::fields::Fields;

/// The field's name in complaints.
const FIELD: &str = "an address";

/// Appends an address to a body.
pub fn encode(address: SocketAddr, out: &mut Vec<u8>) {
    let at = out.len();
    out.push(0);
    write!(out, "{address}").expect("appending to a Vec doesn't fail");
    let bytes = out.len() - at - 1;
    out[at] = u8::try_from(bytes).expect("39 digits and colons, a scope and a port are below 256");
}

/// An address that is a whole body.
pub fn decode(body: &[u8]) -> Result<SocketAddr, BodyError> {
    let mut fields = Fields::new(body);
    let address = take(&mut fields)?;
    fields.end()?;
    Ok(address)
}

pub(crate) fn take(fields: &mut Fields<'_>) -> Result<SocketAddr, BodyError> {
    let bytes = fields.u8(FIELD)?;
    let text = fields.text(FIELD, bytes.into())?;
    text.parse()
        .map_err(|_| BodyError::NotText { field: FIELD })
}

/// Addresses of all cores of a node, in the order of the cores.
#[derive(Clone)]
pub struct Addresses<'a> {
    fields: Fields<'a>,
    left: u16,
}

impl<'a> Addresses<'a> {
    /// Looks through `count` addresses, and takes them from `fields`.
    pub(crate) fn take(fields: &mut Fields<'a>, count: u16) -> Result<Addresses<'a>, BodyError> {
        let addresses = Addresses {
            fields: *fields,
            left: count,
        };
        for _ in 0..count {
            take(fields)?;
        }
        Ok(addresses)
    }
}

impl Iterator for Addresses<'_> {
    type Item = SocketAddr;

    fn next(&mut self) -> Option<SocketAddr> {
        self.left = self.left.checked_sub(1)?;
        // All of them were looked at when they were taken.
        take(&mut self.fields).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Addresses<'_> {}
