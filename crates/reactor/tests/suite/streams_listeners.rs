//! Listeners.

use std::{
    cell::{Cell, RefCell},
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::{
    net::{AddressFamily, SocketType, sockopt},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use windlass::{
    AddReason, Errno, NotFound, Reactor,
    stream::{
        Address, Connector, DisconnectReason, ListenOptions, Listener, StreamLimit, StreamOptions,
    },
};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, in_own_process, panic_of, run_dry},
    script::{Peer, Said, Script, quiet, until, until_subscribers},
};

pub(crate) fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

pub(crate) fn address(listener: &Listener) -> SocketAddr {
    listener.local_addr().unwrap().socket_addr().unwrap()
}

/// A path for temporary files that no other test uses. It is removed at the end.
pub(crate) struct OwnPath(pub(crate) PathBuf);

impl OwnPath {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "windlass-{}-{}.sock",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for OwnPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Accepts with a script that echoes.
pub(crate) fn echoing(
    log: &Log<Said>,
) -> impl FnMut(&windlass::stream::Peer<'_>) -> Option<Script> + use<> {
    let log = log.clone();
    move |_: &_| Some(Script::echo(&log))
}

pub(crate) fn connect(to: SocketAddr) -> Peer {
    let peer = TcpStream::connect(to).unwrap();
    peer.set_nonblocking(true).unwrap();
    Peer::Tcp(peer)
}

fn accepted_connections_are_streams_and_know_their_peer(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listener = Listener::tcp(anywhere()).unwrap();
    let to = address(&listener);
    let (seen, noted) = (Rc::new(RefCell::new(Vec::new())), log.clone());
    let told = seen.clone();
    let accept = move |peer: &windlass::stream::Peer<'_>| {
        assert_eq!(Address::Ip(peer.address().socket_addr().unwrap()), *peer.address());
        assert!(sockopt::tcp_nodelay(peer).unwrap(), "inherited from the listener");
        told.borrow_mut().push(peer.address().clone());
        Some(Script::echo(&noted))
    };
    let key = listener.register(accept, &mut reactor).unwrap();
    let mut peers: Vec<Peer> = (0..5).map(|_| connect(to)).collect();
    until(&mut reactor, &log, 5);
    for peer in &mut peers {
        peer.write(b"hello");
    }
    until(&mut reactor, &log, 10);
    for peer in &mut peers {
        assert_eq!(peer.read_all(), b"hello");
    }
    let listening = reactor.listener(key).unwrap();
    assert_eq!((listening.connections(), listening.accepted(), listening.refused()), (5, 5, 0));
    assert_eq!(listening.local_addr().unwrap(), Address::Ip(to));
    let ours: Vec<Address> = peers
        .iter()
        .map(|peer| match peer {
            Peer::Tcp(peer) => Address::Ip(peer.local_addr().unwrap()),
            Peer::Unix(_) => unreachable!("they are TCP"),
        })
        .collect();
    assert_eq!(*seen.borrow(), ours);
    drop(peers);
    run_dry(&mut reactor);
    assert_eq!(reactor.listener(key).unwrap().connections(), 0);
}

fn a_unix_path_is_listened_at_and_connected_to(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, ours) = (Log::new(), Log::new());
    let path = OwnPath::new();
    let listener = Listener::unix(&path.0).unwrap();
    assert_eq!(listener.local_addr().unwrap().path(), Some(&*path.0));
    let in_use = Listener::unix(&path.0).unwrap_err();
    assert_eq!(in_use.kind(), ErrorKind::AddrInUse);
    assert!(
        in_use.to_string().starts_with(&format!("cannot listen on unix:{}: ", path.0.display()))
    );
    listener.register(echoing(&log), &mut reactor).unwrap();
    let expected = Address::Unix(Some(path.0.clone()));
    let script = Script::new(&ours).on_open(move |stream| {
        assert_eq!(stream.peer_addr().unwrap(), expected);
        stream.send(b"hello").unwrap();
    });
    let key = Connector::unix(&path.0).connect(script, &mut reactor).unwrap();
    assert_eq!(ours.take(), [], "not before the call has returned");
    until(&mut reactor, &ours, 2);
    assert_eq!(ours.take(), [Said::Open, Said::data(b"hello")]);
    reactor.stream(key).unwrap().close();
    run_dry(&mut reactor);
    assert_eq!(ours.take(), [Said::Close(DisconnectReason::Closed), Said::Dropped]);
    let mut outside = UnixStream::connect(&path.0).unwrap();
    outside.write_all(b"hi").unwrap();
    log.take();
    until(&mut reactor, &log, 2);
    let mut answer = [0; 2];
    outside.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hi");
}

fn no_more_than_so_many_connections_are_open(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listener = ListenOptions::new().connections_max(2).tcp(anywhere()).unwrap();
    let to = address(&listener);
    let key = listener.register(echoing(&log), &mut reactor).unwrap();
    let mut peers: Vec<Peer> = (0..3).map(|_| connect(to)).collect();
    until(&mut reactor, &log, 2);
    assert!(run_dry(&mut reactor) == 0, "the third waits in the backlog, and wakes nobody");
    let listening = reactor.listener(key).unwrap();
    assert_eq!((listening.connections(), listening.limits_reached()), (2, 1));
    peers[2].write(b"third");
    drop(peers.remove(0));
    while reactor.listener(key).unwrap().limits_reached() < 2 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(reactor.listener(key).unwrap().connections(), 2);
    // Another maximum counts at once, in both directions.
    let fourth = connect(to);
    run_dry(&mut reactor);
    assert_eq!(reactor.listener(key).unwrap().connections(), 2);
    reactor.listener(key).unwrap().set_connections_max(3);
    while reactor.listener(key).unwrap().connections() < 3 {
        reactor.run_once(None).unwrap();
    }
    reactor.listener(key).unwrap().set_connections_max(1);
    drop((fourth, connect(to)));
    while reactor.listener(key).unwrap().connections() > 2 {
        reactor.run_once(None).unwrap();
    }
    run_dry(&mut reactor);
    assert_eq!(reactor.listener(key).unwrap().connections(), 2);
    let mut answer = Vec::new();
    while answer.len() < 5 {
        run_dry(&mut reactor);
        answer.extend(peers[1].drain().0);
    }
    assert_eq!(answer, b"third");
}

fn a_shared_limit_holds_for_all_that_share_it(build: Build) {
    let clock = HandClock::new();
    // Reactors of two threads behave the same.
    let mut reactors = [(); 2].map(|()| build().clock(clock.clone()).build().unwrap());
    let log = Log::new();
    let limit = StreamLimit::new(3);
    let mut places = Vec::new();
    for reactor in &mut reactors {
        let listener = Listener::tcp(anywhere()).unwrap().limited(&limit);
        let to = address(&listener);
        // A connection that is rejected, or whose closure panics, takes no permit.
        let (count, noted) = (Cell::new(0), log.clone());
        let accept = move |_: &windlass::stream::Peer<'_>| {
            count.set(count.get() + 1);
            match count.get() {
                1 => None,
                2 => panic!("the second"),
                _ => Some(Script::echo(&noted)),
            }
        };
        let key = listener.register(accept, reactor).unwrap();
        for _ in 0..2 {
            drop(connect(to));
        }
        // The second may come late.
        assert_eq!(panic_of(|| while reactor.run_once(None).is_ok() {}), "the second");
        run_dry(reactor);
        places.push((to, key));
    }
    assert_eq!(limit.open(), 0);
    let mut peers: Vec<Peer> = (0..6).map(|i| connect(places[i % 2].0)).collect();
    let count = |reactors: &mut [Reactor; 2]| {
        for _ in 0..4 {
            reactors.iter_mut().for_each(|reactor| _ = run_dry(reactor));
        }
        let mut of = |at: usize| reactors[at].listener(places[at].1).unwrap().connections();
        [of(0), of(1)]
    };
    assert_eq!(count(&mut reactors), [3, 0], "the others wait, and wake nobody");
    assert_eq!(limit.open(), 3);
    // Another attempt while the limit is full does not count as reaching it again.
    for _ in 0..3 {
        clock.advance(Duration::from_millis(100));
        assert_eq!(count(&mut reactors), [3, 0]);
        assert_eq!(reactors[1].listener(places[1].1).unwrap().limits_reached(), 1);
    }
    drop(peers.remove(0));
    // The listener whose stream ended takes the permit at once if a connection waits for it.
    assert_eq!(count(&mut reactors), [2, 0]);
    clock.advance(Duration::from_millis(100));
    assert_eq!(count(&mut reactors), [2, 1], "the other has looked again");
    let listening = reactors[1].listener(places[1].1).unwrap();
    assert_eq!(
        (listening.rests(), listening.rest_reason()),
        (0, None),
        "it wants nothing of the system's"
    );
    assert_eq!(listening.limits_reached(), 2);
    let [first, mut second] = reactors;
    drop(first);
    assert_eq!(limit.open(), 1, "a reactor that goes gives back what it has");
    clock.advance(Duration::from_millis(100));
    quiet(&mut second);
    assert_eq!(limit.open(), 3);
}

fn a_refused_connection_is_closed_and_a_panic_costs_one(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listener = Listener::tcp(anywhere()).unwrap();
    let to = address(&listener);
    let (count, noted) = (Cell::new(0), log.clone());
    let accept = move |_: &windlass::stream::Peer<'_>| {
        count.set(count.get() + 1);
        match count.get() {
            1 => None,
            2 => panic!("the second"),
            _ => Some(Script::echo(&noted)),
        }
    };
    let key = listener.register(accept, &mut reactor).unwrap();
    let mut peers: Vec<Peer> = (0..3).map(|_| connect(to)).collect();
    // The second may come late.
    assert_eq!(panic_of(|| while reactor.run_once(None).is_ok() {}), "the second");
    until(&mut reactor, &log, 1);
    peers[2].write(b"third");
    until(&mut reactor, &log, 2);
    assert_eq!(peers[2].read_all(), b"third");
    for peer in &mut peers[..2] {
        assert_eq!(peer.drain().1, Ok(0));
    }
    let listening = reactor.listener(key).unwrap();
    assert_eq!((listening.connections(), listening.accepted(), listening.refused()), (1, 1, 1));
}

fn so_many_connections_are_accepted_at_a_time(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listener = ListenOptions::new().accepts_per_event(2).tcp(anywhere()).unwrap();
    let to = address(&listener);
    let key = listener.register(echoing(&log), &mut reactor).unwrap();
    let _peers: Vec<Peer> = (0..5).map(|_| connect(to)).collect();
    for expected in [2, 4, 5] {
        reactor.run_once(NOW).unwrap();
        assert_eq!(reactor.listener(key).unwrap().accepted(), expected);
    }
}

/// Keeps a port, on which it does not listen: no other socket is given it, neither to listen nor to
/// connect from. A listener with `SO_REUSEADDR` may have it too.
fn held_port() -> (OwnedFd, SocketAddr) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &anywhere()).unwrap();
    let address = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

fn a_listener_is_paused_resumed_and_deleted(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (_held_port, to) = held_port();
    let listener = Listener::tcp(to).unwrap();
    let alive = Rc::new(());
    let (held, mut accept) = (alive.clone(), echoing(&log));
    let accept = move |peer: &windlass::stream::Peer<'_>| {
        let _ = &held;
        accept(peer)
    };
    let key = listener.register(accept, &mut reactor).unwrap();
    reactor.listener(key).unwrap().pause();
    let mut peer = connect(to);
    assert_eq!(run_dry(&mut reactor), 0);
    reactor.listener(key).unwrap().resume();
    until(&mut reactor, &log, 1);
    assert_eq!(Rc::strong_count(&alive), 2);
    reactor.listener(key).unwrap().delete();
    assert_eq!(Rc::strong_count(&alive), 1, "the closure is dropped at once");
    assert_eq!(reactor.listener(key).err(), Some(NotFound));
    assert_eq!(TcpStream::connect(to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    peer.write(b"alive");
    until(&mut reactor, &log, 2);
    assert_eq!(peer.read_all(), b"alive", "its streams stay");
    drop(peer);
    until_subscribers(&mut reactor, 0);
    // Its slot is reused with another key.
    let next = Listener::tcp(anywhere()).unwrap().register(echoing(&log), &mut reactor).unwrap();
    assert_ne!(next, key);
    assert_eq!(reactor.listener(key).err(), Some(NotFound));
}

fn a_deleted_listener_whose_streams_live_keeps_no_other_from_its_place(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listener = Listener::tcp(anywhere()).unwrap();
    let to = address(&listener);
    let key = listener.register(echoing(&log), &mut reactor).unwrap();
    let (peer, second) = (connect(to), connect(to));
    until(&mut reactor, &log, 2);
    reactor.listener(key).unwrap().delete();
    let next = Listener::tcp(anywhere()).unwrap();
    let to = address(&next);
    let next = next.register(echoing(&log), &mut reactor).unwrap();
    drop(peer);
    until_subscribers(&mut reactor, 2);
    drop(second);
    until_subscribers(&mut reactor, 1);
    assert_eq!(
        reactor.listener(next).unwrap().connections(),
        0,
        "the other's stream is not its own"
    );
    let mut peer = connect(to);
    peer.write(b"x");
    log.take();
    until(&mut reactor, &log, 2);
    assert_eq!(peer.read_all(), b"x");
}

fn several_listeners_share_a_port_if_they_ask_for_it(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let options = ListenOptions::new().reuse_port(true);
    let first = options.tcp(anywhere()).unwrap();
    let to = address(&first);
    let second = options.tcp(to).unwrap();
    let in_use = ListenOptions::new().tcp(to).unwrap_err();
    assert_eq!(in_use.kind(), ErrorKind::AddrInUse);
    assert!(in_use.to_string().starts_with(&format!("cannot listen on {to}: address already")));
    let keys = [first, second].map(|l| l.register(echoing(&log), &mut reactor).unwrap());
    let peers: Vec<Peer> = (0..64).map(|_| connect(to)).collect();
    until(&mut reactor, &log, 64);
    let counts = keys.map(|key| reactor.listener(key).unwrap().connections());
    assert_eq!(counts[0] + counts[1], peers.len());
    assert!(counts[0] > 0 && counts[1] > 0, "the kernel spreads them: {counts:?}");
}

fn a_socket_that_listens_already_is_taken(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let given = TcpListener::bind(anywhere()).unwrap();
    let to = given.local_addr().unwrap();
    let listener = ListenOptions::new().from_fd(given).unwrap();
    listener.register(echoing(&log), &mut reactor).unwrap();
    let mut peer = connect(to);
    peer.write(b"x");
    until(&mut reactor, &log, 2);
    assert_eq!(peer.read_all(), b"x");
    let unbound = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    );
    assert_eq!(
        ListenOptions::new().from_fd(unbound.unwrap()).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    assert_eq!(
        ListenOptions::new().from_fd(file).unwrap_err().raw_os_error(),
        Some(Errno::NOTSOCK.raw_os_error())
    );
}

fn streams_have_the_listeners_settings(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let stream = StreamOptions::new()
        .nodelay(false)
        .keepalive(Some(Duration::from_secs(77)))
        .watermarks(1, 2);
    let listener = ListenOptions::new().stream(stream).tcp(anywhere()).unwrap();
    let to = address(&listener);
    let noted = log.clone();
    let accept = move |_: &windlass::stream::Peer<'_>| {
        Some(Script::new(&noted).on_open(move |opened| {
            assert_eq!(opened.options(), stream);
            let socket = opened.as_fd();
            assert!(
                !sockopt::tcp_nodelay(socket).unwrap()
                    && sockopt::socket_keepalive(socket).unwrap()
            );
            assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), Duration::from_secs(77));
        }))
    };
    listener.register(accept, &mut reactor).unwrap();
    let _peer = connect(to);
    until(&mut reactor, &log, 1);
}

/// Limits apply to the process, so this test needs a process of its own.
fn without_descriptors_a_listener_rests_and_tries_again(build: Build) {
    if !in_own_process(
        build,
        "streams_listeners",
        "without_descriptors_a_listener_rests_and_tries_again",
    ) {
        return;
    }
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let retry = Duration::from_millis(100);
    let listener = ListenOptions::new().retry(retry).tcp(anywhere()).unwrap();
    let to = address(&listener);
    let key = listener.register(echoing(&log), &mut reactor).unwrap();
    let mut peer = connect(to);
    let used = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 0).unwrap();
    let next = std::os::fd::AsRawFd::as_raw_fd(&used).unsigned_abs();
    drop(used);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(next.into()), maximum: limit.maximum })
        .unwrap();
    assert!(run_dry(&mut reactor) <= 1, "it does not try again and again");
    assert!(reactor.listener(key).unwrap().is_resting());
    clock.advance(retry);
    // First the timer fires. Then comes one event, and the listener pauses again.
    quiet(&mut reactor);
    assert!(reactor.listener(key).unwrap().is_resting());
    setrlimit(Resource::Nofile, limit).unwrap();
    quiet(&mut reactor);
    assert_eq!(log.len(), 0);
    clock.advance(retry);
    quiet(&mut reactor);
    peer.write(b"at last");
    until(&mut reactor, &log, 2);
    assert_eq!(peer.read_all(), b"at last");
    assert!(!reactor.listener(key).unwrap().is_resting());
}

fn with_as_many_subscribers_as_may_be_a_listener_rests(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).subscribers_max(2).build().unwrap();
    let log = Log::new();
    let listener = Listener::tcp(anywhere()).unwrap();
    let to = address(&listener);
    let key = listener.register(echoing(&log), &mut reactor).unwrap();
    let first = connect(to);
    let mut second = connect(to);
    // A loaded machine may deliver them one after the other. The end of the first may come later
    // still.
    while !reactor.listener(key).unwrap().is_resting() {
        reactor.run_once(None).unwrap();
    }
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Open]);
    drop(first);
    until(&mut reactor, &log, 3);
    assert_eq!(log.take(), [Said::End, Said::Close(DisconnectReason::Closed), Said::Dropped]);
    clock.advance(Duration::from_millis(100));
    quiet(&mut reactor);
    log.take();
    second.write(b"x");
    until(&mut reactor, &log, 1);
    assert_eq!(second.read_all(), b"x", "it was never lost");
}

/// Regression: each pause had a timer of its own, and every closed connection began another pause.
/// With a long pause the timers accumulated.
fn a_listener_that_rests_often_has_one_timer(build: Build) {
    let hour = Duration::from_secs(3600);
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).subscribers_max(2).build().unwrap();
    let log = Log::new();
    let listener = ListenOptions::new().retry(hour).tcp(anywhere()).unwrap();
    let to = address(&listener);
    let key = listener.register(echoing(&log), &mut reactor).unwrap();
    let mut last = connect(to);
    for rests in 1..20 {
        let next = connect(to);
        // The end of the connection before may come late.
        while reactor.listener(key).unwrap().rests() < rests {
            reactor.run_once(None).unwrap();
        }
        quiet(&mut reactor);
        assert_eq!(reactor.listener(key).unwrap().rests(), rests);
        assert_eq!(reactor.stats().timers, 1);
        clock.advance(Duration::from_secs(60));
        last = next;
    }
    // The last pause determines the time.
    clock.advance(hour - Duration::from_secs(61));
    quiet(&mut reactor);
    assert!(reactor.listener(key).unwrap().is_resting());
    clock.advance(Duration::from_secs(1));
    quiet(&mut reactor);
    assert_eq!(reactor.listener(key).unwrap().rests(), 20, "it has tried again");
    reactor.listener(key).unwrap().delete();
    assert_eq!(reactor.stats().timers, 0, "nothing is left to wait for");
    drop(last);
}

fn a_refused_listener_comes_back(build: Build) {
    let mut reactor = build().subscribers_max(1).build().unwrap();
    let log = Log::new();
    let first = Listener::tcp(anywhere()).unwrap();
    first.register(echoing(&log), &mut reactor).unwrap();
    let second = Listener::tcp(anywhere()).unwrap();
    let to = address(&second);
    let e = second.with_handler(echoing(&log)).try_register_into(&mut reactor).err().unwrap();
    let (second, _) = e.subscriber.into_parts();
    assert_eq!((e.reason, address(&second)), (AddReason::LimitReached, to));
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    accepted_connections_are_streams_and_know_their_peer,
    #[cfg_attr(miri, ignore = "sockets")]
    a_unix_path_is_listened_at_and_connected_to,
    #[cfg_attr(miri, ignore = "sockets")]
    no_more_than_so_many_connections_are_open,
    a_shared_limit_holds_for_all_that_share_it,
    #[cfg_attr(miri, ignore = "sockets")]
    a_refused_connection_is_closed_and_a_panic_costs_one,
    #[cfg_attr(miri, ignore = "sockets")]
    so_many_connections_are_accepted_at_a_time,
    #[cfg_attr(miri, ignore = "sockets")]
    a_listener_is_paused_resumed_and_deleted,
    #[cfg_attr(miri, ignore = "sockets")]
    a_deleted_listener_whose_streams_live_keeps_no_other_from_its_place,
    #[cfg_attr(miri, ignore = "sockets")]
    several_listeners_share_a_port_if_they_ask_for_it,
    #[cfg_attr(miri, ignore = "sockets")]
    a_socket_that_listens_already_is_taken,
    #[cfg_attr(miri, ignore = "sockets")]
    streams_have_the_listeners_settings,
    #[cfg_attr(miri, ignore = "processes")]
    without_descriptors_a_listener_rests_and_tries_again,
    #[cfg_attr(miri, ignore = "sockets")]
    with_as_many_subscribers_as_may_be_a_listener_rests,
    #[cfg_attr(miri, ignore = "sockets")]
    a_listener_that_rests_often_has_one_timer,
    #[cfg_attr(miri, ignore = "sockets")]
    a_refused_listener_comes_back,
}
