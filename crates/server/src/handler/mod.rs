//! The application's handler, and the service and a connection as its callbacks see them.

mod connection;
#[expect(clippy::module_inception, reason = "the folder is named for its main type")]
mod handler;
mod handler_fn;
mod hub;
mod pending_upgrade;

pub use connection::Connection;
pub use handler::Handler;
pub use handler_fn::{MessageFn, handler_fn};
pub use hub::Hub;
pub(crate) use pending_upgrade::WaitingUpgrade;
pub use pending_upgrade::{PendingUpgrade, UpgradeDecision, UpgradeTicket};
