//! The permessage-deflate settings of an endpoint, and the parameters that two endpoints agreed on.

/// The largest window, and the default.
pub(crate) const BITS_MAX: u8 = 15;

/// The smallest window that zlib compresses with. For 8 bits it silently uses 9, and such a stream
/// violates the agreement.
pub(crate) const BITS_MIN: u8 = 9;

/// The lowest level passed to zlib-rs. At level 1 its `deflate_quick` panics if the output is full
/// before the input is read, which happens with incompressible messages. (zlib-rs 0.6.8 counts
/// pending bytes, but not bytes written before that.)
pub(crate) const LEVEL_MIN: u8 = 2;

/// The shared compressor compresses longer messages at the lowest level: they hold up the thread's
/// other connections for less time, and become a little longer.
pub(crate) const FULL_LEVEL_LEN_MAX: usize = 256 << 10;

/// Which compressor state a connection uses.
///
/// ```
/// use windlass_ws::deflate::{Compressor, DeflateConfig};
///
/// let mut config = DeflateConfig::DEFAULT;
/// assert_eq!(config.compressor, Compressor::Shared);
/// config.compressor = Compressor::Dedicated;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compressor {
    /// One compressor for all connections of the thread. Each message is compressed independently,
    /// so this side announces `no_context_takeover`.
    Shared,
    /// One compressor per connection, which can refer to earlier messages. It takes about 150 KiB
    /// plus four times the window, from the first compressed message on. If context takeover is
    /// forbidden, the connection uses the shared compressor, which is equally good then.
    Dedicated,
}

/// The permessage-deflate settings of an endpoint.
///
/// Numbers out of range are clamped.
///
/// ```
/// use windlass_ws::deflate::DeflateConfig;
///
/// let mut config = DeflateConfig::DEFAULT;
/// config.level = 1;
/// config.server_max_window_bits = 12;
/// config.threshold = 1024;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeflateConfig {
    /// The server compresses each message independently. A server announces this; a client demands
    /// it. Default: off.
    pub server_no_context_takeover: bool,
    /// The client compresses each message independently. A client announces this; a server demands
    /// it. Default: off.
    pub client_no_context_takeover: bool,
    /// The server's largest compression window, in bits: 9 to 15. Default: 15.
    pub server_max_window_bits: u8,
    /// The client's largest compression window, in bits: 9 to 15. Default: 15. A server with less
    /// than 15 declines the offer of a client whose window cannot be limited.
    pub client_max_window_bits: u8,
    /// The compression level, from 1 (fast) to 9 (small); 1 is the same as 2. Default: 6. The
    /// shared compressor uses level 2 for messages of more than 256 KiB, because other connections
    /// wait meanwhile.
    pub level: u8,
    /// Messages with fewer bytes are sent uncompressed. Default: 256; shorter messages gain little.
    pub threshold: usize,
    /// Which compressor state to use. Default: shared.
    pub compressor: Compressor,
}

impl DeflateConfig {
    /// The defaults that the fields document.
    pub const DEFAULT: Self = Self {
        server_no_context_takeover: false,
        client_no_context_takeover: false,
        server_max_window_bits: BITS_MAX,
        client_max_window_bits: BITS_MAX,
        level: 6,
        threshold: 256,
        compressor: Compressor::Shared,
    };

    /// The server's largest window, clamped.
    pub(crate) fn server_bits(&self) -> u8 {
        self.server_max_window_bits.clamp(BITS_MIN, BITS_MAX)
    }

    /// The client's largest window, clamped.
    pub(crate) fn client_bits(&self) -> u8 {
        self.client_max_window_bits.clamp(BITS_MIN, BITS_MAX)
    }

    /// The level, clamped.
    pub(crate) fn level(&self) -> u8 {
        self.level.clamp(LEVEL_MIN, 9)
    }

    /// Whether this endpoint, as a server, compresses each message independently.
    pub(crate) fn server_no_takeover(&self) -> bool {
        self.server_no_context_takeover || self.compressor == Compressor::Shared
    }

    /// Whether this endpoint, as a client, compresses each message independently.
    pub(crate) fn client_no_takeover(&self) -> bool {
        self.client_no_context_takeover || self.compressor == Compressor::Shared
    }
}

impl Default for DeflateConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The parameters that client and server agreed on (RFC 7692 section 7.1). The handshake returns
/// it.
///
/// ```
/// use windlass_ws::{deflate::DeflateConfig, handshake::answer_extensions};
///
/// let offers = [&b"permessage-deflate; server_max_window_bits=10"[..]];
/// let (_, agreement) = answer_extensions(offers, &DeflateConfig::DEFAULT).unwrap();
/// assert_eq!(agreement.server_max_window_bits, 10);
/// assert_eq!(agreement.client_max_window_bits, 15);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement {
    /// The server compresses each message independently.
    pub server_no_context_takeover: bool,
    /// The client compresses each message independently.
    pub client_no_context_takeover: bool,
    /// The server's largest compression window, in bits: 8 to 15, or 9 to 15 if this endpoint is
    /// the server.
    pub server_max_window_bits: u8,
    /// The client's largest compression window, in bits: 8 to 15, or 9 to 15 if this endpoint is
    /// the client.
    pub client_max_window_bits: u8,
}

impl Agreement {
    /// The agreement without parameters: windows of 15 bits, and both sides take context over.
    pub const DEFAULT: Self = Self {
        server_no_context_takeover: false,
        client_no_context_takeover: false,
        server_max_window_bits: BITS_MAX,
        client_max_window_bits: BITS_MAX,
    };

    /// Whether this client can read messages that a server with this `config` compressed [for
    /// many](super::Codec::for_broadcast). True if the server takes no context over and the window
    /// is at least as large as the config's.
    #[must_use]
    pub fn can_read_broadcast(&self, config: &DeflateConfig) -> bool {
        self.server_no_context_takeover && self.server_max_window_bits >= config.server_bits()
    }
}

impl Default for Agreement {
    fn default() -> Self {
        Self::DEFAULT
    }
}
