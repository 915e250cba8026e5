//! Listeners that other code makes blocking, through a duplicate in this process or another one.
//! An `accept4` that blocks would hang its test. A [`Watchdog`] connects after a while. That ends
//! the call, and the test fails.

use std::{
    net::{SocketAddr, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{UnixListener, UnixStream},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::event::PollFlags;
use windlass::{
    Turn,
    stream::{ListenOptions, Listener},
};

use crate::{
    Build,
    bed::{Log, NOW, spinning_alone},
    script::{Script, await_conditions},
};

/// The address to connect to, in either family.
#[derive(Clone)]
enum To {
    Tcp(SocketAddr),
    Unix(std::os::unix::net::SocketAddr),
}

impl To {
    fn connect(&self) -> OwnedFd {
        match self {
            Self::Tcp(address) => TcpStream::connect(address).unwrap().into(),
            Self::Unix(address) => UnixStream::connect_addr(address).unwrap().into(),
        }
    }
}

/// Another owner of a listener.
struct Other {
    to: To,
    socket: OwnedFd,
}

impl Other {
    fn set_blocking(&self) {
        rustix::io::ioctl_fionbio(&self.socket, false).unwrap();
    }

    fn is_nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.socket).unwrap().contains(rustix::fs::OFlags::NONBLOCK)
    }

    /// Accepts a connection that waits.
    fn steal(&self) {
        drop(rustix::net::accept(&self.socket).unwrap());
    }

    fn try_clone(&self) -> Self {
        Self { to: self.to.clone(), socket: self.socket.try_clone().unwrap() }
    }
}

/// A listener of each family, with its other owner.
fn both() -> [(Listener, Other); 2] {
    let tcp = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let to = To::Tcp(tcp.local_addr().unwrap().socket_addr().unwrap());
    let tcp = (with_other(&tcp, to), tcp);
    // Taken over by its descriptor, like a listener that another process passes on. An abstract
    // address leaves no file behind.
    let name = format!("windlass-{}-{:?}", std::process::id(), thread::current().id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let unix = UnixListener::bind_addr(&address).unwrap();
    let other = Other { to: To::Unix(address), socket: unix.try_clone().unwrap().into() };
    let unix = ListenOptions::new().from_fd(unix).unwrap();
    [(tcp.1, tcp.0), (unix, other)]
}

fn with_other(listener: &impl AsFd, to: To) -> Other {
    Other { to, socket: listener.as_fd().try_clone_to_owned().unwrap() }
}

/// Connects if the test has not ended in time. Then an `accept4` that blocks returns.
struct Watchdog {
    ended: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watchdog {
    fn new(other: &Other) -> Self {
        let (ended, end) = channel();
        let to = other.to.clone();
        let thread = thread::spawn(move || {
            let mut has_blocked = false;
            let mut patience = Duration::from_secs(20);
            while end.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                (has_blocked, patience) = (true, Duration::from_millis(100));
                drop(to.connect());
            }
            has_blocked
        });
        Self { ended, thread }
    }

    fn end(self) {
        self.ended.send(()).unwrap();
        assert!(!self.thread.join().unwrap(), "the loop was blocked in accept4");
    }
}

/// Registers the listener with a closure that accepts every connection.
fn register(
    build: Build,
    listener: Listener,
) -> (windlass::Reactor, windlass::stream::ListenerKey) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let key = listener.register(move |_: &_| Some(Script::echo(&log)), &mut reactor).unwrap();
    (reactor, key)
}

/// Another owner accepts the connection before the loop does.
fn a_listener_that_somebody_makes_blocking_does_not_block_the_loop(build: Build) {
    for (listener, other) in both() {
        let watchdog = Watchdog::new(&other);
        let (mut reactor, key) = register(build, listener);
        let thief = other.try_clone();
        let _peer = other.to.connect();
        await_conditions(&other.socket, PollFlags::IN);
        // Runs first in the turn, after the wait.
        let steal = move |_: Turn<'_>| {
            thief.set_blocking();
            thief.steal();
        };
        reactor.defer(steal).unwrap();
        reactor.run_once(NOW).unwrap();
        assert_eq!(reactor.listener(key).unwrap().accepted(), 0);
        assert!(other.is_nonblocking(), "it was made non-blocking again");
        // Later connections are accepted as before. The last `accept4`, which finds no connection,
        // does not block.
        other.set_blocking();
        let _peers = [(); 3].map(|()| other.to.connect());
        while reactor.listener(key).unwrap().accepted() < 3 {
            reactor.run_once(None).unwrap();
        }
        watchdog.end();
    }
}

/// The closure that creates handlers runs between two `accept4` calls of one event.
fn a_listener_that_its_own_closure_makes_blocking_does_not_block_the_loop(build: Build) {
    for (listener, other) in both() {
        let watchdog = Watchdog::new(&other);
        let mut reactor = build().build().unwrap();
        let thief = other.try_clone();
        let accept = move |_: &windlass::stream::Peer<'_>| {
            thief.set_blocking();
            thief.steal();
            None::<Script>
        };
        let key = listener.register(accept, &mut reactor).unwrap();
        let _peers = [(); 2].map(|()| other.to.connect());
        while reactor.listener(key).unwrap().refused() == 0 {
            reactor.run_once(None).unwrap();
        }
        watchdog.end();
    }
}

/// At every moment, even between the check of the flag and the `accept4`.
fn a_listener_that_somebody_makes_blocking_again_and_again_does_not_block_the_loop(build: Build) {
    const ROUNDS: usize = 100;
    let _alone = spinning_alone();
    for (listener, other) in both() {
        let watchdog = Watchdog::new(&other);
        let (mut reactor, key) = register(build, listener);
        let (enough, times) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (meddler, seen, count) = (other.try_clone(), enough.clone(), times.clone());
        let meddler = thread::spawn(move || {
            while !seen.load(Relaxed) {
                meddler.set_blocking();
                count.fetch_add(1, Relaxed);
            }
        });
        for _ in 0..ROUNDS {
            let before = times.load(Relaxed);
            while times.load(Relaxed) == before {
                thread::yield_now();
            }
            let thief = other.try_clone();
            let _peer = other.to.connect();
            await_conditions(&other.socket, PollFlags::IN);
            reactor.defer(move |_: Turn<'_>| thief.steal()).unwrap();
            reactor.run_once(NOW).unwrap();
        }
        enough.store(true, Relaxed);
        meddler.join().unwrap();
        assert_eq!(reactor.listener(key).unwrap().accepted(), 0);
        watchdog.end();
    }
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    a_listener_that_somebody_makes_blocking_does_not_block_the_loop,
    #[cfg_attr(miri, ignore = "sockets")]
    a_listener_that_its_own_closure_makes_blocking_does_not_block_the_loop,
    #[cfg_attr(miri, ignore = "sockets")]
    a_listener_that_somebody_makes_blocking_again_and_again_does_not_block_the_loop,
}
