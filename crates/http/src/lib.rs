//! HTTP/1.1 and HTTP/2 on the Windlass reactor: servers for services of hyper and tower, and for
//! axum's `Router`.
//!
//! The page `docs/guide/async.md` of the repository leads to a first program.
//!
//! The protocol is that of [hyper], the I/O that of [`windlass_task`]. This crate accepts
//! connections, finds out their protocol, limits them, and ends them gracefully.
//!
//! ```
//! use std::convert::Infallible;
//! use hyper::{Request, Response, body::Incoming, service::service_fn};
//! use windlass_http::HttpServer;
//! use windlass_task::{block_on, net::{TcpListener, TcpStream}, spawn};
//!
//! # fn main() -> std::io::Result<()> {
//! block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let address = listener.local_addr()?;
//!     let hello = service_fn(async |_: Request<Incoming>| {
//!         Ok::<_, Infallible>(Response::new("hello".to_owned()))
//!     });
//!     spawn(async move { HttpServer::new().serve(listener, hello).await }).detach();
//!
//!     let mut client = TcpStream::connect(address).await?;
//!     client.write_all(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").await?;
//!     let mut answer = [0; 15];
//!     client.read_exact(&mut answer).await?;
//!     assert_eq!(&answer, b"HTTP/1.1 200 OK");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # The parts
//!
//! | to | use |
//! |---|---|
//! | serve | [`HttpServer`], [`serve`] |
//! | serve on TCP, Unix sockets or another listener | [`HttpListener`] |
//! | serve with TLS | `TlsListener`, with the feature `tls` |
//! | use the client of hyper-util | `WindlassConnector`, with the feature `client` |
//! | know the peer of a request | [`ConnectionInfo`] |
//! | take over an upgraded connection | [`upgraded_parts`] |
//! | give WebSockets to `windlass-server` | the module `websocket`, with the feature of that name |
//! | use sockets in handlers of axum | [`local()`] |
//! | log | [`HttpServer::on_event`] |
//!
//! # Rules for all of it
//!
//! - *Threads.* A server, its services and its connections stay on the thread of their executor.
//!   Nothing need be `Send`. For several threads, run a server on each
//!   ([`Workers`](windlass_task::Workers)).
//! - *Bounds.* The number of connections, the size of a request's head, and the times of
//!   handshakes, heads, idle connections and blocked output are bounded by default: [`HttpServer`].
//!   Bodies are not, and neither is the time of a request: use a middleware.
//! - *Panics.* A panic of a service ends its connection, or with HTTP/2 its stream alone. The rest
//!   goes on.

#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod accept;
#[cfg(feature = "client")]
mod client;
mod connection;
mod event;
mod graceful_shutdown;
mod http1;
mod http2;
mod listener;
mod local;
mod prefixed;
mod server;
mod service;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "websocket")]
pub mod websocket;
mod write_timeout;

#[cfg(feature = "client")]
pub use client::{ClientStream, WindlassConnector};
pub use event::ServeEvent;
pub use http1::{UpgradedParts, upgraded_parts};
pub use listener::{AcceptedConnection, Handshaken, HttpListener, HttpVersion};
pub use local::local;
pub use server::{HttpServer, serve};
pub use service::{ConnectionInfo, FromHyper, FromTower, IntoHttpService, TowerService};
#[cfg(feature = "tls")]
pub use tls::{TlsHttpStream, TlsListener};
