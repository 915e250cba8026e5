//! The rates of connections, TLS handshakes and requests, over all and by address.
//!
//! 1. All workers share one value. A bucket over all is one atomic number. Those of an address are
//!    behind the lock of a few addresses.
//! 2. The table of addresses has a fixed size. An address belongs to one set of eight places, by a
//!    hash with a secret of the process. A new address takes the place whose buckets are full again
//!    first.
//! 3. A rejected attempt takes nothing from the bucket that rejects it, nor from the others of its
//!    address. A request that the rate over all rejects has counted for its address.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{
    hash::BuildHasher as _,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock},
    time::{Duration, Instant},
};

use crate::{
    api::{Bucket, Limit, Rate, RateLimits, SecretHasher},
    http::AddressKey,
};

/// Number of addresses that share a lock and are compared with a new one.
const WAYS: usize = 8;

/// An address, and its buckets in the order of [`AddressTable::rates`].
#[derive(Clone, Copy, Default)]
struct Place {
    key: Option<AddressKey>,
    buckets: [Bucket; 3],
}

// `RateLimits::addresses_max` documents it.
const _: () = assert!(size_of::<Place>() == 32);

struct AddressTable {
    /// Of connections, TLS handshakes and requests.
    rates: [Option<Rate>; 3],
    sets: Box<[Mutex<[Place; WAYS]>]>,
    hasher: SecretHasher,
}

/// Index in [`AddressTable::rates`].
#[derive(Clone, Copy)]
enum By {
    Connection,
    TlsHandshake,
    Request,
}

impl AddressTable {
    fn new(rates: [Option<Rate>; 3], addresses_max: usize) -> Self {
        let sets = addresses_max.div_ceil(WAYS).max(1);
        Self {
            rates,
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            hasher: SecretHasher::new(),
        }
    }

    /// Takes one unit of each of these rates, or of none. The error has the first one that is
    /// exceeded.
    fn take(&self, key: AddressKey, now_ns: u64, of: &[By]) -> Result<(), (By, Duration)> {
        if of.iter().all(|by| self.rates[*by as usize].is_none()) {
            return Ok(());
        }
        let set = &self.sets[self.hasher.hash_one(key) as usize % self.sets.len()];
        // Nothing panics while the lock is held.
        let mut places = set.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match places.iter().position(|place| place.key == Some(key)) {
            Some(at) => &mut places[at],
            None => {
                let full_at =
                    |place: &&mut Place| place.buckets.map(|bucket| bucket.0).into_iter().max();
                let place = places.iter_mut().min_by_key(full_at).expect("a set has places");
                *place = Place { key: Some(key), ..Place::default() };
                place
            }
        };
        let mut buckets = place.buckets;
        for by in of {
            let Some(rate) = self.rates[*by as usize] else { continue };
            rate.take(&mut buckets[*by as usize], now_ns, 1).map_err(|wait| (*by, wait))?;
        }
        place.buckets = buckets;
        Ok(())
    }
}

/// An attempt beyond a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateExceeded {
    pub(crate) limit: Limit,
    pub(crate) rate: Rate,
    /// The time until the next attempt may succeed.
    pub(crate) wait: Duration,
}

impl RateExceeded {
    /// The value of `Retry-After`, in whole seconds (RFC 9110 section 10.2.3).
    pub(crate) fn retry_after(&self) -> String {
        self.wait.as_millis().div_ceil(1000).max(1).to_string()
    }
}

impl core::fmt::Display for RateExceeded {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let what = match self.limit {
            Limit::ConnectionRatePerAddress => "connections of this address",
            Limit::TlsHandshakeRatePerAddress => "TLS handshakes of this address",
            Limit::RequestRatePerAddress => "requests of this address",
            Limit::MessageRate => "messages",
            Limit::MessageByteRate => "bytes of messages",
            _ => "requests",
        };
        write!(f, "too many {what}: at most {}", self.rate)
    }
}

/// The rates that the workers of a server share, which may change.
pub(crate) struct SharedRates {
    has_rates: AtomicBool,
    limits: Mutex<RateLimits>,
    rates: RwLock<Option<Arc<ConnectionRates>>>,
}

impl SharedRates {
    pub(crate) fn new(limits: &RateLimits) -> Arc<Self> {
        let rates = ConnectionRates::new(limits);
        Arc::new(Self {
            has_rates: AtomicBool::new(rates.is_some()),
            limits: Mutex::new(limits.clone()),
            rates: RwLock::new(rates),
        })
    }

    /// The rates of now. Without any, this is one load.
    #[inline]
    pub(crate) fn get(&self) -> Option<Arc<ConnectionRates>> {
        if !self.has_rates.load(Ordering::Acquire) {
            return None;
        }
        // Nothing panics while the lock is held, here and below.
        self.rates.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the rates. With another rate, all buckets are full again.
    pub(crate) fn set(&self, limits: &RateLimits) {
        let mut now = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if *now == *limits {
            return;
        }
        *now = limits.clone();
        let rates = ConnectionRates::new(limits);
        let has_rates = rates.is_some();
        *self.rates.write().unwrap_or_else(PoisonError::into_inner) = rates;
        self.has_rates.store(has_rates, Ordering::Release);
    }
}

/// What the workers of a server share of [`RateLimits`].
pub(crate) struct ConnectionRates {
    /// The time at which the count of nanoseconds begins.
    begin: OnceLock<Instant>,
    connections: Option<Rate>,
    tls_handshakes: Option<Rate>,
    requests: Option<Rate>,
    connection_bucket: AtomicU64,
    tls_bucket: AtomicU64,
    request_bucket: AtomicU64,
    addresses: Option<AddressTable>,
}

impl ConnectionRates {
    /// `None` if there is nothing to limit.
    pub(crate) fn new(limits: &RateLimits) -> Option<Arc<Self>> {
        let RateLimits { connections, tls_handshakes, requests, .. } = *limits;
        let by_address = [
            limits.connections_per_address,
            limits.tls_handshakes_per_address,
            limits.requests_per_address,
        ];
        let is_any = |rates: &[Option<Rate>]| rates.iter().any(Option::is_some);
        let addresses =
            is_any(&by_address).then(|| AddressTable::new(by_address, limits.addresses_max));
        if addresses.is_none() && !is_any(&[connections, tls_handshakes, requests]) {
            return None;
        }
        Some(Arc::new(Self {
            begin: OnceLock::new(),
            connections,
            tls_handshakes,
            requests,
            connection_bucket: AtomicU64::default(),
            tls_bucket: AtomicU64::default(),
            request_bucket: AtomicU64::default(),
            addresses,
        }))
    }

    fn ns(&self, now: Instant) -> u64 {
        // The time of a custom clock may be a little earlier at another call.
        let before = || now.checked_sub(Duration::from_secs(3600)).unwrap_or(now);
        let begin = *self.begin.get_or_init(before);
        now.saturating_duration_since(begin).as_nanos() as u64
    }

    /// Counts a new connection of this address.
    pub(crate) fn connection(
        &self,
        key: Option<AddressKey>,
        has_tls: bool,
        now: Instant,
    ) -> Result<(), RateExceeded> {
        let of: &[By] =
            if has_tls { &[By::Connection, By::TlsHandshake] } else { &[By::Connection] };
        self.check_address(key, self.ns(now), of)
    }

    /// Counts a new connection over all. Returns how long the listener must rest before the next
    /// one, and because of which rate.
    pub(crate) fn accept(&self, has_tls: bool, now: Instant) -> Option<(Duration, Limit)> {
        let now_ns = self.ns(now);
        let tls = self.tls_handshakes.filter(|_| has_tls);
        let buckets = [
            (self.connections, &self.connection_bucket, Limit::ConnectionRate),
            (tls, &self.tls_bucket, Limit::TlsHandshakeRate),
        ];
        let rests = buckets.into_iter().filter_map(|(rate, bucket, limit)| {
            let rate = rate?;
            // All workers may accept a last one at the same moment, which delays the next ones.
            let rest = update(bucket, |bucket| rate.take_in_advance(bucket, now_ns));
            (!rest.is_zero()).then_some((rest, limit))
        });
        rests.max_by_key(|(rest, _)| *rest)
    }

    /// Counts a request.
    pub(crate) fn request(
        &self,
        key: Option<AddressKey>,
        now: Instant,
    ) -> Result<(), RateExceeded> {
        let now_ns = self.ns(now);
        self.check_address(key, now_ns, &[By::Request])?;
        let Some(rate) = self.requests else { return Ok(()) };
        let taken = update(&self.request_bucket, |bucket| rate.take(bucket, now_ns, 1));
        taken.map_err(|wait| RateExceeded { limit: Limit::RequestRate, rate, wait })
    }

    fn check_address(
        &self,
        key: Option<AddressKey>,
        now_ns: u64,
        of: &[By],
    ) -> Result<(), RateExceeded> {
        let (Some(table), Some(key)) = (&self.addresses, key) else { return Ok(()) };
        let Err((by, wait)) = table.take(key, now_ns, of) else { return Ok(()) };
        let limit = match by {
            By::Connection => Limit::ConnectionRatePerAddress,
            By::TlsHandshake => Limit::TlsHandshakeRatePerAddress,
            By::Request => Limit::RequestRatePerAddress,
        };
        let rate = table.rates[by as usize].expect("only a rate is exceeded");
        Err(RateExceeded { limit, rate, wait })
    }
}

/// Changes a bucket that workers share. It protects no other data, so `Relaxed` is enough.
fn update<T>(shared: &AtomicU64, mut change: impl FnMut(&mut Bucket) -> T) -> T {
    let mut before = shared.load(Ordering::Relaxed);
    loop {
        let mut bucket = Bucket(before);
        let result = change(&mut bucket);
        match shared.compare_exchange_weak(before, bucket.0, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return result,
            Err(now) => before = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Option<AddressKey> {
        Some(AddressKey::of_ip(text.parse().unwrap()))
    }

    #[test]
    fn nothing_is_kept_without_a_rate() {
        assert!(ConnectionRates::new(&RateLimits::default()).is_none());
        // Those of messages belong to each connection.
        let messages = Some(Rate::per_second(1));
        let limits = RateLimits { messages, message_bytes: messages, ..RateLimits::default() };
        assert!(ConnectionRates::new(&limits).is_none());
    }

    #[test]
    fn an_address_is_limited_and_an_ipv6_network_is_one_address() {
        let one = Some(Rate::per_second(1));
        let limits = RateLimits { connections_per_address: one, ..RateLimits::default() };
        let rates = ConnectionRates::new(&limits).unwrap();
        let now = Instant::now();
        let connect = |address: &str, now| rates.connection(key(address), false, now);
        assert_eq!(connect("192.0.2.1", now), Ok(()));
        assert_eq!(connect("192.0.2.2", now), Ok(()));
        let exceeded = connect("192.0.2.1", now).unwrap_err();
        assert_eq!(exceeded.limit, Limit::ConnectionRatePerAddress);
        assert_eq!(connect("2001:db8::1", now), Ok(()));
        assert!(connect("2001:db8::ffff:1", now).is_err());
        assert_eq!(connect("2001:db8:0:1::1", now), Ok(()));
        assert_eq!(connect("192.0.2.1", now + Duration::from_secs(1)), Ok(()));
        assert_eq!(rates.connection(None, false, now), Ok(()), "a Unix socket has no address");
        assert_eq!(rates.request(key("192.0.2.1"), now), Ok(()), "requests have no rate here");
    }

    #[test]
    fn a_rejected_attempt_takes_nothing() {
        let limits = RateLimits {
            connections_per_address: Some(Rate::per_second(2)),
            tls_handshakes_per_address: Some(Rate::per_second(1)),
            ..RateLimits::default()
        };
        let rates = ConnectionRates::new(&limits).unwrap();
        let now = Instant::now();
        assert_eq!(rates.connection(key("::1"), true, now), Ok(()));
        for _ in 0..20 {
            let exceeded = rates.connection(key("::1"), true, now).unwrap_err();
            assert_eq!(exceeded.limit, Limit::TlsHandshakeRatePerAddress);
        }
        assert_eq!(rates.connection(key("::1"), false, now), Ok(()), "the second of the burst");
        assert!(rates.connection(key("::1"), false, now).is_err());
    }

    #[test]
    fn a_listener_rests_when_a_burst_is_spent() {
        let limits = RateLimits {
            connections: Some(Rate::per_second(10).with_burst(2)),
            tls_handshakes: Some(Rate::per_second(1)),
            ..RateLimits::default()
        };
        let rates = ConnectionRates::new(&limits).unwrap();
        let now = Instant::now();
        assert_eq!(rates.accept(false, now), None);
        let second = Some((Duration::from_millis(100), Limit::ConnectionRate));
        assert_eq!(rates.accept(false, now), second);
        let now = now + Duration::from_secs(1);
        let tls = Some((Duration::from_secs(1), Limit::TlsHandshakeRate));
        assert_eq!(rates.accept(true, now), tls, "the longer rest of both");
    }

    #[test]
    fn a_full_table_forgets_the_address_whose_buckets_are_full_first() {
        let rate = Some(Rate::new(1, Duration::from_secs(60)));
        let mut limits = RateLimits { requests_per_address: rate, ..RateLimits::default() };
        limits.addresses_max = WAYS;
        let rates = ConnectionRates::new(&limits).unwrap();
        let now = Instant::now();
        let request = |host: u64, at: u64| {
            rates.request(key(&format!("192.0.2.{host}")), now + Duration::from_secs(at))
        };
        for host in 0..WAYS as u64 {
            assert_eq!(request(host, host), Ok(()));
        }
        assert_eq!(request(100, 10), Ok(()));
        assert!(request(100, 10).is_err() && request(1, 10).is_err());
        assert_eq!(request(0, 10), Ok(()), "it was forgotten, and has taken the place of 1");
        assert!(request(2, 10).is_err());
        assert_eq!(request(1, 10), Ok(()));
    }

    #[test]
    fn requests_over_all_have_their_own_rate() {
        let limits = RateLimits { requests: Some(Rate::per_second(2)), ..RateLimits::default() };
        let rates = ConnectionRates::new(&limits).unwrap();
        let now = Instant::now();
        assert_eq!([0; 2].map(|_| rates.request(None, now)), [Ok(()); 2]);
        let exceeded = rates.request(key("::1"), now).unwrap_err();
        assert_eq!((exceeded.limit, &*exceeded.retry_after()), (Limit::RequestRate, "1"));
        assert_eq!(
            exceeded.to_string(),
            "too many requests: at most 2 a second, with a burst of 2"
        );
    }

    #[test]
    fn a_client_waits_for_whole_seconds() {
        let after = |ms| {
            let rate = Rate::per_second(1);
            let wait = Duration::from_millis(ms);
            RateExceeded { limit: Limit::RequestRate, rate, wait }.retry_after()
        };
        assert_eq!([0, 1, 1000, 1001].map(after), ["1", "1", "1", "2"]);
    }
}
