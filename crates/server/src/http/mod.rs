//! Decisions before a connection becomes a WebSocket: which paths accept upgrades, which pages are
//! served, which clients may connect.
//!
//! Nothing here reads or writes a socket. The input is requests parsed by
//! [`windlass_ws::handshake`]; the output is decisions and bytes. A host that does the upgrade
//! itself, such as a hyper server, can use the same checks.
//!
//! A request passes the checks in this order:
//!
//! 1. [`ConnectionLimiter`], when the connection is accepted.
//! 2. [`Hosts`] and [`Routes`], when the head of the request is complete.
//! 3. [`Origins`], if the request is an upgrade. Over TLS an own page has the scheme `https`.
//! 4. The application's `on_upgrade` with an [`UpgradeRequest`], which returns an [`Accept`] or a
//!    [`Reject`].

mod date;
mod forwarded;
mod header;
mod host;
mod limiter;
mod networks;
mod origin;
mod page;
mod proxy_header;
mod reject;
mod response;
mod routes;
mod tls;
mod upgrade;

pub use forwarded::ForwardedHeader;
pub(crate) use forwarded::{MalformedForwarded, client_of};
pub(crate) use host::ListenerKind;
pub use host::{HostError, HostName, Hosts, HostsError};
pub use limiter::{AddressKey, ConnectionLimiter, ConnectionPermit, PermitError};
pub use networks::{Networks, NetworksError, Proxies};
pub use origin::{Origin, OriginError, Origins, OriginsError};
pub use page::{Body, Page};
pub(crate) use proxy_header::{ProxyHeaderError, StatedClient, parse as parse_proxy_header};
pub use reject::Reject;
pub(crate) use response::{
    finish as finish_response, reject, start as start_response, without_body,
};
pub(crate) use routes::wants_close;
pub use routes::{Next, Routes, Served};
pub use tls::TlsInfo;
pub(crate) use upgrade::LazyPeer;
pub use upgrade::{Accept, Opened, UpgradeRequest};
