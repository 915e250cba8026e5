//! [`Source`]: the readiness of one descriptor, between its owner and a cell of the reactor.
//!
//! # The protocol of readiness
//!
//! 1. An event adds readiness to the directions that it concerns, and wakes their waiters. So an
//!    edge that comes before an operation is kept.
//! 2. An operation of this crate that returns `EAGAIN` clears its direction. Whatever comes later
//!    is another edge.
//! 3. A short read clears the readiness to read of TCP on epoll and poll, and of nothing else.
//!    Hang-up and error stay. After priority data was seen, a short read clears nothing, because a
//!    read stops at the urgent mark. On a ring, a poll for priority is woken by plain data, so
//!    priority is unknown and a short read clears nothing.
//! 4. A closure of the user that returns `WouldBlock` clears readiness and error. Hang-ups stay,
//!    because such a closure may say so for reasons of its own.
//! 5. A fresh socket counts as writable.
//! 6. Without edges (`Backend::Poll`), and while a connect on a ring is under way, the registration
//!    is one-shot. It asks for the directions that have waiters and are not ready.
//!
//! # The protocol of registration
//!
//! 7. The number is that of a descriptor which the owner keeps open until it calls
//!    [`deregister`](Source::deregister). That call deletes the registration, or queues the
//!    deletion together with the descriptor. So no number is closed while it is registered.
//! 8. Where there is no turn, the registration is queued, and its error is that of the first
//!    operation that has to wait.
//! 9. When the cell goes, because the reactor does, all waiters are woken and get an error.

mod registration;

use core::{
    cell::Cell,
    future::poll_fn,
    mem,
    task::{Context, Poll, Waker, ready},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
};

use windlass::{AddReason, Event, Interest, Key, Turn, interest};
use windlass_flow::panics::discard_panic;

use crate::{
    budget::{self, poll_proceed},
    fd::waiters::{ListedWaiter, Waiters},
    handle::Handle,
};

/// A direction of a descriptor: one of two, which are waited for independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Data to read, a connection to accept, or the end of a stream.
    Read,
    /// Room to write, or a finished connect.
    Write,
}

/// Readiness of one direction: plain readiness, or one of the conditions that end it.
mod bit {
    pub(super) const NORMAL: u8 = 1;
    pub(super) const READ_HANGUP: u8 = 2;
    pub(super) const HANGUP: u8 = 4;
    pub(super) const ERROR: u8 = 8;
}

/// How the backend reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Edges, with priority.
    Epoll,
    /// Edges, without priority (protocol 3).
    Ring,
    /// One event for each request (protocol 6).
    OneShot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    Registered(Key),
    Rejected(AddReason),
    /// The owner has let go, or the reactor is gone.
    Closed,
}

/// Whether a short read says that there is no more to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShortRead {
    /// TCP.
    Drains,
    /// Everything else. Control data ends a read of a Unix stream, for example.
    SaysNothing,
}

/// Who waits: the one `poll_*` method of a direction, or one of many futures.
#[derive(Clone, Copy)]
pub(crate) enum Waiting<'w> {
    One,
    Listed(&'w ListedWaiter<'w>),
}

#[derive(Default)]
struct Side {
    ready: Cell<u8>,
    waiters: Waiters,
}

pub(crate) struct Source {
    handle: Handle,
    place: Place,
    short_read: ShortRead,
    is_one_shot: bool,
    manner: Cell<Manner>,
    state: Cell<State>,
    read: Side,
    write: Side,
    has_priority: Cell<bool>,
    /// The directions that a one-shot registration asks for.
    armed: Cell<Wanted>,
    would_block: Cell<u32>,
}

/// A set of directions.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Wanted {
    read: bool,
    write: bool,
}

impl Wanted {
    const fn interest(self) -> Interest {
        let mut wanted = interest();
        if self.read {
            wanted = wanted.read().read_hangup();
        }
        if self.write {
            wanted = wanted.write();
        }
        if self.read || self.write { wanted.one_shot() } else { wanted }
    }
}

/// What is registered.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// A descriptor, by its number.
    Kernel(RawFd),
    #[cfg(feature = "sim")]
    Simulated(windlass::sim::SimId),
}

impl Place {
    /// Calls `as_fd`, unless the value is of a simulation.
    pub(crate) fn of<T: AsFd + 'static>(value: &T) -> Self {
        #[cfg(feature = "sim")]
        if let Some(id) = windlass::sim::sim_id_of(value) {
            return Self::Simulated(id);
        }
        Self::Kernel(value.as_fd().as_raw_fd())
    }
}

/// How it is registered.
pub(crate) struct SourceOptions {
    pub(crate) short_read: ShortRead,
    /// Protocol 5.
    pub(crate) is_writable: bool,
    /// One event for each request, also on a ring (protocol 6).
    pub(crate) is_one_shot: bool,
}

impl Source {
    /// Registers a descriptor with the executor of this thread. The caller keeps it open until it
    /// calls [`deregister`](Self::deregister) (protocol 7).
    pub(crate) fn register(place: Place, options: SourceOptions) -> io::Result<Rc<Self>> {
        let Some(handle) = Handle::current() else {
            return Err(no_executor());
        };
        let source = Rc::new(Self {
            handle,
            place,
            short_read: options.short_read,
            is_one_shot: options.is_one_shot,
            manner: Cell::new(Manner::Epoll),
            state: Cell::new(State::Queued),
            read: Side::default(),
            write: Side::default(),
            has_priority: Cell::new(false),
            armed: Cell::default(),
            would_block: Cell::new(0),
        });
        if options.is_writable {
            source.write.ready.set(bit::NORMAL);
        }
        source.add()?;
        Ok(source)
    }

    fn interest(&self) -> Interest {
        let edges = interest().read().write().read_hangup().edge_triggered();
        match self.manner.get() {
            Manner::Epoll => edges.priority(),
            Manner::Ring => edges,
            Manner::OneShot => self.armed.get().interest(),
        }
    }

    const fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }

    /// The list of futures for a direction.
    pub(crate) const fn waiters(&self, direction: Direction) -> &Waiters {
        &self.side(direction).waiters
    }

    #[inline]
    pub(crate) fn is_ready(&self, direction: Direction) -> bool {
        self.side(direction).ready.get() != 0
    }

    /// Ready if an operation is worth a try. Otherwise the waker is stored.
    #[inline]
    pub(crate) fn poll_ready(
        &self,
        direction: Direction,
        waker: &Waker,
        waiting: Waiting<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_ready(direction) {
            return Poll::Ready(Ok(()));
        }
        self.wait(direction, waker, waiting)
    }

    fn wait(
        &self,
        direction: Direction,
        waker: &Waker,
        waiting: Waiting<'_>,
    ) -> Poll<io::Result<()>> {
        match self.state.get() {
            State::Rejected(reason) => return Poll::Ready(Err(reason.into())),
            State::Closed => return Poll::Ready(Err(gone())),
            State::Queued | State::Registered(_) if !self.handle.is_open() => {
                return Poll::Ready(Err(gone()));
            }
            State::Queued | State::Registered(_) => {}
        }
        match waiting {
            Waiting::One => self.side(direction).waiters.set_one(waker),
            Waiting::Listed(waiter) => waiter.set(waker),
        }
        // The manner of a queued registration is not known yet.
        if self.manner.get() == Manner::OneShot || self.state.get() == State::Queued {
            self.arm(direction)?;
        }
        Poll::Pending
    }

    /// Protocol 6.
    fn arm(&self, direction: Direction) -> io::Result<()> {
        let mut wanted = self.armed.get();
        match direction {
            Direction::Read => wanted.read = true,
            Direction::Write => wanted.write = true,
        }
        if wanted == self.armed.replace(wanted) {
            return Ok(());
        }
        // If the registration is queued, it will ask for `armed`.
        let State::Registered(key) = self.state.get() else { return Ok(()) };
        let interest = wanted.interest();
        match self.handle.with_turn(|mut turn| turn.modify(key, interest)) {
            Some(result) => Ok(result?),
            None => {
                self.handle.request(move |mut turn| {
                    // The key may be stale by then.
                    let _ = turn.modify(key, interest);
                });
                Ok(())
            }
        }
    }

    /// Tries an operation when the direction counts as ready, and again after `EAGAIN`.
    #[inline(always)]
    pub(crate) fn poll_io<T>(
        &self,
        direction: Direction,
        context: &mut Context<'_>,
        waiting: Waiting<'_>,
        mut operation: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            ready!(self.poll_ready(direction, context.waker(), waiting))?;
            let proceed = ready!(poll_proceed(context));
            let result = operation();
            proceed.made_progress();
            match result {
                Ok(value) => return Poll::Ready(Ok(value)),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.clear_after_eagain(direction),
                    io::ErrorKind::Interrupted => {}
                    _ => return Poll::Ready(Err(error)),
                },
            }
        }
    }

    /// [`poll_io`](Self::poll_io) as a future. Any number may wait.
    pub(crate) async fn io<T>(
        &self,
        direction: Direction,
        mut operation: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let waiter = ListedWaiter::new(self.waiters(direction));
        let waiting = Waiting::Listed(&waiter);
        poll_fn(|context| self.poll_io(direction, context, waiting, &mut operation)).await
    }

    /// Tries an operation of this crate if the direction counts as ready.
    pub(crate) fn try_io<T>(
        &self,
        direction: Direction,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if !self.is_ready(direction) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        budget::count();
        let result = operation();
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.clear_after_eagain(direction);
        }
        result
    }

    /// Tries a closure of the user. See [`AsyncFd::try_io`](crate::AsyncFd::try_io).
    pub(crate) fn try_user_io<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        if !self.is_ready(direction) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        budget::count();
        let result = operation();
        self.note_user_result(direction, &result);
        result
    }

    /// Waits for a closure of the user. See [`AsyncFd::async_io`](crate::AsyncFd::async_io).
    pub(crate) async fn user_io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        let waiter = ListedWaiter::new(self.waiters(direction));
        poll_fn(|context| {
            loop {
                let waiting = Waiting::Listed(&waiter);
                ready!(self.poll_ready(direction, context.waker(), waiting))?;
                let proceed = ready!(poll_proceed(context));
                let result = operation();
                proceed.made_progress();
                self.note_user_result(direction, &result);
                match result {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => return Poll::Ready(result),
                }
            }
        })
        .await
    }

    fn note_user_result<R>(&self, direction: Direction, result: &io::Result<R>) {
        if matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.clear_for_user(direction);
        }
    }

    /// Protocol 2.
    #[cold]
    pub(crate) fn clear_after_eagain(&self, direction: Direction) {
        self.would_block.set(self.would_block.get().saturating_add(1));
        self.side(direction).ready.set(0);
    }

    /// Protocol 4.
    pub(crate) fn clear_for_user(&self, direction: Direction) {
        let ready = &self.side(direction).ready;
        ready.set(ready.get() & (bit::READ_HANGUP | bit::HANGUP));
    }

    /// Notes that a read into `room` bytes, which takes data from the queue, has returned `count`
    /// (protocol 3).
    #[inline]
    pub(crate) fn note_read(&self, room: usize, count: usize) {
        let is_short = count > 0 && count < room;
        if is_short
            && self.short_read == ShortRead::Drains
            && self.manner.get() != Manner::Ring
            && !self.has_priority.get()
        {
            self.read.ready.set(self.read.ready.get() & !bit::NORMAL);
        }
    }

    /// Whether this process is a child of fork(2), which shares the descriptor with its parent.
    pub(crate) fn is_in_child(&self) -> bool {
        self.handle.is_in_child()
    }

    /// How many operations have returned `EAGAIN`.
    pub(crate) fn would_block_count(&self) -> u32 {
        self.would_block.get()
    }

    /// Adds what an event has reported (protocol 1).
    fn add_readiness(&self, event: Event) {
        let mut both = 0;
        if event.has_hangup() {
            both |= bit::HANGUP;
        }
        if event.has_error() {
            both |= bit::ERROR;
        }
        let (mut read, mut write) = (both, both);
        if event.has_read() {
            read |= bit::NORMAL;
        }
        if event.has_read_hangup() {
            read |= bit::READ_HANGUP;
        }
        if event.has_write() {
            write |= bit::NORMAL;
        }
        if event.has_priority() {
            self.has_priority.set(true);
        }
        self.read.ready.set(self.read.ready.get() | read);
        self.write.ready.set(self.write.ready.get() | write);
    }

    fn handle_event(&self, event: Event, mut turn: Turn<'_>) {
        self.add_readiness(event);
        if self.manner.get() == Manner::OneShot {
            let lacks = |side: &Side| side.ready.get() == 0 && !side.waiters.is_empty();
            let wanted = Wanted { read: lacks(&self.read), write: lacks(&self.write) };
            self.armed.set(wanted);
            // Without a waiter it stays disabled, and a hang-up is not reported again.
            if wanted != Wanted::default() && turn.modify(event.key(), wanted.interest()).is_err() {
                self.read.ready.set(self.read.ready.get() | bit::ERROR);
                self.write.ready.set(self.write.ready.get() | bit::ERROR);
            }
        }
        self.wake_ready();
    }

    #[inline]
    fn wake_ready(&self) {
        let is_writable = self.write.ready.get() != 0;
        if self.read.ready.get() != 0 {
            let after = is_writable.then(|| WakesInPanic(&self.write.waiters));
            self.read.waiters.wake_all();
            mem::forget(after);
        }
        if is_writable {
            self.write.waiters.wake_all();
        }
    }

    /// Protocol 9.
    fn end(&self) {
        self.state.set(State::Closed);
        self.wake_both();
    }

    fn wake_both(&self) {
        let after = WakesInPanic(&self.write.waiters);
        self.read.waiters.wake_all();
        mem::forget(after);
        self.write.waiters.wake_all();
    }
}

/// Wakes if the wakers before it panic.
struct WakesInPanic<'w>(&'w Waiters);

impl Drop for WakesInPanic<'_> {
    #[cold]
    fn drop(&mut self) {
        discard_panic(catch_unwind(AssertUnwindSafe(|| self.0.wake_all())));
    }
}

pub(crate) fn no_executor() -> io::Error {
    io::Error::other(
        "no executor runs on this thread: make sockets inside `block_on`, on its thread",
    )
}

pub(crate) fn gone() -> io::Error {
    io::Error::other("the executor of this socket was dropped")
}
