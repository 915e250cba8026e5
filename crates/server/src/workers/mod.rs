//! Several services, one on each worker thread.

mod server;

pub use server::{Drainer, RunningServer, Server, StatsHandle};
