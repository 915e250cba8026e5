//! The state of a stream: its socket, its flags and its output. The table of all streams.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{BitOr, BitOrAssign},
    os::fd::OwnedFd,
    rc::Rc,
};

use super::{CloseReason, StreamOptions};
use crate::{
    Errno, Key,
    backend::fork::ForkGuard,
    stream::{
        io::{
            memory::{BufferMemory, Undelivered},
            output::Output,
        },
        listen::accept::ListenerState,
    },
    time::wheel::Wheel,
    util::arena::Arena,
};

/// The maximum number of bytes per receive.
pub(super) const SCRATCH_LEN: usize = 64 << 10;

/// The maximum number of emptied outputs kept for reuse, each with at most
/// [`CHUNK`](super::io::output::CHUNK) bytes.
const SPARES_MAX: usize = 64;

/// `StreamCore::listener` of a stream that was not accepted by a listener.
pub(super) const NO_LISTENER: u32 = u32::MAX;

/// The state of a stream, and the work that is due for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamFlags(u32);

impl StreamFlags {
    /// connect(2) is in progress.
    pub(super) const CONNECTING: Self = Self(1);
    /// `on_open` has been called.
    pub(super) const OPENED: Self = Self(1 << 1);
    /// Reading is paused by the user.
    pub(super) const PAUSED: Self = Self(1 << 2);
    /// The peer's FIN was received.
    pub(super) const ENDED: Self = Self(1 << 3);
    /// The writing half must be closed after the output.
    pub(super) const FINISHING: Self = Self(1 << 4);
    /// The writing half is closed.
    pub(super) const FINISHED: Self = Self(1 << 5);
    /// The user has closed it. The output and the lingering follow, and `on_close` is the only
    /// remaining callback.
    pub(super) const CLOSING: Self = Self(1 << 6);
    /// It must be closed now, for the recorded reason.
    pub(super) const DEAD: Self = Self(1 << 7);
    /// Closing must send a RST.
    pub(super) const RESET: Self = Self(1 << 8);
    /// The socket is full until it is writable.
    pub(super) const BLOCKED: Self = Self(1 << 9);
    /// The output has exceeded the high watermark and has not fallen to the low one since.
    pub(super) const FULL: Self = Self(1 << 10);
    /// The handler's last call was `on_full`; `on_drained` has not followed yet.
    pub(super) const REPORTED_FULL: Self = Self(1 << 11);
    /// A frame of its driver is on the stack. It handles all pending work when it ends.
    pub(super) const RUNNING: Self = Self(1 << 12);
    /// Its driver is called in the next turn.
    pub(super) const DRIVER_QUEUED: Self = Self(1 << 13);
    /// It was changed outside its driver and must be handled at the end of the turn.
    pub(super) const TOUCHED: Self = Self(1 << 14);
    /// Bytes of an adoption wait for delivery.
    pub(super) const PREFIX: Self = Self(1 << 15);
    /// It has an idle timeout.
    pub(super) const IDLE: Self = Self(1 << 16);
    /// It may have a deadline that the wheel does not contain.
    pub(super) const ARM: Self = Self(1 << 17);
    /// `since_ns` must be set.
    pub(super) const STAMP_WAIT: Self = Self(1 << 18);
    /// `last_rx_ns` must be set.
    pub(super) const STAMP_RX: Self = Self(1 << 19);
    pub(super) const IDLE_DUE: Self = Self(1 << 20);
    pub(super) const STALL_DUE: Self = Self(1 << 21);
    /// Its interest in the kernel.
    pub(super) const WATCHES_IN: Self = Self(1 << 22);
    pub(super) const WATCHES_OUT: Self = Self(1 << 23);
    /// `notify` was called; `on_notify` must follow.
    pub(super) const NOTIFY_DUE: Self = Self(1 << 24);
    /// Closing does not wait for the peer's FIN.
    pub(super) const NO_LINGER: Self = Self(1 << 25);

    /// It works by completion: see `io/completion.rs`.
    pub(super) const RING: Self = Self(1 << 26);
    /// On a ring: its receive was cancelled, and the final completion is still outstanding.
    pub(super) const ENDING: Self = Self(1 << 27);
    /// On a ring: it is polled for errors and hang-ups only.
    pub(super) const WATCHES_ENDS: Self = Self(1 << 28);

    /// Further output is rejected.
    pub(super) const NO_OUTPUT: Self = Self(Self::FINISHING.0 | Self::CLOSING.0 | Self::DEAD.0);
    /// The flags that need the time.
    pub(super) const TIMES: Self = Self(Self::ARM.0 | Self::STAMP_WAIT.0 | Self::STAMP_RX.0);
    pub(super) const DUE: Self = Self(Self::IDLE_DUE.0 | Self::STALL_DUE.0);
    pub(super) const POLLS: Self = Self(Self::WATCHES_OUT.0 | Self::WATCHES_ENDS.0);
    pub(super) const WATCHES: Self = Self(Self::WATCHES_IN.0 | Self::WATCHES_OUT.0);

    /// Whether any of these is set.
    #[inline]
    pub(super) const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    #[inline]
    pub(super) const fn without(self, those: Self) -> Self {
        Self(self.0 & !those.0)
    }

    #[inline]
    pub(super) const fn only(self, those: Self) -> Self {
        Self(self.0 & those.0)
    }

    #[inline]
    pub(super) fn set(&mut self, those: Self, on: bool) {
        *self = if on { *self | those } else { self.without(those) };
    }

    #[inline]
    pub(super) fn clear(&mut self, those: Self) {
        *self = self.without(those);
    }

    /// Whether it is an open stream with nothing to do except to receive.
    #[inline]
    pub(super) const fn is_plain(self) -> bool {
        const PLAIN: u32 = StreamFlags::OPENED.0 | StreamFlags::WATCHES_IN.0;
        self.without(Self(Self::RUNNING.0 | Self::TOUCHED.0 | Self::IDLE.0)).0 == PLAIN
    }

    /// The same for a stream by completion.
    #[inline]
    pub(super) const fn is_plain_on_ring(self) -> bool {
        self.any(Self::RING) && self.without(Self::RING).is_plain()
    }

    /// Clears these flags, and returns true if any was set.
    #[inline]
    pub(super) fn take(&mut self, those: Self) -> bool {
        let any = self.any(those);
        self.clear(those);
        any
    }
}

impl BitOr for StreamFlags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for StreamFlags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// One stream. Its handler is in the cell that is registered with the kernel. Everything else is
/// here, so that it can be used while the handler runs.
pub(crate) struct StreamCore {
    pub(super) socket: OwnedFd,
    pub(super) flags: StreamFlags,
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
    pub(super) reason: Option<CloseReason>,
}

// The memory of a connection beside its cell: this, and 8 bytes of its place in the table. (Under
// Miri rustix uses another backend, whose error number is wider.)
const _: () =
    assert!(cfg!(miri) || (size_of::<StreamCore>() == 56 && size_of::<Option<StreamCore>>() == 56));

impl StreamCore {
    /// The number of buffered bytes.
    #[inline]
    pub(super) fn buffered(&self) -> usize {
        self.output.as_ref().map_or(0, |output| output.len())
    }

    /// Marks it for closing. The first reason is kept.
    pub(super) fn kill(&mut self, reason: CloseReason) {
        self.reason.get_or_insert(reason);
        self.flags |= StreamFlags::DEAD;
    }

    /// The kernel reports a failure. It is ignored once the FIN of a closed stream is sent.
    pub(super) fn fail(&mut self, errno: Errno) {
        let is_over = self.flags.any(StreamFlags::DEAD)
            || (self.flags.any(StreamFlags::CLOSING) && self.flags.any(StreamFlags::FINISHED));
        if !is_over {
            self.reason = Some(CloseReason::Error(errno));
        }
        self.kill(CloseReason::Closed);
    }

    /// Whether received bytes are wanted, even if only to be discarded after closing.
    #[inline]
    pub(super) fn wants_input(&self) -> bool {
        let flags = self.flags;
        if flags.any(StreamFlags::ENDED | StreamFlags::CONNECTING | StreamFlags::DEAD) {
            return false;
        }
        flags.any(StreamFlags::CLOSING) || !flags.any(StreamFlags::PAUSED)
    }

    /// Updates `FULL` from the buffered output.
    pub(super) fn update_full(&mut self) {
        let waiting = self.buffered();
        if self.flags.any(StreamFlags::BLOCKED | StreamFlags::CONNECTING)
            && waiting > self.options.high_watermark
        {
            self.flags |= StreamFlags::FULL;
        } else if waiting <= self.options.low_watermark {
            self.flags.clear(StreamFlags::FULL);
        }
    }

    /// Whether a watermark callback is due.
    #[inline]
    pub(super) fn owes_watermark(&self) -> bool {
        let flags = self.flags;
        flags.any(StreamFlags::OPENED)
            && !flags.any(StreamFlags::CLOSING | StreamFlags::DEAD)
            && flags.any(StreamFlags::FULL) != flags.any(StreamFlags::REPORTED_FULL)
    }

    /// Whether the writing half must be closed now.
    #[inline]
    pub(super) fn can_finish(&self) -> bool {
        let flags = self.flags;
        flags.any(StreamFlags::FINISHING | StreamFlags::CLOSING)
            && !flags.any(StreamFlags::FINISHED | StreamFlags::CONNECTING)
            && self.output.is_none()
    }

    /// Whether there is work that only the driver does, without an event from the kernel.
    pub(super) fn needs_driver(&self) -> bool {
        let flags = self.flags;
        flags.any(StreamFlags::DEAD | StreamFlags::TIMES | StreamFlags::DUE)
            || (flags.any(StreamFlags::NOTIFY_DUE)
                && flags.any(StreamFlags::OPENED)
                && !flags.any(StreamFlags::CLOSING))
            || (flags.any(StreamFlags::PREFIX) && !flags.any(StreamFlags::PAUSED))
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
    /// Streams that must be handled at the end of the turn.
    pub(super) touched: Vec<Key>,
    /// Cells of streams whose driver is called in the next turn.
    pub(super) notifications: Vec<Key>,
    /// The undelivered bytes of adoptions, by the stream's index. On a ring also input received
    /// while the stream was paused; an empty row is the peer's end of stream.
    pub(super) prefixes: BTreeMap<u32, VecDeque<Undelivered>>,
    /// Counts the memory of undelivered bytes and of outputs.
    pub(super) memory: Rc<BufferMemory>,
    /// The settings of the last registration: the next stream usually has the same.
    options: Rc<StreamOptions>,
    /// Streams ordered by a time at which one of their deadlines may have passed.
    pub(super) deadlines: Wheel,
    /// The timer for `deadlines`, and the time when it fires.
    pub(super) timer: Option<(Key, u64)>,
    /// Detects a child of fork(2).
    fork: Option<ForkGuard>,
}

impl StreamTable {
    pub(super) fn new(fork: Option<ForkGuard>) -> Self {
        Self {
            cores: Arena::new(),
            listeners: Vec::new(),
            scratch: None,
            spares: Vec::new(),
            touched: Vec::new(),
            notifications: Vec::new(),
            prefixes: BTreeMap::new(),
            memory: Rc::default(),
            options: Rc::new(StreamOptions::new()),
            deadlines: Wheel::new(),
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

    #[inline]
    pub(super) fn take_scratch(&mut self) -> Box<[u8]> {
        self.scratch.take().unwrap_or_else(new_scratch)
    }

    /// The stream's output, created if needed. The caller must add to it, because no other code
    /// leaves an empty output.
    pub(super) fn output(&mut self, index: u32) -> &mut Output {
        let core = self.cores.at_mut(index).expect("a stream's cell and its core live together");
        core.output.get_or_insert_with(|| {
            self.spares.pop().unwrap_or_else(|| Box::new(Output::new(&self.memory)))
        })
    }

    /// Frees the buffered bytes of a stream that will neither send nor receive again.
    pub(super) fn drop_waiting(&mut self, index: u32) {
        self.prefixes.remove(&index);
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
