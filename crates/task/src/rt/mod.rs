//! What hyper needs of a runtime: a timer and an executor (feature `hyper`).
//!
//! Streams implement `hyper::rt::{Read, Write}` themselves, with vectored writes and without
//! clearing hyper's buffers. So they are passed to hyper as they are, without an adapter.
//!
//! ```
//! use windlass_task::rt::{WindlassExecutor, WindlassTimer};
//!
//! fn settings<E>(_: E, _: impl hyper::rt::Timer + Send + Sync + 'static) {}
//!
//! // `http2::Builder::new(executor)` and `http1::Builder::new().timer(timer)` take them.
//! settings(WindlassExecutor, WindlassTimer::new());
//! ```

mod executor;
mod timer;

pub use executor::WindlassExecutor;
pub use timer::WindlassTimer;
