//! Bytes: the methods and the traits of streams and of their halves.
//!
//! Streams have inherent methods `read`, `read_exact`, `write`, `write_all`, `write_vectored`,
//! `flush` and `shutdown`. With the feature `futures-io` they implement the traits of that crate,
//! with `tokio-io` those of tokio, and with `hyper` those of hyper. So they work with hyper, rustls
//! and tungstenite. For buffering and copying, use the extension traits of futures-lite,
//! futures-util or tokio.
//!
//! - *One waiter for each direction.* A stream is read by one task at a time, and written by one.
//! - *Cancellation.* Dropping the future of `read` or `write` loses no bytes: either the operation
//!   was done, and the future was ready, or it was not started. `read_exact` and `write_all` may
//!   have done a part.
//! - *Empty buffers.* A zero-length buffer is `Ok(0)`, without a system call.

mod poll_inline;
mod raw;
pub(crate) mod read_buffer;
mod socket;
mod traits;
mod unfilled;
#[cfg(any(feature = "tokio-io", feature = "hyper"))]
mod uninit;

pub(crate) use poll_inline::poll_inline;
pub use raw::ByteStream;
pub(crate) use raw::{
    RawStream, poll_receive, poll_send, poll_send_vectored, receive, send, send_vectored,
    try_receive, try_send,
};
pub(crate) use socket::{Socket, either};
#[cfg(any(feature = "futures-io", feature = "tokio-io", feature = "hyper"))]
pub(crate) use traits::poll_write_methods;
pub(crate) use traits::{impl_reading, impl_writing};
pub(crate) use unfilled::Unfilled;
#[cfg(feature = "hyper")]
pub(crate) use uninit::poll_read_cursor;
#[cfg(feature = "tokio-io")]
pub(crate) use uninit::poll_read_tokio;
