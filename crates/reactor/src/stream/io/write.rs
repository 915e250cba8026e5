//! The reactor's side of streams: registration and removal, output, and interest.

use std::{
    collections::VecDeque,
    io::IoSlice,
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

use rustix::net::{SendAncillaryBuffer, SendFlags, sockopt};

use crate::{
    AddError, Errno, Interest, Key, ModifyError, NotFound, Reactor, Subscription, Turn,
    cell::Flags as CellFlags,
    interest, pending_work,
    registry::table::{Kind, MAX_INDEX},
    stream::{
        CloseReason, SendError, Shared, Stream, StreamHandler, StreamOptions,
        io::{ledger::Undelivered, output::Output, readiness::StreamCell},
        state::{Core, Flags, NO_LISTENER, Streams, no_core},
    },
};

/// Gathered output of this many bytes is written at once.
const WRITE_AT_ONCE: usize = 16 << 10;

/// The maximum number of output pieces per write.
const PIECES_PER_WRITE: usize = 16;

/// The maximum number of pieces that sendmsg(2) accepts (`UIO_MAXIOV`).
const KERNEL_PIECES_MAX: usize = 1024;

/// `DONTWAIT`, because the socket may have been left in blocking mode.
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// The parts of a new stream.
pub(in crate::stream) struct Begin {
    pub(in crate::stream) socket: OwnedFd,
    pub(in crate::stream) options: StreamOptions,
    pub(in crate::stream) prefix: Vec<u8>,
    /// [`Flags::CONNECTING`] or none.
    pub(in crate::stream) flags: Flags,
    /// The error of a connection attempt that failed at once.
    pub(in crate::stream) refused: Option<Errno>,
    pub(in crate::stream) listener: Option<u32>,
}

impl Reactor {
    pub(in crate::stream) fn streams_mut(&mut self) -> &mut Streams {
        let driver = &self.driver;
        self.streams.get_or_insert_with(|| Box::new(Streams::new(driver.fork_guard())))
    }

    /// See [`Streams::is_in_child`].
    #[inline]
    pub(in crate::stream) fn streams_are_a_childs(&self) -> bool {
        self.streams.as_deref().is_some_and(Streams::is_in_child)
    }

    /// The stream at an index that is known to be occupied.
    #[inline]
    pub(in crate::stream) fn stream_core(&mut self, index: u32) -> &mut Core {
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
    pub fn stream(&mut self, key: Key) -> Result<Stream<'_>, NotFound> {
        let (index, generation) = key.parts(Kind::Stream).ok_or(NotFound)?;
        let streams = self.streams.as_deref().ok_or(NotFound)?;
        streams.cores.get(index, generation).ok_or(NotFound)?;
        Ok(Stream { reactor: self, index })
    }

    /// Bytes of memory that all streams of the reactor hold for buffered output, and for received
    /// bytes that were not delivered yet. Shared bytes ([`Stream::send_shared`]) count once,
    /// however many streams hold them.
    #[must_use]
    pub fn stream_memory(&self) -> usize {
        self.streams.as_deref().map_or(0, |streams| streams.ledger.bytes())
    }

    /// Registers a stream. `on_open` is called in the next turn.
    pub(in crate::stream) fn begin_stream<H: StreamHandler>(
        &mut self,
        begin: Begin,
        handler: H,
    ) -> Result<Key, AddError<(OwnedFd, Vec<u8>, H)>> {
        let (index, generation) = self.streams_mut().cores.next(MAX_INDEX);
        let subscription = Subscription::new(StreamCell { index, handler });
        let is_connecting = begin.flags.any(Flags::CONNECTING);
        let is_by_ring = self.streams_complete();
        let (interest, watches) = match (begin.refused, is_connecting) {
            (None, false) if is_by_ring => (interest(), Flags::RING),
            (Some(_), _) => (interest(), Flags::default()),
            (None, true) if is_by_ring => (interest().write(), Flags::WATCHES_OUT | Flags::RING),
            (None, true) => (interest().write(), Flags::WATCHES_OUT),
            (None, false) => (interest().read(), Flags::WATCHES_IN),
        };
        let (cell, fd) = (subscription.cell(), begin.socket.as_raw_fd());
        // The descriptor that the user passed may not be a socket.
        let is_ours = begin.listener.is_some() || is_connecting || begin.refused.is_some();
        let admitted = if is_ours {
            self.admit_socket(cell, fd, interest)
        } else {
            self.admit(cell, fd, interest)
        };
        match admitted {
            Ok(cell) => {
                subscription.into_cell().set_flag(CellFlags::HIDDEN, true);
                self.enter_stream(begin, watches, cell, index);
                if is_by_ring && !is_connecting {
                    self.sync_stream(index);
                }
                Ok(Key::new(Kind::Stream, (index, generation)))
            }
            Err(reason) => {
                let Ok(cell) = subscription.into_inner::<StreamCell<H>>() else {
                    unreachable!("it was made of one above")
                };
                Err(AddError::new(reason, (begin.socket, begin.prefix, cell.handler)))
            }
        }
    }

    fn enter_stream(&mut self, begin: Begin, watches: Flags, cell: Key, index: u32) {
        let Begin { socket, options, prefix, flags, refused, listener } = begin;
        let streams = self.streams_mut();
        let mut core = Core {
            socket,
            flags: flags | watches,
            cell,
            output: None,
            options: streams.share(&options),
            heard_ns: 0,
            since_ns: 0,
            listener: listener.unwrap_or(NO_LISTENER),
            reason: None,
        };
        core.flags.set(Flags::IDLE, options.idle_timeout.is_some());
        if flags.any(Flags::CONNECTING) {
            core.flags |= Flags::STAMP | Flags::ARM;
        }
        if let Some(errno) = refused {
            core.kill(CloseReason::Connect(errno));
        }
        if !prefix.is_empty() {
            core.flags |= Flags::PREFIX;
            let prefix = Undelivered::new(prefix, &streams.ledger);
            streams.prefixes.insert(index, VecDeque::from([prefix]));
        }
        streams.cores.insert(core);
        self.notify_stream(index);
    }

    /// Removes a stream from all tables. Its socket is still open: rule 14 has been kept, and the
    /// caller closes it.
    ///
    /// No user code runs: the handler is dropped only after its driver's frame has ended (rule 1).
    pub(in crate::stream) fn deregister_stream(&mut self, index: u32) -> (OwnedFd, CloseReason) {
        if self.stream_core(index).flags.any(Flags::RING) {
            self.leave_ring(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let generation = streams.cores.generation(index);
        let core = streams
            .cores
            .remove(index, generation)
            .expect("a stream's cell and its core live together");
        let Core { socket, flags, cell, output, listener, reason, .. } = core;
        streams.prefixes.remove(&index);
        streams.deadlines.remove(index);
        if let Some(output) = output {
            streams.keep_output(output);
        }
        if flags.any(Flags::RESET) && !streams.is_in_child() {
            // A socket that cannot send a RST is closed without one.
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
        if let Some(cell) = self.registry.find(cell) {
            self.deregister(cell);
        }
        if listener != NO_LISTENER {
            self.leave_listener(listener);
        }
        (socket, reason.unwrap_or(CloseReason::Closed))
    }

    /// Calls the stream's driver in the next turn, with an event without readiness.
    pub(in crate::stream) fn notify_stream(&mut self, index: u32) {
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let core = streams.core(index);
        if !core.flags.any(Flags::NOTIFIED) {
            core.flags |= Flags::NOTIFIED;
            let cell = core.cell;
            streams.notifications.push(cell);
            self.pending_work |= pending_work::FAULTS;
        }
    }

    /// Records a change of a stream. Its driver handles it if it is running, else the end of the
    /// turn.
    pub(in crate::stream) fn touch_stream(&mut self, index: u32) {
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let core = streams.core(index);
        if core.flags.any(Flags::RUNNING | Flags::TOUCHED) {
            return;
        }
        core.flags |= Flags::TOUCHED;
        let key = Key::new(Kind::Stream, (index, streams.cores.generation(index)));
        streams.touched.push(key);
        self.pending_work |= pending_work::STREAMS;
    }

    /// Handles the streams that were changed outside their drivers, with one write for each.
    #[cold]
    #[inline(never)]
    pub(crate) fn tend_streams(&mut self) {
        self.pending_work &= !pending_work::STREAMS;
        let Some(streams) = self.streams.as_deref_mut() else { return };
        let mut touched = core::mem::take(&mut streams.touched);
        for key in touched.drain(..) {
            let Ok(Stream { index, .. }) = self.stream(key) else { continue };
            // The driver may have handled it meanwhile; doing so again has no effect.
            self.stream_core(index).flags.clear(Flags::TOUCHED);
            self.flush_stream(index);
            self.sync_stream(index);
            if self.stream_core(index).needs_driver() {
                self.notify_stream(index);
            }
        }
        // No stream was touched meanwhile. The list keeps its memory (rule 12).
        if let Some(streams) = self.streams.as_deref_mut() {
            streams.touched = touched;
        }
    }

    /// Whether a driver must be called without an event from the kernel, and whether a stream was
    /// touched.
    pub(crate) fn recompute_pending_streams(&self) -> (bool, bool) {
        self.streams
            .as_deref()
            .map_or((false, false), |s| (!s.notifications.is_empty(), !s.touched.is_empty()))
    }

    /// Adds the events of notified streams to the batch. Events without room stay queued.
    pub(crate) fn push_notifications(&mut self) {
        let Some(streams) = self.streams.as_deref_mut() else { return };
        let mut pushed = 0;
        for key in &streams.notifications {
            if let Some(cell) = self.registry.find(*key) {
                if !self.batch.push(cell.expose(), 0) {
                    self.pending_work |= pending_work::FAULTS;
                    break;
                }
            }
            pushed += 1;
        }
        streams.notifications.drain(..pushed);
    }

    /// Updates the stream's interest in the kernel. An error ends the stream.
    pub(in crate::stream) fn sync_stream(&mut self, index: u32) {
        if self.streams_are_a_childs() {
            return;
        }
        let core = self.stream_core(index);
        if core.flags.any(Flags::DEAD) {
            return;
        }
        if core.flags.any(Flags::RING) {
            return self.sync_by_ring(index);
        }
        let mut watches = Flags::default();
        watches.set(Flags::WATCHES_IN, core.wants_input());
        watches.set(Flags::WATCHES_OUT, core.flags.any(Flags::BLOCKED | Flags::CONNECTING));
        if core.flags.only(Flags::WATCHES) == watches {
            return;
        }
        let mut wanted = Interest::default();
        if watches.any(Flags::WATCHES_IN) {
            wanted = wanted.read();
        }
        if watches.any(Flags::WATCHES_OUT) {
            wanted = wanted.write();
        }
        let key = core.cell;
        let done = match self.registry.find(key) {
            Some(cell) => self.change(cell, wanted),
            None => Err(ModifyError::NotFound),
        };
        let core = self.stream_core(index);
        match done {
            Ok(()) => {
                core.flags.clear(Flags::WATCHES);
                core.flags |= watches;
            }
            Err(ModifyError::Os(errno)) => core.fail(errno),
            Err(_) => core.fail(Errno::IO),
        }
    }

    /// Writes the buffered output, unless the socket is known to be full.
    pub(in crate::stream) fn flush_stream(&mut self, index: u32) {
        let core = self.stream_core(index);
        if core.output.is_some()
            && !core.flags.any(Flags::BLOCKED | Flags::CONNECTING | Flags::DEAD)
        {
            self.write_stream(index);
        }
        self.stream_core(index).note_marks();
    }

    /// Writes the buffered output; an error ends the stream. In a child of fork(2) the output stays
    /// buffered: the parent writes it.
    pub(in crate::stream) fn write_stream(&mut self, index: u32) {
        if self.streams_are_a_childs() {
            return;
        }
        if self.stream_core(index).flags.any(Flags::RING) {
            return self.write_by_ring(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        if let Err(errno) = streams.transmit(index, &[]) {
            streams.core(index).fail(errno);
        }
    }

    pub(in crate::stream) fn stream_send(
        &mut self,
        index: u32,
        pieces: &[IoSlice<'_>],
    ) -> Result<(), SendError> {
        if self.streams_are_a_childs() {
            return Err(SendError::Closed);
        }
        let len = pieces.iter().map(|piece| piece.len()).sum();
        if self.stream_core(index).flags.any(Flags::RING) {
            self.before_output(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        streams.admit_output(index, len)?;
        let core = streams.core(index);
        if core.buffered() + len >= WRITE_AT_ONCE {
            streams.write_through(index, pieces)?;
        } else {
            streams.enqueue(index, pieces, 0);
        }
        self.after_output(index);
        Ok(())
    }

    pub(in crate::stream) fn stream_send_shared(
        &mut self,
        index: u32,
        shared: &Shared<'_>,
    ) -> Result<(), SendError> {
        if self.streams_are_a_childs() {
            return Err(SendError::Closed);
        }
        if self.stream_core(index).flags.any(Flags::RING) {
            self.before_output(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        streams.admit_output(index, shared.bytes().len())?;
        if !shared.bytes().is_empty() {
            streams.output(index).push_shared(shared, 0);
        }
        self.after_output(index);
        Ok(())
    }

    #[inline]
    pub(in crate::stream) fn stream_write_shared(
        &mut self,
        index: u32,
        shared: &Shared<'_>,
    ) -> Result<usize, SendError> {
        if self.streams_are_a_childs() {
            return Err(SendError::Closed);
        }
        let core = self.stream_core(index);
        let bytes = shared.bytes();
        if core.flags.is_plain() && core.output.is_none() && bytes.len() <= core.options.output_max
        {
            let sent = core.send(bytes);
            if sent == Ok(bytes.len()) {
                return Ok(0);
            }
            let taken = core.note_sent(sent, bytes.len());
            return self.stream_wrote_shared(index, shared, taken);
        }
        self.stream_write_shared_after(index, shared)
    }

    #[cold]
    fn stream_wrote_shared(
        &mut self,
        index: u32,
        shared: &Shared<'_>,
        taken: Result<usize, Errno>,
    ) -> Result<usize, SendError> {
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        match taken {
            Ok(taken) if taken == shared.bytes().len() => {}
            Ok(taken) => streams.output(index).push_shared(shared, taken),
            Err(errno) => {
                streams.core(index).fail(errno);
                return Err(SendError::Closed);
            }
        }
        self.after_output(index);
        Ok(self.stream_core(index).buffered())
    }

    #[inline(never)]
    fn stream_write_shared_after(
        &mut self,
        index: u32,
        shared: &Shared<'_>,
    ) -> Result<usize, SendError> {
        if self.queue_stream_shared(index, shared) {
            return Ok(0);
        }
        self.stream_write_shared_behind(index, shared)
    }

    #[cold]
    fn stream_write_shared_behind(
        &mut self,
        index: u32,
        shared: &Shared<'_>,
    ) -> Result<usize, SendError> {
        if self.stream_core(index).flags.any(Flags::RING) {
            self.before_output(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let bytes = shared.bytes();
        streams.admit_output(index, bytes.len())?;
        let is_held = streams.core(index).flags.any(Flags::BLOCKED | Flags::CONNECTING);
        let taken = if is_held { Ok(0) } else { streams.transmit(index, &[IoSlice::new(bytes)]) };
        self.stream_wrote_shared(index, shared, taken)
    }

    // A function call here would cost an echo a twentieth of its instructions.
    #[inline(always)]
    pub(in crate::stream) fn stream_reply(
        &mut self,
        index: u32,
        bytes: &[u8],
    ) -> Result<usize, SendError> {
        if self.streams_are_a_childs() {
            return Err(SendError::Closed);
        }
        let core = self.stream_core(index);
        // The fast path of most replies: nothing is buffered, and the socket accepts everything.
        if core.flags.is_plain() && core.output.is_none() && bytes.len() <= core.options.output_max
        {
            let sent = core.send(bytes);
            if sent == Ok(bytes.len()) {
                return Ok(0);
            }
            return self.stream_replied(index, bytes, sent);
        }
        self.stream_reply_after(index, bytes)
    }

    /// The socket has accepted a part of the bytes, or none.
    #[cold]
    #[inline(never)]
    fn stream_replied(
        &mut self,
        index: u32,
        bytes: &[u8],
        sent: Result<usize, Errno>,
    ) -> Result<usize, SendError> {
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let taken = streams.core(index).note_sent(sent, bytes.len());
        streams.settle_write(index, &[IoSlice::new(bytes)], taken)?;
        self.after_output(index);
        Ok(self.stream_core(index).buffered())
    }

    #[inline(never)]
    fn stream_reply_after(&mut self, index: u32, bytes: &[u8]) -> Result<usize, SendError> {
        if self.queue_stream_send(index, bytes) {
            return Ok(0);
        }
        self.stream_reply_behind(index, bytes)
    }

    #[cold]
    fn stream_reply_behind(&mut self, index: u32, bytes: &[u8]) -> Result<usize, SendError> {
        if self.stream_core(index).flags.any(Flags::RING) {
            self.before_output(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        streams.admit_output(index, bytes.len())?;
        streams.write_through(index, &[IoSlice::new(bytes)])?;
        self.after_output(index);
        Ok(self.stream_core(index).buffered())
    }

    /// Output was added. The driver or the end of the turn writes the rest and handles the effects.
    #[inline]
    pub(in crate::stream) fn after_output(&mut self, index: u32) {
        self.stream_core(index).note_marks();
        self.touch_stream(index);
    }
}

impl Turn<'_> {
    /// Finds a stream by its key, to send to it or to close it from any handler. Output sent to it
    /// is written at the end of the turn, once per stream.
    ///
    /// # Errors
    /// [`NotFound`] if the stream was closed, from [`on_close`](StreamHandler::on_close) on.
    pub fn stream(&mut self, key: Key) -> Result<Stream<'_>, NotFound> {
        self.ops().stream(key)
    }

    /// See [`Reactor::stream_memory`].
    #[must_use]
    pub fn stream_memory(&mut self) -> usize {
        self.ops().stream_memory()
    }
}

impl Streams {
    /// Checks whether `len` more bytes may be sent.
    #[inline]
    pub(in crate::stream) fn admit_output(
        &mut self,
        index: u32,
        len: usize,
    ) -> Result<(), SendError> {
        let core = self.core(index);
        if core.flags.any(Flags::NO_OUTPUT) {
            return Err(SendError::Closed);
        }
        if core.buffered().saturating_add(len) <= core.options.output_max {
            return Ok(());
        }
        self.make_room(index, len)
    }

    /// Part of the buffered output may only be gathered, so writing it may make room.
    #[cold]
    fn make_room(&mut self, index: u32, len: usize) -> Result<(), SendError> {
        if !self.core(index).flags.any(Flags::BLOCKED | Flags::CONNECTING) {
            if let Err(errno) = self.transmit(index, &[]) {
                self.core(index).fail(errno);
                return Err(SendError::Closed);
            }
        }
        let core = self.core(index);
        if core.buffered().saturating_add(len) <= core.options.output_max {
            Ok(())
        } else {
            Err(SendError::Full)
        }
    }

    /// Writes pieces after the buffered output. Bytes that the socket does not accept are buffered.
    #[inline]
    pub(in crate::stream) fn write_through(
        &mut self,
        index: u32,
        pieces: &[IoSlice<'_>],
    ) -> Result<(), SendError> {
        let core = self.core(index);
        let taken = if core.flags.any(Flags::BLOCKED | Flags::CONNECTING) {
            Ok(0)
        } else {
            self.transmit(index, pieces)
        };
        self.settle_write(index, pieces, taken)
    }

    /// Buffers the bytes that a write of pieces has left.
    fn settle_write(
        &mut self,
        index: u32,
        pieces: &[IoSlice<'_>],
        taken: Result<usize, Errno>,
    ) -> Result<(), SendError> {
        match taken {
            Ok(taken) => {
                self.enqueue(index, pieces, taken);
                Ok(())
            }
            Err(errno) => {
                self.core(index).fail(errno);
                Err(SendError::Closed)
            }
        }
    }

    /// Buffers pieces, except for their first bytes that were already sent.
    #[inline]
    fn enqueue(&mut self, index: u32, pieces: &[IoSlice<'_>], mut skip: usize) {
        for piece in pieces {
            let rest = &piece[skip.min(piece.len())..];
            skip -= piece.len() - rest.len();
            if !rest.is_empty() {
                self.output(index).push(rest);
            }
        }
    }

    /// Writes the buffered output and then the pieces. Returns how many bytes of the pieces the
    /// socket has accepted.
    #[inline]
    pub(in crate::stream) fn transmit(
        &mut self,
        index: u32,
        pieces: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        let core = self.core(index);
        let Some(mut output) = core.output.take() else {
            return if pieces.is_empty() {
                Ok(0)
            } else {
                core.offer(&pieces[..pieces.len().min(KERNEL_PIECES_MAX)])
            };
        };
        let taken = core.drain(&mut output, pieces);
        if output.len() == 0 {
            self.keep_output(output);
        } else {
            core.output = Some(output);
        }
        taken
    }
}

impl Core {
    fn drain(&mut self, output: &mut Output, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if let (Some(single), true) = (output.single(), pieces.is_empty()) {
            let sent = self.offer(&[IoSlice::new(single)])?;
            output.advance(sent);
            return Ok(0);
        }
        loop {
            let mut slices = [IoSlice::new(&[]); PIECES_PER_WRITE];
            let count = output.slices(&mut slices);
            let is_whole = count == output.pieces();
            let more = if is_whole { pieces.len().min(PIECES_PER_WRITE - count) } else { 0 };
            slices[count..count + more].copy_from_slice(&pieces[..more]);
            let sent = self.offer(&slices[..count + more])?;
            let own = sent.min(output.len());
            output.advance(own);
            if is_whole || self.flags.any(Flags::BLOCKED) {
                return Ok(sent - own);
            }
        }
    }

    /// Writes once. The rest waits until the socket is writable.
    #[inline]
    fn offer(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let (sent, offered) = match slices {
            [slice] => (self.send(slice), slice.len()),
            slices => (
                rustix::net::sendmsg(
                    &self.socket,
                    slices,
                    &mut SendAncillaryBuffer::default(),
                    SEND_FLAGS,
                ),
                slices.iter().map(|slice| slice.len()).sum(),
            ),
        };
        self.note_sent(sent, offered)
    }

    /// The system call alone; the caller handles its result.
    #[inline(always)]
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(&self.socket, bytes, SEND_FLAGS)
    }

    /// Handles the result of a write: returns the number of accepted bytes.
    #[inline]
    fn note_sent(&mut self, sent: Result<usize, Errno>, offered: usize) -> Result<usize, Errno> {
        match sent {
            Ok(sent) if sent == offered => {
                self.flags.clear(Flags::BLOCKED);
                Ok(sent)
            }
            Ok(sent) => {
                self.block(true);
                Ok(sent)
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.block(false);
                Ok(0)
            }
            Err(errno) => Err(errno),
        }
    }

    /// The socket is full. The stall time starts, or starts again if the socket has accepted
    /// something. The linger time of a closed stream does not start again: otherwise a peer that
    /// reads a little from time to time could keep the stream open without end.
    pub(in crate::stream) fn block(&mut self, anew: bool) {
        let is_timed =
            self.options.write_stall_timeout.is_some() && !self.flags.any(Flags::CLOSING);
        if is_timed && (anew || !self.flags.any(Flags::BLOCKED)) {
            self.flags |= Flags::STAMP | Flags::ARM;
        }
        self.flags |= Flags::BLOCKED;
    }
}
