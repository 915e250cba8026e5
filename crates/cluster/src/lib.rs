//! Topics across machines for [`windlass-server`](windlass_server), over
//! [NATS](https://nats.io).
//!
//! The page `docs/guide/operations.md` of the repository leads to a first cluster.
//!
//! A [`NatsBus`] is a [`Bus`](windlass_server::bus::Bus): with it, a server is a node of a cluster.
//! What is published to a topic at one node reaches the receivers of all nodes.
//!
//! ```no_run
//! use windlass_cluster::NatsBus;
//! use windlass_server::{Options, Server, bus::Cluster};
//! # use windlass_server::{Connection, Handler, Message};
//! # use windlass_server::http::{Accept, Reject, UpgradeRequest};
//! # struct Chat;
//! # impl Handler for Chat {
//! #     type Data = ();
//! #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
//! #         Ok(Accept::new(()))
//! #     }
//! #     fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
//! # }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let bus = NatsBus::builder(["nats://127.0.0.1:4222"])
//!     .name("chat-1")
//!     .on_event(|event| eprintln!("cluster: {event}"))
//!     .build()?;
//! let running = Server::new(Options::new(), |_worker| Chat)
//!     .cluster(Cluster::new(bus).prefix("chat")?)
//!     .listen(([127, 0, 0, 1], 9001).into())
//!     .start()?;
//! running.join()?;
//! # Ok(())
//! # }
//! ```
//!
//! # The guarantees
//!
//! Those of the module [`bus`](windlass_server::bus), and these:
//!
//! 1. Publications wait in one queue for the connection, which is bounded in messages and bytes.
//!    When it is full, the oldest ones are dropped and counted (`send_lost`).
//! 2. Nothing is sent twice. What was given to a connection that is lost is counted as lost, though
//!    the server may have got a part of it. What has waited in the queue is sent when there is a
//!    connection again.
//! 3. A lost connection is noticed when it is closed, or when the server neither answers nor takes
//!    what is sent within [`answer_timeout`](NatsBusBuilder::answer_timeout). It is asked every
//!    [`ping_interval`](NatsBusBuilder::ping_interval). The connection is made again until the
//!    server ends, with growing delays. The subscriptions are made again before the state is
//!    [`Connected`](windlass_server::bus::BusState::Connected).
//! 4. A payload that is longer than the server's `max_payload` is refused
//!    ([`TooLarge`](windlass_server::bus::BusError::TooLarge)). If a server with a smaller one
//!    takes over, what waits and is too long is dropped and counted (`send_lost`).
//! 5. What arrives goes to the workers at once, whose queues are bounded. What they have no room
//!    for is counted (`receive_full`). No worker, and no other node, waits for a slow one.
//! 6. The end of the server waits until what is queued has been sent, for up to a second, if it is
//!    connected.
//!
//! # Threads
//!
//! The bus has one thread, `windlass-cluster`, with a tokio runtime. Names are looked up on further
//! threads. They inherit the signal mask of the thread that starts the server.
//!
//! # Cryptography
//!
//! TLS is that of [`windlass_tls`]: rustls with ring, or with aws-lc-rs if that is chosen there.
//! Keys of users sign by ring.
//!
//! Any option of TLS requires it, also for addresses with `nats://`. Without one the server
//! decides, and credentials may be sent in plain text.
//!
//! # A hostile server
//!
//! What a server sends is bounded: a line to 256 KiB, and a message to 64 MiB. A longer one ends
//! the connection. The texts of events and errors have no control characters of the server, and at
//! most 256 characters of it: they have passed [`printable`](windlass_server::printable).
//!
//! A server that floods the node does not keep it from sending. One that does not read, or does not
//! answer, is lost after [`answer_timeout`](NatsBusBuilder::answer_timeout), whatever it sends.

#![deny(unsafe_code)]

mod address;
mod builder;
mod bus;
mod connection;
mod error;
mod event;
mod identity;
mod link;
mod probe;
mod protocol;
mod queue;
mod subjects;
mod thread;

pub use builder::{NatsBusBuilder, QUEUE_BYTES_DEFAULT, QUEUE_MESSAGES_DEFAULT};
pub use bus::NatsBus;
pub use error::NatsConfigError;
pub use event::NatsEvent;
