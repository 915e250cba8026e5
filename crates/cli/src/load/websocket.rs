//! The WebSocket side of a connection, built on the engine's client role.

use std::sync::Arc;

use windlass_server::printable;
use windlass_ws::{
    CloseCode, Config, Engine, EngineEvent, EngineLimits, FrameSendError, Outcome, Scratch,
    deflate::DeflateConfig,
    handshake::{ClientRequest, HeadLimits},
};

use super::{
    exchange::Exchange,
    fault::{Answer, Fault, FaultKind},
    header::RequestHeader,
    plan::LoadArgs,
    target::Resource,
    tls,
};

/// Upper bound of a frame's bytes beside the payload.
const FRAME_EXTRA: usize = 1024;

/// The text of the fault.
pub(crate) const SUBPROTOCOL_DECLINED: &str = "the server declines the subprotocol (--subprotocol)";

/// WebSocket state that all connections share.
pub(crate) struct WebSocketSetup {
    resource: Resource,
    config: Arc<Config>,
    deflate: Option<DeflateConfig>,
    headers: Vec<RequestHeader>,
    subprotocol: Option<String>,
}

impl WebSocketSetup {
    /// Creates the state for the messages of a run.
    pub(crate) fn new(resource: Resource, args: &LoadArgs) -> Self {
        let LoadArgs { size, deflate, header, subprotocol, .. } = args;
        let size = *size as usize;
        let mut limits = EngineLimits::DEFAULT;
        limits.frame_max = limits.frame_max.max(size + FRAME_EXTRA);
        limits.message_max = limits.frame_max;
        // The answers contain this program's own messages, so any compression ratio is legitimate.
        limits.inflate_ratio_max = None;
        let config = Arc::new(Config::client(entropy).with_limits(limits));
        Self {
            resource,
            config,
            deflate: deflate.then_some(DeflateConfig::DEFAULT),
            headers: header.clone(),
            subprotocol: subprotocol.clone(),
        }
    }

    fn request(&self, key: [u8; 16]) -> ClientRequest<'_> {
        let request = ClientRequest::new(&self.resource.host, &self.resource.path, key);
        let request = with_options(request, &self.headers, self.subprotocol.as_deref());
        match &self.deflate {
            Some(deflate) => request.deflate(deflate),
            None => request,
        }
    }
}

/// Adds what the options ask for.
pub(crate) fn with_options<'a>(
    mut request: ClientRequest<'a>,
    headers: &'a [RequestHeader],
    subprotocol: Option<&'a str>,
) -> ClientRequest<'a> {
    for RequestHeader { name, value } in headers {
        request = match name.eq_ignore_ascii_case("Origin") {
            true => request.origin(value),
            false => request.header(name, value),
        };
    }
    match subprotocol {
        Some(subprotocol) => request.protocol(subprotocol),
        None => request,
    }
}

/// Masking keys and the handshake's key must be unpredictable (RFC 6455 section 10.3).
fn entropy(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel gives random bytes");
}

/// A handshake in progress.
pub(crate) struct ClientHandshake {
    key: [u8; 16],
    /// The part of the response received so far.
    received: Vec<u8>,
}

impl ClientHandshake {
    /// Starts a handshake, and returns it with the request to send.
    pub(crate) fn begin(setup: &WebSocketSetup) -> (Self, Vec<u8>) {
        let mut key = [0; 16];
        entropy(&mut key);
        let mut request = Vec::with_capacity(512);
        setup.request(key).write(&mut request).expect("host and path were tried before");
        (Self { key, received: Vec::new() }, request)
    }

    /// Takes a piece of the response. When the response is complete, returns the engine and the
    /// bytes after the response.
    ///
    /// # Errors
    ///
    /// If the server does not switch to WebSocket.
    pub(crate) fn read(
        &mut self,
        input: &[u8],
        setup: &WebSocketSetup,
    ) -> Result<Option<(Engine, Vec<u8>)>, Fault> {
        self.received.extend_from_slice(input);
        let request = setup.request(self.key);
        let read = request.read_response(&self.received, &HeadLimits::DEFAULT);
        let (agreed, used) = match read {
            Ok(None) => return Ok(None),
            Ok(Some((upgraded, _))) if upgraded.protocol != setup.subprotocol.as_deref() => {
                return Err(Fault::new(FaultKind::Handshake, SUBPROTOCOL_DECLINED));
            }
            Ok(Some((upgraded, used))) => (upgraded.deflate, used),
            Err(_) if tls::is_answer_to_plain_http(&self.received) => {
                let text = "the server speaks TLS on this port: use wss://";
                return Err(Fault::new(FaultKind::Handshake, text));
            }
            Err(error) => return Err(Fault::new(FaultKind::Handshake, error)),
        };
        let engine = match (agreed, &setup.deflate) {
            (Some(agreement), Some(deflate)) => {
                Engine::with_deflate(&setup.config, &agreement, deflate)
            }
            (None, Some(_)) => {
                return Err(Fault::new(
                    FaultKind::Handshake,
                    "the server declines permessage-deflate",
                ));
            }
            _ => Engine::new(&setup.config),
        };
        Ok(Some((engine, self.received.split_off(used))))
    }
}

/// The outcome of a pass over received bytes.
pub(crate) struct Processed {
    pub(crate) outcome: Outcome,
    /// The text of the server's Close frame, if one was received.
    pub(crate) close: Option<String>,
}

/// Processes received bytes and passes every message to the exchange. Appends the next messages to
/// the engine's own replies.
///
/// # Errors
///
/// The fault that the exchange finds, or a violation of the protocol by the server.
#[inline]
pub(crate) fn process(
    engine: &mut Engine,
    scratch: &mut Scratch,
    input: &mut [u8],
    exchange: &mut Exchange<'_>,
) -> Result<Processed, Fault> {
    let mut close_text = None;
    let mut pass = engine.process(input, scratch);
    while let Some(event) = pass.next() {
        match event {
            EngineEvent::Binary(bytes) => {
                exchange.message(Answer { bytes: &bytes, is_text: false })?
            }
            EngineEvent::Text(text) => {
                exchange.message(Answer { bytes: text.as_bytes(), is_text: true })?
            }
            EngineEvent::Close(close) => {
                let code = close.code.map_or_else(
                    || "without a code".to_owned(),
                    |code| format!("with code {code}"),
                );
                let reason = if close.reason.is_empty() {
                    String::new()
                } else {
                    format!(": {}", printable(close.reason))
                };
                close_text = Some(format!("the server has closed the connection {code}{reason}"));
            }
            EngineEvent::Violation(violation) => {
                return Err(Fault::new(FaultKind::Protocol, violation));
            }
            // The engine answers pings.
            _ => {}
        }
    }
    // All messages that may be sent now leave in one write. None may follow a Close frame.
    while close_text.is_none()
        && exchange.is_echo()
        && let Some(message) = exchange.next()
    {
        if pass.send(message).is_err() {
            break;
        }
    }
    Ok(Processed { outcome: pass.finish(), close: close_text })
}

/// Returns the Close frame of an orderly end.
///
/// # Errors
///
/// [`FrameSendError::Closed`] if one was already sent.
pub(crate) fn close_frame<'s>(
    engine: &mut Engine,
    scratch: &'s mut Scratch,
) -> Result<&'s [u8], FrameSendError> {
    engine.close(CloseCode::NORMAL, "", scratch)
}
