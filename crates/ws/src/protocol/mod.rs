//! The parts of RFC 6455 that need no state of a connection: frame headers, masking, UTF-8, close
//! codes and violations.

pub(crate) mod close;
pub(crate) mod frame;
pub(crate) mod mask;
pub(crate) mod utf8;
#[cfg(target_arch = "x86_64")]
mod utf8_blocks;
pub(crate) mod violation;
