//! What commands print: tables for people, the API's JSON for programs. Always to standard output;
//! errors and progress go to standard error.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::Value;

/// How a command prints its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences.
    #[default]
    Table,
    /// The API's JSON, indented.
    Json,
}

/// Where and how results are printed.
pub struct Output<'a> {
    /// How.
    pub format: Format,
    /// Where.
    pub out: &'a mut dyn Write,
}

impl Output<'_> {
    /// True if programs read it.
    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Prints a value as indented JSON.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *self.out, value)?;
        writeln!(self.out)
    }

    /// Prints a value as JSON, or a sentence about it.
    pub fn outcome(&mut self, value: &impl Serialize, sentence: &str) -> io::Result<()> {
        if self.is_json() {
            self.json(value)
        } else {
            writeln!(self.out, "{sentence}")
        }
    }

    /// Prints a sentence, unless programs read it.
    pub fn sentence(&mut self, sentence: &str) -> io::Result<()> {
        if self.is_json() {
            return Ok(());
        }
        writeln!(self.out, "{sentence}")
    }

    /// Prints rows under headings. Columns whose index is in `right` are numbers.
    pub fn table(
        &mut self,
        headings: &[&str],
        right: &[usize],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> io::Result<()> {
        let mut table = plain_table();
        table.set_header(headings.iter().copied());
        for row in rows {
            table.add_row(row);
        }
        for index in right {
            if let Some(column) = table.column_mut(*index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self.print_table(table)
    }

    /// Prints names and values, one pair per line.
    pub fn card(&mut self, pairs: &[(&str, String)]) -> io::Result<()> {
        let mut table = plain_table();
        for (name, value) in pairs {
            table.add_row([*name, value.as_str()]);
        }
        self.print_table(table)
    }

    fn print_table(&mut self, mut table: Table) -> io::Result<()> {
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        for line in table.lines() {
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// Prints any JSON value as indented `name: value` lines.
    pub fn tree(&mut self, value: &Value) -> io::Result<()> {
        let mut lines = Vec::new();
        tree_lines(value, 0, &mut lines);
        for line in lines {
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn tree_lines(value: &Value, depth: usize, lines: &mut Vec<String>) {
    /// Deeper values are printed as they are; our own never get there.
    const DEPTH_MAX: usize = 16;
    let indent = "  ".repeat(depth);
    let is_nested = |value: &Value| (value.is_object() || value.is_array()) && depth < DEPTH_MAX;
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if is_nested(value) {
                    lines.push(format!("{indent}{name}:"));
                    tree_lines(value, depth + 1, lines);
                } else {
                    lines.push(format!("{indent}{name}: {}", plain(value)));
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                if is_nested(item) {
                    lines.push(format!("{indent}-"));
                    tree_lines(item, depth + 1, lines);
                } else {
                    lines.push(format!("{indent}- {}", plain(item)));
                }
            }
        }
        plain_value => lines.push(format!("{indent}{}", plain(plain_value))),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A point in time as `2026-01-31 12:34:56` UTC, from nanoseconds since 1970; `-` for 0.
pub fn utc(ns: u64) -> String {
    if ns == 0 {
        return "-".to_string();
    }
    let seconds = ns / 1_000_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar.
///
/// Counts from 1 March of year 0, so that the leap day is the last of its year; an era is the 400
/// years after which the calendar repeats.
pub(crate) fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_PER_ERA: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// A duration as `3d 4h`, `4h 5m`, `5m 6s` or `6s`.
pub fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(print: impl FnOnce(&mut Output<'_>) -> io::Result<()>) -> String {
        let mut text = Vec::new();
        let mut output = Output {
            format: Format::Table,
            out: &mut text,
        };
        print(&mut output).expect("memory takes everything");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn tables_are_aligned_and_have_no_trailing_spaces() {
        let rows = vec![
            vec!["a".to_string(), "1".to_string(), "x".to_string()],
            vec!["longer".to_string(), "100".to_string(), "-".to_string()],
        ];
        let text = printed(|output| output.table(&["NAME", "SIZE", "NOTE"], &[1], rows));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines.iter().all(|line| *line == line.trim_end()),
            "{text:?}"
        );
        let column = lines[0].find("SIZE").expect("heading") + 4;
        assert!(lines[1][..column].ends_with("  1"), "{text}");
        assert!(lines[2][..column].ends_with("100"), "{text}");
    }

    #[test]
    fn values_as_a_tree() {
        let value = serde_json::json!({"a": 1, "b": {"c": "x"}, "d": ["y", {"e": null}]});
        let text = printed(|output| output.tree(&value));
        assert_eq!(text, "a: 1\nb:\n  c: x\nd:\n  - y\n  -\n    e: null\n");
    }

    #[test]
    fn dates() {
        let at = |seconds: u64| utc(seconds * 1_000_000_000);
        assert_eq!(at(0), "-");
        assert_eq!(at(1), "1970-01-01 00:00:01");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(1_709_251_200), "2024-03-01 00:00:00");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00");
        assert!(utc(u64::MAX).starts_with("2554-07-21"));
    }

    #[test]
    fn durations() {
        let cases = [(0, "0s"), (61, "1m 1s"), (3700, "1h 1m"), (90_000, "1d 1h")];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }
}
