//! `flagstone fs check --device`: filesystems of devices that no node serves. And how both kinds of checks are shown.

use crate::cli::progress::Bar;
use crate::config::DeviceConfig;
use crate::exit::Exit;
use crate::node::{CheckedFilesystem, FilesystemCheck};
use crate::offline::{self, CheckStage, CheckedDevice, DeviceToCheck, OfflineCheck};
use crate::output::Output;
use crate::size::{counted, rounded};

/// Checks filesystems without a node.
pub(super) fn offline(
    devices: &[DeviceConfig],
    name: Option<&str>,
    output: &mut Output<'_>,
) -> anyhow::Result<Exit> {
    let to_check = |device: &DeviceConfig| DeviceToCheck {
        path: device.path.clone(),
        size_bytes: device.size.map(|size| size.0),
    };
    let devices: Vec<DeviceToCheck> = devices.iter().map(to_check).collect();
    let mut shown: Option<(CheckStage, Bar)> = None;
    let found = offline::check_filesystems(&devices, name, &mut |path, stage, done, total| {
        if shown.as_ref().is_none_or(|(before, _)| *before != stage) {
            // Two at a time would be drawn over each other.
            drop(shown.take());
            let bar = match stage {
                CheckStage::Recovery => Bar::new("recovery"),
                CheckStage::Filesystems => Bar::of_steps("fs check"),
            };
            shown = Some((stage, bar));
        }
        if let Some((stage, bar)) = &mut shown {
            let what = match stage {
                CheckStage::Recovery => "recovering in memory",
                CheckStage::Filesystems => "checking the filesystems of",
            };
            bar.name(&format!("{what} {}", path.display()));
            bar.show(done, total);
        }
    });
    drop(shown);
    print_offline(&found?, name, output)
}

fn print_offline(
    found: &OfflineCheck,
    name: Option<&str>,
    output: &mut Output<'_>,
) -> anyhow::Result<Exit> {
    if output.is_json() {
        output.json(found)?;
    } else {
        for device in &found.devices {
            let items = found.items.iter();
            let items = items.filter(|item| item.device == device.device);
            let items: Vec<&CheckedFilesystem> = items.map(|item| &item.checked).collect();
            print_device(device, &items, name, output)?;
        }
    }
    Ok(exit(found.clean))
}

fn print_device(
    device: &CheckedDevice,
    items: &[&CheckedFilesystem],
    name: Option<&str>,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let path = &device.device;
    for remark in &device.remarks {
        output.sentence(&format!("note: {path}: {remark}"))?;
    }
    for item in items {
        let swept = match item.swept {
            0 => String::new(),
            count => format!(
                "; the next start gives back {} that nobody needs",
                counted(count, "large file")
            ),
        };
        print_item(item, &swept, output)?;
    }
    for problem in &device.problems {
        output.sentence(&format!("PROBLEM: {path}: {problem}"))?;
    }
    if !device.advice.is_empty() {
        output.sentence(&format!("    what to do: {}", device.advice))?;
    }
    let of_items: usize = items.iter().map(|item| item.problems.len()).sum();
    let verdict = match (of_items + device.problems.len()) as u64 {
        0 if items.is_empty() => match name {
            Some(name) => format!("there is no filesystem '{name}' on it"),
            None => "there is no filesystem on it".to_owned(),
        },
        0 => format!("clean; {}", counted(items.len() as u64, "filesystem")),
        count => counted(count, "problem"),
    };
    output.sentence(&format!("{path}: {verdict}; nothing was changed on it"))?;
    Ok(())
}

/// What a node has found.
pub(super) fn print_check(
    found: &FilesystemCheck,
    output: &mut Output<'_>,
) -> anyhow::Result<Exit> {
    if output.is_json() {
        output.json(found)?;
        return Ok(exit(found.clean));
    }
    for item in &found.items {
        let swept = match item.swept {
            0 => String::new(),
            count => format!(
                "; gave back {} that nobody needed",
                counted(count, "large file")
            ),
        };
        print_item(item, &swept, output)?;
    }
    match found.items.is_empty() {
        true => output.sentence("there is no filesystem")?,
        false if found.clean => {}
        false => output.sentence(
            "    what to do: copy what is needed out of it, and keep a copy of the device for whoever \
             looks into it",
        )?,
    }
    Ok(exit(found.clean))
}

fn exit(clean: bool) -> Exit {
    match clean {
        true => Exit::Ok,
        false => Exit::Corrupt,
    }
}

fn print_item(
    item: &CheckedFilesystem,
    swept: &str,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    for problem in &item.problems {
        output.sentence(&format!("PROBLEM: {}: {problem}", item.filesystem))?;
    }
    let verdict = match item.problems.len() as u64 {
        0 => "clean".to_owned(),
        count => counted(count, "problem"),
    };
    output.sentence(&format!(
        "{}: {verdict}; {}, {}, {} ({}) and {} ({}) checked{swept}",
        item.filesystem,
        counted(item.files, "file"),
        counted(item.snapshots, "snapshot"),
        counted(item.objects, "large file"),
        rounded(item.object_bytes),
        counted(item.blocks, "block"),
        rounded(item.bytes),
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::OfflineFilesystem;
    use crate::output::Format;

    fn item() -> CheckedFilesystem {
        CheckedFilesystem {
            filesystem: "data".to_owned(),
            files: 2,
            snapshots: 1,
            blocks: 3,
            bytes: 8192,
            objects: 1,
            object_bytes: 2 << 20,
            swept: 0,
            problems: Vec::new(),
        }
    }

    fn printed(format: Format, print: impl FnOnce(&mut Output<'_>) -> Exit) -> (Exit, String) {
        let mut text = Vec::new();
        let mut output = Output {
            format,
            out: &mut text,
        };
        let exit = print(&mut output);
        (exit, String::from_utf8(text).expect("text"))
    }

    #[test]
    fn a_problem_is_printed_and_is_the_exit_code() {
        let mut found = FilesystemCheck {
            clean: true,
            items: vec![item()],
        };
        let print = |found: &FilesystemCheck| {
            printed(Format::Table, |output| {
                print_check(found, output).expect("printed")
            })
        };
        let (exit, text) = print(&found);
        assert_eq!(exit, Exit::Ok);
        assert_eq!(
            text,
            "data: clean; 2 files, 1 snapshot, 1 large file (2 MiB) and 3 blocks (8 KiB) checked\n"
        );
        found.items[0].swept = 2;
        let (_, text) = print(&found);
        let swept = "checked; gave back 2 large files that nobody needed\n";
        assert!(text.ends_with(swept), "{text}");
        found.clean = false;
        found.items[0].problems.push("a block is lost".to_owned());
        let (exit, text) = print(&found);
        assert_eq!(exit, Exit::Corrupt);
        assert!(
            text.starts_with("PROBLEM: data: a block is lost\ndata: 1 problem; 2 files"),
            "{text}"
        );
    }

    #[test]
    fn devices_are_told_one_after_the_other() {
        let device = |name: &str| CheckedDevice {
            device: name.to_owned(),
            problems: Vec::new(),
            advice: String::new(),
            remarks: Vec::new(),
            kept_bytes: 0,
        };
        let of = |device: &str, checked| OfflineFilesystem {
            device: device.to_owned(),
            journal: 0,
            checked,
        };
        let swept = CheckedFilesystem { swept: 1, ..item() };
        let mut found = OfflineCheck {
            clean: true,
            items: vec![of("a.img", swept)],
            devices: vec![device("a.img"), device("b.img")],
        };
        found.devices[0].remarks.push("it was killed".to_owned());
        let print = |found: &OfflineCheck, format| {
            printed(format, |output| {
                print_offline(found, None, output).expect("printed")
            })
        };
        let (exit, text) = print(&found, Format::Table);
        assert_eq!(exit, Exit::Ok);
        assert_eq!(
            text,
            "note: a.img: it was killed\n\
             data: clean; 2 files, 1 snapshot, 1 large file (2 MiB) and 3 blocks (8 KiB) checked; \
             the next start gives back 1 large file that nobody needs\n\
             a.img: clean; 1 filesystem; nothing was changed on it\n\
             b.img: there is no filesystem on it; nothing was changed on it\n"
        );
        found.clean = false;
        found.items[0]
            .checked
            .problems
            .push("a block is lost".to_owned());
        found.devices[1]
            .problems
            .push("it can't be opened".to_owned());
        found.devices[1].advice = "copy it".to_owned();
        let (exit, text) = print(&found, Format::Table);
        assert_eq!(exit, Exit::Corrupt);
        let end = "a.img: 1 problem; nothing was changed on it\nPROBLEM: b.img: it can't be opened\n    \
                   what to do: copy it\nb.img: 1 problem; nothing was changed on it\n";
        assert!(text.ends_with(end), "{text}");
        let (exit, text) = print(&found, Format::Json);
        assert_eq!(exit, Exit::Corrupt);
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["clean"], false);
        assert_eq!(value["items"][0]["device"], "a.img");
        assert_eq!(value["items"][0]["filesystem"], "data");
        assert_eq!(value["items"][0]["problems"][0], "a block is lost");
        assert_eq!(value["devices"][1]["problems"][0], "it can't be opened");
    }
}
