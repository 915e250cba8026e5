//! `windlass-event-manager` under the name of event-manager 0.4, for `[patch.crates-io]`.

#![deny(unsafe_code)]

pub use windlass_event_manager::*;
