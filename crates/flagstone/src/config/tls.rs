//! The `[tls]` section: which files hold certificates and keys.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::ConfigError;

/// TLS of NBD and the native protocol.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The node's certificate, with those between it and its authority; empty for no TLS.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of clients' certificates; empty for none asked for.
    pub client_ca: PathBuf,
    /// Who does not begin TLS is not served.
    pub required: bool,
}

/// The files of a section that makes sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlsFiles<'a> {
    /// The node's certificate.
    pub certificate: &'a Path,
    /// Its key.
    pub key: &'a Path,
    /// The authorities of clients.
    pub client_ca: Option<&'a Path>,
}

impl TlsConfig {
    /// Which files there are to be; `None` for no TLS.
    pub fn files(&self) -> Result<Option<TlsFiles<'_>>, ConfigError> {
        let certificate = given(&self.certificate);
        let (key, client_ca) = (given(&self.key), given(&self.client_ca));
        let missing = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                return Ok(Some(TlsFiles {
                    certificate,
                    key,
                    client_ca,
                }));
            }
            (Some(_), None) => "tls.certificate is set and tls.key is not",
            (None, Some(_)) => "tls.key is set and tls.certificate is not",
            (None, None) if client_ca.is_some() => {
                "tls.client_ca is set and tls.certificate and tls.key are not"
            }
            (None, None) if self.required => {
                "tls.required is set and tls.certificate and tls.key are not"
            }
            (None, None) => return Ok(None),
        };
        Err(ConfigError::new(format!(
            "{missing}; TLS needs both, a certificate and its key"
        )))
    }
}

fn given(path: &Path) -> Option<&Path> {
    Some(path).filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_a_certificate_and_its_key_or_nothing() {
        let config = |certificate: &str, key: &str, client_ca: &str, required| TlsConfig {
            certificate: certificate.into(),
            key: key.into(),
            client_ca: client_ca.into(),
            required,
        };
        assert_eq!(config("", "", "", false).files(), Ok(None));
        let whole = config("c", "k", "", true);
        let files = whole.files().expect("both").expect("TLS");
        assert_eq!((files.certificate, files.client_ca), (Path::new("c"), None));
        let with_ca = config("c", "k", "ca", false);
        let files = with_ca.files().expect("both").expect("TLS");
        assert_eq!(files.client_ca, Some(Path::new("ca")));
        for (bad, said) in [
            (config("c", "", "", false), "tls.key is not"),
            (config("", "k", "", false), "tls.certificate is not"),
            (config("", "", "ca", false), "tls.client_ca is set"),
            (config("", "", "", true), "tls.required is set"),
        ] {
            let error = bad.files().expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
