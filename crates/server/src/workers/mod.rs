//! Several services, one on each worker thread.

mod cluster;
mod listeners;
mod reconfigurer;
mod running;
mod server;
mod setup;

pub use reconfigurer::Reconfigurer;
pub use running::{Drainer, RunningServer};
pub use server::Server;
