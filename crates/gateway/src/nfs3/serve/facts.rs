//! What server and filesystem can do, and how much room there is.

use flagstone_fs::{Files, LINKS_MAX, NAME_MAX_BYTES};
use flagstone_platform::Platform;

use super::{Asker, LISTING_BYTES_MAX, Outcome};
use crate::nfs3::exports::Exports;
use crate::nfs3::wire::attributes::{RawHandle, Time};
use crate::nfs3::wire::results::{
    PathLimits, Room, ServerInfo, TransferSizes, property, put_fsinfo, put_fsstat, put_pathconf,
};
use crate::rpc::server::limits::PAYLOAD_BYTES_MAX;
use crate::xdr::Writer;

/// What works best for READ and WRITE: as much as goes, in whole blocks.
const TRANSFERS: TransferSizes = TransferSizes {
    max: PAYLOAD_BYTES_MAX,
    preferred: PAYLOAD_BYTES_MAX,
    multiple: 4096,
};

/// What an empty file takes, for an estimate of how many more there can be, in bytes.
const FILE_BYTES_MIN: u64 = 512;

impl<P: Platform, E: Exports> Asker<'_, P, E> {
    /// [rfc1813 3.3.18]
    pub(super) async fn filesystem_room(
        &self,
        file: RawHandle<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let file = self.target(file).await?;
        let files = file.files();
        let attributes = self.done(&[&file], || files.attributes(file.node)).await?;
        let space = self.done(&[&file], || files.space()).await?;
        let free_files = space.free_bytes / FILE_BYTES_MIN;
        let free_files = free_files.min(space.free_files.unwrap_or(u64::MAX));
        let room = Room {
            total_bytes: space.total_bytes,
            free_bytes: space.free_bytes,
            available_bytes: space.free_bytes,
            total_files: space.files.saturating_add(free_files),
            free_files,
            available_files: free_files,
            unchanged_seconds: 0,
        };
        put_fsstat(out, Some(&file.attributes(&attributes)), &room);
        Ok(())
    }

    /// [rfc1813 3.3.19]
    pub(super) async fn filesystem_info(
        &self,
        file: RawHandle<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let file = self.target(file).await?;
        let files = file.files();
        let attributes = self.done(&[&file], || files.attributes(file.node)).await?;
        let info = ServerInfo {
            read: TRANSFERS,
            write: TRANSFERS,
            preferred_listing_bytes: LISTING_BYTES_MAX,
            file_bytes_max: files.size_max_bytes(),
            time_step: Time {
                seconds: 0,
                nanoseconds: 1,
            },
            properties: property::LINKS
                | property::SYMBOLIC_LINKS
                | property::HOMOGENEOUS
                | property::SETS_TIMES,
        };
        put_fsinfo(out, Some(&file.attributes(&attributes)), &info);
        Ok(())
    }

    /// [rfc1813 3.3.20]
    pub(super) async fn path_limits(
        &self,
        file: RawHandle<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let file = self.target(file).await?;
        let files = file.files();
        let attributes = self.done(&[&file], || files.attributes(file.node)).await?;
        let limits = PathLimits {
            links_max: LINKS_MAX,
            name_bytes_max: NAME_MAX_BYTES as u32,
            refuses_long_names: true,
            restricts_chown: true,
            ignores_case: false,
            keeps_case: true,
        };
        put_pathconf(out, Some(&file.attributes(&attributes)), &limits);
        Ok(())
    }
}
