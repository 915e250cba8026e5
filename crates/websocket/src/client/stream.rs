//! The stream of a client: TCP, TLS over it, or TLS over that, through a proxy with TLS.

use std::{
    fmt, io,
    io::IoSlice,
    task::{Context, Poll},
};

use crate::transport::Transport;

/// A connection of a client, with or without TLS.
pub struct MaybeTls<S>(Inner<S>);

enum Inner<S> {
    Plain(S),
    /// TLS to the server.
    #[cfg(feature = "rustls")]
    Tls(Box<TlsStream<S>>),
    /// TLS to the proxy.
    #[cfg(feature = "rustls")]
    Proxy(Box<TlsStream<S>>),
}

#[cfg(feature = "rustls")]
type TlsStream<S> = super::tls::Stream<MaybeTls<S>>;

impl<S> MaybeTls<S> {
    pub(super) const fn plain(stream: S) -> Self {
        Self(Inner::Plain(stream))
    }

    #[cfg(feature = "rustls")]
    pub(super) fn tls(stream: TlsStream<S>) -> Self {
        Self(Inner::Tls(Box::new(stream)))
    }

    #[cfg(feature = "rustls")]
    pub(super) fn proxy(stream: TlsStream<S>) -> Self {
        Self(Inner::Proxy(Box::new(stream)))
    }

    /// The connection below TLS.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        match &self.0 {
            Inner::Plain(stream) => stream,
            #[cfg(feature = "rustls")]
            Inner::Tls(stream) | Inner::Proxy(stream) => stream.get_ref().0.get_ref().get_ref(),
        }
    }

    /// The TLS connection to the server, for example to ask for its certificates.
    #[cfg(feature = "rustls")]
    #[must_use]
    pub fn tls_connection(&self) -> Option<&super::rustls::ClientConnection> {
        match &self.0 {
            Inner::Plain(_) | Inner::Proxy(_) => None,
            Inner::Tls(stream) => Some(stream.get_ref().1),
        }
    }
}

impl<S> fmt::Debug for MaybeTls<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Inner::Plain(_) => "MaybeTls(plain)",
            #[cfg(feature = "rustls")]
            Inner::Tls(_) => "MaybeTls(TLS)",
            #[cfg(feature = "rustls")]
            Inner::Proxy(_) => "MaybeTls(TLS to the proxy)",
        })
    }
}

/// Calls the same method of the stream within.
macro_rules! delegate {
    ($self:ident, $stream:ident => $call:expr) => {
        match &mut $self.0 {
            Inner::Plain($stream) => $call,
            #[cfg(feature = "rustls")]
            Inner::Tls($stream) | Inner::Proxy($stream) => $call,
        }
    };
}

impl<S: Transport> Transport for MaybeTls<S> {
    #[inline]
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, stream => stream.poll_read(context, buffer))
    }

    #[inline]
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, stream => stream.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.0 {
            Inner::Plain(stream) => stream.is_write_vectored(),
            #[cfg(feature = "rustls")]
            Inner::Tls(stream) | Inner::Proxy(stream) => Transport::is_write_vectored(&**stream),
        }
    }

    #[inline]
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_shutdown(context))
    }
}
