//! The interface of [event-manager] 0.4 on the reactor of `windlass`.
//!
//! A program changes over in its `Cargo.toml` alone:
//!
//! ```toml
//! event-manager = { package = "windlass-event-manager", version = "0.1" }
//! ```
//!
//! Types, traits and the feature `remote_endpoint` have their names and their meaning there. The
//! page `docs/event-manager-interface.md` of the repository lists where the behaviour differs, and
//! why.
//!
//! ```
//! use vmm_sys_util::eventfd::EventFd;
//! use windlass_event_manager::{
//!     EventManager, EventOps, EventSet, Events, MutEventSubscriber, Result, SubscriberOps,
//! };
//!
//! /// Counts the kicks of a guest.
//! struct Queue {
//!     kick: EventFd,
//!     kicks: u64,
//! }
//!
//! impl MutEventSubscriber for Queue {
//!     fn init(&mut self, ops: &mut EventOps) {
//!         ops.add(Events::new(&self.kick, EventSet::IN)).expect("an eventfd can be polled");
//!     }
//!
//!     fn process(&mut self, _events: Events, _ops: &mut EventOps) {
//!         self.kicks += self.kick.read().unwrap_or(0);
//!     }
//! }
//!
//! fn main() -> Result<()> {
//!     let kick = EventFd::new(0).expect("the process has a descriptor left");
//!     kick.write(3).expect("the counter is far from full");
//!
//!     let mut manager = EventManager::new()?;
//!     let queue = manager.add_subscriber(Queue { kick, kicks: 0 });
//!     assert_eq!(manager.run()?, 1);
//!     assert_eq!(manager.subscriber_mut(queue)?.kicks, 3);
//!     Ok(())
//! }
//! ```
//!
//! [event-manager]: https://docs.rs/event-manager/0.4.2

#![deny(unsafe_code)]

#[cfg(feature = "remote_endpoint")]
mod endpoint;
mod error;
mod events;
mod manager;
mod ops;
mod subscriber;
mod subscribers;
mod watches;

#[cfg(feature = "remote_endpoint")]
pub use endpoint::RemoteEndpoint;
pub use error::{Error, Result};
pub use events::Events;
pub use manager::{EventManager, MAX_READY_EVENTS_CAPACITY};
pub use ops::EventOps;
pub use subscriber::{EventSubscriber, MutEventSubscriber, SubscriberOps};
pub use subscribers::SubscriberId;
/// Conditions that a descriptor is watched for, and those that an event reports.
pub use vmm_sys_util::epoll::EventSet;
