//! `flagstone-model`: explores the models and prints what it found.

use std::process::ExitCode;

use std::fmt::Display;

use flagstone_model::{
    Bug, Config, Model, Outcome, Size, TwoPhase, TwoPhaseBug, TwoPhaseConfig, limits, plain,
    planted, two_phase, two_phase_planted,
};

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
    let mut spanning_bugs = Vec::new();
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
                match (Bug::by_name(&name), TwoPhaseBug::by_name(&name)) {
                    (Some(bug), _) => bugs.push(bug),
                    (None, Some(bug)) => spanning_bugs.push(bug),
                    (None, None) => return Err(format!("no such bug: {name}")),
                }
            }
            "--bugs" => {
                bugs.extend(Bug::ALL);
                spanning_bugs.extend(TwoPhaseBug::ALL);
            }
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
    if bugs.is_empty() && spanning_bugs.is_empty() {
        let is_chosen = |name: &str| only.as_ref().is_none_or(|only| name == only);
        let mut good = true;
        for config in plain(size)
            .into_iter()
            .filter(|config| is_chosen(config.name))
        {
            good &= explore(config, None, true);
        }
        let configs = two_phase(size == Size::Small).into_iter();
        for config in configs.filter(|config| is_chosen(config.name)) {
            good &= explore_two_phase(config, None, true);
        }
        return Ok(good);
    }
    let details = bugs.len() + spanning_bugs.len() == 1;
    let mut good = true;
    for bug in bugs {
        good &= explore(planted(bug), Some(bug), details);
    }
    for bug in spanning_bugs {
        good &= explore_two_phase(two_phase_planted(bug), Some(bug), details);
    }
    Ok(good)
}

/// Explores and prints; true if a bug was found or, without one, nothing was.
fn explore(config: Config, bug: Option<Bug>, details: bool) -> bool {
    let title = format!(
        "{} ({:?}, {:?})",
        config.name, config.discipline, config.seal
    );
    let name = bug.map(Bug::name);
    print_found(&title, name, details, || {
        Model::new(config, bug).explore(STATES_MAX)
    })
}

/// The same for commits over several stores.
fn explore_two_phase(config: TwoPhaseConfig, bug: Option<TwoPhaseBug>, details: bool) -> bool {
    let (title, name) = (config.name, bug.map(TwoPhaseBug::name));
    print_found(title, name, details, || {
        TwoPhase::new(config, bug).explore(STATES_MAX)
    })
}

fn print_found<P: Display>(
    title: &str,
    bug: Option<String>,
    details: bool,
    explore: impl FnOnce() -> Outcome<P>,
) -> bool {
    // A tool that measures itself, outside of anything that must be reproducible.
    #[allow(clippy::disallowed_methods)]
    let start = std::time::Instant::now();
    let outcome = explore();
    let seconds = start.elapsed().as_secs_f64();
    let Outcome {
        states,
        transitions,
        depth,
        complete,
        counterexample,
    } = outcome;
    let name = bug.as_ref().map_or(String::new(), |bug| format!("{bug}: "));
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
