//! A stream's settings, and how a socket that is there already becomes a stream.

use core::fmt;
use std::{os::fd::OwnedFd, time::Duration};

use rustix::net::sockopt;

use super::{StreamHandler, books::Begin, state::Flags};
use crate::{AddError, Errno, Key, Reactor, builder::Registrar, turn::Token};

/// Settings of a stream. `Copy`; each method says its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct StreamOptions {
    pub(super) high_mark: usize,
    pub(super) low_mark: usize,
    pub(super) output_max: usize,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) write_stall_timeout: Option<Duration>,
    pub(super) linger: Duration,
    pub(super) nodelay: bool,
    pub(super) keepalive: Option<Duration>,
    /// Set by a `Connector` alone.
    pub(super) connect_timeout: Option<Duration>,
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
            high_mark: 256 << 10,
            low_mark: 64 << 10,
            output_max: 16 << 20,
            idle_timeout: None,
            write_stall_timeout: None,
            linger: Duration::from_secs(2),
            nodelay: true,
            keepalive: None,
            connect_timeout: None,
        }
    }

    /// The marks of output that waits, in bytes: above `high` the handler hears
    /// [`on_full`](StreamHandler::on_full), at or below `low` after that
    /// [`on_drained`](StreamHandler::on_drained). A `low` above `high` counts as `high`. Default:
    /// 64 KiB and 256 KiB.
    pub const fn watermarks(mut self, low: usize, high: usize) -> Self {
        self.low_mark = if low < high { low } else { high };
        self.high_mark = high;
        self
    }

    /// The most bytes of output that wait for the socket; what would be more is refused whole
    /// ([`SendError::Full`](super::SendError::Full)). Default: 16 MiB.
    pub const fn output_max(mut self, bytes: usize) -> Self {
        self.output_max = bytes;
        self
    }

    /// How long nothing may be received before [`on_timeout`](StreamHandler::on_timeout). While
    /// reading is paused, and after the peer's end, it does not count. `None`: for ever. Default:
    /// `None`.
    ///
    /// Timeouts of streams never come early. They come up to a [`GRANULE`](super::GRANULE) late, so
    /// that many streams cost few wakes; the clock is the turn's, and what is set outside a turn
    /// counts from the next. All of a reactor's streams share one of its timers, which
    /// [`Stats::timers`](crate::Stats::timers) counts.
    pub const fn idle_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// How long output may wait without the socket's taking any before
    /// [`on_timeout`](StreamHandler::on_timeout). `None`: for ever. Default: `None`.
    pub const fn write_stall_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.write_stall_timeout = timeout;
        self
    }

    /// How long [`close`](super::Stream::close) waits in all, for the socket to take the output and
    /// then, after the FIN, for the peer's, however much of the output the peer takes meanwhile:
    /// who closes with much output for slow peers gives them the time for it. What comes is
    /// discarded. Zero: not at all, and then input that nobody has read makes the kernel send a RST
    /// after all, which may overtake the output. Default: two seconds.
    pub const fn linger(mut self, longest: Duration) -> Self {
        self.linger = longest;
        self
    }

    /// `TCP_NODELAY`: small segments go out at once. Default: on.
    pub const fn nodelay(mut self, on: bool) -> Self {
        self.nodelay = on;
        self
    }

    /// `SO_KEEPALIVE`, and after how long without data TCP begins to ask whether the peer is still
    /// there. `None`: never. Default: `None`.
    pub const fn keepalive(mut self, idle: Option<Duration>) -> Self {
        self.keepalive = idle;
        self
    }

    /// Begins to make a stream of a connected stream socket, TCP or Unix, which need not be
    /// non-blocking.
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
        StreamWithFd { options: Box::new(self), socket: socket.into(), prefix: Vec::new() }
    }

    /// The same in one call: `self.with_fd(socket).with_handler(handler).register_into(target)`.
    ///
    /// # Errors
    /// See [`AddReason`](crate::AddReason); socket and handler come back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn register<H: StreamHandler>(
        self,
        socket: impl Into<OwnedFd>,
        handler: H,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddError<(OwnedFd, H)>> {
        self.adopt(socket, Vec::new(), handler, target)
    }

    /// [`register`](Self::register), for a socket from which somebody has read already: see
    /// [`StreamWithFd::with_prefix`].
    ///
    /// # Errors
    /// See [`AddReason`](crate::AddReason); socket and handler come back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn adopt<H: StreamHandler>(
        self,
        socket: impl Into<OwnedFd>,
        prefix: impl Into<Vec<u8>>,
        handler: H,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddError<(OwnedFd, H)>> {
        let registration = self.with_fd(socket).with_prefix(prefix).with_handler(handler);
        registration
            .register_into(target)
            .map_err(|e| e.map(|whole| (whole.with.socket, whole.handler)))
    }

    /// Sets the socket options; on a listener's socket, its connections inherit them.
    pub(super) fn apply_to(&self, socket: &OwnedFd) -> Result<(), Errno> {
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

/// [`StreamOptions`] that have their socket and want a handler.
#[derive(Debug)]
#[must_use = "nothing is registered before `register_into`"]
pub struct StreamWithFd {
    /// Boxed, so that the error that gives a registration back stays small.
    options: Box<StreamOptions>,
    socket: OwnedFd,
    prefix: Vec<u8>,
}

impl StreamWithFd {
    /// For a socket from which somebody has read already: the handler gets those bytes first,
    /// whole, after [`on_open`](StreamHandler::on_open) and not before
    /// [`register_into`](StreamRegistration::register_into) has returned.
    pub fn with_prefix(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.prefix = bytes.into();
        self
    }

    /// Says what handles the stream.
    pub fn with_handler<H: StreamHandler>(self, handler: H) -> StreamRegistration<H> {
        StreamRegistration { with: self, handler }
    }
}

/// A socket with its settings and its handler: ready to be registered.
///
/// When that fails it comes back inside the error, to be tried again or taken apart.
#[must_use = "nothing is registered before `register_into`"]
pub struct StreamRegistration<H> {
    with: StreamWithFd,
    handler: H,
}

impl<H: StreamHandler> StreamRegistration<H> {
    /// Registers it with a [`Reactor`], a [`Turn`](crate::Turn) or an [`Embedded`](crate::Embedded)
    /// reactor. [`on_open`](StreamHandler::on_open) comes in the next turn.
    ///
    /// # Errors
    /// See [`AddReason`](crate::AddReason); the registration comes back, the socket open.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn register_into(
        self,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddError<Self>> {
        let Self { with: StreamWithFd { options, socket, prefix }, handler } = self;
        // A Unix socket has neither, and a socket that refuses them works as well.
        let _ = options.apply_to(&socket);
        let begin = Begin {
            socket,
            options: *options,
            prefix,
            flags: Flags::default(),
            refused: None,
            listener: None,
        };
        target.with_ops(Token(()), |reactor| reactor.begin_stream(begin, handler)).map_err(|e| {
            e.map(|(socket, prefix, handler)| Self {
                with: StreamWithFd { options, socket, prefix },
                handler,
            })
        })
    }

    /// Takes it apart: the settings, the socket, what was read of it before, and the handler.
    pub fn into_parts(self) -> (StreamOptions, OwnedFd, Vec<u8>, H) {
        let StreamWithFd { options, socket, prefix } = self.with;
        (*options, socket, prefix, self.handler)
    }
}

impl<H> fmt::Debug for StreamRegistration<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamRegistration").field("with", &self.with).finish_non_exhaustive()
    }
}
