//! Runs the steps of a check one after another, times each, counts tests, and sums up.
//!
//! A failed step doesn't stop the later ones: one run then shows everything there is to mend. The
//! last line printed is always `N passed, N failed`, which is what CI reads.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::Watchdog;

/// Passed and failed tests of one step. A step that isn't a test run counts as one test.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Counts {
    /// One test that went as `passed` says.
    pub(crate) fn one(passed: bool) -> Counts {
        Counts {
            passed: u64::from(passed),
            failed: u64::from(!passed),
        }
    }

    pub(crate) fn add(&mut self, more: Counts) {
        self.passed += more.passed;
        self.failed += more.failed;
    }
}

struct Step {
    name: String,
    took: Duration,
    /// Processor time of all that it started and waited for. Of steps that run beside others nobody knows it.
    used: Option<Duration>,
    counts: Counts,
}

/// What a step does that can run beside others.
pub(crate) type Work<'a> = Box<dyn FnOnce() -> Result<Counts> + Send + 'a>;

impl Step {
    fn run(name: &str, work: impl FnOnce() -> Result<Counts>) -> Step {
        println!("== {name}");
        let started = Instant::now();
        let counts = work().unwrap_or_else(|error| {
            println!("{name}: {error:#}");
            Counts {
                passed: 0,
                failed: 1,
            }
        });
        Step {
            name: name.to_owned(),
            took: started.elapsed(),
            used: None,
            counts,
        }
    }
}

/// The steps run so far.
pub(crate) struct Steps {
    done: Vec<Step>,
    started: Instant,
}

impl Steps {
    pub(crate) fn new() -> Steps {
        Steps {
            done: Vec::new(),
            started: Instant::now(),
        }
    }

    /// Runs `work` as a step. An error is printed and counts as one failure.
    pub(crate) fn run(&mut self, name: &str, work: impl FnOnce() -> Result<Counts>) {
        let used = used_by_children();
        let mut step = Step::run(name, work);
        step.used = Some(used_by_children().saturating_sub(used));
        self.done.push(step);
    }

    /// Runs steps of which each keeps one processor busy, so many at once, begun in this order. What they print may be
    /// mixed line by line.
    pub(crate) fn run_together(&mut self, at_once: usize, works: Vec<(&str, Work<'_>)>) {
        let waiting = Mutex::new(works.into_iter().collect::<VecDeque<_>>());
        let next = || {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.pop_front()
        };
        let done = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some((name, work)) = next() {
                        let step = Step::run(name, work);
                        println!("{name}: over after {:.1} s", step.took.as_secs_f64());
                        done.lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(step);
                    }
                });
            }
        });
        self.done
            .extend(done.into_inner().unwrap_or_else(PoisonError::into_inner));
    }

    /// Runs a command as a step that passes if the command succeeds within `limit`.
    pub(crate) fn run_command(&mut self, name: &str, command: Command, limit: Duration) {
        self.run(name, || {
            run_limited(command, limit, |_| ()).map(Counts::one)
        });
    }

    /// Runs `cargo test` or anything else with the standard test harness's output.
    pub(crate) fn run_tests(&mut self, name: &str, command: Command, limit: Duration) {
        self.run(name, || {
            let mut counts = Counts::default();
            let ok = run_limited(command, limit, |line| {
                if let Some(more) = parse_test_result(line) {
                    counts.add(more);
                }
            })?;
            // A build that fails or a harness that is killed prints no count of its own.
            if !ok && counts.failed == 0 {
                counts.failed = 1;
            }
            Ok(counts)
        });
    }

    /// Prints the times and the final line; false if anything failed.
    pub(crate) fn finish(self) -> bool {
        println!();
        let mut total = Counts::default();
        for step in &self.done {
            let state = if step.counts.failed == 0 {
                "ok"
            } else {
                "FAILED"
            };
            let used = step.used.map_or_else(
                || "-".to_owned(),
                |used| format!("{:.1}", used.as_secs_f64()),
            );
            println!(
                "{:>8.1} s  {used:>8} s cpu  {:<6}  {:>5} passed  {:>3} failed  {}",
                step.took.as_secs_f64(),
                state,
                step.counts.passed,
                step.counts.failed,
                step.name
            );
            total.add(step.counts);
        }
        println!("{:>8.1} s  in all", self.started.elapsed().as_secs_f64());
        println!("{} passed, {} failed", total.passed, total.failed);
        total.failed == 0
    }
}

/// Processor time of the processes that this one has started and waited for, with theirs; zero if the system doesn't say.
fn used_by_children() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let (user, system) = children_ticks(&stat).unwrap_or_default();
    // Linux counts a hundred ticks a second here, whatever the kernel's own are.
    Duration::from_millis((user + system) * 10)
}

/// The fields `cutime` and `cstime` of `/proc/PID/stat`. [proc_pid_stat(5)]
fn children_ticks(stat: &str) -> Option<(u64, u64)> {
    // The name before it may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(13);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Runs a command, echoes its standard output, and hands each line to `see`. Kills the command
/// with all its children when it takes longer than `limit`. True if it succeeded.
pub(crate) fn run_limited(
    command: Command,
    limit: Duration,
    mut see: impl FnMut(&str),
) -> Result<bool> {
    read_limited(command, limit, |line| {
        println!("{line}");
        see(line);
    })
}

/// The same without an echo.
pub(crate) fn read_limited(
    mut command: Command,
    limit: Duration,
    mut see: impl FnMut(&str),
) -> Result<bool> {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {shown}"))?;
    let stdout = child
        .stdout
        .take()
        .context("the child's output was asked for above")?;

    let watchdog = Watchdog::start(child.id(), limit);
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.with_context(|| format!("reading the output of {shown}"))?;
        see(&String::from_utf8_lossy(&line));
    }
    let status = child
        .wait()
        .with_context(|| format!("waiting for {shown}"))?;
    if watchdog.end() {
        bail!(
            "{shown} took longer than {} s and was killed",
            limit.as_secs()
        );
    }
    Ok(status.success())
}

/// Reads `test result: ok. 12 passed; 0 failed; 1 ignored; ...`.
fn parse_test_result(line: &str) -> Option<Counts> {
    let rest = line.trim().strip_prefix("test result: ")?;
    let number_before = |word: &str| -> Option<u64> {
        let end = rest.find(word)?;
        rest[..end]
            .trim_end()
            .rsplit([' ', '.'])
            .next()?
            .parse()
            .ok()
    };
    Some(Counts {
        passed: number_before(" passed")?,
        failed: number_before(" failed")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harness_totals_are_read() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(
            parse_test_result(line),
            Some(Counts {
                passed: 12,
                failed: 3
            })
        );
        assert_eq!(parse_test_result("test a::b ... ok"), None);
    }

    #[test]
    fn processor_time_of_children_is_read() {
        let stat = "77 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 340 56 20 0 1";
        assert_eq!(children_ticks(stat), Some((340, 56)));
        assert_eq!(children_ticks("77 (a) S 1 2"), None);
        let before = used_by_children();
        let mut command = Command::new("sh");
        command.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done"]);
        assert!(run_limited(command, Duration::from_secs(60), |_| ()).expect("is run"));
        assert!(used_by_children() > before, "some 100 ms");
    }

    #[test]
    fn a_step_that_fails_fails_the_whole() {
        let mut steps = Steps::new();
        steps.run("good", || Ok(Counts::one(true)));
        steps.run("bad", || bail!("broken"));
        steps.run("later", || Ok(Counts::one(true)));
        assert_eq!(steps.done.len(), 3);
        assert!(!steps.finish());
    }

    #[test]
    fn steps_run_together_are_all_run_two_at_a_time() {
        let mut steps = Steps::new();
        // Neither of the first two ends before the other has begun.
        let both = std::sync::Barrier::new(2);
        let meet = || {
            both.wait();
            Ok(Counts::one(true))
        };
        let works: Vec<(&str, Work<'_>)> = vec![
            ("one", Box::new(meet)),
            ("two", Box::new(meet)),
            ("bad", Box::new(|| bail!("broken"))),
            ("last", Box::new(|| Ok(Counts::one(true)))),
        ];
        steps.run_together(2, works);
        let mut names: Vec<&str> = steps.done.iter().map(|step| step.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["bad", "last", "one", "two"]);
        assert_eq!(
            steps
                .done
                .iter()
                .map(|step| step.counts.failed)
                .sum::<u64>(),
            1
        );
        assert!(!steps.finish());
    }

    #[test]
    fn a_command_over_its_limit_is_killed_and_reported() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60"]);
        let error = run_limited(command, Duration::from_millis(50), |_| ()).expect_err("too slow");
        assert!(format!("{error}").contains("took longer"));
    }

    #[test]
    fn a_test_run_that_dies_without_a_count_is_one_failure() {
        let mut steps = Steps::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test result: ok. 2 passed; 0 failed;'; exit 1"]);
        steps.run_tests("dies", command, Duration::from_secs(10));
        assert_eq!(
            steps.done[0].counts,
            Counts {
                passed: 2,
                failed: 1
            }
        );
    }
}
