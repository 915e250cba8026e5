//! The interface of [tungstenite] 0.30 on the WebSocket engine of `windlass-ws`.
//!
//! A program changes over in its `Cargo.toml` alone:
//!
//! ```toml
//! tungstenite = { package = "windlass-tungstenite", version = "0.1" }
//! ```
//!
//! Types, functions, traits and features have their names and their meaning there. The page
//! `docs/tungstenite-interface.md` of the repository lists where the behaviour differs, and why.
//!
//! ```
//! use windlass_tungstenite::{Message, WebSocket, protocol::Role};
//! # fn main() -> Result<(), windlass_tungstenite::Error> {
//! # let stream = std::io::Cursor::new(b"\x81\x82\0\0\0\0hi".to_vec());
//!
//! // Any stream that is `Read` and `Write`, after a handshake.
//! let mut socket = WebSocket::from_raw_socket(stream, Role::Server, None);
//! assert_eq!(socket.read()?, Message::text("hi"));
//! # Ok(())
//! # }
//! ```
//!
//! [tungstenite]: https://docs.rs/tungstenite/0.30.0

#![deny(unsafe_code)]
#![allow(clippy::result_large_err, reason = "the sizes of the errors are part of the interface")]

#[cfg(feature = "handshake")]
pub use http;

pub mod buffer;
#[cfg(feature = "handshake")]
pub mod client;
pub mod error;
#[cfg(feature = "handshake")]
pub mod handshake;
pub mod protocol;
#[cfg(feature = "handshake")]
mod server;
mod shared;
pub mod stream;
#[cfg(all(feature = "__rustls-tls", feature = "handshake"))]
mod tls;
pub mod util;

pub use bytes::Bytes;

#[cfg(feature = "handshake")]
pub use crate::{
    client::{ClientRequestBuilder, client, connect},
    handshake::{HandshakeError, client::ClientHandshake, server::ServerHandshake},
    server::{accept, accept_hdr, accept_hdr_with_config, accept_with_config},
};
pub use crate::{
    error::{Error, Result},
    protocol::{Message, WebSocket, frame::Utf8Bytes},
};
/// For `windlass-tokio-tungstenite`.
#[cfg(all(feature = "__rustls-tls", feature = "handshake"))]
#[doc(hidden)]
pub use tls::default_config as __default_tls_config;
#[cfg(all(feature = "__rustls-tls", feature = "handshake"))]
pub use tls::{Connector, client_tls, client_tls_with_config};
#[cfg(feature = "deflate")]
pub use windlass_ws::deflate::{Agreement, Compressor, DeflateConfig};
