//! Messages that are encoded once, for many sockets.

use std::sync::Arc;

use bytes::Bytes;
#[cfg(feature = "deflate")]
use windlass_ws::deflate::{Codec, DeflateConfig};

#[cfg(feature = "deflate")]
use crate::shared;
use crate::{Config, Message};

/// A message that is encoded once, and compressed once, for many sockets of a server. A clone
/// shares it.
///
/// Each socket sends the shared frame. A socket that cannot encodes the message by itself: a
/// client, which masks each frame with a key of its own, and a connection that takes its context
/// over, where each compressed message depends on the earlier ones.
///
/// ```
/// use windlass_websocket::{Config, Prepared};
///
/// let news = Prepared::new("to all", &Config::new());
/// for _ in 0..3 {
///     let _for_a_socket = news.clone();
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Prepared {
    encoded: Arc<Encoded>,
}

#[derive(Debug)]
struct Encoded {
    message: Message,
    frame: Bytes,
    /// The compressed frame, and the settings it was compressed with.
    #[cfg(feature = "deflate")]
    deflated: Option<(DeflateConfig, Bytes)>,
}

impl Prepared {
    /// Encodes a message for the sockets of this configuration.
    #[must_use]
    pub fn new(message: impl Into<Message>, config: &Config) -> Self {
        let message = message.into();
        let mut frame = Vec::new();
        message.as_ref().encode(&mut frame);
        #[cfg(feature = "deflate")]
        let deflated = config.settings().deflate.and_then(|deflate| {
            let mut out = Vec::new();
            let mut codec = Codec::for_broadcast(&deflate);
            shared::with(|it| {
                message.as_ref().encode_compressed(&mut codec, &mut it.pool, &mut out)
            })
            .then(|| (deflate, out.into()))
        });
        #[cfg(not(feature = "deflate"))]
        let _ = config;
        let encoded = Encoded {
            message,
            frame: frame.into(),
            #[cfg(feature = "deflate")]
            deflated,
        };
        Self { encoded: Arc::new(encoded) }
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.encoded.message
    }

    pub(crate) fn frame(&self) -> &Bytes {
        &self.encoded.frame
    }

    #[cfg(feature = "deflate")]
    pub(crate) fn deflated(&self) -> Option<(&DeflateConfig, &Bytes)> {
        self.encoded.deflated.as_ref().map(|(config, frame)| (config, frame))
    }
}
