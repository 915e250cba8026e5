//! Transports of the traits that others define.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use crate::transport::Transport;

/// A stream with the traits of futures-io, as a [`Transport`].
///
/// Streams of smol, async-std and, with its feature `futures-io`, windlass-task have them.
#[derive(Clone, Copy, Debug, Default)]
pub struct FuturesIo<S> {
    /// The stream.
    pub stream: S,
}

impl<S> FuturesIo<S> {
    /// Wraps a stream.
    pub const fn new(stream: S) -> Self {
        Self { stream }
    }
}

impl<S: futures_io::AsyncRead + futures_io::AsyncWrite + Unpin> Transport for FuturesIo<S> {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    // The trait does not say it. Its default writes the first part alone, which is right too.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}

#[cfg(feature = "tokio")]
impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Transport for S {
    #[inline]
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = tokio::io::ReadBuf::new(buffer);
        Pin::new(self).poll_read(context, &mut buffer).map_ok(|()| buffer.filled().len())
    }

    #[inline]
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        tokio::io::AsyncWrite::is_write_vectored(self)
    }

    #[inline]
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_shutdown(context)
    }
}

/// A stream with the traits of hyper, such as `Upgraded`, as a [`Transport`].
#[cfg(feature = "hyper")]
#[derive(Clone, Copy, Debug, Default)]
pub struct HyperIo<S> {
    /// The stream.
    pub stream: S,
}

#[cfg(feature = "hyper")]
impl<S> HyperIo<S> {
    /// Wraps a stream.
    pub const fn new(stream: S) -> Self {
        Self { stream }
    }
}

#[cfg(feature = "hyper")]
impl<S: hyper::rt::Read + hyper::rt::Write + Unpin> Transport for HyperIo<S> {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = hyper::rt::ReadBuf::new(buffer);
        Pin::new(&mut self.stream)
            .poll_read(context, buffer.unfilled())
            .map_ok(|()| buffer.filled().len())
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
