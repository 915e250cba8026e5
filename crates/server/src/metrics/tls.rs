//! The labels and counts of TLS.

use std::{sync::Arc, time::SystemTime};

use windlass::stream::{TlsFailure, TlsSessionFactory};

use super::labels::label;

label! {
    /// The version of a completed TLS handshake.
    TlsVersion {
        Tls12 = "1.2",
        Tls13 = "1.3",
        Other = "other",
    }
}

impl TlsVersion {
    pub(crate) fn of(version: Option<&str>) -> Self {
        match version {
            Some("TLSv1.2") => Self::Tls12,
            Some("TLSv1.3") => Self::Tls13,
            _ => Self::Other,
        }
    }
}

label! {
    /// Why a TLS handshake failed.
    TlsFailureLabel {
        Lost = "lost",
        Incomplete = "incomplete",
        Timeout = "timeout",
        TooLong = "too_long",
        PlainHttp = "plain_http",
        NotTls = "not_tls",
        NoCommonVersion = "no_common_version",
        NoCommonCipher = "no_common_cipher",
        NoCommonAlpn = "no_common_alpn",
        UnknownName = "unknown_name",
        CertificateRequired = "certificate_required",
        UnknownIssuer = "unknown_issuer",
        CertificateExpired = "certificate_expired",
        CertificateNotYetValid = "certificate_not_yet_valid",
        BadCertificate = "bad_certificate",
        DecryptionFailed = "decryption_failed",
        ProtocolViolation = "protocol_violation",
        AlertReceived = "alert_received",
        Draining = "draining",
        Internal = "internal",
    }
}

impl TlsFailureLabel {
    pub(crate) fn of(failure: TlsFailure) -> Self {
        match failure {
            TlsFailure::HandshakeIncomplete | TlsFailure::Truncated => Self::Incomplete,
            TlsFailure::HandshakeTimeout => Self::Timeout,
            TlsFailure::HandshakeTooLong => Self::TooLong,
            TlsFailure::PlainHttp => Self::PlainHttp,
            TlsFailure::NotTls => Self::NotTls,
            TlsFailure::NoCommonVersion => Self::NoCommonVersion,
            TlsFailure::NoCommonCipher => Self::NoCommonCipher,
            TlsFailure::NoCommonAlpn => Self::NoCommonAlpn,
            TlsFailure::UnknownName => Self::UnknownName,
            TlsFailure::CertificateRequired => Self::CertificateRequired,
            TlsFailure::UnknownIssuer => Self::UnknownIssuer,
            TlsFailure::CertificateExpired => Self::CertificateExpired,
            TlsFailure::CertificateNotYetValid => Self::CertificateNotYetValid,
            TlsFailure::BadCertificate
            | TlsFailure::CertificateForOtherName
            | TlsFailure::CertificateOfAuthority => Self::BadCertificate,
            TlsFailure::DecryptionFailed => Self::DecryptionFailed,
            TlsFailure::ProtocolViolation => Self::ProtocolViolation,
            TlsFailure::AlertReceived(_) => Self::AlertReceived,
            // `KeyExhausted` comes after a handshake only.
            _ => Self::Internal,
        }
    }
}

/// The certificates and reloads of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TlsFigures {
    pub(crate) earliest_expiry: Option<SystemTime>,
    pub(crate) reloads: u64,
    pub(crate) failed_reloads: u64,
}

impl TlsFigures {
    /// Adds the figures of all factories. Listeners and workers share some, which count once.
    pub(crate) fn of(factories: &[Arc<dyn TlsSessionFactory>]) -> Self {
        let mut figures = Self::default();
        for (at, factory) in factories.iter().enumerate() {
            if factories[..at].iter().any(|earlier| Arc::ptr_eq(earlier, factory)) {
                continue;
            }
            let status = factory.status();
            figures.earliest_expiry =
                figures.earliest_expiry.into_iter().chain(status.earliest_expiry).min();
            figures.reloads += status.reloads;
            figures.failed_reloads += status.failed_reloads;
        }
        figures
    }
}
