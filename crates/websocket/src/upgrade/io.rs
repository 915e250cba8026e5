//! A connection of HTTP/1.1, or a stream of HTTP/2, that hyper has upgraded.

use std::{
    fmt,
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use hyper::upgrade::Upgraded;

use crate::{HyperIo, Transport};

/// The most bytes that one call gives to a stream of HTTP/2. hyper holds up to four of them.
const PIECE_MAX: usize = 32 << 10;

/// How often a reader that has seen the end lets hyper's task run, which knows how it ended.
const END_POLLS_MAX: u8 = 32;

/// What hyper has upgraded, as a [`Transport`].
///
/// A stream of HTTP/2 ends as RFC 8441 section 5 says: its END_STREAM is the end of a TCP
/// connection, and its RST_STREAM, also with the code CANCEL, is a reset. While output waits for a
/// peer that does not read, a CANCEL may be told as an end.
pub struct UpgradedIo {
    stream: HyperIo<Upgraded>,
    is_http2: bool,
    /// The stream of HTTP/2 has ended. It was asked so often how.
    end_polls: Option<u8>,
}

impl UpgradedIo {
    pub(super) fn new(stream: Upgraded, is_http2: bool) -> Self {
        Self { stream: HyperIo::new(stream), is_http2, end_polls: None }
    }

    /// Whether this is a stream of HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.is_http2
    }

    /// The connection of hyper, for example to get its parts.
    #[must_use]
    pub fn into_inner(self) -> Upgraded {
        self.stream.stream
    }

    /// The end of a stream of HTTP/2. hyper tells a reader that CANCEL is an end too, and tells a
    /// writer the truth.
    #[cold]
    fn poll_http2_end(
        &mut self,
        context: &mut Context<'_>,
        read: io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if let Err(error) = read {
            // What is no error of the connection's own stream is a RST_STREAM or GOAWAY.
            let is_reset = error.kind() == io::ErrorKind::Other;
            let reset = io::ErrorKind::ConnectionReset;
            return Poll::Ready(Err(if is_reset { io::Error::new(reset, error) } else { error }));
        }
        let polls = self.end_polls.get_or_insert(0);
        match self.stream.poll_shutdown(context) {
            Poll::Ready(Err(error)) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, error)))
            }
            // It may wait for a window that the peer never opens (RFC 9113 section 5.2). The stream
            // is reset when this is dropped.
            Poll::Pending if *polls < END_POLLS_MAX => {
                *polls += 1;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(0)),
        }
    }
}

impl Transport for UpgradedIo {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.end_polls.is_some() {
            return self.poll_http2_end(context, Ok(0));
        }
        match ready!(self.stream.poll_read(context, buffer)) {
            end @ (Ok(0) | Err(_)) if self.is_http2 => self.poll_http2_end(context, end),
            read => Poll::Ready(read),
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let bytes = if self.is_http2 { &bytes[..bytes.len().min(PIECE_MAX)] } else { bytes };
        self.stream.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.is_http2 {
            return self.stream.poll_write_vectored(context, parts);
        }
        // hyper would write the first part alone, as a DATA frame. It copies what it takes.
        ready!(self.stream.poll_flush(context))?;
        let len = parts.iter().map(|part| part.len()).sum::<usize>().min(PIECE_MAX);
        let mut bytes = Vec::with_capacity(len);
        for part in parts {
            let room = len - bytes.len();
            bytes.extend_from_slice(&part[..part.len().min(room)]);
        }
        self.poll_write(context, &bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.is_http2 || self.stream.is_write_vectored()
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown(context)
    }
}

impl fmt::Debug for UpgradedIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradedIo").field("is_http2", &self.is_http2).finish_non_exhaustive()
    }
}
