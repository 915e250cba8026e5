//! A WebSocket server on the Windlass reactor: handlers, topics, limits and graceful shutdown.
//!
//! The page `docs/guide/websocket.md` of the repository leads to a first program.
//!
//! An application implements [`Handler`]. A [`Server`] runs it on one or more worker threads. A
//! [`Service`] runs it on a reactor that the application already has.
//!
//! ```text
//!   Server::start                    any thread
//!        |                             |
//!        |  one thread per worker      |  Sender, Drainer, StatsHandle
//!        v                             v
//!   +---------------- worker ------- mailbox ---------------+
//!   |                                                       |
//!   |  Reactor --> Service --> connection --> your Handler  |   <--> mailboxes of
//!   |                 |                       |             |        the other workers
//!   |               topics     Connection  <--+             |
//!   |               limits     Hub                          |
//!   +-------------------------------------------------------+
//! ```
//!
//! ```
//! use std::time::Duration;
//! use windlass_server::{
//!     CloseCode, Connection, Handler, Message, Options, Server,
//!     http::{Accept, Reject, UpgradeRequest},
//! };
//!
//! /// Each path is a room, and a message goes to everybody else in it.
//! struct Chat;
//!
//! impl Handler for Chat {
//!     /// The room of a connection.
//!     type Data = String;
//!
//!     fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<String>, Reject> {
//!         Ok(Accept::new(request.path().to_owned()))
//!     }
//!
//!     fn on_open(&self, connection: &mut Connection<'_>, room: &mut String) {
//!         if connection.subscribe(room).is_err() {
//!             _ = connection.close(CloseCode::POLICY_VIOLATION, "the path is too long");
//!         }
//!     }
//!
//!     fn on_message(
//!         &self,
//!         connection: &mut Connection<'_>,
//!         room: &mut String,
//!         message: Message<'_>,
//!     ) {
//!         connection.publish_to_others(room, &message);
//!     }
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! let server = Server::new(Options::new(), |_worker| Chat).workers(2);
//! let running = server.listen(([127, 0, 0, 1], 0).into()).start()?;
//! println!("listening on {}", running.addresses()[0]);
//! // From any thread, at any time:
//! running.sender().publish("/lobby", "hello, everybody").unwrap();
//! // Graceful shutdown: each connection gets a Close frame, and ten seconds to answer it.
//! running.drain(Duration::from_secs(10));
//! running.join()
//! # }
//! ```
//!
//! | to | use |
//! |---|---|
//! | handle connections and messages | [`Handler`], [`Connection`], [`Message`] |
//! | answer messages with one function | [`handler_fn`] |
//! | send to a connection by its ID, or to a topic, on the reactor's thread | [`Hub`] |
//! | give a topic one order on all workers | [`Options::ordered_topics`] |
//! | do that periodically | [`Handler::on_start`], [`Hub::every`] |
//! | do the same on another thread | [`Sender`] |
//! | encode a message once and send it many times | [`Prepared`] |
//! | set limits, timeouts and compression | [`Options`] |
//! | ask a database, a thread or a task before a connection opens | [`Handler::decide_upgrade`] |
//! | limit rates of connections, requests and messages | [`RateLimits`] |
//! | decide about slow receivers | [`SlowConsumerPolicy`] |
//! | serve pages, check origins and hosts, reject requests | [`http`] |
//! | take over sockets whose upgrade another server has answered | [`Service::adopt`] |
//! | shut down gracefully | [`RunningServer::drain`], [`Service::drain`], [`Drainer`] |
//! | count what happens | [`ServerStats`], [`StatsHandle`] |
//! | list connections and topics, and disconnect clients | [`Inspector`] |
//! | metrics, health and status over HTTP | [`Admin`] |
//! | topics across machines | [`Server::cluster`], [`bus`] |

#![deny(unsafe_code)]

mod admin;
mod api;
pub mod bus;
mod connection;
mod handler;
pub mod http;
mod mailbox;
mod metrics;
mod pubsub;
mod service;
mod shared;
mod state;
mod table;
mod workers;

pub use admin::{Admin, AdminDisconnect, AdminToken, RunningAdmin};
pub use api::{
    CloseReason, Closed, ConnectionId, ConnectionOrder, ConnectionQuery, ControlError,
    DisconnectTarget, Disconnected, Inspected, InvalidConnectionId, Limit, ListedConnection,
    ListedTopic, Message, Options, OptionsError, OutMessage, Prepared, Rate, RateLimits, Rejected,
    SendError, ServerStats, SlowConsumerPolicy, StartError, SubscribeError, printable,
};
pub use connection::Upgraded;
pub use handler::{
    Connection, Handler, Hub, MessageFn, PendingUpgrade, UpgradeDecision, UpgradeTicket, handler_fn,
};
pub use mailbox::{Inspector, Sender, SenderError, StatsHandle};
pub use service::Service;
/// From [`windlass`]: what [`Server::on_panic`], [`RunningServer::addresses`], [`Server::backend`],
/// [`RunningServer::ring_error`]
/// and [`Server::start`] use.
pub use windlass::{
    Backend, RingError,
    stream::{Address, ListenError, Worker},
};
/// From [`windlass_flow`]: what [`Options::sender_bounds`] uses.
pub use windlass_flow::Bounds;
/// From [`windlass_ws`]: what [`Options`] and [`Connection::close`] use.
pub use windlass_ws::{CloseCode, EngineLimits, deflate::DeflateConfig, handshake::HeadLimits};
pub use workers::{Drainer, Reconfigurer, RunningServer, Server};
