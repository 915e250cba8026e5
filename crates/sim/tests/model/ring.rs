//! Completions of io_uring(7), of Unix sockets and eventfds: receives, sends and polls that wait,
//! that hold what was closed, and that are cancelled.
//!
//! The order of the completions of different requests is the kernel's affair. Those of one request
//! come in their order.

#![allow(unsafe_code, reason = "requests name memory and descriptors by numbers")]

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use windlass_sim::{Faults, Fd, HostId, Kernel, Ring, RingRequest, check, mask};

use crate::{same, simulated};

/// Requests that wait at once.
const PENDING_MAX: usize = 12;
const LEN_MAX: usize = 2_000;

/// The user data of cancellations.
const CANCELS: u64 = u64::MAX;

/// A socket or an eventfd in both worlds.
struct Both {
    real: OwnedFd,
    sim: Fd,
    is_socket: bool,
}

/// A completion: its result, whether more follow, and the bytes that were received.
type Outcome = (i32, bool, Vec<u8>);

/// The completions of each request.
type Outcomes = BTreeMap<u64, Vec<Outcome>>;

/// A request that waits in both worlds.
struct Pending {
    user_data: u64,
    fd: Fd,
    is_receive: bool,
    is_send: bool,
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
}

impl Worlds {
    fn new(kernel: &Kernel) -> Self {
        let host = kernel.host([10, 0, 0, 1].into());
        let actor = kernel.actor(host, "loop");
        let real = IoUring::new(64).expect("it was possible before");
        let sim = kernel.ring(actor, 256);
        let (open, pending) = (Vec::new(), Vec::new());
        Self { kernel: kernel.clone(), host, real, sim, open, pending, requests: 0 }
    }

    fn create(&mut self) {
        if self.open.len() >= 8 {
            return;
        }
        if self.kernel.choose(3) == 0 {
            let real = eventfd(0, EventfdFlags::CLOEXEC).expect("a counter");
            let sim = self.kernel.eventfd(self.host, 0, false).expect("a counter");
            return self.open.push(Both { real, sim, is_socket: false });
        }
        // They block: a request on one that does not would fail with EAGAIN.
        let flags = SocketFlags::CLOEXEC;
        let (one, two) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a pair");
        let (sim_one, sim_two) = self.kernel.socketpair(self.host).expect("a pair");
        self.open.push(Both { real: one, sim: sim_one, is_socket: true });
        self.open.push(Both { real: two, sim: sim_two, is_socket: true });
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
        let is_there = |is_one: fn(&Pending) -> bool| {
            self.pending.iter().any(|pending| pending.fd == both.sim && is_one(pending))
        };
        let (entry, request) = match kind {
            0 if both.is_socket && !is_there(|pending| !pending.is_send) => (
                opcode::Recv::new(fd, memory.as_mut_ptr(), len as u32).build(),
                RingRequest::Recv { fd: both.sim, max: len, multishot: false },
            ),
            1 if both.is_socket && !self.is_crowded(index) && !is_there(|it| it.is_send) => (
                opcode::Send::new(fd, memory.as_ptr(), len as u32)
                    .flags(SendFlags::NOSIGNAL.bits() as i32)
                    .build(),
                RingRequest::Send { fd: both.sim, bytes: memory.to_vec() },
            ),
            // One that reads takes away what another one would report.
            _ if is_there(|pending| !pending.is_send) => return,
            _ => {
                let multishot = kind == 3;
                (
                    opcode::PollAdd::new(fd, mask::IN).multi(multishot).build(),
                    RingRequest::Poll { fd: both.sim, mask: mask::IN, multishot },
                )
            }
        };
        let is_receive = matches!(request, RingRequest::Recv { .. });
        let is_send = matches!(request, RingRequest::Send { .. });
        self.pending.push(Pending { user_data, fd: both.sim, is_receive, is_send, memory });
        self.push(&entry.user_data(user_data));
        self.sim.submit(user_data, request);
    }

    /// Whether much is unread. What fits depends on the kernel's accounting.
    fn is_crowded(&self, index: usize) -> bool {
        self.kernel.unsent(self.open[index].sim).is_ok_and(|unsent| unsent > 20_000)
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the descriptor is open, and the memory that the entry names is in a box that
        // `pending` holds until the request has completed (`reap`, and the drop of this).
        unsafe { self.real.submission().push(entry) }.expect("there is room");
        self.real.submit().expect("the ring is ours");
    }

    fn write(&mut self, index: usize) {
        let both = &self.open[index];
        if !both.is_socket {
            let bytes = (1 + self.kernel.choose(3)).to_ne_bytes();
            let real = rustix::io::write(&both.real, &bytes);
            let _: Result<_, _> = same("write", real, self.kernel.write(both.sim, &bytes));
            return;
        }
        let bytes = vec![self.kernel.choose(200) as u8; 1 + self.kernel.choose(1_000) as usize];
        if self.is_crowded(index) {
            return;
        }
        let real = send(&both.real, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        let _: Result<_, _> = same("send", real, self.kernel.send(both.sim, &bytes));
    }

    fn read(&mut self, index: usize) {
        let both = &self.open[index];
        let (mut real_bytes, mut sim_bytes) = ([0; 1_500], [0; 1_500]);
        if !both.is_socket {
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
        if both.is_socket {
            let real = shutdown(&both.real, Shutdown::Write);
            let sim = self.kernel.shutdown(both.sim, std::net::Shutdown::Write);
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
        self.push(&opcode::AsyncCancel::new(user_data).build().user_data(CANCELS));
        let mut real = self.reap_real();
        let found = real.remove(&CANCELS).expect("a cancellation completes at once");
        let sim = simulated(self.sim.cancel(user_data)).map_or_else(|e| -e.raw_os_error(), |()| 0);
        assert_eq!(found, [(sim, false, Vec::new())], "cancel: the kernel and the simulation");
        self.compare(real);
    }

    fn reap(&mut self) {
        self.real.submit().expect("the ring is ours");
        let real = self.reap_real();
        self.compare(real);
    }

    fn reap_real(&mut self) -> Outcomes {
        let mut outcomes = Outcomes::new();
        for entry in self.real.completion() {
            let (user_data, result) = (entry.user_data(), entry.result());
            let more = io_uring::cqueue::more(entry.flags());
            let place = self.pending.iter().position(|it| it.user_data == user_data);
            let received = place.map(|place| &self.pending[place]).filter(|it| it.is_receive);
            let count = usize::try_from(result).unwrap_or(0);
            let bytes = received.map_or(Vec::new(), |it| it.memory[..count].to_vec());
            outcomes.entry(user_data).or_default().push((result, more, bytes));
            if let (false, Some(place)) = (more, place) {
                self.pending.swap_remove(place);
            }
        }
        outcomes
    }

    fn compare(&mut self, real: Outcomes) {
        let mut sim = Outcomes::new();
        let mut completions = Vec::new();
        assert!(!self.sim.reap(&mut completions), "the queue is long enough");
        for completion in completions {
            let outcome = (completion.result, completion.more, completion.bytes);
            sim.entry(completion.user_data).or_default().push(outcome);
        }
        assert_eq!(real, sim, "completions of the kernel and of the simulation");
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
