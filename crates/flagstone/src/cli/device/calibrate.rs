//! `flagstone device calibrate`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::progress::Bar;
use crate::layers::LayerText;
use crate::offline::{self, CalibrateOptions, CalibrateReport, CalibratedPoint, CalibratedPrices};
use crate::output::Output;
use crate::size::{Size, rounded};

const MILLISECONDS_DEFAULT: u64 = 1000;
const REGION_DEFAULT: &str = "1G";

#[derive(Args, Debug)]
#[command(after_help = "\
Without --writes only reads are measured, which change nothing. With it the beginning of the device is written, and made zero
in the end: it has to be blank, or --destroy-contents be given.

Examples:
  flagstone device calibrate /dev/nvme0n1                       reads alone
  flagstone device calibrate /dev/nvme0n1 --writes              of a new disk, before it is formatted
  flagstone device calibrate ./disk.img --writes -o json")]
pub(super) struct CalibrateArgs {
    /// The file or block device
    path: PathBuf,
    /// Measure writes and flushes, too, and say which ceiling follows
    #[arg(long)]
    writes: bool,
    /// Write although it is not blank: what it holds is lost
    #[arg(long, requires = "writes")]
    destroy_contents: bool,
    /// Milliseconds for each of the loads, of which there are 17, with writes 35
    #[arg(long, value_name = "N", default_value_t = MILLISECONDS_DEFAULT, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    load_ms: u64,
    /// How much of it is written, from its beginning; more than the device's own memory holds
    #[arg(long, value_name = "SIZE", default_value = REGION_DEFAULT)]
    region: Size,
    /// For trying this out: put the device behind this first, as `dev` does. Can be given several times
    #[arg(long = "layer", value_name = "LAYER")]
    layers: Vec<LayerText>,
}

pub(super) fn run(args: &CalibrateArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    let options = CalibrateOptions {
        writes: args.writes,
        destroy_contents: args.destroy_contents,
        load_ms: args.load_ms,
        region_bytes: args.region.0,
        layers: args.layers.iter().map(|layer| layer.layer).collect(),
    };
    let shown = args.path.display().to_string();
    let seconds = offline::calibration_takes(&options).as_secs();
    output.sentence(&format!("calibrating {shown}: about {seconds} s"))?;
    let mut bar = Bar::of_steps("calibrate");
    let report = offline::calibrate(&args.path, &options, &mut |done, total| {
        bar.show(done, total);
    })?;
    drop(bar);
    print(&shown, &report, output)
}

fn print(path: &str, report: &CalibrateReport, output: &mut Output<'_>) -> anyhow::Result<()> {
    if output.is_json() {
        output.json(report)?;
        return Ok(());
    }
    const HEADINGS: [&str; 8] = [
        "KIND",
        "SIZE",
        "IN FLIGHT",
        "PER SECOND",
        "BYTES/S",
        "FLUSHES/S",
        "P50 US",
        "P99 US",
    ];
    output.table(
        &HEADINGS,
        &[1, 2, 3, 4, 5, 6, 7],
        report.points.iter().map(row),
    )?;
    for price in prices(&report.prices) {
        output.sentence(&price)?;
    }
    if let Some(ceiling) = &report.ceiling {
        output.sentence(&format!(
            "\nA ceiling a little below that, for the configuration:\n  [[device]]\n  path = {path:?}\n  ceiling = \"{ceiling}\"\n\
             or the command line:\n  --ceiling '{ceiling}'"
        ))?;
    }
    for note in &report.notes {
        output.sentence(&format!("note: {note}"))?;
    }
    Ok(())
}

fn row(point: &CalibratedPoint) -> Vec<String> {
    vec![
        point.kind.to_owned(),
        rounded(point.bytes),
        point.depth.to_string(),
        format!("{:.0}", point.per_second),
        rounded((point.per_second * point.bytes as f64) as u64),
        format!("{:.0}", point.flushes_per_second),
        format!("{:.0}", point.p50_us),
        format!("{:.0}", point.p99_us),
    ]
}

/// What requests cost, a sentence for each kind that was measured.
fn prices(prices: &CalibratedPrices) -> Vec<String> {
    let us = |ns: u64| ns as f64 / 1000.0;
    let transfer = |what: &str, op: Option<u64>, block: Option<u64>| {
        let (op, block) = (us(op?), us(block?));
        Some(format!(
            "a {what} takes {op:.2} us of the device, and {block:.2} us for each block of 4 KiB"
        ))
    };
    let flush = prices.flush_ns.map(|ns| match ns {
        0 => "a flush takes nothing that could be told from chance".to_owned(),
        ns => format!("a flush takes {:.2} us", us(ns)),
    });
    let all = [
        transfer("read", prices.read_op_ns, prices.read_block_ns),
        transfer("write", prices.write_op_ns, prices.write_block_ns),
        flush,
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_said_of_what_was_measured() {
        let all = CalibratedPrices {
            read_op_ns: Some(90_000),
            read_block_ns: Some(10_000),
            write_op_ns: Some(1_500),
            write_block_ns: Some(250),
            flush_ns: Some(0),
        };
        assert_eq!(
            prices(&all),
            [
                "a read takes 90.00 us of the device, and 10.00 us for each block of 4 KiB",
                "a write takes 1.50 us of the device, and 0.25 us for each block of 4 KiB",
                "a flush takes nothing that could be told from chance",
            ]
        );
        let reads = CalibratedPrices {
            write_op_ns: None,
            write_block_ns: None,
            flush_ns: None,
            ..all
        };
        assert_eq!(prices(&reads).len(), 1);
        let flush = CalibratedPrices {
            flush_ns: Some(2_000_000),
            ..all
        };
        assert_eq!(prices(&flush)[2], "a flush takes 2000.00 us");
    }

    #[test]
    fn bytes_a_second_are_of_all_requests() {
        let point = CalibratedPoint {
            kind: "reads",
            bytes: 16 << 10,
            depth: 16,
            per_second: 6400.0,
            flushes_per_second: 0.0,
            p50_us: 12.4,
            p99_us: 99.6,
        };
        let expected = ["reads", "16 KiB", "16", "6400", "100 MiB", "0", "12", "100"];
        assert_eq!(row(&point), expected);
    }
}
