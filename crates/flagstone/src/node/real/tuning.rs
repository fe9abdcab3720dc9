//! How the cores run: what suits the machine, and what a measurement sets instead.
//!
//! The environment variable `FLAGSTONE_TUNING` holds `KEY=VALUE` pairs parted by commas. It exists to
//! measure alternatives beside each other (`cargo xtask bench block --variant`); what they were found
//! to do is in `docs/decisions/2026-11-21-flush-and-spin.md`.

use std::path::PathBuf;

use flagstone_runtime::{FlushMethod, LATENCY_REQUESTS, RuntimeConfig};

use crate::node::KeepAwake;

/// How the cores run and how they flush.
pub(super) struct Tuning {
    pub(super) runtime: RuntimeConfig,
    pub(super) flush: FlushMethod,
    /// No checkpoints: what a recovery costs with full journals.
    pub(super) hold_checkpoints: bool,
}

/// Where the kernel says what processors there are.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// Processors for each core that are kept awake unless the configuration says so: one with a client or a device's interrupts, and a
/// few that have nothing to do with it. And of the machine, since one core that is at work keeps all of them awake.
const AWAKE_EACH_MAX: usize = 4;
const AWAKE_MAX: usize = 8;

/// Where the kernel is asked, if at all.
fn asked_if(wanted: bool) -> Option<PathBuf> {
    wanted.then(|| LATENCY_REQUESTS.into())
}

/// Whether it pays to keep processors awake: `driver` says how the kernel has them idle, `online` which there are ("0-3,8").
fn pays(driver: &str, online: &str, cores: usize) -> bool {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let count = |range: &str| match range.split_once('-') {
        None => number(range).map(|_| 1),
        Some((first, last)) => Some(number(last)?.checked_sub(number(first)?)? + 1),
    };
    let processors: Option<usize> = online.trim().split(',').map(count).sum();
    let few = processors
        .is_some_and(|count| count <= cores.saturating_mul(AWAKE_EACH_MAX).min(AWAKE_MAX));
    driver.trim() == "haltpoll" && few
}

/// Settings for `cores` cores on this machine.
pub(super) fn sensible(cores: usize, keep_awake: KeepAwake) -> Tuning {
    let config = RuntimeConfig {
        cores,
        keep_awake: asked_if(match keep_awake {
            KeepAwake::Yes => true,
            KeepAwake::No => false,
            KeepAwake::Auto => {
                let read = |name: &str| std::fs::read_to_string(format!("{PROCESSORS}/{name}"));
                let read = |name: &str| read(name).unwrap_or_default();
                pays(&read("cpuidle/current_driver"), &read("online"), cores)
            }
        }),
        // With fewer cores than CPUs the scheduler brings a core to where its work arrives.
        pin: cores >= std::thread::available_parallelism().map_or(1, usize::from),
        ..RuntimeConfig::default()
    };
    Tuning {
        runtime: config,
        flush: FlushMethod::default(),
        hold_checkpoints: false,
    }
}

/// Changes what `settings` names. The error says which pair is wrong and what is allowed.
pub(super) fn apply(tuning: &mut Tuning, settings: &str) -> Result<(), String> {
    let config = &mut tuning.runtime;
    for pair in settings.split(',').filter(|pair| !pair.is_empty()) {
        let wrong = |expected: &str| format!("FLAGSTONE_TUNING: {pair:?}: expected {expected}");
        let (key, value) = pair.split_once('=').ok_or_else(|| wrong("KEY=VALUE"))?;
        let number = || value.parse::<u32>().map_err(|_| wrong("a number"));
        match (key, value) {
            ("spin_us", _) => config.spin_max_us = number()?,
            ("spin_depth", _) => config.spin_depth = number()?,
            ("submit_batch", _) => config.submit_batch = number()?,
            ("registered_mib", _) => config.registered_bytes = (number()? as usize) << 20,
            ("wall_shift_s", _) => {
                config.wall_shift_s = value.parse().map_err(|_| wrong("seconds"))?;
            }
            ("spin_yield", "yes" | "no") => config.spin_yield = value == "yes",
            ("keep_awake", "yes" | "no") => config.keep_awake = asked_if(value == "yes"),
            ("waves", "yes" | "no") => config.waves = value == "yes",
            ("pin", "yes" | "no") => config.pin = value == "yes",
            ("checkpoints", "held") => tuning.hold_checkpoints = true,
            ("flush", "ring") => tuning.flush = FlushMethod::RingFsync,
            ("flush", "helper") => tuning.flush = FlushMethod::HelperThread,
            ("flush", "adaptive") => tuning.flush = FlushMethod::Adaptive,
            ("flush", "core") => tuning.flush = FlushMethod::Blocking,
            _ => {
                return Err(wrong(
                    "spin_us, spin_depth, submit_batch, registered_mib or wall_shift_s with a number, \
                     waves=yes|no, spin_yield=yes|no, keep_awake=yes|no, pin=yes|no, flush=adaptive|ring|helper|core, or checkpoints=held",
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_processors_of_a_virtual_machine_are_kept_awake() {
        for (driver, online, cores, expected) in [
            ("haltpoll\n", "0-1\n", 1, true),
            ("haltpoll\n", "0\n", 1, true),
            ("haltpoll\n", "0-3\n", 1, true),
            ("haltpoll\n", "0-4\n", 1, false),
            ("haltpoll\n", "0-4\n", 2, true),
            ("haltpoll\n", "0-7\n", 4, true),
            ("haltpoll\n", "0-8\n", 4, false),
            ("haltpoll\n", "0-1,4,6-7\n", 1, false),
            ("haltpoll\n", "0-1,4,7\n", 1, true),
            ("intel_idle\n", "0-1\n", 1, false),
            ("none\n", "0-1\n", 1, false),
            ("", "", 1, false),
            ("haltpoll\n", "", 8, false),
            ("haltpoll\n", "3-1\n", 8, false),
            ("haltpoll\n", "some\n", 8, false),
        ] {
            assert_eq!(pays(driver, online, cores), expected, "{driver}{online}");
        }
    }

    #[test]
    fn settings_take_effect_and_nonsense_is_refused() {
        let mut tuning = sensible(1, KeepAwake::Yes);
        assert_eq!(tuning.runtime.keep_awake, Some(LATENCY_REQUESTS.into()));
        apply(
            &mut tuning,
            "spin_us=7,spin_yield=no,keep_awake=no,submit_batch=3,pin=no,flush=ring,checkpoints=held",
        )
        .unwrap();
        let config = &tuning.runtime;
        assert_eq!((config.spin_max_us, config.submit_batch), (7, 3));
        assert!(!config.pin && !config.spin_yield && tuning.flush == FlushMethod::RingFsync);
        assert!(tuning.hold_checkpoints && tuning.runtime.keep_awake.is_none());
        assert_eq!(sensible(1, KeepAwake::No).runtime.keep_awake, None);
        for wrong in [
            "spin_us",
            "spin_us=x",
            "pin=maybe",
            "flush=later",
            "speed=9",
        ] {
            let error = apply(&mut tuning, wrong).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
