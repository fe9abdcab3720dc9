//! SLOs of volumes and filesystems, and schedules of devices: who may have which, and what they are to the scheduler.
//!
//! A volume's SLO is in the [attributes](super::attributes) of its dvol, so it is created, cloned away and deleted
//! with it; a filesystem's is with its settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_fs::FilesystemId;
use flagstone_sched::price::Price;
use flagstone_sched::promise::{Admission, Totals, WHOLE_NS, admit};
use flagstone_sched::{Ceiling, Device as Divided, Kind, Limits, Policy, Prices, Settings};
use flagstone_types::{BLOCK_SIZE, DvolId};

use super::RealNode;
use super::attributes::{BANDWIDTH_MAX, RATE_MAX, VolumeAttributes};
use crate::node::{
    BACKGROUND_MAX_PERCENT, DeviceCeiling, DeviceInfo, NodeError, NodeErrorKind, Rates, Schedule,
    SchedulePolicy, Slo, SloLimit, SloPromise, VolumeInfo,
};

/// How long a request may be in a device whose ceiling doesn't say it.
const LATENCY_DEFAULT_NS: u64 = 1_000_000;

/// The smallest window, in reads of a block: fewer requests keep no device busy.
const WINDOW_LEAST: u64 = 16;

/// Who was promised something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Promised {
    Volume(DvolId),
    Filesystem(FilesystemId),
}

impl From<DvolId> for Promised {
    fn from(id: DvolId) -> Promised {
        Promised::Volume(id)
    }
}

impl From<FilesystemId> for Promised {
    fn from(id: FilesystemId) -> Promised {
        Promised::Filesystem(id)
    }
}

/// Floors that were promised, to whom, and on which device of the node.
pub(super) type Floors = BTreeMap<Promised, (usize, Rates)>;

/// What the scheduler knows it as.
pub(super) fn terms_of(slo: &Slo) -> (flagstone_sched::Slo, Limits) {
    let limit = slo.limit;
    let limits = Limits {
        reads: limit.reads,
        writes: limit.writes,
        bytes: limit.bytes,
    };
    (promise_of(slo.promise), limits)
}

fn promise_of(promise: SloPromise) -> flagstone_sched::Slo {
    match promise {
        SloPromise::Share(parts) => flagstone_sched::Slo::Share(parts),
        SloPromise::Floor(Rates { reads, writes }) => flagstone_sched::Slo::Floor { reads, writes },
    }
}

pub(super) fn settings_of(schedule: &Schedule) -> Settings {
    let ceiling = schedule.ceiling.map(|ceiling| {
        let DeviceCeiling {
            reads,
            writes,
            flushes,
            bytes,
            latency_us,
        } = ceiling;
        // Without a word about large requests they cost what their blocks do.
        let price = |ops: u64| {
            let bytes = if bytes > 0 {
                bytes
            } else {
                ops.saturating_mul(BLOCK_SIZE)
            };
            Price::of_rates(ops, bytes)
        };
        let prices = Prices {
            read: price(reads),
            write: price(writes),
            flush_ns: WHOLE_NS.checked_div(flushes).unwrap_or(0),
        };
        let latency_ns = match latency_us {
            0 => LATENCY_DEFAULT_NS,
            us => us.saturating_mul(1000),
        };
        let read_ns = prices.of(Kind::Read, 0, BLOCK_SIZE);
        Ceiling {
            prices,
            window_ns: latency_ns.max(read_ns.saturating_mul(WINDOW_LEAST)),
        }
    });
    let policy = match schedule.policy {
        SchedulePolicy::Deficit => Policy::Deficit,
        SchedulePolicy::Strict => Policy::Strict,
        SchedulePolicy::FirstCome => Policy::FirstCome,
    };
    Settings {
        ceiling,
        policy,
        background: u32::from(schedule.background_percent) * 10_000,
    }
}

/// What the cores share of each device.
pub(super) fn divide(schedules: &[Schedule], cores: usize) -> Vec<Arc<Divided>> {
    let divided = |schedule| Arc::new(Divided::new(settings_of(schedule), cores));
    schedules.iter().map(divided).collect()
}

fn check(slo: &Slo, doing: &str) -> Result<(), NodeError> {
    let found = match (slo.promise, slo.limit) {
        (SloPromise::Share(0), _) => "a share of no parts",
        (SloPromise::Floor(rates), _) if rates == Rates::default() => {
            "a floor that promises nothing"
        }
        (_, limit) if [limit.reads, limit.writes, limit.bytes].contains(&Some(0)) => {
            "a limit of 0, with which nothing would ever be done"
        }
        (promise, limit) => {
            check_most(promise, limit, doing)?;
            return check_limit(promise, limit, doing);
        }
    };
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
        .next("give a number above 0, or leave it out"))
}

/// Refuses a limit that keeps what is promised from being had.
fn check_limit(promise: SloPromise, limit: SloLimit, doing: &str) -> Result<(), NodeError> {
    match promise {
        SloPromise::Floor(rates) if limit.is_below(rates) => {
            let found = format!(
                "a limit ({limit}) below what is promised ({promise}; each takes {BLOCK_SIZE} bytes): the promise could never be had"
            );
            Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("give a higher limit (--limit) or a lower floor (--floor)"))
        }
        SloPromise::Floor(_) | SloPromise::Share(_) => Ok(()),
    }
}

/// Refuses numbers that can't be kept.
fn check_most(promise: SloPromise, limit: SloLimit, doing: &str) -> Result<(), NodeError> {
    let (reads, writes) = match promise {
        SloPromise::Floor(rates) => (rates.reads, rates.writes),
        SloPromise::Share(_) => (0, 0),
    };
    let rates = [
        reads,
        writes,
        limit.reads.unwrap_or(0),
        limit.writes.unwrap_or(0),
    ];
    if rates.iter().all(|rate| *rate <= RATE_MAX) && limit.bytes.unwrap_or(0) <= BANDWIDTH_MAX {
        return Ok(());
    }
    let found = format!(
        "a number that no device reaches; expected at most {RATE_MAX} requests and {BANDWIDTH_MAX} bytes a second"
    );
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
        .next("give a smaller number; to leave a limit out is to have none"))
}

/// Refuses a schedule that makes no sense.
fn check_schedule(schedule: &Schedule, doing: &str) -> Result<(), NodeError> {
    if schedule.background_percent > BACKGROUND_MAX_PERCENT {
        let found = format!(
            "{} % for the device's own work; expected at most {BACKGROUND_MAX_PERCENT}",
            schedule.background_percent
        );
        return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
            .next("give a smaller part; it takes what nobody else wants besides"));
    }
    match schedule.ceiling {
        Some(ceiling) if ceiling.reads == 0 || ceiling.writes == 0 => {
            let found = "a ceiling of no reads or no writes a second";
            Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("say how many reads and writes of 4 KiB a second it may be asked for"))
        }
        _ => Ok(()),
    }
}

impl RealNode {
    /// What somebody was promised who is gone can be promised to others. Nobody waits for that: behind a start the table is held until all
    /// filesystems are open, and whoever has deleted something is told so.
    pub(super) fn forget_floor(&self, who: Promised) {
        if let Ok(mut floors) = self.floors.try_lock() {
            floors.remove(&who);
            return;
        }
        let floors = self.floors.clone();
        tokio::spawn(async move { floors.lock().await.remove(&who) });
    }

    fn schedule_of(&self, device: usize) -> Schedule {
        let schedules = self
            .schedules
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        schedules.get(device).copied().unwrap_or_default()
    }

    /// Devices with a ceiling that isn't kept.
    pub(super) fn policy_notices(&self) -> Vec<String> {
        let devices = self.devices.iter().enumerate();
        let notices = devices.filter_map(|(index, device)| {
            let Schedule {
                ceiling, policy, ..
            } = self.schedule_of(index);
            let (_, warning) = (ceiling?, policy.warning()?);
            let name = &device.name;
            Some(format!(
                "the ceiling of device '{name}' is not kept: {warning} (`flagstone device schedule {name} --policy deficit` keeps it)"
            ))
        });
        notices.collect()
    }

    /// A device's schedule, and what part of what it can promise its floors claim.
    pub(super) async fn schedule_info(&self, device: usize) -> (Schedule, Option<f64>) {
        let schedule = self.schedule_of(device);
        let claimed = settings_of(&schedule).ceiling.map(|ceiling| async move {
            let floors = self.floors.lock().await;
            let totals = totals_of(&floors, device, None, &schedule);
            let claimed = totals.claimed_ns(&ceiling.prices);
            let nothing = flagstone_sched::Slo::Floor {
                reads: u64::MAX,
                writes: u64::MAX,
            };
            let others = Totals {
                background: totals.background,
                ..Totals::default()
            };
            let all = admit(&ceiling.prices, WHOLE_NS, others, nothing);
            let promisable = match all {
                Admission::TooMuch { left_ns, .. } => left_ns,
                Admission::Fits => WHOLE_NS,
            };
            claimed as f64 / promisable.max(1) as f64
        });
        match claimed {
            Some(claimed) => (schedule, Some(claimed.await)),
            None => (schedule, None),
        }
    }

    /// Refuses a promise that the device can't keep beside those it has made.
    pub(super) fn admit(
        &self,
        floors: &Floors,
        device: usize,
        of: Option<Promised>,
        slo: &Slo,
        oversubscribe: bool,
        doing: &str,
    ) -> Result<(), NodeError> {
        check(slo, doing)?;
        let SloPromise::Floor(_) = slo.promise else {
            return Ok(());
        };
        // What was promised before may stay, also beyond what the device can keep, or where it has lost its ceiling: then a limit can still be set.
        let before = of.and_then(|of| floors.get(&of));
        if let (Some((at, before)), SloPromise::Floor(asked)) = (before, slo.promise)
            && *at == device
            && asked.reads <= before.reads
            && asked.writes <= before.writes
        {
            return Ok(());
        }
        let name = &self.devices[device].name;
        let schedule = self.schedule_of(device);
        let Some(ceiling) = settings_of(&schedule).ceiling else {
            let found = format!("device '{name}' has no ceiling, so nothing of it can be promised");
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(
                "say what it may be asked for: `flagstone device schedule`, or `ceiling` in the configuration",
            ));
        };
        let others = totals_of(floors, device, of, &schedule);
        match admit(&ceiling.prices, WHOLE_NS, others, promise_of(slo.promise)) {
            Admission::Fits => Ok(()),
            Admission::TooMuch { .. } if oversubscribe => Ok(()),
            Admission::TooMuch {
                left_ns,
                claimed_ns,
            } => {
                let percent = |ns: u64| ns as f64 * 100.0 / WHOLE_NS as f64;
                let reads = left_ns / ceiling.prices.of(flagstone_sched::Kind::Read, 0, 1);
                let found = format!(
                    "that takes {:.1} % of device '{name}', and {:.1} % can still be promised, which is {reads} \
                     reads/s or less",
                    percent(claimed_ns),
                    percent(left_ns)
                );
                Err(NodeError::new(NodeErrorKind::NoSpace, doing, found).next(
                    "ask for less, change the floors of other volumes and filesystems, or confirm with --oversubscribe that all floors \
                     shrink together when they are all claimed at once",
                ))
            }
        }
    }

    pub(super) async fn change_slo(
        &self,
        name: String,
        slo: Slo,
        oversubscribe: bool,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("changing the SLO of volume '{name}'");
        let target = self.target_to_change(&name, &doing)?;
        let place = target.place;
        let device = self.device_of(place.engine);
        // Held until it is done: two who ask at the same time can't both get what is left.
        let mut floors = self.floors.lock().await;
        self.admit(
            &floors,
            device,
            Some(place.id.into()),
            &slo,
            oversubscribe,
            &doing,
        )?;
        self.on_volume(&target, &doing, move |core, dvol| async move {
            let engine = core
                .engine(place.engine)
                .ok_or(flagstone_device::engine::DvolError::NotFound)?;
            // Nobody else changes the others meanwhile.
            let settings = core.sizing(dvol.id);
            let _turn = settings.take(1).await;
            core.check_settled(dvol.id)?;
            let attributes = VolumeAttributes {
                slo,
                ..VolumeAttributes::decode(&engine.attributes_of(dvol)?)
            };
            engine.set_attributes(dvol, attributes.encode()).await?;
            match core.names.stripe_of(dvol.id) {
                Some(stripe) => core.divide_slo(&stripe, slo).await,
                None => core.set_slo(dvol.id, &slo),
            }
            Ok(())
        })
        .await?;
        note_floor(&mut floors, place.id, device, &slo);
        drop(floors);
        let mut info = self.show(&name).await?;
        if info.slo_warning.is_none() && matches!(slo.promise, SloPromise::Floor(_)) {
            let (_, promised) = self.schedule_info(device).await;
            info.slo_warning = promised.filter(|part| *part > 1.0).map(|part| {
                format!(
                    "all floors of device '{}' together claim {:.1} % of what it can promise: when they are claimed at once, all get less",
                    self.devices[device].name,
                    part * 100.0
                )
            });
        }
        Ok(info)
    }

    /// Why a device doesn't keep a floor that was promised, if it keeps none.
    pub(super) fn why_no_floor(&self, device: usize, promise: SloPromise) -> Option<String> {
        let SloPromise::Floor(_) = promise else {
            return None;
        };
        let Schedule {
            ceiling, policy, ..
        } = self.schedule_of(device);
        let name = &self.devices[device].name;
        match (ceiling, policy.warning()) {
            (None, _) => Some(format!(
                "its floor is not kept: device '{name}' has no ceiling (`flagstone device schedule {name} --ceiling RATES` gives it one, `ceiling` in the \
                 configuration for good)"
            )),
            (Some(_), Some(warning)) => Some(format!("its floor is not kept: {warning}")),
            (Some(_), None) => None,
        }
    }

    pub(super) async fn change_schedule(
        &self,
        device: String,
        schedule: Schedule,
    ) -> Result<DeviceInfo, NodeError> {
        let doing = format!("changing the schedule of device '{device}'");
        let index = self.device_index(&device, &doing)?;
        check_schedule(&schedule, &doing)?;
        {
            let mut schedules = self
                .schedules
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            schedules[index] = schedule;
            self.divided[index].set(settings_of(&schedule));
        }
        self.device_info(index).await
    }
}

/// Notes what a volume or filesystem was promised now.
pub(super) fn note_floor(floors: &mut Floors, of: impl Into<Promised>, device: usize, slo: &Slo) {
    let of = of.into();
    match slo.promise {
        SloPromise::Floor(rates) => floors.insert(of, (device, rates)),
        SloPromise::Share(_) => floors.remove(&of),
    };
}

/// All floors of a device, but for that of one, and what its own work is promised.
fn totals_of(floors: &Floors, device: usize, but: Option<Promised>, schedule: &Schedule) -> Totals {
    let others = floors
        .iter()
        .filter(|(id, (of, _))| *of == device && Some(**id) != but);
    let others = others.map(|(_, (_, rates))| promise_of(SloPromise::Floor(*rates)));
    Totals {
        background: settings_of(schedule).background,
        ..Totals::of(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_above_what_can_be_kept_are_refused() {
        let floor = |reads, writes| SloPromise::Floor(Rates { reads, writes });
        let limit = |bytes| SloLimit {
            bytes: Some(bytes),
            ..SloLimit::default()
        };
        for (promise, limit, is_good) in [
            (floor(RATE_MAX, RATE_MAX), SloLimit::default(), true),
            (SloPromise::Share(1), limit(BANDWIDTH_MAX), true),
            (floor(RATE_MAX + 1, 1), SloLimit::default(), false),
            (floor(1, RATE_MAX + 1), SloLimit::default(), false),
            (SloPromise::Share(1), limit(BANDWIDTH_MAX + 1), false),
            (
                SloPromise::Share(1),
                SloLimit {
                    writes: Some(RATE_MAX + 1),
                    ..SloLimit::default()
                },
                false,
            ),
        ] {
            let slo = Slo { promise, limit };
            assert_eq!(check(&slo, "testing").is_ok(), is_good, "{slo:?}");
        }
    }

    #[test]
    fn a_limit_below_the_floor_is_refused() {
        let limit = |reads, writes, bytes| SloLimit {
            reads,
            writes,
            bytes,
        };
        let floor = SloPromise::Floor(Rates {
            reads: 100,
            writes: 10,
        });
        for (promise, limit, is_good) in [
            (floor, limit(None, None, None), true),
            (
                floor,
                limit(Some(100), Some(10), Some(110 * BLOCK_SIZE)),
                true,
            ),
            (floor, limit(Some(99), None, None), false),
            (floor, limit(None, Some(9), None), false),
            (floor, limit(None, None, Some(110 * BLOCK_SIZE - 1)), false),
            (SloPromise::Share(1), limit(Some(1), Some(1), Some(1)), true),
        ] {
            let slo = Slo { promise, limit };
            let checked = check(&slo, "testing");
            assert_eq!(checked.is_ok(), is_good, "{slo:?}");
            if let Err(error) = checked {
                assert_eq!(error.kind, NodeErrorKind::InvalidArgument);
                assert!(error.found.contains("floor reads=100 writes=10"), "{error}");
            }
        }
    }

    #[test]
    fn a_ceiling_is_prices_and_a_window() {
        let schedule = |ceiling: &str| Schedule {
            ceiling: Some(ceiling.parse().expect(ceiling)),
            policy: SchedulePolicy::Strict,
            ..Schedule::default()
        };
        let settings = settings_of(&schedule("reads=20000 writes=10000"));
        assert_eq!(settings.policy, Policy::Strict);
        let ceiling = settings.ceiling.expect("one");
        let price = |kind, len| ceiling.prices.of(kind, 0, len);
        assert_eq!(price(Kind::Read, 4096), 50_000);
        assert_eq!(price(Kind::Write, 4096), 100_000);
        assert_eq!(price(Kind::Read, 1 << 20), 256 * 50_000);
        assert_eq!(price(Kind::Flush, 0), 1, "as good as nothing");
        assert_eq!(ceiling.window_ns, 1_000_000, "a millisecond");
        let text = "reads=20000 writes=10000 flushes=1000 bytes=512M latency=5ms";
        let ceiling = settings_of(&schedule(text)).ceiling.expect("one");
        assert_eq!(ceiling.window_ns, 5_000_000);
        assert_eq!(ceiling.prices.of_flush(10), 100_000);
        let mebibyte = ceiling.prices.of(Kind::Read, 0, 1 << 20);
        assert!((1_950_000..2_050_000).contains(&mebibyte), "{mebibyte}");
        assert_eq!(settings_of(&Schedule::default()).ceiling, None);
        let slow = settings_of(&schedule("reads=1 writes=1"))
            .ceiling
            .expect("one");
        assert_eq!(slow.window_ns, 16 * WHOLE_NS);
        let fast = settings_of(&schedule("reads=200000 writes=100000"));
        assert_eq!(fast.ceiling.expect("one").window_ns, LATENCY_DEFAULT_NS);
    }
}
