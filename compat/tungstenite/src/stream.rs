//! A stream with or without TLS.

use std::{
    fmt,
    io::{self, Read, Write},
    net::TcpStream,
};

/// Whether a URL asks for TLS.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// `ws://`: it does not.
    Plain,
    /// `wss://`: it does.
    Tls,
}

/// A stream whose small writes can be sent at once.
pub trait NoDelay {
    /// Sets `TCP_NODELAY`.
    ///
    /// # Errors
    /// Those of the socket.
    fn set_nodelay(&mut self, nodelay: bool) -> io::Result<()>;
}

impl NoDelay for TcpStream {
    fn set_nodelay(&mut self, nodelay: bool) -> io::Result<()> {
        Self::set_nodelay(self, nodelay)
    }
}

#[cfg(feature = "__rustls-tls")]
impl<S, SD, T> NoDelay for rustls::StreamOwned<S, T>
where
    S: std::ops::Deref<Target = rustls::ConnectionCommon<SD>>,
    SD: rustls::SideData,
    T: Read + Write + NoDelay,
{
    fn set_nodelay(&mut self, nodelay: bool) -> io::Result<()> {
        self.sock.set_nodelay(nodelay)
    }
}

/// A stream with or without TLS.
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "the variants are part of the interface")]
pub enum MaybeTlsStream<S: Read + Write> {
    /// Without TLS.
    Plain(S),
    /// With a session of rustls.
    #[cfg(feature = "__rustls-tls")]
    Rustls(rustls::StreamOwned<rustls::ClientConnection, S>),
}

/// Calls a method of the stream inside.
macro_rules! with_stream {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self {
            MaybeTlsStream::Plain($stream) => $call,
            #[cfg(feature = "__rustls-tls")]
            MaybeTlsStream::Rustls($stream) => $call,
        }
    };
}

impl<S: Read + Write + fmt::Debug> fmt::Debug for MaybeTlsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(stream) => f.debug_tuple("Plain").field(stream).finish(),
            #[cfg(feature = "__rustls-tls")]
            Self::Rustls(tls) => f.debug_tuple("Rustls").field(&tls.conn).field(&tls.sock).finish(),
        }
    }
}

impl<S: Read + Write> Read for MaybeTlsStream<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        with_stream!(self, stream => stream.read(buf))
    }
}

impl<S: Read + Write> Write for MaybeTlsStream<S> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        with_stream!(self, stream => stream.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        with_stream!(self, stream => stream.flush())
    }
}

impl<S: Read + Write + NoDelay> NoDelay for MaybeTlsStream<S> {
    fn set_nodelay(&mut self, nodelay: bool) -> io::Result<()> {
        with_stream!(self, stream => stream.set_nodelay(nodelay))
    }
}
