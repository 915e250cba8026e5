//! WebSockets over any byte stream, for every async runtime: RFC 6455, and permessage-deflate of
//! RFC 7692.
//!
//! The page `docs/guide/websocket.md` of the repository leads to a first program.
//!
//! [`WebSocket`] is the one type. [`accept`](WebSocket::accept) makes a server's handshake over a
//! stream, [`client`](WebSocket::client) a client's, and
//! [`from_upgraded`](WebSocket::from_upgraded) begins after one. The stream is any [`Transport`].
//!
//! With the feature `client`, the module `client` connects by URL.
//!
//! # Receiving
//!
//! [`recv`](WebSocket::recv) lends the message from the buffer that it was read into. As a
//! `Stream`, a socket yields owned [`Message`]s. [`recv_piece`](WebSocket::recv_piece) lends long
//! messages piece by piece. Pings and the peer's Close are answered by
//! whatever receives.
//!
//! # Sending
//!
//! | call | waits | sends |
//! |---|---|---|
//! | [`send`](WebSocket::send) | until the transport has taken everything | at once |
//! | [`feed`](WebSocket::feed) | while the high watermark is exceeded | with the next `flush`, `send` or `recv` |
//! | [`Received::reply`] | never | with the next `recv`, `flush` or `send` |
//!
//! # Ends
//!
//! A clean end is `Ok(None)` of `recv`: both sides have sent Close frames. A stream that ends
//! without one is [`RecvError::Abnormal`], a cut TLS stream [`RecvError::Cut`]. Nothing is sent
//! when a socket is dropped. A peer sees then that the connection ended without a Close frame.

#![deny(unsafe_code)]

mod adapters;
#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "client")]
pub mod client;
mod clock;
mod config;
mod core;
mod entropy;
mod error;
mod handshake;
#[cfg(feature = "http2")]
pub mod http2;
mod inbox;
mod liveness;
mod message;
mod outgoing;
mod output;
mod prepared;
mod shared;
mod socket;
mod timer;
mod transport;
#[cfg(feature = "hyper")]
pub mod upgrade;
mod utf8_bytes;

pub use adapters::FuturesIo;
#[cfg(feature = "hyper")]
pub use adapters::HyperIo;
pub use config::{Config, Role};
pub use core::CloseFrame;
pub use error::{AcceptError, ClientError, RecvError, SendError, TimeLimit};
pub use handshake::Answer;
pub use message::Message;
pub use outgoing::Outgoing;
pub use prepared::Prepared;
pub use socket::{CloseError, Piece, Reader, Received, ReuniteError, WebSocket, Writer};
#[cfg(feature = "async-io")]
pub use timer::AsyncIoTimer;
#[cfg(feature = "tokio")]
pub use timer::TokioTimer;
pub use timer::{SleepTimer, Timed, Timer};
pub use transport::Transport;
pub use utf8_bytes::Utf8Bytes;
#[cfg(feature = "deflate")]
pub use windlass_ws::deflate::{Agreement, Compressor, DeflateConfig};
pub use windlass_ws::{
    CloseCode, Violation,
    handshake::{ClientRequest, HandshakeError, HeadLimits, Rejection, RequestError, Upgrade},
};
