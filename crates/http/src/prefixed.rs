//! [`Prefixed`]: a stream whose first bytes were read already.

use core::{
    future::poll_fn,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};
use std::{
    io::{self, IoSlice},
    rc::Rc,
};

use hyper::{
    body::{Buf as _, Bytes},
    rt::{Read, ReadBuf, ReadBufCursor, Write},
};

use crate::{HttpVersion, write_timeout::WriteState};

/// What a client of HTTP/2 sends first (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The first read takes so many bytes, on the stack: most requests are there at once.
const FIRST_READ: usize = 512;

pub(crate) struct Prefixed<S> {
    pub(crate) read_buf: Bytes,
    pub(crate) stream: S,
    pub(crate) output: Rc<WriteState>,
    reset_at_drop: fn(&S),
}

impl<S> Prefixed<S> {
    /// The error of a stream whose peer does not read. It is dropped next.
    fn check(&self) -> io::Result<()> {
        self.output.check().inspect_err(|_| (self.reset_at_drop)(&self.stream))
    }
}

impl<S: Read + Unpin> Prefixed<S> {
    /// Reads until the protocol is known, and at least once. Dropping the future ends the
    /// connection.
    ///
    /// `None` if the connection has ended before its first byte.
    pub(crate) async fn detect(
        mut stream: S,
        known: Option<HttpVersion>,
        reset_at_drop: fn(&S),
    ) -> io::Result<Option<(HttpVersion, Self)>> {
        let mut read_buf = Vec::new();
        loop {
            let count = poll_fn(|context| poll_append(&mut stream, context, &mut read_buf)).await?;
            if read_buf.is_empty() {
                return Ok(None);
            }
            // A peer that is known to speak HTTP/2 has the time limit of this call for its preface.
            let version = match known {
                Some(HttpVersion::Http1) => known,
                _ => version_of(&read_buf, count == 0).map(|found| known.unwrap_or(found)),
            };
            if let Some(version) = version {
                let output = Rc::new(WriteState::default());
                let read_buf = read_buf.into();
                return Ok(Some((version, Self { read_buf, stream, output, reset_at_drop })));
            }
        }
    }
}

/// The protocol by the first bytes. `None` if more are needed.
fn version_of(bytes: &[u8], is_end: bool) -> Option<HttpVersion> {
    let count = bytes.len().min(PREFACE.len());
    if bytes[..count] != PREFACE[..count] || is_end {
        return Some(HttpVersion::Http1);
    }
    (count == PREFACE.len()).then_some(HttpVersion::Http2)
}

/// The memory is on the stack, so that a connection that sends nothing holds none.
pub(crate) fn poll_append(
    stream: &mut (impl Read + Unpin),
    context: &mut Context<'_>,
    read_buf: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let mut memory = [const { MaybeUninit::uninit() }; FIRST_READ];
    let mut buffer = ReadBuf::uninit(&mut memory);
    ready!(Pin::new(stream).poll_read(context, buffer.unfilled()))?;
    read_buf.extend_from_slice(buffer.filled());
    Poll::Ready(Ok(buffer.filled().len()))
}

impl<S: Read + Unpin> Read for Prefixed<S> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read_buf.is_empty() {
            self.check()?;
            return Pin::new(&mut self.stream).poll_read(context, cursor);
        }
        let count = self.read_buf.len().min(cursor.remaining());
        cursor.put_slice(&self.read_buf[..count]);
        self.read_buf.advance(count);
        if self.read_buf.is_empty() {
            // Its memory.
            self.read_buf = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Write + Unpin> Write for Prefixed<S> {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.output.wrote(written)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.output.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.output.flushed(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.output.flushed(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_is_known_as_soon_as_it_can_be() {
        use HttpVersion::{Http1, Http2};
        for cut in 1..PREFACE.len() {
            assert_eq!(version_of(&PREFACE[..cut], false), None, "{cut}");
            assert_eq!(version_of(&PREFACE[..cut], true), Some(Http1), "{cut}");
            let mut other = PREFACE[..cut].to_vec();
            other[cut - 1] ^= 1;
            assert_eq!(version_of(&other, false), Some(Http1), "{cut}");
        }
        assert_eq!(version_of(PREFACE, false), Some(Http2));
        assert_eq!(version_of(&[PREFACE, b"more"].concat(), false), Some(Http2));
        assert_eq!(version_of(b"GET / HTTP/1.1\r\n", false), Some(Http1));
    }
}
