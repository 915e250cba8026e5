//! An edge-triggered echo server, and clients that check what comes back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::rc::Rc;

use rustix::io::Errno;
use windlass_sim::{
    ActorId, Fd, HostId, Kernel, PollEvent, PollSet, SimAddr, SocketKind, Step, ThreadNext,
    Threads, mask,
};

/// The work of a world's clients.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) hosts: u32,
    pub(crate) connections: usize,
    pub(crate) messages: u64,
    pub(crate) bytes_max: u64,
    pub(crate) pause_ns: u64,
}

/// The outcomes of all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) done: usize,
    pub(crate) failed: usize,
    pub(crate) messages: u64,
}

const EDGE: u32 = mask::IN | mask::OUT | mask::RDHUP | mask::ET;

/// The pause before another attempt where a call has failed for lack of something.
const RETRY_NS: u64 = 1_000_000;

fn would_block(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}

/// Makes a call again while it is interrupted.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn server_addr(kernel: &Kernel, host: HostId) -> SimAddr {
    SimAddr::from((kernel.address_of(host), 80))
}

struct Server {
    set: PollSet,
    listener: Option<Fd>,
    sessions: BTreeMap<u64, Vec<u8>>,
}

impl Server {
    fn listen(&mut self, kernel: &Kernel, host: HostId) -> io::Result<()> {
        let fd = kernel.socket(host, SocketKind::Tcp)?;
        kernel.bind(fd, &server_addr(kernel, host))?;
        kernel.listen(fd, 100)?;
        self.set.add(fd, mask::IN | mask::ET, fd.as_raw())?;
        self.listener = Some(fd);
        Ok(())
    }

    fn run(&mut self, kernel: &Kernel, host: HostId) -> ThreadNext {
        if self.listener.is_none() && self.listen(kernel, host).is_err() {
            return ThreadNext::Park(Some(kernel.now_ns() + RETRY_NS));
        }
        let listener = self.listener.expect("it listens");
        let mut events = [PollEvent::default(); 64];
        let count = self.set.wait(&mut events).unwrap_or(0);
        for event in &events[..count] {
            if event.data != listener.as_raw() && self.serve(kernel, event.data).is_err() {
                self.sessions.remove(&event.data);
                kernel.close(Fd::from_raw(event.data)).expect("it is open");
            }
        }
        // The edge of the listener is gone after an error, so each run tries.
        loop {
            match kernel.accept(listener) {
                Ok((fd, _)) => {
                    self.set.add(fd, EDGE, fd.as_raw()).expect("it is new");
                    self.sessions.insert(fd.as_raw(), Vec::new());
                }
                Err(error) if would_block(&error) => return ThreadNext::Park(None),
                Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
                    return ThreadNext::Park(Some(kernel.now_ns() + RETRY_NS));
                }
                Err(_) => {}
            }
        }
    }

    /// Reads and writes until nothing more can be done. An error is the end of the session.
    fn serve(&mut self, kernel: &Kernel, raw: u64) -> io::Result<()> {
        let Some(output) = self.sessions.get_mut(&raw) else { return Ok(()) };
        let fd = Fd::from_raw(raw);
        let mut bytes = [0; 4_096];
        let ended = loop {
            match again(|| kernel.recv(fd, &mut bytes)) {
                Ok(0) => break true,
                Ok(count) => output.extend(&bytes[..count]),
                Err(error) if would_block(&error) => break false,
                Err(error) => return Err(error),
            }
        };
        flush(kernel, fd, output)?;
        if ended { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

fn flush(kernel: &Kernel, fd: Fd, output: &mut Vec<u8>) -> io::Result<()> {
    while !output.is_empty() {
        match again(|| kernel.send(fd, output)) {
            Ok(count) => drop(output.drain(..count)),
            Err(error) if would_block(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A connection of a client: every byte is known from its place.
#[derive(Default)]
struct Client {
    fd: Option<Fd>,
    messages: u64,
    sent: u64,
    received: u64,
    output: Vec<u8>,
    next_ns: u64,
    is_over: bool,
}

fn byte(place: u64) -> u8 {
    (place % 251) as u8
}

struct Clients {
    set: PollSet,
    plan: Plan,
    server: HostId,
    host: HostId,
    all: Vec<Client>,
    tally: Rc<RefCell<Tally>>,
}

impl Clients {
    fn run(&mut self, kernel: &Kernel) -> ThreadNext {
        let mut events = [PollEvent::default(); 8];
        let count = self.set.wait(&mut events).unwrap_or(0);
        for event in &events[..count] {
            self.act(kernel, event.data as usize);
        }
        let now_ns = kernel.now_ns();
        for index in 0..self.all.len() {
            if !self.all[index].is_over && self.all[index].next_ns <= now_ns {
                self.act(kernel, index);
            }
        }
        let open = self.all.iter().filter(|client| !client.is_over);
        match open.map(|client| client.next_ns).min() {
            None => ThreadNext::Done,
            Some(u64::MAX) => ThreadNext::Park(None),
            Some(next_ns) => ThreadNext::Park(Some(next_ns)),
        }
    }

    fn act(&mut self, kernel: &Kernel, index: usize) {
        if self.all[index].is_over {
            return;
        }
        let result = self.work(kernel, index);
        let client = &mut self.all[index];
        let is_done = client.messages == self.plan.messages && client.received == client.sent;
        if !is_done && result.is_ok() {
            return;
        }
        client.is_over = true;
        if let Some(fd) = client.fd.take() {
            kernel.close(fd).expect("it is open");
        }
        let mut tally = self.tally.borrow_mut();
        tally.messages += client.messages;
        if is_done { tally.done += 1 } else { tally.failed += 1 }
    }

    fn work(&mut self, kernel: &Kernel, index: usize) -> io::Result<()> {
        let now_ns = kernel.now_ns();
        let client = &mut self.all[index];
        let Some(fd) = client.fd else {
            client.next_ns = now_ns + RETRY_NS;
            let Ok(fd) = kernel.socket(self.host, SocketKind::Tcp) else { return Ok(()) };
            let addr = server_addr(kernel, self.server);
            // An interrupted attempt goes on.
            let error = kernel.connect(fd, &addr).expect_err("TCP is in progress");
            match Errno::from_io_error(&error) {
                Some(Errno::INPROGRESS | Errno::INTR) => {}
                _ => return Err(error),
            }
            self.set.add(fd, EDGE, index as u64)?;
            client.fd = Some(fd);
            return Ok(());
        };
        let mut bytes = [0; 1_000];
        loop {
            match again(|| kernel.recv(fd, &mut bytes)) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    for received in &bytes[..count] {
                        assert_eq!(*received, byte(client.received), "a byte is wrong");
                        client.received += 1;
                    }
                    assert!(client.received <= client.sent, "a byte is invented");
                }
                Err(error) if would_block(&error) => break,
                Err(error) => return Err(error),
            }
        }
        let is_idle = client.received == client.sent && client.output.is_empty();
        if is_idle && client.next_ns <= now_ns && client.messages < self.plan.messages {
            let size = 1 + kernel.choose(self.plan.bytes_max);
            client.output.extend((client.sent..client.sent + size).map(byte));
            client.sent += size;
            client.messages += 1;
            client.next_ns = now_ns + self.plan.pause_ns;
        } else if client.next_ns <= now_ns {
            client.next_ns = if is_idle { now_ns + self.plan.pause_ns } else { u64::MAX };
        }
        if is_idle && client.next_ns == u64::MAX {
            client.next_ns = now_ns + self.plan.pause_ns;
        }
        flush(kernel, fd, &mut client.output)
    }
}

/// The address of a host of the world.
pub(crate) fn address(index: u32) -> IpAddr {
    IpAddr::from((0x0a00_0001 + index).to_be_bytes())
}

/// Runs a world to its end.
pub(crate) fn run(kernel: &Kernel, plan: Plan) -> Tally {
    let tally = Rc::new(RefCell::new(Tally::default()));
    let mut threads = Threads::new(kernel);
    let server_host = kernel.host(address(0));
    let actor: ActorId = kernel.actor(server_host, "server");
    let set = kernel.poll_set(actor);
    let mut server = Server { set, listener: None, sessions: BTreeMap::new() };
    threads.insert(actor, move |kernel: &Kernel| server.run(kernel, server_host));
    for index in 1..=plan.hosts {
        let host = kernel.host(address(index));
        let actor = kernel.actor(host, "clients");
        let mut clients = Clients {
            set: kernel.poll_set(actor),
            plan,
            server: server_host,
            host,
            // They connect after the server listens, and not all at once.
            all: (0..plan.connections)
                .map(|_| Client {
                    next_ns: 10_000_000 + u64::from(index) * 100_000,
                    ..Client::default()
                })
                .collect(),
            tally: Rc::clone(&tally),
        };
        threads.insert(actor, move |kernel: &Kernel| clients.run(kernel));
    }
    assert_eq!(threads.run(), Step::Quiet, "the world ends");
    drop(threads);
    Rc::try_unwrap(tally).expect("all are gone").into_inner()
}
