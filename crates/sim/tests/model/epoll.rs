//! Sets of epoll(7), with eventfds, pipes and Unix sockets. All outcomes agree: results, errors,
//! and events in their order.
//!
//! The sizes of buffers in the real kernel depend on its accounting. So a program keeps what is
//! unread small, or fills a buffer and then only empties it.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use windlass_sim::{Faults, Fd, HostId, Kernel, PollEvent, PollSet, check, mask};

use crate::{same, simulated};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Reader,
    Writer,
    Socket,
}

/// A descriptor in both worlds.
struct Both {
    kind: Kind,
    real: OwnedFd,
    sim: Fd,
    name: u64,
    /// The name of what this writes to, which is what the peer reads.
    peer: u64,
    /// An estimate of what the peer has not read, as the real kernel accounts for it.
    unread: usize,
    is_filled: bool,
    /// Its peer was closed after it had filled the buffer.
    has_filled_input: bool,
}

/// No program has more unread than this, unless it fills a buffer.
const UNREAD_MAX: usize = 40_000;

struct Worlds {
    kernel: Kernel,
    host: HostId,
    real: OwnedFd,
    sim: PollSet,
    open: Vec<Both>,
    names: u64,
}

impl Worlds {
    fn new(kernel: &Kernel) -> Self {
        let host = kernel.host([10, 0, 0, 1].into());
        let actor = kernel.actor(host, "loop");
        Self {
            kernel: kernel.clone(),
            host,
            real: epoll::create(epoll::CreateFlags::CLOEXEC).expect("a set"),
            sim: kernel.poll_set(actor),
            open: Vec::new(),
            names: 0,
        }
    }

    fn add(&mut self, kind: Kind, real: OwnedFd, sim: Fd, peer: i64) {
        self.names += 1;
        let name = self.names;
        let peer = name.checked_add_signed(peer).expect("a name");
        self.open.push(Both {
            kind,
            real,
            sim,
            name,
            peer,
            unread: 0,
            is_filled: false,
            has_filled_input: false,
        });
    }

    fn create(&mut self) {
        if self.open.len() >= 8 {
            return;
        }
        match self.kernel.choose(3) {
            0 => {
                let is_semaphore = self.kernel.choose(2) == 1;
                let semaphore =
                    if is_semaphore { EventfdFlags::SEMAPHORE } else { EventfdFlags::empty() };
                let real = eventfd(0, EventfdFlags::NONBLOCK | semaphore).expect("a counter");
                let sim = self.kernel.eventfd(self.host, 0, is_semaphore).expect("a counter");
                self.add(Kind::Counter, real, sim, 0);
            }
            1 => {
                let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).expect("a pipe");
                let (sim_reader, sim_writer) = self.kernel.pipe(self.host).expect("a pipe");
                self.add(Kind::Reader, reader, sim_reader, 1);
                self.add(Kind::Writer, writer, sim_writer, -1);
            }
            _ => {
                let (one, two) = socketpair(
                    AddressFamily::UNIX,
                    SocketType::STREAM,
                    SocketFlags::NONBLOCK,
                    None,
                )
                .expect("a pair");
                let (sim_one, sim_two) = self.kernel.socketpair(self.host).expect("a pair");
                self.add(Kind::Socket, one, sim_one, 1);
                self.add(Kind::Socket, two, sim_two, -1);
            }
        }
    }

    fn interest(&self) -> u32 {
        let bits = [mask::IN, mask::OUT, mask::IN | mask::OUT, mask::RDHUP | mask::IN, 0];
        let modes = [0, mask::ET, mask::ONESHOT, mask::ET | mask::ONESHOT];
        bits[self.kernel.choose(5) as usize] | modes[self.kernel.choose(4) as usize]
    }

    fn control(&mut self, index: usize) {
        let both = &self.open[index];
        let (fd, data) = (both.sim, both.name);
        let event = epoll::EventData::new_u64(data);
        match self.kernel.choose(5) {
            0 | 1 => {
                let bits = self.interest();
                let flags = epoll::EventFlags::from_bits_retain(bits);
                let real = epoll::add(&self.real, &both.real, event, flags);
                let _: Result<_, _> = same("add", real, self.sim.add(fd, bits, data));
            }
            2 | 3 => {
                let bits = self.interest();
                let flags = epoll::EventFlags::from_bits_retain(bits);
                let real = epoll::modify(&self.real, &both.real, event, flags);
                let _: Result<_, _> = same("modify", real, self.sim.modify(fd, bits, data));
            }
            _ => {
                let real = epoll::delete(&self.real, &both.real);
                let _: Result<_, _> = same("delete", real, self.sim.delete(fd));
            }
        }
    }

    fn write_real(both: &Both, bytes: &[u8]) -> rustix::io::Result<usize> {
        match both.kind {
            Kind::Socket => send(&both.real, bytes, SendFlags::NOSIGNAL),
            _ => rustix::io::write(&both.real, bytes),
        }
    }

    fn read_real(both: &Both, bytes: &mut [u8]) -> rustix::io::Result<usize> {
        match both.kind {
            Kind::Socket => recv(&both.real, bytes, RecvFlags::empty()).map(|(count, _)| count),
            _ => rustix::io::read(&both.real, bytes),
        }
    }

    fn write(&mut self, index: usize) {
        let size = [1, 100, 4_096][self.kernel.choose(3) as usize];
        let mut bytes = vec![self.kernel.choose(200) as u8; size];
        let both = &mut self.open[index];
        // A pipe takes a page for each write, and a socket a buffer with a head.
        let weight = size.next_multiple_of(4_096).min(size * 2 + 4_000);
        if both.kind == Kind::Counter {
            bytes = self.kernel.choose(4).to_ne_bytes().to_vec();
        } else if both.is_filled || both.unread + weight > UNREAD_MAX {
            return;
        }
        let real = Self::write_real(both, &bytes);
        if same("write", real, self.kernel.write(both.sim, &bytes)).is_ok() {
            both.unread += weight;
        }
    }

    /// Whoever writes to a descriptor.
    fn writer_of(&mut self, name: u64) -> Option<&mut Both> {
        self.open.iter_mut().find(|both| both.peer == name && both.kind != Kind::Reader)
    }

    fn read(&mut self, index: usize) {
        let size = [1, 50, 4_096, 40_000][self.kernel.choose(4) as usize];
        let both = &self.open[index];
        let name = both.name;
        let size = if both.kind == Kind::Counter { 8 } else { size };
        let (mut real_bytes, mut sim_bytes) = (vec![0; size], vec![0; size]);
        let is_filled = self.writer_of(name).is_some_and(|writer| writer.is_filled)
            || self.open[index].has_filled_input;
        if is_filled && self.open[index].kind == Kind::Socket {
            self.empty(index);
            return;
        }
        let both = &self.open[index];
        let real = Self::read_real(both, &mut real_bytes);
        let count = same("read", real, self.kernel.read(both.sim, &mut sim_bytes));
        if let Ok(count) = count {
            assert_eq!(real_bytes[..count], sim_bytes[..count], "the bytes that were read");
        }
        if self.open[index].kind != Kind::Counter && self.is_empty(index) {
            self.was_emptied(name);
        }
    }

    fn is_empty(&self, index: usize) -> bool {
        self.kernel.unread(self.open[index].sim).is_ok_and(|unread| unread == 0)
    }

    fn was_emptied(&mut self, name: u64) {
        if let Some(writer) = self.writer_of(name) {
            (writer.unread, writer.is_filled) = (0, false);
        }
    }

    /// Reads until nothing is left. Full buffers have different sizes.
    fn empty(&mut self, index: usize) {
        let both = &self.open[index];
        let mut bytes = vec![0; 1 << 20];
        let (mut ends, name) = (Vec::new(), both.name);
        loop {
            match Self::read_real(both, &mut bytes) {
                Ok(1..) => {}
                end => break ends.push(end),
            }
        }
        loop {
            match self.kernel.read(both.sim, &mut bytes) {
                Ok(1..) => {}
                end => {
                    break ends.push(simulated(end));
                }
            }
        }
        assert_eq!(ends[0], ends[1], "the end of the input");
        self.was_emptied(name);
    }

    /// Writes pages until no more fit.
    fn fill(&mut self, index: usize) {
        let both = &mut self.open[index];
        if both.unread > 0 || both.is_filled || both.kind == Kind::Counter {
            return;
        }
        let page = [7; 4_096];
        let real = loop {
            match Self::write_real(both, &page) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let sim = loop {
            match self.kernel.write(both.sim, &page) {
                Ok(_) => {}
                Err(error) => break simulated::<()>(Err(error)).expect_err("an error"),
            }
        };
        assert_eq!(real, sim, "the error of a full buffer");
        both.is_filled = real == Errno::AGAIN;
    }

    fn shut(&mut self, index: usize) {
        let both = &self.open[index];
        if both.kind != Kind::Socket {
            return;
        }
        let (real, sim) = [
            (Shutdown::Write, std::net::Shutdown::Write),
            (Shutdown::Read, std::net::Shutdown::Read),
            (Shutdown::Both, std::net::Shutdown::Both),
        ][self.kernel.choose(3) as usize];
        let result = shutdown(&both.real, real);
        let _: Result<_, _> = same("shutdown", result, self.kernel.shutdown(both.sim, sim));
    }

    fn close(&mut self, index: usize) {
        let both = self.open.swap_remove(index);
        if let Some(peer) = self.open.iter_mut().find(|peer| peer.name == both.peer) {
            peer.has_filled_input = both.is_filled;
        }
        drop(both.real);
        self.kernel.close(both.sim).expect("it is open");
    }

    fn wait(&self) {
        let max = 1 + self.kernel.choose(8) as usize;
        let mut real = [epoll::Event { flags: epoll::EventFlags::empty(), data: DATA }; 8];
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.real, &mut real[..max], Some(&zero)).expect("events");
        let real: Vec<(u32, u64)> = real[..count]
            .iter()
            .map(|event| {
                // Copied, because the event is packed.
                let (flags, data) = (event.flags, event.data);
                (flags.bits(), data.u64())
            })
            .collect();
        let mut sim = [PollEvent::default(); 8];
        let count = self.sim.wait(&mut sim[..max]).expect("events");
        let sim: Vec<(u32, u64)> =
            sim[..count].iter().map(|event| (event.mask, event.data)).collect();
        assert_eq!(real, sim, "the events of the kernel and of the simulation");
    }

    fn step(&mut self) {
        let operation = self.kernel.choose(20);
        if operation == 0 || self.open.is_empty() {
            self.create();
            return;
        }
        let index = self.kernel.choose(self.open.len() as u64) as usize;
        match operation {
            1..=4 => self.control(index),
            5..=8 => self.write(index),
            9..=11 => self.read(index),
            12 => self.fill(index),
            13 => self.shut(index),
            14 => self.close(index),
            _ => self.wait(),
        }
    }
}

const DATA: epoll::EventData = epoll::EventData::new_u64(0);

fn program(kernel: &mut Kernel) {
    let mut worlds = Worlds::new(kernel);
    for _ in 0..120 {
        worlds.step();
    }
    for index in 0..worlds.open.len() {
        let both = &worlds.open[index];
        if both.kind != Kind::Counter {
            worlds.empty_if_readable(index);
        }
    }
    worlds.wait();
}

impl Worlds {
    fn empty_if_readable(&mut self, index: usize) {
        if self.open[index].kind != Kind::Writer {
            self.empty(index);
        }
    }
}

#[test]
fn random_programs_have_the_outcomes_of_epoll() {
    check(program).faults(Faults::calm()).seeds(2_000).run();
}
