//! SLOs of volumes and filesystems as the command line has them.

use clap::Args;

use crate::node::{Rates, Slo, SloLimit, SloPromise};
use crate::words::WordsError;

/// A service level objective, or parts of one.
#[derive(Args, Debug)]
pub(super) struct SloArgs {
    /// What it gets of what floors leave, in proportion to others' shares [default: 1]
    #[arg(long, value_name = "PARTS", conflicts_with = "floor", value_parser = clap::value_parser!(u32).range(1..))]
    share: Option<u32>,
    /// So many reads and writes of 4 KiB a second, whatever others do: 'reads=5000,writes=1000', or none: then it has a share of 1
    #[arg(long, value_name = "RATES", value_parser = parse_floor)]
    floor: Option<FloorArg>,
    /// What it may not exceed, a second: 'reads=2000,writes=500,bytes=100M', or none
    #[arg(long, value_name = "RATES")]
    limit: Option<SloLimit>,
    /// Do it although the device can't keep all its floors when they are claimed at once
    #[arg(long)]
    pub(super) oversubscribe: bool,
}

/// A floor, or that there is to be none.
#[derive(Clone, Copy, Debug)]
struct FloorArg(Option<Rates>);

fn parse_floor(text: &str) -> Result<FloorArg, WordsError> {
    match text {
        "none" => Ok(FloorArg(None)),
        text => text.parse().map(|rates| FloorArg(Some(rates))),
    }
}

impl SloArgs {
    /// `before`, with what was given.
    pub(super) fn over(&self, before: Slo) -> Slo {
        let promise = match (self.floor, self.share) {
            (Some(FloorArg(Some(rates))), _) => SloPromise::Floor(rates),
            (_, Some(parts)) => SloPromise::Share(parts),
            (Some(FloorArg(None)), None) => match before.promise {
                SloPromise::Floor(_) => SloPromise::default(),
                share => share,
            },
            (None, None) => before.promise,
        };
        Slo {
            promise,
            limit: self.limit.unwrap_or(before.limit),
        }
    }

    /// Whether nothing was given.
    pub(super) fn says_nothing(&self) -> bool {
        self.share.is_none() && self.floor.is_none() && self.limit.is_none()
    }
}
