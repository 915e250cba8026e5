//! The WebSocket protocol without I/O, for both roles: RFC 6455, and permessage-deflate of RFC
//! 7692.
//!
//! The page `docs/guide/choosing.md` of the repository says when a crate above this one fits
//! better, and `examples/examples/ws_mio.rs` is a first program.
//!
//! The caller does all I/O: it passes received bytes in, and gets events and bytes to send back.
//! The engine unmasks a message in the receive buffer and builds the reply around the payload in
//! the same bytes. An echo therefore copies nothing.
//!
//! # The parts
//!
//! ```text
//!                socket, owned by the caller
//!       bytes received |            ^ bytes to send
//!                      v            |
//!   +-----------------------------------------------------+
//!   | handshake, once per connection                      |
//!   |   server: HeadReader -> Request -> Upgrade::accept  |
//!   |   client: ClientRequest::write -> check(Response)   |
//!   +-----------------------------------------------------+
//!                      |  Agreement on permessage-deflate
//!                      v
//!   +-----------------------------------------------------+
//!   | Engine, one per connection, 48 bytes                |
//!   |   Engine::process(received, scratch) -> Pass        |
//!   |   Pass::next() -> EngineEvent                       |
//!   |     Text, Binary: reply, split, detach              |
//!   |     Ping, Pong, Close, Violation                    |
//!   |   Outbox: send, ping, pong, close                   |
//!   |   Pass::finish() -> Outcome, what to send           |
//!   +-----------------------------------------------------+
//!          |                               |
//!          v                               v
//!   Scratch, one per thread        Config, one per endpoint
//!   output, spare buffers,         Role, EngineLimits
//!   compressors
//! ```
//!
//! The example at [`Engine`] echoes a message. The one at [`handshake`] accepts a connection.
//!
//! # Errors
//!
//! The caller's mistakes and the peer's are different types:
//!
//! | type | meaning |
//! |---|---|
//! | [`FrameSendError`] | this side cannot send the frame; the connection goes on |
//! | [`Violation`] | the peer broke the protocol or a limit; the connection has failed |
//! | [`handshake::Rejection`] | a server rejects a request; it has an HTTP status |
//! | [`handshake::AcceptError`] | the server's own answer to an upgrade is invalid |
//! | [`handshake::RequestError`] | the client's own request is invalid |
//! | [`handshake::HandshakeError`] | the server's response does not accept the client's request |
//!
//! # Features
//!
//! The crate is `no_std` with `alloc`. Feature `std` (default) picks vector instructions at run
//! time. Feature `deflate` (default) adds permessage-deflate.

#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(feature = "deflate")]
pub mod deflate;
mod engine;
pub mod handshake;
mod protocol;

pub use engine::{
    Binary, Config, End, Engine, EngineEvent, EngineLimits, FrameSendError, MessageBuffer,
    MessageRef, Outbox, Outcome, Pass, Piece, ReceivedMessage, Role, Scratch, Text, WholeMessage,
};
pub use protocol::{
    close::{Close, CloseCode},
    frame::{FrameHeader, HEADER_LEN_MAX, Opcode},
    mask::mask,
    utf8::Utf8Validator,
    violation::Violation,
};
