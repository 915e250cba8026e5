//! The types that users name: streams, their handlers, settings, addresses and outgoing
//! connections.

pub(super) mod address;
pub(super) mod connector;
pub(super) mod handler;
pub(super) mod member;
pub(super) mod options;
pub(super) mod stream;
pub(super) mod tls;
