//! Counts connections, in total and for each address.

use core::{fmt, num::NonZeroU64};
use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher as _, RandomState},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use windlass::stream::Address;

/// Number of locks that the counters are spread over. A lock is contended only when two workers
/// accept at the same moment.
const SHARDS: usize = 16;

/// Tables that have grown beyond this size release memory.
const KEPT: usize = 64;

/// The unit of counting by address: a whole IPv4 address, or the first 64 bits of an IPv6 address.
/// A subscriber is usually assigned a whole /64 and can choose the other half freely (RFC 4291
/// section 2.5.4, RIPE-690). An IPv4-mapped IPv6 address counts as the IPv4 address.
///
/// ```
/// use windlass_server::http::AddressKey;
///
/// let key = |text: &str| AddressKey::of_ip(text.parse().expect("an address"));
/// assert_eq!(key("2001:db8::1"), key("2001:db8::2"));
/// assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
/// assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressKey(
    /// The complement of the network, so that an absent key takes no room. IPv4 is mapped into IPv6
    /// multicast (`ffff:ffff::/32`), where no connection comes from.
    NonZeroU64,
);

impl AddressKey {
    /// Returns the key of an address; `None` for a Unix socket, whose clients cannot be told apart.
    #[must_use]
    pub fn of(address: &Address) -> Option<Self> {
        address.ip().map(Self::of_ip)
    }

    /// Returns the key of an IP address.
    #[must_use]
    pub fn of_ip(address: IpAddr) -> Self {
        let network = match address.to_canonical() {
            IpAddr::V4(address) => 0xffff_ffff_0000_0000 | u64::from(u32::from(address)),
            IpAddr::V6(address) => (u128::from(address) >> 64) as u64,
        };
        // 255.255.255.255 shares its neighbour's key; no connection comes from that address.
        Self(NonZeroU64::new(!network).unwrap_or(NonZeroU64::MIN))
    }
}

impl fmt::Debug for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = !self.0.get();
        match network >> 32 {
            0xffff_ffff => write!(f, "{}", Ipv4Addr::from(network as u32)),
            _ => write!(f, "{}/64", Ipv6Addr::from(u128::from(network) << 64)),
        }
    }
}

/// Why a connection gets no permit.
///
/// ```
/// use windlass_server::http::PermitError;
///
/// assert_eq!(PermitError::Full.to_string(), "connection limit reached");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermitError {
    /// The connection limit is reached.
    Full,
    /// The connection limit of this address is reached.
    AddressFull,
}

impl fmt::Display for PermitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "connection limit reached",
            Self::AddressFull => "connection limit of this address reached",
        })
    }
}

impl core::error::Error for PermitError {}

type AddressCounts = HashMap<AddressKey, usize, Hasher>;

/// Keys derived from peers are hashed with a secret of the process, so that attackers cannot choose
/// addresses that collide.
type Hasher = RandomState;

/// Counts connections for all workers, and enforces the limits.
///
/// Its memory is bounded by the number of open connections: an address without a connection has no
/// entry.
///
/// ```
/// use std::net::SocketAddr;
/// use windlass::stream::Address;
/// use windlass_server::http::{AddressKey, ConnectionLimiter, PermitError};
///
/// let address: SocketAddr = "192.0.2.1:5000".parse().expect("an address");
/// let limiter = ConnectionLimiter::new(Some(1000), Some(1));
/// let permit = limiter.try_acquire(&Address::Ip(address))?;
/// assert_eq!(limiter.acquired(), 1);
/// assert_eq!(limiter.acquired_by(AddressKey::of_ip(address.ip())), 1);
/// let second = limiter.try_acquire(&Address::Ip(address));
/// assert_eq!(second.unwrap_err(), PermitError::AddressFull);
/// // The connection has ended.
/// drop(permit);
/// assert!(limiter.try_acquire(&Address::Ip(address)).is_ok());
/// # Ok::<(), PermitError>(())
/// ```
pub struct ConnectionLimiter {
    connections_max: usize,
    /// This number and the next protect no other data, so relaxed accesses suffice.
    per_address_max: AtomicUsize,
    acquired: AtomicUsize,
    hasher: Hasher,
    shards: [Mutex<AddressCounts>; SHARDS],
}

impl ConnectionLimiter {
    /// Creates a limiter with `connections_max` permits, of which one address may take
    /// `per_address_max`; `None` means no limit.
    #[must_use]
    pub fn new(connections_max: Option<usize>, per_address_max: Option<usize>) -> Arc<Self> {
        let hasher = Hasher::new();
        Arc::new(Self {
            connections_max: connections_max.unwrap_or(usize::MAX),
            per_address_max: AtomicUsize::new(per_address_max.unwrap_or(usize::MAX)),
            acquired: AtomicUsize::new(0),
            shards: core::array::from_fn(|_| {
                Mutex::new(AddressCounts::with_hasher(hasher.clone()))
            }),
            hasher,
        })
    }

    /// Takes a permit for a connection from this address. Dropping the permit gives it back.
    ///
    /// # Errors
    /// - [`PermitError::Full`] if the connection limit is reached.
    /// - [`PermitError::AddressFull`] if the limit of this address is reached.
    pub fn try_acquire(
        self: &Arc<Self>,
        address: &Address,
    ) -> Result<ConnectionPermit, PermitError> {
        // Relaxed suffices: the number protects no other data.
        let more = |taken: usize| (taken < self.connections_max).then(|| taken + 1);
        self.acquired
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| PermitError::Full)?;
        // Without a limit the count of one address is not needed.
        let per_address_max = self.per_address_max.load(Ordering::Relaxed);
        let key = if per_address_max == usize::MAX { None } else { AddressKey::of(address) };
        let mut permit = ConnectionPermit { limiter: Arc::clone(self), key: None };
        let Some(key) = key else { return Ok(permit) };
        {
            let mut table = self.table(key);
            let count = table.entry(key).or_insert(0);
            if *count < per_address_max {
                *count += 1;
                permit.key = Some(key);
                return Ok(permit);
            }
            // A limit of zero would leave an entry that no permit removes.
            if *count == 0 {
                table.remove(&key);
            }
        }
        Err(PermitError::AddressFull)
    }

    /// Changes the number of permits that one address may take. Permits taken while there was no
    /// such limit do not count.
    pub fn set_per_address_max(&self, per_address_max: Option<usize>) {
        self.per_address_max.store(per_address_max.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Returns the number of permits taken.
    #[must_use]
    pub fn acquired(&self) -> usize {
        self.acquired.load(Ordering::Relaxed)
    }

    /// Returns the number of permits that this address has taken; 0 if addresses have no limit.
    #[must_use]
    pub fn acquired_by(&self, key: AddressKey) -> usize {
        self.table(key).get(&key).copied().unwrap_or(0)
    }

    fn table(&self, key: AddressKey) -> MutexGuard<'_, AddressCounts> {
        let shard = &self.shards[self.hasher.hash_one(key) as usize % SHARDS];
        // Nothing panics while the lock is held.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, key: AddressKey) {
        let mut table = self.table(key);
        if let Entry::Occupied(mut entry) = table.entry(key) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
        if table.capacity() > KEPT && table.len() < table.capacity() / 4 {
            let kept = table.len() * 2;
            table.shrink_to(kept);
        }
    }
}

impl fmt::Debug for ConnectionLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionLimiter")
            .field("connections_max", &self.connections_max)
            .field("per_address_max", &self.per_address_max.load(Ordering::Relaxed))
            .field("acquired", &self.acquired())
            .finish_non_exhaustive()
    }
}

/// The permit of one connection. Dropping it gives it back.
///
/// ```
/// use windlass::stream::Address;
/// use windlass_server::http::{ConnectionLimiter, ConnectionPermit, PermitError};
///
/// /// A connection of a host's own, which counts as long as it exists.
/// struct Connection {
///     permit: ConnectionPermit,
/// }
///
/// let limiter = ConnectionLimiter::new(Some(1), None);
/// let first = Connection { permit: limiter.try_acquire(&Address::Unix(None))? };
/// assert!(limiter.try_acquire(&Address::Unix(None)).is_err());
/// drop(first);
/// assert_eq!(limiter.acquired(), 0);
/// # Ok::<(), PermitError>(())
/// ```
#[must_use]
pub struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    key: Option<AddressKey>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.limiter.release(key);
        }
        self.limiter.acquired.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for ConnectionPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionPermit").field("address", &self.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
