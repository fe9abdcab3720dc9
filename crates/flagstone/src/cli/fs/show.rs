//! How filesystems are shown.

use crate::cli::listing;
use crate::client::Client;
use crate::exit::Exit;
use crate::node::{ClonedFile, FilesystemInfo, FilesystemPage};
use crate::output::{Output, utc};
use crate::size::rounded;

pub(super) fn created(info: &FilesystemInfo) -> String {
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

pub(super) fn changed(info: &FilesystemInfo) -> String {
    let mut sentence = format!(
        "filesystem {}: quota {}, of files {}; files become large ones past {}; {}, limit {}",
        info.name,
        info.quota_bytes.map_or("none".to_owned(), rounded),
        files_bound(info),
        rounded(info.promote_bytes),
        info.slo.promise,
        info.slo.limit
    );
    let is_past = |quota: Option<u64>, used: u64| quota.is_some_and(|quota| used > quota);
    if is_past(info.quota_bytes, info.used_bytes) || is_past(info.quota_files, info.files) {
        sentence += &format!(
            "; it has {} in {} files, more than that, so nothing new finds room",
            rounded(info.used_bytes),
            info.files
        );
    }
    sentence
}

fn files_bound(info: &FilesystemInfo) -> String {
    let none = || "none".to_owned();
    info.quota_files
        .map_or_else(none, |count| count.to_string())
}

/// Where they lie, and what there is on other devices.
fn large_files(info: &FilesystemInfo) -> String {
    let where_new = match info.one_device {
        true => "on that device",
        false => "on all devices",
    };
    let others = info.devices.iter().skip(1);
    let others: Vec<String> = others
        .map(|part| format!("{} on {}", rounded(part.used_bytes), part.device))
        .collect();
    match others.is_empty() {
        true => where_new.to_owned(),
        false => format!("{where_new}; {}", others.join(", ")),
    }
}

pub(super) fn cloned(info: &ClonedFile) -> String {
    let at = match &info.snapshot {
        Some(snapshot) => format!(" of snapshot {snapshot}"),
        None => String::new(),
    };
    format!(
        "cloned {}{at} to {} in filesystem {} ({})",
        info.source,
        info.path,
        info.filesystem,
        rounded(info.size_bytes)
    )
}

pub(super) fn list(
    client: &Client,
    prefix: Option<String>,
    output: &mut Output<'_>,
) -> anyhow::Result<Exit> {
    let wanted = prefix.as_deref().map(|prefix| ("prefix", prefix));
    let all: FilesystemPage = listing::all(client, "/v1/filesystems", wanted)?;
    let problem = |info: &FilesystemInfo| {
        let problem = info.problem.as_ref()?;
        Some(format!("PROBLEM: {}: {problem}", info.name))
    };
    let problems: Vec<String> = all.items.iter().filter_map(problem).collect();
    let exit = match problems.is_empty() {
        true => Exit::Ok,
        false => Exit::Corrupt,
    };
    if output.is_json() {
        output.json(&all)?;
        return Ok(exit);
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
    for problem in problems {
        output.sentence(&problem)?;
    }
    Ok(exit)
}

pub(super) fn show(info: &FilesystemInfo, output: &mut Output<'_>) -> anyhow::Result<()> {
    if output.is_json() {
        output.json(info)?;
        return Ok(());
    }
    let bytes = |bytes: u64| format!("{} ({bytes} bytes)", rounded(bytes));
    let stores = match info.image_stores.as_deref().unwrap_or_default() {
        [] => "none".to_owned(),
        stores => stores.join(", "),
    };
    let snapshots = match &info.rolling_back_to {
        None => info.snapshot_count.to_string(),
        Some(to) => format!("{}; being rolled back to {to}", info.snapshot_count),
    };
    let no_nfs = || "the node serves no NFS: start it with --nfs ADDR:PORT".to_owned();
    let or_none = |text: &str| match text.is_empty() {
        true => no_nfs(),
        false => text.to_owned(),
    };
    let mut card = vec![
        ("filesystem", info.name.clone()),
        ("used", bytes(info.used_bytes)),
        ("quota", info.quota_bytes.map_or("none".to_owned(), bytes)),
        ("files", info.files.to_string()),
        ("files quota", files_bound(info)),
        (
            "promote",
            format!("files past {}", bytes(info.promote_bytes)),
        ),
        (
            "zeros",
            match info.zeros_to_holes {
                true => "holes".to_owned(),
                false => "kept".to_owned(),
            },
        ),
        ("promised", info.slo.promise.to_string()),
        ("limit", info.slo.limit.to_string()),
        ("image stores", stores),
        ("snapshots", snapshots),
        ("created", format!("{} UTC", utc(info.created_ns))),
        ("device", format!("{}, core {}", info.device, info.core)),
        ("large files", large_files(info)),
        ("export", info.export_path.clone()),
        ("mount", or_none(&info.mount_command)),
        ("url", or_none(&info.export_url)),
        ("id", info.id.to_string()),
    ];
    card.extend(info.problem.clone().map(|problem| ("PROBLEM", problem)));
    output.card(&card)?;
    Ok(())
}
