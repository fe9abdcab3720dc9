//! How the cores run: what suits the machine, and what a measurement sets instead.
//!
//! The environment variable `FLAGSTONE_TUNING` holds `KEY=VALUE` pairs parted by commas. It exists to
//! measure alternatives beside each other (`cargo xtask bench block --variant`); what they were found
//! to do is in `docs/decisions/2026-11-21-flush-and-spin.md`.

use flagstone_runtime::{FlushMethod, RuntimeConfig};

/// How the cores run and how they flush.
pub(super) struct Tuning {
    pub(super) runtime: RuntimeConfig,
    pub(super) flush: FlushMethod,
    /// No checkpoints: what a recovery costs with full journals.
    pub(super) hold_checkpoints: bool,
}

/// Settings for `cores` cores on this machine.
pub(super) fn sensible(cores: usize) -> Tuning {
    let config = RuntimeConfig {
        cores,
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
                     waves=yes|no, spin_yield=yes|no, pin=yes|no, flush=adaptive|ring|helper|core, or checkpoints=held",
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
    fn settings_take_effect_and_nonsense_is_refused() {
        let mut tuning = sensible(1);
        apply(
            &mut tuning,
            "spin_us=7,spin_yield=no,submit_batch=3,pin=no,flush=ring,checkpoints=held",
        )
        .unwrap();
        let config = &tuning.runtime;
        assert_eq!((config.spin_max_us, config.submit_batch), (7, 3));
        assert!(!config.pin && !config.spin_yield && tuning.flush == FlushMethod::RingFsync);
        assert!(tuning.hold_checkpoints);
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
