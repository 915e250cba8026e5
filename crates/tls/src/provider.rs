//! The provider of cryptography, and the protocol versions.

use std::sync::Arc;

use rustls::{SupportedProtocolVersion, crypto::CryptoProvider, server::ProducesTickets};

#[cfg(feature = "aws-lc-rs")]
use rustls::crypto::aws_lc_rs as chosen;
#[cfg(not(feature = "aws-lc-rs"))]
use rustls::crypto::ring as chosen;

use crate::TlsConfigError;

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(chosen::default_provider())
}

/// Encrypts session tickets with keys that change every six hours.
pub(crate) fn ticketer() -> Result<Arc<dyn ProducesTickets>, TlsConfigError> {
    chosen::Ticketer::new().map_err(TlsConfigError::Rustls)
}

/// The oldest protocol version that is accepted.
///
/// ```
/// use windlass_tls::{MinimumVersion, TlsAcceptor};
///
/// let builder = TlsAcceptor::builder().minimum_version(MinimumVersion::Tls13);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MinimumVersion {
    /// TLS 1.2, RFC 5246.
    #[default]
    Tls12,
    /// TLS 1.3, RFC 8446.
    Tls13,
}

impl MinimumVersion {
    pub(crate) fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static ALL: [&SupportedProtocolVersion; 2] =
            [&rustls::version::TLS13, &rustls::version::TLS12];
        match self {
            Self::Tls12 => &ALL,
            Self::Tls13 => ALL.split_at(1).0,
        }
    }
}
