//! Errors of configurations.

use std::{error, fmt, io, path::PathBuf};

/// Why an acceptor or a connector cannot be made or reloaded.
///
/// ```
/// use windlass_tls::TlsAcceptor;
///
/// let error = TlsAcceptor::builder().certificate("no.pem", "no.key").build().unwrap_err();
/// assert!(error.to_string().starts_with("no.pem: cannot be read:"), "{error}");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// A file cannot be read.
    Read(PathBuf, io::Error),
    /// A file is longer than 1 MiB, and so not what was meant.
    TooLong(PathBuf),
    /// A file is not PEM: a part of it is damaged.
    NotPem(PathBuf),
    /// A file has no certificate.
    NoCertificate(PathBuf),
    /// A file has no private key.
    NoKey(PathBuf),
    /// A private key is of a kind that the provider does not support.
    UnsupportedKey(PathBuf, rustls::Error),
    /// A certificate is damaged.
    BadCertificate(PathBuf, rustls::Error),
    /// A key does not belong to its certificate: the files of the certificate and of the key.
    KeyMismatch(PathBuf, PathBuf),
    /// An acceptor has no certificate.
    NoCertificates,
    /// A client trusts no authority.
    NoRoots,
    /// A server name is neither a DNS name nor an IP address.
    BadServerName(String),
    /// rustls has rejected the settings.
    Rustls(rustls::Error),
}

impl fmt::Display for TlsConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, error) => write!(f, "{}: cannot be read: {error}", path.display()),
            Self::TooLong(path) => {
                write!(f, "{}: longer than 1 MiB; name a PEM file", path.display())
            }
            Self::NotPem(path) => write!(
                f,
                "{}: damaged PEM; a part has no end line or is not base64",
                path.display()
            ),
            Self::NoCertificate(path) => write!(
                f,
                "{}: no certificate; it must have a part BEGIN CERTIFICATE",
                path.display()
            ),
            Self::NoKey(path) => write!(
                f,
                "{}: no private key; it must have a part BEGIN PRIVATE KEY",
                path.display()
            ),
            Self::UnsupportedKey(path, error) => {
                write!(f, "{}: unsupported private key: {error}", path.display())
            }
            Self::BadCertificate(path, error) => {
                write!(f, "{}: damaged certificate: {error}", path.display())
            }
            Self::KeyMismatch(certificate, key) => write!(
                f,
                "{}: the key does not belong to the first certificate of {}",
                key.display(),
                certificate.display()
            ),
            Self::NoCertificates => f.write_str("a TLS server needs a certificate and its key"),
            Self::NoRoots => {
                f.write_str("no trusted authority; name a PEM file with their certificates")
            }
            Self::BadServerName(name) => {
                write!(f, "{name:?} is neither a DNS name nor an IP address")
            }
            Self::Rustls(error) => write!(f, "TLS settings: {error}"),
        }
    }
}

impl error::Error for TlsConfigError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Read(_, error) => Some(error),
            Self::UnsupportedKey(_, error) | Self::BadCertificate(_, error) => Some(error),
            Self::Rustls(error) => Some(error),
            _ => None,
        }
    }
}

impl From<TlsConfigError> for io::Error {
    fn from(error: TlsConfigError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}
