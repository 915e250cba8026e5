//! Sockets that connections come to.

use core::fmt;
use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::{Address, Peer, StreamHandler, StreamLimit, StreamOptions};
use crate::{AddError, Errno, Key, Reactor, builder::Registrar, turn::Token};

/// Settings of a [`Listener`]. `Copy`; each method says its default.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ListenOptions {
    pub(super) stream: StreamOptions,
    pub(super) backlog: i32,
    pub(super) reuse_port: bool,
    pub(super) accepts_per_event: usize,
    pub(super) connections_max: usize,
    pub(super) retry: Duration,
}

/// How long `accept4` waits on a listener that somebody else has made blocking: the shortest time
/// that `SO_RCVTIMEO` takes (socket(7)). The kernel rounds it up to a tick, 1 to 10 ms.
const ACCEPT_TIMEOUT: Duration = Duration::from_micros(1);

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

    /// The settings of the streams that are accepted. Default: [`StreamOptions::new`].
    pub const fn stream(mut self, options: StreamOptions) -> Self {
        self.stream = options;
        self
    }

    /// How many connections the kernel keeps that are not accepted yet; it cuts the number to
    /// `net.core.somaxconn`. Default: 4096.
    pub const fn backlog(mut self, connections: u16) -> Self {
        self.backlog = connections as i32;
        self
    }

    /// `SO_REUSEPORT`: several sockets listen at one TCP address, and the kernel spreads the
    /// connections. All of them must ask for it. Default: no.
    pub const fn reuse_port(mut self, on: bool) -> Self {
        self.reuse_port = on;
        self
    }

    /// How many connections are accepted at a time before others have their turn; at least 1.
    /// Default: 64.
    pub const fn accepts_per_event(mut self, connections: usize) -> Self {
        self.accepts_per_event = if connections == 0 { 1 } else { connections };
        self
    }

    /// How many accepted streams may be open at a time. More wait in the kernel's backlog until one
    /// is closed. Default: as many as there can be.
    pub const fn connections_max(mut self, streams: usize) -> Self {
        self.connections_max = streams;
        self
    }

    /// How long to leave connections alone after the process or the system had no descriptor or
    /// memory for one (`EMFILE` and its like), or the reactor as many subscribers as it may, or a
    /// [shared limit](Listener::limited) was reached. Default: 100 ms.
    pub const fn retry(mut self, pause: Duration) -> Self {
        self.retry = pause;
        self
    }

    /// Listens at a TCP address; port 0 is a free one, which [`Listener::local_addr`] tells.
    /// `SO_REUSEADDR` is set. An IPv6 wildcard takes IPv4 too where the system says so
    /// (`net.ipv6.bindv6only`).
    ///
    /// # Errors
    /// What socket(2), bind(2) and listen(2) say: `EADDRINUSE`, `EACCES`.
    pub fn tcp(self, address: SocketAddr) -> io::Result<Listener> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket(family)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if self.reuse_port {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, self.backlog)?;
        self.from_fd(socket)
    }

    /// Listens at a path. The file must not be there; who has bound it removes it.
    ///
    /// # Errors
    /// What socket(2), bind(2) and listen(2) say: `EADDRINUSE` when the file is there,
    /// `ENAMETOOLONG`.
    pub fn unix(self, path: impl AsRef<Path>) -> io::Result<Listener> {
        let address = SocketAddrUnix::new(path.as_ref())?;
        let socket = socket(AddressFamily::UNIX)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, self.backlog)?;
        self.from_fd(socket)
    }

    /// Takes a socket that listens already, from systemd say.
    ///
    /// It is made non-blocking, and made so again if another owner of the socket makes it blocking.
    /// It also gets a receive timeout (`SO_RCVTIMEO`) of one kernel tick, so that the loop does not
    /// block in `accept4` if that happens at the wrong moment.
    ///
    /// Both apply to everybody who shares the socket. TCP connections inherit the timeout; streams
    /// of this crate are not affected by it. A program that accepts from the same socket and reads
    /// with blocking calls must set the timeout of its connections to zero. Another owner that
    /// removes both the flag and the timeout while the loop accepts can still make it wait for the
    /// next connection.
    ///
    /// # Errors
    /// `EINVAL` for what is not a listening stream socket, `ENOTSOCK` for what is no socket.
    pub fn from_fd(self, socket: impl Into<OwnedFd>) -> io::Result<Listener> {
        let socket = socket.into();
        if !sockopt::socket_acceptconn(&socket)?
            || sockopt::socket_type(&socket)? != SocketType::STREAM
        {
            return Err(Errno::INVAL.into());
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ACCEPT_TIMEOUT))?;
        // Connections inherit them. A Unix socket has neither, and one that refuses them works as
        // well.
        let _ = self.stream.apply_to(&socket);
        Ok(Listener { socket, options: Box::new(self), limit: None })
    }
}

fn socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

/// A socket that listens and is not registered yet. It accepts nothing before it is; connections
/// wait in the kernel's backlog.
#[derive(Debug)]
#[must_use]
pub struct Listener {
    pub(super) socket: OwnedFd,
    /// Boxed, so that the error that gives a listener back stays small.
    pub(super) options: Box<ListenOptions>,
    pub(super) limit: Option<StreamLimit>,
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

    /// The same, with a limit on its open streams that it shares with other listeners, of any
    /// thread. It holds beside [`connections_max`](ListenOptions::connections_max), and more
    /// connections wait in the kernel's backlog likewise: when there is room again because a stream
    /// of another listener was closed, that is noticed within [`retry`](ListenOptions::retry).
    pub fn limited(mut self, limit: &StreamLimit) -> Self {
        self.limit = Some(limit.clone());
        self
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What getsockname(2) says.
    pub fn local_addr(&self) -> io::Result<Address> {
        Address::local_of(&self.socket)
    }

    /// Says what to ask for the handler of each connection. `None` refuses the connection, and it
    /// is closed.
    ///
    /// A panic of `accept` closes that connection and unwinds out of `run_once`; the listener
    /// stays.
    pub fn with_handler<H, F>(self, accept: F) -> ListenerRegistration<F>
    where
        H: StreamHandler,
        F: FnMut(&Peer<'_>) -> Option<H> + 'static,
    {
        ListenerRegistration { listener: self, accept }
    }

    /// The same in one call: `self.with_handler(accept).register_into(target)`.
    ///
    /// # Errors
    /// See [`AddReason`](crate::AddReason); listener and closure come back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn register<H, F>(
        self,
        accept: F,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<ListenerKey, AddError<(Self, F)>>
    where
        H: StreamHandler,
        F: FnMut(&Peer<'_>) -> Option<H> + 'static,
    {
        self.with_handler(accept)
            .register_into(target)
            .map_err(|e| e.map(ListenerRegistration::into_parts))
    }
}

/// A listener and what it asks for handlers: ready to be registered.
///
/// When that fails it comes back inside the error, to be tried again or taken apart.
#[must_use = "nothing is registered before `register_into`"]
pub struct ListenerRegistration<F> {
    listener: Listener,
    accept: F,
}

impl<F> ListenerRegistration<F> {
    /// Registers it with a [`Reactor`], a [`Turn`](crate::Turn) or an [`Embedded`](crate::Embedded)
    /// reactor: connections are accepted from the next turn on.
    ///
    /// # Errors
    /// See [`AddReason`](crate::AddReason); the registration comes back, the socket listening.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn register_into<H>(
        self,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<ListenerKey, AddError<Self>>
    where
        H: StreamHandler,
        F: FnMut(&Peer<'_>) -> Option<H> + 'static,
    {
        target
            .with_ops(Token(()), |reactor| reactor.begin_listening(self.listener, self.accept))
            .map_err(|e| e.map(|(listener, accept)| Self { listener, accept }))
    }

    /// Takes it apart.
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
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The name of a registered [`Listener`]. `Copy`, and stale once it is deleted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerKey(pub(super) Key);

impl fmt::Debug for ListenerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener{:?}", self.0)
    }
}
