//! [`BufferedTcp`]: a TCP socket with a read buffer.
//!
//! On a ring, a TCP socket goes by completion: the reactor's stream layer receives into the read
//! buffer, and sends what it has copied. On other backends, only a socket with a `read_buf` has a
//! read buffer. It goes by readiness.
//!
//! # The protocol of this module
//!
//! 1. A socket is *plain* until its first read or write. Nothing was received then, so its
//!    readiness, closures of the user and the plain descriptor may be used.
//! 2. The first read or write registers a stream of the reactor. From then on the read buffer has
//!    the bytes that come next, and closures of the user are rejected: they would miss these bytes.
//! 3. The stream ends by a failure, when both directions have ended, or with the executor, which
//!    releases it. The socket is *over* then, and stays open. A read returns the read buffer, then
//!    what is left in the socket, then the error or the end.
//! 4. An error is reported once, by the first operation that comes. `EPIPE` is for writing alone.
//! 5. The read buffer is filled up to [`READ_BUFFER_MAX`](crate::io::read_buffer::READ_BUFFER_MAX).
//!    The receive is then cancelled, and armed again when half of it was read. What the kernel had
//!    received by then is kept too.
//! 6. The output holds at most [`OUTPUT_MAX`] bytes that the socket does not accept.
//!    What is left of it when the executor ends is sent by rules of its own: see [`unsent`].
//! 7. The stream's handler, and the executor's list of open streams, have the only other
//!    references to the socket. So the descriptor is closed when the owner and the stream are gone.
//!    The streams whose owners are dropped in one round of the executor end together, at its end.
//! 8. Where there is no turn, an operation is pending, and is woken in the executor's next turn.
//!    One such request is queued for each socket, and one for each that is shut down there.
//! 9. A child of fork(2) shares the socket with its parent. Its destructors change nothing of it.

mod handler;
mod io;
mod open;
mod owner;
mod ready;
mod try_io;
mod unsent;

use core::{
    cell::{Cell, RefCell},
    task::{Context, Poll},
};
use std::{
    io::Result,
    net::{Shutdown, TcpStream},
    rc::Rc,
};

use rustix::io::Errno;
use windlass::{AddReason, Key, Turn, stream::Stream, stream::StreamOptions};

use crate::{
    fd::{
        source::{ShortRead, Source, SourceOptions, gone},
        waiters::Waiters,
    },
    handle::Handle,
    io::{Socket, read_buffer::ReadBuffer},
    net::buffered_tcp::{handler::BufferedHandler, open::OpenStreams, unsent::Unsent},
};
pub(super) use owner::BufferedOwner;

/// The number of bytes that wait for a socket which does not accept them.
const OUTPUT_MAX: usize = 64 << 10;

/// The options of the socket are the user's. A dropped stream waits for its output as long as the
/// peer reads.
const OPTIONS: StreamOptions = StreamOptions::new()
    .nodelay(false)
    .output_max(OUTPUT_MAX)
    .watermarks(0, OUTPUT_MAX - 1)
    .linger_restarts(true);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Protocol 1.
    Plain,
    /// Protocol 2.
    Streaming(Key),
    /// Protocol 3.
    Over,
}

/// See the module.
pub(in crate::net) struct BufferedTcp {
    socket: Socket<TcpStream>,
    handle: Handle,
    state: Cell<State>,
    /// Whether the first read or write starts a stream.
    completes: bool,
    read_buffer: RefCell<ReadBuffer>,
    streams: Rc<OpenStreams>,
    /// Its index in them, while it is in [`State::Streaming`].
    open_index: Cell<usize>,
    /// The peer has ended its direction.
    has_end: Cell<bool>,
    /// This side has ended its direction.
    is_finished: Cell<bool>,
    /// What a queued request shuts down (protocol 8).
    queued_shutdown: Cell<Option<Shutdown>>,
    is_paused: Cell<bool>,
    /// The handler will look at the read buffer or the output in the next turn.
    is_notified: Cell<bool>,
    /// The executor was dropped.
    is_gone: Cell<bool>,
    /// The stream was not released, or in a child of fork(2): bytes that were in flight are lost.
    has_lost: Cell<bool>,
    error: Cell<Option<Errno>>,
    /// The output that was left when the executor ended.
    unsent: Unsent,
    /// The owner was not dropped.
    has_owner: Cell<bool>,
    /// Protocol 8.
    awaits_turn: Cell<bool>,
    readers: Waiters,
    writers: Waiters,
    /// The readiness of a plain socket, once it was asked for.
    source: RefCell<Option<Rc<Source>>>,
}

/// Whether TCP sockets of the running executor go by completion. False where there is no turn.
pub(super) fn completes() -> bool {
    let has_ring = |turn: Turn<'_>| turn.has_ring();
    Handle::current().and_then(|handle| handle.with_turn(has_ring)).unwrap_or(false)
}

impl BufferedTcp {
    /// A socket of the running executor, with bytes that were received before.
    fn new(
        socket: Socket<TcpStream>,
        read_buf: Vec<u8>,
        source: Option<Rc<Source>>,
        completes: bool,
    ) -> Result<Rc<Self>> {
        let handle = Handle::current().ok_or_else(crate::fd::source::no_executor)?;
        let streams = OpenStreams::of(&handle);
        Ok(Rc::new(Self {
            socket,
            handle,
            state: Cell::new(State::Plain),
            completes,
            read_buffer: RefCell::new(ReadBuffer::new(read_buf)),
            streams,
            open_index: Cell::new(0),
            has_end: Cell::new(false),
            is_finished: Cell::new(false),
            queued_shutdown: Cell::new(None),
            is_paused: Cell::new(false),
            is_notified: Cell::new(false),
            is_gone: Cell::new(false),
            has_lost: Cell::new(false),
            error: Cell::new(None),
            unsent: Unsent::default(),
            has_owner: Cell::new(true),
            awaits_turn: Cell::new(false),
            readers: Waiters::default(),
            writers: Waiters::default(),
            source: RefCell::new(source),
        }))
    }

    /// Registers the stream (protocol 2). Readiness ends first, because a number is registered
    /// once.
    #[cold]
    fn start(self: &Rc<Self>, context: &Context<'_>, waiters: &Waiters) -> Poll<Result<()>> {
        if self.handle.with_turn(|_| ()).is_none() {
            return self.wait_for_turn(context, waiters);
        }
        let source = self.source.take();
        if let Some(source) = &source {
            source.deregister_open();
        }
        let start = |mut turn: Turn<'_>| {
            let handler = BufferedHandler(Rc::clone(self));
            let options = OPTIONS.linger(self.handle.local().limits.drop_timeout);
            options.register_lent(handler, &mut turn)
        };
        let started = match self.handle.with_turn(start) {
            // A deletion of this number may be queued.
            Some(Err(AddReason::AlreadyExists)) => {
                self.handle.run_requests();
                self.handle.with_turn(start)
            }
            started => started,
        };
        if let Some(Ok(key)) = started {
            self.state.set(State::Streaming(key));
            self.streams.add(self);
        }
        // Whatever came of it, those that wait for readiness look again. A waker may be the user's
        // code, which may use this socket.
        if let Some(source) = source {
            source.retire();
        }
        match started {
            None => self.wait_for_turn(context, waiters),
            Some(result) => Poll::Ready(result.map(drop).map_err(Into::into)),
        }
    }

    /// Protocol 8. An error if there will be no turn.
    #[cold]
    fn wait_for_turn<T>(
        self: &Rc<Self>,
        context: &Context<'_>,
        waiters: &Waiters,
    ) -> Poll<Result<T>> {
        if !self.handle.is_open() {
            return Poll::Ready(Err(gone()));
        }
        if let Err(error) = self.request_wake() {
            return Poll::Ready(Err(error));
        }
        waiters.set_one(context.waker());
        Poll::Pending
    }

    /// Wakes the waiters in the next turn. The stream may not be registered yet, so the number of
    /// such requests has a bound of its own.
    fn request_wake(self: &Rc<Self>) -> Result<()> {
        if !self.awaits_turn.get() {
            self.handle.request_new(self.wake_in_turn())?;
            self.awaits_turn.set(true);
        }
        Ok(())
    }

    /// As [`request_wake`](Self::request_wake), for a stream that is registered. The number of
    /// those is bounded.
    fn request_wake_of_stream(self: &Rc<Self>) {
        if !self.awaits_turn.replace(true) {
            self.handle.request(self.wake_in_turn());
        }
    }

    fn wake_in_turn(self: &Rc<Self>) -> impl FnOnce(Turn<'_>) + use<> {
        let this = Rc::downgrade(self);
        move |_| {
            if let Some(this) = this.upgrade() {
                this.awaits_turn.set(false);
                this.wake_all();
            }
        }
    }

    /// Calls a closure with the stream. `None` where there is no turn. The closure gets `None` if
    /// the stream has ended, of which the handler is not told yet.
    #[inline]
    fn with_stream<T>(&self, key: Key, call: impl FnOnce(Option<Stream<'_>>) -> T) -> Option<T> {
        self.handle.with_turn(|mut turn| call(turn.stream(key).ok()))
    }

    /// The stream ends (protocol 3).
    fn end(&self, error: Option<Errno>) {
        self.is_over();
        if error.is_some() {
            self.error.set(error);
        }
    }

    fn wake_all(&self) {
        let mut panics = windlass_flow::panics::Panics::default();
        panics.catch(|| self.readers.wake_all());
        panics.catch(|| self.writers.wake_all());
        panics.resume();
    }

    /// Whether this registration for readiness has ended, because a stream was started, or that was
    /// tried. Those that wait for it look again.
    fn has_left(&self, source: &Rc<Source>) -> bool {
        let is_same = |current: &Rc<Source>| Rc::ptr_eq(current, source);
        self.handle.is_open() && !self.source.borrow().as_ref().is_some_and(is_same)
    }

    /// The readiness of a plain socket. It is registered by the first call.
    fn readiness(&self) -> Result<Rc<Source>> {
        if let Some(source) = &*self.source.borrow() {
            return Ok(Rc::clone(source));
        }
        let options =
            SourceOptions { short_read: ShortRead::Drains, is_writable: true, is_one_shot: false };
        let source = Source::register(self.socket.place(), options)?;
        *self.source.borrow_mut() = Some(Rc::clone(&source));
        Ok(source)
    }

    /// Ends the registration for readiness. Those that wait for it look again.
    fn end_readiness(&self) {
        // The borrow ends before wakers run.
        let source = self.source.take();
        if let Some(source) = source {
            source.retire();
        }
    }
}
