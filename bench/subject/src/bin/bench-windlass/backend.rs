//! The backends by name.

use windlass::Backend;
use windlass_bench_driver::{Error, Unsupported};

/// Returns the backend with this name.
pub(crate) fn parse(name: &str) -> Result<Backend, Error> {
    name.parse().map_err(|_| Unsupported("windlass has no such backend").into())
}
