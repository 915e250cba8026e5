//! The server's side.

use std::fmt;

use hyper::{
    HeaderMap, Request, Response, StatusCode,
    header::{self, HeaderValue},
    http::Extensions,
    upgrade::OnUpgrade,
};
use windlass_ws::handshake::{Rejection, Request as RequestHead, Upgrade};

use super::{Upgrading, head};
use crate::{
    AcceptError, Answer, Config, Role,
    handshake::{Accepted, Decision, decide},
};

/// Answers a request for a WebSocket, over HTTP/1.1 or HTTP/2 (feature `http2`). Send the response.
/// The future is ready with the socket when it has been sent.
///
/// The checks are those of [`WebSocket::accept`](crate::WebSocket::accept), and the same settings
/// of [`Config`] count.
///
/// # Errors
/// The request is no upgrade, malformed, or not allowed. [`Refused::into_response`] says so.
pub fn upgrade<B, R: Default>(
    request: &mut Request<B>,
    config: &Config,
) -> Result<(Response<R>, Upgrading), Refused> {
    upgrade_with(request, config, |_| Answer::accept())
}

/// Like [`upgrade`]. The closure sees the request and decides.
///
/// # Errors
/// As for [`upgrade`].
pub fn upgrade_with<B, R: Default>(
    request: &mut Request<B>,
    config: &Config,
    decide: impl FnOnce(&Upgrade<'_>) -> Answer,
) -> Result<(Response<R>, Upgrading), Refused> {
    let head = Head::of(
        request.method(),
        request.uri(),
        request.version(),
        request.headers(),
        request.extensions(),
    );
    let Outcome { status, headers, result } = head.answer(config, decide);
    let mut response = Response::new(());
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    match result {
        Ok(accepted) => {
            let on_upgrade = hyper::upgrade::on(request);
            Ok((response.map(|()| R::default()), head.upgrading(on_upgrade, config, accepted)))
        }
        Err(error) => Err(Refused { error, response: Box::new(response) }),
    }
}

/// A request that was not accepted.
#[derive(Debug)]
pub struct Refused {
    error: AcceptError,
    response: Box<Response<()>>,
}

impl Refused {
    /// The reason.
    #[must_use]
    pub fn error(&self) -> &AcceptError {
        &self.error
    }

    /// The status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The response that says so, with a text for people. A service with another type of body uses
    /// `into_response().map(…)`.
    #[must_use]
    pub fn into_response(self) -> Response<String> {
        let Self { error, mut response } = self;
        let text = match error {
            AcceptError::Rejected(rejection) => format!("{rejection}\n"),
            _ => String::new(),
        };
        if !text.is_empty() {
            let plain = HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, plain);
        }
        response.map(|()| text)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The head of a request, as the handshake reads it.
#[derive(Debug)]
pub(crate) struct Head {
    bytes: Vec<u8>,
    pub(crate) is_http2: bool,
    /// It asks for another protocol than WebSocket.
    has_other_protocol: bool,
}

/// The answer to a request.
pub(crate) struct Outcome {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) result: Result<Accepted, AcceptError>,
}

impl Head {
    pub(crate) fn of(
        method: &hyper::Method,
        uri: &hyper::Uri,
        version: hyper::Version,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Self {
        let is_http2 = version >= hyper::Version::HTTP_2;
        if !is_http2 {
            let bytes = head::http1_request(method, uri, version, headers);
            return Self { bytes, is_http2, has_other_protocol: false };
        }
        let protocol = protocol(extensions);
        let protocol = protocol.filter(|_| *method == hyper::Method::CONNECT);
        let is_websocket = protocol == Some("websocket");
        Self {
            bytes: head::http2_request(method, uri, headers, is_websocket),
            is_http2,
            has_other_protocol: protocol.is_some() && !is_websocket,
        }
    }

    /// Checks the request, without answering it.
    #[cfg(feature = "axum")]
    pub(crate) fn check(&self, config: &Config) -> Result<(), Rejection> {
        self.read(config, |_| ())
    }

    fn read<T>(
        &self,
        config: &Config,
        use_it: impl FnOnce(&Upgrade<'_>) -> T,
    ) -> Result<T, Rejection> {
        match RequestHead::parse(&self.bytes, &config.settings().head_limits)? {
            Some((request, _)) => Ok(use_it(&request.upgrade()?)),
            None => Err(Rejection::RequestLine),
        }
    }

    pub(crate) fn answer(
        &self,
        config: &Config,
        choose: impl FnOnce(&Upgrade<'_>) -> Answer,
    ) -> Outcome {
        let decision = if self.has_other_protocol {
            // RFC 9220 section 3.
            Decision::refused(501, &[])
        } else {
            self.read(config, |upgrade| decide(upgrade, config, choose))
                .unwrap_or_else(Decision::rejected)
        };
        let (status, headers) = head::answer(&decision.answer, self.is_http2);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Outcome { status, headers, result: decision.result }
    }

    pub(crate) fn upgrading(
        &self,
        on_upgrade: OnUpgrade,
        config: &Config,
        accepted: Accepted,
    ) -> Upgrading {
        let (config, role) = (config.clone(), Role::Server);
        Upgrading { on_upgrade, config, role, accepted, is_http2: self.is_http2 }
    }
}

/// The `:protocol` of a request (RFC 8441 section 4).
#[cfg(feature = "http2")]
fn protocol(extensions: &Extensions) -> Option<&str> {
    extensions.get::<hyper::ext::Protocol>().map(hyper::ext::Protocol::as_str)
}

#[cfg(not(feature = "http2"))]
fn protocol(_: &Extensions) -> Option<&str> {
    None
}

/// The subprotocols that a client offers.
#[cfg(feature = "axum")]
pub(crate) fn offered(headers: &HeaderMap) -> impl Iterator<Item = HeaderValue> + '_ {
    headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .filter_map(|protocol| HeaderValue::from_bytes(protocol.trim_ascii()).ok())
}
