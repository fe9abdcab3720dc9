//! Certificates and keys, from PEM to what a handshake needs.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, InconsistentKeys, RootCertStore, ServerConfig};

use crate::clock::ToldTime;

/// Why certificates or keys can't be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SettingsError {
    /// What should be PEM is not.
    NotPem(String),
    /// There is no certificate in it.
    NoCertificate,
    /// There is no private key in it.
    NoKey,
    /// The key belongs to another certificate.
    KeyMismatch,
    /// The key can't be used: why.
    BadKey(String),
    /// The certificate can't be used: why.
    BadCertificate(String),
    /// The authority's certificate can't be used: why.
    BadAuthority(String),
    /// Not a name or an address that a certificate can be for.
    BadName,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::NotPem(why) => write!(f, "it is not PEM ({why})"),
            SettingsError::NoCertificate => {
                write!(
                    f,
                    "there is no certificate in it (-----BEGIN CERTIFICATE-----)"
                )
            }
            SettingsError::NoKey => {
                write!(
                    f,
                    "there is no private key in it (-----BEGIN PRIVATE KEY-----); one with a passphrase can't be used"
                )
            }
            SettingsError::KeyMismatch => {
                write!(
                    f,
                    "the key belongs to another certificate than the first of the file"
                )
            }
            SettingsError::BadKey(why) => write!(f, "the key can't be used: {why}"),
            SettingsError::BadCertificate(why) => write!(f, "the certificate can't be used: {why}"),
            SettingsError::BadAuthority(why) => {
                write!(f, "the authority's certificate can't be used: {why}")
            }
            SettingsError::BadName => {
                write!(
                    f,
                    "it is neither a name nor an address that a certificate can be for"
                )
            }
        }
    }
}

impl std::error::Error for SettingsError {}

/// What a server needs for handshakes. A cheap handle that any core may have.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    required: bool,
    asks_clients: bool,
}

impl ServerTls {
    /// From PEM: the certificate with those between it and its authority, in this order, and its key. With
    /// `client_ca`, clients must show a certificate that one of these authorities has given. `required`: who does
    /// not begin TLS is not served.
    ///
    /// Errors say what is wrong with which, not where it came from.
    pub fn from_pem(
        certificate: &[u8],
        key: &[u8],
        client_ca: Option<&[u8]>,
        required: bool,
    ) -> Result<ServerTls, SettingsError> {
        let chain = certificates(certificate)?;
        let key = private_key(key)?;
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_details(provider.clone(), Arc::new(ToldTime))
            .with_safe_default_protocol_versions()
            .map_err(|error| SettingsError::BadCertificate(error.to_string()))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(authorities(ca)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(|error| SettingsError::BadAuthority(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(key_error)?;
        // No session is resumed: connections of volumes live long, and what resumes them would have to be shared
        // by all cores under a lock.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(ServerTls {
            config: Arc::new(config),
            required,
            asks_clients: client_ca.is_some(),
        })
    }

    /// True if clients have to show a certificate.
    pub fn asks_clients(&self) -> bool {
        self.asks_clients
    }

    /// True if who does not begin TLS is not served.
    pub fn is_required(&self) -> bool {
        self.required
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }
}

/// The same settings, not only the same certificate.
impl PartialEq for ServerTls {
    fn eq(&self, other: &ServerTls) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.required == other.required
    }
}

impl Eq for ServerTls {}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerTls(required: {})", self.required)
    }
}

/// What a client needs for handshakes with one server.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl ClientTls {
    /// From PEM: the authorities of which one has given the server its certificate, which must be for `server`, a
    /// name or an address; and the client's own certificate and key, if the server asks for one.
    pub fn from_pem(
        server: &str,
        ca: &[u8],
        own: Option<(&[u8], &[u8])>,
    ) -> Result<ClientTls, SettingsError> {
        let server = ServerName::try_from(server.to_owned()).map_err(|_| SettingsError::BadName)?;
        let provider = Arc::new(default_provider());
        let builder = ClientConfig::builder_with_details(provider, Arc::new(ToldTime))
            .with_safe_default_protocol_versions()
            .map_err(|error| SettingsError::BadCertificate(error.to_string()))?
            .with_root_certificates(authorities(ca)?);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(key_error)?,
        };
        config.resumption = Resumption::disabled();
        Ok(ClientTls {
            config: Arc::new(config),
            server,
        })
    }

    /// The same for a server whose certificate is for this address.
    pub fn for_address(&self, address: IpAddr) -> ClientTls {
        ClientTls {
            config: self.config.clone(),
            server: ServerName::IpAddress(address.into()),
        }
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    pub(crate) fn server(&self) -> ServerName<'static> {
        self.server.clone()
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientTls({:?})", self.server)
    }
}

/// All certificates of a PEM text, at least one.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
    let all: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text).collect();
    let all = all.map_err(|error| SettingsError::NotPem(error.to_string()))?;
    match all.is_empty() {
        true => Err(SettingsError::NoCertificate),
        false => Ok(all),
    }
}

fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, SettingsError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => SettingsError::NoKey,
        error => SettingsError::NotPem(error.to_string()),
    })
}

fn authorities(text: &[u8]) -> Result<RootCertStore, SettingsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(text)? {
        roots
            .add(certificate)
            .map_err(|error| SettingsError::BadAuthority(error.to_string()))?;
    }
    Ok(roots)
}

fn key_error(error: rustls::Error) -> SettingsError {
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            SettingsError::KeyMismatch
        }
        rustls::Error::InvalidCertificate(why) => SettingsError::BadCertificate(format!("{why:?}")),
        error => SettingsError::BadKey(error.to_string()),
    }
}
