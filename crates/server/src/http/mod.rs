//! What a server decides before a connection is a WebSocket: where upgrades are taken, which pages
//! there are, who may connect.
//!
//! Nothing here reads or writes a socket: requests that [`windlass_ws::handshake`] has read come
//! in, decisions and bytes come out. A host that does the upgrade itself, a hyper server for
//! instance, can ask the same questions.
//!
//! The order in which a request meets them: [`PlaceCounter`] when the connection is accepted,
//! [`Hosts`] and [`Routes`] when its head is complete, [`Origins`] where it is an upgrade, the
//! application's `on_upgrade` with an [`UpgradeRequest`], which answers with a [`Accept`] or a
//! [`Reject`].

mod address;
mod date;
mod header;
mod host;
mod origin;
mod page;
mod reject;
mod response;
mod routes;
mod upgrade;

pub use address::{AddressKey, NoPlace, Place, PlaceCounter};
pub(crate) use host::Door;
pub use host::{HostError, HostName, Hosts, HostsError};
pub use origin::{Origin, OriginError, Origins, OriginsError};
pub use page::{Body, Page};
pub use reject::Reject;
pub(crate) use response::{reject, without_body};
pub use routes::{Next, Routes, Served};
pub(crate) use upgrade::LazyPeer;
pub use upgrade::{Accept, Opened, UpgradeRequest};
