//! [`BufferedHandler`]: the handler of a socket's stream.

use std::{
    any::Any,
    os::fd::{AsFd, BorrowedFd},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    rc::Rc,
};

use windlass::{
    Key, Turn,
    stream::{DisconnectReason, Input, Stream, StreamHandler},
};

use crate::{
    fd::waiters::Waiters,
    io::read_buffer::READ_BUFFER_MAX,
    net::buffered_tcp::{BufferedTcp, State},
};

/// Fills the read buffer, and wakes.
pub(super) struct BufferedHandler(pub(super) Rc<BufferedTcp>);

/// Wakes. A foreign waker may panic: the panic leaves the turn, and the stream stays.
#[inline(always)]
fn wake(turn: Turn<'_>, waiters: &Waiters) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waiters.wake_all())) {
        panic_later(turn, payload);
    }
}

#[cold]
fn panic_later(mut turn: Turn<'_>, payload: Box<dyn Any + Send>) {
    let _ = turn.defer(move |_: Turn<'_>| resume_unwind(payload));
}

impl AsFd for BufferedHandler {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

impl StreamHandler for BufferedHandler {
    #[inline]
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let socket = &*self.0;
        let is_full = {
            let mut read_buffer = socket.read_buffer.borrow_mut();
            read_buffer.push(&input, &socket.streams.spares);
            read_buffer.len() >= READ_BUFFER_MAX
        };
        // Its reader may read in this turn.
        if is_full && !socket.is_paused.get() && !socket.is_notified.replace(true) {
            stream.notify();
        }
        wake(stream.turn(), &socket.readers);
    }

    fn on_notify(&mut self, stream: &mut Stream<'_>) {
        let socket = &*self.0;
        socket.is_notified.set(false);
        if !socket.is_paused.get() && socket.read_buffer.borrow().len() >= READ_BUFFER_MAX {
            socket.is_paused.set(true);
            stream.pause();
        }
        // If this is true, `on_drained` follows.
        if !socket.writers.is_empty() && !stream.wait_for_low_mark() {
            wake(stream.turn(), &socket.writers);
        }
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        wake(stream.turn(), &self.0.writers);
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        self.0.has_end.set(true);
        wake(stream.turn(), &self.0.readers);
    }

    #[cfg(feature = "sim")]
    fn lent_sim_id(&self) -> Option<windlass::sim::SimId> {
        self.0.socket.simulated().map(windlass::sim::SimFd::id)
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, mut turn: Turn<'_>) {
        let socket = &*self.0;
        socket.end(match reason {
            DisconnectReason::Error(errno) => Some(errno),
            _ => None,
        });
        wake(turn.reborrow(), &socket.readers);
        wake(turn, &socket.writers);
    }
}

impl Drop for BufferedHandler {
    fn drop(&mut self) {
        // The reactor is dropped without a last turn, as in a child of fork(2), or a panic has
        // ended the stream.
        if let State::Streaming(_) = self.0.state.get() {
            self.0.is_gone.set(true);
            self.0.has_lost.set(true);
            self.0.end(None);
            self.0.wake_all();
        }
    }
}
