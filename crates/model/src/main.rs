//! `flagstone-model`: explores the model of the journal and prints what it found.

use std::process::ExitCode;

use flagstone_model::{Bug, Config, Model, Outcome, Size, limits, plain, planted};

/// Beyond this many states an exploration gives up: about 8 GiB.
const STATES_MAX: usize = 60_000_000;

const USAGE: &str = "\
usage: flagstone-model [--bug NAME | --bugs | --limits] [--size small|medium|large] [--only NAME]

  without --bug    explores every configuration of that size; nothing may be found
  --bug NAME       plants a bug and prints the shortest counterexample
  --bugs           plants each bug in turn, one line each
  --limits         prints what the rules don't give, each with a counterexample
  --only NAME      only configurations of that name";

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// True if everything came out as it should.
fn run(args: Vec<String>) -> Result<bool, String> {
    let (mut size, mut bugs, mut only, mut show_limits) = (Size::Small, Vec::new(), None, false);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--size" => {
                size = match value()?.as_str() {
                    "small" => Size::Small,
                    "medium" => Size::Medium,
                    "large" => Size::Large,
                    other => return Err(format!("no such size: {other}")),
                }
            }
            "--bug" => {
                let name = value()?;
                bugs.push(Bug::by_name(&name).ok_or(format!("no such bug: {name}"))?);
            }
            "--bugs" => bugs.extend(Bug::ALL),
            "--limits" => show_limits = true,
            "--only" => only = Some(value()?),
            other => return Err(format!("no such option: {other}")),
        }
    }
    if show_limits {
        for (config, _) in limits() {
            explore(config, None, true);
        }
        return Ok(true);
    }
    if bugs.is_empty() {
        let configs = plain(size).into_iter();
        let chosen = configs.filter(|config| only.as_ref().is_none_or(|only| config.name == only));
        return Ok(chosen.fold(true, |good, config| explore(config, None, true) & good));
    }
    let details = bugs.len() == 1;
    Ok(bugs.into_iter().fold(true, |good, bug| {
        explore(planted(bug), Some(bug), details) & good
    }))
}

/// Explores and prints; true if a bug was found or, without one, nothing was.
fn explore(config: Config, bug: Option<Bug>, details: bool) -> bool {
    let title = format!(
        "{} ({:?}, {:?})",
        config.name, config.discipline, config.seal
    );
    // A tool that measures itself, outside of anything that must be reproducible.
    #[allow(clippy::disallowed_methods)]
    let start = std::time::Instant::now();
    let outcome = Model::new(config, bug).explore(STATES_MAX);
    let seconds = start.elapsed().as_secs_f64();
    let Outcome {
        states,
        transitions,
        depth,
        complete,
        counterexample,
    } = outcome;
    let name = bug.map_or(String::new(), |bug| format!("{}: ", bug.name()));
    print!("{name}{title}: {states} states, {transitions} steps, depth {depth}, {seconds:.1} s");
    let Some(found) = counterexample else {
        println!(
            "{}",
            if complete {
                ", nothing found"
            } else {
                ", NOT ALL SEEN"
            }
        );
        return complete && bug.is_none();
    };
    println!(
        ", {} steps to: {} ({})",
        found.steps.len(),
        found.property,
        found.detail
    );
    if details {
        for (number, step) in found.steps.iter().enumerate() {
            println!("{:4}. {step}", number + 1);
        }
    }
    bug.is_some()
}
