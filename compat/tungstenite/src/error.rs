//! Errors of all calls.

use std::{error, fmt, io, str, string};

use crate::protocol::{Message, frame::coding::Data};

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug)]
pub enum Error {
    /// The connection has ended as it should: both sides have sent Close frames, and the server has
    /// closed first. Drop the stream.
    ConnectionClosed,
    /// A call after the end was reported.
    AlreadyClosed,
    /// The stream has failed. `WouldBlock` is no failure: call again when the stream is ready.
    ///
    /// A violation by the peer that has no name in this interface is here too: its kind is
    /// `InvalidData`, and its inner error a [`windlass_ws::Violation`].
    Io(io::Error),
    /// The session of TLS has failed.
    Tls(TlsError),
    /// Something exceeds a limit.
    Capacity(CapacityError),
    /// The peer has violated the protocol, or a call would.
    Protocol(ProtocolError),
    /// The message does not fit into the write buffer, and is returned.
    WriteBufferFull(Box<Message>),
    /// Text is not UTF-8.
    Utf8(String),
    /// A handshake consumes more than an honest peer makes it consume.
    AttackAttempt,
    /// The URL cannot be used.
    Url(UrlError),
    /// The answer to the handshake's request refuses it.
    #[cfg(feature = "handshake")]
    Http(Box<http::Response<Option<Vec<u8>>>>),
    /// A part of HTTP has a wrong form.
    #[cfg(feature = "handshake")]
    HttpFormat(http::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionClosed => f.write_str("the connection is closed"),
            Self::AlreadyClosed => f.write_str("the connection was closed before this call"),
            Self::Io(error) => write!(f, "input or output failed: {error}"),
            Self::Tls(error) => write!(f, "TLS failed: {error}"),
            Self::Capacity(error) => write!(f, "limit exceeded: {error}"),
            Self::Protocol(error) => write!(f, "WebSocket protocol violated: {error}"),
            Self::WriteBufferFull(_) => {
                f.write_str("the write buffer is full; flush, or raise max_write_buffer_size")
            }
            Self::Utf8(error) => write!(f, "text is not UTF-8: {error}"),
            Self::AttackAttempt => f.write_str("the peer's handshake is too long or too slow"),
            Self::Url(error) => write!(f, "URL: {error}"),
            #[cfg(feature = "handshake")]
            Self::Http(response) => write!(f, "HTTP status {}", response.status()),
            #[cfg(feature = "handshake")]
            Self::HttpFormat(error) => write!(f, "HTTP format: {error}"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Tls(error) => Some(error),
            Self::Capacity(error) => Some(error),
            Self::Protocol(error) => Some(error),
            Self::Url(error) => Some(error),
            #[cfg(feature = "handshake")]
            Self::HttpFormat(error) => Some(error),
            _ => None,
        }
    }
}

macro_rules! impl_from {
    ($($(#[$cfg:meta])? $from:ty => |$error:ident| $into:expr,)+) => {
        $(
            $(#[$cfg])?
            impl From<$from> for Error {
                fn from($error: $from) -> Self {
                    $into
                }
            }
        )+
    };
}

impl_from! {
    io::Error => |error| Self::Io(error),
    TlsError => |error| Self::Tls(error),
    CapacityError => |error| Self::Capacity(error),
    ProtocolError => |error| Self::Protocol(error),
    UrlError => |error| Self::Url(error),
    str::Utf8Error => |error| Self::Utf8(error.to_string()),
    string::FromUtf8Error => |error| Self::Utf8(error.to_string()),
    #[cfg(feature = "handshake")]
    http::Error => |error| Self::HttpFormat(error),
    #[cfg(feature = "handshake")]
    http::header::InvalidHeaderValue => |error| Self::HttpFormat(error.into()),
    #[cfg(feature = "handshake")]
    http::header::InvalidHeaderName => |error| Self::HttpFormat(error.into()),
    #[cfg(feature = "handshake")]
    http::header::ToStrError => |error| Self::Utf8(error.to_string()),
    #[cfg(feature = "handshake")]
    http::uri::InvalidUri => |error| Self::HttpFormat(error.into()),
    #[cfg(feature = "handshake")]
    http::status::InvalidStatusCode => |error| Self::HttpFormat(error.into()),
    #[cfg(feature = "handshake")]
    httparse::Error => |error| match error {
        httparse::Error::TooManyHeaders => Self::Capacity(CapacityError::TooManyHeaders),
        error => Self::Protocol(ProtocolError::HttparseError(error)),
    },
}

/// A limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityError {
    /// A head of HTTP has too many headers.
    TooManyHeaders,
    /// A message or frame is longer than its limit.
    MessageTooLong {
        /// The length in bytes, as far as it is known.
        size: usize,
        /// The limit in bytes.
        max_size: usize,
    },
}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyHeaders => f.write_str("too many headers"),
            Self::MessageTooLong { size, max_size } => {
                write!(f, "a message or frame of {size} bytes exceeds the limit of {max_size}")
            }
        }
    }
}

impl error::Error for CapacityError {}

/// How a response's subprotocol does not match the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubProtocolError {
    /// The server chose one, and none was offered.
    ServerSentSubProtocolNoneRequested,
    /// The server chose one that was not offered.
    InvalidSubProtocol,
    /// The server chose none of those that were offered.
    NoSubProtocol,
}

impl fmt::Display for SubProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ServerSentSubProtocolNoneRequested => "the server chose one of none",
            Self::InvalidSubProtocol => "the server chose one that was not offered",
            Self::NoSubProtocol => "the server chose none of those offered",
        })
    }
}

impl error::Error for SubProtocolError {}

/// A violation of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The request's method is not GET.
    WrongHttpMethod,
    /// The version of HTTP is below 1.1.
    WrongHttpVersion,
    /// The header `Connection` does not list `upgrade`.
    MissingConnectionUpgradeHeader,
    /// The header `Upgrade` is not `websocket`.
    MissingUpgradeWebSocketHeader,
    /// The header `Sec-WebSocket-Version` is not 13.
    MissingSecWebSocketVersionHeader,
    /// There is no header `Sec-WebSocket-Key`.
    MissingSecWebSocketKey,
    /// The header `Sec-WebSocket-Key` is not the base64 of 16 bytes.
    #[cfg(not(tungstenite_0_29))]
    InvalidSecWebSocketKey,
    /// The header `Sec-WebSocket-Accept` is missing, or does not belong to the key.
    SecWebSocketAcceptKeyMismatch,
    /// The response's subprotocol does not match the request.
    SecWebSocketSubProtocolError(SubProtocolError),
    /// Bytes follow the request before it was answered.
    JunkAfterRequest,
    /// A callback refuses a request with a status of success.
    CustomResponseSuccessful,
    /// A header is missing, there twice, or wrong.
    #[cfg(feature = "handshake")]
    InvalidHeader(Box<http::HeaderName>),
    /// The stream has ended within the handshake.
    HandshakeIncomplete,
    /// The head is not HTTP.
    #[cfg(feature = "handshake")]
    HttparseError(httparse::Error),
    /// A message after this side's Close frame.
    SendAfterClosing,
    /// Bytes after the peer's Close frame.
    ReceivedAfterClosing,
    /// A reserved bit is set.
    NonZeroReservedBits,
    /// A client's frame is not masked.
    UnmaskedFrameFromClient,
    /// A server's frame is masked.
    MaskedFrameFromServer,
    /// A control frame is a fragment.
    FragmentedControlFrame,
    /// A control frame has more than 125 bytes.
    ControlFrameTooBig,
    /// The opcode of a control frame is reserved.
    UnknownControlFrameType(u8),
    /// The opcode of a data frame is reserved.
    UnknownDataFrameType(u8),
    /// A continuation frame without a message.
    UnexpectedContinueFrame,
    /// A new message within another.
    ExpectedFragment(Data),
    /// The stream has ended without a Close frame.
    ResetWithoutClosingHandshake,
    /// The opcode is reserved.
    InvalidOpcode(u8),
    /// The payload of a Close frame is invalid.
    InvalidCloseSequence,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongHttpMethod => "the method is not GET",
            Self::WrongHttpVersion => "HTTP is older than 1.1",
            Self::MissingConnectionUpgradeHeader => "Connection does not list upgrade",
            Self::MissingUpgradeWebSocketHeader => "Upgrade is not websocket",
            Self::MissingSecWebSocketVersionHeader => "Sec-WebSocket-Version is not 13",
            Self::MissingSecWebSocketKey => "there is no Sec-WebSocket-Key",
            #[cfg(not(tungstenite_0_29))]
            Self::InvalidSecWebSocketKey => "Sec-WebSocket-Key is not the base64 of 16 bytes",
            Self::SecWebSocketAcceptKeyMismatch => "Sec-WebSocket-Accept does not fit the key",
            Self::SecWebSocketSubProtocolError(error) => {
                return write!(f, "Sec-WebSocket-Protocol: {error}");
            }
            Self::JunkAfterRequest => "bytes follow the request before its answer",
            Self::CustomResponseSuccessful => "a refusal has a status of success",
            #[cfg(feature = "handshake")]
            Self::InvalidHeader(name) => {
                return write!(f, "the header {name} is missing, there twice, or wrong");
            }
            Self::HandshakeIncomplete => "the stream ended within the handshake",
            #[cfg(feature = "handshake")]
            Self::HttparseError(error) => return write!(f, "no HTTP: {error}"),
            Self::SendAfterClosing => "nothing can follow a Close frame that was sent",
            Self::ReceivedAfterClosing => "bytes follow the peer's Close frame",
            Self::NonZeroReservedBits => "a reserved bit is set",
            Self::UnmaskedFrameFromClient => "a client's frame is not masked",
            Self::MaskedFrameFromServer => "a server's frame is masked",
            Self::FragmentedControlFrame => "a control frame is fragmented",
            Self::ControlFrameTooBig => "a control frame has more than 125 bytes",
            Self::UnknownControlFrameType(code) => {
                return write!(f, "the control opcode {code} is reserved");
            }
            Self::UnknownDataFrameType(code) => {
                return write!(f, "the data opcode {code} is reserved");
            }
            Self::UnexpectedContinueFrame => "a continuation frame without a message",
            Self::ExpectedFragment(data) => {
                return write!(f, "a frame {data} before the last message has ended");
            }
            Self::ResetWithoutClosingHandshake => "the stream ended without a Close frame",
            Self::InvalidOpcode(code) => return write!(f, "the opcode {code} is reserved"),
            Self::InvalidCloseSequence => "the payload of a Close frame is invalid",
        })
    }
}

impl error::Error for ProtocolError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            #[cfg(feature = "handshake")]
            Self::HttparseError(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(feature = "handshake")]
impl From<httparse::Error> for ProtocolError {
    fn from(error: httparse::Error) -> Self {
        Self::HttparseError(error)
    }
}

/// Why a URL cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub enum UrlError {
    /// It needs TLS, and no feature for TLS is enabled.
    TlsFeatureNotEnabled,
    /// It has no host.
    NoHostName,
    /// No address of its host accepts a connection.
    UnableToConnect(String),
    /// It begins neither with `ws://` nor with `wss://`.
    UnsupportedUrlScheme,
    /// Its host is empty.
    EmptyHostName,
    /// It has neither path nor query.
    NoPathOrQuery,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TlsFeatureNotEnabled => "wss:// needs a feature for TLS, and none is enabled",
            Self::NoHostName => "there is no host",
            Self::UnableToConnect(url) => return write!(f, "no address of {url} can be reached"),
            Self::UnsupportedUrlScheme => "only ws:// and wss:// are supported",
            Self::EmptyHostName => "the host is empty",
            Self::NoPathOrQuery => "there is neither a path nor a query",
        })
    }
}

impl error::Error for UrlError {}

/// Why TLS failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// An error of rustls.
    #[cfg(feature = "__rustls-tls")]
    Rustls(Box<rustls::Error>),
    /// The host is not a name that a certificate can have.
    #[cfg(feature = "__rustls-tls")]
    InvalidDnsName,
}

impl fmt::Display for TlsError {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            #[cfg(feature = "__rustls-tls")]
            Self::Rustls(ref error) => write!(_f, "rustls: {error}"),
            #[cfg(feature = "__rustls-tls")]
            Self::InvalidDnsName => _f.write_str("the host is no DNS name"),
        }
    }
}

impl error::Error for TlsError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match *self {
            #[cfg(feature = "__rustls-tls")]
            Self::Rustls(ref error) => Some(error),
            #[cfg(feature = "__rustls-tls")]
            Self::InvalidDnsName => None,
        }
    }
}

#[cfg(feature = "__rustls-tls")]
impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        Self::Rustls(Box::new(error))
    }
}
