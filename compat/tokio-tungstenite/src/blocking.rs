//! A stream with tokio's traits as one with those of the standard library, which says `WouldBlock`
//! where the other is pending.
//!
//! 1. The halves of a split socket are polled by two tasks, and either may read and write: reading
//!    answers pings. A stream keeps one waker for reading and one for writing.
//! 2. So the stream gets a waker for each direction, which wakes whoever used the direction last,
//!    as the reader and as the writer.

use std::{
    io::{self, Read, Write},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use atomic_waker::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use windlass_tungstenite::Error;

/// A stream that says `WouldBlock`.
#[derive(Debug)]
pub(crate) struct Blocking<S> {
    stream: S,
    read_waiters: Direction,
    write_waiters: Direction,
}

/// Who waits for a direction of the stream.
#[derive(Debug)]
struct Direction {
    waiters: Arc<Waiters>,
    /// Wakes them.
    waker: Waker,
}

#[derive(Debug, Default)]
struct Waiters {
    /// The task that receives messages, or makes the handshake.
    receiver: AtomicWaker,
    /// The task that sends messages.
    sender: AtomicWaker,
}

/// Which half of a socket is polled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Half {
    Receiver,
    Sender,
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.receiver.wake();
        self.sender.wake();
    }
}

impl Direction {
    fn new() -> Self {
        let waiters = Arc::<Waiters>::default();
        Self { waker: Waker::from(Arc::clone(&waiters)), waiters }
    }
}

impl<S> Blocking<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, read_waiters: Direction::new(), write_waiters: Direction::new() }
    }

    /// The task of this half waits for what the next calls are blocked by.
    pub(crate) fn register(&self, half: Half, waker: &Waker) {
        for direction in [&self.read_waiters, &self.write_waiters] {
            match half {
                Half::Receiver => direction.waiters.receiver.register(waker),
                Half::Sender => direction.waiters.sender.register(waker),
            }
        }
    }

    pub(crate) fn get_ref(&self) -> &S {
        &self.stream
    }

    pub(crate) fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    pub(crate) fn into_inner(self) -> S {
        self.stream
    }
}

fn or_would_block<T>(result: Poll<io::Result<T>>) -> io::Result<T> {
    match result {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// The reverse, for the result of a call on such a stream.
#[inline]
pub(crate) fn or_pending<T>(result: Result<T, Error>) -> Poll<Result<T, Error>> {
    match result {
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
    }
}

impl<S: AsyncRead + Unpin> Read for Blocking<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(bytes);
        let mut context = Context::from_waker(&self.read_waiters.waker);
        or_would_block(Pin::new(&mut self.stream).poll_read(&mut context, &mut buffer))?;
        Ok(buffer.filled().len())
    }
}

impl<S: AsyncWrite + Unpin> Write for Blocking<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut context = Context::from_waker(&self.write_waiters.waker);
        or_would_block(Pin::new(&mut self.stream).poll_write(&mut context, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut context = Context::from_waker(&self.write_waiters.waker);
        or_would_block(Pin::new(&mut self.stream).poll_flush(&mut context))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_direction_wakes_both_halves() {
        let stream = Blocking::new(());
        let (receiver, sender) = (Arc::<Count>::default(), Arc::<Count>::default());
        for direction in [&stream.read_waiters, &stream.write_waiters] {
            stream.register(Half::Receiver, &Arc::clone(&receiver).into());
            stream.register(Half::Sender, &Arc::clone(&sender).into());
            direction.waker.wake_by_ref();
        }
        let counts = [&receiver, &sender].map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(counts, [2, 2]);
    }
}
