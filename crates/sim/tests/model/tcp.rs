//! TCP over the loopback device, with sets of epoll(7). Results, errors, bytes and readiness agree
//! after each call, and the simulation has one host or two with a link.
//!
//! 1. Nothing is decided in the middle of a delivery: a call is compared when all that it causes
//!    has happened in both worlds. The kernel gets time for it.
//! 2. An edge of the simulation is one of the kernel. The kernel may have more of them: it also
//!    wakes when a FIN is acknowledged, which may be 40 ms later.
//! 3. How much a buffer takes depends on the kernel's accounting. So a program that fills one
//!    empties it, or closes the end that reads.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, accept_with, bind,
    connect, getpeername, getsockname, listen, recv, send, shutdown, socket_with, sockopt,
};
use windlass_sim::{Faults, Fd, HostId, Kernel, PollEvent, PollSet, SimAddr, SocketKind, Step};
use windlass_sim::{check, mask};

use crate::{is_late, same, simulated};

const OPEN_MAX: usize = 10;
const EVENTS_MAX: usize = 32;
const ALL: u32 = mask::IN | mask::OUT | mask::RDHUP | mask::ERR | mask::HUP;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Not connected, or no longer.
    Idle,
    /// It has a port and does not listen.
    Bound,
    Listener,
    Stream,
}

/// A socket in both worlds.
struct Both {
    real: OwnedFd,
    sim: Fd,
    name: u64,
    role: Role,
    /// The other end of a stream that was accepted.
    peer: Option<u64>,
    /// Its interest in the sets.
    interest: Option<u32>,
    /// Whether shutdown(2) was called.
    was_shut: bool,
}

struct Worlds {
    kernel: Kernel,
    client_host: HostId,
    server_host: HostId,
    real: OwnedFd,
    sim: PollSet,
    open: Vec<Both>,
    names: u64,
}

impl Worlds {
    fn new(kernel: &Kernel) -> Self {
        let client_host = kernel.host([10, 0, 0, 1].into());
        let has_link = kernel.choose(2) == 1;
        let server_host = if has_link { kernel.host([10, 0, 0, 2].into()) } else { client_host };
        let actor = kernel.actor(client_host, "loop");
        kernel.suspend(actor);
        Self {
            kernel: kernel.clone(),
            client_host,
            server_host,
            real: epoll::create(epoll::CreateFlags::CLOEXEC).expect("a set"),
            sim: kernel.poll_set(actor),
            open: Vec::new(),
            names: 0,
        }
    }

    fn add(&mut self, real: OwnedFd, sim: Fd, role: Role) -> &mut Both {
        // Small writes go at once.
        sockopt::set_tcp_nodelay(&real, true).expect("a socket of TCP");
        self.names += 1;
        let (name, peer, interest) = (self.names, None, None);
        self.open.push(Both { real, sim, name, role, peer, interest, was_shut: false });
        self.open.last_mut().expect("it was added")
    }

    fn socket(&mut self, role: Role) -> usize {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let real = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        let real = real.expect("a socket");
        let host = if role == Role::Idle { self.client_host } else { self.server_host };
        let sim = self.kernel.socket(host, SocketKind::Tcp).expect("a socket");
        if role != Role::Idle {
            bind(&real, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let any = SimAddr::from((self.kernel.address_of(host), 0));
            self.kernel.bind(sim, &any).expect("a port");
        }
        if role == Role::Listener {
            listen(&real, 64).expect("it is bound");
            self.kernel.listen(sim, 64).expect("it is bound");
        }
        self.add(real, sim, role);
        self.open.len() - 1
    }

    fn create(&mut self) {
        if self.open.len() < OPEN_MAX {
            let roles = [Role::Listener, Role::Idle, Role::Bound];
            self.socket(roles[self.kernel.choose(3) as usize]);
        }
    }

    /// Connects a socket, most often a new one to a listener.
    fn connect(&mut self, index: usize) {
        let to: Vec<usize> = (0..self.open.len())
            .filter(|index| matches!(self.open[*index].role, Role::Listener | Role::Bound))
            .collect();
        if to.is_empty() {
            return;
        }
        let to = to[self.kernel.choose(to.len() as u64) as usize];
        let is_new = self.open.len() < OPEN_MAX && self.kernel.choose(4) > 0;
        let index = if is_new { self.socket(Role::Idle) } else { index };
        let both = &self.open[index];
        // After shutdown(2) connect(2) has other errors. A socket with a port could connect to
        // itself.
        if both.was_shut || both.role == Role::Bound {
            return;
        }
        let address = getsockname(&self.open[to].real).expect("a name");
        let local = self.kernel.local_addr(self.open[to].sim).expect("a name");
        let result = connect(&both.real, &address);
        let result = same("connect", result, self.kernel.connect(both.sim, &local));
        let role = &mut self.open[index].role;
        *role = match (*role, result) {
            (Role::Idle, Err(Errno::INPROGRESS)) => Role::Stream,
            (Role::Stream, Err(Errno::CONNREFUSED | Errno::CONNABORTED)) => Role::Idle,
            (Role::Stream, Err(Errno::CONNRESET | Errno::PIPE)) => Role::Idle,
            (role, _) => role,
        };
    }

    fn accept(&mut self, index: usize) {
        let both = &self.open[index];
        if self.open.len() >= OPEN_MAX {
            return;
        }
        let real = accept_with(&both.real, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        match (real, self.kernel.accept(both.sim)) {
            (Ok(real), Ok((sim, address))) => {
                let is_peer =
                    |it: &&mut Both| self.kernel.local_addr(it.sim).ok() == Some(address.clone());
                let peer = self.open.iter_mut().filter(|it| it.role == Role::Stream).find(is_peer);
                let peer = peer.map(|it| it.name);
                let added = self.add(real, sim, Role::Stream);
                added.peer = peer;
                let name = added.name;
                if let Some(it) = self.open.iter_mut().find(|it| Some(it.name) == peer) {
                    it.peer = Some(name);
                }
            }
            (real, sim) => {
                let _: Result<_, _> = same("accept", real.map(drop), sim.map(drop));
            }
        }
    }

    fn send(&mut self, index: usize) {
        // Few bytes, so that they always fit.
        let len = self.kernel.choose(100) as usize;
        let bytes = vec![self.kernel.choose(200) as u8; len];
        let both = &self.open[index];
        let real = send(&both.real, &bytes, SendFlags::NOSIGNAL);
        let _: Result<_, _> = same("send", real, self.kernel.send(both.sim, &bytes));
    }

    fn recv(&mut self, index: usize, peeks: bool) {
        let len = 1 + self.kernel.choose(300) as usize;
        let both = &self.open[index];
        let (mut real_bytes, mut sim_bytes) = (vec![0; len], vec![0; len]);
        let flags = if peeks { RecvFlags::PEEK } else { RecvFlags::empty() };
        let real = recv(&both.real, &mut real_bytes, flags).map(|(count, _)| count);
        let sim = if peeks {
            self.kernel.peek(both.sim, &mut sim_bytes)
        } else {
            self.kernel.recv(both.sim, &mut sim_bytes)
        };
        let _: Result<_, _> = same("recv", real, sim);
        assert_eq!(real_bytes, sim_bytes, "the bytes");
    }

    fn shut(&mut self, index: usize) {
        let both = &mut self.open[index];
        if matches!(both.role, Role::Idle | Role::Bound) {
            return;
        }
        both.was_shut = true;
        let (real, sim) = [
            (Shutdown::Write, std::net::Shutdown::Write),
            (Shutdown::Read, std::net::Shutdown::Read),
            (Shutdown::Both, std::net::Shutdown::Both),
        ][self.kernel.choose(3) as usize];
        let result = shutdown(&both.real, real);
        let _: Result<_, _> = same("shutdown", result, self.kernel.shutdown(both.sim, sim));
        if both.role == Role::Listener && sim != std::net::Shutdown::Write {
            both.role = Role::Idle;
        }
    }

    fn set_linger(&mut self, index: usize) {
        let both = &self.open[index];
        let resets = self.kernel.choose(2) == 1;
        let time = resets.then_some(Duration::ZERO);
        let real = sockopt::set_socket_linger(&both.real, time);
        let sim = self.kernel.set_reset_on_close(both.sim, resets);
        let _: Result<_, _> = same("SO_LINGER", real, sim);
    }

    fn take_error(&mut self, index: usize) {
        let both = &self.open[index];
        let real = sockopt::socket_error(&both.real).expect("a socket").err();
        let sim = self.kernel.take_error(both.sim).expect("a socket");
        let sim = sim.map(|error| Errno::from_io_error(&error).expect("an errno"));
        assert_eq!(real, sim, "SO_ERROR");
    }

    fn peer_name(&mut self, index: usize) {
        let both = &self.open[index];
        let real = getpeername(&both.real).map(drop);
        let _: Result<_, _> = same("getpeername", real, self.kernel.peer_addr(both.sim).map(drop));
    }

    fn close(&mut self, index: usize) {
        let both = self.open.swap_remove(index);
        drop(both.real);
        self.kernel.close(both.sim).expect("it is open");
    }

    fn control(&mut self, index: usize) {
        let bits = [mask::IN, mask::OUT, mask::IN | mask::OUT, mask::RDHUP | mask::IN, 0];
        let modes = [0, mask::ET, mask::ONESHOT];
        let bits = bits[self.kernel.choose(5) as usize] | modes[self.kernel.choose(3) as usize];
        let flags = epoll::EventFlags::from_bits_retain(bits);
        let both = &mut self.open[index];
        let data = epoll::EventData::new_u64(both.name);
        match self.kernel.choose(5) {
            0 if both.interest.is_some() => {
                let real = epoll::delete(&self.real, &both.real);
                same("delete", real, self.sim.delete(both.sim)).expect("it is there");
                both.interest = None;
            }
            _ if both.interest.is_some() => {
                let real = epoll::modify(&self.real, &both.real, data, flags);
                let sim = self.sim.modify(both.sim, bits, both.name);
                same("modify", real, sim).expect("it is there");
                both.interest = Some(bits);
            }
            _ => {
                let real = epoll::add(&self.real, &both.real, data, flags);
                let sim = self.sim.add(both.sim, bits, both.name);
                same("add", real, sim).expect("it is not there");
                both.interest = Some(bits);
            }
        }
    }

    fn wait(&mut self) {
        const DATA: epoll::EventData = epoll::EventData::new_u64(0);
        let mut real = [epoll::Event { flags: epoll::EventFlags::empty(), data: DATA }; EVENTS_MAX];
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.real, &mut real, Some(&zero)).expect("events");
        let real: BTreeMap<u64, u32> = real[..count]
            .iter()
            .map(|event| {
                // Copied, because the event is packed.
                let (flags, data) = (event.flags, event.data);
                (data.u64(), flags.bits())
            })
            .collect();
        let mut sim = [PollEvent::default(); EVENTS_MAX];
        let count = self.sim.wait(&mut sim).expect("events");
        let mut sim: BTreeMap<u64, u32> =
            sim[..count].iter().map(|event| (event.data, event.mask)).collect();
        for both in &mut self.open {
            let Some(interest) = both.interest else { continue };
            let ready = self.kernel.poll(both.sim).expect("it is open");
            let reported = ready & (interest | mask::ERR | mask::HUP);
            if interest & mask::ET != 0 && reported != 0 && real.contains_key(&both.name) {
                sim.entry(both.name).or_insert(reported);
            }
        }
        assert_eq!(real, sim, "the events of the kernel and of the simulation");
    }

    /// The readiness and the unread bytes of a socket in the simulation, and what the kernel has.
    fn states(&self, both: &Both) -> [(u32, usize); 2] {
        let flags = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
        let mut fds = [PollFd::new(&both.real, flags)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a readiness");
        let real = u32::from(fds[0].revents().bits()) & ALL;
        let sim = self.kernel.poll(both.sim).expect("it is open");
        if both.role != Role::Stream {
            return [(real, 0), (sim, 0)];
        }
        let unread = ioctl_fionread(&both.real).expect("a stream") as usize;
        [(real, unread), (sim, self.kernel.unread(both.sim).expect("a stream"))]
    }

    /// Lets everything happen that a call has caused.
    fn settle(&mut self) {
        assert_eq!(self.kernel.step(), Step::Quiet);
        let begun = Instant::now();
        for both in &self.open {
            loop {
                let [real, sim] = self.states(both);
                if real == sim {
                    break;
                }
                assert!(
                    !is_late(begun),
                    "readiness and unread bytes of {} ({:?}): {real:x?} in the kernel, {sim:x?} in \
                     the simulation",
                    both.name,
                    both.role,
                );
                thread::yield_now();
            }
        }
    }
}

/// Full buffers.
impl Worlds {
    /// Fills the buffers of a stream, perhaps ends its writer, and empties them or ends the reader.
    fn fill(&mut self, index: usize) {
        let both = &self.open[index];
        let Some(reader) = self.open.iter().position(|it| Some(it.name) == both.peer) else {
            return;
        };
        // After shutdown(2) of its input, a read of what has not come yet is the end.
        if self.open[reader].was_shut {
            return;
        }
        let (writer_name, reader_name) = (both.name, self.open[reader].name);
        let unread = ioctl_fionread(&self.open[reader].real).expect("a stream") as usize;
        let (mut written, error) = self.fill_real(index);
        let page = [7; 65_536];
        let sim = loop {
            match self.kernel.send(self.open[index].sim, &page) {
                Ok(_) => assert_eq!(self.kernel.step(), Step::Quiet),
                Err(error) => break simulated::<()>(Err(error)),
            }
        };
        assert_eq!(Err(error), sim, "the error of a full buffer");
        if error != Errno::AGAIN {
            return;
        }
        let begun = Instant::now();
        while self.states(&self.open[index])[0].0 & mask::OUT != 0 {
            // What has been acknowledged since makes room.
            written += self.fill_real(index).0;
            assert!(!is_late(begun), "the buffer is not full");
        }
        assert_eq!(self.states(&self.open[index])[1].0 & mask::OUT, 0, "no room");
        match self.kernel.choose(4) {
            0 => {}
            1 => {
                let both = &mut self.open[index];
                both.was_shut = true;
                let real = shutdown(&both.real, Shutdown::Write);
                let sim = self.kernel.shutdown(both.sim, std::net::Shutdown::Write);
                let _: Result<_, _> = same("shutdown", real, sim);
            }
            2 => self.close(index),
            _ => return self.close(reader),
        }
        let is_open = self.open.iter().any(|it| it.name == writer_name && !it.was_shut);
        let place = self.open.iter().position(|it| it.name == reader_name).expect("it is open");
        self.empty(place, is_open.then_some(unread + written));
    }

    fn fill_real(&self, index: usize) -> (usize, Errno) {
        let (page, mut written) = ([7; 65_536], 0);
        loop {
            match send(&self.open[index].real, &page, SendFlags::NOSIGNAL) {
                Ok(count) => written += count,
                Err(error) => return (written, error),
            }
        }
    }

    /// Reads all that there is: a number of bytes, or up to the end.
    fn empty(&mut self, index: usize, expected: Option<usize>) {
        let both = &self.open[index];
        let mut bytes = vec![0; 1 << 18];
        let (mut count, begun) = (0, Instant::now());
        let real = loop {
            match recv(&both.real, &mut bytes, RecvFlags::empty()) {
                Ok((0, _)) => break Ok(0),
                Ok((more, _)) => count += more,
                Err(Errno::AGAIN) if Some(count) != expected => thread::yield_now(),
                Err(error) => break Err(error),
            }
            assert!(!is_late(begun), "{count} of {expected:?} bytes have come");
        };
        let sim = loop {
            match self.kernel.recv(both.sim, &mut bytes) {
                Ok(1..) => assert_eq!(self.kernel.step(), Step::Quiet),
                end => break simulated(end),
            }
        };
        assert_eq!(real, sim, "the end of the input");
    }
}

impl Worlds {
    fn step(&mut self) {
        let operation = self.kernel.choose(40);
        if operation == 0 || self.open.is_empty() {
            return self.create();
        }
        let index = self.kernel.choose(self.open.len() as u64) as usize;
        match operation {
            1..=4 => self.connect(index),
            5..=9 => self.accept(index),
            10..=15 => self.send(index),
            16..=18 => self.recv(index, false),
            19 => self.recv(index, true),
            20..=22 => self.shut(index),
            23 => self.set_linger(index),
            24 => self.take_error(index),
            25 => self.peer_name(index),
            26..=28 => self.close(index),
            29..=33 => self.control(index),
            34 if self.kernel.choose(4) == 0 => self.fill(index),
            _ => self.wait(),
        }
    }
}

fn program(kernel: &mut Kernel) {
    let mut worlds = Worlds::new(kernel);
    worlds.socket(Role::Listener);
    for _ in 0..100 {
        worlds.step();
        worlds.settle();
    }
    // The kernel keeps no connection in the state TIME_WAIT.
    for both in &worlds.open {
        sockopt::set_socket_linger(&both.real, Some(Duration::ZERO)).expect("a socket");
    }
}

#[test]
fn random_programs_have_the_outcomes_of_tcp() {
    check(program).faults(Faults::calm()).seeds(500).run();
}
