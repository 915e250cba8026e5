//! The suite `engine`: a server's end of a WebSocket connection that echoes, in memory.

mod echo;
mod frames;
mod idle;
mod wire;

pub use wire::Wire;

use crate::Error;
use crate::protocol::Case;
use crate::serve::Measured;
use echo::Echo;
use idle::IdleEngines;

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

/// Sets a case of this suite up.
pub(crate) fn prepare<S: EngineSubject>(
    case: &Case,
    _backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    Ok(match *case {
        Case::Echo { .. } if idle => Box::new(Echo::<Copying>::new(case, false)?),
        Case::Echo { .. } => Box::new(Echo::<S>::new(case, true)?),
        Case::IdleEngine { engines } => Box::new(IdleEngines::<S>::new(engines)),
        _ => return Err("no case of the suite `engine`".into()),
    })
}

/// The same for a program that only copies.
pub(crate) fn prepare_copying(
    case: &Case,
    _backend: &str,
    _idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    match case {
        Case::Echo { .. } => Ok(Box::new(Echo::<Copying>::new(case, false)?)),
        _ => Err(crate::Unsupported("a copy has no engine").into()),
    }
}
