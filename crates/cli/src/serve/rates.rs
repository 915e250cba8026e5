//! `--*-rate`: limits of how often clients connect, ask and send.

use std::{num::NonZeroU32, str::FromStr};

use clap::ValueEnum;
use windlass_server::{Limit, Options, Rate};

/// The rates, all of which are unlimited by default.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RateArgs {
    /// Maximum rate of new connections, over all listeners and workers: `N` or `N:BURST` a second.
    /// Further ones wait in the backlog [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub(crate) connection_rate: Option<RateArg>,

    /// Maximum rate of new connections of one address (IPv6: one /64); further ones are closed
    /// [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub(crate) connection_rate_per_address: Option<RateArg>,

    /// Maximum rate of TLS handshakes, over all listeners and workers; further connections wait in
    /// the backlog [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub(crate) tls_handshake_rate: Option<RateArg>,

    /// Maximum rate of TLS handshakes of one address; further connections are closed before it
    /// [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub(crate) tls_handshake_rate_per_address: Option<RateArg>,

    /// Maximum rate of requests, for pages and WebSockets; further ones get 503 with Retry-After
    /// [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub(crate) request_rate: Option<RateArg>,

    /// Maximum rate of requests of one address; further ones get 429 with Retry-After [default:
    /// unlimited]
    #[arg(long, value_name = "RATE")]
    pub(crate) request_rate_per_address: Option<RateArg>,

    /// Maximum rate of messages of each connection; one that sends more is closed with code 1008.
    /// The burst must cover the longest pause of the server, after which all comes at once
    /// [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub(crate) message_rate: Option<RateArg>,

    /// Maximum rate of bytes of messages of each connection, without compression; one that sends
    /// more is closed with code 1008. The burst must hold the longest message (--message-max), and
    /// cover the longest pause of the server
    /// [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub(crate) message_byte_rate: Option<RateArg>,

    /// What happens to connections beyond --connections
    #[arg(long, value_enum, default_value_t = WhenFull::Wait)]
    pub(crate) when_full: WhenFull,
}

/// What happens to connections beyond the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhenFull {
    /// They wait in the backlog
    Wait,
    /// Up to 256 of them get 503 with Retry-After, and further ones wait
    Reject,
}

/// A rate: `N` or `N:BURST` a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateArg(Rate);

impl FromStr for RateArg {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse::<NonZeroU32>().map(|number| number.get().into());
        let parsed = match text.split_once(':') {
            None => number(text).map(Rate::per_second),
            Some((count, burst)) => number(count)
                .and_then(|count| Ok(Rate::per_second(count).with_burst(number(burst)?))),
        };
        parsed.map(Self).map_err(|_| "a rate is a number a second, or NUMBER:BURST; both above 0")
    }
}

impl RateArgs {
    /// Whether none of them is set.
    pub(crate) fn is_default(&self) -> bool {
        let mut options = Options::new();
        self.set(&mut options);
        options.rates == Options::new().rates && !options.reject_when_full
    }

    pub(crate) fn set(&self, options: &mut Options) {
        let rate = |arg: Option<RateArg>| arg.map(|arg| arg.0);
        options.reject_when_full = self.when_full == WhenFull::Reject;
        let rates = &mut options.rates;
        rates.connections = rate(self.connection_rate);
        rates.connections_per_address = rate(self.connection_rate_per_address);
        rates.tls_handshakes = rate(self.tls_handshake_rate);
        rates.tls_handshakes_per_address = rate(self.tls_handshake_rate_per_address);
        rates.requests = rate(self.request_rate);
        rates.requests_per_address = rate(self.request_rate_per_address);
        rates.messages = rate(self.message_rate);
        rates.message_bytes = rate(self.message_byte_rate);
    }
}

/// The option of the program that sets a limit, for messages; empty if there is none.
pub(crate) const fn option_of(limit: Limit) -> &'static str {
    match limit {
        Limit::ConnectionsMax => "--connections",
        Limit::ConnectionsPerAddressMax => "--connections-per-address",
        Limit::MemoryMax => "--memory",
        Limit::HandshakeTimeout => "--handshake-timeout",
        Limit::ConnectionRate => "--connection-rate",
        Limit::ConnectionRatePerAddress => "--connection-rate-per-address",
        Limit::TlsHandshakeRate => "--tls-handshake-rate",
        Limit::TlsHandshakeRatePerAddress => "--tls-handshake-rate-per-address",
        Limit::RequestRate => "--request-rate",
        Limit::RequestRatePerAddress => "--request-rate-per-address",
        Limit::MessageRate => "--message-rate",
        Limit::MessageByteRate => "--message-byte-rate",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_or_two() {
        assert_eq!("20".parse(), Ok(RateArg(Rate::per_second(20))));
        assert_eq!("20:100".parse(), Ok(RateArg(Rate::per_second(20).with_burst(100))));
        for nonsense in ["", "0", "-1", "1.5", "20:", ":20", "20:0", "20/s", "1:2:3", "5000000000"]
        {
            assert!(nonsense.parse::<RateArg>().is_err(), "{nonsense}");
        }
    }
}
