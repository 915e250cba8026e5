//! Errors of the peer.

use core::fmt;

use super::close::CloseCode;

/// How the peer broke the protocol or a limit of this endpoint. The connection has failed (RFC 6455
/// section 7.1.7).
///
/// ```
/// use windlass_ws::{CloseCode, Violation};
///
/// let violation = Violation::MessageTooBig;
/// assert_eq!(violation.close_code(), CloseCode::TOO_BIG);
/// assert_eq!(violation.to_string(), "a message is longer than message_max");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Violation {
    /// A reserved bit is set, and no negotiated extension uses it (section 5.2).
    ReservedBits,
    /// A reserved opcode: 3 to 7, 11 to 15 (section 5.2).
    ReservedOpcode,
    /// A client's frame without a mask (section 5.1).
    Unmasked,
    /// A server's frame with a mask (section 5.1).
    Masked,
    /// A fragmented control frame (section 5.5).
    FragmentedControl,
    /// A control frame with more than 125 bytes (section 5.5).
    LongControl,
    /// A length that is not in its shortest form, or is 2^63 or more (section 5.2).
    BadLength,
    /// A continuation frame without a started message (section 5.4).
    UnexpectedContinuation,
    /// A new message before the previous one has ended (section 5.4).
    ExpectedContinuation,
    /// Text or a close reason that is not UTF-8 (section 8.1).
    InvalidUtf8,
    /// A Close frame with a payload of one byte (section 5.5.1).
    ShortClose,
    /// A close code that must not be sent (section 7.4).
    BadCloseCode,
    /// A frame is longer than `frame_max`.
    FrameTooBig,
    /// A message is longer than `message_max`, before or after decompression.
    MessageTooBig,
    /// A message has more than `fragments_max` frames.
    TooManyFragments,
    /// More than `controls_per_second_max` control frames in a second.
    TooManyControls,
    /// Compressed data that is not DEFLATE (RFC 7692 section 7.2.2).
    BadDeflate,
    /// The ratio of decompressed to compressed length exceeds `inflate_ratio_max`.
    RatioTooHigh,
}

impl Violation {
    /// The close code for this violation.
    #[must_use]
    pub const fn close_code(self) -> CloseCode {
        match self {
            Self::InvalidUtf8 | Self::BadDeflate => CloseCode::INVALID_PAYLOAD,
            Self::FrameTooBig | Self::MessageTooBig => CloseCode::TOO_BIG,
            Self::TooManyFragments | Self::TooManyControls | Self::RatioTooHigh => {
                CloseCode::POLICY_VIOLATION
            }
            Self::ReservedBits
            | Self::ReservedOpcode
            | Self::Unmasked
            | Self::Masked
            | Self::FragmentedControl
            | Self::LongControl
            | Self::BadLength
            | Self::UnexpectedContinuation
            | Self::ExpectedContinuation
            | Self::ShortClose
            | Self::BadCloseCode => CloseCode::PROTOCOL_ERROR,
        }
    }
}

impl Violation {
    /// The reason in the Close frame. It is empty if the code says enough.
    #[must_use]
    pub const fn close_reason(self) -> &'static str {
        match self {
            Self::RatioTooHigh => {
                "compression ratio of the message is too high; send it uncompressed"
            }
            _ => "",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReservedBits => "a reserved bit is set",
            Self::ReservedOpcode => "the opcode is reserved",
            Self::Unmasked => "a client's frame is not masked",
            Self::Masked => "a server's frame is masked",
            Self::FragmentedControl => "a control frame is fragmented",
            Self::LongControl => "a control frame has more than 125 bytes",
            Self::BadLength => "a length is not in its shortest form, or has its highest bit set",
            Self::UnexpectedContinuation => "a continuation frame without a message",
            Self::ExpectedContinuation => "a new message before the last one has ended",
            Self::InvalidUtf8 => "the text is not UTF-8",
            Self::ShortClose => "a Close frame has a payload of one byte",
            Self::BadCloseCode => "the close code must not be sent",
            Self::FrameTooBig => "a frame is longer than frame_max",
            Self::MessageTooBig => "a message is longer than message_max",
            Self::TooManyFragments => "a message has more frames than fragments_max",
            Self::TooManyControls => "more control frames in a second than controls_per_second_max",
            Self::BadDeflate => "the compressed data is invalid",
            Self::RatioTooHigh => "the compression ratio of a message exceeds inflate_ratio_max",
        })
    }
}

impl core::error::Error for Violation {}
