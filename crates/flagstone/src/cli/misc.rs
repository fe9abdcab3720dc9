//! `flagstone config ...` and `flagstone completions`.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Subcommand};
use clap_complete::Shell;

use super::Cli;
use crate::config::{Config, EXAMPLE};
use crate::output::Output;
use crate::serve::check_tls;

#[derive(Args, Debug)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand, Debug)]
enum ConfigCommand {
    /// Print a configuration file with every key explained; its values are the defaults
    #[command(after_help = "\
Example:
  flagstone config example > /etc/flagstone.toml")]
    Example,
    /// Check a configuration file, and the certificates and keys that it names, without starting anything
    #[command(after_help = "\
Examples:
  flagstone config check /etc/flagstone.toml
  flagstone config example | flagstone config check")]
    Check {
        /// The file; '-' is standard input
        #[arg(default_value = "-")]
        file: PathBuf,
    },
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  source <(flagstone completions bash)
  flagstone completions zsh > ~/.zfunc/_flagstone
  flagstone completions fish > ~/.config/fish/completions/flagstone.fish")]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn config(args: &ConfigArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    match &args.command {
        ConfigCommand::Example => write!(output.out, "{EXAMPLE}")?,
        ConfigCommand::Check { file } => {
            let config = Config::load(file)?;
            let options = config.options_without_devices_too()?;
            let unseen = check_tls(&config)?;
            let devices: Vec<String> = options
                .devices
                .iter()
                .map(|device| format!("{} at {}", device.name, device.path.display()))
                .collect();
            let devices = match devices.is_empty() {
                true => "no device; name one with `serve --device PATH`".to_owned(),
                false => devices.join(", "),
            };
            let shown = match file.as_os_str() == "-" {
                true => "standard input".to_owned(),
                false => file.display().to_string(),
            };
            writeln!(output.out, "{shown} is a valid configuration: {devices}")?;
            if let Some(unseen) = unseen {
                writeln!(output.out, "The files of [tls] were not checked: {unseen}")?;
            }
        }
    }
    Ok(())
}

pub(super) fn completions(args: &CompletionsArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "flagstone", &mut script);
    output.out.write_all(&script)?;
    Ok(())
}
