//! Handles to tasks.

mod abort;
mod handle;
mod set;

pub use abort::AbortHandle;
pub use handle::{JoinHandle, spawn};
pub use set::JoinSet;
