//! [`HttpListener`]: where connections come from.

use core::future::{Future, Ready, ready};
use std::{io, net::SocketAddr, time::Duration};

use hyper::rt::{Read, Write};
use windlass_task::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A source of connections for a server: TCP, Unix sockets, TLS, or your own.
///
/// A connection comes in two steps. [`accept`](Self::accept) is quick. The handshake runs in the
/// connection's own task, so that a slow peer delays nobody.
pub trait HttpListener {
    /// A connection that HTTP runs on.
    type Stream: Read + Write + Unpin + 'static;
    /// The rest of the work until the connection can be used.
    type Handshake: Future<Output = io::Result<Handshaken<Self::Stream>>> + 'static;

    /// Accepts a connection. Dropping the future accepts none.
    ///
    /// # Errors
    /// `ConnectionAborted`, and other errors of a single connection, make the server try again. So
    /// do others, after a pause. `InvalidInput`, `EBADF` and `ENOTSOCK` end it.
    fn accept(&mut self) -> impl Future<Output = io::Result<AcceptedConnection<Self::Handshake>>>;

    /// Lets the drop of a connection reset it. Called before a connection is dropped whose peer has
    /// not read for [`write_timeout`](crate::HttpServer::write_timeout): output that waits must not
    /// keep it, and the response must not look complete. By default it does nothing.
    fn reset_at_drop(stream: &Self::Stream) {
        let _ = stream;
    }
}

/// See [`HttpListener::reset_at_drop`].
pub(crate) fn reset_tcp(stream: &TcpStream) {
    // A connection that is gone needs none.
    let _ = stream.set_linger(Some(Duration::ZERO));
}

/// A connection before its handshake.
#[derive(Debug)]
pub struct AcceptedConnection<H> {
    /// The rest of the work.
    pub handshake: H,
    /// The peer's address, if it has one.
    pub peer: Option<SocketAddr>,
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Handshaken<S> {
    /// The connection.
    pub stream: S,
    /// The protocol, if the handshake has negotiated it. Otherwise the first bytes tell.
    pub version: Option<HttpVersion>,
    /// Whether it is encrypted.
    pub is_encrypted: bool,
}

/// A protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0 and HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

fn plain<S>(stream: S) -> Ready<io::Result<Handshaken<S>>> {
    ready(Ok(Handshaken { stream, version: None, is_encrypted: false }))
}

/// Small writes are sent at once (`TCP_NODELAY`).
impl HttpListener for TcpListener {
    type Stream = TcpStream;
    type Handshake = Ready<io::Result<Handshaken<TcpStream>>>;

    async fn accept(&mut self) -> io::Result<AcceptedConnection<Self::Handshake>> {
        let (stream, peer) = Self::accept(self).await?;
        // A connection that is gone already fails here, and again with the first read.
        let _ = stream.set_nodelay(true);
        Ok(AcceptedConnection { handshake: plain(stream), peer: Some(peer) })
    }

    fn reset_at_drop(stream: &TcpStream) {
        reset_tcp(stream);
    }
}

impl HttpListener for UnixListener {
    type Stream = UnixStream;
    type Handshake = Ready<io::Result<Handshaken<UnixStream>>>;

    async fn accept(&mut self) -> io::Result<AcceptedConnection<Self::Handshake>> {
        let (stream, _) = Self::accept(self).await?;
        Ok(AcceptedConnection { handshake: plain(stream), peer: None })
    }
}
