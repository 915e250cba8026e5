//! Listeners: accepting connections, limits, inherited sockets, and one reactor per thread.

pub(super) mod accept;
pub(super) mod error;
pub(super) mod inherited;
pub(super) mod limit;
pub(super) mod listener;
pub(super) mod listening;
pub(super) mod workers;
