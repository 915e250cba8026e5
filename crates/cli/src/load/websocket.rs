//! The WebSocket side of a connection, on the engine's client role.

use std::sync::Arc;

use windlass_ws::{
    CloseCode, Config, Engine, Event, Limits, Outcome, Scratch, SendError,
    deflate::DeflateConfig,
    handshake::{ClientRequest, HeadLimits},
};

use super::{
    dialogue::Dialogue,
    fault::{Answer, Fault, Kind},
    target::Resource,
};

/// Bytes of a frame that are not payload, with some to spare.
const FRAME_EXTRA: usize = 1024;

/// What all connections have in common.
pub(crate) struct Speech {
    resource: Resource,
    config: Arc<Config>,
    deflate: Option<DeflateConfig>,
}

impl Speech {
    /// For messages of `size` bytes.
    pub(crate) fn new(resource: Resource, size: usize, deflate: bool) -> Self {
        let mut limits = Limits::DEFAULT;
        limits.frame_max = limits.frame_max.max(size + FRAME_EXTRA);
        limits.message_max = limits.frame_max;
        // The messages are our own, and may compress as well as they like.
        limits.inflate_ratio_max = None;
        let config = Arc::new(Config::client(entropy).with_limits(limits));
        Self { resource, config, deflate: deflate.then_some(DeflateConfig::DEFAULT) }
    }

    fn request(&self, key: [u8; 16]) -> ClientRequest<'_> {
        let request = ClientRequest::new(&self.resource.host, &self.resource.path, key);
        match &self.deflate {
            Some(deflate) => request.deflate(deflate),
            None => request,
        }
    }
}

/// Masking keys and the handshake's key must be unpredictable (RFC 6455 section 10.3).
fn entropy(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel gives random bytes");
}

/// A handshake that is under way.
pub(crate) struct Upgrade {
    key: [u8; 16],
    /// The response, as far as it has come.
    received: Vec<u8>,
}

impl Upgrade {
    /// A handshake, and the request to send.
    pub(crate) fn begin(speech: &Speech) -> (Self, Vec<u8>) {
        let mut key = [0; 16];
        entropy(&mut key);
        let mut request = Vec::with_capacity(512);
        speech.request(key).write(&mut request).expect("host and path were tried before");
        (Self { key, received: Vec::new() }, request)
    }

    /// Takes a piece of the response. Once it is whole: the engine, and the bytes behind the
    /// response.
    ///
    /// # Errors
    ///
    /// When the server does not switch to WebSocket.
    pub(crate) fn read(
        &mut self,
        input: &[u8],
        speech: &Speech,
    ) -> Result<Option<(Engine, Vec<u8>)>, Fault> {
        self.received.extend_from_slice(input);
        let request = speech.request(self.key);
        let read = request.read_response(&self.received, &HeadLimits::DEFAULT);
        let (agreed, used) = match read {
            Ok(None) => return Ok(None),
            Ok(Some((upgraded, used))) => (upgraded.deflate, used),
            Err(error) => return Err(Fault::new(Kind::Handshake, error)),
        };
        let engine = match (agreed, &speech.deflate) {
            (Some(agreement), Some(deflate)) => {
                Engine::with_deflate(&speech.config, &agreement, deflate)
            }
            (None, Some(_)) => {
                return Err(Fault::new(Kind::Handshake, "the server declines permessage-deflate"));
            }
            _ => Engine::new(&speech.config),
        };
        Ok(Some((engine, self.received.split_off(used))))
    }
}

/// What a pass over received bytes has come to.
pub(crate) struct Heard {
    pub(crate) outcome: Outcome,
    /// What the server's Close frame says, if one has come.
    pub(crate) goodbye: Option<String>,
}

/// Goes over received bytes, tells the dialogue of every message, and puts what is to be sent next
/// behind what the engine answers by itself.
///
/// # Errors
///
/// What the dialogue finds wrong, or that the server breaks the protocol.
#[inline]
pub(crate) fn hear(
    engine: &mut Engine,
    scratch: &mut Scratch,
    input: &mut [u8],
    dialogue: &mut Dialogue<'_>,
) -> Result<Heard, Fault> {
    let mut goodbye = None;
    let mut pass = engine.process(input, scratch);
    while let Some(event) = pass.next() {
        match event {
            Event::Binary(bytes) => dialogue.message(Answer { bytes: &bytes, is_text: false })?,
            Event::Text(text) => {
                dialogue.message(Answer { bytes: text.as_bytes(), is_text: true })?
            }
            Event::Close(close) => {
                let code = close.code.map_or_else(
                    || "without a code".to_owned(),
                    |code| format!("with code {code}"),
                );
                let reason = if close.reason.is_empty() {
                    String::new()
                } else {
                    format!(": {}", close.reason)
                };
                goodbye = Some(format!("the server has closed the connection {code}{reason}"));
            }
            Event::Violation(violation) => return Err(Fault::new(Kind::Protocol, violation)),
            // Pings are answered by the engine.
            _ => {}
        }
    }
    // All that may be sent now goes out in one write. After a Close frame nothing may.
    while goodbye.is_none()
        && let Some(message) = dialogue.next()
    {
        if pass.send(message).is_err() {
            break;
        }
    }
    Ok(Heard { outcome: pass.finish(), goodbye })
}

/// The Close frame of an orderly end.
///
/// # Errors
///
/// [`SendError::Closed`] when one was sent already.
pub(crate) fn goodbye<'s>(
    engine: &mut Engine,
    scratch: &'s mut Scratch,
) -> Result<&'s [u8], SendError> {
    engine.close(CloseCode::NORMAL, "", scratch)
}
