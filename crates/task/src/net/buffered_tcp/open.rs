//! [`OpenStreams`]: the streams of one executor, to end many of them together.

#[cfg(feature = "sim")]
use core::cell::OnceCell;
use core::cell::{Cell, RefCell};
use std::rc::Rc;

use windlass::{
    Key, Turn,
    stream::{Released, Stream},
};
use windlass_flow::panics::Panics;

use crate::{
    handle::Handle,
    io::read_buffer::SpareBuffers,
    net::buffered_tcp::{BufferedTcp, State, owner::reset_at_close, unsent::drain},
    task::request::RoundEnd,
};

/// What all streams of an executor share.
#[derive(Default)]
pub(super) struct OpenStreams {
    pub(super) spares: SpareBuffers,
    /// Those in [`State::Streaming`], each at the index that it notes.
    open: RefCell<Vec<Rc<BufferedTcp>>>,
    /// Those that were dropped in this round.
    dropped: RefCell<Vec<Dropped>>,
    /// The memory of that list while there is none.
    spare: Cell<Vec<Dropped>>,
    /// The host of a simulated executor, which has forgotten it when it ends.
    #[cfg(feature = "sim")]
    pub(super) host: OnceCell<Option<windlass::sim::Host>>,
}

/// A stream without an owner. The socket is closed with it.
struct Dropped {
    /// `None` if the stream ends by itself.
    socket: Option<Rc<BufferedTcp>>,
    key: Key,
}

/// The list of dropped streams keeps memory for this many.
const DROPPED_KEPT: usize = 64;

impl RoundEnd for OpenStreams {
    fn run(&self, turn: Turn<'_>) {
        self.end_dropped(turn);
    }

    /// The reactor ends them.
    fn give_up(&self) {
        let mut panics = Panics::default();
        for Dropped { socket, .. } in self.dropped.take() {
            panics.catch(|| drop(socket));
        }
        panics.resume();
    }
}

/// The executor's reference. Dropping it at the executor's end ends the streams.
#[derive(Default)]
struct OfExecutor(Rc<OpenStreams>);

impl Drop for OfExecutor {
    /// The owners of the streams may outlive the executor. What the reactor has received, and what
    /// it has not sent, would be lost with it, so the sockets take it.
    fn drop(&mut self) {
        let mut open = self.0.open.borrow().clone();
        let Some(first) = open.first() else { return };
        let longest = first.handle.local().limits.drain_timeout;
        let mut panics = Panics::default();
        open.retain(|socket| {
            let mut is_released = false;
            panics.catch(|| is_released = socket.release().is_some());
            is_released
        });
        drain(open.iter().filter(|socket| !socket.resets_at_drop()).collect(), longest);
        for socket in open {
            panics.catch(move || socket.end_with_executor());
        }
        panics.resume();
    }
}

impl OpenStreams {
    pub(super) fn of(handle: &Handle) -> Rc<Self> {
        Rc::clone(&handle.extension::<OfExecutor>().0)
    }

    pub(super) fn add(&self, socket: &Rc<BufferedTcp>) {
        debug_assert!(matches!(socket.state.get(), State::Streaming(_)));
        #[cfg(feature = "sim")]
        self.host.get_or_init(crate::simulation::host);
        let mut open = self.open.borrow_mut();
        socket.open_index.set(open.len());
        open.push(Rc::clone(socket));
    }

    pub(super) fn remove(&self, index: usize) {
        let removed = {
            let mut open = self.open.borrow_mut();
            if index >= open.len() {
                return;
            }
            let removed = open.swap_remove(index);
            if let Some(moved) = open.get(index) {
                moved.open_index.set(index);
            }
            removed
        };
        // Dropped when nothing is borrowed: its wakers may be the user's code.
        drop(removed);
    }

    /// The owner of a stream is dropped. All such streams of a round are ended together, at its
    /// end.
    pub(super) fn end_later(self: &Rc<Self>, handle: &Handle, socket: Rc<BufferedTcp>, key: Key) {
        let is_first = {
            let mut dropped = self.dropped.borrow_mut();
            dropped.push(Dropped { socket: Some(socket), key });
            dropped.len() == 1
        };
        if is_first {
            handle.request_at_end(Rc::clone(self) as _);
        }
    }

    /// Ends the streams whose owners were dropped. On a ring this takes one system call for many.
    /// A panic of one waker's destructor does not keep the other streams from being ended.
    fn end_dropped(&self, mut turn: Turn<'_>) {
        let mut panics = Panics::default();
        let mut dropped = self.dropped.replace(self.spare.take());
        for Dropped { socket, key } in &mut dropped {
            if let Some(ending) = socket.take() {
                if ending.is_to_be_released(turn.stream(*key).ok()) {
                    ending.is_over();
                    *socket = Some(ending);
                } else {
                    panics.catch(|| drop(ending));
                }
            }
        }
        let released = dropped.iter().filter_map(|Dropped { socket, key }| {
            let socket = socket.as_deref()?;
            Some((socket, *key))
        });
        let mut sockets = released.clone().map(|(socket, _)| socket);
        turn.release_streams_with(released.map(|(_, key)| key), |released| {
            let socket = sockets.next();
            let is_lossy =
                |released: Released| !(released.read_buf.is_empty() && released.unsent.is_empty());
            if released.is_some_and(is_lossy) {
                socket.into_iter().for_each(reset_at_close);
            }
        });
        for Dropped { socket, .. } in dropped.drain(..) {
            panics.catch(|| drop(socket));
        }
        dropped.shrink_to(DROPPED_KEPT);
        self.spare.set(dropped);
        panics.resume();
    }
}

impl BufferedTcp {
    /// It leaves [`State::Streaming`], or was plain.
    pub(super) fn is_over(&self) {
        if let State::Streaming(_) = self.state.replace(State::Over) {
            self.streams.remove(self.open_index.get());
        }
    }

    /// Its owner was dropped. False if its stream has ended, or ends by itself after its output.
    fn is_to_be_released(&self, stream: Option<Stream<'_>>) -> bool {
        let Some(mut stream) = stream else { return false };
        let is_read = self.read_buffer.borrow().is_empty();
        if is_read && stream.send_now() > 0 && !self.resets_at_drop() {
            // The peer is slow to read. The handler keeps the socket until the output is sent, or
            // the time for that is over.
            stream.close_after_output();
            return false;
        }
        true
    }

    /// Whether a drop does not wait for the output: `TcpStream::set_linger` asks for a reset, or
    /// the executor's settings do.
    fn resets_at_drop(&self) -> bool {
        self.handle.local().limits.drop_timeout.is_zero() || self.socket.resets_on_close()
    }

    /// The executor has ended, and the stream was released.
    fn end_with_executor(self: Rc<Self>) {
        let is_whole = self.unsent.is_empty() && self.read_buffer.borrow().is_empty();
        if !self.has_owner.get() && !is_whole {
            reset_at_close(&self);
        }
        self.is_gone.set(true);
        self.wake_all();
    }
}
