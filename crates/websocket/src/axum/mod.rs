//! WebSockets in axum 0.8: what `axum::extract::ws` has, on this crate's engine (feature `axum`).
//!
//! For most programs it is enough to change the import: `axum::extract::ws` becomes
//! `windlass_websocket::axum`.
//!
//! ```
//! use axum::{Router, response::Response, routing::any};
//! use windlass_websocket::axum::{WebSocket, WebSocketUpgrade};
//!
//! async fn handler(upgrade: WebSocketUpgrade) -> Response {
//!     upgrade.on_upgrade(echo)
//! }
//!
//! async fn echo(mut socket: WebSocket) {
//!     while let Some(Ok(message)) = socket.recv().await {
//!         if socket.send(message).await.is_err() {
//!             return;
//!         }
//!     }
//! }
//!
//! let app: Router = Router::new().route("/ws", any(handler));
//! ```
//!
//! | axum's own | here |
//! |---|---|
//! | `read_buffer_size`, `accept_unmasked_frames` | absent: sockets share the buffers of their thread, and RFC 6455 section 5.1 forbids such frames |
//! | `max_write_buffer_size`: unlimited, and beyond it an error | 64 KiB, and beyond it `send` waits |
//! | `write_buffer_size`: 128 KiB | 64 KiB |
//! | a protocol of `set_selected_protocol` that the client does not offer is sent | status 500 (RFC 6455 section 4.2.2) |
//! | `Message::Close(None)` sends a Close frame without a code | with the code 1000 |
//! | a Close code that must not be sent, such as 1006, is sent | `send` fails |
//! | a malformed key, list of protocols or extensions is accepted | status 400 |
//! | | [`deflate`](WebSocketUpgrade::deflate), [`config`](WebSocketUpgrade::config) |
//!
//! `send` is ready when the message is written, or when further messages have already arrived and
//! more answers may follow. Those are written together, at the latest when the task of `on_upgrade`
//! waits for something.
//!
//! # Other runtimes than tokio
//!
//! `on_upgrade` starts a task of tokio. With the feature `windlass-task` it starts one of
//! `windlass-task` where that runs, so on `windlass-http` too nothing but the import changes. For
//! another runtime, add a [`SocketSpawner`] to the router:
//! `.layer(Extension(SocketSpawner::new(|task| my_spawn(task))))`.

mod message;
pub mod rejection;
mod shared;
mod socket;

use std::{borrow::Cow, fmt, future::Future, pin::Pin, sync::Arc};

use axum_core::{
    Error,
    body::Body,
    extract::FromRequestParts,
    response::{IntoResponse as _, Response},
};
use hyper::{StatusCode, header::HeaderValue, http::request::Parts, upgrade::OnUpgrade};

use crate::{
    Answer, Config,
    upgrade::{Head, Outcome, offered},
};

use rejection::WebSocketUpgradeRejection;

pub use crate::Utf8Bytes;
pub use message::{CloseCode, CloseFrame, Message, close_code};
pub use socket::WebSocket;

/// The task of a socket.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts the tasks of sockets on another runtime than tokio and `windlass-task`, as an extension
/// of the request.
#[derive(Clone)]
pub struct SocketSpawner {
    spawn: Arc<dyn Fn(Task) + Send + Sync>,
}

impl SocketSpawner {
    /// A spawner that calls this function.
    pub fn new(
        spawn: impl Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync + 'static,
    ) -> Self {
        Self { spawn: Arc::new(spawn) }
    }
}

impl fmt::Debug for SocketSpawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketSpawner").finish_non_exhaustive()
    }
}

/// The extractor of a request for a WebSocket: a GET of HTTP/1.1, or an extended CONNECT of HTTP/2.
/// Route it with `any` to have both.
#[must_use]
pub struct WebSocketUpgrade<F = DefaultOnFailedUpgrade> {
    head: Head,
    config: Config,
    write_buffer: usize,
    offered: Vec<HeaderValue>,
    selected: Option<HeaderValue>,
    on_upgrade: OnUpgrade,
    spawner: Option<SocketSpawner>,
    on_failed_upgrade: F,
}

impl<F> WebSocketUpgrade<F> {
    /// How many bytes are queued before they are written without a flush. Default: 64 KiB.
    pub fn write_buffer_size(mut self, size: usize) -> Self {
        self.write_buffer = size;
        self
    }

    /// How many bytes may wait before sending waits. Default: 64 KiB.
    pub fn max_write_buffer_size(mut self, max: usize) -> Self {
        self.config = self.config.high_watermark(max);
        self
    }

    /// The longest message, in bytes. Default: 64 MiB, as that of axum.
    pub fn max_message_size(mut self, max: usize) -> Self {
        self.config = self.config.message_max(max);
        self
    }

    /// The longest frame, in bytes. Default: 16 MiB, as that of axum.
    pub fn max_frame_size(mut self, max: usize) -> Self {
        self.config = self.config.frame_max(max);
        self
    }

    /// Accepts permessage-deflate (RFC 7692).
    #[cfg(feature = "deflate")]
    pub fn deflate(mut self, deflate: crate::DeflateConfig) -> Self {
        self.config = self.config.deflate(deflate);
        self
    }

    /// Replaces all settings. Its [protocols](Config::protocols) count if none was selected here.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Selects the first of these subprotocols that the client offers. The best comes first.
    pub fn protocols<I>(mut self, protocols: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<Cow<'static, str>>,
    {
        self.selected = protocols.into_iter().find_map(|protocol| {
            let protocol = protocol.into();
            self.offered.iter().find(|offered| offered.as_bytes() == protocol.as_bytes()).cloned()
        });
        self
    }

    /// The subprotocols that the client offers.
    pub fn requested_protocols(&self) -> impl Iterator<Item = &HeaderValue> {
        self.offered.iter()
    }

    /// Selects a subprotocol, which the client must have offered. The last call of this and
    /// [`protocols`](Self::protocols) counts.
    pub fn set_selected_protocol(&mut self, protocol: HeaderValue) {
        self.selected = Some(protocol);
    }

    /// The selected subprotocol.
    pub fn selected_protocol(&self) -> Option<&HeaderValue> {
        self.selected.as_ref()
    }

    /// Sets what is called if the connection fails before the upgrade. By default nothing is.
    pub fn on_failed_upgrade<C>(self, callback: C) -> WebSocketUpgrade<C>
    where
        C: OnFailedUpgrade,
    {
        WebSocketUpgrade {
            head: self.head,
            config: self.config,
            write_buffer: self.write_buffer,
            offered: self.offered,
            selected: self.selected,
            on_upgrade: self.on_upgrade,
            spawner: self.spawner,
            on_failed_upgrade: callback,
        }
    }

    /// The response to return. `callback` gets the socket when it was sent, in a task of its own.
    ///
    /// # Panics
    /// Without a [`SocketSpawner`], outside of tokio's runtime and of `windlass-task` (with its
    /// feature).
    #[must_use = "to set up the WebSocket connection, this response must be returned"]
    pub fn on_upgrade<C, Fut>(self, callback: C) -> Response
    where
        C: FnOnce(WebSocket) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
        F: OnFailedUpgrade,
    {
        let Outcome { status, headers, result } = self.head.answer(&self.config, |_| {
            match self.selected.as_ref().map(|protocol| protocol.to_str()) {
                Some(Ok(protocol)) => Answer::accept().protocol(protocol),
                // It cannot be one of those that the client offers.
                Some(Err(_)) => Answer::accept().protocol(""),
                None => Answer::accept(),
            }
        });
        let mut response = Response::new(Body::empty());
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        match result {
            Ok(accepted) => {
                let protocol = accepted.protocol.as_deref();
                let protocol = protocol.and_then(|protocol| HeaderValue::from_str(protocol).ok());
                let upgrading = self.head.upgrading(self.on_upgrade, &self.config, accepted);
                let (write_buffer, failed) = (self.write_buffer, self.on_failed_upgrade);
                let task = socket::run(upgrading, protocol, write_buffer, callback, failed);
                match self.spawner {
                    Some(spawner) => (spawner.spawn)(Box::pin(task)),
                    None => spawn(task),
                }
            }
            Err(error) => self.on_failed_upgrade.call(Error::new(error)),
        }
        response
    }
}

impl<F> fmt::Debug for WebSocketUpgrade<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketUpgrade")
            .field("config", &self.config)
            .field("selected", &self.selected)
            .finish_non_exhaustive()
    }
}

/// What is called when an upgrade fails: see [`WebSocketUpgrade::on_failed_upgrade`].
pub trait OnFailedUpgrade: Send + 'static {
    /// Calls it.
    fn call(self, error: Error);
}

impl<F> OnFailedUpgrade for F
where
    F: FnOnce(Error) + Send + 'static,
{
    fn call(self, error: Error) {
        self(error);
    }
}

/// Ignores the error.
#[non_exhaustive]
#[derive(Debug)]
pub struct DefaultOnFailedUpgrade;

impl OnFailedUpgrade for DefaultOnFailedUpgrade {
    fn call(self, _: Error) {}
}

impl<S: Send + Sync> FromRequestParts<S> for WebSocketUpgrade {
    type Rejection = WebSocketUpgradeRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let Parts { method, uri, version, headers, extensions, .. } = &mut *parts;
        let head = Head::of(method, uri, *version, headers, extensions);
        let config = Config::new().message_max(64 << 20).frame_max(16 << 20);
        if let Err(rejection) = head.check(&config) {
            return Err(WebSocketUpgradeRejection::of(rejection, &head, method));
        }
        let Some(on_upgrade) = extensions.remove::<OnUpgrade>() else {
            return Err(rejection::ConnectionNotUpgradable.into());
        };
        Ok(Self {
            head,
            config,
            write_buffer: 64 << 10,
            offered: offered(headers).collect(),
            selected: None,
            on_upgrade,
            spawner: extensions.get().cloned(),
            on_failed_upgrade: DefaultOnFailedUpgrade,
        })
    }
}

/// Starts a task on the runtime of this thread. That of `windlass-task` comes first: its
/// connections must stay on its thread, also if the program has entered a runtime of tokio there.
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    #[cfg(all(feature = "windlass-task", target_os = "linux"))]
    if windlass_task::stats().is_some() {
        return windlass_task::spawn(task).detach();
    }
    drop(tokio::spawn(task));
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    (status, text).into_response()
}
