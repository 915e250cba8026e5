//! The opening handshake: an HTTP/1.1 request, and a response that switches protocols (RFC 6455
//! section 4).
//!
//! Everything works on byte slices. A server reads a [`Request`], either at once or through a
//! [`HeadReader`] as the bytes arrive. It asks the request for its [`Upgrade`], and writes the
//! answer of [`Upgrade::accept`] or of a [`Rejection`]. A client writes a [`ClientRequest`] and
//! checks the [`Response`] with it.
//!
//! Heads are parsed strictly. If two programs read a head differently, a request can be smuggled
//! past one of them (RFC 9112 section 11.2). The rules:
//! - Lines end in CR LF only, and folded lines are rejected.
//! - A space after a header name is rejected.
//! - A header that matters to the handshake may occur only once.
//! - Content-Length and Transfer-Encoding exclude each other.
//!
//! ```
//! use windlass_ws::handshake::{AcceptOptions, HeadLimits, Request};
//!
//! let received = b"GET /chat HTTP/1.1\r\nHost: example.com\r\n\
//!     Upgrade: websocket\r\nConnection: Upgrade\r\n\
//!     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n\x81";
//! let mut answer = Vec::new();
//! match Request::parse(received, &HeadLimits::DEFAULT) {
//!     Ok(None) => {} // More bytes are needed.
//!     Ok(Some((request, len))) => {
//!         assert_eq!(request.path(), "/chat");
//!         assert_eq!(received[len..], [0x81]); // The first byte of the first frame.
//!         match request.upgrade() {
//!             Ok(upgrade) => { upgrade.accept(&AcceptOptions::DEFAULT, &mut answer)?; }
//!             Err(rejection) => rejection.write(&mut answer),
//!         }
//!     }
//!     Err(rejection) => rejection.write(&mut answer),
//! }
//! assert!(answer.starts_with(b"HTTP/1.1 101 Switching Protocols\r\n"));
//! # Ok::<(), windlass_ws::handshake::AcceptError>(())
//! ```

mod answer;
mod client;
mod extensions;
mod fast_path;
mod fields;
mod head;
mod head_reader;
mod key;
#[cfg(feature = "deflate")]
mod negotiate;
mod rejection;
mod request;
mod response;
mod syntax;
mod target;
mod upgrade;

pub use answer::accept_value;
#[cfg(feature = "deflate")]
pub use answer::{answer_extensions, check_extensions, offer_extensions};
pub use client::{ClientRequest, HandshakeError, Negotiated, RequestError};
pub use fields::{Header, Headers};
pub use head::HeadLimits;
pub use head_reader::HeadReader;
pub use rejection::{Rejection, write_refusal};
pub use request::{BodyLength, Request};
pub use response::Response;
pub use upgrade::{AcceptError, AcceptOptions, Accepted, Protocols, Upgrade};

/// The most subprotocols in one request. Each one is compared with all others.
pub const PROTOCOLS_MAX: usize = 64;
