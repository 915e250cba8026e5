//! What an error of rustls means for a stream.

use rustls::{CertificateError, Error, OtherError, PeerIncompatible};
use windlass::stream::TlsFailure;

/// What an error of rustls means, for programs that run its sessions by other means. `Display` of
/// the result says what to do.
///
/// ```
/// let failure = windlass_tls::failure(&rustls::CertificateError::Expired.into());
/// assert!(failure.to_string().contains("has expired"));
/// ```
#[must_use]
pub fn failure(error: &Error) -> TlsFailure {
    match error {
        Error::AlertReceived(alert) => TlsFailure::AlertReceived(u8::from(*alert)),
        Error::NoCertificatesPresented => TlsFailure::CertificateRequired,
        Error::InvalidCertificate(error) => certificate(error),
        Error::PeerIncompatible(reason) => incompatible(reason),
        Error::NoApplicationProtocol => TlsFailure::NoCommonAlpn,
        Error::DecryptError => TlsFailure::DecryptionFailed,
        Error::InvalidMessage(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(_)
        | Error::PeerSentOversizedRecord
        | Error::UnsupportedNameType => TlsFailure::ProtocolViolation,
        Error::EncryptError => TlsFailure::KeyExhausted,
        _ => TlsFailure::Internal,
    }
}

fn certificate(error: &CertificateError) -> TlsFailure {
    match error {
        CertificateError::UnknownIssuer => TlsFailure::UnknownIssuer,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            TlsFailure::CertificateExpired
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsFailure::CertificateNotYetValid
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            TlsFailure::CertificateForOtherName
        }
        CertificateError::Other(OtherError(error))
            if error.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) =>
        {
            TlsFailure::CertificateOfAuthority
        }
        _ => TlsFailure::BadCertificate,
    }
}

fn incompatible(reason: &PeerIncompatible) -> TlsFailure {
    use PeerIncompatible as P;
    match reason {
        P::ServerDoesNotSupportTls12Or13
        | P::ServerTlsVersionIsDisabledByOurConfig
        | P::SupportedVersionsExtensionRequired
        | P::Tls12NotOffered
        | P::Tls12NotOfferedOrEnabled
        | P::Tls13RequiredForQuic => TlsFailure::NoCommonVersion,
        _ => TlsFailure::NoCommonCipher,
    }
}
