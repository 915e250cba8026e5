//! The part that the two hand-written servers share. The measured programs are in `src/bin`.

#![deny(unsafe_code)]

pub mod floor;
#[cfg(feature = "servers")]
pub mod websocket;
