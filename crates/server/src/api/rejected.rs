//! Information about connections that were rejected before they opened.

use windlass::stream::Address;

/// A connection that was rejected before it opened: the argument of
/// [`on_rejected`](super::Handler::on_rejected).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Rejected<'a> {
    /// The peer's address. Behind a proxy it is the proxy's address.
    pub peer: &'a Address,
    /// The status of the response; `None` if the connection was closed without one.
    pub status: Option<u16>,
    /// The reason, in the words of the response. It may contain text from the peer, but no control
    /// characters.
    pub reason: &'a str,
}
