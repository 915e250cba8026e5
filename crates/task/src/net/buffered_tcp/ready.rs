//! Readiness of a [`BufferedTcp`], and closures of the user.

use core::{
    cell::Cell,
    future::poll_fn,
    task::{Context, Poll},
};
use std::{io, net::TcpStream, rc::Rc};

use crate::{
    Direction, budget,
    fd::{
        source::{Source, Waiting, gone},
        waiters::{ListedWaiter, Waiters},
    },
    net::buffered_tcp::{BufferedTcp, OUTPUT_MAX, State, io::unsupported},
};

impl BufferedTcp {
    const fn waiters(&self, direction: Direction) -> &Waiters {
        match direction {
            Direction::Read => &self.readers,
            Direction::Write => &self.writers,
        }
    }

    /// Whether an operation is worth a try. `None` if the readiness of the socket tells.
    fn is_ready(self: &Rc<Self>, direction: Direction) -> Option<bool> {
        let has_bytes = || !self.read_buffer.borrow().is_empty();
        match (self.state.get(), direction) {
            (State::Over, _) => Some(true),
            (_, Direction::Read) if has_bytes() => Some(true),
            (State::Plain, _) => None,
            (State::Streaming(_), Direction::Read) => Some(self.has_end.get()),
            (State::Streaming(key), Direction::Write) => {
                let has_room = self.with_stream(key, |stream| {
                    stream.is_none_or(|mut stream| {
                        let has_room = stream.buffered() < OUTPUT_MAX;
                        if !has_room {
                            stream.notify();
                        }
                        has_room
                    })
                });
                if has_room.is_none() {
                    self.request_wake_of_stream();
                }
                Some(has_room.unwrap_or(false))
            }
        }
    }

    /// As [`is_ready`](Self::is_ready), and stores the waker.
    fn poll_own(
        self: &Rc<Self>,
        direction: Direction,
        set_waker: impl FnOnce(),
    ) -> Poll<Option<io::Result<()>>> {
        match self.is_ready(direction) {
            None => Poll::Ready(None),
            Some(true) => Poll::Ready(Some(Ok(()))),
            Some(false) if !self.handle.is_open() => Poll::Ready(Some(Err(gone()))),
            Some(false) => {
                set_waker();
                Poll::Pending
            }
        }
    }

    pub(in crate::net) async fn ready(self: &Rc<Self>, direction: Direction) -> io::Result<()> {
        budget::remaining().await;
        loop {
            let own = ListedWaiter::new(self.waiters(direction));
            let polled =
                poll_fn(|context| self.poll_own(direction, || own.set(context.waker()))).await;
            if let Some(result) = polled {
                return result;
            }
            let source = self.readiness()?;
            let waiter = ListedWaiter::new(source.waiters(direction));
            let result = poll_fn(|context| {
                source.poll_ready(direction, context.waker(), Waiting::Listed(&waiter))
            });
            let result = result.await;
            match result {
                Err(error) if self.has_left(&source) && error.raw_os_error().is_none() => {}
                result => return result,
            }
        }
    }

    /// One waiter for each direction.
    pub(in crate::net) fn poll_ready(
        self: &Rc<Self>,
        direction: Direction,
        context: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        let set_waker = || self.waiters(direction).set_one(context.waker());
        match self.poll_own(direction, set_waker) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(result)) => Poll::Ready(result),
            Poll::Ready(None) => {
                self.readiness()?.poll_ready(direction, context.waker(), Waiting::One)
            }
        }
    }

    /// The readiness of a plain socket, for a closure of the user.
    fn readiness_for_user(&self, direction: Direction) -> io::Result<Rc<Source>> {
        let has_prefix = direction == Direction::Read && !self.read_buffer.borrow().is_empty();
        if self.state.get() == State::Plain && !has_prefix {
            self.readiness()
        } else {
            Err(unsupported())
        }
    }

    pub(in crate::net) fn try_io<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce(&TcpStream) -> io::Result<R>,
    ) -> io::Result<R> {
        let source = self.readiness_for_user(direction)?;
        source.try_user_io(direction, || operation(self.socket.kernel()?))
    }

    pub(in crate::net) async fn async_io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&TcpStream) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            let source = self.readiness_for_user(direction)?;
            let is_done = Cell::new(false);
            let operation = || {
                let result = self.socket.kernel().and_then(&mut operation);
                let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
                is_done.set(!result.as_ref().is_err_and(would_block));
                result
            };
            match source.user_io(direction, operation).await {
                Err(_) if !is_done.get() && self.has_left(&source) => {}
                result => return result,
            }
        }
    }

    pub(in crate::net) fn would_block_count(&self) -> u32 {
        self.source.borrow().as_ref().map_or(0, |source| source.would_block_count())
    }

    /// Polls until the stream, if there is one, has no output, and then ends it. The socket is
    /// plain again, without a registration.
    pub(in crate::net) fn poll_release(
        self: &Rc<Self>,
        context: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_gone.get() {
            // What the executor has received is in the read buffer. Its output is that of the
            // process which has built it.
            let is_foreign = !self.unsent.is_empty() && self.handle.is_in_child();
            let has_lost = self.has_lost.get() || is_foreign;
            return Poll::Ready(if has_lost { Err(lost()) } else { Ok(()) });
        }
        // Also what is queued with the ring.
        core::task::ready!(self.poll_output_gone(context, |stream| stream.send_now() > 0))?;
        if self.release().is_none() {
            return self.wait_for_turn(context, &self.writers);
        }
        if self.has_lost.get() {
            return Poll::Ready(Err(lost()));
        }
        Poll::Ready(self.error.take().map_or(Ok(()), |errno| Err(errno.into())))
    }

    /// Ends the stream, if there is one. `None` where there is no turn.
    pub(super) fn release(&self) -> Option<()> {
        let State::Streaming(key) = self.state.get() else { return Some(()) };
        // The kernel receives for the parent.
        self.has_lost.set(self.handle.is_in_child());
        self.with_stream(key, |stream| {
            // Its handler has nothing more to say.
            self.is_over();
            let Some(released) = stream.and_then(|mut stream| stream.release()) else { return };
            self.unsent.set(released.unsent);
            if !released.read_buf.is_empty() {
                self.read_buffer.borrow_mut().push(&released.read_buf, &self.streams.spares);
            }
            if released.error.is_some() {
                self.error.set(released.error);
            }
        })
    }
}

/// The executor has ended without a last turn.
#[cold]
fn lost() -> io::Error {
    io::Error::other(
        "the executor of this socket ended before the stream was released, so bytes may be lost: \
         detach streams before a fork(2), and in their own process",
    )
}
