//! [`HttpServer`]: the settings of a server, and its start.

use core::{
    fmt,
    future::{Future, pending},
};
use std::{error::Error, io, rc::Rc, time::Duration};

use hyper::{
    body::Body,
    server::conn::{http1, http2},
};
use windlass_task::rt::WindlassExecutor;

use crate::{HttpListener, IntoHttpService, ServeEvent, accept::run};

/// Serves HTTP with the default settings, until the listener fails: [`HttpServer::serve`].
///
/// # Errors
/// That of the listener.
///
/// ```no_run
/// use std::convert::Infallible;
/// use hyper::{Request, Response, body::Incoming, service::service_fn};
/// use windlass_task::net::TcpListener;
///
/// #[windlass_task::main]
/// async fn main() -> std::io::Result<()> {
///     let listener = TcpListener::bind("127.0.0.1:8080").await?;
///     let hello = service_fn(async |_: Request<Incoming>| {
///         Ok::<_, Infallible>(Response::new("hello\n".to_owned()))
///     });
///     windlass_http::serve(listener, hello).await
/// }
/// ```
pub async fn serve<L, S, Kind>(listener: L, service: S) -> io::Result<()>
where
    L: HttpListener,
    S: IntoHttpService<Kind>,
    S::Body: Body<Data: 'static, Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::Future: 'static,
{
    HttpServer::new().serve(listener, service).await
}

/// The settings of a server of HTTP/1.1 and HTTP/2.
///
/// | setting | default | beyond it |
/// |---|---|---|
/// | [`connections_max`](Self::connections_max) | 10,000 | clients wait in the kernel's backlog |
/// | [`handshake_timeout`](Self::handshake_timeout) | 10 s | the connection is closed |
/// | [`header_timeout`](Self::header_timeout) | 30 s | the connection is closed |
/// | [`write_timeout`](Self::write_timeout) | 30 s | the connection is closed |
/// | [`http2_idle_timeout`](Self::http2_idle_timeout) | 3 min | the connection ends gracefully |
/// | [`head_bytes_max`](Self::head_bytes_max) | 64 KiB | status 431 |
/// | [`http2_streams_max`](Self::http2_streams_max) | 128 | the stream is refused |
/// | [`shutdown_timeout`](Self::shutdown_timeout) | 30 s | the connection is closed |
/// | [`idle_buffers_timeout`](Self::idle_buffers_timeout) | 1 s | its buffers are freed |
///
/// The body of a request is not limited, and neither is the time that a service takes: use a
/// middleware. What a peer sends while nobody reads the body is limited by the window of HTTP/2,
/// and to one buffer of `head_bytes_max` with HTTP/1.1. A peer of HTTP/2 that is silent for a
/// minute is sent a ping, and must answer in 20 s.
///
/// A panic or an error of a service ends its connection of HTTP/1.1. With HTTP/2 it resets its
/// stream alone. Both are reported: [`on_event`](Self::on_event).
///
/// HTTP/2 is used without TLS if the first bytes are its preface, and with TLS as ALPN says.
#[derive(Clone)]
pub struct HttpServer {
    pub(crate) connections_max: usize,
    pub(crate) handshake_timeout: Duration,
    pub(crate) header_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) http2_idle_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) idle_buffers_timeout: Duration,
    pub(crate) has_http1: bool,
    pub(crate) has_http2: bool,
    pub(crate) has_info: bool,
    pub(crate) trims_memory: bool,
    pub(crate) http1: http1::Builder,
    pub(crate) http2: http2::Builder<WindlassExecutor>,
    on_event: Option<OnEvent>,
}

type OnEvent = Rc<dyn Fn(&ServeEvent<'_>)>;

/// The shortest time of limits that are looked at again and again.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// The longest time. A deadline must fit into an `Instant`.
const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The smallest buffer that hyper accepts.
const HEAD_BYTES_MIN: usize = 8192;

impl Default for HttpServer {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpServer {
    /// The default settings.
    #[must_use]
    pub fn new() -> Self {
        let mut http2 = http2::Builder::new(WindlassExecutor);
        http2
            .keep_alive_interval(Duration::from_secs(60))
            .keep_alive_timeout(Duration::from_secs(20));
        Self {
            connections_max: 10_000,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            http2_idle_timeout: Duration::from_secs(180),
            shutdown_timeout: Duration::from_secs(30),
            idle_buffers_timeout: Duration::from_secs(1),
            has_http1: true,
            has_http2: true,
            has_info: false,
            trims_memory: false,
            http1: http1::Builder::new(),
            http2,
            on_event: None,
        }
        .head_bytes_max(64 << 10)
        .http2_streams_max(128)
    }

    /// The number of connections that may be open. Others wait in the kernel's backlog. A
    /// connection that was upgraded, for instance to a WebSocket, no longer counts.
    #[must_use]
    pub fn connections_max(mut self, count: usize) -> Self {
        self.connections_max = count.max(1);
        self
    }

    /// The time for the handshake of TLS.
    #[must_use]
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// The time for the head of a request of HTTP/1.1, which begins when the connection waits for
    /// it. So it is also the time that an idle connection is kept. It holds once more for the first
    /// byte of a connection, and with HTTP/2 for its preface. More than thirty years count as
    /// thirty.
    #[must_use]
    pub fn header_timeout(mut self, timeout: Duration) -> Self {
        self.header_timeout = timeout.min(TIMEOUT_MAX);
        self
    }

    /// The time within which a peer must take something of its responses. It begins when the
    /// server cannot send any more, because the peer does not read, and again with each progress.
    ///
    /// Progress is room in the socket. With TLS and on a ring, which buffer, the peer must take up
    /// to 64 KiB in that time. With HTTP/2 the peer must also open its windows: a connection on
    /// which all data has waited for that long is closed, at most twice the time after the last
    /// progress. Less than a millisecond counts as one, more than thirty years as thirty.
    ///
    /// The connection is reset, on every backend: its response is not complete, and output that
    /// waits keeps nothing ([`HttpListener::reset_at_drop`]).
    #[must_use]
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// The time that a connection of HTTP/2 is kept without a request. It ends gracefully then,
    /// with GOAWAY: requests that are on their way are answered. The end may come by one
    /// [`write_timeout`](Self::write_timeout) later. A peer that does not take part in it has that
    /// time once more. A connection with a tunnel of `CONNECT` is kept. Less than a millisecond
    /// counts as one, more than thirty years as thirty.
    #[must_use]
    pub fn http2_idle_timeout(mut self, timeout: Duration) -> Self {
        self.http2_idle_timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// The largest head of a request, at least 8 KiB.
    #[must_use]
    pub fn head_bytes_max(mut self, bytes: usize) -> Self {
        let bytes = bytes.max(HEAD_BYTES_MIN);
        self.http1.max_buf_size(bytes);
        self.http2.max_header_list_size(u32::try_from(bytes).unwrap_or(u32::MAX));
        self
    }

    /// The number of requests that a connection of HTTP/2 may have at once.
    #[must_use]
    pub fn http2_streams_max(mut self, count: u32) -> Self {
        self.http2.max_concurrent_streams(count);
        self
    }

    /// The time that connections have to end their requests in a shutdown.
    #[must_use]
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }

    /// The time after which a connection of HTTP/1.1 that waits for its next request frees hyper's
    /// buffers, some 18 KB. The next request allocates them again. With `Duration::MAX` they are
    /// kept.
    ///
    /// The C library keeps freed memory for later allocations:
    /// [`trim_memory`](Self::trim_memory) returns it to the system.
    #[must_use]
    pub fn idle_buffers_timeout(mut self, timeout: Duration) -> Self {
        self.idle_buffers_timeout = timeout;
        self
    }

    /// Returns freed memory to the system after many connections have ended. The server then looks
    /// at the process's memory once a second, also while it is idle.
    ///
    /// It is off by default, because it is for the memory of the whole process: switch it on for
    /// one of its servers. [`MemoryTrimmer`](windlass::MemoryTrimmer) does the work, on the thread
    /// of the server. Only glibc can do it.
    #[must_use]
    pub fn trim_memory(mut self, is_on: bool) -> Self {
        self.trims_memory = is_on;
        self
    }

    /// Serves HTTP/1.1 alone.
    #[must_use]
    pub fn http1_only(mut self) -> Self {
        (self.has_http1, self.has_http2) = (true, false);
        self
    }

    /// Serves HTTP/2 alone.
    #[must_use]
    pub fn http2_only(mut self) -> Self {
        (self.has_http1, self.has_http2) = (false, true);
        self
    }

    /// Puts a [`ConnectionInfo`](crate::ConnectionInfo) into the extensions of each request. It is
    /// off by default, because it costs each request an allocation.
    #[must_use]
    pub fn connection_info(mut self, is_on: bool) -> Self {
        self.has_info = is_on;
        self
    }

    /// Calls a closure with what is worth a line in a log. By default nothing is logged. The
    /// closure must not panic.
    ///
    /// ```
    /// let server = windlass_http::HttpServer::new().on_event(|event| eprintln!("{event}"));
    /// ```
    #[must_use]
    pub fn on_event(mut self, call: impl Fn(&ServeEvent<'_>) + 'static) -> Self {
        self.on_event = Some(Rc::new(call));
        self
    }

    /// hyper's other settings of HTTP/1.1. The timer and `header_read_timeout` are set for each
    /// connection. In a simulation there is no date.
    pub fn http1_mut(&mut self) -> &mut http1::Builder {
        &mut self.http1
    }

    /// hyper's other settings of HTTP/2. The timer is set for each connection. In a simulation
    /// there is no date.
    pub fn http2_mut(&mut self) -> &mut http2::Builder<WindlassExecutor> {
        &mut self.http2
    }

    /// hyper takes the date from the real clock. HTTP/2 encodes it in a length that depends on its
    /// digits.
    #[cfg(feature = "sim")]
    pub(crate) fn without_date_in_simulation(mut self) -> Self {
        if windlass_task::is_simulated() {
            self.http1.auto_date_header(false);
            self.http2.auto_date_header(false);
        }
        self
    }

    pub(crate) fn report(&self, event: &ServeEvent<'_>) {
        if let Some(call) = &self.on_event {
            call(event);
        }
    }

    /// Serves until the listener fails. Dropping the future closes the listener and all
    /// connections.
    ///
    /// When the process or the system has no descriptors or memory, the server waits, from 10 ms up
    /// to a second, and tries again.
    ///
    /// # Errors
    /// That of the listener, if it cannot be used any more.
    pub async fn serve<L, S, Kind>(self, listener: L, service: S) -> io::Result<()>
    where
        L: HttpListener,
        S: IntoHttpService<Kind>,
        S::Body: Body<Data: 'static, Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        S::Future: 'static,
    {
        run(self, listener, service.into_http_service(), pending()).await
    }

    /// Serves until a future is ready, and then shuts down gracefully: the listener is closed,
    /// connections without a request are closed, and the others end with their requests, or when
    /// [`shutdown_timeout`](Self::shutdown_timeout) is over. Upgraded connections of HTTP/1.1 go
    /// on, and so do its tunnels of `CONNECT`. A tunnel of HTTP/2 is a request of its connection,
    /// which ends with it or at the timeout.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use hyper::{Request, Response, body::Incoming, service::service_fn};
    /// use windlass_http::HttpServer;
    /// use windlass_task::{block_on, cancel::Cancel, net::TcpListener, spawn};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// block_on(async {
    ///     let listener = TcpListener::bind("127.0.0.1:0").await?;
    ///     let hello = service_fn(async |_: Request<Incoming>| {
    ///         Ok::<_, Infallible>(Response::new(String::new()))
    ///     });
    ///     let shutdown = Cancel::new();
    ///     let until = shutdown.clone();
    ///     let until = async move { until.cancelled().await };
    ///     let server = spawn(HttpServer::new().serve_until(listener, hello, until));
    ///     shutdown.cancel();
    ///     server.await?
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub async fn serve_until<L, S, Kind>(
        self,
        listener: L,
        service: S,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()>
    where
        L: HttpListener,
        S: IntoHttpService<Kind>,
        S::Body: Body<Data: 'static, Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        S::Future: 'static,
    {
        run(self, listener, service.into_http_service(), shutdown).await
    }
}

impl fmt::Debug for HttpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpServer")
            .field("connections_max", &self.connections_max)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("header_timeout", &self.header_timeout)
            .field("write_timeout", &self.write_timeout)
            .field("http2_idle_timeout", &self.http2_idle_timeout)
            .field("shutdown_timeout", &self.shutdown_timeout)
            .field("idle_buffers_timeout", &self.idle_buffers_timeout)
            .finish_non_exhaustive()
    }
}
