//! The interface of [tokio-tungstenite] 0.30 on the WebSocket engine of `windlass-ws`.
//!
//! A program changes over in its `Cargo.toml` alone:
//!
//! ```toml
//! tokio-tungstenite = { package = "windlass-tokio-tungstenite", version = "0.1" }
//! ```
//!
//! Types, functions and features have their names and their meaning there. The page
//! `docs/tungstenite-interface.md` of the repository lists where the behaviour differs, and why.
//!
//! ```no_run
//! use futures_util::{SinkExt as _, StreamExt as _};
//! use windlass_tokio_tungstenite::{accept_async, tungstenite::Error};
//!
//! async fn echo(stream: tokio::net::TcpStream) -> Result<(), Error> {
//!     let mut socket = accept_async(stream).await?;
//!     while let Some(message) = socket.next().await {
//!         let message = message?;
//!         if message.is_text() || message.is_binary() {
//!             socket.send(message).await?;
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! [tokio-tungstenite]: https://docs.rs/tokio-tungstenite/0.30.0

#![deny(unsafe_code)]

pub use windlass_tungstenite as tungstenite;

mod blocking;
#[cfg(feature = "connect")]
mod connect;
#[cfg(feature = "handshake")]
mod handshake;
mod socket;
#[cfg(feature = "stream")]
mod stream;
#[cfg(any(feature = "__rustls-tls", feature = "connect"))]
mod tls;

#[cfg(all(feature = "__rustls-tls", feature = "connect"))]
pub use connect::connect_async_tls_with_config;
#[cfg(feature = "connect")]
pub use connect::{connect_async, connect_async_with_config};
#[cfg(feature = "handshake")]
pub use handshake::{
    accept_async, accept_async_with_config, accept_hdr_async, accept_hdr_async_with_config,
    client_async, client_async_with_config,
};
pub use socket::WebSocketStream;
#[cfg(feature = "stream")]
pub use stream::MaybeTlsStream;
#[cfg(any(feature = "__rustls-tls", feature = "connect"))]
pub use tls::Connector;
#[cfg(feature = "__rustls-tls")]
pub use tls::{client_async_tls, client_async_tls_with_config};
