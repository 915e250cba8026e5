//! How a subscriber changes what is watched: [`EventOps`].

use crate::watches::Context;
use crate::{Events, Result};

/// Changes which descriptors a subscriber watches.
#[derive(Debug)]
pub struct EventOps<'a> {
    context: &'a mut Context,
    /// The place of the subscriber.
    subscriber: u32,
}

impl<'a> EventOps<'a> {
    #[inline]
    pub(crate) fn new(context: &'a mut Context, subscriber: u32) -> Self {
        Self { context, subscriber }
    }

    /// Watches a descriptor. It stays the caller's, who must [`remove`](Self::remove) it before it
    /// is closed. It does not fire in a run that has begun.
    ///
    /// # Errors
    /// - [`FdAlreadyRegistered`](crate::Error::FdAlreadyRegistered): the number is watched already.
    /// - [`Epoll`](crate::Error::Epoll): the errors of `EPOLL_CTL_ADD` (epoll_ctl(2)). `ESTALE` in
    ///   a child of fork(2).
    pub fn add(&mut self, events: Events) -> Result<()> {
        self.context.get_mut().add(self.subscriber, events)
    }

    /// Changes the conditions and the user's number of a descriptor.
    ///
    /// # Errors
    /// [`Epoll`](crate::Error::Epoll): the errors of `EPOLL_CTL_MOD` (epoll_ctl(2)). `ENOENT`: the
    /// descriptor is not watched.
    pub fn modify(&self, events: Events) -> Result<()> {
        self.context.lock().modify(events)
    }

    /// Ends the watch of a descriptor, and discards its events that have been fetched.
    ///
    /// # Errors
    /// [`Epoll`](crate::Error::Epoll) with `ENOENT`: the descriptor is not watched.
    pub fn remove(&mut self, events: Events) -> Result<()> {
        self.context.get_mut().remove(events.fd())
    }
}
