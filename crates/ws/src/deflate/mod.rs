//! permessage-deflate: messages are compressed one by one (RFC 7692 section 7).
//!
//! What it costs to keep, beside the few words of a [`Codec`]:
//!
//! - Compressing: zlib's state, some 240 KiB and four times the window. [`Compressor::Shared`] has
//!   one for all connections of a thread; only [`Compressor::Dedicated`] without
//!   `no_context_takeover` has one for each.
//! - Decompressing: one state of 43 KiB for all connections of a thread. A connection whose peer
//!   takes its context over keeps what it has received, up to the window's size, and nothing before
//!   the first compressed message.
//!
//! The window is what differs between connections, so the shared decompressor is handed the window
//! of the one whose turn it is; as long as that is the same one, there is nothing to hand over.

mod codec;
mod compress;
mod config;
mod history;
mod inflate;
pub(crate) mod negotiate;
mod shared;

pub use codec::Codec;
pub use config::{Agreement, Compressor, DeflateConfig};
pub use shared::{CodecBytes, INFLATE_INPUT_COST, Shared};
