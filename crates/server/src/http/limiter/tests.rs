//! Tests of the unit of counting, and of taking, rejecting and returning permits against a naive
//! count.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, thread};

use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> Address {
    Address::Ip(SocketAddr::new(text.parse().expect("an address"), 1234))
}

fn key(text: &str) -> AddressKey {
    AddressKey::of(&ip(text)).expect("an IP address")
}

fn entries(limiter: &ConnectionLimiter) -> usize {
    limiter.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
}

fn room(limiter: &ConnectionLimiter) -> usize {
    limiter.shards.iter().map(|shard| shard.lock().unwrap().capacity()).sum()
}

#[test]
fn addresses_with_the_same_key() {
    for (one, other) in [
        ("1.2.3.4", "::ffff:1.2.3.4"),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"),
        ("::1", "::2"),
        ("fe80::1", "fe80::2"),
    ] {
        assert_eq!(key(one), key(other), "{one} {other}");
    }
    for (one, other) in [
        ("1.2.3.4", "1.2.3.5"),
        ("1.2.3.4", "4.3.2.1"),
        ("2001:db8:1:2::1", "2001:db8:1:3::1"),
        ("2001:db8:1:2::1", "2001:db9:1:2::1"),
        ("::1", "127.0.0.1"),
        ("::1", "0.0.0.0"),
        ("0:0:102:304::", "1.2.3.4"),
        ("::102:304", "1.2.3.4"),
        ("255.255.255.254", "255.255.255.253"),
    ] {
        assert_ne!(key(one), key(other), "{one} {other}");
    }
    assert_eq!(AddressKey::of(&Address::Unix(None)), None);
    assert_eq!(AddressKey::of(&Address::Unix(Some(PathBuf::from("/a")))), None);
    // Addresses where no connection comes from have a key as well.
    let _ = (key("255.255.255.255"), key("ffff:ffff:ffff:ffff::"));
}

#[test]
fn the_port_does_not_count() {
    let with_port =
        |port| AddressKey::of(&Address::Ip(SocketAddr::new("1.2.3.4".parse().unwrap(), port)));
    assert_eq!(with_port(1), with_port(2));
}

#[test]
fn keys_are_shown_as_networks() {
    assert_eq!(format!("{:?}", key("1.2.3.4")), "1.2.3.4");
    assert_eq!(format!("{:?}", key("2001:db8:1:2::3")), "2001:db8:1:2::/64");
    assert_eq!(format!("{:?}", key("::1")), "::/64");
}

#[test]
fn a_permit_is_small() {
    assert_eq!(size_of::<Option<AddressKey>>(), 8);
    assert_eq!(size_of::<Option<ConnectionPermit>>(), 16, "each connection has one");
}

#[test]
fn each_address_has_so_many_permits() {
    let limiter = ConnectionLimiter::new(None, Some(2));
    let first = limiter.try_acquire(&ip("2001:db8::1")).unwrap();
    let second = limiter.try_acquire(&ip("2001:db8::2")).unwrap();
    assert_eq!(limiter.try_acquire(&ip("2001:db8::3")).unwrap_err(), PermitError::AddressFull);
    let other = limiter.try_acquire(&ip("2001:db8:0:1::1")).unwrap();
    assert_eq!((limiter.acquired(), limiter.acquired_by(key("2001:db8::9"))), (3, 2));
    drop(first);
    let third = limiter.try_acquire(&ip("2001:db8::3")).unwrap();
    assert_eq!(limiter.try_acquire(&ip("2001:db8::1")).unwrap_err(), PermitError::AddressFull);
    drop((second, third, other));
    assert_eq!((limiter.acquired(), entries(&limiter)), (0, 0));
}

#[test]
fn all_have_so_many_permits_together() {
    let limiter = ConnectionLimiter::new(Some(2), Some(1));
    let first = limiter.try_acquire(&ip("1.1.1.1")).unwrap();
    assert_eq!(limiter.try_acquire(&ip("1.1.1.1")).unwrap_err(), PermitError::AddressFull);
    assert_eq!(limiter.acquired(), 1, "a rejected connection takes no permit");
    let _second = limiter.try_acquire(&ip("2.2.2.2")).unwrap();
    assert_eq!(limiter.try_acquire(&ip("3.3.3.3")).unwrap_err(), PermitError::Full);
    assert_eq!(limiter.try_acquire(&Address::Unix(None)).unwrap_err(), PermitError::Full);
    drop(first);
    assert_eq!(entries(&limiter), 1);
    assert!(limiter.try_acquire(&ip("3.3.3.3")).is_ok());
}

#[test]
fn unix_sockets_are_no_address() {
    let limiter = ConnectionLimiter::new(None, Some(1));
    let permits: Vec<ConnectionPermit> =
        (0..10).map(|_| limiter.try_acquire(&Address::Unix(None)).unwrap()).collect();
    assert_eq!((limiter.acquired(), entries(&limiter)), (10, 0));
    drop(permits);
    assert_eq!(limiter.acquired(), 0);
}

#[test]
fn without_a_limit_addresses_are_not_counted() {
    let limiter = ConnectionLimiter::new(None, None);
    let _permits: Vec<ConnectionPermit> =
        (0..10).map(|_| limiter.try_acquire(&ip("1.1.1.1")).unwrap()).collect();
    assert_eq!((limiter.acquired(), entries(&limiter)), (10, 0));
}

#[test]
fn a_limit_of_zero_rejects_all_and_stores_nothing() {
    let limiter = ConnectionLimiter::new(None, Some(0));
    for last in 0..100 {
        assert_eq!(
            limiter.try_acquire(&ip(&format!("1.1.1.{last}"))).unwrap_err(),
            PermitError::AddressFull
        );
    }
    assert_eq!((limiter.acquired(), entries(&limiter)), (0, 0));
}

#[test]
fn memory_is_given_back_with_the_permits() {
    let limiter = ConnectionLimiter::new(None, Some(1));
    let address = |number: u32| Address::Ip(SocketAddr::new(Ipv4Addr::from(number).into(), 1));
    let mut permits: Vec<ConnectionPermit> =
        (0..100_000).map(|number| limiter.try_acquire(&address(number)).unwrap()).collect();
    assert_eq!(entries(&limiter), 100_000);
    assert!(room(&limiter) >= 100_000);
    permits.truncate(10);
    assert_eq!(entries(&limiter), 10);
    assert!(room(&limiter) <= SHARDS * 2 * KEPT, "{}", room(&limiter));
    drop(permits);
    assert_eq!(entries(&limiter), 0);
}

#[test]
fn workers_share_one_count() {
    const EACH: usize = 2000;
    let limiter = ConnectionLimiter::new(Some(40), Some(3));
    let work = |worker: usize| {
        let mut permits = Vec::new();
        for step in 0..EACH {
            let address = ip(&format!("10.0.0.{}", (step * 7 + worker) % 11));
            if let Ok(permit) = limiter.try_acquire(&address) {
                permits.push(permit);
            }
            assert!(limiter.acquired() <= 40);
            assert!(limiter.acquired_by(AddressKey::of(&address).unwrap()) <= 3);
            if step % 3 != 0 && !permits.is_empty() {
                drop(permits.swap_remove(step % permits.len()));
            }
        }
    };
    thread::scope(|scope| {
        for worker in 0..4 {
            let work = &work;
            scope.spawn(move || work(worker));
        }
    });
    assert_eq!((limiter.acquired(), entries(&limiter)), (0, 0));
}

proptest! {
    /// Compares with a count that keeps every open permit in a list.
    #[test]
    fn permits_agree_with_a_naive_count(
        all_max in 0..12_usize,
        address_max in 0..5_usize,
        steps in proptest::collection::vec(
            (any::<bool>(), 0..6_usize, any::<proptest::sample::Index>()),
            0..80,
        ),
    ) {
        let mut addresses = ["1.1.1.1", "::ffff:1.1.1.1", "2.2.2.2", "2001:db8::1", "2001:db8::2"]
            .map(ip)
            .to_vec();
        addresses.push(Address::Unix(None));
        let names = ["v4 1", "v4 1", "v4 2", "v6", "v6", "unix"];
        let limiter = ConnectionLimiter::new(Some(all_max), Some(address_max));
        let mut open: Vec<(&str, ConnectionPermit)> = Vec::new();
        for (takes, which, index) in steps {
            if takes {
                let name = names[which];
                let same = open.iter().filter(|(other, _)| *other == name).count();
                let expected = if open.len() >= all_max {
                    Err(PermitError::Full)
                } else if name != "unix" && same >= address_max {
                    Err(PermitError::AddressFull)
                } else {
                    Ok(())
                };
                let taken = limiter.try_acquire(&addresses[which]);
                prop_assert_eq!(taken.as_ref().map(|_| ()).map_err(|&error| error), expected);
                open.extend(taken.ok().map(|permit| (name, permit)));
            } else if !open.is_empty() {
                drop(open.swap_remove(index.index(open.len())));
            }
            let mut counts = BTreeMap::new();
            for (name, _) in &open {
                *counts.entry(*name).or_insert(0) += 1;
            }
            prop_assert_eq!(limiter.acquired(), open.len());
            for (which, name) in names.iter().enumerate().take(5) {
                let key = AddressKey::of(&addresses[which]).unwrap();
                prop_assert_eq!(limiter.acquired_by(key), counts.get(name).copied().unwrap_or(0));
            }
            let counted = counts.keys().filter(|name| **name != "unix").count();
            prop_assert_eq!(entries(&limiter), counted);
        }
    }

    /// The rule in other words: two addresses share a key if they are the same IPv4 address, or
    /// IPv6 addresses in the same /64.
    #[test]
    fn keys_are_equal_as_the_networks_are(
        a in any::<u128>(),
        b in any::<u128>(),
        same in 0..129_u32,
        v4 in any::<bool>(),
    ) {
        // The second address shares the first `same` bits of the first address.
        let mask = u128::MAX.checked_shl(128 - same).unwrap_or(0);
        let b = (a & mask) | (b & !mask);
        if v4 {
            let (a, b) = (Ipv4Addr::from((a >> 96) as u32), Ipv4Addr::from((b >> 96) as u32));
            let broadcast = [a, b].iter().any(|address| address.is_broadcast());
            let (key_a, key_b) = (AddressKey::of_ip(a.into()), AddressKey::of_ip(b.into()));
            let are_neighbours = broadcast && a.octets()[..3] == b.octets()[..3];
            prop_assert_eq!(key_a == key_b, a == b || are_neighbours);
            prop_assert_eq!(AddressKey::of_ip(a.to_ipv6_mapped().into()), key_a);
        } else {
            let (a, b) = (Ipv6Addr::from(a), Ipv6Addr::from(b));
            let is_mapped = |address: Ipv6Addr| address.to_ipv4_mapped().is_some();
            let is_plain = |address: Ipv6Addr| !is_mapped(address) && !address.is_multicast();
            if is_plain(a) && is_plain(b) {
                let (key_a, key_b) = (AddressKey::of_ip(a.into()), AddressKey::of_ip(b.into()));
                prop_assert_eq!(key_a == key_b, a.segments()[..4] == b.segments()[..4]);
            }
        }
    }
}
