//! Reports of disconnected clients to the application.

use windlass::stream::Address;

use crate::api::Disconnected;

/// Clients that a request to the [admin listener](crate::Admin) has disconnected: the argument of
/// [`on_disconnected`](crate::Admin::on_disconnected).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AdminDisconnect<'a> {
    /// The address that the request came from.
    pub peer: &'a Address,
    /// The parameter of the request: `id`, `address` or `room`.
    pub by: &'static str,
    /// Its value. It may contain any characters: see [`printable`](crate::printable).
    pub target: &'a str,
    /// How many were disconnected.
    pub done: Disconnected,
}

/// Called for each such request, on the listener's thread.
pub(super) type OnDisconnected = Box<dyn Fn(&AdminDisconnect<'_>) + Send>;
