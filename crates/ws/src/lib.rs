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

#[cfg(feature = "deflate")]
pub mod deflate;
mod engine;
pub mod handshake;
mod protocol;

pub use engine::{
    Binary, Config, End, Engine, EngineEvent, EngineLimits, FrameSendError, MessageRef, Outbox,
    Outcome, Pass, ReceivedMessage, Role, Scratch, Text,
};
pub use protocol::{
    close::{Close, CloseCode},
    frame::{FrameHeader, HEADER_LEN_MAX, Opcode},
    mask::mask,
    utf8::Utf8Validator,
    violation::Violation,
};
