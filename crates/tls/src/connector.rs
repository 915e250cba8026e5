//! The TLS of clients.

use std::{fmt, path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    client::{
        Resumption, UnbufferedClientConnection, WebPkiServerVerifier, danger::ServerCertVerifier,
    },
    crypto::CryptoProvider,
    pki_types::ServerName,
    sign::SingleCertAndKey,
};
use windlass::stream::{TlsSession, TlsSessionFactory};

use crate::{
    HandshakeCounts, MinimumVersion, TlsConfigError,
    counts::Counters,
    pem::{self, PemSource},
    provider::provider,
    session::{Session, Unmade},
    verifier::{AnyCertificate, GivenRoots},
};

/// Where distributions keep the bundle of public authorities.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// The number of servers whose sessions a connector keeps for resumption.
const RESUMABLE_MAX: usize = 256;

/// Settings of a [`TlsConnector`]; each method documents its default.
///
/// ```no_run
/// use windlass_tls::TlsConnector;
///
/// # fn main() -> Result<(), windlass_tls::TlsConfigError> {
/// let connector = TlsConnector::builder().roots("ca.pem").alpn([b"http/1.1"]).build()?;
/// let target = connector.to("example.org")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is read before `build`"]
pub struct TlsConnectorBuilder {
    roots: Vec<PathBuf>,
    is_insecure: bool,
    certificate: Option<(PathBuf, PathBuf)>,
    alpn: Vec<Vec<u8>>,
    minimum: MinimumVersion,
}

impl TlsConnectorBuilder {
    /// Trusts the certificates of a PEM file. Default: the bundle of the system.
    ///
    /// Each is trusted as an authority, and also as a server's own certificate: one that
    /// `openssl req -x509` makes is both. Its name and its dates must be right in any case.
    pub fn roots(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots.push(path.into());
        self
    }

    /// Trusts any certificate: for tests. Whoever is between the client and the server can then
    /// read and change everything.
    pub fn insecure(mut self) -> Self {
        self.is_insecure = true;
        self
    }

    /// The client's own certificate with its chain, and its private key, as PEM files. Default:
    /// none.
    pub fn certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Some((certificate.into(), key.into()));
        self
    }

    /// The application protocols that are offered (RFC 7301), in the order of preference. Default:
    /// none.
    pub fn alpn<P: AsRef<[u8]>>(mut self, protocols: impl IntoIterator<Item = P>) -> Self {
        self.alpn = protocols.into_iter().map(|protocol| protocol.as_ref().to_vec()).collect();
        self
    }

    /// The oldest version that is accepted. Default: TLS 1.2.
    pub fn minimum_version(mut self, version: MinimumVersion) -> Self {
        self.minimum = version;
        self
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or used: the error names it. Or no authority is known.
    pub fn build(self) -> Result<TlsConnector, TlsConfigError> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.minimum.versions())
            .map_err(TlsConfigError::Rustls)?;
        let verifier: Arc<dyn ServerCertVerifier> = if self.is_insecure {
            Arc::new(AnyCertificate(Arc::clone(&provider)))
        } else {
            self.verifier(&provider)?
        };
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let certified = pem::certified_key(
                    &provider,
                    &PemSource::File(certificate.clone()),
                    &PemSource::File(key.clone()),
                )?;
                let certified = Arc::unwrap_or_clone(certified);
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
            }
        };
        config.alpn_protocols = self.alpn;
        config.resumption = Resumption::in_memory_sessions(RESUMABLE_MAX);
        Ok(TlsConnector { config: Arc::new(config), counters: Arc::default() })
    }

    fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ServerCertVerifier>, TlsConfigError> {
        let mut roots = RootCertStore::empty();
        let mut given = Vec::new();
        for path in &self.roots {
            given.extend(pem::add_roots(&mut roots, path)?);
        }
        if self.roots.is_empty() {
            let system = SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| path.exists());
            pem::add_roots(&mut roots, &system.ok_or(TlsConfigError::NoRoots)?)?;
        }
        let authorities =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
                .build()
                .map_err(|_| TlsConfigError::NoRoots)?;
        if given.is_empty() {
            return Ok(authorities);
        }
        Ok(Arc::new(GivenRoots { given, authorities }))
    }
}

/// Makes the TLS sessions of clients. Clones share the sessions that can be resumed, and the
/// counts.
///
/// ```no_run
/// use std::sync::Arc;
/// use windlass::stream::Connector;
/// use windlass_tls::TlsConnector;
///
/// # fn main() -> Result<(), windlass_tls::TlsConfigError> {
/// let tls = TlsConnector::builder().build()?;
/// let address = "93.184.215.14:443".parse().unwrap();
/// let connector = Connector::tcp(address).with_tls(Arc::new(tls.to("example.org")?));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TlsConnector {
    config: Arc<ClientConfig>,
    counters: Arc<Counters>,
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector").finish_non_exhaustive()
    }
}

impl TlsConnector {
    /// The defaults.
    pub fn builder() -> TlsConnectorBuilder {
        TlsConnectorBuilder::default()
    }

    /// The sessions to one server. Its certificate must be valid for this DNS name or IP address.
    ///
    /// # Errors
    /// [`TlsConfigError::BadServerName`].
    pub fn to(&self, server: &str) -> Result<TlsTarget, TlsConfigError> {
        let name = ServerName::try_from(server.to_owned())
            .map_err(|_| TlsConfigError::BadServerName(server.to_owned()))?;
        Ok(TlsTarget { connector: self.clone(), name })
    }

    /// The settings for rustls, for programs that run its sessions by other means, such as
    /// tokio-rustls. [`handshakes`](Self::handshakes) does not count those.
    #[must_use]
    pub fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// How many handshakes there were.
    #[must_use]
    pub fn handshakes(&self) -> HandshakeCounts {
        self.counters.counts()
    }
}

/// The sessions of a [`TlsConnector`] to one server: see there for an example.
#[derive(Clone, Debug)]
pub struct TlsTarget {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsSessionFactory for TlsTarget {
    fn new_session(&self) -> Box<dyn TlsSession> {
        let TlsConnector { config, counters } = &self.connector;
        match UnbufferedClientConnection::new(Arc::clone(config), self.name.clone()) {
            Ok(connection) => Box::new(Session::new(connection, counters)),
            Err(_) => Box::new(Unmade),
        }
    }
}
