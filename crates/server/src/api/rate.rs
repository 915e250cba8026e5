//! Rates: limits of how often something may happen.

use core::{fmt, num::NonZeroU64};
use std::time::Duration;

/// A maximum rate with a burst, as a token bucket: `burst` units at once, and on average so many in
/// each period.
///
/// ```
/// use std::time::Duration;
/// use windlass_server::Rate;
///
/// let rate = Rate::per_second(100).with_burst(500);
/// assert_eq!(rate.to_string(), "100 a second, with a burst of 500");
/// let slow = Rate::new(10, Duration::from_secs(60));
/// assert_eq!(slow.to_string(), "10 in 60s, with a burst of 10");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: NonZeroU64,
    period_ns: u64,
    burst: u64,
    /// The time in which a burst is allowed.
    burst_ns: u64,
}

impl Rate {
    /// So many units a second, and as many at once.
    ///
    /// # Panics
    /// If `count` is zero.
    #[must_use]
    pub const fn per_second(count: u64) -> Self {
        Self::new(count, SECOND)
    }

    /// So many units in each period, and as many at once.
    ///
    /// # Panics
    /// If `count` or the period is zero, or the period is longer than a day.
    #[must_use]
    pub const fn new(count: u64, period: Duration) -> Self {
        let Some(units) = NonZeroU64::new(count) else { panic!("a rate allows at least one unit") };
        assert!(
            !period.is_zero() && period.as_secs() <= 86_400,
            "the period of a rate is more than zero and at most a day"
        );
        let period_ns = period.as_nanos() as u64;
        Self { count: units, period_ns, burst: 1, burst_ns: 0 }.with_burst(count)
    }

    /// Sets how many units may come at once. Default: those of one period.
    ///
    /// # Panics
    /// If `units` is zero.
    #[must_use]
    pub const fn with_burst(mut self, units: u64) -> Self {
        assert!(units > 0, "a burst has at least one unit");
        self.burst = units;
        // A burst may come in single units, whose times are rounded up one by one. The rounding
        // changes longer times by less than a thousandth.
        let one = self.time_of(1);
        self.burst_ns = if one >= 1000 { one.saturating_mul(units) } else { self.time_of(units) };
        if self.burst_ns > LONGEST_NS {
            self.burst_ns = LONGEST_NS;
        }
        self
    }

    /// How many units may come at once.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// The time in which so many units are allowed, rounded up to nanoseconds.
    const fn time_of(&self, units: u64) -> u64 {
        let ns = (units as u128 * self.period_ns as u128).div_ceil(self.count.get() as u128);
        if ns > LONGEST_NS as u128 { LONGEST_NS } else { ns as u64 }
    }

    /// Takes units from a bucket, or returns the time until they are there. It is never for more
    /// units than the burst.
    pub(crate) fn take(
        &self,
        bucket: &mut Bucket,
        now_ns: u64,
        units: u64,
    ) -> Result<(), Duration> {
        let full = now_ns.saturating_add(self.burst_ns);
        let after = bucket.0.max(now_ns).saturating_add(self.time_of(units));
        if after > full {
            return Err(Duration::from_nanos(after - full));
        }
        bucket.0 = after;
        Ok(())
    }

    /// Takes one unit, whether it is there or not. Returns the time until the next one is there.
    pub(crate) fn take_in_advance(&self, bucket: &mut Bucket, now_ns: u64) -> Duration {
        let one = self.time_of(1);
        bucket.0 = bucket.0.max(now_ns).saturating_add(one);
        let full = now_ns.saturating_add(self.burst_ns);
        Duration::from_nanos(bucket.0.saturating_add(one).saturating_sub(full))
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// No time of a rate is longer, so that sums of a few do not overflow: ten years.
const LONGEST_NS: u64 = 315_360_000 * 1_000_000_000;

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, burst, .. } = self;
        match Duration::from_nanos(self.period_ns) {
            SECOND => write!(f, "{count} a second")?,
            period => write!(f, "{count} in {period:?}")?,
        }
        write!(f, ", with a burst of {burst}")
    }
}

/// The state of a token bucket: the time at which it is full again, in nanoseconds of its owner's
/// count (the generic cell rate algorithm of ITU-T I.371). The default is a full bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket(pub(crate) u64);

/// Maximum rates. Each one is off by default.
///
/// Over all listeners and workers of a [`Server`](crate::Server), and for each address: a whole
/// IPv4 address, or an IPv6 network of 64 bits, as an
/// [`AddressKey`](crate::http::AddressKey). Clients of a Unix socket have no address.
///
/// ```
/// use windlass_server::{Options, Rate};
///
/// let mut options = Options::new();
/// options.rates.connections = Some(Rate::per_second(1000).with_burst(5000));
/// options.rates.requests_per_address = Some(Rate::per_second(20).with_burst(100));
/// options.rates.messages = Some(Rate::per_second(50).with_burst(200));
/// assert_eq!(options.check(), Ok(()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimits {
    /// New connections. Further ones wait in the kernel's backlog.
    pub connections: Option<Rate>,
    /// New connections of one address. Further ones are closed without a response.
    pub connections_per_address: Option<Rate>,
    /// New connections of listeners with TLS, because each begins with a handshake. Further ones
    /// wait in the kernel's backlog.
    pub tls_handshakes: Option<Rate>,
    /// New connections of one address to listeners with TLS. Further ones are closed before the
    /// handshake.
    pub tls_handshakes_per_address: Option<Rate>,
    /// Requests, for upgrades and for pages. Further ones get status 503 with `Retry-After`, and
    /// their connection is closed.
    pub requests: Option<Rate>,
    /// Requests of one address. Further ones get status 429 with `Retry-After`, and their
    /// connection is closed.
    pub requests_per_address: Option<Rate>,
    /// Messages of each connection. A further one is not delivered, and the connection is closed
    /// with code 1008. What has arrived while the server was paused counts at once, so the burst
    /// must cover the longest pause. So must that of [`message_bytes`](Self::message_bytes).
    pub messages: Option<Rate>,
    /// Payload bytes of the messages of each connection, without compression. A message beyond them
    /// is not delivered, and the connection is closed with code 1008. The burst must hold the
    /// longest message ([`OptionsError::BurstTooSmall`](crate::OptionsError::BurstTooSmall)).
    pub message_bytes: Option<Rate>,
    /// How many addresses are kept, in 32 bytes each. When a further one comes, one of eight that
    /// are chosen by a secret hash is forgotten: the one whose buckets are full again first. It may
    /// begin with a new burst, so rates over all are the limit of a flood from more addresses than
    /// this. Rounded up to a multiple of eight. Default: 65,536.
    pub addresses_max: usize,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            connections: None,
            connections_per_address: None,
            tls_handshakes: None,
            tls_handshakes_per_address: None,
            requests: None,
            requests_per_address: None,
            messages: None,
            message_bytes: None,
            addresses_max: 1 << 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_burst_comes_at_once_and_then_the_rate() {
        let rate = Rate::per_second(10).with_burst(3);
        let (mut bucket, start) = (Bucket::default(), 7 * SECOND_NS);
        let taken = |bucket: &mut Bucket, now| {
            core::iter::from_fn(|| rate.take(bucket, now, 1).ok()).count()
        };
        assert_eq!(taken(&mut bucket, start), 3);
        assert_eq!(rate.take(&mut bucket, start, 1), Err(Duration::from_millis(100)));
        assert_eq!(taken(&mut bucket, start + SECOND_NS / 10 - 1), 0);
        assert_eq!(taken(&mut bucket, start + SECOND_NS / 10), 1);
        assert_eq!(taken(&mut bucket, start + SECOND_NS), 3, "no more than the burst is saved up");
    }

    #[test]
    fn a_burst_of_single_units_is_whole_for_every_rate() {
        for (rate, burst) in (1..=1000).flat_map(|rate| [(rate, rate), (rate, 7), (rate, 5000)]) {
            let rate = Rate::per_second(rate).with_burst(burst);
            let mut bucket = Bucket::default();
            let taken = (0..=burst).filter(|_| rate.take(&mut bucket, 0, 1).is_ok()).count();
            assert_eq!(taken as u64, burst, "{rate}");
            let mut bucket = Bucket::default();
            let waits = (0..burst).map(|_| rate.take_in_advance(&mut bucket, 0));
            let without_wait = waits.filter(Duration::is_zero).count();
            assert_eq!(without_wait as u64, burst - 1, "{rate}");
            assert!(rate.take(&mut Bucket::default(), 0, burst).is_ok(), "{rate}, in one");
        }
        assert_eq!(Rate::per_second(3), Rate::per_second(3).with_burst(3));
    }

    #[test]
    fn a_unit_taken_in_advance_delays_the_next() {
        let rate = Rate::per_second(10).with_burst(2);
        let mut bucket = Bucket::default();
        let waits = [0, 0, 0].map(|now| rate.take_in_advance(&mut bucket, now).as_millis());
        assert_eq!(waits, [0, 100, 200]);
        assert_eq!(rate.take_in_advance(&mut bucket, SECOND_NS), Duration::ZERO);
    }

    #[test]
    fn many_units_count_as_so_many() {
        let rate = Rate::per_second(1 << 40).with_burst(1 << 20);
        let mut bucket = Bucket::default();
        assert_eq!(rate.take(&mut bucket, 0, 1 << 20), Ok(()));
        assert!(rate.take(&mut bucket, 0, 1).is_err());
        // Less than a nanosecond counts as one.
        assert_eq!(bucket, Bucket((1 << 20) * SECOND_NS / (1 << 40) + 1));
        let rate = Rate::new(1, Duration::from_secs(86_400)).with_burst(u64::MAX);
        let mut bucket = Bucket(u64::MAX);
        assert!(rate.take(&mut bucket, u64::MAX, u64::MAX).is_ok(), "nothing overflows");
    }

    #[test]
    fn rates_without_a_meaning_panic() {
        for make in [
            || Rate::per_second(0),
            || Rate::new(1, Duration::ZERO),
            || Rate::new(1, Duration::from_secs(86_401)),
            || Rate::per_second(1).with_burst(0),
        ] {
            assert!(std::panic::catch_unwind(make).is_err());
        }
    }
}
