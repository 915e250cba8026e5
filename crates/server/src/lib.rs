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

mod adopt;
mod available_memory;
mod backlog;
mod closed;
mod codec;
mod conn_handler;
mod conn_table;
mod connection;
mod deliver;
mod drain;
mod error;
mod handler;
mod handshake;
pub mod http;
mod hub;
mod id;
mod mailbox;
mod memory_budget;
mod message;
mod options;
mod other_workers;
mod prepared;
mod publish_batch;
mod rejected;
mod sender;
mod server;
mod service;
mod service_state;
mod stats;
mod timeouts;
mod topics;

pub use adopt::Upgraded;
pub use closed::{CloseReason, Closed};
pub use connection::Connection;
pub use error::{ControlError, SendError};
pub use handler::Handler;
pub use hub::Hub;
pub use id::ConnectionId;
pub use message::{Message, OutMessage};
pub use options::{Options, OptionsError, SlowConsumerPolicy};
pub use prepared::Prepared;
pub use rejected::Rejected;
pub use sender::{Sender, SenderError};
pub use server::{Drainer, RunningServer, Server, StatsHandle};
pub use service::Service;
pub use stats::Stats;
pub use windlass_ws::CloseCode;
