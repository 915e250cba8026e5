//! A stream with or without TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream with or without TLS.
#[non_exhaustive]
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the variants are part of the interface")]
pub enum MaybeTlsStream<S> {
    /// Without TLS.
    Plain(S),
    /// With a session of rustls.
    #[cfg(feature = "__rustls-tls")]
    Rustls(tokio_rustls::client::TlsStream<S>),
}

impl<S> MaybeTlsStream<S> {
    /// The stream, below TLS if there is any.
    pub fn get_ref(&self) -> &S {
        match self {
            Self::Plain(stream) => stream,
            #[cfg(feature = "__rustls-tls")]
            Self::Rustls(stream) => stream.get_ref().0,
        }
    }
}

/// Calls a method of the stream inside.
macro_rules! with_stream {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            MaybeTlsStream::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            #[cfg(feature = "__rustls-tls")]
            MaybeTlsStream::Rustls(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    };
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for MaybeTlsStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_read(context, buffer))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MaybeTlsStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_shutdown(context))
    }
}
