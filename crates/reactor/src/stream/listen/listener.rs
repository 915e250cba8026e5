//! Listening sockets.

use core::fmt;
use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use crate::{
    AddError, AddReason, Key, Reactor,
    api::{ops::Token, registrar::Registrar},
    stream::{
        Address, ListenError, Peer, StreamHandler, StreamLimit, StreamOptions, TlsSessionFactory,
        parts::ReactorParts, socket::ListenSocket,
    },
    vsock::VsockAddr,
};

/// Settings of a [`Listener`]. `Copy`; each method documents its default.
///
/// ```
/// use std::time::Duration;
/// use windlass::stream::{ListenOptions, StreamOptions};
///
/// # fn main() -> std::io::Result<()> {
/// let listener = ListenOptions::new()
///     .connections_max(1000)
///     .stream(StreamOptions::new().idle_timeout(Some(Duration::from_secs(60))))
///     .tcp("127.0.0.1:0".parse().unwrap())?;
/// println!("listening at {}", listener.local_addr()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ListenOptions {
    pub(in crate::stream) stream: StreamOptions,
    pub(in crate::stream) backlog: i32,
    pub(in crate::stream) reuse_port: bool,
    pub(in crate::stream) accepts_per_event: usize,
    pub(in crate::stream) connections_max: usize,
    pub(in crate::stream) retry: Duration,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ListenOptions {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            stream: StreamOptions::new(),
            backlog: 4096,
            reuse_port: false,
            accepts_per_event: 64,
            connections_max: usize::MAX,
            retry: Duration::from_millis(100),
        }
    }

    /// The settings of accepted streams. Default: [`StreamOptions::new`].
    pub const fn stream(mut self, options: StreamOptions) -> Self {
        self.stream = options;
        self
    }

    /// The length of the kernel's backlog: connections that are not accepted yet. The kernel caps
    /// it at `net.core.somaxconn`. Default: 4096.
    #[doc(alias = "somaxconn")]
    pub const fn backlog(mut self, connections: u16) -> Self {
        self.backlog = connections as i32;
        self
    }

    /// `SO_REUSEPORT`: several sockets listen at one TCP address, and the kernel distributes the
    /// connections. All of them must set it. Default: off.
    #[doc(alias = "SO_REUSEPORT")]
    pub const fn reuse_port(mut self, on: bool) -> Self {
        self.reuse_port = on;
        self
    }

    /// The maximum number of connections accepted per event, so that other subscribers get their
    /// turn; at least 1. Default: 64.
    pub const fn accepts_per_event(mut self, connections: usize) -> Self {
        self.accepts_per_event = if connections == 0 { 1 } else { connections };
        self
    }

    /// The maximum number of accepted streams open at a time. More connections wait in the kernel's
    /// backlog until one is closed. Default: unlimited.
    pub const fn connections_max(mut self, streams: usize) -> Self {
        self.connections_max = streams;
        self
    }

    /// The pause in accepting after a shortage: no descriptor or memory (`EMFILE` and similar
    /// errors), the reactor's limit of subscribers, or a [shared limit](Listener::limited) reached.
    /// Default: 100 ms.
    #[doc(alias = "EMFILE")]
    pub const fn retry(mut self, pause: Duration) -> Self {
        self.retry = pause;
        self
    }

    /// Listens at a TCP address. Port 0 chooses a free port, which [`Listener::local_addr`]
    /// returns. `SO_REUSEADDR` is set. An IPv6 wildcard address accepts IPv4 too if the system is
    /// configured so (`net.ipv6.bindv6only`).
    ///
    /// # Errors
    /// A [`ListenError`] with the errors of socket(2), bind(2) and listen(2), among them:
    ///
    /// - `EADDRINUSE`: another socket listens at the address.
    /// - `EADDRNOTAVAIL`: the address is not local.
    /// - `EACCES`: the port is below 1024 and the process lacks `CAP_NET_BIND_SERVICE`.
    /// - `EMFILE`: the process has no descriptor left.
    #[doc(alias("socket", "bind", "listen", "SO_REUSEADDR"))]
    pub fn tcp(self, address: SocketAddr) -> io::Result<Listener> {
        let named = |errno| ListenError { address: Address::Ip(address), errno };
        self.with_socket(ListenSocket::tcp(address, &self).map_err(named)?)
    }

    /// Listens at a path. The file must not exist yet, and the caller removes it afterwards.
    ///
    /// # Errors
    /// A [`ListenError`] with the errors of socket(2), bind(2) and listen(2), among them:
    ///
    /// - `EADDRINUSE`: the file exists.
    /// - `ENAMETOOLONG`: the path is longer than 107 bytes.
    /// - `ENOENT` or `EACCES`: the directory does not exist or is not writable.
    /// - `EMFILE`: the process has no descriptor left.
    #[doc(alias("AF_UNIX", "bind", "listen"))]
    pub fn unix(self, path: impl AsRef<Path>) -> io::Result<Listener> {
        let path = path.as_ref();
        let named = |errno| ListenError { address: Address::Unix(Some(path.into())), errno };
        self.with_socket(ListenSocket::unix(path, &self).map_err(named)?)
    }

    /// Listens for connections between a virtual machine and its host. With
    /// [`CID_ANY`](VsockAddr::CID_ANY) it listens in every context of this machine.
    /// [`PORT_ANY`](VsockAddr::PORT_ANY) chooses a free port, which [`Listener::local_addr`]
    /// returns.
    ///
    /// # Errors
    /// A [`ListenError`] with the errors of socket(2), bind(2) and listen(2), among them:
    ///
    /// - `EAFNOSUPPORT`: the kernel lacks vsock, or the reactor is simulated.
    /// - `EADDRINUSE`: another socket listens at the address.
    /// - `EADDRNOTAVAIL`: the context is not of this machine.
    /// - `EACCES`: the port is below 1024 and the process lacks `CAP_NET_BIND_SERVICE`.
    #[doc(alias("AF_VSOCK", "bind", "listen"))]
    pub fn vsock(self, address: VsockAddr) -> io::Result<Listener> {
        let named = |errno| ListenError { address: Address::Vsock(address), errno };
        self.with_socket(ListenSocket::vsock(address, &self).map_err(named)?)
    }

    /// Uses a socket that already listens, for example one from systemd.
    ///
    /// The socket is made non-blocking, again if another owner of the socket later makes it
    /// blocking. It also gets a receive timeout (`SO_RCVTIMEO`) of one kernel tick. This limits the
    /// time for which `accept4` blocks the loop if that happens at the wrong moment.
    ///
    /// Both settings apply to every owner of the socket. TCP connections inherit the timeout;
    /// streams of this crate are not affected by it. A program that accepts from the same socket
    /// and reads with blocking calls must set the timeout of its connections to zero. If another
    /// owner removes both settings while the loop accepts, the loop can still block until the next
    /// connection.
    ///
    /// # Errors
    /// - `EINVAL`: the socket does not listen, or is not a stream socket.
    /// - `ENOTSOCK`: the descriptor is not a socket.
    pub fn from_fd(self, socket: impl Into<OwnedFd>) -> io::Result<Listener> {
        self.with_socket(ListenSocket::adopt(socket.into())?)
    }

    fn with_socket(self, socket: ListenSocket) -> io::Result<Listener> {
        socket.prepare(&self.stream)?;
        Ok(Listener { socket, options: Box::new(self), limit: None, tls: None })
    }
}

/// A listening socket that is not registered yet. Until it is, connections wait in the kernel's
/// backlog. It may be made on one thread and registered on another.
///
/// ```
/// use windlass::{Reactor, stream::Listener};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let listener = Listener::tcp("127.0.0.1:0".parse().unwrap())?;
/// println!("listening at {}", listener.local_addr()?);
/// listener.with_handler(|_peer| Some(Echo)).register_into(&mut reactor)?;
/// # Ok(())
/// # }
/// ```
#[doc(alias("accept4", "listen"))]
#[derive(Debug)]
#[must_use]
pub struct Listener {
    pub(in crate::stream) socket: ListenSocket,
    /// Boxed, so that the error that returns a listener stays small.
    pub(in crate::stream) options: Box<ListenOptions>,
    pub(in crate::stream) limit: Option<StreamLimit>,
    pub(in crate::stream) tls: Option<Arc<dyn TlsSessionFactory>>,
}

impl Listener {
    /// Listens at a TCP address with the default settings. See [`ListenOptions::tcp`].
    ///
    /// # Errors
    /// See [`ListenOptions::tcp`].
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        ListenOptions::new().tcp(address)
    }

    /// Listens at a path with the default settings. See [`ListenOptions::unix`].
    ///
    /// # Errors
    /// See [`ListenOptions::unix`].
    pub fn unix(path: impl AsRef<Path>) -> io::Result<Self> {
        ListenOptions::new().unix(path)
    }

    /// Listens for connections of vsock with the default settings. See [`ListenOptions::vsock`].
    ///
    /// # Errors
    /// See [`ListenOptions::vsock`].
    pub fn vsock(address: VsockAddr) -> io::Result<Self> {
        ListenOptions::new().vsock(address)
    }

    /// Adds a limit on open streams that listeners of any thread share. It applies in addition to
    /// [`connections_max`](ListenOptions::connections_max), and more connections wait in the
    /// kernel's backlog as well. If another listener's stream is closed, this listener notices the
    /// free place within [`retry`](ListenOptions::retry).
    pub fn limited(mut self, limit: &StreamLimit) -> Self {
        self.limit = Some(limit.clone());
        self
    }

    /// Adds TLS to its connections. The handler of a connection is made when it is accepted, and
    /// its [`on_open`](StreamHandler::on_open) follows after the handshake.
    pub fn with_tls(mut self, sessions: Arc<dyn TlsSessionFactory>) -> Self {
        self.tls = Some(sessions);
        self
    }

    /// What makes the TLS sessions of its connections: see [`with_tls`](Self::with_tls). `None`
    /// without TLS.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<dyn TlsSessionFactory>> {
        self.tls.as_ref()
    }

    /// The address of the listener.
    ///
    /// # Errors
    /// The errors of getsockname(2).
    #[doc(alias = "getsockname")]
    pub fn local_addr(&self) -> io::Result<Address> {
        self.socket.local_addr()
    }

    /// Sets the closure that makes the handler of each connection. If it returns `None`, the
    /// connection is closed.
    ///
    /// A panic of `accept` closes that connection and unwinds out of `run_once`. The listener stays
    /// registered.
    #[doc(alias("accept4", "accept"))]
    pub fn with_handler<H, F>(self, accept: F) -> ListenerRegistration<F>
    where
        H: StreamHandler,
        F: FnMut(&Peer<'_>) -> Option<H> + 'static,
    {
        ListenerRegistration { listener: self, accept }
    }

    /// Short for `self.with_handler(accept).register_into(target)`.
    ///
    /// # Errors
    /// The listener and the closure are dropped.
    /// [`try_register_into`](ListenerRegistration::try_register_into) returns them.
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
    pub fn register<H, F>(
        self,
        accept: F,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<ListenerKey, AddReason>
    where
        H: StreamHandler,
        F: FnMut(&Peer<'_>) -> Option<H> + 'static,
    {
        self.with_handler(accept).register_into(target)
    }
}

/// A listener with the closure that makes its handlers, ready to be registered.
///
/// [`try_register_into`](Self::try_register_into) returns it in its error, so that it can be tried
/// again or taken apart.
///
/// ```
/// use windlass::{AddReason, Reactor, stream::Listener};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let address = "127.0.0.1:0".parse().unwrap();
/// let mut reactor = Reactor::builder().subscribers_max(1).build()?;
/// Listener::tcp(address)?.with_handler(|_| Some(Echo)).register_into(&mut reactor)?;
///
/// let second = Listener::tcp(address)?.with_handler(|_| Some(Echo));
/// let error = second.try_register_into(&mut reactor).unwrap_err();
/// assert_eq!(error.reason, AddReason::LimitReached);
/// let (_listener, _accept) = error.subscriber.into_parts();
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is registered before `register_into`"]
pub struct ListenerRegistration<F> {
    listener: Listener,
    accept: F,
}

impl<F> ListenerRegistration<F> {
    /// Registers it with a [`Reactor`], a [`Turn`](crate::Turn) or an [`Embedded`](crate::Embedded)
    /// reactor. Connections are accepted from the next turn on.
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
    pub fn register_into<H>(
        self,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<ListenerKey, AddReason>
    where
        H: StreamHandler,
        F: FnMut(&Peer<'_>) -> Option<H> + 'static,
    {
        self.try_register_into(target).map_err(|e| e.reason)
    }

    /// [`register_into`](Self::register_into) with an error that returns the registration.
    ///
    /// # Errors
    /// The reasons of [`register_into`](Self::register_into). The error returns the registration,
    /// whose socket keeps listening.
    pub fn try_register_into<H>(
        self,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<ListenerKey, AddError<Self>>
    where
        H: StreamHandler,
        F: FnMut(&Peer<'_>) -> Option<H> + 'static,
    {
        target
            .with_ops(Token(()), |reactor| {
                let ReactorParts { streams, kernel, .. } = reactor.parts();
                streams.add_listener(kernel, self.listener, self.accept)
            })
            .map_err(|e| e.map(|(listener, accept)| Self { listener, accept }))
    }

    /// Returns its parts.
    pub fn into_parts(self) -> (Listener, F) {
        (self.listener, self.accept)
    }
}

impl<F> fmt::Debug for ListenerRegistration<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerRegistration")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl AsFd for Listener {
    /// # Panics
    /// If it is simulated (feature `sim`).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The key of a registered [`Listener`]. `Copy`, and stale once the listener is deleted.
///
/// ```
/// use windlass::{Reactor, stream::{Listener, ListenerKey}};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let listener = Listener::tcp("127.0.0.1:0".parse().unwrap())?;
/// let key: ListenerKey = listener.with_handler(|_| Some(Echo)).register_into(&mut reactor)?;
/// assert_eq!(reactor.listener(key)?.accepted(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerKey(pub(in crate::stream) Key);

impl ListenerKey {
    /// The key of a listener, made of that of a member of a [`Group`](crate::Group). If the key
    /// names no listener, later calls return `NotFound`.
    #[must_use]
    pub const fn from_key(key: Key) -> Self {
        Self(key)
    }

    /// The key without the type.
    #[must_use]
    pub const fn key(self) -> Key {
        self.0
    }
}

impl From<ListenerKey> for Key {
    fn from(listener: ListenerKey) -> Self {
        listener.0
    }
}

impl fmt::Debug for ListenerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener{:?}", self.0)
    }
}
