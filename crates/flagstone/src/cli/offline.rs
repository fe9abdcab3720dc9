//! `flagstone inspect` and `flagstone verify`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;
use super::progress::Bar;
use crate::exit::Exit;
use crate::offline::{self, InspectOptions, VerifyOptions, VerifyReport};
use crate::output::Output;

/// Describes what is on a device: superblocks, segments, journals, volumes, snapshots. If a node
/// serves it, the first line says so: what is shown may then be torn.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone inspect ./flagstone-data/device.img
  flagstone inspect -o json --detailed /dev/nvme0n1
  flagstone inspect --map disk1@monday ./flagstone-data/device.img
  flagstone inspect --block 12345 ./flagstone-data/device.img")]
pub(super) struct InspectArgs {
    /// The file or block device
    image: PathBuf,
    /// List segments, journal groups and their records one by one
    #[arg(long)]
    detailed: bool,
    /// Show the map of a volume or snapshot instead, node by node; of a striped one that of each part in turn, with offsets in the volume
    #[arg(long, value_name = "VOLUME[@SNAPSHOT]")]
    map: Option<String>,
    /// Say instead what a block of 4 KiB is, and who refers to it; the first is 0
    #[arg(long, value_name = "NUMBER", conflicts_with = "map")]
    block: Option<u64>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// Checks a device from the superblocks to the checksum of every block in use, and says what is
/// wrong in words. Exit code 8 if anything is.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone verify ./flagstone-data/device.img
  flagstone verify --metadata-only /dev/nvme0n1     quicker: reads no data blocks")]
pub(super) struct VerifyArgs {
    /// The file or block device
    image: PathBuf,
    /// Check the metadata only
    #[arg(long)]
    metadata_only: bool,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(super) fn inspect(args: &InspectArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    let options = InspectOptions {
        detailed: args.detailed,
        map_of: args.map.clone(),
        block: args.block,
    };
    let found = offline::inspect(&args.image, &options)?;
    output.outcome(&found.value, &found.words)?;
    Ok(())
}

pub(super) fn verify(args: &VerifyArgs, output: &mut Output<'_>) -> anyhow::Result<Exit> {
    let options = VerifyOptions {
        skip_data: args.metadata_only,
    };
    let mut bar = Bar::new("verify");
    let report = offline::verify(&args.image, &options, &mut |done, total| {
        bar.show(done, total)
    })?;
    drop(bar);
    print_report(&args.image.display().to_string(), &report, output)
}

fn print_report(
    image: &str,
    report: &VerifyReport,
    output: &mut Output<'_>,
) -> anyhow::Result<Exit> {
    if output.is_json() {
        output.json(report)?;
    } else {
        for remark in &report.remarks {
            output.sentence(&format!("note: {remark}"))?;
        }
        for problem in &report.problems {
            output.sentence(&format!("PROBLEM: {}: {}", problem.severity, problem.what))?;
            output.sentence(&format!("    what to do: {}", problem.advice))?;
        }
        if report.unlisted_problems > 0 {
            let more = report.unlisted_problems;
            output.sentence(&format!("and {more} more problems of the same kinds"))?;
        }
        if !report.summary.is_empty() {
            output.sentence(&report.summary)?;
        }
        let checked = format!(
            "{} metadata blocks and {} data blocks checked",
            report.metadata_blocks, report.data_blocks
        );
        let verdict = match report.problems.len() as u64 + report.unlisted_problems {
            0 => "clean".to_string(),
            1 => "1 problem".to_string(),
            n => format!("{n} problems"),
        };
        output.sentence(&format!("{image}: {verdict}; {checked}"))?;
    }
    Ok(if report.clean {
        Exit::Ok
    } else {
        Exit::Corrupt
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::VerifyProblem;
    use crate::output::Format;

    #[test]
    fn a_problem_is_printed_and_is_the_exit_code() {
        let mut report = VerifyReport {
            clean: true,
            metadata_blocks: 7,
            ..Default::default()
        };
        let print = |report: &VerifyReport, format| {
            let mut text = Vec::new();
            let mut output = Output {
                format,
                out: &mut text,
            };
            let exit = print_report("x.img", report, &mut output).expect("printed");
            (exit, String::from_utf8(text).expect("text"))
        };
        let (exit, text) = print(&report, Format::Table);
        assert_eq!(exit, Exit::Ok);
        assert_eq!(
            text,
            "x.img: clean; 7 metadata blocks and 0 data blocks checked\n"
        );
        report.clean = false;
        report.problems.push(VerifyProblem {
            severity: "data loss".to_string(),
            what: "block 9: checksum".to_string(),
            advice: "look".to_string(),
            ..Default::default()
        });
        let (exit, text) = print(&report, Format::Table);
        assert_eq!(exit, Exit::Corrupt);
        assert!(
            text.starts_with(
                "PROBLEM: data loss: block 9: checksum\n    what to do: look\nx.img: 1 problem;"
            ),
            "{text}"
        );
        let (exit, text) = print(&report, Format::Json);
        assert_eq!(exit, Exit::Corrupt);
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["problems"][0]["what"], "block 9: checksum");
    }
}
