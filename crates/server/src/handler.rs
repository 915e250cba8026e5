//! What an application writes.

use crate::{
    Closed, Connection, Hub, Message, Refused,
    http::{Accept, Reject, UpgradeRequest},
};
use windlass_ws::CloseCode;

/// What becomes of connections and their messages. There is one for each reactor, shared by all its
/// connections; what belongs to one connection is its [`Data`](Self::Data), which lies in the
/// connection itself.
///
/// Every callback is called by the loop, one at a time, and never inside another one: what a call
/// causes, be it for the connection itself, comes after the callback that made the call has
/// returned. The order of a connection's life is [`on_upgrade`](Self::on_upgrade),
/// [`on_open`](Self::on_open), then messages, pings and pongs in the order in which they came, at
/// most one [`on_drain`](Self::on_drain), and [`on_close`](Self::on_close), once and last. After
/// [`Connection::close`] nothing but `on_close` comes.
///
/// A callback that panics costs its own connection: that is reset, its data is dropped, and
/// `on_close` is not called for it. The panic unwinds out of
/// [`Reactor::run_once`](windlass::Reactor::run_once), and the service serves the others when the
/// loop runs again.
///
/// ```
/// use windlass_server::{
///     Closed, Connection, Handler, Hub, Message, Options, Server,
///     http::{Reject, UpgradeRequest, Accept},
/// };
///
/// /// Numbers the messages of each connection.
/// struct Numbers;
///
/// impl Handler for Numbers {
///     /// How many messages a connection has sent.
///     type Data = u32;
///
///     fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<u32>, Reject> {
///         if request.path() != "/numbers" {
///             return Err(Reject::status(404));
///         }
///         Ok(Accept::new(0))
///     }
///
///     fn on_message(&self, connection: &mut Connection<'_>, count: &mut u32, message: Message<'_>) {
///         *count += 1;
///         let text = message.as_str().unwrap_or("bytes");
///         // It fails when the connection is closing: then nobody waits for the answer.
///         let _ = connection.send(format!("{count}: {text}"));
///     }
///
///     fn on_close(&self, _: &mut Hub<'_>, count: &mut u32, closed: &Closed<'_>) {
///         println!("connection {} has sent {count} messages: {}", closed.id, closed.reason);
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::new(Options::new(), |_worker| Numbers).listen("127.0.0.1:0".parse()?).start()?;
/// # let mut client = connect(&server, "/numbers");
/// # for (message, answer) in [("one", "1: one"), ("and another", "2: and another")] {
/// #     client.send(message.into())?;
/// #     assert_eq!(client.read()?, answer.into());
/// # }
/// # let stream = std::net::TcpStream::connect(server.addresses()[0].socket_addr().unwrap())?;
/// # assert!(tungstenite::client("ws://localhost/letters", stream).is_err());
/// server.stop();
/// server.join()?;
/// # Ok(())
/// # }
/// # fn connect(server: &windlass_server::Running, path: &str) -> tungstenite::WebSocket<std::net::TcpStream> {
/// #     let address = server.addresses()[0].socket_addr().expect("it listens on TCP");
/// #     let stream = std::net::TcpStream::connect(address).expect("it listens");
/// #     tungstenite::client(format!("ws://{address}{path}"), stream).expect("it is a WebSocket server").0
/// # }
/// ```
pub trait Handler: Sized + 'static {
    /// What the application keeps for each connection. It needs no box: it lies in the connection.
    type Data: 'static;

    /// Somebody wants to open a connection: the request is well-formed, its path takes upgrades,
    /// and its host and origin are allowed. The answer is sent when this has returned.
    ///
    /// # Errors
    /// With a [`Reject`] the client is sent that instead, and the connection is closed.
    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<Self::Data>, Reject>;

    /// A connection did not come to be: its upgrade was refused, by
    /// [`on_upgrade`](Self::on_upgrade) or before it came there, its request was malformed or did
    /// not come in time, or there are as many connections from its address as may be. For a log:
    /// nothing can be done about it here.
    fn on_refused(&self, refused: &Refused<'_>) {
        let _ = refused;
    }

    /// The connection is open. What is sent here goes out with the answer to the handshake.
    fn on_open(&self, connection: &mut Connection<'_>, data: &mut Self::Data) {
        let _ = (connection, data);
    }

    /// A message has come.
    fn on_message(
        &self,
        connection: &mut Connection<'_>,
        data: &mut Self::Data,
        message: Message<'_>,
    );

    /// A ping has come, and has been answered.
    fn on_ping(&self, connection: &mut Connection<'_>, data: &mut Self::Data, payload: &[u8]) {
        let _ = (connection, data, payload);
    }

    /// A pong has come. The server's own pings, for silent peers, have no payload.
    fn on_pong(&self, connection: &mut Connection<'_>, data: &mut Self::Data, payload: &[u8]) {
        let _ = (connection, data, payload);
    }

    /// The service is to end: see [`Service::drain`](crate::Service::drain). Who leaves the
    /// connection open has until the drain's deadline. Default: a Close frame with code 1001, going
    /// away.
    fn on_drain(&self, connection: &mut Connection<'_>, data: &mut Self::Data) {
        let _ = data;
        // It fails when the connection is closing, which is what is wanted.
        let _ = connection.close(CloseCode::GOING_AWAY, "");
    }

    /// The connection is no more. Its data is dropped after this.
    fn on_close(&self, hub: &mut Hub<'_>, data: &mut Self::Data, closed: &Closed<'_>) {
        let _ = (hub, data, closed);
    }
}
