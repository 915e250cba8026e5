//! Topics, and the way of publications and messages to their receivers.

mod backlog;
mod compressor;
mod deliver;
mod publish_batch;
mod topics;

pub(crate) use deliver::{Delivery, waiting_bytes};
pub(crate) use topics::{STATUS_TOPIC, Topics, is_reserved};
