//! Opening handshakes, which go on where they were interrupted.

pub mod client;
pub mod headers;
pub mod machine;
pub mod server;

use std::{
    error, fmt,
    io::{Read, Write},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Version;
use sha1::{Digest as _, Sha1};

use self::machine::{HandshakeMachine, RoundResult, StageResult, TryParse};
use crate::error::{Error, ProtocolError};

/// A handshake that is not complete.
#[derive(Debug)]
pub struct MidHandshake<Role: HandshakeRole> {
    role: Role,
    machine: HandshakeMachine<Role::InternalStream>,
}

impl<Role: HandshakeRole> MidHandshake<Role> {
    /// The stream, and what is being read or written.
    pub fn get_ref(&self) -> &HandshakeMachine<Role::InternalStream> {
        &self.machine
    }

    /// The stream, and what is being read or written.
    pub fn get_mut(&mut self) -> &mut HandshakeMachine<Role::InternalStream> {
        &mut self.machine
    }

    /// Goes on, as far as the stream is ready.
    ///
    /// # Errors
    /// [`HandshakeError::Interrupted`] returns the handshake. Call it again when the stream is
    /// ready.
    pub fn handshake(mut self) -> Result<Role::FinalResult, HandshakeError<Role>> {
        loop {
            self.machine = match self.machine.single_round()? {
                RoundResult::WouldBlock(machine) => {
                    self.machine = machine;
                    return Err(HandshakeError::Interrupted(self));
                }
                RoundResult::Incomplete(machine) => machine,
                RoundResult::StageFinished(stage) => match self.role.stage_finished(stage)? {
                    ProcessingResult::Continue(machine) => machine,
                    ProcessingResult::Done(result) => return Ok(result),
                },
            };
        }
    }
}

/// Why a call returned without a socket.
pub enum HandshakeError<Role: HandshakeRole> {
    /// The stream is not ready.
    Interrupted(MidHandshake<Role>),
    /// The handshake has failed.
    Failure(Error),
}

impl<Role: HandshakeRole> fmt::Debug for HandshakeError<Role> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(_) => f.write_str("Interrupted(..)"),
            Self::Failure(error) => f.debug_tuple("Failure").field(error).finish(),
        }
    }
}

impl<Role: HandshakeRole> fmt::Display for HandshakeError<Role> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(_) => f.write_str("the handshake waits for the stream"),
            Self::Failure(error) => error.fmt(f),
        }
    }
}

impl<Role: HandshakeRole> error::Error for HandshakeError<Role> {}

impl<Role: HandshakeRole> From<Error> for HandshakeError<Role> {
    fn from(error: Error) -> Self {
        Self::Failure(error)
    }
}

/// The side of a handshake. Only the types of this crate are useful as one.
pub trait HandshakeRole {
    /// What is read.
    #[doc(hidden)]
    type IncomingData: TryParse;
    /// The stream.
    #[doc(hidden)]
    type InternalStream: Read + Write;
    /// The result of the handshake.
    #[doc(hidden)]
    type FinalResult;
    /// What comes after a stage.
    ///
    /// # Errors
    /// The handshake has failed.
    #[doc(hidden)]
    fn stage_finished(
        &mut self,
        finish: StageResult<Self::IncomingData, Self::InternalStream>,
    ) -> Result<ProcessingResult<Self::InternalStream, Self::FinalResult>, Error>;
}

/// What comes after a stage.
#[doc(hidden)]
#[derive(Debug)]
pub enum ProcessingResult<Stream, FinalResult> {
    /// Another stage.
    Continue(HandshakeMachine<Stream>),
    /// Nothing.
    Done(FinalResult),
}

/// The value of `Sec-WebSocket-Accept` for this key (RFC 6455 section 4.2.2), for a server that
/// makes the handshake by itself.
pub fn derive_accept_key(request_key: &[u8]) -> String {
    const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    STANDARD.encode(Sha1::new().chain_update(request_key).chain_update(GUID).finalize())
}

/// The version as it stands in a head.
fn version_text(version: Version) -> Result<&'static str, Error> {
    match version {
        Version::HTTP_09 => Ok("HTTP/0.9"),
        Version::HTTP_10 => Ok("HTTP/1.0"),
        Version::HTTP_11 => Ok("HTTP/1.1"),
        _ => Err(Error::Protocol(ProtocolError::WrongHttpVersion)),
    }
}
