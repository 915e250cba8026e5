//! A queue of completions, as io_uring(7) has one: requests, completions, and its overflow.
//!
//! 1. A request holds its descriptor's object until its last completion.
//! 2. A request has at least one completion, and its last one has `more` unset.
//! 3. Completions that do not fit wait in order, and none is lost. An overflow ends multishot
//!    requests.

use std::collections::VecDeque;

use crate::ids::{ActorId, Fd, mask};
use crate::slab::{Key, Slab};

/// A request to a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingRequest {
    /// Receives at most `max` bytes; with `multishot` again and again.
    Recv {
        /// A connected stream.
        fd: Fd,
        /// The size of the buffer.
        max: usize,
        /// Go on after a completion.
        multishot: bool,
    },
    /// Sends all bytes, in parts if it must. Fewer are sent only if an error comes between.
    Send {
        /// A connected stream.
        fd: Fd,
        /// The bytes to send.
        bytes: Vec<u8>,
    },
    /// Accepts a connection; with `multishot` again and again.
    Accept {
        /// A listening socket.
        fd: Fd,
        /// Go on after a completion.
        multishot: bool,
    },
    /// Reports readiness: once, or with `multishot` each edge.
    Poll {
        /// Any descriptor.
        fd: Fd,
        /// The bits of interest.
        mask: u32,
        /// Go on after a completion.
        multishot: bool,
    },
}

impl RingRequest {
    /// The descriptor of the request.
    #[must_use]
    pub fn fd(&self) -> Fd {
        match self {
            Self::Recv { fd, .. }
            | Self::Send { fd, .. }
            | Self::Accept { fd, .. }
            | Self::Poll { fd, .. } => *fd,
        }
    }

    /// Its number in a trace. User data may be an address, so it is not there.
    pub(crate) fn number(&self) -> i64 {
        match self {
            Self::Recv { .. } => 0,
            Self::Send { .. } => 1,
            Self::Accept { .. } => 2,
            Self::Poll { .. } => 3,
        }
    }

    /// The readiness that makes another attempt worth while.
    pub(crate) fn interest(&self) -> u32 {
        let bits = match self {
            Self::Recv { .. } | Self::Accept { .. } => mask::IN,
            Self::Send { .. } => mask::OUT,
            // IO_POLL_UNMASK of the kernel: a poll reports this too, whatever it asks for.
            Self::Poll { mask: bits, .. } => *bits | mask::RDHUP,
        };
        bits | mask::ERR | mask::HUP
    }

    pub(crate) fn is_multishot(&self) -> bool {
        match self {
            Self::Recv { multishot, .. }
            | Self::Accept { multishot, .. }
            | Self::Poll { multishot, .. } => *multishot,
            Self::Send { .. } => false,
        }
    }
}

/// The outcome of a request, or of a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// That of the request.
    pub user_data: u64,
    /// The number of bytes, the mask, or 0; a negative errno if the request has failed.
    pub result: i32,
    /// The descriptor of an accepted connection.
    pub accepted: Option<Fd>,
    /// The received bytes.
    pub bytes: Vec<u8>,
    /// Whether the request goes on.
    pub more: bool,
}

/// A request that has not had its last completion.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) user_data: u64,
    pub(crate) request: RingRequest,
    /// The bytes that a send has sent so far.
    pub(crate) sent: usize,
    /// Its last completion is made, and comes late.
    pub(crate) late: Option<Completion>,
    /// It was cancelled, and the cancellation comes late.
    pub(crate) is_cancelled: bool,
}

/// The queue of one actor.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) actor: ActorId,
    pub(crate) pending: Slab<Pending>,
    completions: VecDeque<Completion>,
    overflow: VecDeque<Completion>,
    completions_max: usize,
}

impl Queue {
    pub(crate) fn new(actor: ActorId, completions_max: usize) -> Self {
        Self {
            actor,
            pending: Slab::default(),
            completions: VecDeque::new(),
            overflow: VecDeque::new(),
            completions_max: completions_max.max(1),
        }
    }

    /// Whether a completion would overflow.
    pub(crate) fn is_full(&self) -> bool {
        self.completions.len() >= self.completions_max || !self.overflow.is_empty()
    }

    /// The number of completions that had no room.
    pub(crate) fn overflow(&self) -> usize {
        self.overflow.len()
    }

    /// Adds a completion, behind all others.
    pub(crate) fn push(&mut self, completion: Completion, overflows: bool) {
        if overflows || self.is_full() {
            self.overflow.push_back(completion);
        } else {
            self.completions.push_back(completion);
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.completions.is_empty() || !self.overflow.is_empty()
    }

    /// Moves all completions that are in the queue to `out`. The overflow takes their place. True
    /// if there was one.
    pub(crate) fn reap(&mut self, out: &mut Vec<Completion>) -> bool {
        out.extend(self.completions.drain(..));
        let count = self.overflow.len().min(self.completions_max);
        self.completions.extend(self.overflow.drain(..count));
        count > 0
    }

    /// The first request with this user data.
    pub(crate) fn find(&self, user_data: u64) -> Option<Key> {
        let has = |key: &Key| {
            self.pending.get(*key).is_some_and(|pending| pending.user_data == user_data)
        };
        self.pending.keys().find(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(user_data: u64) -> Completion {
        Completion { user_data, result: 0, accepted: None, bytes: Vec::new(), more: false }
    }

    #[test]
    fn an_overflow_keeps_the_order() {
        let mut queue = Queue::new(ActorId(0), 2);
        for user_data in 0..5 {
            queue.push(completion(user_data), user_data == 1);
        }
        let mut out = Vec::new();
        assert!(queue.is_full() && queue.reap(&mut out));
        assert!(queue.reap(&mut out) && queue.is_ready());
        assert!(!queue.reap(&mut out) && !queue.is_ready());
        assert!(out.iter().map(|completion| completion.user_data).eq(0..5));
    }
}
