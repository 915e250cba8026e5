//! Hosts and the links between them.
//!
//! A link exists for pairs of hosts that have sent something, so idle pairs cost nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::choices::Track;
use crate::faults::Link;
use crate::ids::{Fd, HostId, mask};
use crate::kernel::state::State;
use crate::schedule::Task;
use crate::slab::Key;
use crate::trace::What;

#[derive(Debug)]
struct Host {
    address: IpAddr,
    next_port: u16,
    /// Raised and not read. Equal signals merge.
    signals: u64,
    /// Descriptors that read signals.
    signal_fds: Vec<Fd>,
}

/// The ports that clients get, as Linux has them by default.
const PORTS: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// The way between two hosts.
#[derive(Debug)]
pub(super) struct Way {
    link: Link,
    /// When each direction has carried all that was sent.
    free_ns: [u64; 2],
    /// It carries nothing before.
    cut_until_ns: u64,
    /// Connections and sides whose bytes wait for the end of an endless cut.
    pub(super) held: Vec<(Key, usize)>,
}

impl Way {
    pub(super) fn jitters(&self) -> bool {
        self.link.jitter_ns > 0
    }
}

/// All hosts and links, and who has which port or path.
#[derive(Debug)]
pub(super) struct Network {
    default: Link,
    hosts: Vec<Host>,
    by_address: BTreeMap<IpAddr, HostId>,
    ways: Vec<Way>,
    by_pair: BTreeMap<(HostId, HostId), u32>,
    /// Bound TCP and UDP sockets: host, whether UDP, port.
    pub(super) ports: BTreeMap<(HostId, bool, u16), Vec<Fd>>,
    /// Bound Unix sockets.
    pub(super) paths: BTreeMap<(HostId, Box<str>), Fd>,
}

impl Network {
    pub(super) fn new(default: Link) -> Self {
        Self {
            default,
            hosts: Vec::new(),
            by_address: BTreeMap::new(),
            ways: Vec::new(),
            by_pair: BTreeMap::new(),
            ports: BTreeMap::new(),
            paths: BTreeMap::new(),
        }
    }

    /// The host with an address, made if there is none.
    pub(super) fn host(&mut self, address: IpAddr) -> HostId {
        let hosts = &mut self.hosts;
        *self.by_address.entry(address).or_insert_with(|| {
            hosts.push(Host {
                address,
                next_port: *PORTS.start(),
                signals: 0,
                signal_fds: Vec::new(),
            });
            HostId(u32::try_from(hosts.len() - 1).expect("fewer than 2³² hosts"))
        })
    }

    pub(super) fn address(&self, host: HostId) -> IpAddr {
        self.hosts[host.0 as usize].address
    }

    /// The host that an address means on a host, if there is one.
    pub(super) fn find(&self, from: HostId, address: IpAddr) -> Option<HostId> {
        if address.is_loopback() || address.is_unspecified() {
            return Some(from);
        }
        self.by_address.get(&address).copied()
    }

    /// A port that no socket of the host has.
    pub(super) fn free_port(&mut self, host: HostId, is_udp: bool) -> Option<u16> {
        for _ in PORTS {
            let state = &mut self.hosts[host.0 as usize];
            let port = state.next_port;
            state.next_port = if port == *PORTS.end() { *PORTS.start() } else { port + 1 };
            if !self.ports.contains_key(&(host, is_udp, port)) {
                return Some(port);
            }
        }
        None
    }

    /// The link between two hosts and the direction of it that leads away from the first; none
    /// inside a host.
    pub(super) fn way(&mut self, from: HostId, to: HostId) -> Option<(u32, usize)> {
        if from == to {
            return None;
        }
        let lane = usize::from(from > to);
        let (link, ways) = (self.default, &mut self.ways);
        let index = *self.by_pair.entry((from.min(to), from.max(to))).or_insert_with(|| {
            ways.push(Way { link, free_ns: [0; 2], cut_until_ns: 0, held: Vec::new() });
            u32::try_from(ways.len() - 1).expect("fewer than 2³² links")
        });
        Some((index, lane))
    }

    pub(super) fn way_mut(&mut self, link: u32) -> &mut Way {
        &mut self.ways[link as usize]
    }

    /// When a cut of the link ends, if there is one now.
    pub(super) fn cut_until(&self, link: u32, now_ns: u64) -> Option<u64> {
        let until_ns = self.ways[link as usize].cut_until_ns;
        (until_ns > now_ns).then_some(until_ns)
    }

    pub(super) fn signals_mask(&self, host: HostId, signals: u64) -> u32 {
        if self.hosts[host.0 as usize].signals & signals == 0 { 0 } else { mask::IN }
    }

    /// Takes the lowest signal of a set that was raised.
    pub(super) fn take_signal(&mut self, host: HostId, signals: u64) -> Option<u32> {
        let raised = &mut self.hosts[host.0 as usize].signals;
        let lowest = (*raised & signals).trailing_zeros();
        if lowest == u64::BITS {
            return None;
        }
        *raised &= !(1 << lowest);
        Some(lowest + 1)
    }

    pub(super) fn add_signals(&mut self, host: HostId, fd: Fd) {
        self.hosts[host.0 as usize].signal_fds.push(fd);
    }

    pub(super) fn remove_signals(&mut self, host: HostId, fd: Fd) {
        self.hosts[host.0 as usize].signal_fds.retain(|other| *other != fd);
    }
}

impl State {
    /// When something that is sent now arrives.
    pub(super) fn arrival(&mut self, link: u32, lane: usize, bytes: usize) -> u64 {
        let now_ns = self.now_ns();
        let way = self.network.way_mut(link);
        let start_ns = way.free_ns[lane].max(now_ns);
        let busy_ns = match way.link.bytes_per_s {
            0 => 0,
            rate => {
                u64::try_from(bytes as u128 * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX)
            }
        };
        way.free_ns[lane] = start_ns.saturating_add(busy_ns);
        let at_ns = way.free_ns[lane].saturating_add(way.link.latency_ns);
        let jitter_ns = way.link.jitter_ns;
        at_ns + self.choices.below(Track::Time, jitter_ns)
    }

    pub(super) fn set_link(&mut self, pair: Option<(HostId, HostId)>, link: Link) {
        match pair.map(|(a, b)| self.network.way(a, b)) {
            None => self.network.default = link,
            Some(Some((index, _))) => self.network.way_mut(index).link = link,
            // Inside a host there is no link.
            Some(None) => {}
        }
    }

    /// Cuts a link; `u64::MAX` until it is healed.
    pub(super) fn cut(&mut self, link: u32, until_ns: u64) {
        let way = self.network.way_mut(link);
        way.cut_until_ns = way.cut_until_ns.max(until_ns);
        self.record(What::Cut, None, i64::try_from(until_ns).unwrap_or(i64::MAX));
        if until_ns != u64::MAX {
            self.schedule.at(until_ns, Task::Link(link));
        }
    }

    pub(super) fn partition(&mut self, a: HostId, b: HostId) {
        if let Some((link, _)) = self.network.way(a, b) {
            self.cut(link, u64::MAX);
        }
    }

    pub(super) fn heal(&mut self, a: HostId, b: HostId) {
        if let Some((link, _)) = self.network.way(a, b) {
            self.network.way_mut(link).cut_until_ns = self.now_ns();
            self.link_is_due(link);
        }
    }

    /// Bytes that a cut has held are sent again.
    pub(super) fn link_is_due(&mut self, link: u32) {
        if self.network.cut_until(link, self.now_ns()).is_some() {
            return;
        }
        self.record(What::Heal, None, i64::from(link));
        let held = std::mem::take(&mut self.network.way_mut(link).held);
        let at_ns = self.now_ns() + self.network.way_mut(link).link.latency_ns;
        for (key, side) in held {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            let flow = &mut conn.flows[side];
            flow.hurry(at_ns);
            if let Some(at_ns) = flow.schedule() {
                self.schedule.at(at_ns, Task::Deliver(key, side as u8));
            }
        }
    }

    pub(super) fn raise(&mut self, host: HostId, signal: u32) {
        debug_assert!((1..=64).contains(&signal), "a number of a signal");
        let state = &mut self.network.hosts[host.0 as usize];
        state.signals |= 1 << (signal - 1);
        let fds = state.signal_fds.clone();
        self.record(What::Signal, None, i64::from(signal));
        for fd in fds {
            self.wake(Some(fd), mask::IN);
        }
    }
}
