//! The settings that all connections of one endpoint share.

/// Which end of the connection this is. Clients mask the frames they send; servers do not (RFC 6455
/// section 5.1).
///
/// ```
/// use windlass_ws::{Config, Role};
///
/// assert!(matches!(Config::server().role, Role::Server));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Role {
    /// Accepts connections.
    Server,
    /// Opens connections.
    Client {
        /// Fills a slice with unpredictable bytes for the masking keys (RFC 6455 section 10.3), for
        /// example with `getrandom`.
        entropy: fn(&mut [u8]),
    },
}

/// The limits on what a peer may send.
///
/// ```
/// use windlass_ws::{Config, EngineLimits};
///
/// let mut limits = EngineLimits::DEFAULT;
/// limits.message_max = 64 << 10;
/// let config = Config::server().with_limits(limits);
/// assert_eq!(config.limits.message_max, 65_536);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineLimits {
    /// The longest payload of one frame, in bytes. Default: 1 MiB.
    pub frame_max: usize,
    /// The longest message, in bytes, before and after decompression. Default: 1 MiB.
    pub message_max: usize,
    /// The most frames in one message. Default: 262 144, which is 16 MiB in frames of 64 bytes, as
    /// the Autobahn TestSuite sends them.
    pub fragments_max: u32,
    /// The most control frames in one second. It applies only if the engine is told the current
    /// second. Default: 1000.
    pub controls_per_second_max: u16,
    /// The highest ratio of decompressed to compressed length, for messages longer than
    /// [`RATIO_FREE_LEN_MAX`](Self::RATIO_FREE_LEN_MAX). `None` allows about 1000, the
    /// most that DEFLATE can reach. Default: 100; text seldom reaches 20.
    pub inflate_ratio_max: Option<u32>,
}

impl EngineLimits {
    /// The defaults that the fields document.
    pub const DEFAULT: Self = Self {
        frame_max: 1 << 20,
        message_max: 1 << 20,
        fragments_max: 1 << 18,
        controls_per_second_max: 1000,
        inflate_ratio_max: Some(100),
    };

    /// Up to this length, a decompressed message may have any compression ratio: 256 KiB.
    pub const RATIO_FREE_LEN_MAX: usize = 256 << 10;

    /// The longest message that `compressed_len` bytes may become.
    #[cfg(feature = "deflate")]
    pub(crate) fn inflated_max(&self, compressed_len: usize) -> usize {
        let Some(ratio) = self.inflate_ratio_max else { return self.message_max };
        compressed_len
            .saturating_mul(ratio as usize)
            .max(Self::RATIO_FREE_LEN_MAX)
            .min(self.message_max)
    }
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The settings that all connections of one endpoint share. Engines share them by reference count.
///
/// ```
/// use std::sync::Arc;
/// use windlass_ws::{Config, Engine};
///
/// let config = Arc::new(Config::server());
/// let engines = [Engine::new(&config), Engine::new(&config)];
/// assert_eq!(Arc::strong_count(&config), 3);
/// # drop(engines);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Which end of the connection this is.
    pub role: Role,
    /// The limits on what the peer may send.
    pub limits: EngineLimits,
    /// A server takes unmasked frames too, although RFC 6455 section 5.1 forbids clients to send
    /// them: a script can then send through a proxy what looks like a request to it (section 10.3).
    /// Default: no.
    pub accept_unmasked: bool,
}

impl Config {
    /// A server's configuration with the default limits.
    #[must_use]
    pub const fn server() -> Self {
        Self::new(Role::Server)
    }

    /// A client's configuration with the default limits. See [`Role::Client`] for `entropy`.
    #[must_use]
    pub const fn client(entropy: fn(&mut [u8])) -> Self {
        Self::new(Role::Client { entropy })
    }

    const fn new(role: Role) -> Self {
        Self { role, limits: EngineLimits::DEFAULT, accept_unmasked: false }
    }

    /// The same configuration with other limits.
    #[must_use]
    pub const fn with_limits(self, limits: EngineLimits) -> Self {
        Self { limits, ..self }
    }
}
