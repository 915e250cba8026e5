//! What is wrong with the settings of a bus.

use core::fmt;
use std::{io, path::PathBuf};

/// The settings of a [`NatsBus`](crate::NatsBus) cannot be used.
///
/// ```
/// use windlass_cluster::{NatsBus, NatsConfigError};
///
/// let error = NatsBus::builder(["http://nats.example"]).build().unwrap_err();
/// assert!(matches!(error, NatsConfigError::Address { .. }));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum NatsConfigError {
    /// There is no address of a server.
    NoAddress,
    /// An address is no URL of a NATS server.
    Address {
        /// The address, without the credentials that it may have.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Addresses have different credentials, or credentials are given in several ways.
    SeveralCredentials,
    /// A file cannot be read.
    File {
        /// Its path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A file does not have what it should, or a seed is none.
    Content {
        /// Where it comes from.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A limit or a time is 0.
    Zero(&'static str),
}

impl fmt::Display for NatsConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str(
                "there is no address of a NATS server: give at least one, such as \
                 nats://127.0.0.1:4222",
            ),
            Self::Address { address, reason } => write!(
                f,
                "{address:?} is no address of a NATS server: {reason}. Addresses are \
                 nats://HOST:PORT or tls://HOST:PORT"
            ),
            Self::SeveralCredentials => f.write_str(
                "the credentials for NATS are given more than once: give one user and password, \
                 token, credentials file or seed for all servers",
            ),
            Self::File { path, error } => write!(f, "{} cannot be read: {error}", path.display()),
            Self::Content { place, reason } => write!(f, "{place} cannot be used: {reason}"),
            Self::Zero(name) => write!(f, "`{name}` is 0, and must be more"),
        }
    }
}

impl std::error::Error for NatsConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<NatsConfigError> for io::Error {
    fn from(error: NatsConfigError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}
