//! The TLS of servers: certificates, settings, and their reload.

use std::{
    cell::{Cell, RefCell},
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use rustls::{
    RootCertStore, ServerConfig,
    client::verify_server_name,
    pki_types::ServerName,
    server::{
        ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
        UnbufferedServerConnection, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
    sign::CertifiedKey,
};
use windlass::stream::{TlsFactoryStatus, TlsSession, TlsSessionFactory};

use crate::{
    HandshakeCounts, MinimumVersion, TlsConfigError,
    counts::{Counters, count},
    pem::{self, PemSource},
    provider::{provider, ticketer},
    session::{Session, Unmade},
    validity,
};

/// The most memory of a session in its handshake, with ring and a certificate of the curve P-256:
/// see `tests/memory.rs`. Received records are not part of it: the stream counts them.
const HANDSHAKE_MEMORY: usize = 6 << 10;

std::thread_local! {
    /// The name that the client of the running handshake has asked for. The unbuffered connection
    /// of rustls does not tell it afterwards.
    static NAME: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
    /// Whether that client was rejected for the name.
    static IS_REJECTED: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn forget_name() {
    NAME.set(None);
    IS_REJECTED.set(false);
}

pub(crate) fn take_name() -> Option<Box<str>> {
    NAME.take()
}

pub(crate) fn is_name_rejected() -> bool {
    IS_REJECTED.get()
}

/// Whether clients must have a certificate.
#[derive(Clone, Debug, Default)]
enum ClientAuth {
    #[default]
    None,
    Optional(PathBuf),
    Required(PathBuf),
}

/// Settings of a [`TlsAcceptor`]; each method documents its default.
///
/// ```no_run
/// use windlass_tls::{MinimumVersion, TlsAcceptor};
///
/// # fn main() -> Result<(), windlass_tls::TlsConfigError> {
/// let acceptor = TlsAcceptor::builder()
///     .certificate("example.org.pem", "example.org.key")
///     .certificate("example.net.pem", "example.net.key")
///     .alpn([b"http/1.1"])
///     .minimum_version(MinimumVersion::Tls13)
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is read before `build`"]
pub struct TlsAcceptorBuilder {
    certificates: Vec<(PemSource, PemSource)>,
    clients: ClientAuth,
    alpn: Vec<Vec<u8>>,
    minimum: MinimumVersion,
    rejects_unknown_names: bool,
}

impl TlsAcceptorBuilder {
    /// Adds a certificate with its chain, and its private key, as PEM files. They may be the same
    /// file. At least one is needed.
    ///
    /// A client that asks for a server name gets the first certificate that is valid for it, else
    /// the very first one.
    pub fn certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificates.push((PemSource::File(certificate.into()), PemSource::File(key.into())));
        self
    }

    /// Like [`certificate`](Self::certificate), with the content of the files, for example of a
    /// certificate that was made for this run. A [reload](TlsAcceptor::reload) keeps it. Errors
    /// call it `PEM in memory`.
    pub fn certificate_pem(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        let of = |bytes: Vec<u8>| PemSource::Memory(bytes.into());
        self.certificates.push((of(certificate.into()), of(key.into())));
        self
    }

    /// Rejects clients that ask for a name for which no certificate is valid, with
    /// [`TlsFailure::UnknownName`](windlass::stream::TlsFailure::UnknownName). Default: off.
    pub fn reject_unknown_names(mut self, on: bool) -> Self {
        self.rejects_unknown_names = on;
        self
    }

    /// Requires a certificate of each client, signed by an authority of this PEM file. Default: no
    /// certificate is asked for.
    pub fn require_client_certificates(mut self, authorities: impl Into<PathBuf>) -> Self {
        self.clients = ClientAuth::Required(authorities.into());
        self
    }

    /// Asks each client for a certificate. A client without one is accepted, one with a certificate
    /// of another authority is not. [`TlsSession::peer_subject`] tells them apart.
    pub fn request_client_certificates(mut self, authorities: impl Into<PathBuf>) -> Self {
        self.clients = ClientAuth::Optional(authorities.into());
        self
    }

    /// The application protocols that are offered (RFC 7301), in the order of preference. A client
    /// that offers only others is rejected. Default: none.
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
    /// A file cannot be read or used: the error names it.
    pub fn build(self) -> Result<TlsAcceptor, TlsConfigError> {
        let config = Mutex::new(self.config()?);
        let inner = Inner {
            builder: Mutex::new(self),
            config,
            counters: Arc::default(),
            reloads: AtomicU64::new(0),
            failed_reloads: AtomicU64::new(0),
        };
        Ok(TlsAcceptor { inner: Arc::new(inner) })
    }

    fn config(&self) -> Result<Loaded, TlsConfigError> {
        let provider = provider();
        let load = |(certificate, key): &(PemSource, PemSource)| {
            pem::certified_key(&provider, certificate, key)
        };
        let keys: Vec<_> = self.certificates.iter().map(load).collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return Err(TlsConfigError::NoCertificates);
        }
        let ends = |key: &Arc<CertifiedKey>| validity::not_after(key.end_entity_cert().ok()?);
        let earliest_expiry = keys.iter().filter_map(ends).min();
        let verifier = self.verifier(&provider)?;
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.minimum.versions())
            .map_err(TlsConfigError::Rustls)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(ByName {
                keys,
                rejects_unknown: self.rejects_unknown_names,
            }));
        config.alpn_protocols.clone_from(&self.alpn);
        // Tickets carry the sessions, so that the server keeps none. A reload makes new keys for
        // them: otherwise a client whose authority is gone could resume its session.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = ticketer()?;
        Ok(Loaded { config: Arc::new(config), earliest_expiry })
    }

    fn verifier(
        &self,
        provider: &Arc<rustls::crypto::CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsConfigError> {
        let (path, is_optional) = match &self.clients {
            ClientAuth::None => return Ok(WebPkiClientVerifier::no_client_auth()),
            ClientAuth::Optional(path) => (path, true),
            ClientAuth::Required(path) => (path, false),
        };
        let mut roots = RootCertStore::empty();
        pem::add_roots(&mut roots, path)?;
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        let builder = if is_optional { builder.allow_unauthenticated() } else { builder };
        builder
            .build()
            .map_err(|error| TlsConfigError::Rustls(rustls::Error::General(error.to_string())))
    }
}

/// Makes the TLS sessions of a server. Clones share their certificates and counts, also between
/// threads.
///
/// See the [crate] for an example.
#[derive(Clone)]
pub struct TlsAcceptor {
    inner: Arc<Inner>,
}

struct Inner {
    /// Of the last reload.
    builder: Mutex<TlsAcceptorBuilder>,
    config: Mutex<Loaded>,
    counters: Arc<Counters>,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
}

/// What the files have given.
struct Loaded {
    config: Arc<ServerConfig>,
    earliest_expiry: Option<SystemTime>,
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsAcceptor").field("builder", &self.builder_now()).finish_non_exhaustive()
    }
}

impl TlsAcceptor {
    /// The defaults, without a certificate.
    pub fn builder() -> TlsAcceptorBuilder {
        TlsAcceptorBuilder::default()
    }

    /// Reads the files again, for the handshakes that begin afterwards. Sessions from before are
    /// not resumed. It blocks for the files, so a loop should call it rarely.
    ///
    /// # Errors
    /// A file cannot be read or used: the error names it, and nothing has changed.
    pub fn reload(&self) -> Result<(), TlsConfigError> {
        self.prepare(self.builder_now())?.apply();
        Ok(())
    }

    /// The first half of a [reload](Self::reload), with other settings or files: reads the files
    /// and changes nothing. For programs that read other files too, all of which must be good. It
    /// blocks for the files.
    ///
    /// ```no_run
    /// use windlass_tls::TlsAcceptor;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tls = TlsAcceptor::builder().certificate("cert.pem", "key.pem").build()?;
    /// let prepared = tls.prepare(TlsAcceptor::builder().certificate("new.pem", "new-key.pem"))?;
    /// // Now read what else there is. If all of it is good:
    /// prepared.apply();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A file cannot be read or used: the error names it.
    pub fn prepare(&self, builder: TlsAcceptorBuilder) -> Result<PreparedReload, TlsConfigError> {
        let loaded = builder.config().inspect_err(|_| count(&self.inner.failed_reloads))?;
        Ok(PreparedReload { acceptor: self.clone(), builder, loaded })
    }

    fn builder_now(&self) -> TlsAcceptorBuilder {
        self.inner.builder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many handshakes there were.
    #[must_use]
    pub fn handshakes(&self) -> HandshakeCounts {
        self.inner.counters.counts()
    }
}

/// Files that were read for a [`TlsAcceptor`]: see [`TlsAcceptor::prepare`].
#[must_use = "nothing changes before `apply`"]
pub struct PreparedReload {
    acceptor: TlsAcceptor,
    builder: TlsAcceptorBuilder,
    loaded: Loaded,
}

impl fmt::Debug for PreparedReload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedReload").field("builder", &self.builder).finish_non_exhaustive()
    }
}

impl PreparedReload {
    /// Takes the files into use, for the handshakes that begin afterwards. Sessions from before are
    /// not resumed.
    pub fn apply(self) {
        let Self { acceptor, builder, loaded } = self;
        let inner = &acceptor.inner;
        *inner.builder.lock().unwrap_or_else(PoisonError::into_inner) = builder;
        let old = core::mem::replace(&mut *inner.lock(), loaded);
        count(&inner.reloads);
        drop(old);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Loaded> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TlsSessionFactory for TlsAcceptor {
    fn handshake_memory(&self) -> usize {
        HANDSHAKE_MEMORY
    }

    fn status(&self) -> TlsFactoryStatus {
        let mut status = TlsFactoryStatus::default();
        status.earliest_expiry = self.inner.lock().earliest_expiry;
        status.reloads = self.inner.reloads.load(Relaxed);
        status.failed_reloads = self.inner.failed_reloads.load(Relaxed);
        status
    }

    fn new_session(&self) -> Box<dyn TlsSession> {
        let config = Arc::clone(&self.inner.lock().config);
        match UnbufferedServerConnection::new(config) {
            Ok(connection) => Box::new(Session::new(connection, &self.inner.counters)),
            Err(_) => Box::new(Unmade),
        }
    }
}

/// Chooses a certificate by the server name.
#[derive(Debug)]
struct ByName {
    keys: Vec<Arc<CertifiedKey>>,
    rejects_unknown: bool,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let first = self.keys.first()?;
        let Some(name) = hello.server_name() else { return Some(Arc::clone(first)) };
        NAME.set(Some(name.into()));
        if self.keys.len() == 1 && !self.rejects_unknown {
            return Some(Arc::clone(first));
        }
        let name = ServerName::try_from(name).ok();
        let is_for = |key: &&Arc<CertifiedKey>| {
            let parsed = key.end_entity_cert().and_then(ParsedCertificate::try_from);
            let names = name.as_ref().zip(parsed.ok());
            names.is_some_and(|(name, parsed)| verify_server_name(&parsed, name).is_ok())
        };
        match self.keys.iter().find(is_for) {
            None if self.rejects_unknown => {
                IS_REJECTED.set(true);
                None
            }
            found => Some(Arc::clone(found.unwrap_or(first))),
        }
    }
}
