//! Certificates and keys in PEM files.

use std::{
    borrow::Cow,
    fmt,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

use crate::TlsConfigError;

/// The maximum length of a file. The bundle of all public authorities has a quarter of it.
const FILE_MAX: u64 = 1 << 20;

/// Where PEM comes from. Its text is never printed, because it may be a key.
#[derive(Clone)]
pub(crate) enum PemSource {
    File(PathBuf),
    Memory(Arc<[u8]>),
}

impl PemSource {
    /// The path for errors.
    fn name(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Memory(_) => Path::new("PEM in memory"),
        }
    }

    fn read(&self) -> Result<Cow<'_, [u8]>, TlsConfigError> {
        match self {
            Self::File(path) => read(path).map(Cow::Owned),
            Self::Memory(bytes) => Ok(Cow::Borrowed(bytes)),
        }
    }
}

impl fmt::Debug for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}

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
fn certificates(source: &PemSource) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let (bytes, path) = (source.read()?, source.name());
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
    certificate: &PemSource,
    key: &PemSource,
) -> Result<Arc<CertifiedKey>, TlsConfigError> {
    let chain = certificates(certificate)?;
    let (certificate, bytes, key) = (certificate.name(), key.read()?, key.name());
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

/// Adds the authorities of a file. Returns all its certificates.
pub(crate) fn add_roots(
    roots: &mut RootCertStore,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let all = certificates(&PemSource::File(path.into()))?;
    // Bundles of systems contain certificates that rustls does not read.
    let (added, _) = roots.add_parsable_certificates(all.iter().cloned());
    if added == 0 {
        return Err(TlsConfigError::NoCertificate(path.into()));
    }
    Ok(all)
}
