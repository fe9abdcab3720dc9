//! `cargo xtask bench curve`: operations per second with 1 to 12 clients, and the curve that Oracle FSS fits to that.
//!
//! Each client has a connection of its own and one operation in flight. The curve is 1 / (1/(l C) + 1/a): with few
//! clients each gets l operations a second, with many all of them together get a. [fss 6]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::super::machine::Setting;
use super::super::plot::{self, Curve, Dots};
use super::super::report::{table_head, thousands};
use super::super::stats::Spread;
use super::super::{command_line, parse_size};
use super::FILES_MAX;
use super::client::Outcome;
use super::data::{Kind, MEGABYTE, Random, Transfers};
use super::names::{Create, Look, Made};
use super::servers::{self, Own, Server};
use super::wire::Handle;
use crate::{daemon, repo};

/// As many as Oracle FSS has.
const CLIENTS_MAX: u32 = 12;
/// Files whose attributes are asked for.
const FILES: u64 = 2000;

#[derive(Args)]
pub(crate) struct CurveArguments {
    /// A smoke run: one round of 0.3 seconds, a small file, results outside the tree.
    #[arg(long)]
    quick: bool,
    /// Rounds over all numbers of clients; medians count.
    #[arg(long)]
    rounds: Option<u32>,
    /// Seconds of load per number of clients, operation and round.
    #[arg(long)]
    seconds: Option<f64>,
    /// Clients at most.
    #[arg(long, default_value_t = CLIENTS_MAX)]
    clients: u32,
    /// Size of the file that is read and written, all of it written beforehand.
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Size of the device, as Flagstone's command line takes it.
    #[arg(long, default_value = "12G")]
    device_size: String,
    /// Use this Flagstone binary instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Folder for the device. Default: below the build folder.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the results go. Default: docs/benchmarks, for a quick run below the build folder.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What each client does over and over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Create,
    Write,
    GetAttributes,
    Read,
}

const OPERATIONS: [(Operation, &str, &str); 4] = [
    (
        Operation::Create,
        "create",
        "CREATE, then 4 KiB as one WRITE with FILE_SYNC; each client in a directory of its own",
    ),
    (
        Operation::Write,
        "write",
        "4 KiB at a random place of a large file, FILE_SYNC",
    ),
    (
        Operation::GetAttributes,
        "getattr",
        "GETATTR of one of 2,000 files",
    ),
    (
        Operation::Read,
        "read",
        "4 KiB at a random place of a large file, from the device",
    ),
];

/// One operation with some number of clients, in one round.
struct Taken {
    operation: Operation,
    clients: u32,
    rate: f64,
    server_cores: f64,
}

/// The curve through what was measured.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Fit {
    /// Operations per second of each client, if there are few.
    linear: f64,
    /// Operations per second of all together, if there are many.
    most: f64,
    /// The middle deviation (root mean square) of what was measured from the curve, as a part of it.
    error: f64,
}

impl Fit {
    /// With u = 1/l and v = 1/a the curve's relative deviation from a measured s is s (u/C + v) - 1, which is linear in
    /// both: the least squares of it have a solution in closed form.
    fn of(points: &[(f64, f64)]) -> Option<Fit> {
        let (mut xx, mut xy, mut yy, mut x, mut y) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (clients, rate) in points {
            let (p, q) = (rate / clients, *rate);
            xx += p * p;
            xy += p * q;
            yy += q * q;
            x += p;
            y += q;
        }
        let determinant = xx * yy - xy * xy;
        if points.len() < 3 || determinant.abs() < 1e-9 * xx * yy {
            return None;
        }
        let u = (x * yy - y * xy) / determinant;
        let v = (y * xx - x * xy) / determinant;
        let squares: f64 = points
            .iter()
            .map(|(clients, rate)| (rate * (u / clients + v) - 1.0).powi(2))
            .sum();
        Some(Fit {
            linear: 1.0 / u,
            most: 1.0 / v,
            error: (squares / points.len() as f64).sqrt(),
        })
    }

    fn at(self, clients: f64) -> f64 {
        1.0 / (1.0 / (self.linear * clients) + 1.0 / self.most)
    }

    /// Clients that get half of what many do.
    fn half(self) -> f64 {
        self.most / self.linear
    }
}

pub(in crate::bench) fn run(root: &Path, arguments: &CurveArguments) -> Result<()> {
    let work = repo::target_dir(root).join("bench-curve");
    let dir = arguments.dir.clone().unwrap_or_else(|| work.join("files"));
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let left = dir.join(servers::OWN);
    if left.exists() {
        fs::remove_dir_all(&left).with_context(|| format!("removing {}", left.display()))?;
    }
    let quick = arguments.quick;
    let seconds = arguments.seconds.unwrap_or(if quick { 0.3 } else { 1.0 });
    let rounds = arguments.rounds.unwrap_or(if quick { 1 } else { 3 });
    let large_bytes = arguments
        .size
        .unwrap_or(if quick { 256 << 20 } else { 2 << 30 });
    ensure!(
        rounds > 0 && seconds > 0.0 && arguments.clients >= 3,
        "rounds and seconds must be positive, and a curve takes at least three numbers of clients"
    );
    ensure!(
        large_bytes > 0 && large_bytes.is_multiple_of(MEGABYTE),
        "the large file's size must be of whole MiB"
    );
    let setting = Setting::read(root, &dir, &[])?;
    let own = Own {
        binary: match &arguments.binary {
            Some(binary) => binary.clone(),
            None => daemon::build(root)?,
        },
        device_size: arguments.device_size.clone(),
        arguments: vec!["--block-cache".to_owned(), "0".to_owned()],
        environment: Vec::new(),
    };
    let mut server = servers::own(servers::OWN, own, &dir)?;
    server.fill(large_bytes)?;
    let limit = Duration::from_secs_f64(seconds);
    let taken = measure(&mut server, arguments.clients, rounds, large_bytes, limit)?;
    server.stop()?;
    fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    let report = Report {
        setting,
        taken,
        clients: arguments.clients,
        rounds,
        seconds,
        large_bytes,
        command: command_line(),
    };
    let default_out = match quick {
        true => work,
        false => root.join("docs/benchmarks"),
    };
    let page = report.write(&arguments.out.clone().unwrap_or(default_out))?;
    println!("results: {}", page.display());
    Ok(())
}

fn measure(
    server: &mut Server,
    clients_max: u32,
    rounds: u32,
    large_bytes: u64,
    limit: Duration,
) -> Result<Vec<Taken>> {
    let mut looked_at = new_directory(server)?;
    let mut connection = server.connect()?;
    connection.run(&mut Create::new(&mut looked_at, FILES), 16, None)?;
    let mut all = Vec::new();
    for round in 0..rounds {
        for (operation, name, _) in OPERATIONS {
            for clients in 1..=clients_max {
                let mut made = Vec::new();
                for _ in 0..clients {
                    made.push(match operation {
                        Operation::Create => new_directory(server)?,
                        _ => Made::default(),
                    });
                }
                let cpu = || server.pid().map_or(0.0, crate::process::tree_cpu_seconds);
                let before = cpu();
                let outcomes =
                    side_by_side(server, operation, &looked_at, made, large_bytes, limit)?;
                let rate: f64 = outcomes
                    .iter()
                    .map(|outcome| outcome.operations as f64 / outcome.seconds)
                    .sum();
                let server_cores = (cpu() - before) / limit.as_secs_f64();
                println!("round {round}  {name:<8} {clients:>3} clients {rate:>9.0}/s");
                all.push(Taken {
                    operation,
                    clients,
                    rate,
                    server_cores,
                });
            }
        }
    }
    Ok(all)
}

fn new_directory(server: &mut Server) -> Result<Made> {
    Ok(Made {
        directory: server.new_directory("curve")?,
        files: Vec::new(),
    })
}

/// Each client in a thread, all from one moment on.
fn side_by_side(
    server: &Server,
    operation: Operation,
    looked_at: &Made,
    made: Vec<Made>,
    large_bytes: u64,
    limit: Duration,
) -> Result<Vec<Outcome>> {
    let start = Barrier::new(made.len());
    let large: &Handle = &server.large;
    let client = |number: usize, mut made: Made| -> Result<Outcome> {
        let connected = server.connect();
        start.wait();
        let mut connection = connected?;
        let (seed, limit) = (number as u64 + 1, Some(limit));
        match operation {
            Operation::Create => connection.run(&mut Create::new(&mut made, FILES_MAX), 1, limit),
            Operation::GetAttributes => {
                let mut look = Look {
                    made: looked_at,
                    by_name: false,
                    random: Random::new(seed),
                };
                connection.run(&mut look, 1, limit)
            }
            Operation::Write | Operation::Read => {
                let kind = match operation {
                    Operation::Write => Kind::Writes,
                    _ => Kind::Reads,
                };
                let mut transfers = Transfers::random(large, large_bytes, kind, seed);
                connection.run(&mut transfers, 1, limit)
            }
        }
    };
    let client = &client;
    thread::scope(|scope| {
        let clients: Vec<_> = made
            .into_iter()
            .enumerate()
            .map(|(number, made)| scope.spawn(move || client(number, made)))
            .collect();
        let ended = clients.into_iter().map(|client| {
            client
                .join()
                .map_err(|_| anyhow!("a client's thread panicked"))?
        });
        ended.collect()
    })
}

/// A whole run.
struct Report {
    setting: Setting,
    taken: Vec<Taken>,
    clients: u32,
    rounds: u32,
    seconds: f64,
    large_bytes: u64,
    command: String,
}

impl Report {
    fn spread(
        &self,
        operation: Operation,
        clients: u32,
        figure: fn(&Taken) -> f64,
    ) -> Option<Spread> {
        let taken = self
            .taken
            .iter()
            .filter(|each| each.operation == operation && each.clients == clients);
        Spread::of(taken.map(figure).collect())
    }

    /// Medians by the number of clients.
    fn points(&self, operation: Operation) -> Vec<(f64, f64)> {
        let each = (1..=self.clients).filter_map(|clients| {
            let spread = self.spread(operation, clients, |taken| taken.rate)?;
            Some((f64::from(clients), spread.median))
        });
        each.collect()
    }

    /// Writes the three files and returns the path of the Markdown one.
    fn write(&self, into: &Path) -> Result<PathBuf> {
        fs::create_dir_all(into).with_context(|| format!("creating {}", into.display()))?;
        let stem = format!("curve-{}-{}", self.setting.date, self.setting.commit);
        let picture = format!("{stem}.svg");
        let put = |name: &str, text: &str| {
            let path = into.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
        };
        put(&format!("{stem}.json"), &self.json()?)?;
        put(&picture, &self.picture())?;
        put(&format!("{stem}.md"), &self.markdown(&picture))?;
        Ok(into.join(format!("{stem}.md")))
    }

    fn json(&self) -> Result<String> {
        let name = |operation| {
            let found = OPERATIONS.iter().find(|each| each.0 == operation);
            found.map_or("", |each| each.1)
        };
        let taken = self.taken.iter().map(|each| {
            json!({ "operation": name(each.operation), "clients": each.clients, "rate": each.rate,
                "server_cores": each.server_cores })
        });
        let fits = OPERATIONS.iter().filter_map(|(operation, name, _)| {
            let fit = Fit::of(&self.points(*operation))?;
            Some(json!({ "operation": name, "l": fit.linear, "a": fit.most, "error": fit.error }))
        });
        let value = json!({
            "setting": self.setting.to_json(), "command": self.command, "rounds": self.rounds,
            "seconds": self.seconds, "large_bytes": self.large_bytes,
            "fits": fits.collect::<Vec<Value>>(), "samples": taken.collect::<Vec<Value>>(),
        });
        let mut text = serde_json::to_string_pretty(&value).context("writing JSON")?;
        text.push('\n');
        Ok(text)
    }

    fn picture(&self) -> String {
        let dots = OPERATIONS.iter().map(|(operation, name, _)| {
            let points = self.points(*operation);
            let fit = Fit::of(&points);
            Dots {
                title: name,
                points,
                curve: fit.map(|fit| Curve {
                    at: Box::new(move |clients| fit.at(clients)),
                    linear: fit.linear,
                    most: fit.most,
                }),
            }
        });
        let caption = format!(
            "Operations per second by the number of clients, {} at {}: measured (dots) and fitted",
            self.setting.date, self.setting.commit
        );
        plot::dots(&caption, &dots.collect::<Vec<_>>())
    }

    /// The whole page. Writing to a string can't fail, so results of `writeln!` are dropped.
    fn markdown(&self, picture: &str) -> String {
        let mut page = String::new();
        let setting = &self.setting;
        let _ = writeln!(
            page,
            "# The speed-up curve, {} at {}\n\n`{}`\n",
            setting.date, setting.commit, self.command
        );
        let _ = writeln!(
            page,
            "Operations per second of all clients together. Each client has a connection and a thread of its own, and one \
             operation in flight; median over {} round(s) of {} s. The node has one core and no cache of blocks; the large file \
             has {} MiB. Clients and node share the machine, so with many clients its processors are part of the limit.\n",
            self.rounds,
            self.seconds,
            self.large_bytes >> 20
        );
        for (name, value) in &setting.facts {
            let _ = writeln!(page, "- {name}: {value}");
        }
        let _ = writeln!(page, "\n![curves]({picture})\n");
        let _ = writeln!(
            page,
            "## Fitted\n\nOracle FSS' simple speed-up curve, S(C) = 1 / (1/(l C) + 1/a). l: operations per second of each \
             client, if there are few. a: of all together, if there are many. Half: the number of clients that get half of a. \
             Deviation: of what was measured from the curve, root mean square.\n"
        );
        table_head(&mut page, &["operation", "l", "a", "half", "deviation"]);
        for (operation, name, _) in OPERATIONS {
            let Some(fit) = Fit::of(&self.points(operation)) else {
                let _ = writeln!(page, "| {name} | - | - | - | - |");
                continue;
            };
            let _ = writeln!(
                page,
                "| {name} | {} | {} | {:.1} | {:.1} % |",
                thousands(fit.linear),
                thousands(fit.most),
                fit.half(),
                fit.error * 100.0
            );
        }
        let _ = writeln!(
            page,
            "\n## Measured\n\nOperations per second, and in brackets the server's cores.\n"
        );
        let names: Vec<&str> = OPERATIONS.iter().map(|each| each.1).collect();
        table_head(&mut page, &[&["clients"], names.as_slice()].concat());
        for clients in 1..=self.clients {
            let cells = OPERATIONS.iter().map(|(operation, ..)| {
                let rate = self.spread(*operation, clients, |taken| taken.rate);
                let cores = self.spread(*operation, clients, |taken| taken.server_cores);
                rate.zip(cores).map_or("-".to_owned(), |(rate, cores)| {
                    format!("{} ({:.2})", thousands(rate.median), cores.median)
                })
            });
            let cells: Vec<String> = cells.collect();
            let _ = writeln!(page, "| {clients} | {} |", cells.join(" | "));
        }
        page.push('\n');
        for (_, name, about) in OPERATIONS {
            let _ = writeln!(page, "- {name}: {about}");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_found_again_from_its_own_points() {
        let given = Fit {
            linear: 520.0,
            most: 2980.0,
            error: 0.0,
        };
        let points: Vec<(f64, f64)> = (1..=12)
            .map(|clients| (f64::from(clients), given.at(f64::from(clients))))
            .collect();
        let found = Fit::of(&points).expect("there are enough");
        assert!((found.linear - 520.0).abs() < 1e-6 && (found.most - 2980.0).abs() < 1e-6);
        assert!(found.error < 1e-9);
        // Half is where half of the most is reached.
        assert!((given.at(given.half()) - 1490.0).abs() < 1e-6);
        assert_eq!(Fit::of(&points[..2]), None);
    }
}
