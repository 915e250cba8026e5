//! A WebSocket server on the Windlass reactor: handlers, topics, limits and graceful shutdown.
//!
//! An application implements [`Handler`]. A [`Server`] runs it on one or more worker threads. A
//! [`Service`] runs it on a reactor that the application already has.
//!
//! ```
//! use std::time::Duration;
//! use windlass_server::{Connection, Handler, Message, Options, Server, http::{Reject, UpgradeRequest, Accept}};
//!
//! /// Each path is a room, and a message goes to everybody else in it.
//! struct Chat;
//!
//! impl Handler for Chat {
//!     /// What a connection has of its own: its room.
//!     type Data = String;
//!
//!     fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<String>, Reject> {
//!         Ok(Accept::new(request.path().to_owned()))
//!     }
//!
//!     fn on_open(&self, connection: &mut Connection<'_>, room: &mut String) {
//!         connection.subscribe(room);
//!     }
//!
//!     fn on_message(&self, connection: &mut Connection<'_>, room: &mut String, message: Message<'_>) {
//!         connection.publish(room, &message);
//!     }
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! let running = Server::new(Options::new(), |_worker| Chat).listen("127.0.0.1:0".parse().unwrap()).start()?;
//! println!("listening on {}", running.addresses()[0]);
//! // From any thread, at any time:
//! running.sender().publish("/lobby", "hello, everybody").unwrap();
//! // The end: a Close frame for each connection, and ten seconds for all of them.
//! running.drain(Duration::from_secs(10));
//! running.join()
//! # }
//! ```
//!
//! - [`Connection`] is a connection inside its own callbacks. [`Hub`] is the service inside any
//!   handler of the reactor. [`Sender`] is the service on any other thread.
//! - [`Options`] sets limits, timeouts, compression, and what happens to messages for slow
//!   receivers ([`SlowConsumerPolicy`]).
//! - [`http`] covers everything decided before a connection becomes a WebSocket: pages, origins,
//!   rejections.
//! - [`Service::adopt`] takes over sockets whose upgrade another server has answered.
//! - [`Prepared`] is a message that is encoded once and sent many times.

#![deny(unsafe_code)]

mod api;
mod connection;
pub mod http;
mod mailbox;
mod pubsub;
mod service;
mod workers;

pub use api::{
    CloseReason, Closed, Connection, ConnectionId, ControlError, Handler, Hub, Message, Options,
    OptionsError, OutMessage, Prepared, Rejected, SendError, SlowConsumerPolicy, Stats,
};
pub use connection::Upgraded;
pub use mailbox::{Sender, SenderError};
pub use service::Service;
pub use windlass_ws::CloseCode;
pub use workers::{Drainer, RunningServer, Server, StatsHandle};
