//! A look at the first frame that a server sends, its SETTINGS (RFC 9113 section 3.4). hyper tells
//! nobody that they have arrived, and a client must wait for them (RFC 8441 section 3).

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};

/// The length of a frame's header.
const HEADER_LEN: usize = 9;
/// The type of SETTINGS.
const SETTINGS: u8 = 4;
/// `SETTINGS_ENABLE_CONNECT_PROTOCOL`.
const ENABLE_CONNECT_PROTOCOL: [u8; 2] = [0, 8];

/// Watches the stream of a client's connection for the settings of the server. Give the stream to
/// hyper, and await the settings when the connection runs in a task.
///
/// ```no_run
/// # async fn connect<T: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static>(
/// #     stream: T,
/// #     builder: hyper::client::conn::http2::Builder<hyper_util::rt::TokioExecutor>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let (stream, settings) = windlass_websocket::http2::watch(stream);
/// let (sender, connection) = builder.handshake::<_, String>(stream).await?;
/// tokio::spawn(connection);
/// assert!(settings.await?, "this server accepts no WebSockets over HTTP/2");
/// # Ok(())
/// # }
/// ```
pub fn watch<T>(stream: T) -> (Watched<T>, ServerSettings) {
    let place = Arc::<Mutex<Place>>::default();
    let settings = ServerSettings { place: Arc::clone(&place) };
    (Watched { stream, watcher: Some(Watcher { head: Vec::new(), place }) }, settings)
}

/// A stream that is [watched](watch).
#[derive(Debug)]
pub struct Watched<T> {
    stream: T,
    watcher: Option<Watcher>,
}

/// The future of the server's settings: whether it accepts WebSockets. It fails if the connection
/// ends before. It has no limit of time.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct ServerSettings {
    place: Arc<Mutex<Place>>,
}

#[derive(Debug, Default)]
struct Place {
    found: Option<Option<bool>>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Watcher {
    head: Vec<u8>,
    place: Arc<Mutex<Place>>,
}

impl Watcher {
    fn found(&self, found: Option<bool>) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        place.found.get_or_insert(found);
        let waker = place.waker.take();
        drop(place);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.found(None);
    }
}

/// Whether the SETTINGS frame at the beginning of these bytes accepts extended CONNECT. `None` if
/// more bytes are needed.
fn accepts_websockets(bytes: &[u8]) -> Option<bool> {
    let header = bytes.get(..HEADER_LEN)?;
    if header[3] != SETTINGS {
        return Some(false);
    }
    let len = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
    // More than a frame may have at this time. hyper will end the connection.
    if len > 1 << 14 {
        return Some(false);
    }
    let payload = bytes.get(HEADER_LEN..HEADER_LEN + len)?;
    let last = payload.chunks_exact(6).rfind(|entry| entry[..2] == ENABLE_CONNECT_PROTOCOL);
    Some(last.is_some_and(|entry| entry[2..] == [0, 0, 0, 1]))
}

impl Future for ServerSettings {
    type Output = io::Result<bool>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        match place.found {
            Some(found) => Poll::Ready(found.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())),
            None => {
                place.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T: Read + Unpin> Read for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, watcher } = &mut *self;
        let Some(watching) = watcher else {
            return Pin::new(stream).poll_read(context, buffer);
        };
        let mut bytes = [0; 256];
        let len = bytes.len().min(buffer.remaining());
        let mut read = ReadBuf::new(&mut bytes[..len]);
        ready!(Pin::new(stream).poll_read(context, read.unfilled()))?;
        buffer.put_slice(read.filled());
        watching.head.extend_from_slice(read.filled());
        if let Some(found) = accepts_websockets(&watching.head) {
            watching.found(Some(found));
            *watcher = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: Write + Unpin> Write for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::accepts_websockets;

    #[test]
    fn the_settings_are_read_to_their_end() {
        let frame = b"\0\0\x0c\x04\0\0\0\0\0\0\x03\0\0\0\x64\0\x08\0\0\0\x01";
        for len in 0..frame.len() {
            assert_eq!(accepts_websockets(&frame[..len]), None);
        }
        assert_eq!(accepts_websockets(frame), Some(true));
        assert_eq!(accepts_websockets(b"\0\0\0\x04\0\0\0\0\0more"), Some(false));
        assert_eq!(accepts_websockets(b"HTTP/1.1 400"), Some(false));
        let off = b"\0\0\x06\x04\0\0\0\0\0\0\x08\0\0\0\0";
        assert_eq!(accepts_websockets(off), Some(false));
    }
}
