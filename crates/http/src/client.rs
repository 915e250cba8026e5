//! [`WindlassConnector`]: connections for the client of hyper-util.

use core::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use std::io::{self, IoSlice};

use hyper::{
    Uri,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::client::legacy::connect::{Connected, Connection};
use windlass_task::{Pinned, net::TcpStream};

/// Opens the connections of `hyper_util::client::legacy::Client`, for `http` without TLS.
///
/// The client asks for `Send`. Its connections are [`Pinned`], so it must be used on the thread of
/// one executor.
///
/// ```
/// use http_body_util::Empty;
/// use hyper::body::Bytes;
/// use hyper_util::client::legacy::Client;
/// use windlass_http::WindlassConnector;
/// use windlass_task::rt::{WindlassExecutor, WindlassTimer};
///
/// let client: Client<_, Empty<Bytes>> = Client::builder(WindlassExecutor)
///     .pool_timer(WindlassTimer::new())
///     .build(WindlassConnector);
/// # drop(client);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct WindlassConnector;

/// A connection of [`WindlassConnector`].
#[derive(Debug)]
pub struct ClientStream(Pinned<TcpStream>);

type Connecting = Pin<Box<dyn Future<Output = io::Result<ClientStream>>>>;

impl tower_service::Service<Uri> for WindlassConnector {
    type Response = ClientStream;
    type Error = io::Error;
    type Future = Pinned<Connecting>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// # Panics
    /// If no executor runs on this thread.
    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting: Connecting = Box::pin(connect(uri));
        Pinned::new(connecting)
    }
}

async fn connect(uri: Uri) -> io::Result<ClientStream> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what);
    if uri.scheme_str().is_some_and(|scheme| scheme != "http") {
        return Err(invalid("this connector has no TLS: use `http`, or wrap it"));
    }
    let host = uri.host().ok_or_else(|| invalid("the address has no host"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    Ok(ClientStream(Pinned::new(stream)))
}

impl Connection for ClientStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, cursor)
    }
}

impl Write for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
