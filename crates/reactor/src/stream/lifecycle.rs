//! The life of a stream in the reactor: registration, interest, work that is due, and removal.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use rustix::net::sockopt;

use super::{
    DisconnectReason, ReleasedTls, Stream, StreamHandler, StreamOptions, TlsFailure,
    io::{
        memory::Undelivered,
        readiness::StreamCell,
        tls_state::{OwnSession, TlsState},
    },
    socket::StreamSocket,
    state::{NO_LISTENER, StreamCore, StreamTable, no_core},
};
use crate::stream::status::{
    Receive, StreamFlags, StreamIo, StreamPhase, StreamStatus, Transport, Watch,
};
use crate::{
    AddError, Errno, Interest, Key, ModifyError, NotFound, Reactor, Subscription, Turn,
    api::key::{KeyKind, MAX_INDEX},
    cell::{CellFlags, CellPtr, NO_GROUP},
    interest,
    kernel::pending_work,
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
    reactor: &'r mut Reactor,
    indices: Vec<u32>,
    /// The number of indices that were handled.
    handled: usize,
}

impl Drop for Touched<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(streams) = self.reactor.streams.as_deref_mut() else { return };
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
            self.reactor.kernel.note(pending_work::STREAMS);
        }
        streams.touched = core::mem::take(&mut self.indices);
    }
}

/// Lets the end of a socket send a RST. One that cannot is closed without it.
fn reset_at_close(socket: &StreamSocket) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

impl Reactor {
    pub(super) fn streams_mut(&mut self) -> &mut StreamTable {
        let kernel = &self.kernel;
        self.streams.get_or_insert_with(|| Box::new(StreamTable::new(kernel.fork_guard())))
    }

    /// See [`StreamTable::is_in_child`].
    #[inline]
    pub(super) fn streams_in_child(&self) -> bool {
        self.streams.as_deref().is_some_and(StreamTable::is_in_child)
    }

    /// The stream at an index that is known to be occupied.
    #[inline]
    pub(super) fn stream_core(&mut self, index: u32) -> &mut StreamCore {
        match self.streams.as_deref_mut() {
            Some(streams) => streams.core(index),
            None => no_core(),
        }
    }

    /// Finds a stream by its key, outside a turn. Output sent to it is written when the next turn
    /// starts. See [`Turn::stream`].
    ///
    /// # Errors
    /// [`NotFound`] if the stream was closed.
    #[inline]
    pub fn stream(&mut self, key: Key) -> Result<Stream<'_>, NotFound> {
        let (index, generation) = key.parts(KeyKind::Stream).ok_or(NotFound)?;
        let streams = self.streams.as_deref().ok_or(NotFound)?;
        streams.cores.get(index, generation).ok_or(NotFound)?;
        Ok(Stream { reactor: self, index })
    }

    /// Bytes of memory that all streams of the reactor hold for buffered output, and for received
    /// bytes that were not delivered yet. Shared bytes ([`Stream::send_shared`]) count once,
    /// however many streams hold them.
    #[must_use]
    pub fn stream_memory(&self) -> usize {
        self.streams.as_deref().map_or(0, |streams| streams.memory.bytes())
    }

    /// Registers a stream. `on_open` is called in the next turn.
    pub(super) fn add_stream<H: StreamHandler>(
        &mut self,
        begin: NewStream,
        handler: H,
    ) -> Result<Key, AddError<(RejectedStream, H)>> {
        let (index, generation) = self.streams_mut().cores.next(MAX_INDEX);
        let subscription = Subscription::new(StreamCell { index, handler });
        let is_connecting = begin.phase == StreamPhase::Connecting;
        let is_by_ring = self.streams_complete() && begin.refused.is_none();
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
                status.set_receive(Receive::Armed);
                interest().read()
            }
        };
        let (cell, fd) = (subscription.cell(), begin.socket.as_fd().as_raw_fd());
        // The descriptor that the user passed may not be a socket.
        let is_ours = begin.listener.is_some()
            || is_connecting
            || begin.refused.is_some()
            || begin.socket.is_lent();
        let admitted = if is_ours {
            self.kernel.admit_socket(cell, fd, interest)
        } else {
            self.kernel.admit(cell, fd, interest)
        };
        match admitted {
            Ok(cell) => {
                subscription.into_cell().set_flag(CellFlags::HIDDEN, true);
                self.insert_stream(begin, status, cell, index);
                if is_by_ring && !is_connecting {
                    self.sync_stream(index);
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

    fn insert_stream(&mut self, begin: NewStream, status: StreamStatus, cell: Key, index: u32) {
        let NewStream { socket, options, read_buf, phase, refused, listener, tls } = begin;
        let streams = self.streams_mut();
        let mut core = StreamCore {
            socket,
            status,
            cell,
            output: None,
            options: streams.share(&options),
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
            let read_buf = Undelivered::new(read_buf, &streams.memory);
            streams.prefixes.insert(index, VecDeque::from([read_buf]));
        }
        streams.cores.insert(core);
        match tls {
            None => {}
            Some(NewTls::Begins(session)) => streams.insert_tls(index, session),
            Some(NewTls::GoesOn(released)) => streams.continue_tls(index, released),
        }
        self.notify_stream(index);
    }

    /// Removes a stream from all tables. Its socket is still open: rule 14 has been kept, and the
    /// caller closes it.
    ///
    /// No user code runs: the handler is dropped only after its driver's frame has ended (rule 1).
    pub(super) fn deregister_stream(&mut self, index: u32) -> RemovedStream {
        self.remove_stream(index, |reactor, cell| reactor.kernel.deregister(cell))
    }

    /// The same, where `end` ends the cell.
    pub(super) fn remove_stream(
        &mut self,
        index: u32,
        end: impl FnOnce(&mut Self, CellPtr),
    ) -> RemovedStream {
        if self.stream_core(index).status.is_on_ring() {
            self.leave_ring(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let generation = streams.cores.generation(index);
        let core = streams
            .cores
            .remove(index, generation)
            .expect("a stream's cell and its core live together");
        let StreamCore { socket, status, cell, output, listener, reason, .. } = core;
        streams.prefixes.remove(&index);
        streams.deadlines.remove(index);
        let tls = if status.has_tls() {
            streams.remove_tls(index, status.any(StreamFlags::HANDSHAKE_WAITS))
        } else {
            None
        };
        if let Some(mut output) = output {
            output.drop_records();
            streams.keep_output(output);
        }
        if status.any(StreamFlags::RESET) && !streams.is_in_child() {
            reset_at_close(&socket);
        }
        if let Some(cell) = self.kernel.find(cell) {
            let group = cell.group();
            end(self, cell);
            if group != NO_GROUP {
                self.groups.leave(
                    &self.kernel,
                    group,
                    Key::new(KeyKind::Stream, (index, generation)),
                );
            }
        }
        if listener != NO_LISTENER {
            self.leave_listener(listener);
        }
        RemovedStream { socket, reason: reason.unwrap_or(DisconnectReason::Closed), tls }
    }

    /// The reactor ends. Writes the output as far as the sockets accept it, and ends TLS that was
    /// closed. A stream with output that is left is reset, so that its peer does not take it for
    /// complete.
    pub(crate) fn end_streams(&mut self, panics: &mut Panics) {
        let Some(streams) = self.streams.as_deref().filter(|streams| !streams.is_in_child()) else {
            return;
        };
        let indices: Vec<u32> = streams.cores.iter().map(|(index, ..)| index).collect();
        for index in indices {
            // A TLS session is foreign code.
            panics.catch(|| {
                self.write_stream_now(index);
                let core = self.stream_core(index);
                let is_closed = core.can_finish() && !core.status.is(StreamPhase::Dead);
                if is_closed && core.status.has_tls() {
                    self.send_close_notify(index);
                }
            });
            let core = self.stream_core(index);
            if core.output.is_some() || core.status.any(StreamFlags::RESET) {
                reset_at_close(&core.socket);
            }
        }
    }

    /// Calls the stream's driver in the next turn, with an event without readiness.
    pub(super) fn notify_stream(&mut self, index: u32) {
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let core = streams.core(index);
        if !core.status.any(StreamFlags::DRIVER_QUEUED) {
            core.status.insert(StreamFlags::DRIVER_QUEUED);
            let cell = core.cell;
            streams.notifications.push(cell);
            self.kernel.note(pending_work::FAULTS);
        }
    }

    /// Records a change of a stream. Its driver handles it if it is running, else the end of the
    /// turn.
    pub(super) fn touch_stream(&mut self, index: u32) {
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let core = streams.core(index);
        if core.status.any(StreamFlags::RUNNING | StreamFlags::TOUCHED) {
            return;
        }
        core.status.insert(StreamFlags::TOUCHED);
        streams.touched.push(index);
        self.kernel.note(pending_work::STREAMS);
    }

    /// Handles the streams that were changed outside their drivers, with one write for each.
    #[cold]
    #[inline(never)]
    pub(crate) fn service_streams(&mut self) {
        self.kernel.clear(pending_work::STREAMS);
        let Some(streams) = self.streams.as_deref_mut() else { return };
        let indices = core::mem::take(&mut streams.touched);
        let needs_service = streams.tls.as_ref().is_some_and(|tls| tls.needs_service());
        let mut touched = Touched { reactor: self, indices, handled: 0 };
        while let Some(&index) = touched.indices.get(touched.handled) {
            touched.handled += 1;
            touched.reactor.service_stream(index);
        }
        drop(touched);
        if needs_service {
            self.kernel.note(pending_work::STREAMS);
        }
    }

    /// Handles a stream that is in the list of touched ones, unless it was removed meanwhile. Then
    /// there is none at its index, or another one. That one has its own entry if it is touched.
    fn service_stream(&mut self, index: u32) {
        let streams = self.streams.as_deref_mut();
        let Some(core) = streams.and_then(|streams| streams.cores.at_mut(index)) else { return };
        if !core.status.take(StreamFlags::TOUCHED) {
            return;
        }
        // The driver may have handled it meanwhile; doing so again has no effect.
        self.flush_stream(index);
        if self.stream_core(index).status.has_tls() && self.streams_mut().is_tls_broken(index) {
            self.streams_mut().end_tls(index, TlsFailure::Internal);
        }
        if self.stream_core(index).is_at_rest() {
            return;
        }
        self.sync_stream(index);
        if self.stream_core(index).needs_driver() {
            self.notify_stream(index);
        }
    }

    /// Whether a driver must be called without an event from the kernel, and whether a stream was
    /// touched.
    pub(crate) fn recompute_pending_streams(&self) -> (bool, bool) {
        self.streams
            .as_deref()
            .map_or((false, false), |s| (!s.notifications.is_empty(), s.needs_service()))
    }

    /// Adds the events of notified streams to the batch. Events without room stay queued.
    pub(crate) fn push_notifications(&mut self) {
        let Some(streams) = self.streams.as_deref_mut() else { return };
        let mut pushed = 0;
        for key in &streams.notifications {
            if let Some(cell) = self.kernel.find(*key) {
                if !self.kernel.push_event(cell, 0) {
                    self.kernel.note(pending_work::FAULTS);
                    break;
                }
            }
            pushed += 1;
        }
        streams.notifications.drain(..pushed);
    }

    /// Updates the stream's interest in the kernel. An error ends the stream.
    pub(super) fn sync_stream(&mut self, index: u32) {
        if self.streams_in_child() {
            return;
        }
        let core = self.stream_core(index);
        if core.status.is(StreamPhase::Dead) {
            return;
        }
        if core.status.is_on_ring() {
            return self.sync_by_ring(index);
        }
        let (mut wanted, mut receive, mut watch) =
            (Interest::default(), Receive::Off, Watch::Nothing);
        if core.wants_input() {
            (wanted, receive) = (wanted.read(), Receive::Armed);
        }
        if core.status.holds_output() {
            (wanted, watch) = (wanted.write(), Watch::Writable);
        }
        if (core.status.receive(), core.status.watch()) == (receive, watch) {
            return;
        }
        let key = core.cell;
        let done = match self.kernel.find(key) {
            Some(cell) => self.kernel.change(cell, wanted),
            None => Err(ModifyError::NotFound),
        };
        let core = self.stream_core(index);
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
        self.ops().stream(key)
    }

    /// See [`Reactor::stream_memory`].
    #[must_use]
    pub fn stream_memory(&mut self) -> usize {
        self.ops().stream_memory()
    }
}
