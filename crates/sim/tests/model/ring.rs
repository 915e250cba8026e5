//! Completions of io_uring(7), of TCP, Unix sockets and eventfds: accepts, receives, sends and
//! polls that wait, that hold what was closed, and that are cancelled.
//!
//! The order of the completions of different requests is the kernel's affair. Those of one request
//! come in their order.
//!
//! A poll of the simulation reports all that is ready. One of the kernel reports that, or only the
//! bits of one wake. A multishot poll of the kernel may report more often: TCP also wakes when a
//! FIN is acknowledged, which may be 40 ms later.

#![allow(unsafe_code, reason = "requests name memory and descriptors by numbers")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::thread;
use std::time::Instant;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use windlass_sim::{
    Faults, Fd, HostId, Kernel, Ring, RingRequest, SimAddr, SocketKind, Step, check, mask,
};

use crate::{is_late, same, simulated};

/// Requests that wait at once.
const PENDING_MAX: usize = 12;
const LEN_MAX: usize = 2_000;

/// The user data of cancellations.
const CANCELS: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Listener,
    /// A TCP or Unix stream.
    Stream,
}

/// A descriptor in both worlds.
struct Both {
    real: OwnedFd,
    sim: Fd,
    kind: Kind,
}

/// A completion: its result, whether more follow, and the bytes that were received.
type Outcome = (i32, bool, Vec<u8>);

/// The completions of each request.
type Outcomes = BTreeMap<u64, Vec<Outcome>>;

/// What a completion has accepted, by the request.
type Accepted<T> = BTreeMap<u64, Vec<T>>;

/// A request that waits in both worlds.
struct Pending {
    user_data: u64,
    fd: Fd,
    request: RingRequest,
    /// What the kernel reads or writes until the request has completed.
    memory: Box<[u8]>,
}

struct Worlds {
    kernel: Kernel,
    host: HostId,
    /// Dropped first: its requests end before the memory does.
    real: IoUring,
    sim: Ring,
    open: Vec<Both>,
    pending: Vec<Pending>,
    requests: u64,
    /// Where the listener is in both worlds.
    port: u16,
    address: SimAddr,
}

impl Worlds {
    fn new(kernel: &Kernel) -> Self {
        let host = kernel.host([10, 0, 0, 1].into());
        let actor = kernel.actor(host, "loop");
        kernel.suspend(actor);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("a name").port();
        let sim_listener = kernel.socket(host, SocketKind::Tcp).expect("a socket");
        let address = SimAddr::from((kernel.address_of(host), port));
        kernel.bind(sim_listener, &address).expect("a port");
        kernel.listen(sim_listener, 128).expect("it is bound");
        let real = IoUring::new(64).expect("it was possible before");
        let sim = kernel.ring(actor, 256);
        let open = vec![Both { real: listener.into(), sim: sim_listener, kind: Kind::Listener }];
        let (kernel, pending) = (kernel.clone(), Vec::new());
        Self { kernel, host, real, sim, open, pending, requests: 0, port, address }
    }

    fn create(&mut self) {
        if self.open.len() >= 8 {
            return;
        }
        match self.kernel.choose(4) {
            0 => {
                let real = eventfd(0, EventfdFlags::CLOEXEC).expect("a counter");
                let sim = self.kernel.eventfd(self.host, 0, false).expect("a counter");
                return self.open.push(Both { real, sim, kind: Kind::Counter });
            }
            1 | 2 => return self.connect(),
            _ => {}
        }
        // They block: a request on one that does not would fail with EAGAIN.
        let flags = SocketFlags::CLOEXEC;
        let (one, two) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a pair");
        let (sim_one, sim_two) = self.kernel.socketpair(self.host).expect("a pair");
        self.open.push(Both { real: one, sim: sim_one, kind: Kind::Stream });
        self.open.push(Both { real: two, sim: sim_two, kind: Kind::Stream });
    }

    /// Connects to the listener, as long as it is open.
    fn connect(&mut self) {
        if !self.open.iter().any(|both| both.kind == Kind::Listener) {
            return;
        }
        let real = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("it listens");
        real.set_nodelay(true).expect("a socket");
        let sim = self.kernel.socket(self.host, SocketKind::Tcp).expect("a socket");
        let result = simulated(self.kernel.connect(sim, &self.address));
        assert_eq!((result, self.kernel.step()), (Err(Errno::INPROGRESS), Step::Quiet));
        self.open.push(Both { real: real.into(), sim, kind: Kind::Stream });
    }

    /// Submits a request. Each socket has one receive and one send at most, as streams have.
    fn submit(&mut self, index: usize) {
        if self.pending.len() >= PENDING_MAX {
            return;
        }
        self.requests += 1;
        let user_data = self.requests;
        let len = 1 + self.kernel.choose(LEN_MAX as u64) as usize;
        let mut memory = vec![self.kernel.choose(200) as u8; len].into_boxed_slice();
        let both = &self.open[index];
        let fd = types::Fd(both.real.as_raw_fd());
        let kind = self.kernel.choose(4);
        let is_there = |is_send: bool| {
            let is_one = |it: &&Pending| matches!(it.request, RingRequest::Send { .. }) == is_send;
            self.pending.iter().filter(is_one).any(|pending| pending.fd == both.sim)
        };
        let is_stream = both.kind == Kind::Stream;
        let (entry, request) = match kind {
            0 | 1 if both.kind == Kind::Listener && !is_there(false) => {
                let multishot = kind == 1;
                let none = std::ptr::null_mut();
                let one = opcode::Accept::new(fd, none, none.cast()).build();
                (
                    if multishot { opcode::AcceptMulti::new(fd).build() } else { one },
                    RingRequest::Accept { fd: both.sim, multishot },
                )
            }
            0 if is_stream && !is_there(false) => (
                opcode::Recv::new(fd, memory.as_mut_ptr(), len as u32).build(),
                RingRequest::Recv { fd: both.sim, max: len, multishot: false },
            ),
            1 if is_stream && !self.is_crowded() && !is_there(true) => (
                opcode::Send::new(fd, memory.as_ptr(), len as u32)
                    .flags(SendFlags::NOSIGNAL.bits() as i32)
                    .build(),
                RingRequest::Send { fd: both.sim, bytes: memory.to_vec() },
            ),
            // One that reads takes away what another one would report.
            _ if is_there(false) => return,
            _ => {
                let multishot = kind == 3;
                (
                    opcode::PollAdd::new(fd, mask::IN).multi(multishot).build(),
                    RingRequest::Poll { fd: both.sim, mask: mask::IN, multishot },
                )
            }
        };
        let what = request.clone();
        self.pending.push(Pending { user_data, fd: both.sim, request: what, memory });
        self.push(&entry.user_data(user_data));
        self.sim.submit(user_data, request);
    }

    /// Whether much is unread. What fits depends on the kernel's accounting.
    fn is_crowded(&self) -> bool {
        self.open.iter().any(|both| self.kernel.unread(both.sim).is_ok_and(|it| it > 20_000))
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the descriptor is open, and the memory that the entry names is in a box that
        // `pending` holds until the request has completed (`reap`, and the drop of this).
        unsafe { self.real.submission().push(entry) }.expect("there is room");
        self.real.submit().expect("the ring is ours");
    }

    fn write(&mut self, index: usize) {
        let both = &self.open[index];
        if both.kind == Kind::Listener {
            return;
        }
        if both.kind == Kind::Counter {
            let bytes = (1 + self.kernel.choose(3)).to_ne_bytes();
            let real = rustix::io::write(&both.real, &bytes);
            let _: Result<_, _> = same("write", real, self.kernel.write(both.sim, &bytes));
            return;
        }
        let bytes = vec![self.kernel.choose(200) as u8; 1 + self.kernel.choose(1_000) as usize];
        if self.is_crowded() {
            return;
        }
        let real = send(&both.real, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        let _: Result<_, _> = same("send", real, self.kernel.send(both.sim, &bytes));
    }

    fn read(&mut self, index: usize) {
        let both = &self.open[index];
        let (mut real_bytes, mut sim_bytes) = ([0; 1_500], [0; 1_500]);
        if both.kind == Kind::Listener {
            return;
        }
        if both.kind == Kind::Counter {
            // It would wait.
            if self.kernel.poll(both.sim).expect("it is open") & mask::IN == 0 {
                return;
            }
            let real = rustix::io::read(&both.real, &mut real_bytes[..8]);
            let sim = self.kernel.read(both.sim, &mut sim_bytes[..8]);
            let _: Result<_, _> = same("read", real, sim);
            return assert_eq!(real_bytes, sim_bytes, "the count");
        }
        let real = recv(&both.real, &mut real_bytes, RecvFlags::DONTWAIT).map(|(count, _)| count);
        let _: Result<_, _> = same("recv", real, self.kernel.recv(both.sim, &mut sim_bytes));
        assert_eq!(real_bytes, sim_bytes, "the bytes");
    }

    fn shut(&mut self, index: usize) {
        let both = &self.open[index];
        if both.kind == Kind::Stream {
            let (real, sim) = [
                (Shutdown::Write, std::net::Shutdown::Write),
                (Shutdown::Read, std::net::Shutdown::Read),
                (Shutdown::Both, std::net::Shutdown::Both),
            ][self.kernel.choose(3) as usize];
            let real = shutdown(&both.real, real);
            let sim = self.kernel.shutdown(both.sim, sim);
            let _: Result<_, _> = same("shutdown", real, sim);
        }
    }

    fn close(&mut self, index: usize) {
        let both = self.open.swap_remove(index);
        drop(both.real);
        self.kernel.close(both.sim).expect("it is open");
    }

    /// Cancels a request, which may have completed.
    fn cancel(&mut self, user_data: u64) {
        // What waits in a queue would be found in one world only.
        self.reap();
        self.push(&opcode::AsyncCancel::new(user_data).build().user_data(CANCELS));
        let sim = simulated(self.sim.cancel(user_data)).map_or_else(|e| -e.raw_os_error(), |()| 0);
        self.compare(Outcomes::from([(CANCELS, vec![(sim, false, Vec::new())])]));
    }

    fn reap(&mut self) {
        self.compare(Outcomes::new());
    }

    /// Reaps what the kernel has completed so far.
    fn reap_real(&mut self, outcomes: &mut Outcomes, accepted: &mut Accepted<OwnedFd>) {
        self.real.submit().expect("the ring is ours");
        for entry in self.real.completion() {
            let (user_data, mut result) = (entry.user_data(), entry.result());
            let more = io_uring::cqueue::more(entry.flags());
            let place = self.pending.iter().position(|it| it.user_data == user_data);
            let count = usize::try_from(result).unwrap_or(0);
            let mut bytes = Vec::new();
            match place.map(|place| &self.pending[place]) {
                Some(Pending { request: RingRequest::Recv { .. }, memory, .. }) => {
                    bytes.extend_from_slice(&memory[..count]);
                }
                Some(Pending { request: RingRequest::Accept { .. }, .. }) if result >= 0 => {
                    // SAFETY: the kernel has made the descriptor for this completion.
                    let fd = unsafe { OwnedFd::from_raw_fd(result) };
                    accepted.entry(user_data).or_default().push(fd);
                    result = 0;
                }
                _ => {}
            }
            outcomes.entry(user_data).or_default().push((result, more, bytes));
            if let (false, Some(place)) = (more, place) {
                self.pending.swap_remove(place);
            }
        }
    }

    /// Compares the completions of the simulation and others with those of the kernel, which gets
    /// time for them.
    fn compare(&mut self, mut sim: Outcomes) {
        let is_poll = |it: &&Pending| matches!(it.request, RingRequest::Poll { .. });
        let polls = self.pending.iter().filter(is_poll).map(|it| it.user_data);
        let polls: Vec<u64> = polls.collect();
        let mut sim_accepted = Accepted::new();
        let mut completions = Vec::new();
        assert!(!self.sim.reap(&mut completions), "the queue is long enough");
        for completion in completions {
            let accepted: &mut Vec<Fd> = sim_accepted.entry(completion.user_data).or_default();
            accepted.extend(completion.accepted);
            let outcome = (completion.result, completion.more, completion.bytes);
            sim.entry(completion.user_data).or_default().push(outcome);
        }
        let (mut real, mut real_accepted) = (Outcomes::new(), Accepted::new());
        let begun = Instant::now();
        loop {
            self.reap_real(&mut real, &mut real_accepted);
            for poll in &polls {
                accept_reports(&mut real, &sim, *poll);
            }
            if real == sim || is_late(begun) {
                break;
            }
            thread::yield_now();
        }
        assert_eq!(real, sim, "completions of the kernel and of the simulation");
        for (user_data, fds) in real_accepted {
            for (real, sim) in fds.into_iter().zip(sim_accepted.remove(&user_data).expect("some")) {
                self.open.push(Both { real, sim, kind: Kind::Stream });
            }
        }
    }

    /// Waits until the kernel has delivered what was sent: it may pace segments.
    fn settle(&self) {
        let begun = Instant::now();
        let bits = PollFlags::IN | PollFlags::RDHUP | PollFlags::ERR | PollFlags::HUP;
        for both in &self.open {
            loop {
                let mut fds = [PollFd::new(&both.real, bits)];
                poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a readiness");
                let real = u32::from((fds[0].revents() & bits).bits());
                let sim = self.kernel.poll(both.sim).expect("it is open") & u32::from(bits.bits());
                let unread = match both.kind {
                    Kind::Stream => ioctl_fionread(&both.real).expect("a stream") as usize,
                    Kind::Counter | Kind::Listener => 0,
                };
                if (real, unread) == (sim, self.kernel.unread(both.sim).unwrap_or(0)) {
                    break;
                }
                assert!(!is_late(begun), "{:?}: {real:x} is ready and not {sim:x}", both.kind);
                thread::yield_now();
            }
        }
    }

    fn step(&mut self) {
        let operation = self.kernel.choose(20);
        if operation < 2 || self.open.is_empty() {
            return self.create();
        }
        let index = self.kernel.choose(self.open.len() as u64) as usize;
        match operation {
            2..=7 => self.submit(index),
            8..=11 => self.write(index),
            12 | 13 => self.read(index),
            14 => self.shut(index),
            15 => self.close(index),
            16 => {
                let user_data = 1 + self.kernel.choose(self.requests + 1);
                self.cancel(user_data);
            }
            _ => self.reap(),
        }
    }
}

/// Makes reports of a poll those of the simulation, if they name a part of it, and removes what
/// only the kernel has reported.
fn accept_reports(real: &mut Outcomes, sim: &Outcomes, poll: u64) {
    let Some(all) = real.get_mut(&poll) else { return };
    let mut expected = sim.get(&poll).into_iter().flatten().peekable();
    all.retain_mut(|(result, more, _)| {
        let is_report = *result > 0;
        let names_part = |(all, goes_on, _): &&Outcome| {
            is_report && *result & !*all == 0 && *all > 0 && more == goes_on
        };
        match expected.next_if(names_part) {
            Some(next) => *result = next.0,
            None => return !(is_report && *more),
        }
        true
    });
    if all.is_empty() {
        real.remove(&poll);
    }
}

impl Drop for Worlds {
    /// The memory of requests lives until they have completed, also after a panic.
    fn drop(&mut self) {
        for pending in self.pending.drain(..) {
            Box::leak(pending.memory);
        }
    }
}

fn program(kernel: &mut Kernel) {
    let mut worlds = Worlds::new(kernel);
    for _ in 0..100 {
        worlds.step();
        worlds.settle();
    }
    while let Some(pending) = worlds.pending.first() {
        worlds.cancel(pending.user_data);
        worlds.reap();
    }
}

#[test]
fn random_programs_have_the_completions_of_io_uring() {
    if let Err(error) = IoUring::new(64) {
        let test = "ring::random_programs_have_the_completions_of_io_uring";
        eprintln!("skipped here: {test}: io_uring is forbidden here: {error}");
        return;
    }
    check(program).faults(Faults::calm()).seeds(500).run();
}
