//! How clients verify the certificates of servers.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

use crate::validity::period;

/// Trusts authorities, and the certificates that were given themselves.
///
/// A chain to an authority must not begin with an authority, but a certificate that was made by
/// `openssl req -x509` is one. Such a server is trusted if its certificate is one of the given,
/// byte for byte. rustls checks that the server has its key.
#[derive(Debug)]
pub(crate) struct GivenRoots {
    pub(crate) given: Vec<CertificateDer<'static>>,
    pub(crate) authorities: Arc<WebPkiServerVerifier>,
}

/// Checks the name and the dates of a certificate that is trusted itself.
fn verify_itself(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    let (from, until) = period(certificate).ok_or(CertificateError::BadEncoding)?;
    if now.as_secs() < from {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > until {
        return Err(CertificateError::Expired.into());
    }
    Ok(ServerCertVerified::assertion())
}

impl ServerCertVerifier for GivenRoots {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.given.iter().any(|given| given == certificate) {
            return verify_itself(certificate, name, now);
        }
        self.authorities.verify_server_cert(certificate, chain, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Accepts every certificate, and checks only that the server owns it.
#[derive(Debug)]
pub(crate) struct AnyCertificate(pub(crate) Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn a_given_certificate_must_have_the_name_and_be_valid_now() {
        let pem = include_bytes!("../tests/certificates/own.pem");
        let own = CertificateDer::from_pem_slice(pem).unwrap();
        let (from, until) = period(&own).unwrap();
        let verify = |name: &str, second: u64| {
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(second));
            verify_itself(&own, &ServerName::try_from(name.to_owned()).unwrap(), now).map(drop)
        };
        for name in ["localhost", "127.0.0.1"] {
            assert_eq!(verify(name, from), Ok(()));
            assert_eq!(verify(name, until), Ok(()));
            assert_eq!(verify(name, from - 1), Err(CertificateError::NotValidYet.into()));
            assert_eq!(verify(name, until + 1), Err(CertificateError::Expired.into()));
        }
        assert!(matches!(
            verify("example.org", from),
            Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. }))
        ));
    }
}
