//! Topics, and the way of publications and messages to their receivers.

mod backlog;
mod compressor;
mod deliver;
mod publish_batch;
mod topics;

pub(crate) use backlog::{BackloggedMessage, Backlogs};
pub(crate) use compressor::FrameCompressor;
pub(crate) use deliver::{FrameCache, waiting_bytes};
pub(crate) use publish_batch::PublishBatch;
pub(crate) use topics::{STATUS_TOPIC, Topics, is_reserved};
