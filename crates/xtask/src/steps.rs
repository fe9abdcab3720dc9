//! Runs the steps of a check, one after another or some beside each other, times each, counts tests, and sums up.
//!
//! A failed step doesn't stop the later ones: one run then shows everything there is to mend. The
//! last line printed is always `N passed, N failed`, which is what CI reads; before the times, what failed is said
//! once more, since the output of a whole run may be longer than anybody keeps. Of steps beside each other every line
//! begins with the step's name, whichever of its processes wrote it and to which stream.

use std::any::Any;
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::Watchdog;
use crate::say::Say;

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
    /// Of one that failed: what it said last, and of each test binary that failed, why.
    said: Vec<String>,
}

/// What a step does that can run beside others. What it prints it prints by what it is given.
pub(crate) type Work<'a> = Box<dyn FnOnce(&Say) -> Result<Counts> + Send + 'a>;

impl Step {
    fn run(name: &str, say: &Say, work: impl FnOnce(&Say) -> Result<Counts>) -> Step {
        // Where its words begin: a headline, which has no step's name before it.
        println!("== {name}");
        let started = Instant::now();
        let say = &say.keeping();
        // A panic fails this step. It must not take those beside it along, nor the sum.
        let outcome = catch_unwind(AssertUnwindSafe(|| work(say)))
            .unwrap_or_else(|panic| bail!("panicked: {}", panic_message(&*panic)));
        let counts = outcome.unwrap_or_else(|error| {
            say.line(&format!("{name}: {error:#}"));
            Counts::one(false)
        });
        let step = Step {
            name: name.to_owned(),
            took: started.elapsed(),
            used: None,
            counts,
            said: match counts.failed {
                0 => Vec::new(),
                _ => say.kept(),
            },
        };
        if say.is_beside_others() {
            let seconds = step.took.as_secs_f64();
            let how = step.state();
            say.line(&format!("over after {seconds:.1} s: {how}"));
        }
        step
    }

    fn state(&self) -> &'static str {
        match self.counts.failed {
            0 => "ok",
            _ => "FAILED",
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with no message")
}

/// The steps run so far.
pub(crate) struct Steps {
    done: Vec<Step>,
    started: Instant,
    say: Say,
    /// Said in the end.
    remarks: Vec<String>,
    /// Whether others run beside those that are run here.
    has_company: bool,
}

impl Steps {
    pub(crate) fn new() -> Steps {
        Steps::saying(Say::plain())
    }

    fn saying(say: Say) -> Steps {
        Steps {
            done: Vec::new(),
            started: Instant::now(),
            say,
            remarks: Vec::new(),
            has_company: false,
        }
    }

    /// Runs `work` as a step. An error is printed and counts as one failure.
    pub(crate) fn run(&mut self, name: &str, work: impl FnOnce(&Say) -> Result<Counts>) {
        if self.has_company {
            let say = self.say.named(name);
            self.done.push(Step::run(name, &say, work));
            return;
        }
        let used = used_by_children();
        let mut step = Step::run(name, &self.say, work);
        step.used = Some(used_by_children().saturating_sub(used));
        self.done.push(step);
    }

    /// Runs steps beside each other, so many at once, begun in this order.
    pub(crate) fn run_together(&mut self, at_once: usize, works: Vec<(&str, Work<'_>)>) {
        self.done.extend(together(at_once, works, &self.say));
    }

    /// Runs such steps beside all those that `rest` runs, and waits for both.
    pub(crate) fn run_beside(
        &mut self,
        at_once: usize,
        works: Vec<(&str, Work<'_>)>,
        rest: impl FnOnce(&mut Steps),
    ) {
        let say = self.say.clone();
        let had_company = std::mem::replace(&mut self.has_company, true);
        let others = thread::scope(|scope| {
            let others = scope.spawn(|| together(at_once, works, &say));
            rest(self);
            others.join()
        });
        self.has_company = had_company;
        match others {
            Ok(others) => self.done.extend(others),
            Err(_) => self.run("steps beside others", |_| bail!("panicked")),
        }
    }

    /// Runs a command as a step that passes if the command succeeds within `limit`.
    pub(crate) fn run_command(&mut self, name: &str, command: Command, limit: Duration) {
        self.run(name, |say| {
            run_limited(command, limit, say, |_| ()).map(Counts::one)
        });
    }

    /// Runs `cargo test` or anything else with the standard test harness's output.
    pub(crate) fn run_tests(&mut self, name: &str, command: Command, limit: Duration) {
        let mut failures = Failures::default();
        self.run(name, |say| {
            let mut counts = Counts::default();
            let ok = run_limited(command, limit, say, |line| {
                failures.see(line);
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
        if let Some(step) = self.done.last_mut()
            && !failures.lines.is_empty()
        {
            step.said = failures.lines;
        }
    }

    /// Something to be said with the times.
    pub(crate) fn remark(&mut self, remark: String) {
        self.remarks.push(remark);
    }

    /// Prints what failed, the times and the final line; false if anything failed.
    pub(crate) fn finish(self) -> bool {
        for step in self.done.iter().filter(|step| step.counts.failed > 0) {
            println!("== {} failed; it said:", step.name);
            println!("{}", step.said.join("\n"));
        }
        println!();
        let mut total = Counts::default();
        for step in &self.done {
            let used = step.used.map_or_else(
                || "-".to_owned(),
                |used| format!("{:.1}", used.as_secs_f64()),
            );
            println!(
                "{:>8.1} s  {used:>8} s cpu  {:<6}  {:>5} passed  {:>3} failed  {}",
                step.took.as_secs_f64(),
                step.state(),
                step.counts.passed,
                step.counts.failed,
                step.name
            );
            total.add(step.counts);
        }
        self.remarks.iter().for_each(|remark| println!("{remark}"));
        println!("{:>8.1} s  in all", self.started.elapsed().as_secs_f64());
        println!("{} passed, {} failed", total.passed, total.failed);
        total.failed == 0
    }
}

/// Runs steps, so many at once, begun in this order. Gives them in the order in which they were over.
fn together(at_once: usize, works: Vec<(&str, Work<'_>)>, say: &Say) -> Vec<Step> {
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
                    let step = Step::run(name, &say.named(name), work);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push(step);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
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

/// Runs a command, echoes its standard output by `say`, and hands each line to `see`. Kills the command
/// with all its children when it takes longer than `limit`. True if it succeeded.
///
/// What it writes to its error stream goes where ours does; of a step beside others it is echoed as well.
pub(crate) fn run_limited(
    command: Command,
    limit: Duration,
    say: &Say,
    mut see: impl FnMut(&str),
) -> Result<bool> {
    let errors = say.is_beside_others().then_some(say);
    read_both(command, limit, errors, |line| {
        say.line(line);
        see(line);
    })
}

/// The same without an echo.
pub(crate) fn read_limited(
    command: Command,
    limit: Duration,
    see: impl FnMut(&str),
) -> Result<bool> {
    read_both(command, limit, None, see)
}

fn read_both(
    mut command: Command,
    limit: Duration,
    errors: Option<&Say>,
    see: impl FnMut(&str),
) -> Result<bool> {
    let shown = format!("{command:?}");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    if errors.is_some() {
        command.stderr(Stdio::piped());
    }
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {shown}"))?;
    let stdout = child.stdout.take();
    let stdout = stdout.context("the child's output was asked for above")?;
    let stderr = child.stderr.take();

    let watchdog = Watchdog::start(child.id(), limit);
    let read = thread::scope(|scope| {
        // By a thread of its own: a child waits when nobody takes what it writes to either. And not through the same
        // pipe, where a line of one may end up inside a line of the other.
        let errors = errors
            .zip(stderr)
            .map(|(say, stderr)| scope.spawn(move || for_each_line(stderr, |line| say.line(line))));
        let read = for_each_line(stdout, see);
        match errors.map(|errors| errors.join()) {
            Some(Ok(also)) => read.and(also),
            Some(Err(_)) => Err(io::Error::other("the reader panicked")),
            None => read,
        }
    });
    read.with_context(|| format!("reading the output of {shown}"))?;
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

fn for_each_line(from: impl Read, mut see: impl FnMut(&str)) -> io::Result<()> {
    for line in BufReader::new(from).split(b'\n') {
        see(&String::from_utf8_lossy(&line?));
    }
    Ok(())
}

/// What the standard test harness says of tests that failed: for each binary what stands between `failures:` and its
/// `test result:`, which is what each of them printed, and their names.
#[derive(Default)]
struct Failures {
    lines: Vec<String>,
    /// How many more lines are kept of this binary; `None` outside of such a part.
    left: Option<usize>,
}

impl Failures {
    /// Of one binary. A test that prints thousands of lines must not hide the next one.
    const LINES_MAX: usize = 120;

    fn see(&mut self, line: &str) {
        if parse_test_result(line).is_some() {
            self.left = None;
            return;
        }
        if line == "failures:" && self.left.is_none() {
            self.left = Some(Self::LINES_MAX);
            return;
        }
        let Some(left) = &mut self.left else {
            return;
        };
        if *left > 0 {
            *left -= 1;
            self.lines.push(line.to_owned());
        }
    }
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
    use crate::say::Heard;

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
        let say = Say::plain();
        assert!(run_limited(command, Duration::from_secs(60), &say, |_| ()).expect("is run"));
        assert!(used_by_children() > before, "some 100 ms");
    }

    #[test]
    fn a_step_that_fails_fails_the_whole() {
        let mut steps = Steps::new();
        steps.run("good", |_| Ok(Counts::one(true)));
        steps.run("bad", |_| bail!("broken"));
        steps.run("later", |_| Ok(Counts::one(true)));
        assert_eq!(steps.done.len(), 3);
        assert!(!steps.finish());
    }

    #[test]
    fn steps_run_together_are_all_run_two_at_a_time() {
        let mut steps = Steps::new();
        // Neither of the first two ends before the other has begun.
        let both = std::sync::Barrier::new(2);
        let meet = |_: &Say| {
            both.wait();
            Ok(Counts::one(true))
        };
        let works: Vec<(&str, Work<'_>)> = vec![
            ("one", Box::new(meet)),
            ("two", Box::new(meet)),
            ("bad", Box::new(|_| bail!("broken"))),
            ("last", Box::new(|_| Ok(Counts::one(true)))),
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
        let error = run_limited(command, Duration::from_millis(50), &Say::plain(), |_| ())
            .expect_err("too slow");
        assert!(format!("{error}").contains("took longer"));
    }

    /// A step that runs a shell command, which may take a second.
    fn shell(script: &'static str) -> Work<'static> {
        Box::new(move |say| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run_limited(command, Duration::from_secs(1), say, |_| ()).map(Counts::one)
        })
    }

    fn lines_of(heard: &Heard, name: &str) -> Vec<String> {
        let start = format!("[{name}] ");
        let heard = heard.lock().expect("nobody panicked");
        let lines = heard.iter().filter_map(|line| line.strip_prefix(&start));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn steps_beside_each_other_say_on_every_line_who_they_are_and_why_they_failed() {
        let heard = Heard::default();
        let mut steps = Steps::saying(Say::heard(&heard));
        let works = vec![
            ("good", shell("echo a; echo b >&2")),
            ("bad", shell("echo wrong: 7 >&2; exit 3")),
            ("hangs", shell("echo begun; sleep 60; true")),
            (
                "panics",
                Box::new(|_: &Say| -> Result<Counts> { panic!("a bug of the step") }),
            ),
            ("last", shell("echo c")),
        ];
        let began = Instant::now();
        steps.run_together(2, works);
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "the limit is one second"
        );

        let failed = |name: &str| {
            let step = steps.done.iter().find(|step| step.name == name);
            step.expect("was run").counts.failed
        };
        let names = ["good", "bad", "hangs", "panics", "last"];
        assert_eq!(names.map(failed), [0, 1, 1, 1, 0]);

        // Of two streams either may be read first.
        let mut good = lines_of(&heard, "good");
        good[..2].sort();
        assert_eq!(good[..2], ["a", "b"]);
        assert!(good[2].starts_with("over after ") && good[2].ends_with(": ok"));
        let bad = lines_of(&heard, "bad");
        assert_eq!(bad[0], "wrong: 7");
        assert!(bad[1].ends_with(": FAILED"), "{bad:?}");
        let hangs = lines_of(&heard, "hangs");
        assert_eq!(hangs[0], "begun");
        // The shell may have said so as well.
        let is_told = hangs[1..]
            .iter()
            .any(|line| line.contains("took longer than 1 s"));
        assert!(is_told, "{hangs:?}");
        let panics = lines_of(&heard, "panics");
        assert_eq!(panics[0], "panics: panicked: a bug of the step");
        let all = heard.lock().expect("nobody panicked").len();
        let told = names.map(|name| lines_of(&heard, name).len());
        assert_eq!(all, told.iter().sum::<usize>(), "each line is somebody's");
    }

    #[test]
    fn steps_run_beside_others_until_both_are_over() {
        let heard = Heard::default();
        let mut steps = Steps::saying(Say::heard(&heard));
        let both = std::sync::Barrier::new(2);
        let other: Work<'_> = Box::new(|say| {
            say.line("here");
            both.wait();
            Ok(Counts::one(true))
        });
        steps.run_beside(1, vec![("other", other)], |steps| {
            steps.run("first", |say| {
                both.wait();
                say.line("met");
                bail!("broken")
            });
            let mut command = Command::new("sh");
            command.args(["-c", "echo 'test result: ok. 2 passed; 0 failed;'"]);
            steps.run_tests("tests", command, Duration::from_secs(10));
        });
        steps.run("alone", |say| {
            say.line("by myself");
            Ok(Counts::one(true))
        });
        assert_eq!(lines_of(&heard, "other")[0], "here");
        assert_eq!(lines_of(&heard, "first")[..2], ["met", "first: broken"]);
        assert!(
            heard
                .lock()
                .expect("nobody panicked")
                .contains(&"by myself".to_owned())
        );
        let used = |name: &str| {
            let step = steps.done.iter().find(|step| step.name == name);
            step.expect("was run").used
        };
        assert!(
            ["other", "first", "tests"]
                .map(used)
                .iter()
                .all(Option::is_none)
        );
        assert!(used("alone").is_some());
        let mut total = Counts::default();
        steps.done.iter().for_each(|step| total.add(step.counts));
        assert_eq!((total.passed, total.failed), (4, 1));
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

    #[test]
    fn why_tests_failed_is_kept_of_each_binary_and_not_without_end() {
        let mut failures = Failures::default();
        let see = |failures: &mut Failures, text: &str| {
            text.lines().for_each(|line| failures.see(line));
        };
        see(
            &mut failures,
            "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n---- b stdout ----\nb panicked\nfailures:\n    b\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored;\nrunning 1 test",
        );
        assert_eq!(
            failures.lines,
            ["---- b stdout ----", "b panicked", "failures:", "    b"]
        );
        see(&mut failures, "failures:");
        (0..1000).for_each(|_| failures.see("much"));
        see(&mut failures, "test result: FAILED. 1 passed; 1 failed;");
        see(&mut failures, "failures:\nlast");
        assert_eq!(failures.lines.len(), 4 + Failures::LINES_MAX + 1);
        assert_eq!(failures.lines.last().map(String::as_str), Some("last"));
    }

    #[test]
    fn a_step_keeps_what_it_said_only_if_it_failed() {
        let mut steps = Steps::saying(Say::heard(&Heard::default()));
        steps.run_together(
            1,
            vec![
                ("good", shell("echo fine")),
                ("bad", shell("echo wrong; exit 3")),
            ],
        );
        let tests = "echo failures:; echo why; echo 'test result: FAILED. 2 passed; 1 failed;'; echo more; exit 1";
        let mut command = Command::new("sh");
        command.args(["-c", tests]);
        steps.run_tests("tests", command, Duration::from_secs(10));
        let said: Vec<&[String]> = steps.done.iter().map(|step| &step.said[..]).collect();
        assert!(said[0].is_empty());
        assert_eq!(said[1], ["wrong"]);
        assert_eq!(said[2], ["why"]);
    }
}
