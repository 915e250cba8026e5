//! Frames, below messages.

pub mod coding;
#[expect(clippy::module_inception, reason = "it holds the type `Frame`")]
mod frame;
mod header;
mod socket;
mod utf8_bytes;

pub(super) use self::utf8_bytes::checked_str;
pub use self::{
    frame::{CloseFrame, Frame},
    header::FrameHeader,
    socket::FrameSocket,
    utf8_bytes::Utf8Bytes,
};
