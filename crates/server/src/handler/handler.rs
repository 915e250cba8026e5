//! The trait that an application implements.

use windlass_ws::CloseCode;

use super::{
    connection::Connection,
    hub::Hub,
    pending_upgrade::{UpgradeDecision, UpgradeTicket},
};
use crate::{
    api::{Closed, Message, Rejected},
    http::{Accept, Reject, UpgradeRequest},
};

/// Handles the connections of a service and their messages. Each reactor has one handler, shared by
/// all its connections. State of a single connection is its [`Data`](Self::Data), stored in the
/// connection itself.
///
/// The event loop calls the callbacks one at a time and never nests them. Any callback that a call
/// causes, even for the same connection, runs after the current callback has returned. For each
/// connection the order is:
///
/// 1. [`on_upgrade`](Self::on_upgrade), then [`on_open`](Self::on_open).
/// 2. Messages, pings and pongs, in the order of arrival, and at most one
///    [`on_drain`](Self::on_drain).
/// 3. [`on_close`](Self::on_close), once and last.
///
/// After [`Connection::close`] only `on_close` is called.
///
/// A callback that panics costs its own connection: the connection is reset, its data is dropped,
/// and `on_close` is not called for it. The panic unwinds out of
/// [`Reactor::run_once`](windlass::Reactor::run_once). The service serves the other connections
/// when the loop runs again.
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
///     fn on_message(
///         &self,
///         connection: &mut Connection<'_>,
///         count: &mut u32,
///         message: Message<'_>,
///     ) {
///         *count += 1;
///         let text = message.as_str().unwrap_or("bytes");
///         // It fails only if the connection is closing.
///         let _ = connection.send(format!("{count}: {text}"));
///     }
///
///     fn on_close(&self, _: &mut Hub<'_>, count: &mut u32, closed: &Closed<'_>) {
///         println!("connection {} has sent {count} messages: {}", closed.id, closed.reason);
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::new(Options::new(), |_worker| Numbers);
/// let server = server.listen("127.0.0.1:0".parse()?).start()?;
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
/// # fn connect(
/// #     server: &windlass_server::RunningServer,
/// #     path: &str,
/// # ) -> tungstenite::WebSocket<std::net::TcpStream> {
/// #     let address = server.addresses()[0].socket_addr().expect("it listens on TCP");
/// #     let stream = std::net::TcpStream::connect(address).expect("it listens");
/// #     let url = format!("ws://{address}{path}");
/// #     tungstenite::client(url, stream).expect("it is a WebSocket server").0
/// # }
/// ```
pub trait Handler: Sized + 'static {
    /// The application's state for each connection. It is stored in the connection and needs no
    /// box.
    type Data: 'static;

    /// The service was created. Called once, in the first turn, before the reactor waits for the
    /// first time. Timers that send are started here: [`Hub::every`], [`Hub::after`].
    fn on_start(&self, hub: &mut Hub<'_>) {
        let _ = hub;
    }

    /// A client asks to open a connection. The request is well-formed, its path accepts upgrades,
    /// and its host and origin are allowed. The response is sent when this callback has returned.
    ///
    /// # Errors
    /// A returned [`Reject`] is sent to the client, and the connection is closed.
    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<Self::Data>, Reject>;

    /// As [`on_upgrade`](Self::on_upgrade), for handlers that ask somebody else first: a database,
    /// another server, a task. Default: decides now by [`on_upgrade`](Self::on_upgrade). A handler
    /// that implements this gets no call of that one.
    ///
    /// A client that ends its connection meanwhile is reported to the
    /// [`PendingUpgrade`](crate::PendingUpgrade). While a decision is pending the connection counts
    /// as one in its handshake, and further bytes of the client wait.
    ///
    /// ```
    /// use std::{sync::mpsc, thread};
    /// use windlass_server::{
    ///     Connection, Handler, Message, Options, PendingUpgrade, Server, UpgradeDecision,
    ///     UpgradeTicket,
    ///     http::{Accept, Reject, UpgradeRequest},
    /// };
    ///
    /// /// A token, and the upgrade that waits for its check.
    /// type Question = (String, PendingUpgrade<String>);
    ///
    /// /// Lets a thread check the tokens of clients.
    /// struct Members {
    ///     checker: mpsc::Sender<Question>,
    /// }
    ///
    /// impl Handler for Members {
    ///     /// The name of the member.
    ///     type Data = String;
    ///
    ///     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<String>, Reject> {
    ///         unreachable!("`decide_upgrade` is called in its place")
    ///     }
    ///
    ///     fn decide_upgrade(
    ///         &self,
    ///         request: &UpgradeRequest<'_>,
    ///         ticket: UpgradeTicket<'_, String>,
    ///     ) -> Result<UpgradeDecision<String>, Reject> {
    ///         let token = request.query_value("token").ok_or_else(|| Reject::status(401))?;
    ///         let question = (token.into_owned(), ticket.defer()?);
    ///         self.checker.send(question).map_err(|_| Reject::status(503))?;
    ///         Ok(UpgradeDecision::Later)
    ///     }
    ///
    ///     fn on_message(
    ///         &self,
    ///         connection: &mut Connection<'_>,
    ///         name: &mut String,
    ///         _: Message<'_>,
    ///     ) {
    ///         let _ = connection.send(format!("hello, {name}"));
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (checker, questions) = mpsc::channel::<Question>();
    /// thread::spawn(move || {
    ///     for (token, pending) in questions {
    ///         // This may take its time.
    ///         match token.strip_prefix("member-") {
    ///             Some(name) => pending.accept(Accept::new(name.to_owned())),
    ///             None => pending.reject(Reject::status(403)),
    ///         }
    ///     }
    /// });
    /// let make = move |_worker| Members { checker: checker.clone() };
    /// let server = Server::new(Options::new(), make).listen("127.0.0.1:0".parse()?).start()?;
    /// # let address = server.addresses()[0].socket_addr().expect("it listens on TCP");
    /// # let connect = |token: &str| {
    /// #     let stream = std::net::TcpStream::connect(address).expect("it listens");
    /// #     tungstenite::client(format!("ws://{address}/?token={token}"), stream)
    /// # };
    /// # let (mut client, _) = connect("member-Ada")?;
    /// # client.send("hello".into())?;
    /// # assert_eq!(client.read()?, "hello, Ada".into());
    /// # assert!(connect("stranger").is_err());
    /// server.stop();
    /// server.join()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`on_upgrade`](Self::on_upgrade).
    fn decide_upgrade(
        &self,
        request: &UpgradeRequest<'_>,
        ticket: UpgradeTicket<'_, Self::Data>,
    ) -> Result<UpgradeDecision<Self::Data>, Reject> {
        let _ = ticket;
        self.on_upgrade(request).map(UpgradeDecision::Accept)
    }

    /// A connection or a request was rejected before a WebSocket was open. Possible causes:
    /// [`on_upgrade`](Self::on_upgrade) or an earlier check rejected the upgrade, the request was
    /// malformed or late, there is no page for it, the TLS handshake failed, or its address has
    /// reached its connection limit. This callback is for logging: it cannot change the outcome.
    fn on_rejected(&self, rejected: &Rejected<'_>) {
        let _ = rejected;
    }

    /// The connection is open. Messages sent here leave together with the handshake response.
    fn on_open(&self, connection: &mut Connection<'_>, data: &mut Self::Data) {
        let _ = (connection, data);
    }

    /// A message was received.
    fn on_message(
        &self,
        connection: &mut Connection<'_>,
        data: &mut Self::Data,
        message: Message<'_>,
    );

    /// A ping was received and has been answered.
    fn on_ping(&self, connection: &mut Connection<'_>, data: &mut Self::Data, payload: &[u8]) {
        let _ = (connection, data, payload);
    }

    /// A pong was received. The server's own pings, sent to idle peers, have no payload.
    fn on_pong(&self, connection: &mut Connection<'_>, data: &mut Self::Data, payload: &[u8]) {
        let _ = (connection, data, payload);
    }

    /// The service is draining: see [`Service::drain`](crate::Service::drain). A connection left
    /// open here may stay until the drain's deadline. Default: sends a Close frame with code 1001
    /// (going away).
    fn on_drain(&self, connection: &mut Connection<'_>, data: &mut Self::Data) {
        let _ = data;
        // This fails only when the connection is already closing, which is the intended result.
        let _ = connection.close(CloseCode::GOING_AWAY, "");
    }

    /// The connection is closed. Its data is dropped after this callback.
    fn on_close(&self, hub: &mut Hub<'_>, data: &mut Self::Data, closed: &Closed<'_>) {
        let _ = (hub, data, closed);
    }
}
