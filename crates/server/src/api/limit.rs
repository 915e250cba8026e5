//! Names of the limits that a connection can reach.

use core::fmt;

macro_rules! limits {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A limit of [`Options`](crate::Options) because of which a connection, a request or a
        /// message was rejected.
        ///
        /// ```
        /// use windlass_server::Limit;
        ///
        /// assert_eq!(Limit::RequestRatePerAddress.to_string(), "rates.requests_per_address");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Limit {
            $($(#[$doc])* $variant,)*
        }

        impl Limit {
            /// The name of each limit, in the order of the counts.
            pub(crate) const NAMES: &'static [&'static str] = &[$($name,)*];

            /// The name of its option, as in the label `limit` of the metric
            /// `windlass_limit_hits_total`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }
    };
}

limits! {
    /// [`Options::connections_max`](crate::Options::connections_max).
    ConnectionsMax = "connections_max",
    /// [`Options::connections_per_address_max`](crate::Options::connections_per_address_max).
    ConnectionsPerAddressMax = "connections_per_address_max",
    /// [`Options::memory_max`](crate::Options::memory_max).
    MemoryMax = "memory_max",
    /// [`Options::head_limits`](crate::Options::head_limits).
    Head = "head",
    /// [`Options::handshake_timeout`](crate::Options::handshake_timeout).
    HandshakeTimeout = "handshake_timeout",
    /// [`RateLimits::connections`](crate::RateLimits::connections).
    ConnectionRate = "rates.connections",
    /// [`RateLimits::connections_per_address`](crate::RateLimits::connections_per_address).
    ConnectionRatePerAddress = "rates.connections_per_address",
    /// [`RateLimits::tls_handshakes`](crate::RateLimits::tls_handshakes).
    TlsHandshakeRate = "rates.tls_handshakes",
    /// [`RateLimits::tls_handshakes_per_address`](crate::RateLimits::tls_handshakes_per_address).
    TlsHandshakeRatePerAddress = "rates.tls_handshakes_per_address",
    /// [`RateLimits::requests`](crate::RateLimits::requests).
    RequestRate = "rates.requests",
    /// [`RateLimits::requests_per_address`](crate::RateLimits::requests_per_address).
    RequestRatePerAddress = "rates.requests_per_address",
    /// [`RateLimits::messages`](crate::RateLimits::messages).
    MessageRate = "rates.messages",
    /// [`RateLimits::message_bytes`](crate::RateLimits::message_bytes).
    MessageByteRate = "rates.message_bytes",
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
