//! The certificates and keys for TLS that a node starts with.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use flagstone_tls::{ServerTls, SettingsError, Validity, validity};

use crate::config::TlsFiles;
use crate::node::{NodeError, NodeErrorKind};

/// More than any chain of certificates has, in bytes.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Who else may read a key: its group, as tools that renew certificates have it.
const KEY_MODE_MAX: u32 = 0o750;

/// Permissions of a mode.
const MODE_BITS: u32 = 0o777;

/// So long before its end a certificate is warned of, in seconds: 14 days.
const SOON_S: i64 = 14 * 86_400;

/// Reads them. Fails if one is not there, can't be used, or if others may read the key.
pub(super) fn load(files: &TlsFiles<'_>, required: bool) -> Result<ServerTls, NodeError> {
    let certificate = read("the certificate", files.certificate)?;
    check_mode(files.key)?;
    let key = read("the certificate's key", files.key)?;
    let client_ca = files
        .client_ca
        .map(|path| read("the authority of clients", path))
        .transpose()?;
    let tls = ServerTls::from_pem(&certificate, &key, client_ca.as_deref(), required)
        .map_err(|error| explain(files, error))?;
    if let Ok(Some(validity)) = validity(&certificate)
        && let Some(warning) = warning(validity, now_s())
    {
        let path = files.certificate.display();
        tracing::warn!("the certificate {path} {warning}");
    }
    Ok(tls)
}

/// Why one of them can't be looked at by this user, on this machine.
pub(super) fn unreadable(files: &TlsFiles<'_>) -> Option<NodeError> {
    let paths = [files.certificate, files.key].into_iter();
    paths.chain(files.client_ca).find_map(|path| {
        // Opening a pipe waits.
        let found = match fs::metadata(path) {
            Ok(found) if found.is_file() => File::open(path).map(drop),
            found => found.map(drop),
        };
        let error = found.err()?;
        Some(NodeError::of_io(
            format!("reading {}", path.display()),
            &error,
        ))
    })
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "before any core runs")]
fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs() as i64)
}

fn read(what: &str, path: &Path) -> Result<Vec<u8>, NodeError> {
    let doing = || format!("reading {what}, {}", path.display());
    let failed = |error: io::Error| NodeError::of_io(doing(), &error);
    // Not opened before it is known to be a file: opening a pipe waits.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        let kind = NodeErrorKind::InvalidArgument;
        return Err(NodeError::new(kind, doing(), "it is not a file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    match bytes.len() as u64 > FILE_MAX_BYTES {
        true => Err(NodeError::new(
            NodeErrorKind::InvalidArgument,
            doing(),
            "it is longer than 1 MiB",
        )),
        false => Ok(bytes),
    }
}

fn check_mode(key: &Path) -> Result<(), NodeError> {
    let doing = || format!("reading the certificate's key, {}", key.display());
    let found = fs::metadata(key).map_err(|error| NodeError::of_io(doing(), &error))?;
    let mode = found.mode() & MODE_BITS;
    if !found.is_file() || mode & !KEY_MODE_MAX == 0 {
        return Ok(());
    }
    let found = format!("its mode is {mode:03o}: others may read or change it");
    let error = NodeError::new(NodeErrorKind::Refused, doing(), found);
    Err(error.next(format!(
        "`chmod 600 {}`, and if others may have read it, have a new key and certificate made",
        key.display()
    )))
}

/// Which file is meant, and what to do.
fn explain(files: &TlsFiles<'_>, error: SettingsError) -> NodeError {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let doing = match files.client_ca {
        Some(ca) => format!(
            "setting up TLS with the certificate {certificate}, the key {key} and the authority of clients {}",
            ca.display()
        ),
        None => format!("setting up TLS with the certificate {certificate} and the key {key}"),
    };
    let next = match &error {
        SettingsError::KeyMismatch => {
            "name the key that the certificate was made for; the node's own certificate comes first in its file"
        }
        SettingsError::BadCertificate(_) => {
            "have a certificate of X.509 version 3 made (openssl: -addext or -extfile); `openssl x509 -text` shows it"
        }
        _ => "give PEM files, as `openssl` writes them; the key without a passphrase",
    };
    let kind = NodeErrorKind::InvalidArgument;
    NodeError::new(kind, doing, error.to_string()).next(next)
}

/// What is to be said of how long a certificate is good. It is no error: a client with a wrong clock may take it, and the
/// volumes should not be away because of a date.
fn warning(validity: Validity, now_s: i64) -> Option<String> {
    let days = |seconds: i64| seconds / 86_400;
    if now_s > validity.until_s {
        let ago = days(now_s - validity.until_s);
        return Some(format!(
            "has expired {ago} days ago: clients refuse it; renew it and restart the node"
        ));
    }
    if now_s < validity.from_s {
        return Some("is not good yet: clients refuse it; check this machine's clock".to_owned());
    }
    if now_s + SOON_S > validity.until_s {
        let left = days(validity.until_s - now_s);
        return Some(format!(
            "expires in {left} days; renew it and restart the node"
        ));
    }
    None
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
