//! WebSockets on connections of hyper, for both roles, over HTTP/1.1 and HTTP/2 (feature `hyper`).
//!
//! | role | call | result |
//! |---|---|---|
//! | server | [`upgrade`], [`upgrade_with`] | the response, and the future of the socket |
//! | client | [`ClientUpgrade`] | the request, and a check of the response |
//!
//! Over HTTP/2 (RFC 8441, feature `http2`) a WebSocket is one stream of the connection. The same
//! calls serve it: see [`http2`](crate::http2) for the settings of the connection.
//!
//! ```no_run
//! use hyper::{Request, Response, body::Incoming};
//! use windlass_websocket::{Config, upgrade::upgrade};
//!
//! async fn serve(mut request: Request<Incoming>) -> Result<Response<String>, hyper::Error> {
//!     let (response, upgrading) = match upgrade(&mut request, &Config::new()) {
//!         Ok(upgraded) => upgraded,
//!         Err(refused) => return Ok(refused.into_response()),
//!     };
//!     tokio::spawn(async move {
//!         let mut socket = upgrading.await?;
//!         while let Some(message) = socket.recv().await? {
//!             message.reply()?;
//!         }
//!         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//!     });
//!     Ok(response)
//! }
//! ```

mod client;
mod head;
mod io;
mod server;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper::upgrade::OnUpgrade;

use crate::{Config, Role, Transport, WebSocket, core::Core, handshake::Accepted, inbox::Inbox};

pub use client::{ClientUpgrade, UpgradeError};
pub use io::UpgradedIo;
pub use server::{Refused, upgrade, upgrade_with};

#[cfg(feature = "axum")]
pub(crate) use server::{Head, Outcome, offered};

/// The future of a socket. It is ready when hyper has sent the response, or received it.
///
/// hyper makes the upgrade while it runs the connection: with HTTP/1.1, run it by `with_upgrades`.
/// A dropped future closes the connection, or the stream of HTTP/2.
#[must_use = "futures do nothing unless polled"]
pub struct Upgrading {
    pub(crate) on_upgrade: OnUpgrade,
    pub(crate) config: Config,
    pub(crate) role: Role,
    pub(crate) accepted: Accepted,
    pub(crate) is_http2: bool,
}

impl Upgrading {
    /// The subprotocol that the handshake chose.
    #[must_use]
    pub fn protocol(&self) -> Option<&str> {
        self.accepted.protocol.as_deref()
    }

    /// The socket on a transport that `wrap` makes, for example with a timer:
    /// `upgrading.wrapped(|io| Timed::new(io, TokioTimer::new()))`.
    ///
    /// # Errors
    /// Those of hyper: the connection has failed before the upgrade.
    pub async fn wrapped<S: Transport>(
        mut self,
        wrap: impl FnOnce(UpgradedIo) -> S,
    ) -> Result<WebSocket<S>, hyper::Error> {
        let upgraded = (&mut self.on_upgrade).await?;
        let core = self.core(wrap(UpgradedIo::new(upgraded, self.is_http2)));
        Ok(WebSocket::from_parts(Inbox::default(), core))
    }

    fn core<S: Transport>(&mut self, io: S) -> Core<S> {
        let core = Core::new(io, &self.config, self.role, self.accepted.protocol.take());
        #[cfg(feature = "deflate")]
        if let Some(agreement) = self.accepted.agreement.take() {
            let mut core = core;
            core.set_agreement(agreement);
            return core;
        }
        core
    }

    pub(crate) fn poll_core(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Core<UpgradedIo>, hyper::Error>> {
        let upgraded = ready!(Pin::new(&mut self.on_upgrade).poll(context))?;
        Poll::Ready(Ok(self.core(UpgradedIo::new(upgraded, self.is_http2))))
    }
}

impl Future for Upgrading {
    type Output = Result<WebSocket<UpgradedIo>, hyper::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_core(context).map_ok(|core| WebSocket::from_parts(Inbox::default(), core))
    }
}

impl std::fmt::Debug for Upgrading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upgrading").field("role", &self.role).finish_non_exhaustive()
    }
}
