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

/// Starts logging. `level` is a level or a list such as `info,flagstone_device=debug`. Fails if it
/// is not; does nothing if logging has been started before (as in tests).
pub fn start(format: LogFormat, level: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        format!(
            "'{level}' is not a log level ({error}); write error, warn, info, debug or trace, or a \
             list such as info,flagstone_device=debug"
        )
    })?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
