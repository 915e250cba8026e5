//! The settings of a connection.

#[cfg(feature = "deflate")]
use windlass_ws::deflate::DeflateConfig;
use windlass_ws::{Config, EngineLimits};

use super::Role;
use crate::shared;

/// The settings of a connection.
///
/// ```
/// use windlass_tungstenite::protocol::WebSocketConfig;
///
/// let config = WebSocketConfig::default().max_message_size(Some(1 << 20)).write_buffer_size(0);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WebSocketConfig {
    /// Has no effect. One read takes up to 64 KiB. The buffer belongs to the thread: a connection
    /// has one only while it holds bytes that are not processed. Default: 128 KiB.
    pub read_buffer_size: usize,
    /// `write` passes messages to the stream when more than this many bytes wait; `flush` and
    /// `send` always do. Default: 128 KiB.
    pub write_buffer_size: usize,
    /// The most bytes that may wait for the stream. A message beyond them is returned in
    /// [`Error::WriteBufferFull`](crate::Error). It must be more than `write_buffer_size`. Answers
    /// to pings and Close frames wait beside them, at most one. Default: no limit.
    pub max_write_buffer_size: usize,
    /// The longest message that the peer may send, in bytes. Default: 64 MiB.
    pub max_message_size: Option<usize>,
    /// The longest frame that the peer may send, in bytes of its payload. Default: 16 MiB.
    pub max_frame_size: Option<usize>,
    /// A server takes frames that are not masked, although RFC 6455 section 5.1 forbids them.
    /// Default: no.
    pub accept_unmasked_frames: bool,
    /// The most frames that a message of the peer may have. Default: 262,144. Not in tungstenite.
    pub max_fragments: u32,
    /// The most pings and pongs that the peer may send in a second of the clock. Each is counted
    /// for the second in which the one before it arrived. So one more passes in a second, and the
    /// next one after it is the violation, whenever it arrives. The target wasm32-unknown-unknown
    /// has no clock and ignores the limit. Default: no limit. Not in tungstenite.
    pub max_controls_per_second: Option<u16>,
    /// permessage-deflate (RFC 7692), which handshakes negotiate. Default: off. Not in tungstenite.
    #[cfg(feature = "deflate")]
    pub deflate: Option<DeflateConfig>,
    /// The highest ratio of decompressed to compressed length, for messages of more than 256 KiB.
    /// `None` allows what DEFLATE can reach, about 1,000. Default: 100. Not in tungstenite.
    #[cfg(feature = "deflate")]
    pub max_inflate_ratio: Option<u32>,
}

impl Default for WebSocketConfig {
    fn default() -> Self {
        Self {
            read_buffer_size: 128 << 10,
            write_buffer_size: 128 << 10,
            max_write_buffer_size: usize::MAX,
            max_message_size: Some(64 << 20),
            max_frame_size: Some(16 << 20),
            accept_unmasked_frames: false,
            max_fragments: EngineLimits::DEFAULT.fragments_max,
            max_controls_per_second: None,
            #[cfg(feature = "deflate")]
            deflate: None,
            #[cfg(feature = "deflate")]
            max_inflate_ratio: EngineLimits::DEFAULT.inflate_ratio_max,
        }
    }
}

macro_rules! setters {
    ($($(#[$cfg:meta])* $name:ident: $type:ty,)+) => {
        $(
            #[doc = concat!("Sets [`", stringify!($name), "`](Self::", stringify!($name), ").")]
            $(#[$cfg])*
            pub fn $name(mut self, $name: $type) -> Self {
                self.$name = $name;
                self
            }
        )+
    };
}

impl WebSocketConfig {
    setters! {
        read_buffer_size: usize,
        write_buffer_size: usize,
        max_write_buffer_size: usize,
        max_message_size: Option<usize>,
        max_frame_size: Option<usize>,
        accept_unmasked_frames: bool,
        max_fragments: u32,
        max_controls_per_second: Option<u16>,
        #[cfg(feature = "deflate")]
        deflate: Option<DeflateConfig>,
        #[cfg(feature = "deflate")]
        max_inflate_ratio: Option<u32>,
    }

    /// # Panics
    /// If the write buffer has no room beyond `write_buffer_size`.
    pub(super) fn check(&self) {
        assert!(
            self.max_write_buffer_size > self.write_buffer_size,
            "max_write_buffer_size must be more than write_buffer_size: {} and {}",
            self.max_write_buffer_size,
            self.write_buffer_size
        );
    }

    /// What the engine of a connection with these settings needs to know.
    pub(super) fn engine(&self, role: Role) -> Config {
        let mut limits = EngineLimits::DEFAULT;
        limits.message_max = self.max_message_size.unwrap_or(usize::MAX);
        limits.frame_max = self.max_frame_size.unwrap_or(usize::MAX);
        limits.fragments_max = self.max_fragments;
        limits.controls_per_second_max = self.max_controls_per_second.unwrap_or(u16::MAX);
        #[cfg(feature = "deflate")]
        {
            limits.inflate_ratio_max = self.max_inflate_ratio;
        }
        let mut config = match role {
            Role::Server => Config::server(),
            Role::Client => Config::client(shared::entropy),
        };
        config.accept_unmasked = self.accept_unmasked_frames;
        config.with_limits(limits)
    }

    /// The second for which the next control frame counts, after one of `second`. Without a limit,
    /// each has its own.
    #[cold]
    pub(super) fn next_second(&self, second: u32) -> u32 {
        let limited = self.max_controls_per_second.and_then(|_| shared::second());
        limited.unwrap_or(second.wrapping_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_of_the_clock_is_that_before_the_first_control_frame() {
        let config = WebSocketConfig::default().max_controls_per_second(Some(1));
        // This may be the first call of the process.
        assert_ne!(config.next_second(0), 0);
    }

    #[test]
    fn control_frames_without_a_limit_have_a_second_each() {
        let config = WebSocketConfig::default();
        assert_eq!([config.next_second(7), config.next_second(u32::MAX)], [8, 0]);
    }
}
