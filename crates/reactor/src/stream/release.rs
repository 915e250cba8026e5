//! Streams whose socket belongs to their handler, and the end of a stream without the end of its
//! connection.

use core::fmt;
use std::os::fd::{AsFd, OwnedFd};

use crate::{
    AddError, AddReason, Errno, Key, Reactor, Turn,
    api::{ops::Token, registrar::Registrar},
    cell::CellPtr,
    kernel::Kernel,
    registry::groups::Groups,
    stream::{
        DisconnectReason, Input, ReleasedTls, Stream, StreamHandler, StreamOptions,
        StreamWriteError,
        io::readiness::DriverFrame,
        lifecycle::NewStream,
        parts::ReactorParts,
        socket::StreamSocket,
        state::{SCRATCH_LEN, StreamTable},
        status::{Receive, StreamFlags, StreamPhase},
    },
};

/// The list of receives that end together keeps memory for this many.
const ENDING_KEPT: usize = 64;

/// The parts of a stream that [`Stream::release`] returns.
#[non_exhaustive]
pub struct Released {
    /// The socket. `None` if the handler owns it ([`StreamOptions::register_lent`]).
    pub socket: Option<OwnedFd>,
    /// Bytes that were received, and of which no handler was told. They precede those that the
    /// socket returns next.
    pub read_buf: Vec<u8>,
    /// Output that the socket has not accepted. To send anything else on the connection would leave
    /// a hole in its place. Empty in a child of fork(2), where it is the parent's.
    ///
    /// Of a stream with TLS it is plaintext: the session has the encrypted bytes that precede it.
    pub unsent: Vec<u8>,
    /// Descriptors that were received, and that the handler did not take.
    pub fds: Vec<OwnedFd>,
    /// The descriptors of `unsent`, each with the offset of the byte that they go with.
    pub unsent_fds: Vec<(usize, Vec<OwnedFd>)>,
    /// The error of the connection, if there was one. The socket does not report it again.
    pub error: Option<Errno>,
    /// The session of a stream with TLS. Without it, the connection is of no use: the bytes of
    /// `read_buf` are records.
    pub tls: Option<ReleasedTls>,
}

impl fmt::Debug for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Released")
            .field("socket", &self.socket)
            .field("read_buf", &self.read_buf.len())
            .field("unsent", &self.unsent.len())
            .field("fds", &self.fds)
            .field("unsent_fds", &self.unsent_fds)
            .field("error", &self.error)
            .field("tls", &self.tls)
            .finish()
    }
}

impl StreamOptions {
    /// Registers a stream whose socket belongs to the handler. The reactor never closes it:
    /// [`Stream::release`] and the end of the stream leave it open, for example for another use.
    ///
    /// `as_fd` is called once. The handler must keep the socket open until it is dropped. If the
    /// connection fails, bytes that were received before are passed to
    /// [`on_data`](StreamHandler::on_data) before [`on_close`](StreamHandler::on_close), also while
    /// reading is paused. If the stream is closed or aborted, they are discarded.
    ///
    /// A stream that is reset sets `SO_LINGER` of the socket to zero. So does one with output that
    /// is discarded, when the reactor is dropped.
    ///
    /// ```
    /// use std::{io::Write, os::{fd::{AsFd, BorrowedFd}, unix::net::UnixStream}, rc::Rc};
    /// use windlass::{Reactor, stream::{Input, Stream, StreamHandler, StreamOptions}};
    ///
    /// struct Print(Rc<UnixStream>);
    /// impl AsFd for Print {
    ///     fn as_fd(&self) -> BorrowedFd<'_> {
    ///         self.0.as_fd()
    ///     }
    /// }
    /// impl StreamHandler for Print {
    ///     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
    ///         println!("{}", String::from_utf8_lossy(&input));
    ///         stream.turn().stop();
    ///     }
    /// }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (ours, mut theirs) = UnixStream::pair()?;
    /// let ours = Rc::new(ours);
    /// let mut reactor = Reactor::new()?;
    /// let key = StreamOptions::new().register_lent(Print(Rc::clone(&ours)), &mut reactor)?;
    /// theirs.write_all(b"hello")?;
    /// reactor.run()?;
    /// theirs.write_all(b"later")?;
    /// // Read already, if the backend receives ahead, or still in the socket.
    /// let read_buf = reactor.stream(key)?.release().expect("not in its own handler").read_buf;
    /// assert!(read_buf.len() <= 5);
    /// assert_eq!(Rc::strong_count(&ours), 1, "the handler is gone");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The reasons of [`register`](Self::register). On a ring, a descriptor that is no socket is
    /// registered, and fails then. A negative number, such as that of `rustix::fs::CWD`, is
    /// [`AddReason::BadDescriptor`]. The handler is dropped:
    /// [`try_register_lent`](Self::try_register_lent) returns it.
    pub fn register_lent<H: StreamHandler + AsFd>(
        self,
        handler: H,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddReason> {
        self.try_register_lent(handler, target).map_err(|e| e.reason)
    }

    /// [`register_lent`](Self::register_lent) with an error that returns the handler.
    ///
    /// # Errors
    /// The reasons of [`register_lent`](Self::register_lent). The error returns the handler.
    pub fn try_register_lent<H: StreamHandler + AsFd>(
        self,
        handler: H,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<Key, AddError<H>> {
        let Some(socket) = lent(&handler) else {
            return Err(AddError::new(AddReason::BadDescriptor, handler));
        };
        let begin = NewStream {
            socket,
            options: self,
            read_buf: Vec::new(),
            phase: StreamPhase::New,
            refused: None,
            listener: None,
            tls: None,
        };
        target
            .with_ops(Token(()), |reactor| {
                let ReactorParts { streams, kernel, .. } = reactor.parts();
                streams.add(kernel, begin, handler)
            })
            .map_err(|e| e.map(|(_, handler)| handler))
    }
}

/// The socket that a handler owns.
fn lent<H: StreamHandler + AsFd>(handler: &H) -> Option<StreamSocket> {
    #[cfg(feature = "sim")]
    if let Some(socket) = handler.lent_sim_id() {
        return Some(StreamSocket::lent_simulated(socket));
    }
    StreamSocket::lent(handler.as_fd())
}

impl Stream<'_> {
    /// Sends as many of the bytes as may be buffered, and returns their number, which is at least
    /// one unless there are none. The first short output of a turn goes to the ring without a
    /// further copy.
    ///
    /// # Errors
    /// None of the bytes is sent.
    ///
    /// - [`Full`](StreamWriteError::Full): [`output_max`](StreamOptions::output_max) bytes are
    ///   buffered.
    /// - [`Closed`](StreamWriteError::Closed): the stream was finished, closed or aborted, or has
    ///   failed. Also in a child of fork(2).
    #[inline]
    pub fn send_some(&mut self, bytes: &[u8]) -> Result<usize, StreamWriteError> {
        let (streams, kernel, index) = self.split();
        if !streams.is_in_child() && streams.queue_copy(kernel, index, bytes) {
            return Ok(bytes.len());
        }
        self.send_some_buffered(bytes)
    }

    fn send_some_buffered(&mut self, bytes: &[u8]) -> Result<usize, StreamWriteError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let room =
            |stream: &Self| stream.core_ref().options.output_max.saturating_sub(stream.buffered());
        if room(self) == 0 && !self.core_ref().status.holds_output() {
            // It was only gathered.
            self.send_now();
        }
        match bytes.len().min(room(self)) {
            0 if self.core_ref().status.rejects_output() => Err(StreamWriteError::Closed),
            0 => Err(StreamWriteError::Full),
            count => self.send(&bytes[..count]).map(|()| count),
        }
    }

    /// Writes the output at once, instead of at the end of the turn. Returns the number of bytes
    /// that stay buffered, because the socket does not accept them.
    pub fn send_now(&mut self) -> usize {
        let (streams, kernel, index) = self.split();
        streams.write_now(kernel, index);
        streams.touch(kernel, index);
        self.buffered()
    }

    /// Ends the stream and leaves its connection as it is. The output is written as far as the
    /// socket accepts it, and the rest is returned. The handler is dropped without another call.
    /// `None`, without an effect, in a callback of the stream itself.
    ///
    /// The session of a stream with TLS is returned: see [`ReleasedTls`]. In a child of fork(2) it
    /// cannot go on.
    ///
    /// On a ring, this ends the receive that is in flight, which costs a system call.
    pub fn release(&mut self) -> Option<Released> {
        if self.core_ref().status.any(StreamFlags::RUNNING) {
            return None;
        }
        #[cfg(feature = "sim")]
        if !self.core_ref().socket.may_be_released() {
            return None;
        }
        let ReactorParts { streams, kernel, groups, .. } = self.reactor.parts();
        Some(streams.release(kernel, groups, self.index))
    }
}

impl Turn<'_> {
    /// [Releases](Stream::release) several streams. On a ring, one system call ends the receives of
    /// many, where each release takes one of its own. The results are in the order of the keys. One
    /// is `None` where there is no such stream, and where `release` returns `None`.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    /// use windlass::{Reactor, Turn, stream::{Input, Stream, StreamHandler, StreamOptions}};
    ///
    /// struct Ignore;
    /// impl StreamHandler for Ignore {
    ///     fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
    /// }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut reactor = Reactor::new()?;
    /// let (mut keys, mut peers) = (Vec::new(), Vec::new());
    /// for _ in 0..3 {
    ///     let (ours, theirs) = UnixStream::pair()?;
    ///     keys.push(StreamOptions::new().register(ours, Ignore, &mut reactor)?);
    ///     peers.push(theirs);
    /// }
    /// let release = move |mut turn: Turn<'_>| {
    ///     let released = turn.release_streams(&keys);
    ///     assert!(released.iter().flatten().all(|released| released.socket.is_some()));
    /// };
    /// reactor.defer(release).map_err(drop).unwrap();
    /// reactor.run_once(std::time::Duration::ZERO)?;
    /// assert_eq!(reactor.stats().subscribers, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn release_streams(&mut self, keys: &[Key]) -> Vec<Option<Released>> {
        let mut released = Vec::with_capacity(keys.len());
        self.release_streams_with(keys.iter().copied(), |one| released.push(one));
        released
    }

    /// As [`release_streams`](Self::release_streams), but passes each result to a closure instead
    /// of allocating a list of them. `keys` is walked twice.
    ///
    /// # Panics
    /// If the closure panics. The streams after it stay registered.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    /// use windlass::{Reactor, Turn, stream::{Input, Stream, StreamHandler, StreamOptions}};
    ///
    /// struct Ignore;
    /// impl StreamHandler for Ignore {
    ///     fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
    /// }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut reactor = Reactor::new()?;
    /// let (ours, theirs) = UnixStream::pair()?;
    /// let key = StreamOptions::new().register(ours, Ignore, &mut reactor)?;
    /// let release = move |mut turn: Turn<'_>| {
    ///     let is_released = |released: Option<_>| assert!(released.is_some());
    ///     turn.release_streams_with([key].into_iter(), is_released);
    /// };
    /// reactor.defer(release).map_err(drop).unwrap();
    /// reactor.run_once(std::time::Duration::ZERO)?;
    /// assert_eq!(reactor.stats().subscribers, 0);
    /// # drop(theirs);
    /// # Ok(())
    /// # }
    /// ```
    pub fn release_streams_with(
        &mut self,
        keys: impl Iterator<Item = Key> + Clone,
        mut each: impl FnMut(Option<Released>),
    ) {
        let reactor = self.ops();
        let ReactorParts { streams, kernel, .. } = reactor.parts();
        streams.end_receives(kernel, keys.clone());
        for key in keys {
            each(Stream::find(reactor, key).ok().and_then(|mut stream| stream.release()));
        }
    }
}

/// What a stream has received, and its handler was not told.
#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    error: Option<Errno>,
}

impl StreamTable {
    /// Writes the output, also that which is queued with the ring.
    pub(super) fn write_now(&mut self, kernel: &mut Kernel, index: u32) {
        if self.is_in_child() {
            return;
        }
        if self.core(index).status.is_on_ring() {
            self.before_output(kernel, index);
        }
        let core = self.core(index);
        if core.output.is_none() || core.status.holds_output() || core.status.is(StreamPhase::Dead)
        {
            return;
        }
        if let Err(errno) = self.transmit(index, &[]) {
            self.core(index).fail(errno);
        }
    }

    /// Ends the receives of streams that are released next.
    fn end_receives(&mut self, kernel: &mut Kernel, keys: impl Iterator<Item = Key>) {
        if self.is_in_child() || kernel.ring().is_none() {
            return;
        }
        let mut cells = core::mem::take(&mut self.ending);
        for key in keys {
            let Some(index) = self.find(key) else { continue };
            let status = self.core(index).status;
            if status.is_on_ring() && !status.any(StreamFlags::RUNNING) {
                // What is queued goes out before.
                self.write_now(kernel, index);
                let cell = self.core(index).cell;
                cells.extend(kernel.find(cell));
            }
        }
        if let Some(ring) = kernel.ring() {
            ring.end_receives(&mut cells);
        }
        cells.clear();
        cells.shrink_to(ENDING_KEPT);
        self.ending = cells;
    }

    fn release(&mut self, kernel: &mut Kernel, groups: &mut Groups, index: u32) -> Released {
        let mark = kernel.waiting();
        let released = self.release_by(kernel, groups, index, Kernel::deregister);
        kernel.drop_waiting_down_to(mark);
        released
    }

    /// Releases a stream. `end` ends its cell.
    pub(in crate::stream) fn release_by(
        &mut self,
        kernel: &mut Kernel,
        groups: &mut Groups,
        index: u32,
        end: impl FnOnce(&mut Kernel, CellPtr),
    ) -> Released {
        self.write_now(kernel, index);
        let is_in_child = self.is_in_child();
        let mut rest = self.take_tls_rest(index);
        let Received { bytes, error } = self.take_received(kernel, index);
        let read_buf = rest.before(bytes);
        let error = error.or(match self.core(index).reason {
            Some(DisconnectReason::Error(errno)) => Some(errno),
            _ => None,
        });
        let unsent = self.unsent_output(index);
        let fds = self.received_fds.remove(&index).unwrap_or_default();
        let output = self.core(index).output.as_mut().filter(|_| !is_in_child);
        let unsent_fds = output.map(|output| output.take_fds()).unwrap_or_default();
        let mut removed = self.remove(kernel, groups, index, end);
        let tls = removed.take_tls(rest, is_in_child);
        let socket = removed.socket.into_own();
        Released { socket, read_buf, unsent, fds, unsent_fds, error, tls }
    }

    /// The output of a stream, except for records.
    fn unsent_output(&mut self, index: u32) -> Vec<u8> {
        let mut unsent = Vec::new();
        if !self.is_in_child() {
            if let Some(output) = &self.core(index).output {
                output.copy_to(&mut unsent, usize::MAX);
            }
        }
        unsent
    }

    /// Ends the receive of a stream, and takes what it has received.
    #[cold]
    fn take_received(&mut self, kernel: &mut Kernel, index: u32) -> Received {
        let mut received = Received::default();
        if self.is_in_child() {
            return received;
        }
        for piece in self.prefixes.remove(&index).unwrap_or_default() {
            received.bytes.extend_from_slice(&piece.bytes);
        }
        let core = self.core(index);
        core.status.clear(StreamFlags::PREFIX);
        let (is_on_ring, cell) = (core.status.is_on_ring(), core.cell);
        let Some(cell) = kernel.find(cell).filter(|_| is_on_ring) else { return received };
        let is_received = kernel.ring_and_events(cell).map(|(ring, events)| {
            received.error = ring.drain_receive(cell, events, &mut received.bytes);
        });
        if is_received.is_some() {
            self.core(index).status.set_receive(Receive::Off);
        }
        received
    }
}

impl DriverFrame<'_> {
    /// A stream has failed whose socket belongs to its handler. Passes on what was received before,
    /// unless the handler closes it meanwhile.
    #[cold]
    pub(in crate::stream) fn deliver_received(&mut self, handler: &mut dyn StreamHandler) {
        let (streams, kernel, index) = self.split();
        let Received { mut bytes, error } = streams.take_received(kernel, index);
        if let Some(errno) = error {
            self.core().fail(errno);
        }
        if !bytes.is_empty() && self.core().status.take(StreamFlags::UNOPENED) {
            self.call(|stream| handler.on_open(stream));
        }
        for piece in bytes.chunks_mut(SCRATCH_LEN) {
            if !self.has(StreamFlags::DELIVERS) {
                break;
            }
            self.call(|stream| handler.on_data(stream, Input::new(piece)));
        }
    }
}
