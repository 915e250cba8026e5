//! The tools that count instructions and system calls.

pub(crate) mod instructions;
pub(crate) mod singlestep;
pub(crate) mod strace;
