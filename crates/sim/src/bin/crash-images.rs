//! Recovers and judges crash images of a recorded run:
//! `crash-images --base FILE --record FILE --log FILE [--images N] [--seed S] [--lie LIE]`.
//!
//! Prints what it met and, if an image is not as it must be, what is wrong with it; then the exit
//! code is 1. With a lie (`no-flush`, `early-answer`) something is made untrue on purpose.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use flagstone_sim::DiskImage;
use flagstone_sim::record::{IoEvent, RecordReader};
use flagstone_sim::recorded::{ClientLog, Lie, Plan, Progress, Seen, check_image, walk};

/// Images that wait to be looked at.
const WAITING_MAX: usize = 8;
/// One image in so many is looked at closely.
const DEEP_EVERY: u64 = 4;
/// Failures that are printed.
const FAILURES_MAX: usize = 3;

struct Words {
    base: PathBuf,
    record: PathBuf,
    log: PathBuf,
    images: u64,
    seed: u64,
    lie: Option<Lie>,
}

/// An image and what must be in it.
struct Job {
    number: u64,
    image: DiskImage,
    event: usize,
    seed: u64,
    progress: Progress,
}

/// What the threads share.
struct Check {
    size_bytes: u64,
    log: Arc<ClientLog>,
    seen: Seen,
    checked: AtomicU64,
    failed: AtomicBool,
    failures: Mutex<Vec<String>>,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)).and_then(|words| run(&words)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Words, String> {
    let mut parsed = Words {
        base: PathBuf::new(),
        record: PathBuf::new(),
        log: PathBuf::new(),
        images: 2_000,
        seed: 1,
        lie: None,
    };
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("{word} wants a value"))?;
        let number = || value.parse().map_err(|_| format!("{value} is no number"));
        match word.as_str() {
            "--base" => parsed.base = value.into(),
            "--record" => parsed.record = value.into(),
            "--log" => parsed.log = value.into(),
            "--images" => parsed.images = number()?,
            "--seed" => parsed.seed = number()?,
            "--lie" if value == "no-flush" => parsed.lie = Some(Lie::NoFlush),
            "--lie" if value == "early-answer" => parsed.lie = Some(Lie::EarlyAnswer),
            _ => return Err(format!("what is {word} {value}?")),
        }
    }
    Ok(parsed)
}

/// True if all images are as they must be.
fn run(words: &Words) -> Result<bool, String> {
    let reading = |path: &PathBuf, error: &dyn std::fmt::Display| {
        format!("reading {}: {error}", path.display())
    };
    let text = fs::read_to_string(&words.log).map_err(|e| reading(&words.log, &e))?;
    let log = Arc::new(ClientLog::parse(&text)?);
    let mut file = File::open(&words.base).map_err(|e| reading(&words.base, &e))?;
    let size_bytes = file.metadata().map_err(|e| reading(&words.base, &e))?.len();
    let base = DiskImage::load(&mut file).map_err(|e| reading(&words.base, &e))?;
    let record = File::open(&words.record).map_err(|e| reading(&words.record, &e))?;
    let events: Result<Vec<IoEvent>, _> = RecordReader::new(record).map(thin).collect();
    let events = events.map_err(|e| reading(&words.record, &e))?;
    let check = Check {
        size_bytes,
        log,
        seen: Seen::default(),
        checked: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        failures: Mutex::default(),
    };
    let walked = check_all(words, base, &events, &check);
    let failures = check.failures.lock();
    let failures = failures.unwrap_or_else(PoisonError::into_inner);
    for failure in failures.iter().take(FAILURES_MAX) {
        println!("{failure}");
    }
    let outcome = match walked {
        Ok(outcome) => outcome,
        Err(what) => {
            println!("{what}");
            return Ok(false);
        }
    };
    println!(
        "{} events, {} writes and {} flushes of the runtime; {} answers; {} snapshots, {} of them \
         met; {} images, {} at flushes, {} at random moments; {} wrong",
        outcome.events,
        outcome.writes,
        outcome.flushes,
        outcome.answered,
        outcome.snapshots,
        check.seen.snapshot_count(),
        check.checked.load(Ordering::Relaxed),
        outcome.boundary_images,
        outcome.random_images,
        failures.len()
    );
    Ok(failures.is_empty())
}

/// A write of nothing but zeros as a discard that reads as zeros: what a new segment is filled
/// with, and nothing that takes memory.
fn thin<E>(event: Result<IoEvent, E>) -> Result<IoEvent, E> {
    event.map(|event| match event {
        IoEvent::WriteSubmitted {
            id,
            offset_bytes,
            bytes,
        } if bytes.iter().all(|byte| *byte == 0) => IoEvent::DiscardSubmitted {
            id,
            offset_bytes,
            len_bytes: bytes.len() as u64,
        },
        event => event,
    })
}

fn check_all(
    words: &Words,
    base: DiskImage,
    events: &[IoEvent],
    check: &Check,
) -> Result<flagstone_sim::recorded::Outcome, String> {
    let plan = Plan {
        seed: words.seed,
        random_images: words.images / 3,
        boundary_images_max: words.images - words.images / 3,
        lie: words.lie,
    };
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let receiver = Mutex::new(receiver);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(&receiver, check));
        }
        let walked = feed(base, events, plan, check, &sender);
        drop(sender);
        walked
    })
}

fn feed(
    base: DiskImage,
    events: &[IoEvent],
    plan: Plan,
    check: &Check,
    sender: &SyncSender<Job>,
) -> Result<flagstone_sim::recorded::Outcome, String> {
    let mut number = 0;
    walk(
        base,
        events,
        &check.log,
        plan,
        |image, event, seed, progress| {
            number += 1;
            let job = Job {
                number,
                image,
                event,
                seed,
                progress: progress.clone(),
            };
            sender.send(job).is_ok() && !check.failed.load(Ordering::Relaxed)
        },
    )
}

fn work(receiver: &Mutex<Receiver<Job>>, check: &Check) {
    loop {
        let next = receiver
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok(job) = next else { return };
        let deep = job.number.is_multiple_of(DEEP_EVERY);
        let judged = std::panic::catch_unwind(|| {
            check_image(
                &job.image,
                check.size_bytes,
                job.seed,
                &job.progress,
                &check.log,
                &check.seen,
                deep,
            )
        });
        let judged = judged.unwrap_or_else(|_| Err("a panic, see above".to_owned()));
        check.checked.fetch_add(1, Ordering::Relaxed);
        if let Err(what) = judged {
            check.failed.store(true, Ordering::Relaxed);
            let failures = check.failures.lock();
            failures
                .unwrap_or_else(PoisonError::into_inner)
                .push(format!(
                    "image {} before event {}: {what}",
                    job.number, job.event
                ));
        }
    }
}
