//! The life of a stream in the reactor: registration, interest, work that is due, and removal.

use std::collections::VecDeque;

use super::{
    DisconnectReason, ReleasedTls, Stream, StreamHandler, StreamOptions, TlsFailure,
    io::{
        completion,
        memory::Undelivered,
        readiness::StreamCell,
        tls_state::{OwnSession, TlsState},
    },
    socket::StreamSocket,
    state::{NO_LISTENER, StreamCore, StreamTable},
};
use crate::stream::status::{
    Receive, StreamFlags, StreamIo, StreamPhase, StreamStatus, Transport, Watch,
};
use crate::{
    AddError, Errno, Interest, Key, ModifyError, NotFound, Subscription, Turn,
    api::key::{KeyKind, MAX_INDEX},
    cell::{CellFlags, CellPtr, NO_GROUP},
    interest,
    kernel::{Kernel, pending_work},
    registry::groups::Groups,
    util::unwind_safe_drop::Panics,
};

/// The parts of a new stream.
pub(super) struct NewStream {
    pub(super) socket: StreamSocket,
    pub(super) options: StreamOptions,
    pub(super) read_buf: Vec<u8>,
    /// New or connecting.
    pub(super) phase: StreamPhase,
    /// The error of a connection attempt that failed at once.
    pub(super) refused: Option<Errno>,
    pub(super) listener: Option<u32>,
    pub(super) tls: Option<NewTls>,
}

/// The TLS of a new stream.
pub(super) enum NewTls {
    Begins(OwnSession),
    GoesOn(ReleasedTls),
}

/// The parts of a new stream that was rejected.
pub(super) struct RejectedStream {
    pub(super) socket: StreamSocket,
    pub(super) read_buf: Vec<u8>,
    pub(super) tls: Option<NewTls>,
}

/// The parts of a removed stream. The caller drops them.
pub(super) struct RemovedStream {
    pub(super) socket: StreamSocket,
    pub(super) reason: DisconnectReason,
    pub(super) tls: Option<Box<TlsState>>,
}

/// Touched streams. If a TLS session panics, the rest of them is handled in the next turn.
struct Touched<'r> {
    streams: &'r mut StreamTable,
    kernel: &'r mut Kernel,
    indices: Vec<u32>,
    /// The number of indices that were handled.
    handled: usize,
}

impl Drop for Touched<'_> {
    #[inline]
    fn drop(&mut self) {
        let streams = &mut *self.streams;
        if let Some(&last) = self.handled.checked_sub(1).and_then(|last| self.indices.get(last)) {
            if std::thread::panicking() && streams.is_tls_broken(last) {
                // The next turn resets it.
                self.handled -= 1;
                streams.core(last).status.insert(StreamFlags::TOUCHED);
            }
        }
        // The list keeps its memory (rule 12).
        self.indices.drain(..self.handled);
        // Streams whose queued sends have failed: the first write to a ring learns of them.
        self.indices.append(&mut streams.touched);
        if !self.indices.is_empty() {
            self.kernel.note(pending_work::STREAMS);
        }
        streams.touched = core::mem::take(&mut self.indices);
    }
}

impl StreamTable {
    /// Registers a stream. `on_open` is called in the next turn.
    pub(super) fn add<H: StreamHandler>(
        &mut self,
        kernel: &mut Kernel,
        begin: NewStream,
        handler: H,
    ) -> Result<Key, AddError<(RejectedStream, H)>> {
        let (index, generation) = self.cores.next(MAX_INDEX);
        let subscription = Subscription::new(StreamCell { index, handler });
        let is_connecting = begin.phase == StreamPhase::Connecting;
        let carries_fds = begin.options.fds_max > 0 && begin.tls.is_none();
        let is_by_ring =
            completion::works_by_ring(kernel) && begin.refused.is_none() && !carries_fds;
        let io = if is_by_ring { StreamIo::Ring } else { StreamIo::Readiness };
        let transport = Transport { io, has_tls: begin.tls.is_some() };
        let mut status = StreamStatus::new(begin.phase, transport);
        let interest = match (begin.refused, is_connecting, io) {
            (Some(_), ..) => interest(),
            (None, true, _) => {
                status.set_watch(Watch::Writable);
                interest().write()
            }
            // The receive that is armed right after makes the poll for its end superfluous.
            (None, false, StreamIo::Ring) => {
                status.set_watch(Watch::Ends);
                interest()
            }
            (None, false, StreamIo::Readiness) => {
                status.set_receive(if carries_fds { Receive::WithFds } else { Receive::Armed });
                interest().read()
            }
        };
        let (cell, number) = (subscription.cell(), begin.socket.number_in(kernel));
        // The descriptor that the user passed may not be a socket.
        let is_ours = begin.listener.is_some()
            || is_connecting
            || begin.refused.is_some()
            || begin.socket.is_lent();
        let admitted = match number {
            Ok(fd) if is_ours => kernel.admit_socket(cell, fd, interest),
            Ok(fd) => kernel.admit(cell, fd, interest),
            Err(reason) => Err(reason),
        };
        match admitted {
            Ok(cell) => {
                subscription.into_cell().set_flag(CellFlags::HIDDEN, true);
                self.insert(kernel, begin, status, cell, index);
                if is_by_ring && !is_connecting {
                    self.sync(kernel, index);
                }
                Ok(Key::new(KeyKind::Stream, (index, generation)))
            }
            Err(reason) => {
                let Ok(cell) = subscription.into_inner::<StreamCell<H>>() else {
                    unreachable!("it was made of one above")
                };
                let NewStream { socket, read_buf, tls, .. } = begin;
                Err(AddError::new(reason, (RejectedStream { socket, read_buf, tls }, cell.handler)))
            }
        }
    }

    fn insert(
        &mut self,
        kernel: &mut Kernel,
        begin: NewStream,
        status: StreamStatus,
        cell: Key,
        index: u32,
    ) {
        let NewStream { socket, options, read_buf, phase, refused, listener, tls } = begin;
        let mut core = StreamCore {
            socket,
            status,
            cell,
            output: None,
            options: self.share(&options),
            last_rx_ns: 0,
            since_ns: 0,
            listener: listener.unwrap_or(NO_LISTENER),
            reason: None,
        };
        core.status.set(StreamFlags::IDLE, options.idle_timeout.is_some());
        if phase == StreamPhase::Connecting {
            core.status.insert(StreamFlags::STAMP_WAIT | StreamFlags::ARM);
        }
        if let Some(errno) = refused {
            core.kill(DisconnectReason::Connect(errno));
        }
        if !read_buf.is_empty() {
            core.status.insert(StreamFlags::PREFIX);
            let read_buf = Undelivered::new(read_buf, &self.memory);
            self.prefixes.insert(index, VecDeque::from([read_buf]));
        }
        self.cores.insert(core);
        match tls {
            None => {}
            Some(NewTls::Begins(session)) => self.insert_tls(index, session),
            Some(NewTls::GoesOn(released)) => self.continue_tls(index, released),
        }
        self.notify(kernel, index);
    }

    /// Removes a stream from all tables. Its socket is still open: rule 14 has been kept, and the
    /// caller closes it.
    ///
    /// No user code runs: the handler is dropped only after its driver's frame has ended (rule 1).
    pub(super) fn deregister(
        &mut self,
        kernel: &mut Kernel,
        groups: &mut Groups,
        index: u32,
    ) -> RemovedStream {
        self.remove(kernel, groups, index, Kernel::deregister)
    }

    /// The same, where `end` ends the cell.
    pub(super) fn remove(
        &mut self,
        kernel: &mut Kernel,
        groups: &mut Groups,
        index: u32,
        end: impl FnOnce(&mut Kernel, CellPtr),
    ) -> RemovedStream {
        if self.core(index).status.is_on_ring() {
            self.leave_ring(kernel, index);
        }
        let generation = self.cores.generation(index);
        let core = self
            .cores
            .remove(index, generation)
            .expect("a stream's cell and its core live together");
        let StreamCore { socket, status, cell, output, listener, reason, .. } = core;
        self.prefixes.remove(&index);
        self.received_fds.remove(&index);
        self.deadlines.remove(index);
        if !self.paused.is_empty() {
            self.paused.remove(&cell);
        }
        let tls = if status.has_tls() {
            self.remove_tls(index, status.any(StreamFlags::HANDSHAKE_WAITS))
        } else {
            None
        };
        if let Some(mut output) = output {
            output.drop_records();
            self.keep_output(output);
        }
        if status.any(StreamFlags::RESET) && !self.is_in_child() {
            socket.reset_at_close();
        }
        if let Some(cell) = kernel.find(cell) {
            let group = cell.group();
            end(kernel, cell);
            if group != NO_GROUP {
                let key = Key::new(KeyKind::Stream, (index, generation));
                groups.leave(group, key, kernel.self_deleted());
            }
        }
        if listener != NO_LISTENER {
            self.leave_listener(kernel, listener);
        }
        RemovedStream { socket, reason: reason.unwrap_or(DisconnectReason::Closed), tls }
    }

    /// The reactor ends. Writes the output as far as the sockets accept it, and ends TLS that was
    /// closed. A stream with output that is left is reset, so that its peer does not take it for
    /// complete.
    pub(crate) fn end_all(&mut self, kernel: &mut Kernel, panics: &mut Panics) {
        if self.is_in_child() {
            return;
        }
        let indices: Vec<u32> = self.cores.iter().map(|(index, ..)| index).collect();
        for index in indices {
            // A TLS session is foreign code.
            panics.catch(|| {
                self.write_now(kernel, index);
                let core = self.core(index);
                let is_closed = core.can_finish() && !core.status.is(StreamPhase::Dead);
                if is_closed && core.status.has_tls() {
                    self.send_close_notify(index);
                }
            });
            let core = self.core(index);
            if core.output.is_some() || core.status.any(StreamFlags::RESET) {
                core.socket.reset_at_close();
            }
        }
    }

    /// Calls the stream's driver in the next turn, with an event without readiness.
    pub(super) fn notify(&mut self, kernel: &mut Kernel, index: u32) {
        let core = self.core(index);
        if !core.status.any(StreamFlags::DRIVER_QUEUED) {
            core.status.insert(StreamFlags::DRIVER_QUEUED);
            let cell = core.cell;
            self.notifications.push(cell);
            kernel.note(pending_work::SYNTHETIC);
        }
    }

    /// Records a change of a stream. Its driver handles it if it is running, else the end of the
    /// turn.
    pub(super) fn touch(&mut self, kernel: &mut Kernel, index: u32) {
        let core = self.core(index);
        if core.status.any(StreamFlags::RUNNING | StreamFlags::TOUCHED) {
            return;
        }
        core.status.insert(StreamFlags::TOUCHED);
        self.touched.push(index);
        kernel.note(pending_work::STREAMS);
    }

    /// See [`Stream::close`].
    pub(super) fn close(&mut self, kernel: &mut Kernel, index: u32) {
        let core = self.core(index);
        core.status.clear(StreamFlags::DELIVERS);
        if core.status.is_ending() {
            return;
        }
        core.reason.get_or_insert(DisconnectReason::Closed);
        core.begin_linger();
        // Without a connection, there is nothing to close gracefully.
        let status = core.status;
        let is_connecting = if status.is(StreamPhase::New) && status.has_tls() {
            // A session that comes from another stream may be open already.
            !self.tls_state(index).is_open()
        } else {
            status.is(StreamPhase::Connecting) || status.is(StreamPhase::Handshake)
        };
        let phase = if is_connecting { StreamPhase::Dead } else { StreamPhase::Closing };
        self.core(index).status.advance(phase);
        self.touch(kernel, index);
    }

    /// Handles the streams that were changed outside their drivers, with one write for each.
    #[cold]
    #[inline(never)]
    pub(crate) fn service(&mut self, kernel: &mut Kernel) {
        kernel.clear(pending_work::STREAMS);
        let indices = core::mem::take(&mut self.touched);
        let needs_service = self.tls.as_ref().is_some_and(|tls| tls.needs_service());
        let mut touched = Touched { streams: self, kernel, indices, handled: 0 };
        while let Some(&index) = touched.indices.get(touched.handled) {
            touched.handled += 1;
            touched.streams.service_one(touched.kernel, index);
        }
        drop(touched);
        if needs_service {
            kernel.note(pending_work::STREAMS);
        }
    }

    /// Handles a stream that is in the list of touched ones, unless it was removed meanwhile. Then
    /// there is none at its index, or another one. That one has its own entry if it is touched.
    fn service_one(&mut self, kernel: &mut Kernel, index: u32) {
        let Some(core) = self.cores.at_mut(index) else { return };
        if !core.status.take(StreamFlags::TOUCHED) {
            return;
        }
        // The driver may have handled it meanwhile; doing so again has no effect.
        self.flush(kernel, index);
        if self.core(index).status.has_tls() && self.is_tls_broken(index) {
            self.end_tls(index, TlsFailure::Internal);
        }
        if self.core(index).is_at_rest() {
            return;
        }
        self.sync(kernel, index);
        if self.core(index).needs_driver() {
            self.notify(kernel, index);
        }
    }

    /// Whether a driver must be called without an event from the kernel, and whether a stream was
    /// touched.
    pub(crate) fn pending(&self) -> (bool, bool) {
        (!self.notifications.is_empty(), self.needs_service())
    }

    /// Adds the events of notified streams to the batch. Events without room stay queued.
    pub(crate) fn push_notifications(&mut self, kernel: &mut Kernel) {
        let mut pushed = 0;
        for key in &self.notifications {
            if let Some(cell) = kernel.find(*key) {
                if !kernel.push_event(cell, 0) {
                    kernel.note(pending_work::SYNTHETIC);
                    break;
                }
            }
            pushed += 1;
        }
        self.notifications.drain(..pushed);
    }

    /// Updates the stream's interest in the kernel. An error ends the stream.
    pub(super) fn sync(&mut self, kernel: &mut Kernel, index: u32) {
        if self.is_in_child() {
            return;
        }
        let core = self.core(index);
        if core.status.is(StreamPhase::Dead) {
            return;
        }
        if core.status.is_on_ring() {
            return self.sync_by_ring(kernel, index);
        }
        let (mut wanted, mut receive, mut watch) =
            (Interest::default(), Receive::Off, Watch::Nothing);
        if core.wants_input() {
            (wanted, receive) = (wanted.read(), core.armed());
        }
        if core.status.holds_output() {
            (wanted, watch) = (wanted.write(), Watch::Writable);
        }
        if (core.status.receive(), core.status.watch()) == (receive, watch) {
            return;
        }
        let key = core.cell;
        let done = match kernel.find(key) {
            // The resume calls the driver.
            Some(cell) if cell.is_paused() => return,
            Some(cell) => kernel.change(cell, wanted),
            None => Err(ModifyError::NotFound),
        };
        let core = self.core(index);
        match done {
            Ok(()) => {
                core.status.set_receive(receive);
                core.status.set_watch(watch);
            }
            Err(ModifyError::Os(errno)) => core.fail(errno),
            Err(_) => core.fail(Errno::IO),
        }
    }
}

impl Turn<'_> {
    /// Finds a stream by its key, to send to it or to close it from any handler. Output sent to it
    /// is written at the end of the turn, once per stream.
    ///
    /// # Errors
    /// [`NotFound`] if the stream was closed, from [`on_close`](StreamHandler::on_close) on.
    #[inline]
    pub fn stream(&mut self, key: Key) -> Result<Stream<'_>, NotFound> {
        Stream::find(self.ops(), key)
    }

    /// See [`Reactor::stream_memory`](crate::Reactor::stream_memory).
    #[must_use]
    pub fn stream_memory(&mut self) -> usize {
        self.ops().streams().memory_bytes()
    }
}
