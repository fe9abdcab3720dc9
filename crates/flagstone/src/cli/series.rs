//! Metrics as JSON: the series of a scrape, read from the Prometheus text that the node serves.
//!
//! What is read comes from a node, maybe of another version: what is not understood is an error, never
//! a panic.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Number, Value};

/// What histograms put behind their name.
const HISTOGRAM_SUFFIXES: [&str; 3] = ["_bucket", "_sum", "_count"];

/// One value of a scrape.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    /// `counter`, `gauge`, `histogram`, or `untyped` where the node doesn't say.
    #[serde(rename = "type")]
    kind: String,
    /// A number; text (`+Inf`, `NaN`) for what JSON has no numbers for.
    value: Value,
}

/// The series in a text, in its order; the line that is none.
pub(super) fn parse(text: &str) -> Result<Vec<Series>, String> {
    let mut kinds = BTreeMap::new();
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix('#') {
            let mut words = comment.split_whitespace();
            if let (Some("TYPE"), Some(name), Some(kind)) =
                (words.next(), words.next(), words.next())
            {
                kinds.insert(name.to_owned(), kind.to_owned());
            }
            continue;
        }
        let (name, labels, value) = parse_line(line).ok_or_else(|| line.to_owned())?;
        let family = HISTOGRAM_SUFFIXES
            .iter()
            .filter_map(|suffix| name.strip_suffix(suffix))
            .find(|base| kinds.get(*base).is_some_and(|kind| kind == "histogram"));
        let kind = kinds.get(family.unwrap_or(name));
        all.push(Series {
            name: name.to_owned(),
            labels,
            kind: kind.cloned().unwrap_or_else(|| "untyped".to_owned()),
            value,
        });
    }
    Ok(all)
}

/// `NAME VALUE` or `NAME{LABEL="TEXT",..} VALUE`.
fn parse_line(line: &str) -> Option<(&str, BTreeMap<String, String>, Value)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = parse_labels(inside, &mut labels)?;
    }
    // A time-stamp may follow; we send none.
    let value = rest.split_whitespace().next()?;
    Some((name, labels, parse_value(value)?))
}

/// Reads up to the closing brace; what is behind it.
fn parse_labels<'a>(mut rest: &'a str, labels: &mut BTreeMap<String, String>) -> Option<&'a str> {
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return Some(behind);
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut text = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    other => text.push(other),
                },
                (_, other) => text.push(other),
            }
        };
        labels.insert(name.to_owned(), text);
        rest = quoted.get(end + 1..)?;
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

/// Whole numbers stay whole.
fn parse_value(text: &str) -> Option<Value> {
    if let Ok(whole) = text.parse::<u64>() {
        return Some(whole.into());
    }
    let value: f64 = text.parse().ok()?;
    Some(Number::from_f64(value).map_or_else(|| text.into(), Value::Number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_scrape_as_json() {
        let text = "\
# HELP x_total Words.
# TYPE x_total counter
x_total{volume=\"a\\\"b\\\\\\n,}\",op=\"read\"} 18446744073709551615
# TYPE t_seconds histogram
t_seconds_bucket{le=\"+Inf\"} 3
t_seconds_sum 0.25
t_seconds_count 3

odd -1.5
none NaN
";
        let found = serde_json::to_value(parse(text).expect("read")).expect("JSON");
        let series = |name: &str, labels: Value, kind: &str, value: Value| serde_json::json!({"name": name, "labels": labels, "type": kind, "value": value});
        let none = serde_json::json!({});
        let expected = [
            series(
                "x_total",
                serde_json::json!({"volume": "a\"b\\\n,}", "op": "read"}),
                "counter",
                u64::MAX.into(),
            ),
            series(
                "t_seconds_bucket",
                serde_json::json!({"le": "+Inf"}),
                "histogram",
                3.into(),
            ),
            series("t_seconds_sum", none.clone(), "histogram", 0.25.into()),
            series("t_seconds_count", none.clone(), "histogram", 3.into()),
            series("odd", none.clone(), "untyped", (-1.5).into()),
            series("none", none, "untyped", "NaN".into()),
        ];
        assert_eq!(found, Value::from(expected.to_vec()));
    }

    #[test]
    fn what_is_no_series_is_named() {
        for line in [
            "x",
            "x{",
            "x{a=\"b",
            "x{a=\"b\"}",
            "x y",
            "<html>",
            "x{a} 1",
        ] {
            assert_eq!(parse(line), Err(line.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z{}=\", \\\\0-9#\n\\PC]{0,60}") {
            let _ = parse(&text);
        }
    }
}
