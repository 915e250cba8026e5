//! What a stream's user writes, and what he is given.

use core::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};
use std::io;

use super::Stream;
use crate::{Errno, Key, Turn, error::plain_error};

/// What becomes of a stream's bytes and events. A handler owns whatever state its connection has.
///
/// Every callback is called by the dispatcher, one at a time, and never inside another one: what a
/// call on a [`Stream`] causes comes after the handler that made the call has returned (rule 13).
///
/// The order of a stream's life is `on_open`, then any of `on_data`, `on_full`, `on_drained`,
/// `on_timeout`, `on_notify` and, once, `on_end`, then `on_close`, once and last. A
/// [`Connector`](super::Connector)'s stream that never opened has `on_close` alone. A handler that
/// panics is not called again, not even for `on_close`: its connection is reset and it is dropped.
/// So are the handlers of a reactor that is dropped, their connections closed as close(2) does.
pub trait StreamHandler: 'static {
    /// Bytes have come, at least one. They are valid, and may be changed, for the time of the call;
    /// what is needed for longer must be copied. At most 64 KiB at a time; a
    /// [prefix](super::StreamWithFd::with_prefix) comes whole.
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>);

    /// The stream is open: accepted, registered or connected. Nothing has been received before.
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let _ = stream;
    }

    /// The peer has closed its writing half: no data will come any more. Default:
    /// [`close`](Stream::close).
    ///
    /// Who keeps the stream open can still send, and ends it by [`finish`](Stream::finish) or
    /// `close`.
    fn on_end(&mut self, stream: &mut Stream<'_>) {
        stream.close();
    }

    /// More output waits than the high watermark says, for the peer does not read as fast as the
    /// stream is sent to.
    fn on_full(&mut self, stream: &mut Stream<'_>) {
        let _ = stream;
    }

    /// The output that waits has sunk to the low watermark. Comes after `on_full`, in turns with
    /// it.
    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        let _ = stream;
    }

    /// Somebody has called [`Stream::notify`]. However often he did, it is called once.
    fn on_notify(&mut self, stream: &mut Stream<'_>) {
        let _ = stream;
    }

    /// Nothing has moved for as long as a timeout says. Default: [`abort`](Stream::abort).
    ///
    /// If the handler leaves the stream open, the timeout begins anew.
    fn on_timeout(&mut self, stream: &mut Stream<'_>, timeout: Timeout) {
        let _ = timeout;
        stream.abort();
    }

    /// The stream is no more. `key` is the one it had, for the books of a handler that keeps some;
    /// it is stale already. The handler is dropped after this.
    fn on_close(&mut self, key: Key, reason: CloseReason, turn: Turn<'_>) {
        let _ = (key, reason, turn);
    }
}

/// Which of a stream's timeouts is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Timeout {
    /// Nothing was received for [`idle_timeout`](super::StreamOptions::idle_timeout).
    Idle,
    /// Output waits, and the socket has taken none of it for
    /// [`write_stall_timeout`](super::StreamOptions::write_stall_timeout).
    WriteStall,
}

/// Why a stream is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// Orderly: by [`close`](Stream::close), or because both sides have ended it.
    Closed,
    /// By [`abort`](Stream::abort).
    Aborted,
    /// The handler closed or aborted it in [`on_timeout`](StreamHandler::on_timeout) for
    /// [`Timeout::Idle`].
    IdleTimeout,
    /// The handler closed or aborted it in [`on_timeout`](StreamHandler::on_timeout) for
    /// [`Timeout::WriteStall`]; or it was closed, and the socket has not taken all of the output
    /// within [`linger`](super::StreamOptions::linger).
    WriteStall,
    /// The kernel says so: `ECONNRESET` when the peer has reset it, `EPIPE` when it was written to
    /// after the peer had closed it. `EIO` when the reactor could not keep up the registration.
    Error(Errno),
    /// It could not be connected.
    Connect(Errno),
    /// It was not connected in time.
    ConnectTimeout,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Aborted => f.write_str("aborted"),
            Self::IdleTimeout => f.write_str("nothing was received in time"),
            Self::WriteStall => f.write_str("write timeout: the peer read no output"),
            Self::Error(errno) => write!(f, "failed: {errno}"),
            Self::Connect(errno) => write!(f, "not connected: {errno}"),
            Self::ConnectTimeout => f.write_str("not connected in time"),
        }
    }
}

/// Why bytes were not taken to be sent. None of them was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SendError {
    /// More than [`output_max`](super::StreamOptions::output_max) bytes would wait.
    Full,
    /// The stream has been finished, closed or aborted, or has failed: `on_close` says why. Or this
    /// is a child of fork(2), and the stream is its parent's.
    Closed,
}

plain_error!(
    SendError,
    |e| match e {
        Self::Full => "as much output as may be waits already",
        Self::Closed => "the stream is closed for output",
    },
    Err(match e {
        SendError::Full => io::ErrorKind::WouldBlock,
        SendError::Closed => io::ErrorKind::BrokenPipe,
    })
);

/// The bytes received, in the reactor's own buffer: they can be looked at and changed in place, and
/// sent back by [`Stream::reply`] without a copy.
pub struct Input<'a> {
    pub(super) bytes: &'a mut [u8],
    /// A backend may lend memory that belongs to the loop's thread.
    not_send: PhantomData<*mut ()>,
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
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
