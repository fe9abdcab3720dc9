//! `flagstone fs ...`.

use std::fs;
use std::os::unix::fs::MetadataExt;

use clap::{Args, Subcommand};

use super::OutputArgs;
use super::target::TargetArgs;
use crate::api::requests::{CheckRequest, FilesystemSnapshotRequest};
use crate::client::{Client, query_value};
use crate::exit::Exit;
use crate::name::parse_name;
use crate::node::{
    FilesystemCheck, FilesystemInfo, FilesystemPage, FilesystemSnapshotInfo,
    FilesystemSnapshotPage, FilesystemSpec,
};
use crate::output::{Output, utc};
use crate::size::{Size, counted, rounded};

/// Rows that are asked for at a time.
const LIST_ROWS: usize = 5000;

/// Says who the process is.
const MYSELF: &str = "/proc/self";

#[derive(Args, Debug)]
pub(super) struct FsArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(subcommand)]
    command: FsCommand,
}

#[derive(Subcommand, Debug)]
enum FsCommand {
    /// Create an empty filesystem, which NFS clients mount as /NAME
    #[command(after_help = "\
Examples:
  flagstone fs create data                       prints how to mount it
  flagstone fs create home --quota 100G          no file grows beyond that, all together
  flagstone fs create images --owner 107:107     its topmost directory belongs to that user

Its topmost directory belongs to whoever runs this command, with mode 755. Without more being said
this machine alone may mount it; [[export]] sections of `flagstone config example` say who else.")]
    Create {
        /// The new filesystem: letters, digits, '-', '_', '.'
        #[arg(value_parser = parse_name)]
        name: String,
        /// Bytes that its files may take, with what only snapshots need (100G, 1.5T) [default: as many
        /// as there are]
        #[arg(long, value_name = "SIZE")]
        quota: Option<Size>,
        /// The user, and the group, that its topmost directory belongs to, as numbers [default: those
        /// of this command]
        #[arg(long, value_name = "UID[:GID]", value_parser = parse_owner)]
        owner: Option<(u32, u32)>,
    },
    /// List filesystems
    List {
        /// Only those whose name begins with this
        prefix: Option<String>,
    },
    /// Show a filesystem, and how to mount it
    Show {
        #[arg(value_parser = parse_name)]
        name: String,
    },
    /// Prove that filesystems are whole, while they are in use. Exit code 8 if anything is wrong
    #[command(after_help = "\
Examples:
  flagstone fs check              all of them, and that each block of their store is some file's
  flagstone fs check data

Reads all directories and all maps of files, now and in each snapshot, and no contents: those have
checksums, which `flagstone device scrub` reads. Clients that change something meanwhile wait.")]
    Check {
        /// One filesystem [default: all, and what they are stored in]
        #[arg(value_parser = parse_name)]
        name: Option<String>,
    },
    /// Take, list and delete snapshots of a filesystem
    Snapshot {
        #[command(subcommand)]
        command: SnapshotCommand,
    },
}

#[derive(Subcommand, Debug)]
enum SnapshotCommand {
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
    /// Delete snapshots, in any order; clients that have one mounted find that its files are gone
    Delete {
        #[arg(value_parser = parse_name)]
        filesystem: String,
        /// Deleted one after the other, up to the first that can't be
        #[arg(required = true, value_parser = parse_name)]
        names: Vec<String>,
    },
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    match (uid.parse(), gid.parse()) {
        (Ok(uid), Ok(gid)) => Ok((uid, gid)),
        _ => {
            Err("expected numbers, UID or UID:GID, such as 1000:1000; `id` prints yours".to_owned())
        }
    }
}

pub(super) fn run(args: FsArgs, output: &mut Output<'_>) -> anyhow::Result<Exit> {
    let client = args.target.client()?;
    match args.command {
        FsCommand::Create { name, quota, owner } => {
            let me = || fs::metadata(MYSELF).map(|found| (found.uid(), found.gid()));
            let (owner_uid, owner_gid) = match owner {
                Some(owner) => owner,
                None => me().unwrap_or_default(),
            };
            let spec = FilesystemSpec {
                name,
                quota_bytes: quota.map(|size| size.0),
                owner_uid,
                owner_gid,
            };
            let info: FilesystemInfo = client.send("POST", "/v1/filesystems", &spec)?;
            output.outcome(&info, &created(&info))?;
        }
        FsCommand::List { prefix } => list(&client, prefix, output)?,
        FsCommand::Show { name } => {
            let info: FilesystemInfo = client.get(&format!("/v1/filesystems/{name}"))?;
            show(&info, output)?;
        }
        FsCommand::Check { name } => {
            let request = CheckRequest { filesystem: name };
            let found = client.send("POST", "/v1/filesystem-checks", &request)?;
            return print_check(&found, output);
        }
        FsCommand::Snapshot { command } => snapshot(&client, command, output)?,
    }
    Ok(Exit::Ok)
}

fn created(info: &FilesystemInfo) -> String {
    let name = &info.name;
    match info.mount_command.is_empty() {
        true => format!(
            "created filesystem {name}; the node serves no NFS: start it with --nfs ADDR:PORT to use it"
        ),
        false => format!(
            "created filesystem {name}\n  sudo {}\n  nfs-ls '{}'",
            info.mount_command, info.export_url
        ),
    }
}

fn list(client: &Client, prefix: Option<String>, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut all = FilesystemPage {
        items: Vec::new(),
        next: None,
    };
    loop {
        let mut path = format!("/v1/filesystems?limit={LIST_ROWS}");
        if let Some(prefix) = &prefix {
            path += &format!("&prefix={}", query_value(prefix));
        }
        if let Some(after) = &all.next {
            path += &format!("&after={}", query_value(after));
        }
        let page: FilesystemPage = client.get(&path)?;
        all.items.extend(page.items);
        // A node that names the same place again would keep us here for ever.
        if page.next.is_none() || page.next == all.next {
            all.next = None;
            break;
        }
        all.next = page.next;
    }
    if output.is_json() {
        output.json(&all)?;
        return Ok(());
    }
    let rows = all.items.into_iter().map(|info| {
        vec![
            info.name,
            rounded(info.used_bytes),
            info.quota_bytes.map_or("-".to_owned(), rounded),
            info.files.to_string(),
            info.snapshot_count.to_string(),
            info.device,
            info.export_path,
        ]
    });
    const HEADINGS: [&str; 7] = [
        "FILESYSTEM",
        "USED",
        "QUOTA",
        "FILES",
        "SNAPSHOTS",
        "DEVICE",
        "EXPORT",
    ];
    output.table(&HEADINGS, &[1, 2, 3, 4], rows)?;
    Ok(())
}

fn show(info: &FilesystemInfo, output: &mut Output<'_>) -> anyhow::Result<()> {
    if output.is_json() {
        output.json(info)?;
        return Ok(());
    }
    let bytes = |bytes: u64| format!("{} ({bytes} bytes)", rounded(bytes));
    let no_nfs = || "the node serves no NFS: start it with --nfs ADDR:PORT".to_owned();
    let or_none = |text: &str| match text.is_empty() {
        true => no_nfs(),
        false => text.to_owned(),
    };
    output.card(&[
        ("filesystem", info.name.clone()),
        ("used", bytes(info.used_bytes)),
        ("quota", info.quota_bytes.map_or("none".to_owned(), bytes)),
        ("files", info.files.to_string()),
        ("snapshots", info.snapshot_count.to_string()),
        ("created", format!("{} UTC", utc(info.created_ns))),
        ("device", format!("{}, core {}", info.device, info.core)),
        ("export", info.export_path.clone()),
        ("mount", or_none(&info.mount_command)),
        ("url", or_none(&info.export_url)),
        ("id", info.id.to_string()),
    ])?;
    Ok(())
}

fn print_check(found: &FilesystemCheck, output: &mut Output<'_>) -> anyhow::Result<Exit> {
    if output.is_json() {
        output.json(found)?;
    } else {
        for item in &found.items {
            for problem in &item.problems {
                output.sentence(&format!("PROBLEM: {}: {problem}", item.filesystem))?;
            }
            let verdict = match item.problems.len() as u64 {
                0 => "clean".to_owned(),
                count => counted(count, "problem"),
            };
            output.sentence(&format!(
                "{}: {verdict}; {}, {} and {} checked",
                item.filesystem,
                counted(item.files, "file"),
                counted(item.snapshots, "snapshot"),
                counted(item.blocks, "block"),
            ))?;
        }
        match found.items.is_empty() {
            true => output.sentence("there is no filesystem")?,
            false if found.clean => {}
            false => output.sentence(
                "    what to do: copy what is needed out of it, and keep a copy of the device for whoever \
                 looks into it",
            )?,
        }
    }
    Ok(match found.clean {
        true => Exit::Ok,
        false => Exit::Corrupt,
    })
}

fn snapshot(
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
        SnapshotCommand::Delete { filesystem, names } => {
            for name in names {
                client.call("DELETE", &format!("{}/{name}", of(&filesystem)))?;
                output.sentence(&format!("deleted snapshot {name} of {filesystem}"))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::CheckedFilesystem;
    use crate::output::Format;

    #[test]
    fn owners_are_numbers() {
        assert_eq!(parse_owner("7"), Ok((7, 7)));
        assert_eq!(parse_owner("1000:100"), Ok((1000, 100)));
        for text in ["", ":", "root", "1:2:3", "-1", "1:"] {
            let error = parse_owner(text).expect_err(text);
            assert!(error.contains("UID:GID"), "{error}");
        }
    }

    #[test]
    fn a_problem_is_printed_and_is_the_exit_code() {
        let mut found = FilesystemCheck {
            clean: true,
            items: vec![CheckedFilesystem {
                filesystem: "data".to_owned(),
                files: 2,
                snapshots: 1,
                blocks: 3,
                bytes: 8192,
                problems: Vec::new(),
            }],
        };
        let print = |found: &FilesystemCheck| {
            let mut text = Vec::new();
            let mut output = Output {
                format: Format::Table,
                out: &mut text,
            };
            let exit = print_check(found, &mut output).expect("printed");
            (exit, String::from_utf8(text).expect("text"))
        };
        let (exit, text) = print(&found);
        assert_eq!(exit, Exit::Ok);
        assert_eq!(
            text,
            "data: clean; 2 files, 1 snapshot and 3 blocks checked\n"
        );
        found.clean = false;
        found.items[0].problems.push("a block is lost".to_owned());
        let (exit, text) = print(&found);
        assert_eq!(exit, Exit::Corrupt);
        assert!(
            text.starts_with("PROBLEM: data: a block is lost\ndata: 1 problem; 2 files"),
            "{text}"
        );
    }
}
