//! `--hand-over` and `--take-over`: a server passes its listening sockets to the next one.
//!
//! The two talk over a Unix socket of the type `SOCK_SEQPACKET`, which keeps messages apart:
//!
//! 1. Both check that the other process has the same user.
//! 2. The old server sends all sockets with their names (`SCM_RIGHTS`, unix(7)). Both accept from
//!    them from now on, so no connection waits in a backlog that is closed.
//! 3. The new server says that its workers accept, and which names it has taken.
//! 4. The old server grants them. It then stops accepting and drains. If the new server fails
//!    before, or takes too long, the old one goes on as if nothing had happened.
//!
//! Each process keeps its keys for TLS tickets, and its name in a cluster.

mod offer;
mod take;
mod wire;

use std::{collections::BTreeMap, os::fd::OwnedFd};

pub(crate) use {
    offer::{Offer, RunningOffer, take_wake},
    take::TakeOver,
};

/// Sockets that another server has passed, by their names.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    left: BTreeMap<String, Vec<OwnedFd>>,
    taken: Vec<String>,
}

impl Passed {
    pub(crate) fn of(sockets: Vec<(String, OwnedFd)>) -> Self {
        let mut left = BTreeMap::<_, Vec<_>>::new();
        for (name, socket) in sockets {
            left.entry(name).or_default().push(socket);
        }
        Self { left, taken: Vec::new() }
    }

    /// Takes the sockets of this name.
    pub(crate) fn take(&mut self, name: &str) -> Option<Vec<OwnedFd>> {
        let (name, sockets) = self.left.remove_entry(name)?;
        self.taken.push(name);
        Some(sockets)
    }

    /// Takes the sockets of the first name with this beginning.
    pub(crate) fn take_first(&mut self, beginning: &str) -> Option<(String, Vec<OwnedFd>)> {
        let name = self.left.keys().find(|name| name.starts_with(beginning))?.clone();
        self.take(&name).map(|sockets| (name, sockets))
    }

    /// The names of the sockets that were not taken.
    pub(crate) fn left(&self) -> impl Iterator<Item = &str> {
        self.left.keys().map(String::as_str)
    }

    /// Closes what was not taken. Returns the names of the others.
    pub(crate) fn into_taken(self) -> Vec<String> {
        self.taken
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }
}
