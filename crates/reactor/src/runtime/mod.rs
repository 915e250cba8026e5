//! The reactor itself: its settings, its turns, and what it does with registrations, timers,
//! groups, streams and remote calls. Threads with a reactor each.

pub(crate) mod builder;
mod deferred;
mod driver;
pub(crate) mod embed;
#[cfg(feature = "tokio")]
pub(crate) mod embed_tokio;
mod ending;
mod group_pause;
mod groups;
pub(crate) mod hook;
#[cfg(feature = "sim")]
pub(crate) mod hosted;
mod listing;
mod ops;
mod pending;
mod progress;
pub(crate) mod random;
pub(crate) mod reactor;
mod registration;
mod remote_calls;
mod run_loop;
mod streams;
mod thread_bound;
mod timers;
mod turn_state;
mod wait;
mod workers;
