//! Pictures: grouped bars, dots with a curve, and lines over time, written as SVG by hand.
//!
//! For volumes, upper panel: operations per second as a ratio to the raw file, with the range over the rounds.
//! Lower panel: server CPU per 100,000 operations.

use std::fmt::Write as _;

use super::client::Sample;
use super::points::Point;
use super::stats::{Results, Spread};
use super::targets::Caching;

const WIDTH: f64 = 1120.0;
const PANEL_HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 76.0;
/// Between the panels, for the labels of the upper one and the title of the lower one.
const BETWEEN: f64 = 76.0;
const BOTTOM: f64 = 36.0;

/// Told apart by lightness as well as by hue.
pub(super) const PEER_COLOURS: [&str; 4] = ["#b9c0c9", "#7f8b99", "#e3cf9a", "#c9a86a"];
pub(super) const OWN_COLOURS: [&str; 4] = ["#0b62a4", "#4fa3dd", "#12806a", "#7a4fa3"];

/// One bar; `None` where the target has no figure.
pub(super) type Bar = Option<Spread>;

/// A panel of grouped bars.
pub(super) struct Panel<'a> {
    pub(super) title: &'a str,
    pub(super) groups: Vec<(&'a str, Vec<Bar>)>,
    /// A line across at this value.
    pub(super) reference: Option<f64>,
    pub(super) decimals: usize,
}

/// Draws the whole picture.
pub(super) fn draw(results: &Results, points: &[Point], caption: &str) -> String {
    let servers: Vec<(&str, &str)> = colours(results);
    let raw = results
        .names(Caching::Raw)
        .first()
        .copied()
        .unwrap_or_default();
    let ratio_groups = groups(points, &servers, |name, point| {
        let (median, spread) = results.rate_ratio(name, raw, point.name)?;
        Some(Spread { median, ..spread })
    });
    let cpu_groups = groups(points, &servers, |name, point| {
        results.spread(name, point.name, Sample::server_cpu_per_100k)
    });
    let panels = [
        Panel {
            title: "Operations per second, as a ratio to the raw file (line: raw)",
            groups: ratio_groups,
            reference: Some(1.0),
            decimals: 2,
        },
        Panel {
            title: "Server CPU, seconds per 100,000 operations",
            groups: cpu_groups
                .into_iter()
                .filter(|(name, _)| !name.starts_with('s'))
                .collect(),
            reference: None,
            decimals: 1,
        },
    ];

    page(caption, &servers, &panels)
}

/// Panels below each other, with the colour of each server.
pub(super) fn page(caption: &str, servers: &[(&str, &str)], panels: &[Panel]) -> String {
    let step = PANEL_HEIGHT + BETWEEN;
    let height = TOP + step * panels.len() as f64 - BETWEEN + BOTTOM;
    let mut svg = String::new();
    begin(&mut svg, height, caption);
    legend(&mut svg, servers);
    for (index, panel) in panels.iter().enumerate() {
        panel.draw(&mut svg, servers, TOP + step * index as f64);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A curve through dots, and the two lines that it nears.
pub(super) struct Curve {
    pub(super) at: Box<dyn Fn(f64) -> f64>,
    /// The line through the origin that it begins as.
    pub(super) linear: f64,
    /// The level that it ends at.
    pub(super) most: f64,
}

/// What was measured at 1, 2, 3 and so on.
pub(super) struct Dots<'a> {
    pub(super) title: &'a str,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) curve: Option<Curve>,
}

/// Panels of dots with the curve fitted to them, below each other.
pub(super) fn dots(caption: &str, panels: &[Dots]) -> String {
    let step = PANEL_HEIGHT + BETWEEN;
    let height = TOP + step * panels.len() as f64 - BETWEEN + BOTTOM;
    let mut svg = String::new();
    begin(&mut svg, height, caption);
    for (index, panel) in panels.iter().enumerate() {
        panel.draw(&mut svg, TOP + step * index as f64);
    }
    svg.push_str("</svg>\n");
    svg
}

impl Dots<'_> {
    fn draw(&self, svg: &mut String, top: f64) {
        let highest = self
            .points
            .iter()
            .map(|point| point.1)
            .chain(self.curve.as_ref().map(|curve| curve.most))
            .filter(|value| value.is_finite())
            .fold(0.0, f64::max);
        let last = self.points.last().map_or(1.0, |point| point.0);
        // A level far above all dots says nothing but that the curve doesn't bend.
        let seen = self.points.iter().map(|point| point.1).fold(0.0, f64::max);
        let (limit, step) = scale(highest.min(seen * 2.0));
        let y = |value: f64| top + PANEL_HEIGHT * (1.0 - (value / limit).clamp(0.0, 1.0));
        let x = |clients: f64| LEFT + (WIDTH - LEFT - RIGHT) * clients / (last + 0.5);
        text(svg, LEFT, top - 12.0, "start", "13", self.title);
        grid(svg, limit, step, y);
        for (clients, _) in &self.points {
            let label = trimmed(*clients);
            text(
                svg,
                x(*clients),
                top + PANEL_HEIGHT + 18.0,
                "middle",
                "12",
                &label,
            );
        }
        if let Some(curve) = &self.curve {
            let path: Vec<String> = (1..=100)
                .map(|part| {
                    let clients = last * f64::from(part) / 100.0;
                    format!("{:.1},{:.1}", x(clients), y((curve.at)(clients)))
                })
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
                path.join(" "),
                OWN_COLOURS[0]
            );
            // Where the two lines meet.
            let meet = (curve.most / curve.linear).min(last);
            let mut line = |from: (f64, f64), to: (f64, f64)| {
                let _ = writeln!(
                    svg,
                    "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\" \
                     stroke-dasharray=\"5 4\"/>",
                    x(from.0),
                    y(from.1),
                    x(to.0),
                    y(to.1),
                    PEER_COLOURS[1]
                );
            };
            let end = meet.min(limit / curve.linear);
            line((0.0, 0.0), (end, curve.linear * end));
            if curve.most < limit {
                line((0.0, curve.most), (last, curve.most));
            }
        }
        for (clients, rate) in &self.points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"#333\"/>",
                x(*clients),
                y(*rate)
            );
        }
    }
}

/// Lines over time.
pub(super) struct Lines<'a> {
    pub(super) title: String,
    /// Colour and points of each, in the order in which they are drawn. The points are in the order of time.
    pub(super) series: Vec<(&'a str, Vec<(f64, f64)>)>,
    /// Seconds at the right edge.
    pub(super) end: f64,
    /// From and to which second the ground is grey.
    pub(super) shaded: Option<(f64, f64)>,
}

/// Panels of lines below each other, with the colour of each name.
pub(super) fn lines(caption: &str, names: &[(&str, &str)], panels: &[Lines]) -> String {
    let step = PANEL_HEIGHT + BETWEEN;
    let height = TOP + step * panels.len() as f64 - BETWEEN + BOTTOM;
    let mut svg = String::new();
    begin(&mut svg, height, caption);
    legend(&mut svg, names);
    for (index, panel) in panels.iter().enumerate() {
        panel.draw(&mut svg, TOP + step * index as f64);
    }
    svg.push_str("</svg>\n");
    svg
}

impl Lines<'_> {
    fn draw(&self, svg: &mut String, top: f64) {
        let points = self.series.iter().flat_map(|(_, points)| points);
        let highest = points.map(|point| point.1).fold(0.0, f64::max);
        let (limit, step) = scale(highest);
        let (end, seconds) = scale(self.end / 1.08);
        let x = |second: f64| LEFT + (WIDTH - LEFT - RIGHT) * (second / self.end).clamp(0.0, 1.0);
        let y = |value: f64| top + PANEL_HEIGHT * (1.0 - (value / limit).clamp(0.0, 1.0));
        text(svg, LEFT, top - 12.0, "start", "13", &self.title);
        if let Some((from, to)) = self.shaded {
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{PANEL_HEIGHT}\" fill=\"#f1f2f4\"/>",
                x(from),
                x(to) - x(from)
            );
        }
        grid(svg, limit, step, y);
        for mark in 0..=(end / seconds).round() as u32 {
            let second = f64::from(mark) * seconds;
            if second <= self.end {
                let label = format!("{} s", trimmed(second));
                let base = top + PANEL_HEIGHT + 18.0;
                text(svg, x(second), base, "middle", "11", &label);
            }
        }
        for (colour, points) in &self.series {
            let path: Vec<String> = points
                .iter()
                .map(|(second, value)| format!("{:.1},{:.1}", x(*second), y(*value)))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
                path.join(" ")
            );
        }
    }
}

/// The page itself and what it is about.
fn begin(svg: &mut String, height: f64, caption: &str) {
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>"
    );
    text(svg, LEFT, 22.0, "start", "15", caption);
}

/// Lines across, with what they stand for.
fn grid(svg: &mut String, limit: f64, step: f64, y: impl Fn(f64) -> f64) {
    let lines = (limit / step).round() as u32;
    for index in 0..=lines {
        let value = f64::from(index) * step;
        let at = y(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e2e5e9\"/>",
            WIDTH - RIGHT
        );
        text(svg, LEFT - 8.0, at + 4.0, "end", "11", &trimmed(value));
    }
}

/// The servers and the colour of each.
fn colours(results: &Results) -> Vec<(&str, &str)> {
    let (mut peers, mut own) = (PEER_COLOURS.iter().cycle(), OWN_COLOURS.iter().cycle());
    let servers = results
        .targets
        .iter()
        .filter(|(_, caching)| *caching != Caching::Raw);
    servers
        .filter_map(|(name, caching)| {
            let colour = if *caching == Caching::Own {
                own.next()
            } else {
                peers.next()
            };
            Some((name.as_str(), *colour?))
        })
        .collect()
}

fn groups<'a>(
    points: &'a [Point],
    servers: &[(&str, &str)],
    bar: impl Fn(&str, &Point) -> Bar,
) -> Vec<(&'a str, Vec<Bar>)> {
    // The check of the client against fio has its place in the tables.
    let shown = points
        .iter()
        .filter(|point| !point.load.is_trickle() && !point.name.contains('-'));
    let group = |point: &'a Point| {
        (
            point.name,
            servers
                .iter()
                .map(|(name, _)| bar(name, point))
                .collect::<Vec<Bar>>(),
        )
    };
    shown
        .map(group)
        .filter(|(_, bars)| bars.iter().any(Option::is_some))
        .collect()
}

fn legend(svg: &mut String, servers: &[(&str, &str)]) {
    let mut x = LEFT;
    for (name, colour) in servers {
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"
        );
        text(svg, x + 17.0, 44.5, "start", "12", name);
        x += 40.0 + name.len() as f64 * 7.0;
    }
}

impl Panel<'_> {
    fn draw(&self, svg: &mut String, servers: &[(&str, &str)], top: f64) {
        let tops = self
            .groups
            .iter()
            .flat_map(|(_, bars)| bars.iter().flatten());
        let highest = tops
            .map(|bar| bar.max)
            .fold(self.reference.unwrap_or(0.0), f64::max);
        let (limit, step) = scale(highest);
        let y = |value: f64| top + PANEL_HEIGHT * (1.0 - (value / limit).clamp(0.0, 1.0));
        text(svg, LEFT, top - 12.0, "start", "13", self.title);

        grid(svg, limit, step, y);
        self.bars(svg, servers, top + PANEL_HEIGHT, y);
        if let Some(value) = self.reference {
            let at = y(value);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#c0392b\" \
                 stroke-dasharray=\"5 4\"/>",
                WIDTH - RIGHT
            );
        }
    }

    fn bars(&self, svg: &mut String, servers: &[(&str, &str)], base: f64, y: impl Fn(f64) -> f64) {
        let group_width = (WIDTH - LEFT - RIGHT) / self.groups.len().max(1) as f64;
        let bar_width = (group_width * 0.84 / servers.len().max(1) as f64).min(34.0);
        for (index, (name, bars)) in self.groups.iter().enumerate() {
            let middle = LEFT + group_width * (index as f64 + 0.5);
            text(svg, middle, base + 18.0, "middle", "12", name);
            let start = middle - bar_width * bars.len() as f64 / 2.0;
            for (place, (bar, (_, colour))) in bars.iter().zip(servers).enumerate() {
                let Some(bar) = bar else { continue };
                let x = start + bar_width * place as f64;
                let (top, centre) = (y(bar.median), x + bar_width / 2.0);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                     fill=\"{colour}\"/>\n<line x1=\"{centre:.1}\" x2=\"{centre:.1}\" \
                     y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#333\" stroke-width=\"1\"/>",
                    x + 0.5,
                    bar_width - 1.0,
                    (base - top).max(0.0),
                    y(bar.min),
                    y(bar.max)
                );
                let label = format!("{:.*}", self.decimals, bar.median);
                text(svg, centre, y(bar.max) - 4.0, "middle", "9", &label);
            }
        }
    }
}

/// A round upper limit just above `highest`, and the step between grid lines.
fn scale(highest: f64) -> (f64, f64) {
    let highest = if highest > 0.0 { highest * 1.08 } else { 1.0 };
    let magnitude = 10f64.powf(highest.log10().floor());
    for factor in [0.1, 0.2, 0.25, 0.5, 1.0, 2.0] {
        let step = magnitude * factor;
        if highest / step <= 6.0 {
            return ((highest / step).ceil() * step, step);
        }
    }
    (highest, highest / 5.0)
}

fn trimmed(value: f64) -> String {
    let shown = format!("{value:.2}");
    shown.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, size: &str, content: &str) {
    let safe = content
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{safe}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_round_and_holds_the_highest_bar() {
        for highest in [0.03, 0.9, 1.0, 1.7, 4.4, 73.0, 990.0] {
            let (limit, step) = scale(highest);
            assert!(
                limit > highest && limit < highest * 2.0,
                "{highest}: {limit}"
            );
            assert!(
                (2.0..=6.0).contains(&(limit / step).round()),
                "{highest}: {step}"
            );
        }
    }

    #[test]
    fn lines_run_from_edge_to_edge_and_stay_within() {
        let panel = Lines {
            title: "a < b".to_owned(),
            series: vec![("#000", vec![(0.0, 0.0), (3.0, 50.0), (6.0, 100.0)])],
            end: 6.0,
            shaded: Some((2.0, 4.0)),
        };
        let svg = lines("caption", &[("one", "#000")], &[panel]);
        let (_, path) = svg.split_once("<polyline points=\"").expect("a line");
        let (path, _) = path.split_once('"').expect("its end");
        // Up to 120: a round number above the highest.
        assert_eq!(path, "60.0,336.0 580.0,227.7 1100.0,119.3");
        assert!(svg.contains("a &lt; b") && svg.contains(">6 s<"), "{svg}");
        assert!(
            svg.contains("<rect x=\"406.7\" y=\"76.0\" width=\"346.7\""),
            "{svg}"
        );
    }

    #[test]
    fn grid_labels_have_no_needless_zeros() {
        assert_eq!(
            [trimmed(1.0), trimmed(0.25), trimmed(20.0)],
            ["1", "0.25", "20"]
        );
    }
}
