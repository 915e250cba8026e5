//! WebSockets of `windlass-server` beside an HTTP service, on one port and one reactor (feature
//! `websocket`).
//!
//! hyper answers the handshake. Then the socket, with the bytes that were read, goes to a service
//! of [`windlass_server`], which has handlers, topics and limits, and needs no task for each
//! connection. For WebSockets as tasks, use tokio-tungstenite.
//!
//! ```
//! use std::{convert::Infallible, rc::Rc};
//! use hyper::{Request, Response, body::Incoming, service::service_fn};
//! use windlass_http::{HttpServer, websocket::WebSocketRoute};
//! use windlass_server::{
//!     Connection, Handler, Message, Options,
//!     http::{Accept, Reject, UpgradeRequest},
//! };
//! use windlass_task::{block_on, net::TcpListener, spawn};
//!
//! struct Echo;
//!
//! impl Handler for Echo {
//!     type Data = ();
//!
//!     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
//!         Err(Reject::status(404)) // Not called, because hyper answers all requests.
//!     }
//!
//!     fn on_message(&self, connection: &mut Connection<'_>, _: &mut (), message: Message<'_>) {
//!         let _ = connection.reply_in_place(message);
//!     }
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! block_on(async {
//!     let route = Rc::new(WebSocketRoute::new(Echo, &Options::new())?);
//!     let service = service_fn(move |mut request: Request<Incoming>| {
//!         let response = match request.uri().path() {
//!             "/ws" => route.upgrade(&mut request, ()),
//!             _ => Response::new(String::from("hello")),
//!         };
//!         async { Ok::<_, Infallible>(response) }
//!     });
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     spawn(HttpServer::new().serve(listener, service)).detach();
//!     Ok(())
//! })
//! # }
//! ```

use core::fmt;
use std::{io, time::Duration};

use hyper::{
    Method, Request, Response, StatusCode, Version,
    header::{self, HeaderMap, HeaderValue},
    upgrade::OnUpgrade,
};
use windlass_server::{Handler, Options, Service, Upgraded, http::Origins};
use windlass_task::{cancel::Cancel, net::TcpStream, spawn, time::timeout, with_turn};
use windlass_ws::{
    deflate::{Agreement, DeflateConfig},
    handshake::{accept_value, answer_extensions},
};

use crate::upgraded_parts;

/// The time from the handshake until the answer has left and the service has the connection.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(30);

/// A service of `windlass-server`, whose connections come from HTTP requests.
///
/// It stays on its thread. In axum, whose handlers ask for `Send`, put it into an
/// `Arc<`[`Pinned`](windlass_task::Pinned)`<..>>`.
///
/// The limits of connections are those of the service's [`Options`]. Its
/// [`on_upgrade`](Handler::on_upgrade) is not called.
pub struct WebSocketRoute<H: Handler> {
    service: Service<H>,
    origins: Origins,
    deflate: Option<DeflateConfig>,
}

impl<H: Handler> WebSocketRoute<H> {
    /// Starts a service on the reactor of the executor that runs on this thread. It accepts
    /// handshakes of [`Origins::Same`].
    ///
    /// # Errors
    /// Those of [`Service::new`], or if there is no turn here: call it in a task.
    pub fn new(handler: H, options: &Options) -> io::Result<Self> {
        let service = with_turn(|mut turn| Service::new_in_turn(handler, options, &mut turn))
            .ok_or_else(no_turn)??;
        Ok(Self { service, origins: Origins::default(), deflate: options.deflate })
    }

    /// Sets which pages may open WebSockets. A page of another origin must not use the rights of a
    /// browser's user (RFC 6455 section 10.2).
    #[must_use]
    pub fn origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// The service, for its hub, its sender and its shutdown.
    #[must_use]
    pub const fn service(&self) -> &Service<H> {
        &self.service
    }

    /// Shuts the service down gracefully, and waits until all its connections are gone: see
    /// [`Service::drain`]. Each one gets a Close frame, and those that stay open are reset after
    /// `deadline`.
    ///
    /// [`HttpServer::serve_until`](crate::HttpServer::serve_until) leaves upgraded connections
    /// open. Call this when it has returned, because its last requests may still open WebSockets.
    ///
    /// # Errors
    /// If there is no turn here: await it in a task.
    pub async fn drain(&self, deadline: Duration) -> io::Result<()> {
        let ended = Cancel::new();
        let callback = ended.clone();
        with_turn(|mut turn| self.service.drain(deadline, &mut turn, move |_| callback.cancel()))
            .ok_or_else(no_turn)?;
        ended.cancelled().await;
        Ok(())
    }

    /// Answers a request for a WebSocket: 101 if its handshake is valid, and otherwise 400, 403 for
    /// a page of another origin, or 426 for another version of the protocol. The service takes the
    /// connection over when the response was sent.
    ///
    /// It is for HTTP/1.1 on TCP without TLS: what else was upgraded is closed. So is a connection
    /// whose peer has not read the response 30 s after this call.
    ///
    /// # Panics
    /// If no executor runs on this thread.
    pub fn upgrade<B, R: Default>(&self, request: &mut Request<B>, data: H::Data) -> Response<R>
    where
        H: 'static,
        H::Data: 'static,
    {
        let mut response = Response::new(R::default());
        let status = match self.check(request, response.headers_mut()) {
            Ok(agreement) => {
                let upgrade = hyper::upgrade::on(request);
                let upgraded = Upgraded::new(data).deflate(agreement);
                spawn(hand_over(self.service.clone(), upgrade, upgraded)).detach();
                StatusCode::SWITCHING_PROTOCOLS
            }
            Err(status) => {
                response.headers_mut().clear();
                if status == StatusCode::UPGRADE_REQUIRED {
                    set_upgrade(response.headers_mut());
                    let version = HeaderValue::from_static("13");
                    response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, version);
                }
                status
            }
        };
        *response.status_mut() = status;
        response
    }

    /// Checks a handshake, and sets the headers of its answer (RFC 6455 section 4.2).
    fn check<B>(
        &self,
        request: &Request<B>,
        answer: &mut HeaderMap,
    ) -> Result<Option<Agreement>, StatusCode> {
        let headers = request.headers();
        if !is_handshake(request) {
            return Err(StatusCode::BAD_REQUEST);
        }
        if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(StatusCode::UPGRADE_REQUIRED);
        }
        let origin = headers.get(header::ORIGIN).map(HeaderValue::as_bytes);
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        if !self.origins.allow(origin, host) {
            return Err(StatusCode::FORBIDDEN);
        }
        let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or(StatusCode::BAD_REQUEST)?;
        let accept = accept_value(key.as_bytes()).ok_or(StatusCode::BAD_REQUEST)?;
        let value = |text: &[u8]| {
            HeaderValue::from_bytes(text).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
        };
        set_upgrade(answer);
        answer.insert(header::SEC_WEBSOCKET_ACCEPT, value(accept.as_ref())?);
        let offers =
            headers.get_all(header::SEC_WEBSOCKET_EXTENSIONS).iter().map(HeaderValue::as_bytes);
        let agreed = self.deflate.as_ref().and_then(|config| answer_extensions(offers, config));
        let Some((extension, agreement)) = agreed else { return Ok(None) };
        answer.insert(header::SEC_WEBSOCKET_EXTENSIONS, value(extension.as_ref())?);
        Ok(Some(agreement))
    }
}

impl<H: Handler> fmt::Debug for WebSocketRoute<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketRoute").field("origins", &self.origins).finish_non_exhaustive()
    }
}

fn no_turn() -> io::Error {
    io::Error::other("no turn of a reactor here: call this in a task")
}

/// Names the protocol, as a response with status 101 or 426 must (RFC 9110 sections 7.8 and
/// 15.5.22).
fn set_upgrade(answer: &mut HeaderMap) {
    answer.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
}

/// Whether a request is a handshake, of any version of the protocol: without a body, and with each
/// of its values at most once.
fn is_handshake<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let lengths = headers.get_all(header::CONTENT_LENGTH);
    request.method() == Method::GET
        && request.version() == Version::HTTP_11
        && !headers.contains_key(header::TRANSFER_ENCODING)
        && lengths.into_iter().all(|length| length == "0")
        && lists(headers, header::UPGRADE, "websocket")
        && lists(headers, header::CONNECTION, "upgrade")
        && [header::HOST, header::ORIGIN, header::SEC_WEBSOCKET_KEY, header::SEC_WEBSOCKET_VERSION]
            .into_iter()
            .all(|name| headers.get_all(name).into_iter().count() <= 1)
}

/// Whether a header lists an element.
fn lists(headers: &HeaderMap, name: header::HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|element| element.trim().eq_ignore_ascii_case(wanted))
}

/// Takes the socket from hyper after the answer was sent. A connection that fails before is closed,
/// and so is one that does not take the answer in time.
async fn hand_over<H: Handler + 'static>(
    service: Service<H>,
    upgrade: OnUpgrade,
    upgraded: Upgraded<H::Data>,
) {
    let detached = async {
        let parts = upgraded_parts::<TcpStream>(upgrade.await.ok()?).ok()?;
        Some((parts.stream.detach().await.ok()?, parts.read_buf))
    };
    let Ok(Some(((socket, rest), first))) = timeout(HAND_OVER_TIMEOUT, detached).await else {
        return;
    };
    let read_buf = [&first[..], &rest].concat();
    // A service that has no room or is draining closes the socket.
    with_turn(|mut turn| _ = service.adopt(socket, read_buf, upgraded, &mut turn));
}
