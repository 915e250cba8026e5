//! Outgoing connections.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    AddError, AddReason, Errno, Key, Reactor,
    api::{ops::Token, registrar::Registrar},
    kernel::Kernel,
    stream::{
        StreamHandler, StreamOptions, TlsSessionFactory,
        io::tls_state::OwnSession,
        lifecycle::{NewStream, NewTls},
        parts::ReactorParts,
        socket::StreamSocket,
        status::StreamPhase,
    },
    vsock::VsockAddr,
};

/// An outgoing connection to a TCP, Unix or vsock address.
///
/// ```
/// use windlass::{Key, Reactor, Turn};
/// use windlass::stream::{DisconnectReason, Connector, Input, Stream, StreamHandler};
///
/// struct Print;
/// impl StreamHandler for Print {
///     fn on_open(&mut self, stream: &mut Stream<'_>) {
///         let _ = stream.send(b"GET / HTTP/1.0\r\n\r\n");
///     }
///     fn on_data(&mut self, _: &mut Stream<'_>, input: Input<'_>) {
///         print!("{}", String::from_utf8_lossy(&input));
///     }
///     fn on_close(&mut self, _: Key, reason: DisconnectReason, mut turn: Turn<'_>) {
///         println!("{reason}");
///         turn.stop();
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// # let server = std::net::TcpListener::bind("127.0.0.1:0")?;
/// # let address = server.local_addr()?;
/// # let server = std::thread::spawn(move || {
/// #     let (mut client, _) = server.accept().unwrap();
/// #     std::io::Read::read_exact(&mut client, &mut [0; 18]).unwrap();
/// #     std::io::Write::write_all(&mut client, b"HTTP/1.0 204 No Content").unwrap();
/// # });
/// let mut reactor = Reactor::new()?;
/// Connector::tcp(address).connect(Print, &mut reactor)?;
/// reactor.run()?;
/// # server.join().unwrap();
/// # Ok(())
/// # }
/// ```
#[doc(alias("connect", "EINPROGRESS"))]
#[derive(Clone, Debug)]
#[must_use]
pub struct Connector {
    to: To,
    options: StreamOptions,
    timeout: Option<Duration>,
    tls: Option<Arc<dyn TlsSessionFactory>>,
}

#[derive(Clone, Debug)]
enum To {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Vsock(VsockAddr),
}

impl Connector {
    const fn new(to: To) -> Self {
        Self {
            to,
            options: StreamOptions::new(),
            timeout: Some(Duration::from_secs(30)),
            tls: None,
        }
    }

    /// Connects to a TCP address.
    pub const fn tcp(to: SocketAddr) -> Self {
        Self::new(To::Tcp(to))
    }

    /// Connects to a Unix socket.
    pub fn unix(path: impl AsRef<Path>) -> Self {
        Self::new(To::Unix(path.as_ref().into()))
    }

    /// Connects to a virtual machine or to its host. [`timeout`](Self::timeout) also sets the limit
    /// of the kernel, which without it is two seconds.
    #[doc(alias = "AF_VSOCK")]
    pub const fn vsock(to: VsockAddr) -> Self {
        Self::new(To::Vsock(to))
    }

    /// The settings of the stream. Default: [`StreamOptions::new`].
    pub const fn stream(mut self, options: StreamOptions) -> Self {
        self.options = options;
        self
    }

    /// The connect timeout. `None`: the kernel's own limit, about two minutes. Default: 30 seconds.
    pub const fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Adds TLS: once connected, the handshake follows, and [`on_open`](StreamHandler::on_open)
    /// after it.
    pub fn with_tls(mut self, sessions: Arc<dyn TlsSessionFactory>) -> Self {
        self.tls = Some(sessions);
        self
    }

    /// Starts to connect. The returned key is valid at once: the stream can be sent to, and
    /// aborted, before it is open.
    ///
    /// [`on_open`](StreamHandler::on_open) reports success. On failure only
    /// [`on_close`](StreamHandler::on_close) is called, with
    /// [`DisconnectReason::Connect`](crate::stream::DisconnectReason::Connect) or
    /// [`ConnectTimeout`](crate::stream::DisconnectReason::ConnectTimeout). Both callbacks come
    /// after this call has returned.
    ///
    /// # Errors
    /// The handler is dropped: [`try_connect`](Self::try_connect) returns it.
    ///
    /// - [`LimitReached`](crate::AddReason::LimitReached): the reactor holds `subscribers_max`
    ///   subscribers.
    /// - [`Os`](crate::AddReason::Os): no socket can be created (`EMFILE`, `ENFILE`, `ENOBUFS`), or
    ///   the path is too long (`ENAMETOOLONG`). `ESTALE` in a child of fork(2).
    pub fn connect<H: StreamHandler>(
        &self,
        handler: H,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddReason> {
        self.try_connect(handler, target).map_err(|e| e.reason)
    }

    /// [`connect`](Self::connect) with an error that returns the handler.
    ///
    /// # Errors
    /// The reasons of [`connect`](Self::connect). The error returns the handler.
    pub fn try_connect<H: StreamHandler>(
        &self,
        handler: H,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddError<H>> {
        let mut session = self.new_session();
        target.with_ops(Token(()), |reactor| self.admit(handler, &mut session, reactor))
    }

    /// Makes the TLS session, which is user code.
    pub(in crate::stream) fn new_session(&self) -> Option<OwnSession> {
        self.tls.as_ref().map(|sessions| OwnSession::new(sessions.new_session()))
    }

    /// Starts to connect, without a call of user code. A session that is rejected is put back.
    pub(in crate::stream) fn admit<H: StreamHandler>(
        &self,
        handler: H,
        session: &mut Option<OwnSession>,
        reactor: &mut Reactor,
    ) -> Result<Key, AddError<H>> {
        let ReactorParts { streams, kernel, .. } = reactor.parts();
        let (socket, phase, refused) = match self.begin(kernel) {
            Ok(begun) => begun,
            Err(errno) => return Err(AddError::new(errno.into(), handler)),
        };
        let options = StreamOptions { connect_timeout: self.timeout, ..self.options };
        let begin = NewStream {
            socket,
            options,
            read_buf: Vec::new(),
            phase,
            refused,
            listener: None,
            tls: session.take().map(NewTls::Begins),
        };
        streams.add(kernel, begin, handler).map_err(|e| {
            e.map(|(rejected, handler)| {
                if let Some(NewTls::Begins(new)) = rejected.tls {
                    *session = Some(new);
                }
                handler
            })
        })
    }

    /// Creates a socket, starts to connect it, and returns its phase.
    fn begin(&self, kernel: &Kernel) -> Result<(StreamSocket, StreamPhase, Option<Errno>), Errno> {
        let (socket, begun) = match &self.to {
            To::Tcp(to) => StreamSocket::to_tcp(*to, &self.options, kernel)?,
            To::Unix(path) => StreamSocket::to_unix(path, &self.options, kernel)?,
            To::Vsock(to) => StreamSocket::to_vsock(*to, &self.options, self.timeout, kernel)?,
        };
        Ok(match begun {
            Ok(()) => (socket, StreamPhase::New, None),
            Err(Errno::INPROGRESS | Errno::INTR) => (socket, StreamPhase::Connecting, None),
            Err(errno) => (socket, StreamPhase::New, Some(errno)),
        })
    }
}
