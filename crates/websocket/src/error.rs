//! Why a call failed.

use std::{error::Error, fmt, io};

use windlass_ws::{
    FrameSendError, Violation,
    handshake::{AcceptError as AnswerError, HandshakeError, Rejection, RequestError},
};

/// Why nothing more is received. After it the socket is of no use, but for
/// [`into_inner`](crate::WebSocket::into_inner).
#[derive(Debug)]
#[non_exhaustive]
pub enum RecvError {
    /// The peer broke the protocol or a limit. It was told so by a Close frame, as far as it reads.
    Violation(Violation),
    /// The stream ended without a Close frame (code 1006 of RFC 6455 section 7.1.5).
    Abnormal,
    /// The TLS stream was cut: it ended without a Close frame and without close_notify. Somebody on
    /// the way may have done it.
    Cut,
    /// A limit of time was exceeded.
    TimedOut(TimeLimit),
    /// Reading or writing failed.
    Io(io::Error),
}

/// A limit of time of [`Config`](crate::Config).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeLimit {
    /// [`answer_timeout`](crate::Config::answer_timeout): no answer to a ping.
    Answer,
    /// [`idle_timeout`](crate::Config::idle_timeout): no message.
    Idle,
    /// [`lifetime_max`](crate::Config::lifetime_max).
    Lifetime,
    /// [`close_timeout`](crate::Config::close_timeout): no answer to the Close frame.
    Close,
}

/// Why a frame was not sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendError {
    /// A Close frame was sent, by this side or as the answer to the peer's. Nothing can follow it.
    Closed,
    /// A ping or pong has more than 125 bytes, or a close reason more than 123.
    TooLong,
    /// This close code cannot be sent.
    BadCloseCode,
    /// The text was changed and is not UTF-8.
    NotUtf8,
    /// Writing failed. What waited is discarded.
    Io(io::Error),
}

/// Why a server did not accept a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum AcceptError {
    /// The request is malformed or no upgrade. The client has got the response that says so.
    Rejected(Rejection),
    /// The request was refused with this status, by [`Config`](crate::Config) or by the caller's
    /// closure. The client has got the response.
    Refused(u16),
    /// The server's own answer is invalid. The client has got nothing.
    Answer(AnswerError),
    /// The stream ended before the end of the request.
    Ended,
    /// Reading or writing failed.
    Io(io::Error),
}

/// Why a client's handshake failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The request is invalid. Nothing was sent.
    Request(RequestError),
    /// The server's response does not accept the request.
    Response(HandshakeError),
    /// The stream ended before the end of the response.
    Ended,
    /// Reading or writing failed.
    Io(io::Error),
}

impl RecvError {
    /// The same error, for a later call.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Violation(violation) => Self::Violation(*violation),
            Self::Abnormal => Self::Abnormal,
            Self::Cut => Self::Cut,
            Self::TimedOut(limit) => Self::TimedOut(*limit),
            Self::Io(error) => Self::Io(again(error)),
        }
    }
}

/// The same error without its payload, which cannot be copied.
pub(crate) fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => write!(f, "the peer broke the protocol: {violation}"),
            Self::Abnormal => f.write_str("the connection ended without a Close frame"),
            Self::Cut => f.write_str("the TLS connection was cut"),
            Self::TimedOut(limit) => limit.fmt(f),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answer => "no answer to a ping within answer_timeout",
            Self::Idle => "no message within idle_timeout",
            Self::Lifetime => "the connection is older than lifetime_max",
            Self::Close => "the closing handshake took longer than close_timeout",
        })
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => FrameSendError::Closed.fmt(f),
            Self::TooLong => FrameSendError::TooLong.fmt(f),
            Self::BadCloseCode => FrameSendError::BadCloseCode.fmt(f),
            Self::NotUtf8 => f.write_str("the changed text is not UTF-8"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejection) => write!(f, "rejected: {rejection}"),
            Self::Refused(status) => write!(f, "refused with status {status}"),
            Self::Answer(error) => write!(f, "the answer is invalid: {error}"),
            Self::Ended => f.write_str("the connection ended within the request"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => write!(f, "the request is invalid: {error}"),
            Self::Response(error) => error.fmt(f),
            Self::Ended => f.write_str("the connection ended within the response"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

macro_rules! impl_error {
    ($($type:ident),+) => {
        $(
            impl Error for $type {
                fn source(&self) -> Option<&(dyn Error + 'static)> {
                    match self {
                        Self::Io(error) => Some(error),
                        _ => None,
                    }
                }
            }

            impl From<io::Error> for $type {
                fn from(error: io::Error) -> Self {
                    Self::Io(error)
                }
            }
        )+
    };
}

impl_error!(RecvError, SendError, AcceptError, ClientError);

impl From<FrameSendError> for SendError {
    fn from(error: FrameSendError) -> Self {
        match error {
            FrameSendError::TooLong => Self::TooLong,
            FrameSendError::BadCloseCode => Self::BadCloseCode,
            _ => Self::Closed,
        }
    }
}

impl From<RequestError> for ClientError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl From<HandshakeError> for ClientError {
    fn from(error: HandshakeError) -> Self {
        Self::Response(error)
    }
}
