//! permessage-deflate: each message is compressed separately (RFC 7692 section 7).
//!
//! Memory, apart from the few words of a [`Codec`]:
//!
//! - Compression: zlib's state takes about 240 KiB plus four times the window.
//!   [`Compressor::Shared`] has one for all connections of a thread. Only [`Compressor::Dedicated`]
//!   without `no_context_takeover` has one per connection.
//! - Decompression: one state of 43 KiB serves all connections of a thread. If its peer takes
//!   context over, a connection stores the last received bytes, up to the size of the window. It
//!   stores nothing before the first compressed message. While a message is decompressed piece by
//!   piece, its connection has a decompressor of its own.
//!
//! Connections differ only in their windows. The shared decompressor therefore loads the window of
//! a connection before it reads for it. This step is skipped while the same connection continues.

mod codec;
mod codec_pool;
mod compress;
pub(crate) mod config;
mod history;
mod inflate;
mod message_stream;

pub use codec::Codec;
pub use codec_pool::{CodecBytes, CodecPool, INFLATE_INPUT_COST};
pub use config::{Agreement, Compressor, DeflateConfig};
pub(crate) use message_stream::{CompressedPart, MessageStream};
