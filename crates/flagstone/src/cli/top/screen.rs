//! An [`Activity`] as lines of text, for a width. Pure.

use crate::node::{
    Activity, DeviceActivity, FilesystemActivity, OpActivity, SloState, VolumeActivity,
};
use crate::output::utc;
use crate::size::{percent, rounded, short_time};

/// How much room there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    /// Lines. `None`: as many as it takes.
    pub(super) rows: Option<usize>,
    /// Characters in a line.
    pub(super) columns: usize,
}

/// Where there is no terminal: wide enough for all columns.
pub(super) const SIZE_DEFAULT: Size = Size {
    rows: None,
    columns: 200,
};

/// Between two columns.
const GAP: usize = 2;

/// Lines of a table beside its rows: an empty one, the heading, and how many more there are.
const AROUND: usize = 3;

/// Names are cut to so many characters where they don't fit.
const NAME_LEAST: usize = 12;

/// A column of a table.
struct Column<Row> {
    heading: &'static str,
    /// Where not all fit, those with the largest number go first.
    expendable: u8,
    is_text: bool,
    cell: fn(&Row) -> String,
}

const VOLUMES: [Column<VolumeActivity>; 15] = [
    text("VOLUME", 0, |v| v.name.clone()),
    text("DEVICE", 8, |v| v.device.clone()),
    number("CORE", 9, |v| v.core.to_string()),
    number("READS/S", 0, |v| count(v.read.per_second)),
    number("WRITES/S", 0, |v| count(v.write.per_second)),
    number("READ/S", 3, |v| bytes(v.read.bytes_per_second)),
    number("WRITTEN/S", 3, |v| bytes(v.write.bytes_per_second)),
    number("P50", 4, |v| time(v.latency.map(|l| l.p50_ns))),
    number("P99", 1, |v| time(v.latency.map(|l| l.p99_ns))),
    number("WAIT P99", 2, |v| time(v.waited.map(|l| l.p99_ns))),
    number("QUEUE", 5, |v| few(v.in_flight)),
    number("WAITING", 7, |v| few(v.waiting)),
    number("USED", 2, |v| part(v.used)),
    number("PROMISED", 6, |v| part(v.promised)),
    text("SLO", 1, |v| slo(v.slo_state, v.missed)),
];

const FILESYSTEMS: [Column<FilesystemActivity>; 18] = [
    text("FILESYSTEM", 0, |f| f.name.clone()),
    text("DEVICE", 8, |f| f.device.clone()),
    number("CORE", 9, |f| f.core.to_string()),
    number("READS/S", 0, |f| count(f.read.per_second)),
    number("WRITES/S", 0, |f| count(f.write.per_second)),
    number("LOOKS/S", 2, |f| count(f.look.per_second)),
    number("CHANGES/S", 2, |f| count(f.change.per_second)),
    number("COMMITS/S", 3, |f| count(f.commit.per_second)),
    number("READ/S", 3, |f| bytes(f.read.bytes_per_second)),
    number("WRITTEN/S", 3, |f| bytes(f.write.bytes_per_second)),
    number("P50", 4, |f| time(f.latency.map(|l| l.p50_ns))),
    number("P99", 1, |f| time(f.latency.map(|l| l.p99_ns))),
    number("WAIT P99", 6, |f| time(f.waited.map(|l| l.p99_ns))),
    number("QUEUE", 5, |f| few(f.in_flight)),
    number("WAITING", 7, |f| few(f.waiting)),
    number("USED", 4, |f| part(f.used)),
    number("PROMISED", 6, |f| part(f.promised)),
    text("SLO", 1, |f| slo(f.slo_state, f.missed)),
];

fn slo(state: SloState, missed: f64) -> String {
    match state {
        SloState::Missed => format!("missed {}", part(Some(missed))),
        state => state.to_string(),
    }
}

const fn text<Row>(heading: &'static str, expendable: u8, cell: fn(&Row) -> String) -> Column<Row> {
    Column {
        heading,
        expendable,
        is_text: true,
        cell,
    }
}

const fn number<Row>(
    heading: &'static str,
    expendable: u8,
    cell: fn(&Row) -> String,
) -> Column<Row> {
    Column {
        heading,
        expendable,
        is_text: false,
        cell,
    }
}

/// All that is to be shown, none of it wider than there is room.
pub(super) fn lines(activity: &Activity, size: &Size) -> Vec<String> {
    let mut lines = vec![headline(activity)];
    lines.push(totals(activity));
    for device in &activity.devices {
        lines.extend(device_lines(device));
        lines.extend(users_line(device));
    }
    // Below them the last line stays free.
    let room = size.rows.map(|rows| rows.saturating_sub(lines.len() + 1));
    let (volumes, filesystems) = (activity.volumes.len(), activity.filesystems.len());
    // Filesystems get half of it, or what volumes leave.
    let volumes_take = if volumes > 0 { volumes + AROUND } else { 0 };
    let for_files = room.map(|room| (room / 2).max(room.saturating_sub(volumes_take)));
    let rows_of_files = fitting(for_files, filesystems, activity.active_filesystem_count);
    let files_take = match (filesystems, rows_of_files) {
        (0, 0) => 0,
        // That there are some is said in a line.
        (_, 0) => 1,
        (_, rows) => rows + AROUND,
    };
    let for_volumes = room.map(|room| room.saturating_sub(files_take));
    let rows_of_volumes = fitting(for_volumes, volumes, activity.active_count);
    // Where only filesystems are used, no heading of volumes stands above nothing.
    if volumes > 0 || filesystems == 0 {
        lines.push(String::new());
        lines.extend(table(
            &VOLUMES,
            &activity.volumes[..rows_of_volumes],
            size.columns,
        ));
        lines.extend(more(activity.active_count, rows_of_volumes));
    }
    if rows_of_files > 0 {
        lines.push(String::new());
        let shown = &activity.filesystems[..rows_of_files];
        lines.extend(table(&FILESYSTEMS, shown, size.columns));
        lines.extend(more(activity.active_filesystem_count, rows_of_files));
    } else {
        lines.extend(more(activity.active_filesystem_count, 0).map(|more| more + " filesystems"));
    }
    lines.iter().map(|line| cut(line, size.columns)).collect()
}

/// How many rows of a table there is room for, of those that are there and of all.
fn fitting(room: Option<usize>, there: usize, all: u64) -> usize {
    let Some(room) = room else {
        return there;
    };
    // Without the line that says how many more there are.
    let fits = room.saturating_sub(AROUND - 1);
    match there <= fits && all == there as u64 {
        true => there,
        false => there.min(fits.saturating_sub(1)),
    }
}

fn more(all: u64, shown: usize) -> Option<String> {
    let hidden = all.saturating_sub(shown as u64);
    (hidden > 0).then(|| format!("and {hidden} more"))
}

/// The lines as they are.
pub(super) fn plain(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// The lines in the place of those before, as many as there is room for. The cursor stands behind the last one, so
/// that whatever is printed next is below.
pub(super) fn frame(lines: &[String], size: &Size, is_first: bool) -> String {
    // Home; each line up to its end; what is left of the frame before.
    let mut frame = String::from(if is_first { "\x1b[2J\x1b[H" } else { "\x1b[H" });
    let room = size.rows.unwrap_or(lines.len() + 1).saturating_sub(1);
    for line in lines.iter().take(room) {
        frame += line;
        frame += "\x1b[K\n";
    }
    frame + "\x1b[J"
}

fn headline(activity: &Activity) -> String {
    let volumes = match activity.active_count {
        1 => "1 volume at work".to_owned(),
        count => format!("{count} volumes at work"),
    };
    let filesystems = match activity.active_filesystem_count {
        0 => String::new(),
        1 => ", 1 filesystem".to_owned(),
        count => format!(", {count} filesystems"),
    };
    let ended = utc(activity.ended_ns);
    format!(
        "{ended} UTC, over {}: {volumes}{filesystems}",
        time(Some(activity.interval_ns))
    )
}

fn flow(what: &str, op: &OpActivity) -> String {
    format!(
        "{what} {}/s {}/s",
        count(op.per_second),
        bytes(op.bytes_per_second)
    )
}

fn totals(activity: &Activity) -> String {
    let busy: Vec<String> = activity
        .cores
        .iter()
        .map(|core| format!("{} {}", core.core, part(Some(core.busy))))
        .collect();
    format!(
        "{}, {}; cores busy: {}",
        flow("reads", &activity.read),
        flow("writes", &activity.write),
        busy.join(", ")
    )
}

fn device_lines(device: &DeviceActivity) -> [String; 2] {
    let ceiling = match (&device.schedule.ceiling, device.used) {
        (Some(ceiling), Some(used)) => {
            let (used, policy) = (part(Some(used)), device.schedule.policy);
            let waiting = few(device.waiting);
            format!("{used} of ceiling {ceiling} ({policy}), waiting {waiting}")
        }
        _ => "no ceiling".to_owned(),
    };
    let op = |name: &str, op: &OpActivity| {
        let p99 = time(op.latency.map(|latency| latency.p99_ns));
        format!("{name} {}/s p99 {p99}", count(op.per_second))
    };
    let did = [
        op("reads", &device.read),
        op("writes", &device.write),
        op("flushes", &device.flush),
        format!("queue {}", few(device.in_flight)),
    ];
    [
        format!("device {}: {ceiling}", device.name),
        format!("  {}", did.join(", ")),
    ]
}

fn users_line(device: &DeviceActivity) -> Option<String> {
    if device.users.is_empty() {
        return None;
    }
    let users: Vec<String> = device
        .users
        .iter()
        .map(|user| {
            let over = user.over.filter(|over| *over > 0.0);
            let over = over.map(|over| format!(" ({} over its promise)", part(Some(over))));
            let part = part(Some(user.part));
            format!("{} {part}{}", user.volume, over.unwrap_or_default())
        })
        .collect();
    Some(format!("  load: {}", users.join(", ")))
}

fn table<Row, const COUNT: usize>(
    columns: &[Column<Row>; COUNT],
    shown: &[Row],
    columns_max: usize,
) -> Vec<String> {
    let cells = |row: &Row| columns.each_ref().map(|column| (column.cell)(row));
    let rows: Vec<[String; COUNT]> = shown.iter().map(cells).collect();
    let mut widths = columns.each_ref().map(|column| column.heading.len());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut shown: Vec<usize> = (0..COUNT).collect();
    let needed = |shown: &[usize], widths: &[usize]| -> usize {
        shown.iter().map(|&at| widths[at] + GAP).sum::<usize>() - GAP
    };
    while needed(&shown, &widths) > columns_max {
        // A long name gives way before a column does.
        let excess = needed(&shown, &widths) - columns_max;
        let spare = widths[0].saturating_sub(NAME_LEAST);
        if spare >= excess {
            widths[0] -= excess;
            break;
        }
        let last = shown.iter().copied();
        let last = last.max_by_key(|&at| (columns[at].expendable, at));
        match last.filter(|&at| columns[at].expendable > 0) {
            // What is read and what is written go together.
            Some(at) => {
                shown.retain(|&kept| columns[kept].expendable != columns[at].expendable);
            }
            None => break,
        }
    }
    let line = |cells: &dyn Fn(usize) -> String| {
        let cells = shown.iter().map(|&at| {
            let (cell, width) = (cut(&cells(at), widths[at]), widths[at]);
            match columns[at].is_text {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            }
        });
        let cells: Vec<String> = cells.collect();
        cells.join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    let mut lines = vec![line(&|at| columns[at].heading.to_owned())];
    lines.extend(rows.iter().map(|row| line(&|at| row[at].clone())));
    lines
}

/// The beginning of a text that is too long, with a mark that it is cut.
fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
    format!("{kept}~")
}

/// A number of events a second: `0`, `3.4`, `912`, `12.3k`, `1.2M`.
fn count(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v < 9.95 => format!("{v:.1}"),
        v if v < 9999.5 => format!("{v:.0}"),
        v if v < 999_950.0 => format!("{:.1}k", v / 1e3),
        v => format!("{:.1}M", v / 1e6),
    }
}

/// A number that is often below one.
fn few(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

fn bytes(per_second: f64) -> String {
    rounded(per_second as u64)
}

fn part(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), percent)
}

fn time(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), short_time)
}

#[cfg(test)]
mod tests;
