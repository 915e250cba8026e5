//! Sockets over streams in memory, driven poll by poll.

#[allow(dead_code, reason = "the next tests use it")]
mod bed;
mod echo;
mod pieces;
