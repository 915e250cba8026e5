//! hyper's runtime traits (`hyper::rt`) on this crate: the public module `rt`.

mod executor;
mod timer;

pub use executor::WindlassExecutor;
pub use timer::WindlassTimer;
