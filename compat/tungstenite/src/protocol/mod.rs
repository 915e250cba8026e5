//! Messages over a stream, after the handshake.

mod answer;
mod config;
mod context;
pub mod frame;
mod input;
mod lent;
mod message;
pub(crate) mod output;
mod socket;
mod state;
mod violation;

pub use self::{
    config::WebSocketConfig, context::WebSocketContext, frame::CloseFrame, lent::LentMessage,
    message::Message, socket::WebSocket,
};

/// Which end of the connection a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has accepted the connection.
    Server,
    /// It has opened the connection, and masks what it sends.
    Client,
}
