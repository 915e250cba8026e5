//! [`TlsListener`]: connections with TLS, by tokio-rustls.

use core::{future::Future, pin::Pin};
use std::io;

use hyper_util::rt::TokioIo;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use windlass_task::net::{TcpListener, TcpStream};

use crate::{AcceptedConnection, Handshaken, HttpListener, HttpVersion, listener::reset_tcp};

/// A connection with TLS, as hyper uses it. `into_inner` returns that of tokio-rustls.
pub type TlsHttpStream = TokioIo<TlsStream<TcpStream>>;

/// A listener for `https`. The configuration of rustls decides about certificates, versions and
/// protocols: for HTTP/2, its `alpn_protocols` must have `h2` before `http/1.1`.
///
/// ```no_run
/// use std::sync::Arc;
/// use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};
/// use windlass_http::{HttpServer, TlsListener};
/// use windlass_task::net::TcpListener;
///
/// # async fn example(mut config: ServerConfig, listener: TcpListener) {
/// config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
/// let listener = TlsListener::new(listener, TlsAcceptor::from(Arc::new(config)));
/// # let _ = listener;
/// # }
/// ```
pub struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl TlsListener {
    /// Adds TLS to a listener.
    #[must_use]
    pub fn new(listener: TcpListener, acceptor: TlsAcceptor) -> Self {
        Self { listener, acceptor }
    }

    /// The listener, for its address.
    #[must_use]
    pub const fn get_ref(&self) -> &TcpListener {
        &self.listener
    }
}

impl core::fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TlsListener").finish_non_exhaustive()
    }
}

impl HttpListener for TlsListener {
    type Stream = TlsHttpStream;
    type Handshake = Pin<Box<dyn Future<Output = io::Result<Handshaken<TlsHttpStream>>>>>;

    async fn accept(&mut self) -> io::Result<AcceptedConnection<Self::Handshake>> {
        let (stream, peer) = TcpListener::accept(&self.listener).await?;
        // A connection that is gone already fails in the handshake.
        let _ = stream.set_nodelay(true);
        let accept = self.acceptor.accept(stream);
        let handshake = Box::pin(async move {
            let stream = accept.await?;
            let version = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => Some(HttpVersion::Http2),
                Some(_) => Some(HttpVersion::Http1),
                None => None,
            };
            Ok(Handshaken { stream: TokioIo::new(stream), version, is_encrypted: true })
        });
        Ok(AcceptedConnection { handshake, peer: Some(peer) })
    }

    fn reset_at_drop(stream: &TlsHttpStream) {
        reset_tcp(stream.inner().get_ref().0);
    }
}
