//! A stream in memory whose calls behave as a script says, and futures that are polled by hand.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::Future,
    io::{self, IoSlice},
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use windlass_websocket::Transport;

/// One direction.
#[derive(Default)]
pub(crate) struct Pipe {
    pub(crate) bytes: VecDeque<u8>,
    pub(crate) is_closed: bool,
}

pub(crate) type SharedPipe = Rc<RefCell<Pipe>>;

/// One end of two pipes.
pub(crate) struct Stream {
    read: SharedPipe,
    write: SharedPipe,
    /// What the next calls do. It repeats.
    script: Vec<u8>,
    at: usize,
}

impl Stream {
    /// An empty script is a stream that takes and gives everything.
    pub(crate) fn new(read: &SharedPipe, write: &SharedPipe, script: &[u8]) -> Self {
        let (read, write) = (Rc::clone(read), Rc::clone(write));
        Self { read, write, script: script.to_vec(), at: 0 }
    }

    /// From now on every call takes and gives everything.
    pub(crate) fn smooth(&mut self) {
        self.script.clear();
    }

    /// The most bytes that the next call moves, or `Pending`.
    fn next(&mut self) -> Poll<usize> {
        let Some(&byte) = self.script.get(self.at) else { return Poll::Ready(usize::MAX) };
        self.at = (self.at + 1) % self.script.len();
        match byte {
            // A script of these alone would never move a byte.
            0..=79 if self.at > 0 => Poll::Pending,
            0..=199 => Poll::Ready(1 + usize::from(byte % 16)),
            200..=239 => Poll::Ready(1 << (byte % 16)),
            _ => Poll::Ready(usize::MAX),
        }
    }
}

impl Transport for Stream {
    fn poll_read(&mut self, _: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let Poll::Ready(most) = self.next() else { return Poll::Pending };
        let mut pipe = self.read.borrow_mut();
        if pipe.bytes.is_empty() && !pipe.is_closed {
            return Poll::Pending;
        }
        let count = buffer.len().min(pipe.bytes.len()).min(most);
        for (place, byte) in buffer.iter_mut().zip(pipe.bytes.drain(..count)) {
            *place = byte;
        }
        Poll::Ready(Ok(count))
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Poll::Ready(most) = self.next() else { return Poll::Pending };
        let count = bytes.len().min(most);
        self.write.borrow_mut().bytes.extend(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        &mut self,
        _: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(mut most) = self.next() else { return Poll::Pending };
        let mut written = 0;
        for part in parts {
            let count = part.len().min(most);
            self.write.borrow_mut().bytes.extend(&part[..count]);
            (most, written) = (most - count, written + count);
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.next().map(|_| Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.borrow_mut().is_closed = true;
        Poll::Ready(Ok(()))
    }
}

/// Polls a future up to so many times, and drops it.
pub(crate) fn poll_times<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    (0..times).find_map(|_| match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}
