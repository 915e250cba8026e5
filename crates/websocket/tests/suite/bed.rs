//! A pair of streams in memory, and a driver that polls futures by hand.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::Future,
    io::{self, IoSlice},
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};

use windlass_websocket::{ClientRequest, Config, Role, Transport, WebSocket};

const MAX: usize = usize::MAX;

/// How a stream behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The most bytes that one call takes or gives.
    pub(crate) chunk: usize,
    /// The most bytes that wait for the reader.
    pub(crate) capacity: usize,
    /// Every other call is `Pending`, and wakes at once.
    pub(crate) stutters: bool,
    /// It takes several buffers in one call.
    pub(crate) is_vectored: bool,
    /// It holds what is written until it is flushed, as a TLS stream does.
    pub(crate) holds: bool,
}

impl Manner {
    /// Takes and gives everything.
    pub(crate) const SMOOTH: Self =
        Self { chunk: MAX, capacity: MAX, stutters: false, is_vectored: false, holds: false };
    /// One byte a call, and every other call is `Pending`.
    pub(crate) const BYTE_BY_BYTE: Self = Self { chunk: 1, stutters: true, ..Self::SMOOTH };

    /// Manners of every kind: for each of them the others are one byte a call and small capacity.
    pub(crate) const ALL: [Self; 5] = [
        Self::SMOOTH,
        Self::BYTE_BY_BYTE,
        Self { capacity: 3, ..Self::BYTE_BY_BYTE },
        Self { chunk: 7, capacity: 10, is_vectored: true, ..Self::BYTE_BY_BYTE },
        Self { chunk: 5, capacity: 20, stutters: false, is_vectored: true, holds: true },
    ];
}

/// One direction.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    is_closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One end of a pair of pipes.
pub(crate) struct Stream {
    read: Rc<RefCell<Pipe>>,
    write: Rc<RefCell<Pipe>>,
    manner: Manner,
    /// What was written since the last flush, if it holds that.
    held: VecDeque<u8>,
    /// How often each direction was called.
    calls: [usize; 2],
    /// Reading fails after so many bytes, with an error of this kind.
    pub(crate) read_fails: Option<(usize, io::ErrorKind)>,
    /// Writing fails after so many bytes.
    pub(crate) write_fails: Option<(usize, io::ErrorKind)>,
}

/// Two streams; each reads what the other writes.
pub(crate) fn pair(manner: Manner) -> (Stream, Stream) {
    let pipes = [Rc::<RefCell<Pipe>>::default(), Rc::default()];
    let end = |read: usize| Stream {
        read: Rc::clone(&pipes[read]),
        write: Rc::clone(&pipes[1 - read]),
        manner,
        held: VecDeque::new(),
        calls: [0; 2],
        read_fails: None,
        write_fails: None,
    };
    (end(0), end(1))
}

const READ: usize = 0;
const WRITE: usize = 1;

impl Stream {
    fn stutter(&mut self, direction: usize, context: &Context<'_>) -> bool {
        self.calls[direction] += 1;
        let stutters = self.manner.stutters && self.calls[direction] % 2 == 1;
        if stutters {
            context.waker().wake_by_ref();
        }
        stutters
    }

    /// How many bytes wait for the other end.
    pub(crate) fn unread(&self) -> usize {
        self.write.borrow().bytes.len()
    }

    /// What waits for this end.
    pub(crate) fn take_received(&self) -> Vec<u8> {
        self.take_some(MAX)
    }

    /// At most `len_max` bytes of what waits for this end.
    pub(crate) fn take_some(&self, len_max: usize) -> Vec<u8> {
        let mut pipe = self.read.borrow_mut();
        let len = len_max.min(pipe.bytes.len());
        let bytes = pipe.bytes.drain(..len).collect();
        if let Some(waker) = pipe.writer.take() {
            waker.wake();
        }
        bytes
    }

    /// Ends writing.
    pub(crate) fn end(&self) {
        close(&self.write);
    }

    /// Gives the other end bytes.
    pub(crate) fn give(&self, bytes: &[u8]) {
        let mut pipe = self.write.borrow_mut();
        pipe.bytes.extend(bytes);
        if let Some(waker) = pipe.reader.take() {
            waker.wake();
        }
    }

    /// Whether the other end has ended writing.
    pub(crate) fn is_ended(&self) -> bool {
        self.read.borrow().is_closed
    }
}

/// How much of `count` may be moved before the failure, and the failure if it is none.
fn allowed(fails: &mut Option<(usize, io::ErrorKind)>, count: usize) -> io::Result<usize> {
    match fails {
        Some((0, kind)) if count > 0 => Err((*kind).into()),
        Some((left, _)) => {
            let count = count.min(*left);
            *left -= count;
            Ok(count)
        }
        None => Ok(count),
    }
}

impl Transport for Stream {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.stutter(READ, context) {
            return Poll::Pending;
        }
        let mut pipe = self.read.borrow_mut();
        if let Some((0, kind)) = self.read_fails {
            return Poll::Ready(Err(kind.into()));
        }
        if pipe.bytes.is_empty() && !pipe.is_closed {
            pipe.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = buffer.len().min(pipe.bytes.len()).min(self.manner.chunk);
        let count = allowed(&mut self.read_fails, count)?;
        for (place, byte) in buffer.iter_mut().zip(pipe.bytes.drain(..count)) {
            *place = byte;
        }
        if let Some(waker) = pipe.writer.take() {
            waker.wake();
        }
        Poll::Ready(Ok(count))
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write_parts(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write_parts(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.manner.is_vectored
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stutter(WRITE, context) { Poll::Pending } else { self.flush_held(context) }
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stutter(WRITE, context) {
            return Poll::Pending;
        }
        ready!(self.flush_held(context))?;
        close(&self.write);
        Poll::Ready(Ok(()))
    }
}

impl Stream {
    fn write_parts(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        assert!(!parts[0].is_empty(), "a write of nothing");
        if self.stutter(WRITE, context) {
            return Poll::Pending;
        }
        let mut pipe = self.write.borrow_mut();
        let waits = if self.manner.holds { self.held.len() } else { pipe.bytes.len() };
        let room = self.manner.capacity - waits.min(self.manner.capacity);
        if room == 0 {
            drop(pipe);
            if self.manner.holds {
                // Writing makes room by itself.
                ready!(self.flush_held(context))?;
                context.waker().wake_by_ref();
            } else {
                self.write.borrow_mut().writer = Some(context.waker().clone());
            }
            return Poll::Pending;
        }
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let count = allowed(&mut self.write_fails, len.min(room).min(self.manner.chunk))?;
        let bytes = parts.iter().flat_map(|part| part.iter().copied()).take(count);
        if self.manner.holds {
            self.held.extend(bytes);
        } else {
            pipe.bytes.extend(bytes);
            if let Some(waker) = pipe.reader.take() {
                waker.wake();
            }
        }
        Poll::Ready(Ok(count))
    }

    fn flush_held(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.write.borrow_mut();
        let room = self.manner.capacity - pipe.bytes.len().min(self.manner.capacity);
        let count = self.held.len().min(room);
        pipe.bytes.extend(self.held.drain(..count));
        if let (1.., Some(waker)) = (count, pipe.reader.clone()) {
            waker.wake();
        }
        if self.held.is_empty() {
            return Poll::Ready(Ok(()));
        }
        pipe.writer = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        close(&self.write);
    }
}

fn close(pipe: &RefCell<Pipe>) {
    let mut pipe = pipe.borrow_mut();
    pipe.is_closed = true;
    if let Some(waker) = pipe.reader.take() {
        waker.wake();
    }
}

/// A server and a client whose handshake is over.
pub(crate) fn sockets(manner: Manner, config: &Config) -> (WebSocket<Stream>, WebSocket<Stream>) {
    let (server, client) = pair(manner);
    (
        WebSocket::from_upgraded(server, &[], Role::Server, config),
        WebSocket::from_upgraded(client, &[], Role::Client, config),
    )
}

/// A server and a client that make the handshake.
pub(crate) fn connected(
    manner: Manner,
    server: &Config,
    client: &Config,
) -> (WebSocket<Stream>, WebSocket<Stream>) {
    let (ours, theirs) = pair(manner);
    let request = ClientRequest::new("example.com", "/", client.random_key());
    let (server, client) =
        both(WebSocket::accept(ours, server), WebSocket::client(theirs, request, client));
    (server.expect("the request is accepted"), client.expect("the answer is accepted"))
}

/// Runs a future to its end. Nothing else can make progress meanwhile.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10_000_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
    panic!("the future makes no progress");
}

/// Runs two futures to their ends, in turn.
pub(crate) fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut done_a, mut done_b) = (None, None);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10_000_000 {
        if done_a.is_none() {
            if let Poll::Ready(output) = a.as_mut().poll(&mut context) {
                done_a = Some(output);
            }
        }
        if done_b.is_none() {
            if let Poll::Ready(output) = b.as_mut().poll(&mut context) {
                done_b = Some(output);
            }
        }
        if let (Some(_), Some(_)) = (&done_a, &done_b) {
            break;
        }
    }
    (done_a.expect("the first ends"), done_b.expect("the second ends"))
}

/// Polls a future once.
pub(crate) fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}
