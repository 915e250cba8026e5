//! How bytes move: events of the kernel, completions of a ring, and buffered output.

pub(super) mod completion;
pub(in crate::stream) mod fds;
pub(super) mod memory;
pub(super) mod output;
pub(super) mod readiness;
pub(super) mod tls;
pub(super) mod tls_input;
pub(super) mod tls_state;
pub(super) mod write;
