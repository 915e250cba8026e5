//! Certificates and keys in PEM files.

use std::{fs::File, io::Read, path::Path, sync::Arc};

use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

use crate::TlsConfigError;

/// The maximum length of a file. The bundle of all public authorities has a quarter of it.
const FILE_MAX: u64 = 1 << 20;

fn read(path: &Path) -> Result<Vec<u8>, TlsConfigError> {
    let failed = |error| TlsConfigError::Read(path.into(), error);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(TlsConfigError::TooLong(path.into()));
    }
    Ok(bytes)
}

/// All certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let bytes = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|_| TlsConfigError::NotPem(path.into()))?;
    if all.is_empty() {
        return Err(TlsConfigError::NoCertificate(path.into()));
    }
    Ok(all)
}

/// A certificate with its chain, and its key.
pub(crate) fn certified_key(
    provider: &CryptoProvider,
    certificate: &Path,
    key: &Path,
) -> Result<Arc<CertifiedKey>, TlsConfigError> {
    let chain = certificates(certificate)?;
    let bytes = read(key)?;
    let private = match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(private) => private,
        Err(rustls::pki_types::pem::Error::NoItemsFound) => {
            return Err(TlsConfigError::NoKey(key.into()));
        }
        Err(_) => return Err(TlsConfigError::NotPem(key.into())),
    };
    let signing = provider
        .key_provider
        .load_private_key(private)
        .map_err(|error| TlsConfigError::UnsupportedKey(key.into(), error))?;
    let certified = CertifiedKey::new(chain, signing);
    match certified.keys_match() {
        // A key that cannot be compared is accepted, as rustls does.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(Arc::new(certified))
        }
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(TlsConfigError::KeyMismatch(certificate.into(), key.into()))
        }
        Err(error) => Err(TlsConfigError::BadCertificate(certificate.into(), error)),
    }
}

/// Adds the authorities of a file. Returns how many were added.
pub(crate) fn add_roots(roots: &mut RootCertStore, path: &Path) -> Result<usize, TlsConfigError> {
    // Bundles of systems contain certificates that rustls does not read.
    let (added, _) = roots.add_parsable_certificates(certificates(path)?);
    if added == 0 {
        return Err(TlsConfigError::NoCertificate(path.into()));
    }
    Ok(added)
}
