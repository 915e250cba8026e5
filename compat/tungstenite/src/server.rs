//! Functions that accept connections.

use std::io::{Read, Write};

use crate::{
    handshake::{
        HandshakeError,
        server::{Callback, NoCallback, ServerHandshake},
    },
    protocol::{WebSocket, WebSocketConfig},
};

/// Makes the handshake of a server on this stream.
///
/// # Errors
/// [`HandshakeError::Interrupted`] if the stream is not ready.
pub fn accept_with_config<S: Read + Write>(
    stream: S,
    config: Option<WebSocketConfig>,
) -> Result<WebSocket<S>, HandshakeError<ServerHandshake<S, NoCallback>>> {
    accept_hdr_with_config(stream, NoCallback, config)
}

/// Makes the handshake of a server on this stream, with default settings.
///
/// # Errors
/// [`HandshakeError::Interrupted`] if the stream is not ready.
pub fn accept<S: Read + Write>(
    stream: S,
) -> Result<WebSocket<S>, HandshakeError<ServerHandshake<S, NoCallback>>> {
    accept_with_config(stream, None)
}

/// Makes the handshake of a server on this stream. The callback sees the request, and decides.
///
/// # Errors
/// [`HandshakeError::Interrupted`] if the stream is not ready.
pub fn accept_hdr_with_config<S: Read + Write, C: Callback>(
    stream: S,
    callback: C,
    config: Option<WebSocketConfig>,
) -> Result<WebSocket<S>, HandshakeError<ServerHandshake<S, C>>> {
    ServerHandshake::start(stream, callback, config).handshake()
}

/// Makes the handshake of a server on this stream, with default settings. The callback sees the
/// request, and decides.
///
/// # Errors
/// [`HandshakeError::Interrupted`] if the stream is not ready.
pub fn accept_hdr<S: Read + Write, C: Callback>(
    stream: S,
    callback: C,
) -> Result<WebSocket<S>, HandshakeError<ServerHandshake<S, C>>> {
    accept_hdr_with_config(stream, callback, None)
}
