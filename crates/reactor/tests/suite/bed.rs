//! Tools for the scenarios: descriptors, logs, and a clock that the test moves.

use windlass_testkit::panics;

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
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fd::FromRawFd,
};
use windlass::{Backend, Clock, Interest, Key, Reactor, Registrar, interest};

/// A turn that does not wait.
pub(crate) const NOW: Duration = Duration::ZERO;

/// Locks out other tests with threads that spin until another thread goes on, until the guard is
/// dropped. On two processors, two such tests at once take many times as long as one by one.
pub(crate) fn spinning_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entries in order, written by handlers and read by the test.
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

    /// Returns the entries since the last call, and clears them.
    pub(crate) fn take(&self) -> Vec<T> {
        self.0.take()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

/// Writes its name to the log when it is dropped.
pub(crate) struct Noted<T: Copy>(pub(crate) Log<T>, pub(crate) T);

impl<T: Copy> Drop for Noted<T> {
    fn drop(&mut self) {
        self.0.note(self.1);
    }
}

/// A cell that passes a key from the test to a handler.
pub(crate) type Slot<T> = Rc<Cell<Option<T>>>;

pub(crate) fn slot<T>() -> Slot<T> {
    Rc::new(Cell::new(None))
}

/// Level-triggered interest in reading.
pub(crate) const fn readable() -> Interest {
    interest().read()
}

/// True if the reactor's backend supports this interest.
pub(crate) fn has(reactor: &Reactor, wanted: Interest) -> bool {
    reactor.backend() != Backend::Poll || !(wanted.has_edge_triggered() || wanted.has_exclusive())
}

/// Edge-triggered if the backend supports it, for scenarios that work with either.
pub(crate) fn edge(reactor: &Reactor, wanted: Interest) -> Interest {
    if has(reactor, wanted.edge_triggered()) { wanted.edge_triggered() } else { wanted }
}

/// An eventfd with several owners, such as the reactor and the test.
pub(crate) type Shared = Rc<OwnedFd>;

/// An eventfd that is not ready.
pub(crate) fn idle() -> Shared {
    Rc::new(counter(0))
}

/// An eventfd that is ready to be read.
pub(crate) fn ready() -> Shared {
    Rc::new(counter(1))
}

/// An eventfd with a single owner.
pub(crate) fn counter(initial: u32) -> OwnedFd {
    eventfd(initial, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// An eventfd that another thread can write to.
pub(crate) fn sendable() -> Arc<OwnedFd> {
    Arc::new(counter(0))
}

/// Makes an eventfd ready.
pub(crate) fn ring(fd: impl AsFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

/// Reads an eventfd. Returns the sum of the writes since the last read.
pub(crate) fn drain(fd: impl AsFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        Err(rustix::io::Errno::AGAIN) => 0,
        other => panic!("an eventfd answers eight bytes or nothing: {other:?}"),
    }
}

/// Registers an eventfd whose handler reads it and writes a name to the log.
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

/// A connected pair of Unix stream sockets.
pub(crate) fn pair() -> (UnixStream, UnixStream) {
    let (a, b) = UnixStream::pair().unwrap();
    for end in [&a, &b] {
        end.set_nonblocking(true).unwrap();
    }
    (a, b)
}

/// A TCP connection over loopback: both sockets.
pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.accept().unwrap();
    for end in [&a, &b] {
        end.set_nonblocking(true).unwrap();
    }
    (a, b)
}

/// Reads the available bytes without waiting.
pub(crate) fn read_some(from: &mut impl Read) -> Vec<u8> {
    let mut buffer = [0; 512];
    let length = from.read(&mut buffer).unwrap();
    buffer[..length].to_vec()
}

/// Writes until the stream would block. Returns the number of bytes.
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

/// Returns the message of the panic that a call raises.
///
/// # Panics
/// If the call does not panic.
pub(crate) fn panic_of<T>(call: impl FnOnce() -> T) -> String {
    let Err(load) = panics::caught(call) else { panic!("no panic came out") };
    match load.downcast::<&'static str>() {
        Ok(message) => (*message).to_owned(),
        Err(load) => *load.downcast::<String>().expect("panic! carries a string"),
    }
}

/// Runs turns that do not wait until one has no events. Returns the number of events.
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

/// Starts a builder in a simulation of this test.
#[cfg(feature = "sim")]
pub(crate) fn simulated() -> windlass::Builder {
    use windlass::sim::{Faults, Sim};
    thread_local! {
        static SIM: Sim = Sim::new(1, Faults::calm());
    }
    SIM.with(Sim::builder)
}

/// A clock that the test moves. It counts how often it is read.
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

    /// The number of readings since the last call.
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

/// The first of eight descriptor numbers that no other test uses.
///
/// Tests run side by side and open the lowest free numbers. These numbers are far higher, so a
/// closed number is reused only by the test itself.
pub(crate) fn own_numbers() -> i32 {
    static NEXT: AtomicI32 = AtomicI32::new(600);
    NEXT.fetch_add(8, Ordering::Relaxed)
}

/// Duplicates a descriptor to the lowest free number that is at least `from`.
pub(crate) fn duplicate_from(fd: impl AsFd, from: i32) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(fd, from).unwrap()
}

/// A descriptor number, which may be closed. Dropping this closes nothing.
pub(crate) struct Numbered(pub(crate) i32);

impl AsFd for Numbered {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        // SAFETY: the number is not -1. Tests that close it on purpose use it only in system calls,
        // which return EBADF.
        unsafe { rustix::fd::BorrowedFd::borrow_raw(self.0) }
    }
}

/// Closes a number that a test took out of an `OwnedFd`.
pub(crate) fn close(number: i32) {
    // SAFETY: the callers own the number and do not use it afterwards.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

/// Runs one test of this program in a process of its own. For state that exists once per process:
/// limits and signal dispositions.
///
/// The scenario calls this first, with its module and name. In the parent it runs the child, checks
/// that the one test passed, and returns `false`. In the child it returns `true`, and the test
/// continues.
pub(crate) fn in_own_process(build: crate::Build, module: &str, scenario: &str) -> bool {
    const MARK: &str = "WINDLASS_SUITE_CHILD";
    // `scenarios!` names its modules after the backends.
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

/// A 32-bit field of `struct tcp_info` (linux/tcp.h) by its offset.
pub(crate) fn tcp_info_u32(socket: i32, offset: usize) -> u32 {
    let mut info = [0u8; 232];
    let mut len = libc::socklen_t::try_from(info.len()).unwrap();
    // SAFETY: the buffer is valid for `len` bytes, and the kernel writes at most that many.
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
