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

#[cfg(test)]
mod tests {
    use windlass_task::{Executor, block_on, net::TcpListener, spawn_blocking};

    use super::*;

    #[test]
    fn a_request_does_not_wait_for_an_acknowledgement() -> io::Result<()> {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let uri = format!("http://{}/", listener.local_addr()?).parse().unwrap();
            let ClientStream(stream) = connect(uri).await?;
            assert!(stream.nodelay()?, "Nagle's algorithm is off");
            Ok(())
        })
    }

    /// It needs no look-up, for which there is no thread. Without IPv6 here, the address fails.
    #[test]
    fn an_address_of_ipv6_is_no_name() -> io::Result<()> {
        let builder = Executor::builder().blocking_threads_max(1).blocking_queue_len_max(0);
        builder.build().unwrap().block_on(async {
            let (release, waits) = std::sync::mpsc::channel::<()>();
            let busy = spawn_blocking(move || waits.recv()).unwrap();
            let listener = TcpListener::bind("[::1]:0").await;
            let port = match &listener {
                Ok(listener) => listener.local_addr()?.port(),
                Err(_) => 9,
            };
            match connect(format!("http://[::1]:{port}/").parse().unwrap()).await {
                Ok(_) => assert!(listener.is_ok()),
                Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
            }
            drop(release);
            assert!(busy.await.unwrap().is_err());
            Ok(())
        })
    }
}
