//! What an endpoint wants of permessage-deflate, and what two of them have agreed on.

/// The largest window, and the one that holds where nothing else is said.
pub(crate) const BITS_MAX: u8 = 15;

/// The smallest window that zlib compresses with: for 8 it silently takes 9, and such a stream does
/// not fit what was agreed.
pub(crate) const BITS_MIN: u8 = 9;

/// The lowest level that zlib-rs gets. At 1 its `deflate_quick` panics where the output is full
/// before the input is read, which is what happens with a message that cannot be compressed
/// (zlib-rs 0.6.8: it counts what is pending, and not what has been written before that).
pub(crate) const LEVEL_MIN: u8 = 2;

/// Longer messages are compressed at the lowest level by the shared compressor. Text of 1 MiB takes
/// 12 ms at level 6 and 8 ms at level 2, which makes it 6 % longer (2026-11-22, a shared virtual
/// machine with 2 cores).
pub(crate) const QUICK_LEN: usize = 256 << 10;

/// Whose state compresses the messages of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compressor {
    /// One for all connections of the thread. Every message starts from nothing, so this side
    /// announces that it takes no context over.
    Shared,
    /// One for each connection (about 150 KiB and four times the window, from the first compressed
    /// message on), which finds again what earlier messages had. Where no context may be taken
    /// over, the shared one is as good and is used.
    Dedicated,
}

/// What an endpoint wants of permessage-deflate.
///
/// Numbers out of range count as the nearest one in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeflateConfig {
    /// The server compresses each message by itself. A server announces it, a client demands it.
    /// Off unless said otherwise.
    pub server_no_context_takeover: bool,
    /// The client compresses each message by itself. A client announces it, a server demands it.
    /// Off unless said otherwise.
    pub client_no_context_takeover: bool,
    /// The largest window of what the server compresses, in bits: 9 to 15. 15 unless said
    /// otherwise.
    pub server_max_window_bits: u8,
    /// The largest window of what the client compresses, in bits: 9 to 15. 15 unless said
    /// otherwise. A server with less than 15 declines the offer of a client that cannot be limited.
    pub client_max_window_bits: u8,
    /// How hard to try, from 1 (fast) to 9 (small); 1 is the same as 2. 6 unless said otherwise.
    /// The shared compressor compresses messages of more than 256 KiB at level 2: other connections
    /// wait for it meanwhile.
    pub level: u8,
    /// Messages with fewer bytes are sent as they are. 256 unless said otherwise: below, there is
    /// little to gain.
    pub threshold: usize,
    /// Whose state compresses. The shared one unless said otherwise.
    pub compressor: Compressor,
}

impl DeflateConfig {
    /// The defaults, as the fields state them.
    pub const DEFAULT: Self = Self {
        server_no_context_takeover: false,
        client_no_context_takeover: false,
        server_max_window_bits: BITS_MAX,
        client_max_window_bits: BITS_MAX,
        level: 6,
        threshold: 256,
        compressor: Compressor::Shared,
    };

    /// The largest window that the server may use, in range.
    pub(crate) fn server_bits(&self) -> u8 {
        self.server_max_window_bits.clamp(BITS_MIN, BITS_MAX)
    }

    /// The largest window that the client may use, in range.
    pub(crate) fn client_bits(&self) -> u8 {
        self.client_max_window_bits.clamp(BITS_MIN, BITS_MAX)
    }

    /// The level, in range.
    pub(crate) fn level(&self) -> u8 {
        self.level.clamp(LEVEL_MIN, 9)
    }

    /// Whether the server, being this endpoint, starts each message from nothing.
    pub(crate) fn server_forgets(&self) -> bool {
        self.server_no_context_takeover || self.compressor == Compressor::Shared
    }

    /// Whether the client, being this endpoint, starts each message from nothing.
    pub(crate) fn client_forgets(&self) -> bool {
        self.client_no_context_takeover || self.compressor == Compressor::Shared
    }
}

impl Default for DeflateConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What client and server have agreed on (RFC 7692 section 7.1). The handshake yields it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement {
    /// The server compresses each message by itself.
    pub server_no_context_takeover: bool,
    /// The client compresses each message by itself.
    pub client_no_context_takeover: bool,
    /// The largest window of what the server compresses, in bits: 8 to 15, but 9 to 15 where this
    /// endpoint is the server.
    pub server_max_window_bits: u8,
    /// The largest window of what the client compresses, in bits: 8 to 15, but 9 to 15 where this
    /// endpoint is the client.
    pub client_max_window_bits: u8,
}

impl Agreement {
    /// What holds where no parameter is given: windows of 15 bits, context taken over by both.
    pub const DEFAULT: Self = Self {
        server_no_context_takeover: false,
        client_no_context_takeover: false,
        server_max_window_bits: BITS_MAX,
        client_max_window_bits: BITS_MAX,
    };

    /// Whether the client can be sent what a server with this `config` has compressed [for
    /// many](super::Codec::for_many): the server takes no context over, and the window is as large
    /// as the config's.
    #[must_use]
    pub fn takes_for_many(&self, config: &DeflateConfig) -> bool {
        self.server_no_context_takeover && self.server_max_window_bits >= config.server_bits()
    }
}

impl Default for Agreement {
    fn default() -> Self {
        Self::DEFAULT
    }
}
