//! Information about connections and requests that were rejected.

use windlass::stream::Address;

use super::limit::Limit;

/// A connection that was rejected before it opened, or a rejected request for a page: the argument
/// of [`on_rejected`](crate::Handler::on_rejected).
///
/// ```
/// use std::{cell::Cell, io, io::Write as _, net::TcpStream, time::Duration};
/// use windlass::Reactor;
/// use windlass_server::{Connection, Handler, Message, Options, Rejected, Service};
/// # use windlass_server::http::{Accept, Reject, UpgradeRequest};
///
/// /// Counts the rejected clients.
/// struct Guard {
///     rejected: Cell<u32>,
/// }
///
/// impl Handler for Guard {
///     type Data = ();
/// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
/// #         Ok(Accept::new(()))
/// #     }
/// #     fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
///
///     fn on_rejected(&self, rejected: &Rejected<'_>) {
///         println!("{}: {:?} {}", rejected.peer, rejected.status, rejected.reason);
///         self.rejected.set(self.rejected.get() + 1);
///     }
/// }
///
/// # fn main() -> io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let options = Options::new();
/// let service = Service::new(Guard { rejected: Cell::new(0) }, &options, &mut reactor)?;
/// let listener = options.listener().tcp(([127, 0, 0, 1], 0).into())?;
/// let address = listener.local_addr()?.socket_addr().expect("it listens on TCP");
/// service.listen(listener, &mut reactor)?;
/// TcpStream::connect(address)?.write_all(b"this is not HTTP\r\n\r\n")?;
/// while service.handler().rejected.get() == 0 {
///     reactor.run_once(Duration::from_millis(100))?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Rejected<'a> {
    /// The peer's address. Behind a [listed](crate::Options::proxies) proxy it is that of the
    /// client, if it is known, behind another one that of the proxy.
    pub peer: &'a Address,
    /// The limit that was reached, if one was.
    pub limit: Option<Limit>,
    /// The status of the response; `None` if the connection was closed without one.
    pub status: Option<u16>,
    /// The reason, in the words of the response. It may contain text from the peer, but no control
    /// characters.
    pub reason: &'a str,
}
