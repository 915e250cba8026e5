//! A server's end of a connection under test.

use super::wire::Wire;
use crate::measured::Error;

/// A server's end of a connection that echoes every message.
pub trait EngineSubject: Sized + 'static {
    /// The state that all connections of a thread share, such as receive buffers.
    type Thread: Default;

    /// Returns the size of a connection without its buffers: `size_of` the user's type.
    fn engine_bytes() -> usize;

    /// Creates the server's end of a connection after its handshake.
    ///
    /// # Errors
    ///
    /// If the library does not support this.
    fn new(wire: Wire, thread: &mut Self::Thread) -> Result<Self, Error>;

    /// Reads and answers until nothing can be read. The input of one call is answered before the
    /// next, with as few sends as the library needs.
    ///
    /// # Errors
    ///
    /// If the client violates the protocol.
    fn round(&mut self, thread: &mut Self::Thread) -> Result<(), Error>;
}

/// Copies the input and sends it back unchanged, to measure the workload's own cost.
#[derive(Debug)]
pub struct Copying(Wire);

/// A receive buffer like those of the implementations.
#[derive(Debug)]
pub struct ReadBuffer(Vec<u8>);

/// Maximum length of a read in all cases.
pub const READ_MAX: usize = 128 * 1024;

impl Default for ReadBuffer {
    fn default() -> Self {
        Self(vec![0; READ_MAX])
    }
}

impl EngineSubject for Copying {
    type Thread = ReadBuffer;

    fn engine_bytes() -> usize {
        0
    }

    fn new(wire: Wire, _: &mut ReadBuffer) -> Result<Self, Error> {
        Ok(Self(wire))
    }

    fn round(&mut self, buffer: &mut ReadBuffer) -> Result<(), Error> {
        loop {
            match self.0.recv(&mut buffer.0) {
                0 => return Ok(()),
                length => self.0.send(&buffer.0[..length]),
            }
        }
    }
}
