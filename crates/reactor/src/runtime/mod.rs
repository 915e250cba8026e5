//! The reactor itself: its settings, its turns, and what it does with registrations, timers, groups
//! and remote calls.

pub(crate) mod builder;
pub(crate) mod embed;
pub(crate) mod groups;
pub(crate) mod hook;
pub(crate) mod reactor;
mod registration;
mod run_loop;
mod thread_bound;
