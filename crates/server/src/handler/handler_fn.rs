//! A handler that is one function.

use core::fmt;

use super::{Connection, Handler};
use crate::{
    api::Message,
    http::{Accept, Reject, UpgradeRequest},
};

/// Makes a handler of a function that is called with each message. A [`Server`](crate::Server)
/// calls the function of each worker on that worker's thread, so it may keep state in a `Cell`.
///
/// The rest is fixed:
/// - Each upgrade is accepted at every path that [`Options`](crate::Options) upgrades, without a
///   subprotocol. The host and the origin are checked before.
/// - The connections have no data of their own: [`Handler::Data`] is `()`.
/// - The other methods are those that [`Handler`] provides. So a drain closes each connection with
///   code 1001, and pings are answered.
///
/// ```
/// use windlass_server::{Connection, Message, Options, Server, handler_fn};
///
/// # fn main() -> std::io::Result<()> {
/// let echo = |connection: &mut Connection<'_>, message: Message<'_>| {
///     // It fails only if the connection is closing, or does not read its answers.
///     _ = connection.reply_in_place(message);
/// };
/// let server = Server::new(Options::new(), move |_worker| handler_fn(echo));
/// let running = server.listen(([127, 0, 0, 1], 0).into()).start()?;
/// # let address = running.addresses()[0].socket_addr().expect("it listens on TCP");
/// # let stream = std::net::TcpStream::connect(address)?;
/// # let (mut client, _) = tungstenite::client("ws://localhost/", stream).expect("it is accepted");
/// # client.send("hello".into()).expect("it is open");
/// # assert_eq!(client.read().expect("it is answered"), "hello".into());
/// running.stop();
/// running.join()
/// # }
/// ```
pub fn handler_fn<F>(on_message: F) -> MessageFn<F>
where
    F: Fn(&mut Connection<'_>, Message<'_>) + 'static,
{
    MessageFn(on_message)
}

/// The handler that [`handler_fn`] makes.
///
/// ```
/// use windlass_server::{Connection, MessageFn, Message, Options, Server, handler_fn};
///
/// type Function = fn(&mut Connection<'_>, Message<'_>);
///
/// fn silent(_: windlass_server::Worker) -> MessageFn<Function> {
///     handler_fn(|_, _| ())
/// }
///
/// let server = Server::new(Options::new(), silent);
/// ```
#[derive(Clone, Copy)]
pub struct MessageFn<F>(F);

impl<F> Handler for MessageFn<F>
where
    F: Fn(&mut Connection<'_>, Message<'_>) + 'static,
{
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        (self.0)(connection, message);
    }
}

impl<F> fmt::Debug for MessageFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageFn").finish_non_exhaustive()
    }
}
