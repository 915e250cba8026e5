//! The settings of a stream, and the registration of a connected socket as a stream.

use core::fmt;
use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::net::sockopt;

use crate::{
    AddError, AddReason, Errno, Key, Reactor,
    api::{ops::Token, registrar::Registrar},
    stream::{
        ReleasedTls, StreamHandler, TlsSessionFactory,
        io::tls_state::OwnSession,
        lifecycle::{NewStream, NewTls},
        parts::ReactorParts,
        socket::StreamSocket,
        status::StreamPhase,
    },
    util::unwind_safe_drop::UnwindSafeDrop,
};

/// Settings of a stream. `Copy`; each method documents its default.
///
/// ```
/// use std::{os::unix::net::UnixStream, time::Duration};
/// use windlass::{Reactor, stream::StreamOptions};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// const OPTIONS: StreamOptions = StreamOptions::new()
///     .watermarks(16 << 10, 64 << 10)
///     .output_max(1 << 20)
///     .idle_timeout(Some(Duration::from_secs(60)));
///
/// # fn main() -> std::io::Result<()> {
/// let (ours, _theirs) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// let key = OPTIONS.with_fd(ours).with_handler(Echo).register_into(&mut reactor)?;
/// assert_eq!(reactor.stream(key)?.options(), OPTIONS);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct StreamOptions {
    pub(in crate::stream) high_watermark: usize,
    pub(in crate::stream) low_watermark: usize,
    pub(in crate::stream) output_max: usize,
    pub(in crate::stream) idle_timeout: Option<Duration>,
    pub(in crate::stream) write_stall_timeout: Option<Duration>,
    pub(in crate::stream) linger: Duration,
    pub(in crate::stream) linger_restarts: bool,
    pub(in crate::stream) fds_max: usize,
    pub(in crate::stream) nodelay: bool,
    pub(in crate::stream) keepalive: Option<Duration>,
    pub(in crate::stream) tls_handshake_timeout: Duration,
    /// Set by `Connector` only.
    pub(in crate::stream) connect_timeout: Option<Duration>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamOptions {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            high_watermark: 256 << 10,
            low_watermark: 64 << 10,
            output_max: 16 << 20,
            idle_timeout: None,
            write_stall_timeout: None,
            linger: Duration::from_secs(2),
            linger_restarts: false,
            fds_max: 0,
            nodelay: true,
            keepalive: None,
            tls_handshake_timeout: Duration::from_secs(10),
            connect_timeout: None,
        }
    }

    /// The low and high watermark of buffered output, in bytes. Above `high`,
    /// [`on_full`](StreamHandler::on_full) is called. Once the output has then fallen to `low` or
    /// less, [`on_drained`](StreamHandler::on_drained) is called. A `low` above `high` counts as
    /// `high`. Default: 64 KiB and 256 KiB.
    pub const fn watermarks(mut self, low: usize, high: usize) -> Self {
        self.low_watermark = if low < high { low } else { high };
        self.high_watermark = high;
        self
    }

    /// The maximum buffered output in bytes. A send that would exceed it is rejected as a whole
    /// ([`StreamWriteError::Full`](crate::stream::StreamWriteError::Full)). Default: 16 MiB.
    pub const fn output_max(mut self, bytes: usize) -> Self {
        self.output_max = bytes;
        self
    }

    /// The time without received data before [`on_timeout`](StreamHandler::on_timeout) is called.
    /// It does not run while reading is paused, nor after the peer's end of stream. `None`:
    /// unlimited. Default: `None`.
    ///
    /// Timeouts of streams are never early, and up to one [`GRANULE`](crate::stream::GRANULE) late,
    /// so that many streams need few wake-ups. They use the clock of the turn; a timeout set
    /// outside a turn starts with the next turn. All the streams of a reactor share one timer,
    /// which [`Stats::timers`](crate::Stats::timers) counts.
    pub const fn idle_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// The time in which the socket accepts none of the buffered output before
    /// [`on_timeout`](StreamHandler::on_timeout) is called. `None`: unlimited. Default: `None`.
    pub const fn write_stall_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.write_stall_timeout = timeout;
        self
    }

    /// The total time that [`close`](crate::stream::Stream::close) may take: for the socket to
    /// accept the output, and after the FIN for the peer's FIN. Progress of the output does not
    /// extend it, unless [`linger_restarts`](Self::linger_restarts) is on. Input received meanwhile
    /// is discarded. If output is left when the time is over, the connection is reset.
    ///
    /// Zero: no wait. Unread input then makes the kernel send a RST, which may overtake the output.
    /// Default: two seconds.
    #[doc(alias = "SO_LINGER")]
    pub const fn linger(mut self, longest: Duration) -> Self {
        self.linger = longest;
        self
    }

    /// Whether progress starts the time of [`linger`](Self::linger) again. A closed stream then
    /// waits for its output as long as the peer reads, and is reset between once and twice that
    /// time after the peer has stopped. Default: off, because a peer that reads a little from time
    /// to time can keep such a stream open without end.
    ///
    /// Progress is what the socket accepts, although it may not be reported as writable yet: the
    /// kernel does that when a third of its buffer is free, and the socket is tried before a reset.
    pub const fn linger_restarts(mut self, on: bool) -> Self {
        self.linger_restarts = on;
        self
    }

    /// `TCP_NODELAY`: small segments are sent at once. Default: on.
    #[doc(alias = "TCP_NODELAY")]
    pub const fn nodelay(mut self, on: bool) -> Self {
        self.nodelay = on;
        self
    }

    /// `SO_KEEPALIVE`, with the time without data after which TCP starts to send keep-alive probes.
    /// `None`: off. Default: `None`.
    #[doc(alias("SO_KEEPALIVE", "TCP_KEEPIDLE"))]
    pub const fn keepalive(mut self, idle: Option<Duration>) -> Self {
        self.keepalive = idle;
        self
    }

    /// The time that a TLS handshake may take, from the connection on, before the stream is closed
    /// with [`HandshakeTimeout`](crate::stream::TlsFailure::HandshakeTimeout). It also runs while
    /// the stream is paused. Default: ten seconds.
    pub const fn tls_handshake_timeout(mut self, longest: Duration) -> Self {
        self.tls_handshake_timeout = longest;
        self
    }

    /// Starts the registration of a connected TCP or Unix stream socket. The socket may be
    /// blocking.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    /// use windlass::{Reactor, stream::{Input, Stream, StreamHandler, StreamOptions}};
    ///
    /// struct Echo;
    /// impl StreamHandler for Echo {
    ///     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
    ///         let _ = stream.reply(input, ..);
    ///     }
    /// }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (ours, theirs) = UnixStream::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// StreamOptions::new().with_fd(ours).with_handler(Echo).register_into(&mut reactor)?;
    /// # drop(theirs);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_fd(self, socket: impl Into<OwnedFd>) -> StreamWithFd {
        StreamWithFd {
            options: Box::new(self),
            socket: socket.into(),
            read_buf: Vec::new(),
            tls: None,
        }
    }

    /// Short for `self.with_fd(socket).with_handler(handler).register_into(target)`.
    ///
    /// # Errors
    /// The socket and the handler are dropped.
    /// [`try_register_into`](StreamRegistration::try_register_into) returns them.
    ///
    /// - [`AlreadyExists`](crate::AddReason::AlreadyExists): the descriptor's number is registered
    ///   already. That includes a subscriber that deleted itself and whose handler still runs.
    /// - [`LimitReached`](crate::AddReason::LimitReached): the reactor holds `subscribers_max`
    ///   subscribers.
    /// - [`BadDescriptor`](crate::AddReason::BadDescriptor): the descriptor is not open (`EBADF`).
    /// - [`NotPollable`](crate::AddReason::NotPollable): the descriptor cannot be polled, for
    ///   example a regular file (`EPERM`).
    /// - [`Os`](crate::AddReason::Os): another error of the kernel, such as `ENOMEM` or `ENOSPC`.
    ///   `ESTALE` in a child of fork(2), because the reactor belongs to the parent.
    pub fn register<H: StreamHandler>(
        self,
        socket: impl Into<OwnedFd>,
        handler: H,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddReason> {
        self.adopt(socket, Vec::new(), handler, target)
    }

    /// [`register`](Self::register) for a socket from which bytes were already read: see
    /// [`StreamWithFd::with_read_buf`].
    ///
    /// # Errors
    /// The socket and the handler are dropped.
    /// [`try_register_into`](StreamRegistration::try_register_into) returns them.
    ///
    /// - [`AlreadyExists`](crate::AddReason::AlreadyExists): the descriptor's number is registered
    ///   already. That includes a subscriber that deleted itself and whose handler still runs.
    /// - [`LimitReached`](crate::AddReason::LimitReached): the reactor holds `subscribers_max`
    ///   subscribers.
    /// - [`BadDescriptor`](crate::AddReason::BadDescriptor): the descriptor is not open (`EBADF`).
    /// - [`NotPollable`](crate::AddReason::NotPollable): the descriptor cannot be polled, for
    ///   example a regular file (`EPERM`).
    /// - [`Os`](crate::AddReason::Os): another error of the kernel, such as `ENOMEM` or `ENOSPC`.
    ///   `ESTALE` in a child of fork(2), because the reactor belongs to the parent.
    pub fn adopt<H: StreamHandler>(
        self,
        socket: impl Into<OwnedFd>,
        read_buf: impl Into<Vec<u8>>,
        handler: H,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddReason> {
        self.with_fd(socket).with_read_buf(read_buf).with_handler(handler).register_into(target)
    }

    /// Sets the socket options. Connections inherit them from a listening socket.
    pub(in crate::stream) fn apply_to(&self, socket: &OwnedFd) -> Result<(), Errno> {
        if self.nodelay {
            sockopt::set_tcp_nodelay(socket, true)?;
        }
        if let Some(idle) = self.keepalive {
            sockopt::set_socket_keepalive(socket, true)?;
            // In whole seconds, at least one (tcp(7)).
            sockopt::set_tcp_keepidle(socket, idle.max(Duration::from_secs(1)))?;
        }
        Ok(())
    }
}

/// [`StreamOptions`] with a socket, still without a handler.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{Reactor, stream::{Input, Stream, StreamHandler, StreamOptions}};
///
/// struct Print;
/// impl StreamHandler for Print {
///     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
///         assert_eq!(&input[..], b"read before");
///         stream.turn().stop();
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let (ours, _theirs) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// let with_fd = StreamOptions::new().with_fd(ours).with_read_buf(*b"read before");
/// with_fd.with_handler(Print).register_into(&mut reactor)?;
/// reactor.run()
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is registered before `register_into`"]
pub struct StreamWithFd {
    /// Boxed, so that the error that returns a registration stays small.
    pub(in crate::stream) options: Box<StreamOptions>,
    socket: OwnedFd,
    read_buf: Vec<u8>,
    pub(in crate::stream) tls: Option<StreamTls>,
}

/// The TLS of a stream that is not registered yet: see [`StreamParts`].
#[derive(Debug)]
#[non_exhaustive]
pub enum StreamTls {
    /// A new session, made at the registration.
    New(Arc<dyn TlsSessionFactory>),
    /// The session of a released stream.
    Released(ReleasedTls),
}

/// The parts of a [`StreamWithFd`].
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::stream::{StreamOptions, StreamParts};
///
/// # fn main() -> std::io::Result<()> {
/// let (socket, _peer) = UnixStream::pair()?;
/// let StreamParts { socket, tls, .. } = StreamOptions::new().with_fd(socket).into_parts();
/// assert!(tls.is_none());
/// # drop(socket);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct StreamParts {
    /// The settings.
    pub options: StreamOptions,
    /// The socket.
    pub socket: OwnedFd,
    /// The bytes that were already read from it.
    pub read_buf: Vec<u8>,
    /// Its TLS. Without it, the bytes of the connection are records.
    pub tls: Option<StreamTls>,
}

impl StreamWithFd {
    /// Adds TLS. The handshake follows, and [`on_open`](StreamHandler::on_open) after it. A
    /// [`read_buf`](Self::with_read_buf) then consists of TLS records.
    pub fn with_tls(mut self, sessions: Arc<dyn TlsSessionFactory>) -> Self {
        self.tls = Some(StreamTls::New(sessions));
        self
    }

    /// Adds the TLS session of a [released](crate::stream::Stream::release) stream with this
    /// socket. It goes on where it was; [`with_read_buf`](Self::with_read_buf) must get
    /// [`Released::read_buf`](crate::stream::Released::read_buf).
    /// [`on_open`](StreamHandler::on_open) follows in the next turn if the handshake has ended. A
    /// session that has failed ends the stream with the same failure.
    ///
    /// See [`ReleasedTls`] for an example.
    pub fn with_released_tls(mut self, session: ReleasedTls) -> Self {
        self.tls = Some(StreamTls::Released(session));
        self
    }

    /// Takes it apart.
    pub fn into_parts(self) -> StreamParts {
        let Self { options, socket, read_buf, tls } = self;
        StreamParts { options: *options, socket, read_buf, tls }
    }

    /// Bytes that were already read from the socket. The handler receives them first and in one
    /// piece, after [`on_open`](StreamHandler::on_open) and after
    /// [`register_into`](StreamRegistration::register_into) has returned.
    pub fn with_read_buf(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.read_buf = bytes.into();
        self
    }

    /// Makes the session of a stream with new TLS, which is user code.
    pub(in crate::stream) fn new_session(&self) -> Option<OwnSession> {
        match &self.tls {
            Some(StreamTls::New(sessions)) => Some(OwnSession::new(sessions.new_session())),
            Some(StreamTls::Released(_)) | None => None,
        }
    }

    /// Sets the handler of the stream.
    pub fn with_handler<H: StreamHandler>(self, handler: H) -> StreamRegistration<H> {
        StreamRegistration { with: self, handler: UnwindSafeDrop::new(handler) }
    }
}

/// A socket with its settings and its handler, ready to be registered.
///
/// [`try_register_into`](Self::try_register_into) returns it in its error, so that it can be tried
/// again or taken apart.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{AddReason, Reactor, stream::StreamOptions};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let (one, other) = UnixStream::pair()?;
/// let mut reactor = Reactor::builder().subscribers_max(1).build()?;
/// StreamOptions::new().with_fd(one).with_handler(Echo).register_into(&mut reactor)?;
///
/// let second = StreamOptions::new().with_fd(other).with_handler(Echo);
/// let error = second.try_register_into(&mut reactor).unwrap_err();
/// assert_eq!(error.reason, AddReason::LimitReached);
/// let (_with_fd, _handler) = error.subscriber.into_parts();
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is registered before `register_into`"]
pub struct StreamRegistration<H> {
    pub(in crate::stream) with: StreamWithFd,
    handler: UnwindSafeDrop<H>,
}

impl<H: StreamHandler> StreamRegistration<H> {
    /// Registers it with a [`Reactor`], a [`Turn`](crate::Turn) or an [`Embedded`](crate::Embedded)
    /// reactor. [`on_open`](StreamHandler::on_open) is called in the next turn.
    ///
    /// # Errors
    /// The registration is dropped, and its socket with it:
    /// [`try_register_into`](Self::try_register_into) returns it.
    ///
    /// - [`AlreadyExists`](crate::AddReason::AlreadyExists): the descriptor's number is registered
    ///   already. That includes a subscriber that deleted itself and whose handler still runs.
    /// - [`LimitReached`](crate::AddReason::LimitReached): the reactor holds `subscribers_max`
    ///   subscribers.
    /// - [`BadDescriptor`](crate::AddReason::BadDescriptor): the descriptor is not open (`EBADF`).
    /// - [`NotPollable`](crate::AddReason::NotPollable): the descriptor cannot be polled, for
    ///   example a regular file (`EPERM`).
    /// - [`Os`](crate::AddReason::Os): another error of the kernel, such as `ENOMEM` or `ENOSPC`.
    ///   `ESTALE` in a child of fork(2), because the reactor belongs to the parent.
    pub fn register_into(
        self,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddReason> {
        self.try_register_into(target).map_err(|e| e.reason)
    }

    /// [`register_into`](Self::register_into) with an error that returns the registration.
    ///
    /// # Errors
    /// The reasons of [`register_into`](Self::register_into). The error returns the registration
    /// with its socket open.
    pub fn try_register_into(
        self,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddError<Self>> {
        let mut session = self.with.new_session();
        target.with_ops(Token(()), |reactor| self.admit(&mut session, reactor))
    }

    /// Registers it, without a call of user code. A session that is rejected is put back.
    pub(in crate::stream) fn admit(
        self,
        session: &mut Option<OwnSession>,
        reactor: &mut Reactor,
    ) -> Result<Key, AddError<Self>> {
        let Self { with: StreamWithFd { options, socket, read_buf, tls }, handler } = self;
        let (factory, released) = match tls {
            Some(StreamTls::Released(released)) => (None, Some(NewTls::GoesOn(released))),
            new => (new, None),
        };
        // A Unix socket has neither option. A stream works without them, so an error is ignored.
        let _ = options.apply_to(&socket);
        let begin = NewStream {
            socket: socket.into(),
            options: *options,
            read_buf,
            phase: StreamPhase::New,
            refused: None,
            listener: None,
            tls: session.take().map(NewTls::Begins).or(released),
        };
        let ReactorParts { streams, kernel, .. } = reactor.parts();
        match streams.add(kernel, begin, handler.into_inner()) {
            Ok(key) => Ok(key),
            Err(e) => Err(e.map(|(rejected, handler)| {
                let tls = match rejected.tls {
                    Some(NewTls::GoesOn(released)) => Some(StreamTls::Released(released)),
                    Some(NewTls::Begins(new)) => {
                        *session = Some(new);
                        factory
                    }
                    None => factory,
                };
                let socket =
                    StreamSocket::into_own(rejected.socket).expect("the registration owned it");
                let read_buf = rejected.read_buf;
                let with = StreamWithFd { options, socket, read_buf, tls };
                Self { with, handler: UnwindSafeDrop::new(handler) }
            })),
        }
    }

    /// Takes it apart. The first part still has the TLS of the stream, and takes another handler.
    pub fn into_parts(self) -> (StreamWithFd, H) {
        (self.with, self.handler.into_inner())
    }
}

impl<H> fmt::Debug for StreamRegistration<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamRegistration").field("with", &self.with).finish_non_exhaustive()
    }
}
