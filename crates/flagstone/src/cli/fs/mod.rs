//! `flagstone fs ...`.

mod check;
mod show;
mod snapshot;

use std::fs;
use std::os::unix::fs::MetadataExt;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use self::snapshot::SnapshotCommand;
use super::OutputArgs;
use super::slo::SloArgs;
use super::target::TargetArgs;
use crate::api::requests::CheckRequest;
use crate::config::DeviceConfig;
use crate::exit::Exit;
use crate::name::parse_name;
use crate::node::{
    ClonedFile, FileCloneSpec, FilesystemChanges, FilesystemInfo, FilesystemSpec, ImageStoreSpec,
    Slo,
};
use crate::output::Output;
use crate::size::Size;

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
  flagstone fs create home --quota-bytes 100G    no file grows beyond that, all together
  flagstone fs create images --owner 107:107     its topmost directory belongs to that user
  flagstone fs create db --floor reads=5000,writes=1000   so much of its device, whatever others do

Its topmost directory belongs to whoever runs this command, with mode 755. Without more being said
this machine alone may mount it; [[export]] sections of `flagstone config example` say who else.")]
    Create {
        /// The new filesystem: letters, digits, '-', '_', '.'
        #[arg(value_parser = parse_name)]
        name: String,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        slo: SloArgs,
        /// The user, and the group, that its topmost directory belongs to, as numbers [default: those
        /// of this command]
        #[arg(long, value_name = "UID[:GID]", value_parser = parse_owner)]
        owner: Option<(u32, u32)>,
    },
    /// Change quotas, which files are kept as volumes' data is, and what it gets of its device
    #[command(after_help = "\
Examples:
  flagstone fs set home --quota-bytes 200G --quota-files 1000000
  flagstone fs set home --quota-files none
  flagstone fs set vms --promote-bytes 64K
  flagstone fs set vms --zeros holes                     what is zeroed takes no space
  flagstone fs set vms --devices one                     new large files stay beside their names
  flagstone fs set vms --floor reads=5000,writes=1000    so much, whatever others do
  flagstone fs set home --share 3                        three times what one with share 1 gets
  flagstone fs set home --limit writes=500,bytes=100M    never more, also if nobody else wants anything

What isn't named stays as it is. A quota may be below what is used: then nothing new finds room
until something is deleted. Files that have become large ones stay so.")]
    #[command(group(ArgGroup::new("changes")
        .args(["quota_bytes", "quota_files", "promote_bytes", "zeros", "devices", "share", "floor", "limit"])
        .required(true).multiple(true)))]
    Set {
        /// The filesystem
        #[arg(value_name = "FS", value_parser = parse_name)]
        name: String,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        slo: SloArgs,
    },
    /// Make a directory an image store: files in it are kept as volumes' data is from their first byte
    #[command(after_help = "\
Examples:
  flagstone fs image-store vms /images
  flagstone fs image-store vms /images --off

For directories with images of virtual machines: a file that is small yet but will be large needs not
be moved when it has grown, and each is cloned without copying. It holds for files that get their first
byte from then on, and for directories that are made in it from then on. `fs show` lists them.")]
    ImageStore {
        /// The filesystem
        #[arg(value_name = "FS", value_parser = parse_name)]
        name: String,
        /// The directory, such as /images
        #[arg(value_name = "DIR", value_parser = parse_path)]
        path: String,
        /// Make it an ordinary directory again; files that are there stay as they are
        #[arg(long)]
        off: bool,
    },
    /// Delete filesystems with everything in them; their space returns in the background
    #[command(after_help = "\
Examples:
  flagstone fs delete scratch
  flagstone fs delete old-1 old-2 --with-snapshots

This can't be undone. One that a client has used within the last minute is taken to be mounted, and
refused without --force. NFS clients don't say that they have something mounted: one that is idle for
longer is not seen. Whoever still has it mounted gets ESTALE for everything, also if another filesystem
gets the same name.")]
    Delete {
        /// The filesystems; deleted one after the other, up to the first that can't be
        #[arg(required = true, value_parser = parse_name)]
        names: Vec<String>,
        /// Delete their snapshots, too
        #[arg(long)]
        with_snapshots: bool,
        /// Also if a client has used it within the last minute
        #[arg(long)]
        force: bool,
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
    /// Prove that filesystems are whole: those of a node while they are in use, or with --device those of devices that no node
    /// serves. Exit code 8 if anything is wrong
    #[command(after_help = "\
Examples:
  flagstone fs check              all of them, and that each block of their store is some file's
  flagstone fs check data
  flagstone fs check --device ./flagstone-data/device.img       without a node
  flagstone fs check --device /dev/nvme0n1 --device /dev/nvme1n1 data

Reads all directories and all maps of files, now and in each snapshot, and no contents: those have
checksums, which `flagstone device scrub` reads. Clients that change something meanwhile wait.

Large files of a filesystem lie on all devices of its node: give all of them, as above.

With --device nothing is changed: what a start would do first, recovering what a crash has left and
giving back what nobody needs, is done in memory. `flagstone verify` checks what is below the filesystems,
contents included.")]
    Check {
        /// One filesystem [default: all, and what they are stored in]
        #[arg(value_parser = parse_name)]
        name: Option<String>,
        /// A device that no node serves, instead of what a node serves; with SIZE it must have been formatted with
        /// that size. Can be given several times
        #[arg(long = "device", value_name = "PATH[:SIZE]")]
        devices: Vec<DeviceConfig>,
    },
    /// Make a file a copy of another one, in no time if it is large
    #[command(after_help = "\
Examples:
  flagstone fs clone vms /images/base.img /images/vm-7.img
  flagstone fs clone vms /images/vm-7.img /images/vm-7-before.img --snapshot monday

Paths begin at the filesystem's topmost directory, whatever clients have mounted it as; symbolic links
are not followed. The second file has the content that the first one has at that instant, or had in the
snapshot, and its owner and mode; nothing may have its name yet, and its directory must be there. Of a
large file nothing is copied: the two share what neither changes, so a clone of 100G takes milliseconds
and no space. A small one (1 MiB at most) is copied byte for byte.

A guest or client that writes to the file meanwhile may hold things back that belong together: shut it
down, or freeze its filesystem, for more than what a power loss would leave.")]
    Clone {
        /// The filesystem that both files are in
        #[arg(value_name = "FS", value_parser = parse_name)]
        filesystem: String,
        /// The file that is copied, such as /images/base.img
        #[arg(value_name = "SRC", value_parser = parse_path)]
        source: String,
        /// Where the copy will be
        #[arg(value_name = "DST", value_parser = parse_path)]
        destination: String,
        /// Copy it as it was in this snapshot
        #[arg(long, value_name = "NAME", value_parser = parse_name)]
        snapshot: Option<String>,
    },
    /// Take, list and delete snapshots of a filesystem
    Snapshot {
        #[command(subcommand)]
        command: SnapshotCommand,
    },
}

/// How much there may be of a filesystem, and where.
#[derive(Args, Clone, Copy, Debug)]
struct LimitArgs {
    /// Bytes that its files may take, with what only snapshots need (100G, 1.5T), or none [default: as
    /// many as there are]
    #[arg(long, value_name = "SIZE", visible_alias = "quota", value_parser = parse_quota_bytes)]
    quota_bytes: Option<u64>,
    /// Files and directories that there may be, or none [default: as many as there is room for]
    #[arg(long, value_name = "COUNT", value_parser = parse_quota_files)]
    quota_files: Option<u64>,
    /// A file that gets larger than this (64K, 16M) is kept as a volume's data is: it is written with
    /// less, and cloned without copying [default: 1M]
    #[arg(long, value_name = "SIZE")]
    promote_bytes: Option<Size>,
    /// What becomes of zeros that are written to such a file: kept like other bytes, or holes that take no
    /// space (of whole blocks of 4 KiB) [default: kept]
    #[arg(long, value_name = "WHAT")]
    zeros: Option<Zeros>,
    /// Where large files lie: on all devices of the node, in proportion to what is free, or on the one
    /// that has the names. With a floor, which is one device's, always on that [default: all]
    #[arg(long, value_name = "WHICH")]
    devices: Option<Devices>,
}

/// On which devices large files lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Devices {
    /// On all: the filesystem may be larger than one, and losing one loses the files on it
    All,
    /// On the one that has the names and the small files
    One,
}

/// What becomes of zeros that are written to large files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Zeros {
    /// They take space like other bytes
    Kept,
    /// They take none: whole blocks of a write that is nothing else, and stretches of 64 KiB in a longer one
    Holes,
}

/// Zero stands for none.
fn parse_quota_bytes(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        text => match text.parse() {
            Ok(Size(0)) => Err("expected a size above 0, or none".to_owned()),
            Ok(Size(bytes)) => Ok(bytes),
            Err(error) => Err(format!("expected a size or none; {error}")),
        },
    }
}

fn parse_quota_files(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        text => match text.parse() {
            Ok(0) | Err(_) => Err("expected a number above 0, or none".to_owned()),
            Ok(count) => Ok(count),
        },
    }
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

fn parse_path(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err(
            "expected a path that begins with a slash, which is the filesystem's topmost directory"
                .to_owned(),
        ),
    }
}

pub(super) fn run(args: FsArgs, output: &mut Output<'_>) -> anyhow::Result<Exit> {
    if let FsCommand::Check { name, devices } = &args.command
        && !devices.is_empty()
    {
        args.target.refuse("fs check --device")?;
        return check::offline(devices, name.as_deref(), output);
    }
    let client = args.target.client()?;
    match args.command {
        FsCommand::Create {
            name,
            limits,
            slo,
            owner,
        } => {
            let me = || fs::metadata(MYSELF).map(|found| (found.uid(), found.gid()));
            let (owner_uid, owner_gid) = match owner {
                Some(owner) => owner,
                None => me().unwrap_or_default(),
            };
            let spec = FilesystemSpec {
                name,
                quota_bytes: limits.quota_bytes.filter(|bytes| *bytes > 0),
                quota_files: limits.quota_files.filter(|count| *count > 0),
                promote_bytes: limits.promote_bytes.map(|size| size.0),
                zeros_to_holes: limits.zeros == Some(Zeros::Holes),
                one_device: limits.devices.map(|devices| devices == Devices::One),
                owner_uid,
                owner_gid,
                slo: slo.over(Slo::default()),
                oversubscribe: slo.oversubscribe,
            };
            let info: FilesystemInfo = client.send("POST", "/v1/filesystems", &spec)?;
            output.outcome(&info, &show::created(&info))?;
        }
        FsCommand::Set { name, limits, slo } => {
            let path = format!("/v1/filesystems/{name}");
            let new_slo = match slo.says_nothing() {
                true => None,
                false => {
                    let before: FilesystemInfo = client.get(&path)?;
                    Some(slo.over(before.slo))
                }
            };
            let changes = FilesystemChanges {
                quota_bytes: limits.quota_bytes,
                quota_files: limits.quota_files,
                promote_bytes: limits.promote_bytes.map(|size| size.0),
                zeros_to_holes: limits.zeros.map(|zeros| zeros == Zeros::Holes),
                one_device: limits.devices.map(|devices| devices == Devices::One),
                slo: new_slo,
                oversubscribe: slo.oversubscribe,
            };
            let info: FilesystemInfo = client.send("PATCH", &path, &changes)?;
            output.outcome(&info, &show::changed(&info))?;
        }
        FsCommand::ImageStore { name, path, off } => {
            let spec = ImageStoreSpec {
                path: path.clone(),
                enabled: !off,
            };
            let url = format!("/v1/filesystems/{name}/image-stores");
            let info: FilesystemInfo = client.send("PUT", &url, &spec)?;
            let what = if off {
                "an ordinary directory"
            } else {
                "an image store"
            };
            output.outcome(&info, &format!("{path} of filesystem {name} is {what}"))?;
        }
        FsCommand::Delete {
            names,
            with_snapshots,
            force,
        } => {
            for name in names {
                let query = format!("with_snapshots={with_snapshots}&even_if_used={force}");
                client.call("DELETE", &format!("/v1/filesystems/{name}?{query}"))?;
                output.sentence(&format!("deleted filesystem {name}"))?;
            }
        }
        FsCommand::List { prefix } => return show::list(&client, prefix, output),
        FsCommand::Show { name } => {
            let info: FilesystemInfo = client.get(&format!("/v1/filesystems/{name}"))?;
            show::show(&info, output)?;
        }
        FsCommand::Check { name, .. } => {
            let request = CheckRequest { filesystem: name };
            let found = client.send("POST", "/v1/filesystem-checks", &request)?;
            return check::print_check(&found, output);
        }
        FsCommand::Clone {
            filesystem,
            source,
            destination,
            snapshot,
        } => {
            let spec = FileCloneSpec {
                source,
                destination,
                snapshot,
            };
            let path = format!("/v1/filesystems/{filesystem}/clone-file");
            let info: ClonedFile = client.send("POST", &path, &spec)?;
            output.outcome(&info, &show::cloned(&info))?;
        }
        FsCommand::Snapshot { command } => snapshot::run(&client, command, output)?,
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers() {
        assert_eq!(parse_owner("7"), Ok((7, 7)));
        assert_eq!(parse_owner("1000:100"), Ok((1000, 100)));
        for text in ["", ":", "root", "1:2:3", "-1", "1:"] {
            let error = parse_owner(text).expect_err(text);
            assert!(error.contains("UID:GID"), "{error}");
        }
    }
}
