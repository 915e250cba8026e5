//! UDP: datagrams may be lost, doubled and, with jitter, reordered.

use rustix::io::Errno;

use crate::faults::Fault;
use crate::ids::{Fd, HostId, SimAddr, mask};
use crate::kernel::state::State;
use crate::object::Kind;
use crate::schedule::Task;
use crate::slab::Key;
use crate::trace::What;

/// The largest payload over IPv4.
const BYTES_MAX: usize = 65_507;

/// The payload that a socket queues, as `net.core.rmem_default` says. More is lost.
const QUEUED_BYTES_MAX: usize = 212_992;

/// A datagram under way.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    host: HostId,
    from: SimAddr,
    to: SimAddr,
    link: Option<u32>,
    bytes: Box<[u8]>,
}

impl State {
    pub(super) fn send_to(&mut self, fd: Fd, bytes: &[u8], to: &SimAddr) -> Result<usize, Errno> {
        let object = self.object(fd)?;
        let host = object.host;
        let Kind::Udp(udp) = &object.kind else { return Err(Errno::OPNOTSUPP) };
        let local = udp.local.clone();
        let target = to.inet().ok_or(Errno::AFNOSUPPORT)?;
        if bytes.len() > BYTES_MAX {
            return Err(Errno::MSGSIZE);
        }
        self.fail(Fault::NoBuffers, Some(fd), Errno::NOBUFS)?;
        let local = match local.as_ref().and_then(SimAddr::inet) {
            Some(local) => local,
            None => {
                self.bind(fd, &SimAddr::from((self.network.address(host), 0)))?;
                self.local_addr(fd)?.inet().ok_or(Errno::ADDRNOTAVAIL)?
            }
        };
        let own = if target.ip().is_loopback() { target.ip() } else { self.network.address(host) };
        let from = SimAddr::from((own, local.port()));
        let other = self.network.find(host, target.ip()).ok_or(Errno::HOSTUNREACH)?;
        let way = self.network.way(host, other);
        let (link, bytes) = (way.map(|(link, _)| link), Box::from(bytes));
        let datagram = Datagram { host: other, from, to: to.clone(), link, bytes };
        let count = datagram.bytes.len();
        if self.fault(Fault::LostDatagram, Some(fd)) {
            return Ok(count);
        }
        let times = 1 + u32::from(self.fault(Fault::DoubledDatagram, Some(fd)));
        for _ in 0..times {
            let key = self.datagrams.insert(datagram.clone());
            let Some((link, lane)) = way else {
                self.deliver_datagram(key);
                continue;
            };
            let mut at_ns = self.arrival(link, lane, count);
            // Only jitter reorders.
            let keeps_order = !self.network.way_mut(link).jitters();
            if let Kind::Udp(udp) = &mut self.object_mut(fd)?.kind {
                if keeps_order {
                    at_ns = at_ns.max(udp.last_ns + 1);
                }
                udp.last_ns = at_ns;
            }
            self.schedule.at(at_ns, Task::Datagram(key));
        }
        Ok(count)
    }

    /// A datagram arrives, if somebody is there.
    pub(super) fn deliver_datagram(&mut self, key: Key) {
        let Some(datagram) = self.datagrams.remove(key) else { return };
        let now_ns = self.now_ns();
        if datagram.link.is_some_and(|link| self.network.cut_until(link, now_ns).is_some()) {
            return;
        }
        let Some(to) = datagram.to.inet() else { return };
        let bound = self.network.ports.get(&(datagram.host, true, to.port()));
        let Some(fd) = bound.and_then(|fds| fds.first().copied()) else { return };
        let Ok(Kind::Udp(udp)) = self.object_mut(fd).map(|object| &mut object.kind) else { return };
        let local = udp.local.as_ref().and_then(SimAddr::inet);
        let reaches = local.is_some_and(|local| {
            local.ip().is_unspecified() || local.ip().is_loopback() == to.ip().is_loopback()
        });
        let is_other = udp.peer.as_ref().is_some_and(|peer| *peer != datagram.from);
        let count = datagram.bytes.len();
        if !reaches || is_other || udp.queued_bytes + count > QUEUED_BYTES_MAX {
            return;
        }
        udp.queued_bytes += count;
        udp.queue.push_back((datagram.from, datagram.bytes));
        self.record(What::Deliver, Some(fd), count as i64);
        self.wake(Some(fd), mask::IN);
    }

    pub(super) fn recv_from(&mut self, fd: Fd, out: &mut [u8]) -> Result<(usize, SimAddr), Errno> {
        let Kind::Udp(udp) = &mut self.object_mut(fd)?.kind else { return Err(Errno::OPNOTSUPP) };
        let (from, bytes) = udp.queue.pop_front().ok_or(Errno::AGAIN)?;
        udp.queued_bytes -= bytes.len();
        let count = out.len().min(bytes.len());
        out[..count].copy_from_slice(&bytes[..count]);
        Ok((count, from))
    }
}
