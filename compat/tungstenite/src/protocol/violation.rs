//! The errors of this interface for the violations that the engine finds.

use std::io;

use windlass_ws::{Engine, FrameSendError, Violation};

use super::{
    WebSocketConfig,
    frame::coding::{Data, OpCode},
};
use crate::error::{CapacityError, Error, ProtocolError};

/// The error for a violation that has ended the connection of this engine.
#[cold]
pub(super) fn error(violation: Violation, engine: &Engine, config: &WebSocketConfig) -> Error {
    let (first, len) = engine.failed_header().unwrap_or_default();
    let opcode = first & 0x0f;
    let too_long = |max_size: Option<usize>| {
        let max_size = max_size.unwrap_or(usize::MAX);
        // The length is not known if decompression would exceed the limit.
        let size = usize::try_from(len).unwrap_or(usize::MAX).max(max_size.saturating_add(1));
        Error::Capacity(CapacityError::MessageTooLong { size, max_size })
    };
    Error::Protocol(match violation {
        Violation::ReservedBits => ProtocolError::NonZeroReservedBits,
        Violation::ReservedOpcode => ProtocolError::InvalidOpcode(opcode),
        Violation::Unmasked => ProtocolError::UnmaskedFrameFromClient,
        Violation::Masked => ProtocolError::MaskedFrameFromServer,
        Violation::FragmentedControl => ProtocolError::FragmentedControlFrame,
        Violation::LongControl => ProtocolError::ControlFrameTooBig,
        Violation::UnexpectedContinuation => ProtocolError::UnexpectedContinueFrame,
        Violation::ExpectedContinuation => ProtocolError::ExpectedFragment(match opcode.into() {
            OpCode::Data(data) => data,
            OpCode::Control(_) => Data::Reserved(opcode),
        }),
        Violation::ShortClose | Violation::BadCloseCode => ProtocolError::InvalidCloseSequence,
        Violation::InvalidUtf8 => return Error::Utf8(violation.to_string()),
        Violation::FrameTooBig => return too_long(config.max_frame_size),
        Violation::MessageTooBig => return too_long(config.max_message_size),
        other => return Error::Io(io::Error::new(io::ErrorKind::InvalidData, other)),
    })
}

/// Why the engine does not send a frame.
#[cold]
pub(super) fn refused(error: FrameSendError) -> Error {
    Error::Protocol(match error {
        FrameSendError::TooLong => ProtocolError::ControlFrameTooBig,
        FrameSendError::BadCloseCode => ProtocolError::InvalidCloseSequence,
        _ => ProtocolError::SendAfterClosing,
    })
}
