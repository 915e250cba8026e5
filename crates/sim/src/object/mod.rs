//! The objects behind descriptors: pure state, without time, choices or anybody to tell.

pub(crate) mod conn;
pub(crate) mod files;
pub(crate) mod flow;

use std::collections::VecDeque;

use crate::ids::{ActorId, HostId, SimAddr, SocketKind, mask};
use crate::slab::Key;
use files::{EventCount, Timer};

/// The place that is told when an object becomes ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// An entry of a set.
    Entry { set: Key, entry: Key },
    /// A request of a ring.
    Request { ring: Key, request: Key },
}

/// The object of a descriptor.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) host: HostId,
    /// The actor that has made it: its end closes it.
    pub(crate) owner: Option<ActorId>,
    pub(crate) watches: Vec<Watch>,
    pub(crate) kind: Kind,
    /// Requests of rings that hold it.
    pub(crate) holds: u32,
    /// It was closed, and only requests hold it.
    pub(crate) is_closed: bool,
}

/// The kinds of objects.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A stream socket that is not connected.
    Socket(Box<Socket>),
    /// A side of a connection.
    Conn {
        conn: Key,
        side: u8,
        reset_on_close: bool,
    },
    Udp(Box<Udp>),
    EventCount(EventCount),
    PipeReader(Key),
    PipeWriter(Key),
    Timer(Timer),
    /// The signals that it reads.
    Signals(u64),
}

/// A stream socket that is not connected.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) kind: SocketKind,
    pub(crate) local: Option<SimAddr>,
    /// Set by listen(2).
    pub(crate) backlog: Option<Backlog>,
    pub(crate) reuse_port: bool,
    pub(crate) reset_on_close: bool,
    /// The sizes of the two buffers, if they were set.
    pub(crate) buffers: Option<usize>,
}

/// Connections that wait for accept(2).
#[derive(Debug)]
pub(crate) struct Backlog {
    pub(crate) max: u32,
    pub(crate) waiting: VecDeque<Key>,
}

impl Backlog {
    /// As `sk_acceptq_is_full`: one more than the number given to listen(2) fits.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() > self.max as usize
    }
}

/// A UDP socket.
#[derive(Debug, Default)]
pub(crate) struct Udp {
    pub(crate) local: Option<SimAddr>,
    pub(crate) peer: Option<SimAddr>,
    pub(crate) queue: VecDeque<(SimAddr, Box<[u8]>)>,
    pub(crate) queued_bytes: usize,
    /// When the last datagram that it has sent arrives.
    pub(crate) last_ns: u64,
}

impl Socket {
    pub(crate) fn new(kind: SocketKind) -> Self {
        Self {
            kind,
            local: None,
            backlog: None,
            reuse_port: false,
            reset_on_close: false,
            buffers: None,
        }
    }

    pub(crate) fn mask(&self) -> u32 {
        match &self.backlog {
            Some(backlog) if backlog.waiting.is_empty() => 0,
            Some(_) => mask::IN,
            // A socket that is not connected is in the state TCP_CLOSE.
            None => mask::OUT | mask::HUP,
        }
    }
}

impl Udp {
    pub(crate) fn mask(&self) -> u32 {
        if self.queue.is_empty() { mask::OUT } else { mask::IN | mask::OUT }
    }
}
