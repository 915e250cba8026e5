//! What the reactor knows of a stream: its socket, its state and its output. The table of all
//! streams.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{BitOr, BitOrAssign},
    os::fd::OwnedFd,
    rc::Rc,
};

use super::{
    CloseReason, StreamOptions,
    accept::ListenerBook,
    ledger::{Ledger, Undelivered},
    output::Output,
};
use crate::{Errno, Key, arena::Arena, backend::fork::ForkGuard, wheel::Wheel};

/// How many bytes one receive takes at most.
pub(super) const SCRATCH_LEN: usize = 64 << 10;

/// How many emptied outputs are kept to be used again, each with at most
/// [`CHUNK`](super::output::CHUNK) bytes.
const SPARES_MAX: usize = 64;

/// `Core::listener` of a stream that no listener has accepted.
pub(super) const NO_LISTENER: u32 = u32::MAX;

/// The state of a stream, and what is to be done for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u32);

impl Flags {
    /// connect(2) is under way.
    pub(super) const CONNECTING: Self = Self(1);
    /// `on_open` has been called.
    pub(super) const OPENED: Self = Self(1 << 1);
    /// The user does not want to read.
    pub(super) const PAUSED: Self = Self(1 << 2);
    /// The peer's FIN has been read.
    pub(super) const ENDED: Self = Self(1 << 3);
    /// The writing half is to be closed after the output.
    pub(super) const FINISHING: Self = Self(1 << 4);
    /// The writing half is closed.
    pub(super) const FINISHED: Self = Self(1 << 5);
    /// The user has closed it: of the callbacks only `on_close` is still to come, after the output
    /// and the lingering.
    pub(super) const CLOSING: Self = Self(1 << 6);
    /// It is to be closed now, for the reason that is noted.
    pub(super) const DEAD: Self = Self(1 << 7);
    /// Closing is to send a RST.
    pub(super) const RESET: Self = Self(1 << 8);
    /// The socket takes no more output until it is writable.
    pub(super) const BLOCKED: Self = Self(1 << 9);
    /// The output is above the high watermark, or has been and is not at the low one yet.
    pub(super) const FULL: Self = Self(1 << 10);
    /// What the handler was told last: `on_full`, and not yet `on_drained`.
    pub(super) const TOLD_FULL: Self = Self(1 << 11);
    /// A frame of its driver is on the stack, which will look after all of this when it ends.
    pub(super) const RUNNING: Self = Self(1 << 12);
    /// Its driver will be called in the next turn.
    pub(super) const NOTIFIED: Self = Self(1 << 13);
    /// Others have changed it: it is to be looked after at the end of the turn.
    pub(super) const TOUCHED: Self = Self(1 << 14);
    /// Bytes of an adoption wait to be delivered.
    pub(super) const PREFIX: Self = Self(1 << 15);
    /// It has an idle timeout.
    pub(super) const IDLE: Self = Self(1 << 16);
    /// There may be a deadline that the wheel does not know.
    pub(super) const ARM: Self = Self(1 << 17);
    /// `since_ns` is to be set.
    pub(super) const STAMP: Self = Self(1 << 18);
    /// `heard_ns` is to be set.
    pub(super) const HEARD: Self = Self(1 << 19);
    pub(super) const IDLE_DUE: Self = Self(1 << 20);
    pub(super) const STALL_DUE: Self = Self(1 << 21);
    /// What it is watched for.
    pub(super) const WATCHES_IN: Self = Self(1 << 22);
    pub(super) const WATCHES_OUT: Self = Self(1 << 23);
    /// Somebody wants its handler called.
    pub(super) const CALLED: Self = Self(1 << 24);
    /// Closing is not to wait for the peer's end.
    pub(super) const HASTY: Self = Self(1 << 25);

    /// It goes by completion: see `ring.rs`.
    pub(super) const RING: Self = Self(1 << 26);
    /// On a ring: its receive was cancelled, and the final completion has not been seen.
    pub(super) const ENDING: Self = Self(1 << 27);
    /// On a ring: it is polled for errors and hang-ups alone.
    pub(super) const WATCHES_ENDS: Self = Self(1 << 28);

    /// No further output is taken.
    pub(super) const NO_OUTPUT: Self = Self(Self::FINISHING.0 | Self::CLOSING.0 | Self::DEAD.0);
    /// What the clock has to be read for.
    pub(super) const TIMES: Self = Self(Self::ARM.0 | Self::STAMP.0 | Self::HEARD.0);
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

    /// Whether it is an open stream of which nothing is to be done but to receive.
    #[inline]
    pub(super) const fn is_plain(self) -> bool {
        const PLAIN: u32 = Flags::OPENED.0 | Flags::WATCHES_IN.0;
        self.without(Self(Self::RUNNING.0 | Self::TOUCHED.0 | Self::IDLE.0)).0 == PLAIN
    }

    /// The same, of a stream by completion.
    #[inline]
    pub(super) const fn is_plain_on_ring(self) -> bool {
        self.any(Self::RING) && self.without(Self::RING).is_plain()
    }

    /// Clears these, and says whether any was set.
    #[inline]
    pub(super) fn take(&mut self, those: Self) -> bool {
        let any = self.any(those);
        self.clear(those);
        any
    }
}

impl BitOr for Flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// One stream. Its handler is in the cell that the epoll set knows; everything else is here, so
/// that it can be reached while the handler runs.
pub(crate) struct Core {
    pub(super) socket: OwnedFd,
    pub(super) flags: Flags,
    /// The registration of the cell.
    pub(super) cell: Key,
    /// Output that waits; none for most streams at most times. Never an empty one.
    pub(super) output: Option<Box<Output>>,
    /// Shared by streams that have the same.
    pub(super) options: Rc<StreamOptions>,
    /// When something was received last, if there is an idle timeout.
    pub(super) heard_ns: u64,
    /// Since when the present wait lasts: for the connection, for the socket to take output, or,
    /// since it was closed, for its end.
    pub(super) since_ns: u64,
    /// The listener that has accepted it, or [`NO_LISTENER`].
    pub(super) listener: u32,
    pub(super) reason: Option<CloseReason>,
}

// What a connection costs beside its cell: this, and 8 bytes of its place in the table. (Under Miri
// rustix has another backend, with a wider error number.)
const _: () = assert!(cfg!(miri) || (size_of::<Core>() == 56 && size_of::<Option<Core>>() == 56));

impl Core {
    /// How many bytes wait to be sent.
    #[inline]
    pub(super) fn buffered(&self) -> usize {
        self.output.as_ref().map_or(0, |output| output.len())
    }

    /// It is to be closed, for this reason unless there is one already.
    pub(super) fn kill(&mut self, reason: CloseReason) {
        self.reason.get_or_insert(reason);
        self.flags |= Flags::DEAD;
    }

    /// The kernel says that it has failed. Nobody cares any more once the FIN of a closed stream is
    /// out.
    pub(super) fn fail(&mut self, errno: Errno) {
        let is_over = self.flags.any(Flags::DEAD)
            || (self.flags.any(Flags::CLOSING) && self.flags.any(Flags::FINISHED));
        if !is_over {
            self.reason = Some(CloseReason::Error(errno));
        }
        self.kill(CloseReason::Closed);
    }

    /// Whether received bytes would have somebody to go to, if only the discarding of a closed
    /// stream.
    #[inline]
    pub(super) fn wants_input(&self) -> bool {
        let flags = self.flags;
        if flags.any(Flags::ENDED | Flags::CONNECTING | Flags::DEAD) {
            return false;
        }
        flags.any(Flags::CLOSING) || !flags.any(Flags::PAUSED)
    }

    /// Brings the full mark up to date with the output.
    pub(super) fn note_marks(&mut self) {
        let waiting = self.buffered();
        if self.flags.any(Flags::BLOCKED | Flags::CONNECTING) && waiting > self.options.high_mark {
            self.flags |= Flags::FULL;
        } else if waiting <= self.options.low_mark {
            self.flags.clear(Flags::FULL);
        }
    }

    /// Whether the handler is to be told of a mark.
    #[inline]
    pub(super) fn owes_mark(&self) -> bool {
        let flags = self.flags;
        flags.any(Flags::OPENED)
            && !flags.any(Flags::CLOSING | Flags::DEAD)
            && flags.any(Flags::FULL) != flags.any(Flags::TOLD_FULL)
    }

    /// Whether the writing half is to be closed now.
    #[inline]
    pub(super) fn can_finish(&self) -> bool {
        let flags = self.flags;
        flags.any(Flags::FINISHING | Flags::CLOSING)
            && !flags.any(Flags::FINISHED | Flags::CONNECTING)
            && self.output.is_none()
    }

    /// Whether there is something that only the driver does, without an event from the kernel.
    pub(super) fn needs_driver(&self) -> bool {
        let flags = self.flags;
        flags.any(Flags::DEAD | Flags::TIMES | Flags::DUE)
            || (flags.any(Flags::CALLED) && flags.any(Flags::OPENED) && !flags.any(Flags::CLOSING))
            || (flags.any(Flags::PREFIX) && !flags.any(Flags::PAUSED))
            || self.owes_mark()
            || self.can_finish()
    }
}

/// In one place and without an argument: what a panic says is otherwise got ready on the way of
/// every event.
#[cold]
#[inline(never)]
pub(super) fn no_core() -> ! {
    panic!("a stream's cell and its core live together")
}

#[cold]
fn new_scratch() -> Box<[u8]> {
    vec![0; SCRATCH_LEN].into_boxed_slice()
}

/// All streams of a reactor, and what they share.
pub(crate) struct Streams {
    pub(super) cores: Arena<Core>,
    pub(super) listeners: Vec<Option<ListenerBook>>,
    /// The buffer of received bytes, while no handler has it.
    pub(super) scratch: Option<Box<[u8]>>,
    /// Emptied outputs, to be used again in the box that they have.
    #[expect(
        clippy::vec_box,
        reason = "a stream's output is boxed, and to take it out of its box would be to allocate"
    )]
    spares: Vec<Box<Output>>,
    /// Streams to be looked after at the end of the turn.
    pub(super) touched: Vec<Key>,
    /// Cells of streams whose driver is to be called in the next turn.
    pub(super) notifications: Vec<Key>,
    /// The bytes of adoptions, by the stream's index, until they are delivered; on a ring also what
    /// was received while the stream was paused, an empty row being the peer's end.
    pub(super) prefixes: BTreeMap<u32, VecDeque<Undelivered>>,
    /// Counts the memory of these, and of outputs.
    pub(super) ledger: Rc<Ledger>,
    /// The settings that a stream was registered with last: the next one's are usually the same.
    options: Rc<StreamOptions>,
    /// Streams by a moment at which a deadline of theirs may be over.
    pub(super) deadlines: Wheel,
    /// The timer that looks at them, and when it fires.
    pub(super) timer: Option<(Key, u64)>,
    /// Tells a child of fork(2).
    fork: Option<ForkGuard>,
}

impl Streams {
    pub(super) fn new(fork: Option<ForkGuard>) -> Self {
        Self {
            cores: Arena::new(),
            listeners: Vec::new(),
            scratch: None,
            spares: Vec::new(),
            touched: Vec::new(),
            notifications: Vec::new(),
            prefixes: BTreeMap::new(),
            ledger: Rc::default(),
            options: Rc::new(StreamOptions::new()),
            deadlines: Wheel::new(),
            timer: None,
            fork,
        }
    }

    /// Whether this is a child of fork(2): the sockets are its parent's too, and what is done to
    /// them here reaches the parent's peers.
    #[inline]
    pub(super) fn is_in_child(&self) -> bool {
        self.fork.as_ref().is_some_and(ForkGuard::is_child)
    }

    /// The stream at an index that is known to be taken.
    #[inline]
    pub(super) fn core(&mut self, index: u32) -> &mut Core {
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

    /// The stream's output, to add to: nothing else leaves an empty one.
    pub(super) fn output(&mut self, index: u32) -> &mut Output {
        let core = self.cores.at_mut(index).expect("a stream's cell and its core live together");
        core.output.get_or_insert_with(|| {
            self.spares.pop().unwrap_or_else(|| Box::new(Output::new(&self.ledger)))
        })
    }

    /// Lets go of what waits for a stream that will neither send nor hear any more.
    pub(super) fn drop_waiting(&mut self, index: u32) {
        self.prefixes.remove(&index);
        if let Some(output) = self.core(index).output.take() {
            self.keep_output(output);
        }
    }

    /// Keeps an output to be used again, or lets it go.
    pub(super) fn keep_output(&mut self, mut output: Box<Output>) {
        if self.spares.len() < SPARES_MAX {
            output.trim();
            self.spares.push(output);
        }
    }
}
