//! The server's side of a handshake.

use std::{
    io::{self, Read, Write},
    marker::PhantomData,
};

use http::{
    HeaderMap, Method, Request as HttpRequest, Response as HttpResponse, StatusCode, Version,
};
use httparse::Status;
#[cfg(feature = "deflate")]
use windlass_ws::deflate::Agreement;
use windlass_ws::handshake::accept_value;

use super::{
    HandshakeRole, MidHandshake, ProcessingResult,
    headers::{EMPTY, is_word, lists_token, to_map},
    machine::{HandshakeMachine, StageResult, TryParse},
    version_text,
};
use crate::{
    error::{Error, ProtocolError, Result},
    protocol::{Role, WebSocket, WebSocketConfig},
};

/// A client's request.
pub type Request = HttpRequest<()>;

/// The response that accepts it.
pub type Response = HttpResponse<()>;

/// A response that refuses it, with a body.
pub type ErrorResponse = HttpResponse<Option<String>>;

/// The response that accepts this request.
///
/// # Errors
/// The request is no upgrade to a WebSocket.
pub fn create_response(request: &Request) -> Result<Response> {
    create_response_with_body(request, || ())
}

/// The response that accepts this request, with a body of the caller's type.
///
/// # Errors
/// The request is no upgrade to a WebSocket.
pub fn create_response_with_body<T1, T2>(
    request: &HttpRequest<T1>,
    generate_body: impl FnOnce() -> T2,
) -> Result<HttpResponse<T2>> {
    let accept = check(request.method(), request.version(), request.headers())?;
    let response = HttpResponse::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .version(request.version())
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Accept", accept);
    Ok(response.body(generate_body())?)
}

/// Checks a request (RFC 6455 section 4.2.1). Returns the value of `Sec-WebSocket-Accept`.
fn check(method: &Method, version: Version, headers: &HeaderMap) -> Result<String, ProtocolError> {
    if method != Method::GET {
        return Err(ProtocolError::WrongHttpMethod);
    }
    if version < Version::HTTP_11 {
        return Err(ProtocolError::WrongHttpVersion);
    }
    if !lists_token(headers, "Connection", "upgrade") {
        return Err(ProtocolError::MissingConnectionUpgradeHeader);
    }
    if !is_word(headers, "Upgrade", "websocket") {
        return Err(ProtocolError::MissingUpgradeWebSocketHeader);
    }
    if !is_word(headers, "Sec-WebSocket-Version", "13") {
        return Err(ProtocolError::MissingSecWebSocketVersionHeader);
    }
    let key = headers.get("Sec-WebSocket-Key").ok_or(ProtocolError::MissingSecWebSocketKey)?;
    accept_value(key.as_bytes()).ok_or_else(invalid_key)
}

#[cfg(not(tungstenite_0_29))]
fn invalid_key() -> ProtocolError {
    ProtocolError::InvalidSecWebSocketKey
}

/// The enum of 0.29 has no variant for it, and programs match all of them.
#[cfg(tungstenite_0_29)]
fn invalid_key() -> ProtocolError {
    ProtocolError::InvalidHeader(Box::new(http::header::SEC_WEBSOCKET_KEY))
}

/// Writes the head of a response.
///
/// # Errors
/// A header that is not ASCII, and those of `w`.
pub fn write_response<T>(mut w: impl io::Write, response: &HttpResponse<T>) -> Result<()> {
    write!(w, "{} {}\r\n", version_text(response.version())?, response.status())?;
    for (name, value) in response.headers() {
        write!(w, "{name}: {}\r\n", value.to_str()?)?;
    }
    Ok(w.write_all(b"\r\n")?)
}

impl TryParse for Request {
    fn try_parse(data: &[u8]) -> Result<Option<(usize, Self)>> {
        let mut headers = EMPTY;
        let mut head = httparse::Request::new(&mut headers);
        match head.parse(data)? {
            Status::Complete(len) => Ok(Some((len, from_head(&head)?))),
            Status::Partial => Ok(None),
        }
    }
}

/// The request with this head.
pub(crate) fn from_head(head: &httparse::Request<'_, '_>) -> Result<Request> {
    if head.method != Some("GET") {
        return Err(Error::Protocol(ProtocolError::WrongHttpMethod));
    }
    if head.version != Some(1) {
        return Err(Error::Protocol(ProtocolError::WrongHttpVersion));
    }
    let mut request = Request::new(());
    *request.uri_mut() = head.path.unwrap_or_default().parse()?;
    *request.headers_mut() = to_map(head.headers)?;
    Ok(request)
}

/// Sees the request of a client, and decides.
pub trait Callback: Sized {
    /// Returns the response that accepts the request, to which it may add headers.
    ///
    /// # Errors
    /// A response that refuses the request, with a status other than 200 to 299.
    fn on_request(self, request: &Request, response: Response) -> Result<Response, ErrorResponse>;
}

impl<F> Callback for F
where
    F: FnOnce(&Request, Response) -> Result<Response, ErrorResponse>,
{
    fn on_request(self, request: &Request, response: Response) -> Result<Response, ErrorResponse> {
        self(request, response)
    }
}

/// Accepts every request.
#[derive(Clone, Copy, Debug)]
pub struct NoCallback;

impl Callback for NoCallback {
    fn on_request(self, _: &Request, response: Response) -> Result<Response, ErrorResponse> {
        Ok(response)
    }
}

/// The server's side of a handshake.
#[allow(missing_copy_implementations, reason = "the interface has none")]
#[derive(Debug)]
pub struct ServerHandshake<S, C> {
    /// `None` once it was called.
    callback: Option<C>,
    config: Option<WebSocketConfig>,
    /// The response that refuses the request, while it is written.
    refusal: Option<ErrorResponse>,
    #[cfg(feature = "deflate")]
    agreement: Option<Agreement>,
    stream: PhantomData<S>,
}

impl<S: Read + Write, C: Callback> ServerHandshake<S, C> {
    /// A handshake on this stream. The callback sees the request.
    pub fn start(stream: S, callback: C, config: Option<WebSocketConfig>) -> MidHandshake<Self> {
        let role = Self {
            callback: Some(callback),
            config,
            refusal: None,
            #[cfg(feature = "deflate")]
            agreement: None,
            stream: PhantomData,
        };
        MidHandshake { role, machine: HandshakeMachine::start_read(stream) }
    }

    /// The bytes that answer the request.
    fn answer(&mut self, request: &Request) -> Result<Vec<u8>> {
        let response = create_response(request)?;
        #[cfg(feature = "deflate")]
        let response = self.negotiate(request, response)?;
        let decision = match self.callback.take() {
            Some(callback) => callback.on_request(request, response),
            None => Ok(response),
        };
        let mut bytes = Vec::new();
        match decision {
            Ok(response) => write_response(&mut bytes, &response)?,
            Err(refusal) if refusal.status().is_success() => {
                return Err(Error::Protocol(ProtocolError::CustomResponseSuccessful));
            }
            Err(refusal) => {
                write_response(&mut bytes, &refusal)?;
                bytes.extend_from_slice(refusal.body().as_deref().unwrap_or_default().as_bytes());
                self.refusal = Some(refusal);
            }
        }
        Ok(bytes)
    }

    /// Answers the offers of permessage-deflate, if the settings have it.
    #[cfg(feature = "deflate")]
    fn negotiate(&mut self, request: &Request, mut response: Response) -> Result<Response> {
        let Some(config) = self.config.as_ref().and_then(|config| config.deflate) else {
            return Ok(response);
        };
        let offers = request.headers().get_all(http::header::SEC_WEBSOCKET_EXTENSIONS);
        let offers = offers.iter().map(http::HeaderValue::as_bytes);
        if let Some((value, agreement)) = windlass_ws::handshake::answer_extensions(offers, &config)
        {
            response
                .headers_mut()
                .insert(http::header::SEC_WEBSOCKET_EXTENSIONS, value.try_into()?);
            self.agreement = Some(agreement);
        }
        Ok(response)
    }
}

impl<S: Read + Write, C: Callback> HandshakeRole for ServerHandshake<S, C> {
    type IncomingData = Request;
    type InternalStream = S;
    type FinalResult = WebSocket<S>;

    fn stage_finished(
        &mut self,
        finish: StageResult<Self::IncomingData, Self::InternalStream>,
    ) -> Result<ProcessingResult<Self::InternalStream, Self::FinalResult>> {
        match finish {
            StageResult::DoneReading { tail, .. } if !tail.is_empty() => {
                Err(Error::Protocol(ProtocolError::JunkAfterRequest))
            }
            StageResult::DoneReading { stream, result, .. } => {
                let answer = self.answer(&result)?;
                Ok(ProcessingResult::Continue(HandshakeMachine::start_write(stream, answer)))
            }
            StageResult::DoneWriting(stream) => match self.refusal.take() {
                Some(refusal) => {
                    Err(Error::Http(Box::new(refusal.map(|body| body.map(String::into_bytes)))))
                }
                None => {
                    let socket = WebSocket::from_raw_socket(stream, Role::Server, self.config);
                    #[cfg(feature = "deflate")]
                    let socket = match self.agreement {
                        Some(agreement) => socket.with_agreement(agreement),
                        None => socket,
                    };
                    Ok(ProcessingResult::Done(socket))
                }
            },
        }
    }
}
