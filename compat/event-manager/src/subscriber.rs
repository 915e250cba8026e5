//! The traits of subscribers, and of what adds and removes them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use crate::{EventOps, Events, Result, SubscriberId};

/// A subscriber that is called by a shared reference, so that it may be shared itself.
///
/// It is implemented for pointers to such a subscriber, and for cells and locks with a
/// [`MutEventSubscriber`].
pub trait EventSubscriber {
    /// Handles an event of one of the subscriber's descriptors. `ops` changes which are watched.
    ///
    /// A panic unwinds out of [`EventManager::run`](crate::EventManager::run); the next run goes on
    /// with the other events.
    fn process(&self, events: Events, ops: &mut EventOps<'_>);

    /// Called once, when the subscriber is added. It registers its descriptors by `ops`.
    fn init(&self, ops: &mut EventOps<'_>);
}

/// A subscriber that is called by an exclusive reference.
pub trait MutEventSubscriber {
    /// See [`EventSubscriber::process`].
    fn process(&mut self, events: Events, ops: &mut EventOps<'_>);

    /// See [`EventSubscriber::init`].
    fn init(&mut self, ops: &mut EventOps<'_>);
}

/// Adds and removes subscribers: an [`EventManager`](crate::EventManager), and what a call from
/// another thread gets.
pub trait SubscriberOps {
    /// The subscribers' type.
    type Subscriber: MutEventSubscriber;

    /// Adds a subscriber, and calls its `init`.
    ///
    /// # Panics
    /// With the panic of `init`. The subscriber stays added, without an identifier that is known.
    fn add_subscriber(&mut self, subscriber: Self::Subscriber) -> SubscriberId;

    /// Ends the watches of a subscriber, and returns it. Its events that have been fetched are
    /// discarded.
    ///
    /// # Errors
    /// [`InvalidId`](crate::Error::InvalidId).
    fn remove_subscriber(&mut self, subscriber_id: SubscriberId) -> Result<Self::Subscriber>;

    /// The subscriber.
    ///
    /// # Errors
    /// [`InvalidId`](crate::Error::InvalidId).
    fn subscriber_mut(&mut self, subscriber_id: SubscriberId) -> Result<&mut Self::Subscriber>;

    /// Changes which descriptors of the subscriber are watched.
    ///
    /// # Errors
    /// [`InvalidId`](crate::Error::InvalidId).
    fn event_ops(&mut self, subscriber_id: SubscriberId) -> Result<EventOps<'_>>;
}

/// Implements a trait by the one of what `self` leads to.
macro_rules! forward {
    ($trait:ident for $type:ty: $inner:ident, $self:ident => $to:expr, $($mutable:tt)?) => {
        impl<T: $inner + ?Sized> $trait for $type {
            fn process(&$($mutable)? $self, events: Events, ops: &mut EventOps<'_>) {
                $to.process(events, ops);
            }

            fn init(&$($mutable)? $self, ops: &mut EventOps<'_>) {
                $to.init(ops);
            }
        }
    };
}

forward!(EventSubscriber for Arc<T>: EventSubscriber, self => (**self),);
forward!(EventSubscriber for Rc<T>: EventSubscriber, self => (**self),);
forward!(EventSubscriber for Box<T>: EventSubscriber, self => (**self),);
forward!(EventSubscriber for RefCell<T>: MutEventSubscriber, self => self.borrow_mut(),);
forward!(EventSubscriber for Mutex<T>: MutEventSubscriber, self => lock(self),);
forward!(MutEventSubscriber for Arc<T>: EventSubscriber, self => (**self), mut);
forward!(MutEventSubscriber for Rc<T>: EventSubscriber, self => (**self), mut);
forward!(MutEventSubscriber for Box<T>: MutEventSubscriber, self => (**self), mut);
forward!(MutEventSubscriber for RefCell<T>: MutEventSubscriber, self => self.get_mut(), mut);
forward!(MutEventSubscriber for Mutex<T>: MutEventSubscriber, self => lock(self), mut);

/// # Panics
/// If a thread has panicked while it held the lock: the subscriber may be half changed.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no other user of the subscriber has panicked with the lock")
}
