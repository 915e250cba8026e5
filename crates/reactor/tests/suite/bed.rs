//! What the scenarios have in common: descriptors, notes of what happened, and a clock that is set
//! by hand.

use std::{
    cell::{Cell, RefCell},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::Command,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fd::FromRawFd,
};
use windlass::{Backend, Clock, Interest, Key, Reactor, Registrar, interest};

#[path = "../common/panics.rs"]
mod panics;

/// A turn that does not wait.
pub(crate) const NOW: Duration = Duration::ZERO;

/// What happened, in order, written by handlers and read by the test.
pub(crate) struct Log<T>(Rc<RefCell<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T> Log<T> {
    pub(crate) fn new() -> Self {
        Self(Rc::new(RefCell::new(Vec::new())))
    }

    pub(crate) fn note(&self, what: T) {
        self.0.borrow_mut().push(what);
    }

    /// What was noted since the last time.
    pub(crate) fn take(&self) -> Vec<T> {
        self.0.take()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

/// Notes its name when it is dropped.
pub(crate) struct Noted<T: Copy>(pub(crate) Log<T>, pub(crate) T);

impl<T: Copy> Drop for Noted<T> {
    fn drop(&mut self) {
        self.0.note(self.1);
    }
}

/// A cell to hand a key from the test to a handler.
pub(crate) type Slot<T> = Rc<Cell<Option<T>>>;

pub(crate) fn slot<T>() -> Slot<T> {
    Rc::new(Cell::new(None))
}

/// Waits for data, level-triggered, as most do.
pub(crate) const fn readable() -> Interest {
    interest().read()
}

/// Whether the backend of a reactor has this manner of interest.
pub(crate) fn has(reactor: &Reactor, wanted: Interest) -> bool {
    reactor.backend() != Backend::Poll || !(wanted.has_edge_triggered() || wanted.has_exclusive())
}

/// Edge-triggered where that is to be had, for scenarios that are right with either manner.
pub(crate) fn edge(reactor: &Reactor, wanted: Interest) -> Interest {
    if has(reactor, wanted.edge_triggered()) { wanted.edge_triggered() } else { wanted }
}

/// An eventfd whose number several owners share: the reactor and the test, say.
pub(crate) type Shared = Rc<OwnedFd>;

/// An eventfd that is not ready.
pub(crate) fn idle() -> Shared {
    Rc::new(counter(0))
}

/// An eventfd that is ready to be read.
pub(crate) fn ready() -> Shared {
    Rc::new(counter(1))
}

/// An eventfd of its own.
pub(crate) fn counter(initial: u32) -> OwnedFd {
    eventfd(initial, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// An eventfd for another thread to write to.
pub(crate) fn sendable() -> Arc<OwnedFd> {
    Arc::new(counter(0))
}

/// Makes an eventfd ready.
pub(crate) fn ring(fd: impl AsFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

/// Reads an eventfd: how often it was rung since the last time.
pub(crate) fn drain(fd: impl AsFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        Err(rustix::io::Errno::AGAIN) => 0,
        other => panic!("an eventfd answers eight bytes or nothing: {other:?}"),
    }
}

/// Registers an eventfd whose handler reads it and notes a name.
pub(crate) fn noting<T: Copy + 'static>(
    target: &mut impl Registrar<Ops = Reactor>,
    fd: &Shared,
    log: &Log<T>,
    name: T,
) -> Key {
    let log = log.clone();
    readable()
        .with_fd(Rc::clone(fd))
        .with_handler(move |fd: &mut Shared| {
            drain(fd);
            log.note(name);
        })
        .register_into(target)
        .unwrap()
}

/// Two ends of a stream.
pub(crate) fn pair() -> (UnixStream, UnixStream) {
    let (a, b) = UnixStream::pair().unwrap();
    for end in [&a, &b] {
        end.set_nonblocking(true).unwrap();
    }
    (a, b)
}

/// Two ends of a TCP connection over the loopback.
pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.accept().unwrap();
    for end in [&a, &b] {
        end.set_nonblocking(true).unwrap();
    }
    (a, b)
}

/// Reads what there is, without waiting.
pub(crate) fn read_some(from: &mut impl Read) -> Vec<u8> {
    let mut buffer = [0; 512];
    let length = from.read(&mut buffer).unwrap();
    buffer[..length].to_vec()
}

/// Fills a stream until it takes no more, and says how much it took.
pub(crate) fn fill(to: &mut impl Write) -> usize {
    let mut sum = 0;
    loop {
        match to.write(&[0; 4096]) {
            Ok(count) => sum += count,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return sum,
            Err(e) => panic!("{e}"),
        }
    }
}

/// The message of the panic that comes out of a call.
///
/// # Panics
/// When none does.
pub(crate) fn panic_of<T>(call: impl FnOnce() -> T) -> String {
    let Err(load) = panics::caught(call) else { panic!("no panic came out") };
    match load.downcast::<&'static str>() {
        Ok(message) => (*message).to_owned(),
        Err(load) => *load.downcast::<String>().expect("panic! carries a string"),
    }
}

/// Runs turns that do not wait until one has nothing to do, and counts the events.
pub(crate) fn run_dry(reactor: &mut Reactor) -> usize {
    let mut sum = 0;
    for _ in 0..10_000 {
        match reactor.run_once(NOW).unwrap() {
            0 => return sum,
            count => sum += count,
        }
    }
    panic!("the loop spins");
}

/// A clock that stands until it is moved, and counts how often it is read.
#[derive(Clone)]
pub(crate) struct HandClock {
    time: Rc<Cell<Instant>>,
    reads: Rc<Cell<usize>>,
}

impl HandClock {
    pub(crate) fn new() -> Self {
        Self { time: Rc::new(Cell::new(Instant::now())), reads: Rc::new(Cell::new(0)) }
    }

    pub(crate) fn time(&self) -> Instant {
        self.time.get()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.time.set(self.time.get() + by);
    }

    /// How often it was read since the last time this was asked.
    pub(crate) fn reads(&self) -> usize {
        self.reads.take()
    }
}

impl Clock for HandClock {
    fn now(&self) -> Instant {
        self.reads.set(self.reads.get() + 1);
        self.time.get()
    }
}

/// The first of eight numbers that no other test uses.
///
/// Tests run side by side and open the lowest numbers. Far above, one can count on the number that
/// one has closed to come again.
pub(crate) fn own_numbers() -> i32 {
    static NEXT: AtomicI32 = AtomicI32::new(600);
    NEXT.fetch_add(8, Ordering::Relaxed)
}

/// Duplicates a descriptor to the lowest free number from `from` on.
pub(crate) fn duplicate_from(fd: impl AsFd, from: i32) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(fd, from).unwrap()
}

/// A descriptor by its number, which may be closed. Dropping it closes nothing.
pub(crate) struct Numbered(pub(crate) i32);

impl AsFd for Numbered {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        // SAFETY: the number is not -1. The tests that close it on purpose ask only the kernel
        // about it, which answers EBADF.
        unsafe { rustix::fd::BorrowedFd::borrow_raw(self.0) }
    }
}

/// Closes a number that a test took out of its `OwnedFd`.
pub(crate) fn close(number: i32) {
    // SAFETY: the callers own the number and use it no more.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

/// Runs one test of this program in a process of its own, for what a process has once: limits and
/// the disposition of signals.
///
/// Called first thing by the scenario, with its module and its name. In the parent it runs the
/// child, checks that its one test has passed, and answers `false`; in the child it answers `true`,
/// and the test goes on.
pub(crate) fn in_own_process(build: crate::Build, module: &str, scenario: &str) -> bool {
    const MARK: &str = "WINDLASS_SUITE_CHILD";
    // `scenarios!` names its modules as the backends call themselves.
    let test = &format!("{module}::{}::{scenario}", build().build().unwrap().backend());
    if std::env::var_os(MARK).is_some_and(|name| name == **test) {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(MARK, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{test} in its own process: {:?}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// A number of `struct tcp_info` (linux/tcp.h), by its offset.
pub(crate) fn tcp_info_u32(socket: i32, offset: usize) -> u32 {
    let mut info = [0u8; 232];
    let mut len = libc::socklen_t::try_from(info.len()).unwrap();
    // SAFETY: the buffer is valid for `len` bytes, and the kernel writes no more.
    let done = unsafe {
        libc::getsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert_eq!(done, 0);
    u32::from_ne_bytes(info[offset..offset + 4].try_into().unwrap())
}
