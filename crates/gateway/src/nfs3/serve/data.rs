//! READ, WRITE and COMMIT.

use flagstone_fs::{Files, Piece, Stability};
use flagstone_platform::{IoBuf, Platform};

use super::{Asker, Done, Outcome};
use crate::nfs3::exports::Exports;
use crate::nfs3::wire::args::{Extent, Stability as Asked, Write};
use crate::nfs3::wire::errors::Nfs3Error;
use crate::nfs3::wire::results::{put_commit, put_read_head, put_write};
use crate::rpc::server::limits::PAYLOAD_BYTES_MAX;
use crate::xdr::Writer;

impl<P: Platform, E: Exports> Asker<'_, P, E> {
    /// Fewer bytes than asked for are right at any place: a client asks again from there.
    /// [rfc1813 3.3.6]
    pub(super) async fn read(
        &self,
        extent: &Extent<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<Done, E::Files> {
        let file = self.target(extent.file).await?;
        let caller = self.caller(&file);
        let len_bytes = extent.count_bytes.min(PAYLOAD_BYTES_MAX);
        let operation = || {
            file.files()
                .read(&caller, file.node, extent.offset_bytes, len_bytes)
        };
        let read = self.done(&[&file], operation).await?;
        let piece_bytes = |piece: &Piece| match piece {
            Piece::Data(buf) => buf.len() as u64,
            Piece::Zeros(len_bytes) => *len_bytes,
        };
        let count = read.pieces.iter().map(piece_bytes).sum::<u64>();
        if count > u64::from(len_bytes) {
            debug_assert!(false, "a read of {len_bytes} bytes has brought {count}");
            return Err(file.failed(Nfs3Error::ServerFault));
        }
        let attributes = file.attributes(&read.attributes);
        put_read_head(out, Some(&attributes), count as u32, read.is_end);
        Ok(Done {
            payload: read.pieces,
            payload_bytes: count as usize,
            written_bytes: 0,
        })
    }

    /// [rfc1813 3.3.7]
    pub(super) async fn write(
        &self,
        args: &Write<'_>,
        payload: Option<IoBuf>,
        out: &mut Writer<'_>,
    ) -> Outcome<Done, E::Files> {
        let file = self.changed_target(args.file).await?;
        let payload = payload.ok_or_else(|| file.failed(Nfs3Error::ServerFault))?;
        // What is more than FSINFO says is left for the client to send again.
        let len = payload.len().min(PAYLOAD_BYTES_MAX as usize);
        let payload = payload.narrow(0..len);
        if args.offset_bytes.checked_add(len as u64).is_none() {
            return Err(file.failed(Nfs3Error::FBig));
        }
        let stability = match args.stability {
            Asked::Unstable => Stability::Unstable,
            // What says where the data is, is written with it: there is nothing between the two.
            Asked::DataSync | Asked::FileSync => Stability::Stable,
        };
        let caller = self.caller(&file);
        let operation = || {
            let (files, payload) = (file.files(), payload.clone());
            files.write(&caller, file.node, args.offset_bytes, payload, stability)
        };
        let written = self.done(&[&file], operation).await?;
        drop(payload);
        // [rfc1813 3.3.7] never less than was asked for.
        if written.stability < stability {
            tracing::error!(
                file = ?file.node,
                "nfs: a stable write came back unstable; its client is told that it failed"
            );
            return Err(file.failed(Nfs3Error::ServerFault));
        }
        let committed = match written.stability {
            Stability::Unstable => Asked::Unstable,
            Stability::Stable => Asked::FileSync,
        };
        let changes = file.changes(&written.changes);
        let verifier = written.verifier.to_be_bytes();
        put_write(out, &changes, len as u32, committed, verifier);
        Ok(Done {
            written_bytes: len as u64,
            ..Done::default()
        })
    }

    /// All of the file, whatever part is asked for: that is allowed, and costs the same flush.
    /// [rfc1813 3.3.21]
    pub(super) async fn commit(
        &self,
        extent: &Extent<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let file = self.target(extent.file).await?;
        let caller = self.caller(&file);
        let operation = || file.files().commit(&caller, file.node);
        let written = self.done(&[&file], operation).await?;
        let verifier = written.verifier.to_be_bytes();
        put_commit(out, &file.changes(&written.changes), verifier);
        Ok(())
    }
}
