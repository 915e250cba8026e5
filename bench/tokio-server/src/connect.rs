//! The frame of the clients on tokio that connect to a URL, again and again: some tasks each open a
//! connection and close it by a reset, so that no port stays in use.

use std::io;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use windlass_bench_driver::client::{self, ServerClock, Window};
use windlass_bench_driver::protocol::{Case, Outcome, ServerInfo};
use windlass_bench_driver::tls::{AUTHORITY, TlsHandshake};
use windlass_bench_driver::websocket_cases::WebsocketCase;
use windlass_bench_driver::{Error, Measured};

/// Number of connections of the warm-up, or that of the measurement if it is less.
const WARM: u64 = 200;

/// The server to connect to.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its URL.
    pub url: String,
    /// The configuration of TLS, if the URL wants it.
    pub tls: Option<Arc<ClientConfig>>,
}

/// The error of a task.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// Runs a client of this version until the end of its input. `connect` opens a WebSocket, and
/// returns what [`reset`] returns for it.
pub fn run<C, F>(version: &str, connect: C) -> ExitCode
where
    C: Fn(Target) -> F + Clone + Send + 'static,
    F: Future<Output = Result<TlsHandshake, TaskError>> + Send + 'static,
{
    client::serve(version, |case, server| {
        let Case::WebsocketOnly(WebsocketCase::Connect { handshake, parallel }) = *case else {
            return Err("this client only connects".into());
        };
        Ok(Box::new(ConnectClient::new(server, handshake, parallel, connect.clone())?))
    })
}

/// Makes the end of a connection a reset. Returns the handshake that it had.
///
/// # Errors
///
/// If the option cannot be set.
pub fn reset(stream: &TcpStream, tls: Option<&ClientConnection>) -> io::Result<TlsHandshake> {
    stream.set_zero_linger()?;
    Ok(match tls.and_then(|tls| tls.handshake_kind()) {
        None => TlsHandshake::None,
        Some(HandshakeKind::Resumed) => TlsHandshake::Resumed,
        Some(_) => TlsHandshake::Full,
    })
}

struct ConnectClient<C> {
    runtime: Runtime,
    connect: C,
    target: Target,
    handshake: TlsHandshake,
    parallel: usize,
    clock: ServerClock,
}

impl<C> ConnectClient<C> {
    fn new(
        server: &ServerInfo,
        handshake: TlsHandshake,
        parallel: usize,
        connect: C,
    ) -> Result<Self, Error> {
        let (scheme, tls) = match handshake {
            TlsHandshake::None => ("ws", None),
            _ => ("wss", Some(tls(handshake)?)),
        };
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            connect,
            target: Target { url: format!("{scheme}://{}/", server.address), tls },
            handshake,
            parallel,
            clock: ServerClock::of(server.process)?,
        })
    }
}

/// A configuration that trusts the authority of the server's certificate.
fn tls(handshake: TlsHandshake) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(AUTHORITY)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    if handshake == TlsHandshake::Full {
        config.resumption = Resumption::disabled();
    }
    Ok(Arc::new(config))
}

/// The state that the tasks of a slice share.
struct Slice {
    window: Window,
    /// Connections with another handshake than the case has.
    others: usize,
}

impl<C, F> Measured for ConnectClient<C>
where
    C: Fn(Target) -> F + Clone + Send + 'static,
    F: Future<Output = Result<TlsHandshake, TaskError>> + Send + 'static,
{
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let window = Window::new(self.clock, WARM.min(rounds), rounds);
        let slice = Arc::new(Mutex::new(Slice { window, others: 0 }));
        let mut tasks = JoinSet::new();
        for _ in 0..self.parallel {
            let (connect, target) = (self.connect.clone(), self.target.clone());
            let (slice, wanted) = (Arc::clone(&slice), self.handshake);
            let task = async move {
                loop {
                    let handshake = connect(target.clone()).await?;
                    let mut slice = slice.lock().unwrap_or_else(PoisonError::into_inner);
                    slice.others += usize::from(handshake != wanted);
                    if !slice.window.count(1) {
                        return Ok::<_, TaskError>(());
                    }
                }
            };
            tasks.spawn_on(task, self.runtime.handle());
        }
        let ended = self.runtime.block_on(async {
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            Ok::<_, TaskError>(())
        });
        ended.map_err(|error| error as Error)?;
        let slice = slice.lock().unwrap_or_else(PoisonError::into_inner);
        // The first connections of a slice find too few tickets, because all begin at once.
        let others_max = if self.handshake == TlsHandshake::Resumed { self.parallel } else { 0 };
        if slice.others > others_max {
            return Err(format!("{} connections had another handshake", slice.others).into());
        }
        Ok(slice.window.outcome())
    }
}
