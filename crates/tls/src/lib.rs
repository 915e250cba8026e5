//! TLS for the streams of the reactor, by rustls.
//!
//! The page `docs/guide/tls.md` of the repository leads to a first program.
//!
//! A [`TlsAcceptor`] makes the sessions of servers, a [`TlsConnector`] those of clients. Streams
//! take either as a [`TlsSessionFactory`](windlass::stream::TlsSessionFactory).
//!
//! ```no_run
//! use std::sync::Arc;
//! use windlass::{Reactor, stream::{Input, Listener, Stream, StreamHandler}};
//! use windlass_tls::TlsAcceptor;
//!
//! struct Echo;
//! impl StreamHandler for Echo {
//!     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
//!         let _ = stream.reply(input, ..);
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let acceptor = TlsAcceptor::builder().certificate("cert.pem", "key.pem").build()?;
//! let mut reactor = Reactor::new()?;
//! Listener::tcp(([0, 0, 0, 0], 8443).into())?
//!     .with_tls(Arc::new(acceptor.clone()))
//!     .with_handler(|_| Some(Echo))
//!     .register_into(&mut reactor)?;
//! // Later, from any thread, after the files have changed:
//! acceptor.reload()?;
//! # Ok(())
//! # }
//! ```
//!
//! - TLS 1.2 and 1.3. There is no early data, because it can be replayed, and no renegotiation.
//! - Sessions are resumed by tickets, which the acceptor encrypts with keys of its own.
//! - An idle connection needs 3.5 to 3.8 KB of memory more than a plain one. What a peer can pin
//!   beside that is bounded, and [`Stream::memory`](windlass::stream::Stream::memory) counts it.

#![deny(unsafe_code)]

#[cfg(not(any(feature = "ring", feature = "aws-lc-rs")))]
compile_error!("windlass-tls needs a provider of cryptography: enable its feature `ring`");

mod acceptor;
mod connector;
mod counts;
mod error;
mod failure;
mod pem;
mod provider;
mod session;
mod subject;
mod validity;
mod verifier;

pub use acceptor::{PreparedReload, TlsAcceptor, TlsAcceptorBuilder};
pub use connector::{TlsConnector, TlsConnectorBuilder, TlsTarget};
pub use counts::HandshakeCounts;
pub use error::TlsConfigError;
pub use failure::failure;
pub use provider::MinimumVersion;
