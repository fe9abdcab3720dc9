//! `flagstone volume token ...`, and tokens that are written to files.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::client::Client;
use crate::name::parse_name;
use crate::node::{
    NewToken, RotateSpec, TokenInfo, TokenKind, TokenList, TokenSpec, TokenState, TokenText,
};
use crate::output::{Output, utc};
use crate::size::counted;

#[derive(Args, Debug)]
#[command(after_help = "\
A token lets whoever has it open the volume over the native protocol: an owner does everything with it,
a writer reads and writes, a reader reads. It is told once, when it is made. --to writes it to a file
that only you can read instead of printing it.

Rotating makes no client lose the volume: the old token opens it for another day, or for as long as
--old-ends-in says, so give whoever uses it the new one meanwhile. A token that has ended opens nothing,
and what is open with it stays open until the client has to open it again (after losing its connection,
when the volume or its journal moves, when the node restarts). Revoking cuts off at once.

Examples:
  flagstone volume token create vm-1 --kind reader --label backup --to backup.token
  flagstone volume token list vm-1
  flagstone volume token rotate vm-1 1 --to vm-1.token
  flagstone volume token rotate vm-1 1 --old-ends-in 0s --to vm-1.token      it opens nothing from now on
  flagstone volume token revoke vm-1 2")]
pub(super) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Subcommand, Debug)]
enum TokenCommand {
    /// Make a token of a volume
    Create {
        #[arg(value_parser = parse_name)]
        volume: String,
        /// What it allows
        #[arg(long)]
        kind: TokenKind,
        /// When it ends: 90s, 15m, 12h, 30d [default: never]
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        ends_in: Option<u64>,
        /// What it is for: up to 32 bytes
        #[arg(long, default_value = "", hide_default_value = true)]
        label: String,
        /// Write it to this new file, which only you can read, and don't print it
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// List a volume's tokens, without their keys
    List {
        #[arg(value_parser = parse_name)]
        volume: String,
    },
    /// Revoke tokens: nothing is opened with them any more, and clients that have the volume open with them are refused
    Revoke {
        #[arg(value_parser = parse_name)]
        volume: String,
        /// The tokens' numbers
        #[arg(required = true, value_name = "NUMBER")]
        numbers: Vec<u32>,
    },
    /// Make a token of the same kind and label as another one, which ends a day later; clients that have the volume open with it keep it
    Rotate {
        #[arg(value_parser = parse_name)]
        volume: String,
        /// The number of the token that ends
        number: u32,
        /// When the old one ends: 90s, 15m, 12h, 30d; 0s: at once. Until then those who have it can open the volume, again, too
        #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "1d")]
        old_ends_in: u64,
        /// When the new one ends [default: never, whenever the old one was to end]
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        ends_in: Option<u64>,
        /// Write it to this new file, which only you can read, and don't print it
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
}

/// So many seconds.
pub(super) fn parse_time(text: &str) -> Result<u64, String> {
    let expected = || format!("'{text}' is no time: write 90s, 15m, 12h or 30d");
    let (number, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(expected)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return Err(expected()),
    };
    let number: u64 = number.parse().map_err(|_| expected())?;
    number.checked_mul(seconds).ok_or_else(expected)
}

/// The same as it is written: in the largest unit that it is a whole number of.
fn time_text(seconds: u64) -> String {
    let units = [(24 * 3600, "d"), (3600, "h"), (60, "m")];
    let whole = units.iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
    let (unit, name) = whole.copied().unwrap_or((1, "s"));
    format!("{}{name}", seconds / unit)
}

/// A file that a token is to be written to. Made before the token is: a token that can't be kept is of no use.
/// Removed again if it isn't written.
pub(super) struct TokenFile {
    path: PathBuf,
    file: Option<File>,
}

impl TokenFile {
    /// Makes it; there must be none of that name.
    pub(super) fn new(path: &Path) -> anyhow::Result<TokenFile> {
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("making {} for the token", path.display()))?;
        Ok(TokenFile {
            path: path.to_owned(),
            file: Some(file),
        })
    }

    /// Writes the token, on a line of its own.
    pub(super) fn write(mut self, token: &TokenText) -> anyhow::Result<()> {
        if let Some(file) = &mut self.file {
            writeln!(file, "{}", token.0)
                .and_then(|()| file.sync_all())
                .with_context(|| {
                    format!(
                        "writing the token to {} (it was made: revoke it, and make another)",
                        self.path.display()
                    )
                })?;
        }
        self.file = None;
        Ok(())
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        if self.file.is_some() {
            // Nothing is in it; who asked is told what went wrong before.
            let _ = fs::remove_file(&self.path);
        }
    }
}

pub(super) fn run(args: TokenArgs, client: &Client, output: &mut Output<'_>) -> anyhow::Result<()> {
    match args.command {
        TokenCommand::Create {
            volume,
            kind,
            ends_in,
            label,
            to,
        } => {
            let file = to.as_deref().map(TokenFile::new).transpose()?;
            let spec = TokenSpec {
                kind,
                ends_in_s: ends_in,
                label,
            };
            let path = format!("/v1/volumes/{volume}/tokens");
            let made: NewToken = client.send("POST", &path, &spec)?;
            told(&volume, "made", made, file, output)
        }
        TokenCommand::List { volume } => {
            let tokens: TokenList = client.get(&format!("/v1/volumes/{volume}/tokens"))?;
            list(&tokens, output)
        }
        TokenCommand::Revoke { volume, numbers } => {
            // One that isn't there keeps none of the others.
            let mut first_error = None;
            for number in numbers {
                let path = format!("/v1/volumes/{volume}/tokens/{number}/revoke");
                let info: TokenInfo = match client.post_empty(&path) {
                    Ok(info) => info,
                    Err(error) => {
                        first_error = first_error.or(Some(error));
                        continue;
                    }
                };
                let open = match info.open_count {
                    0 => String::new(),
                    n => format!("; {} with it: each request there is refused now", opened(n)),
                };
                let kind = info.kind;
                let sentence = format!("revoked token {number} ({kind}) of volume {volume}{open}");
                output.outcome(&info, &sentence)?;
            }
            Ok(first_error.map_or(Ok(()), Err)?)
        }
        TokenCommand::Rotate {
            volume,
            number,
            old_ends_in,
            ends_in,
            to,
        } => {
            let file = to.as_deref().map(TokenFile::new).transpose()?;
            let spec = RotateSpec {
                old_ends_in_s: old_ends_in,
                ends_in_s: ends_in,
            };
            let path = format!("/v1/volumes/{volume}/tokens/{number}/rotate");
            let made: NewToken = client.send("POST", &path, &spec)?;
            let old = match old_ends_in {
                0 => "has ended".to_owned(),
                s => format!("ends in {} at the latest", time_text(s)),
            };
            let done = format!("rotated token {number}, which {old}, to");
            told(&volume, &done, made, file, output)
        }
    }
}

fn opened(count: u32) -> String {
    format!("it is open {}", counted(count.into(), "time"))
}

/// Says that a token was made, and tells it here or in the file.
fn told(
    volume: &str,
    done: &str,
    made: NewToken,
    file: Option<TokenFile>,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let NewToken { info, token } = &made;
    let sentence = format!(
        "{done} token {} ({}) of volume {volume}",
        info.number, info.kind
    );
    match file {
        None => output.outcome(&made, &format!("{sentence}: {}", token.0))?,
        Some(file) => {
            let path = file.path.display().to_string();
            file.write(token)?;
            output.outcome(info, &format!("{sentence}, in {path}"))?;
        }
    }
    Ok(())
}

fn list(tokens: &TokenList, output: &mut Output<'_>) -> anyhow::Result<()> {
    if output.is_json() {
        output.json(tokens)?;
        return Ok(());
    }
    let when = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), utc);
    let rows = tokens.items.iter().map(|token| {
        let until = match token.state {
            TokenState::Revoked => token.revoked_ns,
            TokenState::Valid | TokenState::Ended => token.ends_ns,
        };
        let label = match token.label.as_str() {
            "" => "-",
            label => label,
        };
        vec![
            token.number.to_string(),
            token.kind.to_string(),
            token.state.to_string(),
            token.open_count.to_string(),
            utc(token.created_ns),
            when(until),
            label.to_owned(),
        ]
    });
    const HEADINGS: [&str; 7] = [
        "NUMBER",
        "KIND",
        "STATE",
        "OPEN",
        "CREATED (UTC)",
        "END (UTC)",
        "LABEL",
    ];
    output.table(&HEADINGS, &[0, 3], rows)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_a_unit() {
        for (text, seconds) in [
            ("90s", 90),
            ("15m", 900),
            ("12h", 43_200),
            ("30d", 2_592_000),
        ] {
            assert_eq!(parse_time(text), Ok(seconds), "{text}");
            assert_eq!(time_text(seconds), text);
        }
        for text in [
            "",
            "s",
            "90",
            "1w",
            "-1s",
            "1.5h",
            "é",
            "99999999999999999999d",
            "9999999999999999999d",
        ] {
            let error = parse_time(text).expect_err(text);
            assert!(error.contains("15m"), "{error}");
        }
    }
}
