//! How a connection ended.

use core::fmt;

use windlass::{Errno, stream::TlsFailure};
use windlass_ws::{CloseCode, Violation};

use super::{id::ConnectionId, limit::Limit};

/// Why a connection was closed. The first reason wins.
///
/// ```
/// use windlass_server::CloseReason;
///
/// assert_eq!(CloseReason::Idle.to_string(), "idle timeout: no data received");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer sent a Close frame.
    Peer,
    /// This side closed it, by [`Connection::close`](crate::Connection::close) or another call of
    /// the application.
    Local,
    /// The peer violated the protocol or exceeded a limit, and was sent a Close frame that says so.
    Violation(Violation),
    /// Nothing was received for [`idle_timeout`](crate::Options::idle_timeout).
    Idle,
    /// The connection was open for [`lifetime_max`](crate::Options::lifetime_max).
    Lifetime,
    /// The peer did not read its messages
    /// ([`SlowConsumerPolicy::Evict`](crate::SlowConsumerPolicy::Evict)).
    Evicted,
    /// The peer sent messages faster than one of its [rates](crate::RateLimits) allows.
    Rate(Limit),
    /// The peer read none of the output for
    /// [`write_stall_timeout`](crate::Options::write_stall_timeout).
    WriteStall,
    /// The peer ended the connection without a Close frame. With TLS it sent `close_notify`.
    Lost,
    /// The kernel reported an error, for instance `ECONNRESET`.
    Failed(Errno),
    /// The drain's deadline passed.
    Drained,
    /// The TLS session failed, or the peer ended the connection without `close_notify`
    /// ([`TlsFailure::Truncated`]). What it sent last may be missing then.
    Tls(TlsFailure),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer => f.write_str("closed by the peer"),
            Self::Local => f.write_str("closed by this side"),
            Self::Violation(violation) => write!(f, "protocol violation: {violation}"),
            Self::Idle => f.write_str("idle timeout: no data received"),
            Self::Lifetime => f.write_str("connection lifetime exceeded"),
            Self::Evicted => f.write_str("evicted: the peer reads too slowly"),
            Self::Rate(limit) => write!(f, "rate exceeded: {limit}"),
            Self::WriteStall => f.write_str("write timeout: the peer read no output"),
            Self::Lost => f.write_str("closed by the peer without a Close frame"),
            Self::Failed(errno) => write!(f, "failed: {errno}"),
            Self::Drained => f.write_str("still open at the end of the graceful shutdown"),
            Self::Tls(failure) => write!(f, "TLS: {failure}"),
        }
    }
}

/// How a connection ended: the argument of [`on_close`](crate::Handler::on_close).
///
/// ```
/// use std::{cell::Cell, io, os::unix::net::UnixStream, rc::Rc, time::Duration};
/// use windlass::Reactor;
/// use windlass_server::{
///     CloseReason, Closed, Connection, Handler, Hub, Message, Options, Service, Upgraded,
///     http::{Accept, Reject, UpgradeRequest},
/// };
///
/// /// Counts the connections that ended without a Close frame.
/// struct Monitor {
///     lost: Rc<Cell<u32>>,
/// }
///
/// impl Handler for Monitor {
///     type Data = ();
/// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
/// #         Ok(Accept::new(()))
/// #     }
/// #     fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
///
///     fn on_close(&self, _: &mut Hub<'_>, (): &mut (), closed: &Closed<'_>) {
///         println!("connection {}: {}", closed.id, closed.reason);
///         if closed.reason == CloseReason::Lost {
///             self.lost.set(self.lost.get() + 1);
///         }
///     }
/// }
///
/// # fn main() -> io::Result<()> {
/// let lost = Rc::new(Cell::new(0));
/// let mut reactor = Reactor::new()?;
/// let monitor = Monitor { lost: Rc::clone(&lost) };
/// let service = Service::new(monitor, &Options::new(), &mut reactor)?;
/// let (ours, peer) = UnixStream::pair()?;
/// let adopted = service.adopt(ours, [], Upgraded::new(()), &mut reactor);
/// adopted.map_err(io::Error::from)?;
/// drop(peer);
/// while lost.get() == 0 {
///     reactor.run_once(Duration::from_millis(100))?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Closed<'a> {
    /// The ID of the connection. It refers to no connection any more.
    pub id: ConnectionId,
    /// Why the connection ended.
    pub reason: CloseReason,
    /// The code of the peer's Close frame, if a frame with a code was received.
    pub code: Option<CloseCode>,
    /// The text of the peer's Close frame; empty without one.
    pub text: &'a str,
}
