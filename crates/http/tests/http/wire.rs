//! A stream in memory whose every step a test decides.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::{Ready, pending, ready},
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use hyper::rt::{Read, ReadBufCursor, Write};
use windlass_http::{AcceptedConnection, Handshaken, HttpListener};

/// What the test and the stream share.
#[derive(Default)]
pub(crate) struct Wire {
    input: RefCell<VecDeque<io::Result<Vec<u8>>>>,
    output: RefCell<Vec<u8>>,
    waker: RefCell<Option<Waker>>,
    /// Input that comes with a later read.
    later: RefCell<Option<Later>>,
    /// The room of the last read.
    room: Cell<usize>,
    is_shut_down: Cell<bool>,
    is_read_after_end: Cell<bool>,
    is_dropped: Cell<bool>,
    /// The bytes that writes still take, and whether flushes and the end of the output wait.
    pub(crate) writable: Cell<Option<usize>>,
    pub(crate) is_flush_blocked: Cell<bool>,
    pub(crate) is_end_blocked: Cell<bool>,
}

struct Later {
    /// Reads that find nothing before.
    reads: usize,
    /// Whether the input comes behind that read, with a wake, or just before it, without one.
    is_behind: bool,
    bytes: Vec<u8>,
}

impl Wire {
    pub(crate) fn push(&self, bytes: impl Into<Vec<u8>>) {
        self.put(Ok(bytes.into()));
    }

    /// The end is an empty piece.
    pub(crate) fn put(&self, input: io::Result<Vec<u8>>) {
        self.input.borrow_mut().push_back(input);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Bytes that come with a read from now on, whenever it happens.
    pub(crate) fn push_later(&self, reads: usize, is_behind: bool, bytes: &[u8]) {
        let later = Later { reads, is_behind, bytes: bytes.to_vec() };
        *self.later.borrow_mut() = Some(later);
    }

    /// The bytes of `push_later` that no read has met.
    pub(crate) fn take_later(&self) -> Option<Vec<u8>> {
        self.later.take().map(|later| later.bytes)
    }

    /// What was written since the last call.
    pub(crate) fn written(&self) -> String {
        String::from_utf8(self.written_bytes()).unwrap()
    }

    pub(crate) fn written_bytes(&self) -> Vec<u8> {
        self.output.take()
    }

    /// Whether the last read was hyper's, into a large buffer.
    pub(crate) fn has_buffers(&self) -> bool {
        self.room.get() > 4096
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.is_shut_down.get()
    }

    /// Whether it was read after the end of the output had begun.
    pub(crate) fn is_read_after_end(&self) -> bool {
        self.is_read_after_end.get()
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.is_dropped.get()
    }

    fn comes_now(&self) -> bool {
        let mut later = self.later.borrow_mut();
        let Some(some) = later.as_mut() else { return false };
        if some.reads > 0 {
            some.reads -= 1;
            return false;
        }
        let some = later.take().unwrap();
        self.input.borrow_mut().push_back(Ok(some.bytes));
        some.is_behind
    }
}

pub(crate) struct End(Rc<Wire>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.is_dropped.set(true);
    }
}

impl Read for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.room.set(cursor.remaining());
        if self.0.is_shut_down.get() {
            self.0.is_read_after_end.set(true);
        }
        if self.0.comes_now() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut input = self.0.input.borrow_mut();
        match input.front_mut() {
            None => {
                *self.0.waker.borrow_mut() = Some(context.waker().clone());
                return Poll::Pending;
            }
            Some(Ok(piece)) if !piece.is_empty() => {
                let count = piece.len().min(cursor.remaining());
                cursor.put_slice(&piece[..count]);
                piece.drain(..count);
                if !piece.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            // The end stays.
            Some(Ok(_)) => return Poll::Ready(Ok(())),
            Some(Err(_)) => {}
        }
        Poll::Ready(input.pop_front().unwrap().map(drop))
    }
}

impl Write for End {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let room = self.0.writable.get().unwrap_or(usize::MAX);
        if room == 0 {
            *self.0.waker.borrow_mut() = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = room.min(bytes.len());
        self.0.writable.set(self.0.writable.get().map(|room| room - count));
        self.0.output.borrow_mut().extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let part = parts.iter().find(|part| !part.is_empty()).map_or(&[][..], |part| part);
        self.poll_write(context, part)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.0.is_flush_blocked.get() {
            *self.0.waker.borrow_mut() = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.is_shut_down.set(true);
        if self.0.is_end_blocked.get() {
            *self.0.waker.borrow_mut() = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

/// Accepts the one connection.
pub(crate) struct OneWire(pub(crate) Option<Rc<Wire>>);

impl HttpListener for OneWire {
    type Stream = End;
    type Handshake = Ready<io::Result<Handshaken<End>>>;

    async fn accept(&mut self) -> io::Result<AcceptedConnection<Self::Handshake>> {
        let Some(wire) = self.0.take() else { return pending().await };
        let handshaken = Handshaken { stream: End(wire), version: None, is_encrypted: false };
        Ok(AcceptedConnection { handshake: ready(Ok(handshaken)), peer: None })
    }
}
