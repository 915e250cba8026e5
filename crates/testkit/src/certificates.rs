//! The certificates of the tests of `windlass-tls`, in configurations of rustls.
//!
//! The cryptography is that of ring by name, because the tested crate may have another one too.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// The path of a file with a certificate or a key.
pub fn certificate(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tls/tests/certificates").join(file)
}

/// A server with this certificate, for example `localhost`.
pub fn server_config(name: &str) -> ServerConfig {
    let chain = CertificateDer::pem_file_iter(certificate(&format!("{name}.pem"))).unwrap();
    let key = PrivateKeyDer::from_pem_file(certificate(&format!("{name}.key"))).unwrap();
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.map(Result::unwrap).collect(), key)
        .unwrap()
}

/// A client that trusts one authority: `ca` has signed the certificate for localhost.
pub fn client_config(authority: &str) -> ClientConfig {
    let path = certificate(&format!("{authority}.pem"));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(path).unwrap()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}
