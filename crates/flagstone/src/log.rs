//! The log: one line per event to standard error, as text or JSON.
//!
//! Nothing secret is logged: requests appear with method, path and outcome, never with headers or
//! bodies.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Drops what can't be written: a node outlives whoever reads its log. The library would report the
/// error on standard error, and panic because that is what can't be written to.
struct Lossy<W>(W);

impl<W: Write> Write for Lossy<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.0.write(bytes).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// What of the log says who opened what, or tried to.
const AUDIT: &str = "audit";

/// Starts logging. `level` is a level or a list such as `info,flagstone_device=debug`. Lines of the audit log come at any level, unless the list says something
/// of `audit` or all is `off`. Fails if it is not; does nothing if logging has been started before (as in tests).
pub fn start(format: LogFormat, level: &str) -> Result<(), String> {
    let filter = filter(level)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Lossy(io::stderr()));
    let _ = match format {
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr())
                && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colours).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    let no_level = |error: &dyn std::fmt::Display| {
        format!(
            "'{level}' is not a log level ({error}); write error, warn, info, debug or trace, or a \
             list such as info,flagstone_device=debug"
        )
    };
    let filter = EnvFilter::try_new(level).map_err(|error| no_level(&error))?;
    let mut words = level.split(',').map(str::trim);
    let is_said = words.any(|word| word == "off" || word.split('=').next() == Some(AUDIT));
    if is_said {
        return Ok(filter);
    }
    let audit = format!("{AUDIT}=info").parse();
    Ok(filter.add_directive(audit.map_err(|error| no_level(&error))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_audit_log_is_there_at_any_level() {
        let of = |level: &str| filter(level).expect("a level").to_string();
        for level in ["error", "warn", "info", "warn,flagstone_device=debug"] {
            let found = of(level);
            assert!(found.contains("audit=info"), "{level}: {found}");
        }
        // Unless it is said otherwise.
        for level in ["off", "warn,audit=off", "info,audit=debug"] {
            let found = of(level);
            assert!(!found.contains("audit=info"), "{level}: {found}");
        }
        let refused = filter("info,flagstone=loud").expect_err("is none");
        assert!(
            refused.starts_with("'info,flagstone=loud' is not a log level ("),
            "{refused}"
        );
    }

    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn a_reader_that_is_gone_is_no_error() {
        let mut log = Lossy(Gone);
        log.write_all(b"a line\n").expect("it is dropped");
        log.flush().expect("there is nothing to flush");
    }
}
