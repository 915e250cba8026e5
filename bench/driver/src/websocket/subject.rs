//! A server's end of a connection under test.

use super::wire::Wire;
use crate::measured::Error;

/// A server's end of a connection that answers every message with the same one.
pub trait EngineSubject: Sized + 'static {
    /// What all connections of a thread share: buffers that are read into, and the like.
    type Thread: Default;

    /// Size of what is kept for a connection, buffers aside: `size_of` the type that its user
    /// holds.
    fn engine_bytes() -> usize;

    /// Makes the server's end of a connection after its handshake.
    ///
    /// # Errors
    ///
    /// If there is no such thing.
    fn new(wire: Wire, thread: &mut Self::Thread) -> Result<Self, Error>;

    /// Reads and answers until nothing is there. What was read by one call is answered before the
    /// next, by as few sends as the library manages.
    ///
    /// # Errors
    ///
    /// If the client is found to have broken the protocol.
    fn round(&mut self, thread: &mut Self::Thread) -> Result<(), Error>;
}

/// Copies what comes in and sends it back as it is: what the workload itself costs.
#[derive(Debug)]
pub struct Copying(Wire);

/// A buffer as the implementations have theirs.
#[derive(Debug)]
pub struct ReadBuffer(Vec<u8>);

/// Largest read of all cases.
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
