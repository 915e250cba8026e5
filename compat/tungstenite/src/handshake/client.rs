//! The client's side of a handshake.

use std::{
    io::{Read, Write},
    marker::PhantomData,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{
    HeaderMap, HeaderName, Method, Request as HttpRequest, Response as HttpResponse, StatusCode,
    Version,
    header::{
        CONNECTION, HOST, ORIGIN, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY,
        SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use httparse::Status;
#[cfg(feature = "deflate")]
use windlass_ws::{
    deflate::{Agreement, DeflateConfig},
    handshake::{check_extensions, offer_extensions},
};

use super::{
    HandshakeRole, MidHandshake, ProcessingResult, derive_accept_key,
    headers::{EMPTY, is_word, lists_token, to_map},
    machine::{HandshakeMachine, StageResult, TryParse},
    version_text,
};
use crate::{
    client::uri_mode,
    error::{Error, ProtocolError, Result, SubProtocolError, UrlError},
    protocol::{Role, WebSocket, WebSocketConfig},
    shared,
};

/// A request for an upgrade.
pub type Request = HttpRequest<()>;

/// The server's response. If it refuses the upgrade, its body begins with what was read.
pub type Response = HttpResponse<Option<Vec<u8>>>;

/// The headers that every request has once, in the order and spelling in which they are sent.
const REQUIRED: [(HeaderName, &str); 5] = [
    (HOST, "Host"),
    (CONNECTION, "Connection"),
    (UPGRADE, "Upgrade"),
    (SEC_WEBSOCKET_VERSION, "Sec-WebSocket-Version"),
    (SEC_WEBSOCKET_KEY, "Sec-WebSocket-Key"),
];

/// The client's side of a handshake.
#[derive(Debug)]
pub struct ClientHandshake<S> {
    expected: Expected,
    config: Option<WebSocketConfig>,
    #[cfg(feature = "deflate")]
    agreement: Option<Agreement>,
    stream: PhantomData<S>,
}

/// What the response must match.
#[derive(Debug)]
struct Expected {
    accept: String,
    /// The subprotocols that were offered.
    protocols: Option<Vec<String>>,
    /// The offer of permessage-deflate that this crate has made.
    #[cfg(feature = "deflate")]
    deflate: Option<DeflateConfig>,
    /// The request had extensions of the user, and the user knows what to do with the answer.
    has_extensions: bool,
}

impl<S: Read + Write> ClientHandshake<S> {
    /// A handshake with this request on this stream.
    ///
    /// # Errors
    /// The request is not one of an upgrade to a WebSocket.
    pub fn start(
        stream: S,
        request: Request,
        config: Option<WebSocketConfig>,
    ) -> Result<MidHandshake<Self>> {
        if request.method() != Method::GET {
            return Err(Error::Protocol(ProtocolError::WrongHttpMethod));
        }
        if request.version() < Version::HTTP_11 {
            return Err(Error::Protocol(ProtocolError::WrongHttpVersion));
        }
        uri_mode(request.uri())?;
        let protocols = match request.headers().get(SEC_WEBSOCKET_PROTOCOL) {
            Some(value) => {
                Some(value.to_str()?.split(',').map(|name| name.trim().to_owned()).collect())
            }
            None => None,
        };
        let has_extensions = request.headers().contains_key(SEC_WEBSOCKET_EXTENSIONS);
        #[cfg(feature = "deflate")]
        let (request, deflate) = {
            let (mut request, mut deflate) = (request, None);
            if let (Some(config), false) =
                (config.as_ref().and_then(|config| config.deflate), has_extensions)
            {
                let offer = offer_extensions(&config).try_into()?;
                request.headers_mut().insert(SEC_WEBSOCKET_EXTENSIONS, offer);
                deflate = Some(config);
            }
            (request, deflate)
        };
        let (bytes, key) = generate_request(request)?;
        let expected = Expected {
            accept: derive_accept_key(key.as_bytes()),
            protocols,
            #[cfg(feature = "deflate")]
            deflate,
            has_extensions,
        };
        let role = Self {
            expected,
            config,
            #[cfg(feature = "deflate")]
            agreement: None,
            stream: PhantomData,
        };
        Ok(MidHandshake { role, machine: HandshakeMachine::start_write(stream, bytes) })
    }
}

impl<S: Read + Write> HandshakeRole for ClientHandshake<S> {
    type IncomingData = Response;
    type InternalStream = S;
    type FinalResult = (WebSocket<S>, Response);

    fn stage_finished(
        &mut self,
        finish: StageResult<Self::IncomingData, Self::InternalStream>,
    ) -> Result<ProcessingResult<Self::InternalStream, Self::FinalResult>> {
        let (stream, mut response, tail) = match finish {
            StageResult::DoneWriting(stream) => {
                return Ok(ProcessingResult::Continue(HandshakeMachine::start_read(stream)));
            }
            StageResult::DoneReading { stream, result, tail } => (stream, result, tail),
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            *response.body_mut() = Some(tail);
            return Err(Error::Http(Box::new(response)));
        }
        self.expected.check(response.headers())?;
        #[cfg(feature = "deflate")]
        if let (Some(config), Some(value)) =
            (&self.expected.deflate, response.headers().get(SEC_WEBSOCKET_EXTENSIONS))
        {
            let agreement = check_extensions(value.as_bytes(), config);
            self.agreement = Some(agreement.ok_or_else(|| invalid(SEC_WEBSOCKET_EXTENSIONS))?);
        }
        let socket = WebSocket::from_partially_read(stream, tail, Role::Client, self.config);
        #[cfg(feature = "deflate")]
        let socket = match self.agreement {
            Some(agreement) => socket.with_agreement(agreement),
            None => socket,
        };
        Ok(ProcessingResult::Done((socket, response)))
    }
}

impl Expected {
    /// Checks the headers of a response with the status 101 (RFC 6455 section 4.1).
    fn check(&self, headers: &HeaderMap) -> Result<()> {
        if !is_word(headers, "Upgrade", "websocket") {
            return Err(Error::Protocol(ProtocolError::MissingUpgradeWebSocketHeader));
        }
        if !lists_token(headers, "Connection", "upgrade") {
            return Err(Error::Protocol(ProtocolError::MissingConnectionUpgradeHeader));
        }
        if headers.get("Sec-WebSocket-Accept").is_none_or(|value| value != &self.accept) {
            return Err(Error::Protocol(ProtocolError::SecWebSocketAcceptKeyMismatch));
        }
        #[cfg(feature = "deflate")]
        let has_offered = self.has_extensions || self.deflate.is_some();
        #[cfg(not(feature = "deflate"))]
        let has_offered = self.has_extensions;
        if !has_offered && headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
            return Err(invalid(SEC_WEBSOCKET_EXTENSIONS));
        }
        let error = match (headers.get(SEC_WEBSOCKET_PROTOCOL), &self.protocols) {
            (None, None) => return Ok(()),
            (None, Some(_)) => SubProtocolError::NoSubProtocol,
            (Some(_), None) => SubProtocolError::ServerSentSubProtocolNoneRequested,
            (Some(chosen), Some(offered)) => {
                let chosen = chosen.to_str()?;
                if offered.iter().any(|offered| offered == chosen) {
                    return Ok(());
                }
                SubProtocolError::InvalidSubProtocol
            }
        };
        Err(Error::Protocol(ProtocolError::SecWebSocketSubProtocolError(error)))
    }
}

fn invalid(name: HeaderName) -> Error {
    Error::Protocol(ProtocolError::InvalidHeader(Box::new(name)))
}

/// The bytes of this request, and its key.
///
/// # Errors
/// A header of the handshake is missing, there twice, or not ASCII; the URL has no path.
pub fn generate_request(mut request: Request) -> Result<(Vec<u8>, String)> {
    let target = request.uri().path_and_query().ok_or(Error::Url(UrlError::NoPathOrQuery))?;
    let version = version_text(request.version())?;
    let mut bytes = format!("GET {target} {version}\r\n").into_bytes();
    let mut write_line = |name: &str, value: &[u8]| {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            bytes.extend_from_slice(part);
        }
    };
    let headers = request.headers_mut();
    let key = headers.get(SEC_WEBSOCKET_KEY).ok_or_else(|| invalid(SEC_WEBSOCKET_KEY))?;
    let key = key.to_str()?.to_owned();
    for (name, spelling) in REQUIRED {
        if headers.get_all(&name).iter().nth(1).is_some() {
            return Err(invalid(name));
        }
        let value = headers.remove(&name).ok_or_else(|| invalid(name.clone()))?;
        let text = value
            .to_str()
            .map_err(|error| Error::Utf8(format!("{error} in the header {name}: {value:?}")))?;
        write_line(spelling, text.as_bytes());
    }
    for (name, value) in &*headers {
        // Some servers expect these as RFC 6455 spells them.
        let spelling = match name {
            name if name == SEC_WEBSOCKET_PROTOCOL => "Sec-WebSocket-Protocol",
            name if name == ORIGIN => "Origin",
            name => name.as_str(),
        };
        write_line(spelling, value.as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    Ok((bytes, key))
}

/// A random value of `Sec-WebSocket-Key`.
pub fn generate_key() -> String {
    let mut key = [0; 16];
    shared::entropy(&mut key);
    STANDARD.encode(key)
}

impl TryParse for Response {
    fn try_parse(data: &[u8]) -> Result<Option<(usize, Self)>> {
        let mut headers = EMPTY;
        let mut head = httparse::Response::new(&mut headers);
        let Status::Complete(len) = head.parse(data)? else { return Ok(None) };
        if head.version != Some(1) {
            return Err(Error::Protocol(ProtocolError::WrongHttpVersion));
        }
        let mut response = Self::new(None);
        *response.status_mut() = StatusCode::from_u16(head.code.unwrap_or_default())?;
        *response.headers_mut() = to_map(head.headers)?;
        Ok(Some((len, response)))
    }
}
