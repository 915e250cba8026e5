//! The types that users name in their handlers: interest, event, turn, timer, group.

pub(crate) mod backend;
pub(crate) mod driver;
pub(crate) mod event;
pub(crate) mod group;
pub(crate) mod handler_fn;
pub(crate) mod inline_call;
pub(crate) mod interest;
pub(crate) mod key;
pub(crate) mod listing;
#[cfg(feature = "mock")]
pub(crate) mod mock;
pub(crate) mod ops;
pub(crate) mod progress;
pub(crate) mod registrar;
pub(crate) mod stats;
pub(crate) mod timer;
pub(crate) mod turn;
