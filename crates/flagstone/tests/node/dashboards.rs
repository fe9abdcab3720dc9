//! The dashboard and the alert rules: whole, and about series that there are.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::series::documented;

const DASHBOARD: &str = include_str!("../../../../deploy/grafana/flagstone.json");
const RULES: &str = include_str!("../../../../deploy/prometheus/flagstone.rules.yml");

/// Everything in a text that looks like the name of a series.
fn series_in(text: &str) -> BTreeSet<&str> {
    let starts = text.match_indices("flagstone_").map(|(at, _)| at);
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    starts
        .map(|at| {
            let rest = &text[at..];
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            &rest[..end]
        })
        .collect()
}

/// Names that no node shows. Of a histogram there are three series.
fn unknown(text: &str) -> Vec<&str> {
    let known = documented();
    let is_known = |name: &&str| {
        let of_histogram = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| name.strip_suffix(suffix))
            .any(|family| family.ends_with("_seconds") && known.contains(family));
        known.contains(*name) || of_histogram
    };
    series_in(text)
        .into_iter()
        .filter(|name| !is_known(name))
        .collect()
}

#[test]
fn names_are_found_and_compared() {
    let text = "rate(flagstone_volume_wait_seconds_bucket{a=\"b\"}[5m]) > flagstone_nonsense_total";
    assert_eq!(series_in(text).len(), 2);
    assert_eq!(unknown(text), ["flagstone_nonsense_total"]);
    // Of what is no histogram there is no such series.
    let text = "flagstone_device_fenced_bucket";
    assert_eq!(unknown(text), [text]);
}

/// All values of a field, wherever it is.
fn fields<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                if key == name {
                    found.push(value);
                }
                fields(value, name, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, name, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_shows_series_that_there_are() {
    assert_eq!(unknown(DASHBOARD), [""; 0]);
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let mut exprs = Vec::new();
    fields(&dashboard, "expr", &mut exprs);
    assert!(exprs.len() > 30, "{}", exprs.len());
    for expr in exprs {
        let expr = expr.as_str().expect("text");
        assert!(!series_in(expr).is_empty(), "{expr}");
        assert_eq!(
            expr.matches('(').count(),
            expr.matches(')').count(),
            "{expr}"
        );
    }
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "{panel}");
        assert_ne!(panel["title"].as_str().unwrap_or_default(), "", "{panel}");
        // Nothing of one installation is in it.
        let source = &panel["datasource"]["uid"];
        assert!(source.is_null() || source == "${datasource}", "{panel}");
    }
}

#[test]
fn alerts_are_about_series_that_there_are() {
    assert_eq!(unknown(RULES), [""; 0]);
    for line in RULES.lines() {
        let indent = line.len() - line.trim_start().len();
        assert!(indent % 2 == 0 && !line.contains('\t'), "{line}");
    }
    // Volumes that nobody serves, or that take no changes.
    for series in [
        "flagstone_device_fenced",
        "flagstone_device_closed_journals",
        "flagstone_volumes_unruled",
    ] {
        assert!(series_in(RULES).contains(series), "{series}");
    }
    let rules: Vec<&str> = RULES.split("- alert: ").skip(1).collect();
    assert!(rules.len() > 10, "{}", rules.len());
    let mut names = BTreeSet::new();
    for rule in rules {
        let name = rule.lines().next().expect("a name");
        assert!(
            name.starts_with("Flagstone") && names.insert(name),
            "{name}"
        );
        let key = |key: &str| {
            let mut lines = rule.lines().map(str::trim);
            let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            found
                .unwrap_or_else(|| panic!("{name} has no {key}"))
                .trim()
        };
        assert_ne!(key("expr"), "", "{name}");
        assert!(["critical", "warning"].contains(&key("severity")), "{name}");
        for text in ["summary", "description"] {
            let text = key(text);
            assert!(
                text.starts_with('"') && text.ends_with('"'),
                "{name}: {text}"
            );
        }
        // Whether a node answers at all is Prometheus' own series.
        let is_of_scrape = key("expr").starts_with("up{");
        assert!(is_of_scrape || !series_in(rule).is_empty(), "{name}");
    }
}
