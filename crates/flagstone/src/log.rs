//! The log: one line per event to standard error, as text or JSON.
//!
//! Nothing secret is logged: requests appear with method, path and outcome, never with headers or
//! bodies.

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

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
        .with_writer(std::io::stderr);
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
