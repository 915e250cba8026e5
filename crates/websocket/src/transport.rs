//! The byte streams that a WebSocket runs on.

use std::{
    io::{self, IoSlice},
    task::{Context, Poll},
    time::Duration,
};

/// A byte stream in both directions, and perhaps a timer.
///
/// - With the feature `tokio`, everything with tokio's `AsyncRead` and `AsyncWrite` is a transport.
/// - [`FuturesIo`](crate::FuturesIo) makes one of a stream with the traits of futures-io.
/// - With the feature `hyper`, `HyperIo` makes one of a stream with hyper's, such as `Upgraded`.
/// - [`Timed`](crate::Timed) adds a timer to any of them.
///
/// Implement it for a type that has none of these traits.
pub trait Transport: Unpin {
    /// Reads into a buffer that is not empty. `Ok(0)` is the end of the stream. A TLS stream that
    /// was cut is an error of kind `UnexpectedEof`.
    ///
    /// # Errors
    /// That of the stream.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>>;

    /// Writes a part of the bytes, at least one.
    ///
    /// # Errors
    /// That of the stream.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Writes a part of the bytes of several buffers, of which the first is not empty.
    ///
    /// # Errors
    /// That of the stream.
    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write(context, parts.first().map_or(&[], |part| part))
    }

    /// Whether [`poll_write_vectored`](Self::poll_write_vectored) takes more than the first buffer.
    fn is_write_vectored(&self) -> bool {
        false
    }

    /// Sends what the stream itself buffers.
    ///
    /// # Errors
    /// That of the stream.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ends writing, after a flush.
    ///
    /// # Errors
    /// That of the stream.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The time since a moment that the transport chooses. `None` means that it has no timer: the
    /// limits of time are off.
    fn now(&self) -> Option<Duration> {
        None
    }

    /// Waits until [`now`](Self::now) has reached `deadline`. A later call replaces the deadline.
    fn poll_until(&mut self, context: &mut Context<'_>, deadline: Duration) -> Poll<()> {
        let _ = (context, deadline);
        Poll::Pending
    }
}
