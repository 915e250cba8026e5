//! The WebSocket protocol without I/O, for both roles: RFC 6455, and permessage-deflate of RFC
//! 7692.
//!
//! The caller does all I/O: it passes received bytes in, and gets events and bytes to send back.
//! The engine unmasks a message in the receive buffer and builds the reply around the payload in
//! the same bytes. An echo therefore copies nothing.
//!
//! `no_std` with `alloc`. Feature `std` (default) picks vector instructions at run time. Feature
//! `deflate` (default) adds permessage-deflate.

#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod close;
mod config;
#[cfg(feature = "deflate")]
pub mod deflate;
mod engine;
mod error;
mod frame;
pub mod handshake;
mod mask;
mod message;
mod scratch;
mod utf8;
mod violation;

pub use close::{Close, CloseCode};
pub use config::{Config, Limits, Role};
pub use engine::{Binary, End, Engine, Event, Outbox, Outcome, Pass, Received, Text};
pub use error::SendError;
pub use frame::{FrameHeader, HEADER_LEN_MAX, Opcode};
pub use mask::mask;
pub use message::Message;
pub use scratch::Scratch;
pub use utf8::Utf8;
pub use violation::Violation;
