//! Names of topics, as callers pass them.

use std::sync::Arc;

/// The name of a topic to subscribe to.
#[derive(Clone, Copy)]
pub(crate) enum TopicName<'n> {
    Text(&'n str),
    /// A new topic shares this allocation.
    Shared(&'n Arc<str>),
}

impl TopicName<'_> {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Shared(shared) => shared,
        }
    }

    pub(crate) fn to_shared(self) -> Arc<str> {
        match self {
            Self::Text(text) => text.into(),
            Self::Shared(shared) => Arc::clone(shared),
        }
    }
}
