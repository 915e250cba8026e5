//! A service: the application's handler, the state that its connections share, and what calls them.

mod commands;
mod host;
#[expect(clippy::module_inception, reason = "the folder is named for its main type")]
mod service;
mod timer;

pub use service::Service;
pub(crate) use service::{ConnectionLimits, ServiceInner, WorkerLinks, memory_pool};
