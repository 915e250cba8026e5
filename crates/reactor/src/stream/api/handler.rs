//! The callbacks of a stream and their arguments.

use core::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};
use std::io;

use crate::{
    Errno, Key, Turn,
    error::plain_error,
    stream::{Stream, TlsFailure},
};

/// Callbacks for the bytes and events of one stream. The handler owns the state of its connection.
///
/// The dispatcher makes every call, one at a time and never inside another callback. The effects of
/// a call on a [`Stream`] follow after the handler that made the call has returned (rule 13).
///
/// `on_open` comes first. Any of `on_data`, `on_full`, `on_drained`, `on_timeout` and `on_notify`
/// follow, and `on_end` at most once. `on_close` comes once and last. If a
/// [`Connector`](crate::stream::Connector)'s stream never opened, only `on_close` is called.
///
/// A handler that panics is not called again, not even for `on_close`: its connection is reset and
/// the handler is dropped. Dropping a reactor also drops its handlers without a call; their
/// connections are closed with close(2).
///
/// ```
/// use std::{io::Write, os::unix::net::UnixStream};
/// use windlass::{Key, Reactor, Turn};
/// use windlass::stream::{DisconnectReason, Input, Stream, StreamHandler, StreamOptions};
///
/// struct Count(usize);
/// impl StreamHandler for Count {
///     fn on_data(&mut self, _: &mut Stream<'_>, input: Input<'_>) {
///         self.0 += input.len();
///     }
///     fn on_close(&mut self, _: Key, _: DisconnectReason, mut turn: Turn<'_>) {
///         assert_eq!(self.0, 5);
///         turn.stop();
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let (ours, mut theirs) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// StreamOptions::new().with_fd(ours).with_handler(Count(0)).register_into(&mut reactor)?;
/// theirs.write_all(b"hello")?;
/// drop(theirs);
/// reactor.run()
/// # }
/// ```
pub trait StreamHandler: 'static {
    /// At least one byte was received. The bytes are valid, and may be changed, during the call;
    /// copy the ones needed for longer. A call delivers at most 64 KiB, except a
    /// [`read_buf`](crate::stream::StreamWithFd::with_read_buf), which is delivered whole.
    #[doc(alias("recv", "read"))]
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>);

    /// The stream was accepted, registered or connected, and its TLS handshake, if there is one,
    /// has ended. This is the first callback.
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let _ = stream;
    }

    /// The peer has closed its writing half, so no more data will come. Default:
    /// [`close`](Stream::close).
    ///
    /// A handler that keeps the stream open can still send. It ends the stream with
    /// [`finish`](Stream::finish) or `close`.
    #[doc(alias = "EPOLLRDHUP")]
    fn on_end(&mut self, stream: &mut Stream<'_>) {
        stream.close();
    }

    /// The buffered output has exceeded the high watermark, because the peer reads more slowly than
    /// the stream is sent to.
    fn on_full(&mut self, stream: &mut Stream<'_>) {
        let _ = stream;
    }

    /// The buffered output has fallen to the low watermark. `on_full` and `on_drained` alternate.
    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        let _ = stream;
    }

    /// [`Stream::notify`] was called. Several calls of `notify` before this callback result in one
    /// call.
    fn on_notify(&mut self, stream: &mut Stream<'_>) {
        let _ = stream;
    }

    /// A timeout has expired. Default: [`abort`](Stream::abort).
    ///
    /// If the handler leaves the stream open, the timeout starts again.
    fn on_timeout(&mut self, stream: &mut Stream<'_>, timeout: Timeout) {
        let _ = timeout;
        stream.abort();
    }

    /// The stream is closed. `key` was its key, so that the handler can remove it from its own
    /// tables; it is already stale. The handler is dropped after this call.
    fn on_close(&mut self, key: Key, reason: DisconnectReason, turn: Turn<'_>) {
        let _ = (key, reason, turn);
    }

    /// The simulated socket of a [lent](crate::stream::StreamOptions::register_lent) stream, in
    /// whose place `as_fd` panics.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    fn lent_sim_id(&self) -> Option<crate::world::SimId> {
        None
    }
}

/// The timeout that has expired.
///
/// ```
/// use windlass::stream::{Input, Stream, StreamHandler, Timeout};
///
/// struct Handler;
/// impl StreamHandler for Handler {
///     fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
///     fn on_timeout(&mut self, stream: &mut Stream<'_>, timeout: Timeout) {
///         match timeout {
///             Timeout::Idle => stream.close(),
///             _ => stream.abort(),
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Timeout {
    /// Nothing was received for [`idle_timeout`](crate::stream::StreamOptions::idle_timeout).
    Idle,
    /// The socket has accepted none of the buffered output for
    /// [`write_stall_timeout`](crate::stream::StreamOptions::write_stall_timeout).
    WriteStall,
}

/// Why a stream was closed.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{Key, Reactor, Turn};
/// use windlass::stream::{DisconnectReason, Input, Stream, StreamHandler, StreamOptions};
///
/// struct Abort;
/// impl StreamHandler for Abort {
///     fn on_data(&mut self, stream: &mut Stream<'_>, _: Input<'_>) {
///         stream.abort();
///     }
///     fn on_close(&mut self, _: Key, reason: DisconnectReason, mut turn: Turn<'_>) {
///         assert_eq!(reason, DisconnectReason::Aborted);
///         turn.stop();
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let (ours, mut theirs) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// StreamOptions::new().with_fd(ours).with_handler(Abort).register_into(&mut reactor)?;
/// std::io::Write::write_all(&mut theirs, b"unwanted")?;
/// reactor.run()
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// Orderly: by [`close`](Stream::close), or because both sides have closed their writing half.
    Closed,
    /// By [`abort`](Stream::abort).
    Aborted,
    /// The handler closed or aborted it in [`on_timeout`](StreamHandler::on_timeout) for
    /// [`Timeout::Idle`].
    IdleTimeout,
    /// The handler closed or aborted it in [`on_timeout`](StreamHandler::on_timeout) for
    /// [`Timeout::WriteStall`]. Or the stream was closed, and the socket did not accept all of the
    /// output within [`linger`](crate::stream::StreamOptions::linger).
    WriteStall,
    /// The connection failed. The kernel reports `ECONNRESET` if the peer has reset it, and `EPIPE`
    /// for a write after the peer had closed it. `EIO` means that the reactor could not renew the
    /// registration.
    Error(Errno),
    /// The connection attempt failed.
    Connect(Errno),
    /// The connection attempt timed out.
    ConnectTimeout,
    /// The peer has sent more descriptors than [`fds_max`](crate::stream::StreamOptions::fds_max)
    /// allows. They are closed, and the bytes that came with them were not delivered.
    TooManyFds,
    /// Some descriptors of a message are missing, because this process may have no more open
    /// (`MSG_CTRUNC`). The others are closed, and the bytes that came with them were not delivered.
    FdsTruncated,
    /// The TLS session failed, or the connection ended without `close_notify`. The handler gets no
    /// [`on_end`](StreamHandler::on_end), because what it has received may be truncated.
    Tls(TlsFailure),
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Aborted => f.write_str("aborted"),
            Self::IdleTimeout => f.write_str("nothing was received in time"),
            Self::WriteStall => f.write_str("write timeout: the peer read no output"),
            Self::Error(errno) => write!(f, "failed: {errno}"),
            Self::Connect(errno) => write!(f, "not connected: {errno}"),
            Self::ConnectTimeout => f.write_str("not connected in time"),
            Self::TooManyFds => f.write_str("the peer sent more descriptors than fds_max allows"),
            Self::FdsTruncated => f.write_str("no room for the peer's descriptors (RLIMIT_NOFILE)"),
            Self::Tls(failure) => write!(f, "TLS: {failure}"),
        }
    }
}

/// Why bytes were not accepted for sending. None of the call's bytes is sent.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{Reactor, stream::{StreamWriteError, StreamOptions}};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let (ours, _theirs) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// let options = StreamOptions::new().output_max(4);
/// let key = options.with_fd(ours).with_handler(Echo).register_into(&mut reactor)?;
/// let mut stream = reactor.stream(key)?;
/// assert_eq!(stream.send(b"hello"), Err(StreamWriteError::Full));
/// stream.close();
/// assert_eq!(stream.send(b"late"), Err(StreamWriteError::Closed));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamWriteError {
    /// The buffered output would exceed [`output_max`](crate::stream::StreamOptions::output_max)
    /// bytes.
    Full,
    /// The stream was finished, closed or aborted, or has failed; `on_close` reports the reason.
    /// Also returned in a child of fork(2), because the stream belongs to the parent.
    Closed,
}

plain_error!(
    StreamWriteError,
    |e| match e {
        Self::Full => "as much output as may be waits already",
        Self::Closed => "the stream is closed for output",
    },
    Err(match e {
        StreamWriteError::Full => io::ErrorKind::WouldBlock,
        StreamWriteError::Closed => io::ErrorKind::BrokenPipe,
    })
);

/// The received bytes, in the reactor's own buffer. They can be changed in place, and sent back by
/// [`Stream::reply`] without a copy.
///
/// ```
/// use std::{io::{Read, Write}, os::unix::net::UnixStream};
/// use windlass::{Reactor, stream::{Input, Stream, StreamHandler, StreamOptions}};
///
/// struct Upper;
/// impl StreamHandler for Upper {
///     fn on_data(&mut self, stream: &mut Stream<'_>, mut input: Input<'_>) {
///         input.make_ascii_uppercase();
///         let _ = stream.reply(input, ..);
///         stream.turn().stop();
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let (ours, mut theirs) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// StreamOptions::new().with_fd(ours).with_handler(Upper).register_into(&mut reactor)?;
/// theirs.write_all(b"hello")?;
/// reactor.run()?;
/// let mut answer = [0; 5];
/// theirs.read_exact(&mut answer)?;
/// assert_eq!(&answer, b"HELLO");
/// # Ok(())
/// # }
/// ```
pub struct Input<'a> {
    pub(in crate::stream) bytes: &'a mut [u8],
    /// A backend may lend memory that belongs to the loop's thread.
    not_send: PhantomData<*mut ()>,
}

impl<'a> Input<'a> {
    pub(in crate::stream) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, not_send: PhantomData }
    }
}

impl Deref for Input<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for Input<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}
