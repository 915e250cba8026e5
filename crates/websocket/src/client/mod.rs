//! Connections to servers, by URL: [`connect`] and [`Client`], on any [`Runtime`].
//!
//! ```no_run
//! # #[cfg(feature = "tokio")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use windlass_websocket::client;
//!
//! let mut socket = client::connect("wss://example.com/chat").await?;
//! socket.send("hello").await?;
//! while let Some(message) = socket.recv().await? {
//!     println!("{:?}", message.as_str());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A connection is made in phases: the name is resolved, a TCP connection opened, perhaps through a
//! proxy, then TLS and the opening handshake. Each [`Phase`] has a limit of time, and
//! [`ConnectError`] names the one that failed. Redirects are not followed: the error has the
//! response.
//!
//! [`Client::reconnecting`] gives a socket that connects again when its connection is lost.

mod connecting;
mod error;
mod exchange;
mod handshake;
mod happy_eyeballs;
mod proxy;
mod reconnecting;
mod response;
mod runtime;
mod stream;
#[cfg(feature = "rustls")]
mod tls;
mod url;

use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "rustls")]
pub use tokio_rustls::rustls;

use crate::{Config, Timed, WebSocket};
use url::Target;

pub use connecting::Connecting;
pub use error::{ConnectError, Phase, ServerResponse};
pub use proxy::{Proxy, ProxyError};
pub use reconnecting::{
    Attempt, Backoff, ConnectionState, LostBy, MessageSender, NoHook, Overflow, QueueError,
    ReconnectError, Reconnecting, States, StopReconnecting,
};
#[cfg(feature = "async-io")]
pub use runtime::AsyncIo;
pub use runtime::Runtime;
#[cfg(feature = "tokio")]
pub use runtime::Tokio;
#[cfg(all(feature = "windlass-task", target_os = "linux"))]
pub use runtime::{TaskTimer, WindlassTask};
pub use stream::MaybeTls;
pub use url::UrlError;

/// The socket of a client: its stream has a timer, so the limits of time of [`Config`] are on.
pub type ClientSocket<R> =
    WebSocket<Timed<MaybeTls<<R as Runtime>::Stream>, <R as Runtime>::Timer>>;

/// Connects to a server on tokio, with the defaults of [`Client`].
///
/// # Errors
/// See [`ConnectError`].
#[cfg(feature = "tokio")]
pub async fn connect(url: &str) -> Result<ClientSocket<Tokio>, ConnectError> {
    Client::new(url).connect().await
}

/// How to connect to a server. Clones share the settings.
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use windlass_websocket::client::{Client, Phase, Proxy};
///
/// let socket = Client::new("ws://example.com/chat?room=1")
///     .header("Authorization", "Bearer secret")
///     .protocol("chat")
///     .proxy("socks5://127.0.0.1:1080")
///     .time_limit(Phase::Connect, Duration::from_secs(3))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    settings: Arc<Settings>,
}

#[derive(Clone)]
struct Settings {
    target: Result<Arc<Target>, UrlError>,
    headers: Vec<(String, String)>,
    protocols: Vec<String>,
    origin: Option<String>,
    config: Config,
    proxy: Option<Result<Proxy, UrlError>>,
    time_limits: Vec<(Phase, Duration)>,
    #[cfg(feature = "rustls")]
    tls: Option<Arc<rustls::ClientConfig>>,
    #[cfg(feature = "rustls")]
    proxy_tls: Option<Arc<rustls::ClientConfig>>,
    #[cfg(feature = "rustls")]
    roots: tls::Roots,
}

impl Settings {
    fn time_limit(&self, phase: Phase) -> Duration {
        let mut limits = self.time_limits.iter();
        limits.find(|(of, _)| *of == phase).map_or(phase.time_limit(), |(_, limit)| *limit)
    }
}

impl Client {
    /// A client of a server at a URL `ws://…` or `wss://…` (RFC 6455 section 3). A bad URL is an
    /// error of the connection.
    ///
    /// A user and a password in the URL become a header Authorization of the kind Basic, unless
    /// [`header`](Self::header) sets one.
    #[must_use]
    pub fn new(url: &str) -> Self {
        let settings = Settings {
            target: Target::parse(url).map(Arc::new),
            headers: Vec::new(),
            protocols: Vec::new(),
            origin: None,
            config: Config::new(),
            proxy: None,
            time_limits: Vec::new(),
            #[cfg(feature = "rustls")]
            tls: None,
            #[cfg(feature = "rustls")]
            proxy_tls: None,
            #[cfg(feature = "rustls")]
            roots: tls::Roots::System,
        };
        Self { settings: Arc::new(settings) }
    }

    fn edit(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Replaces the URL.
    #[must_use]
    pub fn url(self, url: &str) -> Self {
        self.edit(|it| it.target = Target::parse(url).map(Arc::new))
    }

    /// Sets a header of the request. It replaces one with the same name that was set before. The
    /// handshake's own headers are an error when the connection is made.
    #[must_use]
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.edit(|it| {
            it.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(&name));
            it.headers.push((name, value));
        })
    }

    /// Offers a subprotocol. The first one is the most wanted.
    #[must_use]
    pub fn protocol(self, protocol: impl Into<String>) -> Self {
        let protocol = protocol.into();
        self.edit(|it| it.protocols.push(protocol))
    }

    /// Sets the header Origin, which browsers send.
    #[must_use]
    pub fn origin(self, origin: impl Into<String>) -> Self {
        let origin = origin.into();
        self.edit(|it| it.origin = Some(origin))
    }

    /// The settings of the socket: its limits, permessage-deflate, and
    /// [`head_limits`](Config::head_limits) of the response.
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        self.edit(|it| it.config = config)
    }

    /// Connects through a proxy: see [`Proxy::new`] for its URL. A bad URL is an error of the
    /// connection. Default: none, whatever the environment says.
    #[must_use]
    pub fn proxy(self, url: &str) -> Self {
        let proxy = Proxy::new(url);
        self.edit(|it| it.proxy = Some(proxy))
    }

    /// The limit of time of a phase. Default: 10 s each; making the TLS configuration has none.
    #[must_use]
    pub fn time_limit(self, phase: Phase, limit: Duration) -> Self {
        self.edit(|it| {
            it.time_limits.retain(|(of, _)| *of != phase);
            it.time_limits.push((phase, limit));
        })
    }

    /// The TLS configuration for the server, for example with root certificates or a client
    /// certificate of your own.
    ///
    /// Default: the cryptography that the process has installed, or that of the crate's features;
    /// the root certificates of the system. The process makes it at the first connection, which may
    /// read files.
    #[cfg(feature = "rustls")]
    #[must_use]
    pub fn tls(self, config: Arc<rustls::ClientConfig>) -> Self {
        self.edit(|it| it.tls = Some(config))
    }

    /// The TLS configuration for a proxy `https://…`. Default: as that of [`tls`](Self::tls).
    #[cfg(feature = "rustls")]
    #[must_use]
    pub fn proxy_tls(self, config: Arc<rustls::ClientConfig>) -> Self {
        self.edit(|it| it.proxy_tls = Some(config))
    }

    /// Trusts the root certificates of Mozilla that are in the program, instead of the system's,
    /// where [`tls`](Self::tls) or [`proxy_tls`](Self::proxy_tls) is not called.
    #[cfg(feature = "webpki-roots")]
    #[must_use]
    pub fn bundled_roots(self) -> Self {
        self.edit(|it| it.roots = tls::Roots::Bundled)
    }

    /// Connects on tokio. The result is a future.
    #[cfg(feature = "tokio")]
    pub fn connect(&self) -> Connecting<Tokio> {
        self.connect_on(Tokio)
    }

    /// Connects on a runtime. The result is a future.
    pub fn connect_on<R: Runtime>(&self, runtime: R) -> Connecting<R> {
        Connecting::new(self.settings.clone(), runtime)
    }
}

/// Without what may be secret: the values of headers, the query, users and passwords.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { target, headers, protocols, origin, config, proxy, .. } = &*self.settings;
        let target = target.as_ref().map(|target| (&target.authority, target.is_secure));
        let names: Vec<&str> = headers.iter().map(|(name, _)| &**name).collect();
        f.debug_struct("Client")
            .field("target", &target)
            .field("headers", &names)
            .field("protocols", protocols)
            .field("origin", origin)
            .field("config", config)
            .field("proxy", proxy)
            .finish_non_exhaustive()
    }
}
