//! Connections that were upgraded from HTTP/1.1 to something else.

use hyper::{body::Bytes, upgrade::Upgraded};
use windlass_task::Pinned;

use crate::{http1::stream::Http1Stream, prefixed::Prefixed};

/// A connection after its upgrade.
#[derive(Debug)]
#[non_exhaustive]
pub struct UpgradedParts<S> {
    /// The connection.
    pub stream: S,
    /// Bytes after the request, which hyper has read already.
    pub read_buf: Bytes,
}

/// The connection itself, from what `hyper::upgrade::on` has returned. `S` is the stream of the
/// listener ([`HttpListener::Stream`](crate::HttpListener::Stream)).
///
/// Only a request without a body upgrades its connection. To another one, the server sends status
/// 400 in place of a response that switches the protocol, and `hyper::upgrade::on` returns an
/// error.
///
/// # Errors
/// The error returns the connection, which is of HTTP/2, of another type of stream, or not of a
/// server of this crate.
///
/// # Panics
/// On another thread than the server's.
///
/// ```
/// use hyper::{Request, body::Incoming};
/// use windlass_http::upgraded_parts;
/// use windlass_task::{net::TcpStream, spawn};
///
/// /// To be called by the service, before its response `101 Switching Protocols`.
/// fn take_over(mut request: Request<Incoming>) {
///     let upgrade = hyper::upgrade::on(&mut request);
///     spawn(async move {
///         let Ok(parts) = upgraded_parts::<TcpStream>(upgrade.await?) else { return Ok(()) };
///         let mut stream = parts.stream;
///         stream.write_all(&parts.read_buf).await?;
///         Ok::<_, Box<dyn std::error::Error>>(())
///     })
///     .detach();
/// }
/// ```
pub fn upgraded_parts<S>(upgraded: Upgraded) -> Result<UpgradedParts<S>, Upgraded>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
{
    let parts = upgraded.downcast::<Pinned<Http1Stream<S>>>()?;
    let Prefixed { read_buf, stream, .. } = Pinned::into_inner(parts.io).stream;
    let read_buf = match (parts.read_buf.is_empty(), read_buf.is_empty()) {
        (_, true) => parts.read_buf,
        (true, false) => read_buf,
        (false, false) => [parts.read_buf, read_buf].concat().into(),
    };
    Ok(UpgradedParts { stream, read_buf })
}
