//! [`EventManager`]: the loop.

use std::time::Duration;

use vmm_sys_util::epoll::EpollEvent;

#[cfg(feature = "remote_endpoint")]
use crate::RemoteEndpoint;
#[cfg(feature = "remote_endpoint")]
use crate::endpoint::Calls;
use crate::subscribers::Subscribers;
use crate::watches::Context;
use crate::{Error, EventOps, MutEventSubscriber, Result, SubscriberId, SubscriberOps};

/// The largest capacity that [`EventManager::new_with_capacity`] takes: the kernel's limit on the
/// events of one wait (`EP_MAX_EVENTS`).
pub const MAX_READY_EVENTS_CAPACITY: usize = i32::MAX as usize / size_of::<EpollEvent>();

/// The capacity of [`EventManager::new`].
const READY_EVENTS_CAPACITY: usize = 256;

/// Owns subscribers, waits for their descriptors, and calls them.
///
/// It is `Send` if its subscribers are. A child of fork(2) cannot use it.
///
/// ```compile_fail
/// fn send<T: Send>() {}
/// send::<windlass_event_manager::EventManager<std::rc::Rc<u8>>>();
/// ```
#[derive(Debug)]
pub struct EventManager<T> {
    subscribers: Subscribers<T>,
    context: Context,
    #[cfg(feature = "remote_endpoint")]
    calls: Calls<T>,
}

impl<T: MutEventSubscriber> SubscriberOps for EventManager<T> {
    type Subscriber = T;

    fn add_subscriber(&mut self, subscriber: T) -> SubscriberId {
        let id = self.subscribers.add(subscriber);
        self.context.get_mut().begin(id.index());
        if let Some(subscriber) = self.subscribers.get_mut(id) {
            subscriber.init(&mut EventOps::new(&mut self.context, id.index()));
        }
        id
    }

    fn remove_subscriber(&mut self, subscriber_id: SubscriberId) -> Result<T> {
        let removed = self.subscribers.remove(subscriber_id).ok_or(Error::InvalidId)?;
        self.context.get_mut().remove_all(subscriber_id.index());
        Ok(removed)
    }

    fn subscriber_mut(&mut self, subscriber_id: SubscriberId) -> Result<&mut T> {
        self.subscribers.get_mut(subscriber_id).ok_or(Error::InvalidId)
    }

    fn event_ops(&mut self, subscriber_id: SubscriberId) -> Result<EventOps<'_>> {
        self.subscriber_mut(subscriber_id)?;
        Ok(EventOps::new(&mut self.context, subscriber_id.index()))
    }
}

impl<S: MutEventSubscriber> EventManager<S> {
    /// A manager that takes up to 256 events in a run.
    ///
    /// # Errors
    /// [`Epoll`](Error::Epoll), for example with `EMFILE`.
    pub fn new() -> Result<Self> {
        Self::new_with_capacity(READY_EVENTS_CAPACITY)
    }

    /// A manager that takes up to `ready_events_capacity` events in a run, but at most 65,536.
    ///
    /// # Errors
    /// - [`InvalidCapacity`](Error::InvalidCapacity): it is zero, or above
    ///   [`MAX_READY_EVENTS_CAPACITY`].
    /// - [`Epoll`](Error::Epoll), for example with `EMFILE`.
    pub fn new_with_capacity(ready_events_capacity: usize) -> Result<Self> {
        if !(1..=MAX_READY_EVENTS_CAPACITY).contains(&ready_events_capacity) {
            return Err(Error::InvalidCapacity);
        }
        #[cfg_attr(
            not(feature = "remote_endpoint"),
            expect(unused_mut, reason = "for the endpoint")
        )]
        let mut context = Context::new(ready_events_capacity)?;
        Ok(Self {
            #[cfg(feature = "remote_endpoint")]
            calls: Calls::new(&mut context)?,
            subscribers: Subscribers::new(),
            context,
        })
    }

    /// [`run_with_timeout`](Self::run_with_timeout) without a limit.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn run(&mut self) -> Result<usize> {
        self.run_with_timeout(-1)
    }

    /// Waits for events, for at most `milliseconds` (without a limit if it is negative), and calls
    /// their subscribers. Returns the number of events. It may be 0 before the time has passed.
    ///
    /// # Errors
    /// [`Epoll`](Error::Epoll): the errors of epoll_wait(2). `ESTALE` in a child of fork(2).
    ///
    /// # Panics
    /// With the panic of a subscriber. The next run begins with the rest of the events.
    #[inline]
    pub fn run_with_timeout(&mut self, milliseconds: i32) -> Result<usize> {
        let timeout = u64::try_from(milliseconds).ok().map(Duration::from_millis);
        let count = self.context.get_mut().wait(timeout)?;
        #[cfg(feature = "remote_endpoint")]
        let mut is_called = false;
        while let Some((index, events)) = self.context.get_mut().next_event() {
            match self.subscribers.at_mut(index) {
                Some(it) => it.process(events, &mut EventOps::new(&mut self.context, index)),
                // Only the watch of the endpoint has no subscriber. Calls come after the events, so
                // that they remove no subscriber whose events have been fetched.
                #[cfg(feature = "remote_endpoint")]
                None => is_called = true,
                #[cfg(not(feature = "remote_endpoint"))]
                None => {}
            }
        }
        #[cfg(feature = "remote_endpoint")]
        if is_called {
            self.calls.batch().run(self);
        }
        Ok(count)
    }
}

#[cfg(feature = "remote_endpoint")]
impl<S: MutEventSubscriber> EventManager<S> {
    /// A handle by which other threads reach this manager.
    pub fn remote_endpoint(&self) -> RemoteEndpoint<S> {
        self.calls.endpoint()
    }
}
