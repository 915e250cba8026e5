//! Several services, one on each worker thread.

mod cluster;
mod listeners;
mod running;
mod server;
mod setup;

pub use running::{Drainer, RunningServer};
pub use server::Server;
