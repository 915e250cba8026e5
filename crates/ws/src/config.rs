//! What the connections of one endpoint have in common.

/// Which end of the connection this is. Clients mask what they send, servers do not (RFC 6455
/// section 5.1).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Role {
    /// Accepts connections.
    Server,
    /// Opens connections.
    Client {
        /// Fills a slice with bytes that nobody can predict, for the masking keys (RFC 6455 section
        /// 10.3): `getrandom` or the like.
        entropy: fn(&mut [u8]),
    },
}

/// What a peer may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The longest payload of one frame, in bytes. 1 MiB unless said otherwise.
    pub frame_max: usize,
    /// The longest message, in bytes, before and after decompression. 1 MiB unless said otherwise.
    pub message_max: usize,
    /// The most frames of one message. 262 144 unless said otherwise: 16 MiB in frames of 64 bytes,
    /// as the Autobahn TestSuite sends them.
    pub fragments_max: u32,
    /// The most control frames in one second, as far as the engine is told of seconds. 1000 unless
    /// said otherwise.
    pub controls_per_second_max: u16,
    /// How many times as long a compressed message may become when it is decompressed, once it is
    /// longer than [`INFLATE_FREE`](Self::INFLATE_FREE). `None`: as much as DEFLATE can, some 1000
    /// times. 100 unless said otherwise: text seldom reaches 20.
    pub inflate_ratio_max: Option<u32>,
}

impl Limits {
    /// The defaults, as the fields state them.
    pub const DEFAULT: Self = Self {
        frame_max: 1 << 20,
        message_max: 1 << 20,
        fragments_max: 1 << 18,
        controls_per_second_max: 1000,
        inflate_ratio_max: Some(100),
    };

    /// A message that is not longer than this may have any compression ratio: 256 KiB.
    pub const INFLATE_FREE: usize = 256 << 10;

    /// How long a message of so many compressed bytes may become.
    #[cfg(feature = "deflate")]
    pub(crate) fn inflated_max(&self, compressed_len: usize) -> usize {
        let Some(ratio) = self.inflate_ratio_max else { return self.message_max };
        compressed_len.saturating_mul(ratio as usize).max(Self::INFLATE_FREE).min(self.message_max)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What the connections of one endpoint have in common. Engines share it by reference count.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Which end this is.
    pub role: Role,
    /// What the peer may send.
    pub limits: Limits,
}

impl Config {
    /// A server's, with the default limits.
    #[must_use]
    pub const fn server() -> Self {
        Self { role: Role::Server, limits: Limits::DEFAULT }
    }

    /// A client's, with the default limits. See [`Role::Client`] for `entropy`.
    #[must_use]
    pub const fn client(entropy: fn(&mut [u8])) -> Self {
        Self { role: Role::Client { entropy }, limits: Limits::DEFAULT }
    }

    /// The same with other limits.
    #[must_use]
    pub const fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }
}
