//! [`Http1Stream`]: the stream as hyper uses it. It tells [`Idle`] what hyper does.

use core::{
    pin::Pin,
    task::{Context, Poll},
};
use std::{
    io::{self, IoSlice},
    rc::Rc,
};

use hyper::rt::{Read, ReadBufCursor, Write};

use crate::{http1::idle::Idle, prefixed::Prefixed};

pub(crate) struct Http1Stream<S> {
    pub(crate) stream: Prefixed<S>,
    /// The result of a read without bytes, for the next one.
    pub(crate) read: Option<io::Result<()>>,
    pub(crate) idle: Rc<Idle>,
}

impl<S: Read + Unpin> Read for Http1Stream<S> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(result) = this.read.take() {
            this.idle.busy();
            return Poll::Ready(result);
        }
        let polled = Pin::new(&mut this.stream).poll_read(context, cursor);
        match polled {
            Poll::Ready(_) => this.idle.reads(),
            Poll::Pending => this.idle.reads_nothing(),
        }
        polled
    }
}

impl<S: Write + Unpin> Write for Http1Stream<S> {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.idle.writes();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.idle.writes();
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(polled, Poll::Ready(Ok(()))) {
            self.idle.flushed();
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.idle.busy();
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
