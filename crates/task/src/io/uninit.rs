//! Reads into the buffers of tokio and hyper without clearing them first.

#![allow(unsafe_code, reason = "the number of bytes that a read has initialized is passed on")]

use core::task::{Context, Poll};
use std::io;

use crate::io::RawStream;

/// `AsyncRead::poll_read` of tokio.
#[cfg(feature = "tokio-io")]
#[inline]
pub(crate) fn poll_read_tokio<S: RawStream>(
    stream: &S,
    context: &mut Context<'_>,
    buffer: &mut tokio::io::ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    // SAFETY: the memory goes to `Unfilled` alone, which writes initialized bytes.
    let unfilled = unsafe { buffer.unfilled_mut() };
    stream.poll_read(context, unfilled).map_ok(|count| {
        // SAFETY: `poll_read` has put that many bytes at the front of the memory. `RawStream` is
        // implemented in this crate alone.
        unsafe { buffer.assume_init(count) };
        buffer.advance(count);
    })
}

/// `Read::poll_read` of hyper.
#[cfg(feature = "hyper")]
#[inline]
pub(crate) fn poll_read_cursor<S: RawStream>(
    stream: &S,
    context: &mut Context<'_>,
    mut cursor: hyper::rt::ReadBufCursor<'_>,
) -> Poll<io::Result<()>> {
    // SAFETY: the memory goes to `Unfilled` alone, which writes initialized bytes.
    let unfilled = unsafe { cursor.as_mut() };
    stream.poll_read(context, unfilled).map_ok(|count| {
        // SAFETY: `poll_read` has put that many bytes at the front of the memory. `RawStream` is
        // implemented in this crate alone.
        unsafe { cursor.advance(count) };
    })
}
