//! The state of a stream: its socket, its flags and its output. The table of all streams.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::OwnedFd,
    rc::Rc,
};

use super::{DisconnectReason, StreamOptions};
use crate::stream::status::{StreamFlags, StreamPhase, StreamStatus};
use crate::{
    Errno, Key,
    api::key::KeyKind,
    backend::fork::ForkGuard,
    cell::CellPtr,
    stream::{
        io::{
            memory::{BufferMemory, Undelivered},
            output::Output,
            tls::TlsTable,
        },
        listen::accept::ListenerState,
        socket::StreamSocket,
    },
    time::index_wheel::IndexWheel,
    util::arena::Arena,
};

/// The maximum number of bytes per receive.
pub(super) const SCRATCH_LEN: usize = 64 << 10;

/// The maximum number of emptied outputs kept for reuse, each with at most
/// [`CHUNK`](super::io::output::CHUNK) bytes.
const SPARES_MAX: usize = 64;

/// `StreamCore::listener` of a stream that was not accepted by a listener.
pub(super) const NO_LISTENER: u32 = u32::MAX;

/// One stream. Its handler is in the cell that is registered with the kernel. Everything else is
/// here, so that it can be used while the handler runs.
pub(crate) struct StreamCore {
    pub(super) socket: StreamSocket,
    pub(super) status: StreamStatus,
    /// The registration of the cell.
    pub(super) cell: Key,
    /// The buffered output, never an empty one. Most streams have none most of the time.
    pub(super) output: Option<Box<Output>>,
    /// Shared by streams with equal options.
    pub(super) options: Rc<StreamOptions>,
    /// The time of the last receive, if there is an idle timeout.
    pub(super) last_rx_ns: u64,
    /// The start of the current wait: for the connection, for the socket to accept output, or after
    /// closing, for the end.
    pub(super) since_ns: u64,
    /// The listener that has accepted it, or [`NO_LISTENER`].
    pub(super) listener: u32,
    pub(super) reason: Option<DisconnectReason>,
}

// The memory of a connection beside its cell: this, and 8 bytes of its place in the table. (Under
// Miri rustix uses another backend, whose error number is wider.)
const _: () = assert!(
    cfg!(any(miri, feature = "sim"))
        || (size_of::<StreamCore>() == 56 && size_of::<Option<StreamCore>>() == 56)
);

impl StreamCore {
    /// The number of buffered bytes.
    #[inline]
    pub(super) fn buffered(&self) -> usize {
        self.output.as_ref().map_or(0, |output| output.len())
    }

    /// Marks it for closing. The first reason is kept.
    pub(super) fn kill(&mut self, reason: DisconnectReason) {
        self.reason.get_or_insert(reason);
        if self.status.is(StreamPhase::New) {
            self.status.insert(StreamFlags::UNOPENED);
        }
        self.status.advance(StreamPhase::Dead);
    }

    /// The kernel reports a failure. It is ignored once the FIN of a closed stream is sent.
    pub(super) fn fail(&mut self, errno: Errno) {
        // A failed TLS session has ended the stream before.
        let is_over = self.status.is(StreamPhase::Dead)
            || matches!(self.reason, Some(DisconnectReason::Tls(_)))
            || (self.status.is(StreamPhase::Closing) && self.status.any(StreamFlags::FINISHED));
        // A write that fails says no more than that the connection is over. A reset is the cause.
        let is_cause =
            errno != Errno::PIPE && self.reason == Some(DisconnectReason::Error(Errno::PIPE));
        if !is_over || is_cause {
            self.reason = Some(DisconnectReason::Error(errno));
        }
        if self.socket.is_lent() && !self.status.is_ending() {
            self.status.insert(StreamFlags::DELIVERS);
        }
        self.kill(DisconnectReason::Closed);
    }

    /// Whether received bytes are wanted, even if only to be discarded after closing.
    #[inline]
    pub(super) fn wants_input(&self) -> bool {
        let status = self.status;
        if status.any(StreamFlags::ENDED)
            || status.is(StreamPhase::Connecting)
            || status.is(StreamPhase::Dead)
        {
            return false;
        }
        status.is(StreamPhase::Closing) || !status.any(StreamFlags::NO_READING)
    }

    /// Updates `FULL` from the buffered output.
    pub(super) fn update_full(&mut self) {
        let waiting = self.buffered();
        if self.status.holds_output() && waiting > self.options.high_watermark {
            self.status.insert(StreamFlags::FULL);
        } else if waiting <= self.options.low_watermark {
            self.status.clear(StreamFlags::FULL);
        }
    }

    /// Whether a watermark callback is due.
    #[inline]
    pub(super) fn owes_watermark(&self) -> bool {
        let status = self.status;
        status.is(StreamPhase::Open)
            && status.any(StreamFlags::FULL) != status.any(StreamFlags::REPORTED_FULL)
    }

    /// Whether the writing half must be closed now.
    #[inline]
    pub(super) fn can_finish(&self) -> bool {
        let status = self.status;
        status.rejects_output()
            && !status.any(StreamFlags::FINISHED)
            && !status.is(StreamPhase::Connecting)
            && !status.is(StreamPhase::Handshake)
            && self.output.is_none()
    }

    /// Whether there is nothing to do except to receive.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        self.status.rests() && self.output.is_none()
    }

    /// Whether there is work that only the driver does, without an event from the kernel.
    pub(super) fn needs_driver(&self) -> bool {
        let status = self.status;
        status.is(StreamPhase::Dead)
            || status.any(StreamFlags::TIMES | StreamFlags::DUE)
            || (status.any(StreamFlags::NOTIFY_DUE) && status.is(StreamPhase::Open))
            || (status.any(StreamFlags::PREFIX) && !status.any(StreamFlags::NO_READING))
            || self.owes_watermark()
            || self.can_finish()
    }
}

/// Kept in one place and without an argument: otherwise every event's path would prepare the panic
/// message.
#[cold]
#[inline(never)]
pub(super) fn no_core() -> ! {
    panic!("a stream's cell and its core live together")
}

#[cold]
fn new_scratch() -> Box<[u8]> {
    vec![0; SCRATCH_LEN].into_boxed_slice()
}

/// All streams of a reactor and their shared data.
pub(crate) struct StreamTable {
    pub(super) cores: Arena<StreamCore>,
    pub(super) listeners: Vec<Option<ListenerState>>,
    /// The receive buffer, while no handler uses it.
    pub(super) scratch: Option<Box<[u8]>>,
    /// Emptied outputs for reuse. They stay in their boxes.
    #[expect(
        clippy::vec_box,
        reason = "a stream's output is boxed, and to take it out of its box would be to allocate"
    )]
    spares: Vec<Box<Output>>,
    /// The indices of streams that must be handled at the end of the turn. An entry counts only if
    /// the stream at its index is [touched](StreamFlags::TOUCHED).
    pub(super) touched: Vec<u32>,
    /// Cells of streams whose driver is called in the next turn.
    pub(super) notifications: Vec<Key>,
    /// Empty memory for the cells of streams whose receives end together.
    pub(super) ending: Vec<CellPtr>,
    /// The undelivered bytes of adoptions, by the stream's index. On a ring also input received
    /// while the stream was paused; an empty row is the peer's end of stream.
    pub(super) prefixes: BTreeMap<u32, VecDeque<Undelivered>>,
    /// Received descriptors that were not taken, by the stream's index.
    pub(super) received_fds: BTreeMap<u32, Vec<OwnedFd>>,
    /// Counts the memory of undelivered bytes and of outputs.
    pub(super) memory: Rc<BufferMemory>,
    /// The streams that are paused with their group, by their cells.
    pub(super) paused: BTreeMap<Key, u32>,
    /// The sessions of streams with TLS, once there is one.
    pub(super) tls: Option<Box<TlsTable>>,
    /// The settings of the last registration: the next stream usually has the same.
    options: Rc<StreamOptions>,
    /// Streams ordered by a time at which one of their deadlines may have passed.
    pub(super) deadlines: IndexWheel,
    /// The timer for `deadlines`, and the time when it fires.
    pub(super) timer: Option<(Key, u64)>,
    /// Detects a child of fork(2).
    fork: Option<ForkGuard>,
}

impl StreamTable {
    pub(crate) fn new(fork: Option<ForkGuard>) -> Self {
        Self {
            cores: Arena::new(),
            listeners: Vec::new(),
            scratch: None,
            spares: Vec::new(),
            touched: Vec::new(),
            notifications: Vec::new(),
            ending: Vec::new(),
            prefixes: BTreeMap::new(),
            received_fds: BTreeMap::new(),
            memory: Rc::default(),
            paused: BTreeMap::new(),
            tls: None,
            options: Rc::new(StreamOptions::new()),
            deadlines: IndexWheel::new(),
            timer: None,
            fork,
        }
    }

    /// Whether this is a child of fork(2). The sockets are shared with the parent, so changes here
    /// would affect the parent's peers.
    #[inline]
    pub(super) fn is_in_child(&self) -> bool {
        self.fork.as_ref().is_some_and(ForkGuard::is_child)
    }

    /// See [`Reactor::stream_memory`](crate::Reactor::stream_memory).
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The index of the stream that a key names.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<u32> {
        let (index, generation) = key.parts(KeyKind::Stream)?;
        self.cores.get(index, generation).map(|_| index)
    }

    /// Names a stream, or takes its name away. False if there is no such stream.
    pub(crate) fn set_name(&mut self, key: Key, name: Option<Box<str>>) -> bool {
        key.parts(KeyKind::Stream).is_some_and(|place| self.cores.set_name(place, name))
    }

    /// The keys of all streams and of their cells, with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, Key, Option<&str>)> {
        self.cores.iter().map(|(index, generation, core)| {
            (Key::new(KeyKind::Stream, (index, generation)), core.cell, self.cores.name(index))
        })
    }

    /// The stream at an index that is known to be occupied.
    #[inline]
    pub(super) fn core(&mut self, index: u32) -> &mut StreamCore {
        match self.cores.at_mut(index) {
            Some(core) => core,
            None => no_core(),
        }
    }

    pub(super) fn share(&mut self, options: &StreamOptions) -> Rc<StreamOptions> {
        if *self.options != *options {
            self.options = Rc::new(*options);
        }
        Rc::clone(&self.options)
    }

    /// Whether the end of a turn has something to do.
    pub(super) fn needs_service(&self) -> bool {
        !self.touched.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.needs_service())
    }

    #[inline]
    pub(super) fn take_scratch(&mut self) -> Box<[u8]> {
        self.scratch.take().unwrap_or_else(new_scratch)
    }

    /// The stream's output, created if needed. The caller must add to it, because no other code
    /// leaves an empty output.
    pub(super) fn output(&mut self, index: u32) -> &mut Output {
        let core = self.cores.at_mut(index).expect("a stream's cell and its core live together");
        debug_assert!(
            core.output.as_ref().is_none_or(|output| output.len() > 0),
            "an earlier caller has added nothing to the output"
        );
        core.output.get_or_insert_with(|| {
            self.spares.pop().unwrap_or_else(|| Box::new(Output::new(&self.memory)))
        })
    }

    /// Frees the buffered bytes of a stream that will neither send nor receive again.
    pub(super) fn drop_waiting(&mut self, index: u32) {
        self.prefixes.remove(&index);
        self.received_fds.remove(&index);
        self.drop_tls_buffers(index);
        if let Some(output) = self.core(index).output.take() {
            self.keep_output(output);
        }
    }

    /// Keeps an output for reuse, or frees it.
    pub(super) fn keep_output(&mut self, mut output: Box<Output>) {
        if self.spares.len() < SPARES_MAX {
            output.trim();
            self.spares.push(output);
        }
    }
}
