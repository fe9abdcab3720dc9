//! `flagstone fs snapshot ...`.

use clap::Subcommand;

use crate::api::requests::{FilesystemSnapshotRequest, RollbackRequest};
use crate::client::Client;
use crate::name::parse_name;
use crate::node::{FilesystemInfo, FilesystemSnapshotInfo, FilesystemSnapshotPage};
use crate::output::{Output, utc};

#[derive(Subcommand, Debug)]
pub(super) enum SnapshotCommand {
    /// Take a snapshot: everything that was answered before is in it. Clients mount it as
    /// /FILESYSTEM@SNAPSHOT, to read
    #[command(after_help = "\
Example:
  flagstone fs snapshot create data monday")]
    Create {
        #[arg(value_parser = parse_name)]
        filesystem: String,
        #[arg(value_parser = parse_name)]
        name: String,
    },
    /// List the snapshots of a filesystem
    List {
        #[arg(value_parser = parse_name)]
        filesystem: String,
    },
    /// Make the filesystem what it was when a snapshot was taken; what was written since is lost
    #[command(after_help = "\
Example:
  flagstone fs snapshot create data before-rollback      keep the present state
  flagstone fs snapshot rollback data monday

Later snapshots stay. Clients need not unmount: their calls wait until it is done, which takes time for
each file there is, and copies of small files that have changed. Files that came since are gone (ESTALE),
and others are what they were, under whatever clients have cached: let nobody use it meanwhile.")]
    Rollback {
        #[arg(value_parser = parse_name)]
        filesystem: String,
        #[arg(value_parser = parse_name)]
        name: String,
    },
    /// Delete snapshots, in any order; clients that have one mounted find that its files are gone
    Delete {
        #[arg(value_parser = parse_name)]
        filesystem: String,
        /// Deleted one after the other, up to the first that can't be
        #[arg(required = true, value_parser = parse_name)]
        names: Vec<String>,
    },
}

pub(super) fn run(
    client: &Client,
    command: SnapshotCommand,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let of = |filesystem: &str| format!("/v1/filesystems/{filesystem}/snapshots");
    match command {
        SnapshotCommand::Create { filesystem, name } => {
            let request = FilesystemSnapshotRequest { name };
            let info: FilesystemSnapshotInfo = client.send("POST", &of(&filesystem), &request)?;
            let path = &info.export_path;
            let sentence = format!("took snapshot {}; clients mount {path}", info.name);
            output.outcome(&info, &sentence)?;
        }
        SnapshotCommand::List { filesystem } => {
            let page: FilesystemSnapshotPage = client.get(&of(&filesystem))?;
            if output.is_json() {
                output.json(&page)?;
                return Ok(());
            }
            let rows = page.items.into_iter().map(|info| {
                let number = info.number.to_string();
                vec![info.name, number, utc(info.created_ns), info.export_path]
            });
            const HEADINGS: [&str; 4] = ["SNAPSHOT", "NUMBER", "CREATED (UTC)", "EXPORT"];
            output.table(&HEADINGS, &[1], rows)?;
        }
        SnapshotCommand::Rollback { filesystem, name } => {
            let path = format!("/v1/filesystems/{filesystem}/rollback");
            let request = RollbackRequest {
                snapshot: name.clone(),
            };
            let info: FilesystemInfo = client.send("POST", &path, &request)?;
            let sentence = match &info.rolling_back_to {
                None => format!("rolled {filesystem} back to {name}"),
                Some(_) => format!(
                    "{filesystem} is being rolled back to {name}, and clients wait; \
                     `flagstone fs show {filesystem}` says when it is done"
                ),
            };
            output.outcome(&info, &sentence)?;
        }
        SnapshotCommand::Delete { filesystem, names } => {
            for name in names {
                client.call("DELETE", &format!("{}/{name}", of(&filesystem)))?;
                output.sentence(&format!("deleted snapshot {name} of {filesystem}"))?;
            }
        }
    }
    Ok(())
}
