//! Topics, and the way of publications and messages to their receivers.

mod backlog;
mod compressor;
mod deliver;
mod one_receiver;
mod publish_batch;
mod topics;

pub(crate) use deliver::Delivery;
pub(crate) use one_receiver::waiting_bytes;
pub(crate) use topics::{STATUS_TOPIC, Topics, is_reserved};
