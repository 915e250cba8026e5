//! The ends of streams whose socket belongs to the handler: which bytes it gets, and in which
//! order.

use std::{
    cell::RefCell,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::Duration,
};

use rustix::{event::PollFlags, net::sockopt};
use windlass::{
    Errno, Key, Reactor, Turn, interest,
    stream::{DisconnectReason, Input, Stream, StreamHandler, StreamOptions, StreamWriteError},
};

use crate::{
    Build,
    bed::{counter, run_dry},
    script::await_conditions,
};

#[derive(Debug, PartialEq, Eq)]
enum Call {
    Open,
    Data(Vec<u8>),
    End,
    Close(DisconnectReason),
}

type Log = Rc<RefCell<Vec<Call>>>;

struct Notes {
    socket: Rc<TcpStream>,
    log: Log,
}

impl AsFd for Notes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl StreamHandler for Notes {
    fn on_open(&mut self, _: &mut Stream<'_>) {
        self.log.borrow_mut().push(Call::Open);
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        self.log.borrow_mut().push(Call::Data(input.to_vec()));
        if input.ends_with(b"abort") {
            stream.abort();
        }
    }

    fn on_end(&mut self, _: &mut Stream<'_>) {
        self.log.borrow_mut().push(Call::End);
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        self.log.borrow_mut().push(Call::Close(reason));
    }
}

struct Lent {
    reactor: Reactor,
    socket: Rc<TcpStream>,
    peer: Option<TcpStream>,
    log: Log,
    key: Key,
}

impl Lent {
    /// `before` is called before the stream is registered.
    fn with(build: Build, before: impl FnOnce(&mut Option<TcpStream>, &TcpStream)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = Some(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        peer.as_ref().unwrap().set_nodelay(true).unwrap();
        let socket = Rc::new(listener.accept().unwrap().0);
        socket.set_nonblocking(true).unwrap();
        before(&mut peer, &socket);
        let log = Log::default();
        let mut reactor = build().build().unwrap();
        let notes = Notes { socket: Rc::clone(&socket), log: Rc::clone(&log) };
        let options = StreamOptions::new().output_max(64 << 20);
        let key = options.register_lent(notes, &mut reactor).unwrap();
        Self { reactor, socket, peer, log, key }
    }

    fn new(build: Build) -> Self {
        let mut lent = Self::with(build, |_, _| ());
        run_dry(&mut lent.reactor);
        assert_eq!(lent.log.take(), [Call::Open]);
        lent
    }

    /// Registers a subscriber whose event is the first of the next turn, unless the backend has
    /// another order.
    fn first_in_turn(&mut self, mut call: impl FnMut(Turn<'_>) + 'static) {
        let fd = counter(0);
        let again = fd.try_clone().unwrap();
        let handler = move |turn: Turn<'_>| call(turn);
        interest()
            .read()
            .one_shot()
            .with_fd(fd)
            .with_handler(handler)
            .register_into(&mut self.reactor)
            .unwrap();
        run_dry(&mut self.reactor);
        rustix::io::write(&again, &1_u64.to_ne_bytes()).unwrap();
    }

    fn run_to_close(&mut self) -> DisconnectReason {
        loop {
            if let Some(Call::Close(reason)) = self.log.borrow().last() {
                return *reason;
            }
            self.reactor.run_once(Duration::from_secs(20)).unwrap();
        }
    }

    /// What the handler got, and what the socket still has.
    fn received(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for call in &*self.log.borrow() {
            if let Call::Data(data) = call {
                bytes.extend_from_slice(data);
            }
        }
        let _ = (&*self.socket).read_to_end(&mut bytes);
        bytes
    }
}

/// Resets the connection as a process does that ends with unread bytes.
fn reset(peer: &mut Option<TcpStream>, socket: &TcpStream) {
    sockopt::set_socket_linger(peer.as_ref().unwrap(), Some(Duration::ZERO)).unwrap();
    *peer = None;
    await_conditions(socket, PollFlags::HUP);
}

/// A write fails while the event of received bytes waits.
fn bytes_that_wait_when_a_write_fails_are_delivered_in_order(build: Build) {
    let mut lent = Lent::new(build);
    let key = lent.key;
    lent.first_in_turn(move |mut turn| {
        let long = vec![b'x'; 100_000];
        let Ok(mut stream) = turn.stream(key) else { return };
        assert_eq!(stream.send(&long), Err(StreamWriteError::Closed));
    });
    let bytes: Vec<u8> = (0..20_000_u32).map(|place| (place % 251) as u8).collect();
    lent.peer.as_mut().unwrap().write_all(&bytes).unwrap();
    reset(&mut lent.peer, &lent.socket);
    let reason = lent.run_to_close();
    assert!(lent.received() == bytes, "{} of {}", lent.received().len(), bytes.len());
    // Also if the write that failed was told of it second.
    assert_eq!(reason, DisconnectReason::Error(Errno::CONNRESET));
}

/// The kernel tells a receive of the reset, and so a write gets `EPIPE`.
fn a_reset_is_the_reason_although_a_write_fails_first(build: Build) {
    let mut lent = Lent::new(build);
    let key = lent.key;
    lent.first_in_turn(move |mut turn| {
        // Without completions, the stream's own event may come first.
        let Ok(mut stream) = turn.stream(key) else { return };
        let _ = stream.send(&[b'x'; 100_000]);
    });
    reset(&mut lent.peer, &lent.socket);
    assert_eq!(lent.run_to_close(), DisconnectReason::Error(Errno::CONNRESET));
}

/// Input that was kept while the stream was paused, and then its output fails.
fn kept_input_is_delivered_when_blocked_output_fails(build: Build) {
    let mut lent = Lent::new(build);
    let key = lent.key;
    lent.first_in_turn(move |mut turn| {
        let mut stream = turn.stream(key).unwrap();
        stream.pause();
        stream.send(&vec![b'x'; 32 << 20]).unwrap();
    });
    lent.peer.as_mut().unwrap().write_all(b"kept").unwrap();
    await_conditions(&lent.socket, PollFlags::IN);
    run_dry(&mut lent.reactor);
    reset(&mut lent.peer, &lent.socket);
    lent.run_to_close();
    assert_eq!(lent.received(), b"kept");
}

/// The connection failed before the first turn.
fn on_open_precedes_the_bytes_of_a_stream_that_fails_at_once(build: Build) {
    let mut lent = Lent::with(build, |peer, socket| {
        peer.as_mut().unwrap().write_all(b"early").unwrap();
        reset(peer, socket);
    });
    let long = [b'x'; 100_000];
    let sent = lent.reactor.stream(lent.key).unwrap().send(&long);
    assert_eq!(sent, Err(StreamWriteError::Closed));
    lent.run_to_close();
    assert_eq!(lent.received(), b"early");
    let log = lent.log.borrow();
    let data = log.iter().position(|call| matches!(call, Call::Data(_)));
    assert!(data.is_none_or(|data| log[..data] == [Call::Open]), "{log:?}");
}

/// `on_close` is the only callback then, whatever was received.
fn a_lent_stream_that_is_closed_gets_no_bytes(build: Build) {
    let ends: [(&str, fn(&mut Stream<'_>)); 4] = [
        ("abort", |stream| stream.abort()),
        ("discard", |stream| stream.discard()),
        ("close", |stream| stream.close()),
        ("close_after_output", |stream| stream.close_after_output()),
    ];
    // Also if the connection fails before that or after it.
    for (name, end) in ends {
        for fails in ["not", "before", "after"] {
            let mut lent = Lent::new(build);
            lent.peer.as_mut().unwrap().write_all(b"unwanted").unwrap();
            await_conditions(&lent.socket, PollFlags::IN);
            if fails == "before" {
                reset(&mut lent.peer, &lent.socket);
                let sent = lent.reactor.stream(lent.key).unwrap().send(&[b'x'; 100_000]);
                assert_eq!(sent, Err(StreamWriteError::Closed));
            }
            end(&mut lent.reactor.stream(lent.key).unwrap());
            if fails == "after" {
                reset(&mut lent.peer, &lent.socket);
            }
            lent.peer = None;
            lent.run_to_close();
            let log = lent.log.borrow();
            assert!(matches!(log[..], [Call::Close(_)]), "{name} {fails}: {log:?}");
        }
    }
}

/// The handler closes it while it gets what was received.
fn a_handler_that_aborts_while_it_gets_the_rest_gets_no_more(build: Build) {
    let mut lent = Lent::with(build, |peer, socket| {
        // More than one piece.
        let mut bytes = vec![0; 2 << 16];
        bytes[(1 << 16) - 5..1 << 16].copy_from_slice(b"abort");
        let peer_ref = peer.as_mut().unwrap();
        peer_ref.set_nonblocking(true).unwrap();
        let _ = peer_ref.write(&bytes).unwrap();
        await_conditions(socket, PollFlags::IN);
        reset(peer, socket);
    });
    let sent = lent.reactor.stream(lent.key).unwrap().send(&[b'x'; 100_000]);
    assert_eq!(sent, Err(StreamWriteError::Closed));
    lent.run_to_close();
    let log = lent.log.borrow();
    let pieces = log.iter().filter(|call| matches!(call, Call::Data(_))).count();
    assert!(pieces <= 1, "{pieces}");
}

/// Nobody gets bytes that a receive takes while the reactor is dropped.
fn bytes_that_come_after_the_last_turn_stay_in_a_lent_socket(build: Build) {
    let mut lent = Lent::new(build);
    lent.peer.as_mut().unwrap().write_all(b"first").unwrap();
    while lent.log.borrow().is_empty() {
        lent.reactor.run_once(Duration::from_secs(20)).unwrap();
    }
    assert_eq!(lent.log.take(), [Call::Data(b"first".to_vec())]);
    lent.peer.as_mut().unwrap().write_all(b"second").unwrap();
    await_conditions(&lent.socket, PollFlags::IN);
    let Lent { reactor, socket, .. } = lent;
    drop(reactor);
    let mut bytes = Vec::new();
    let _ = (&*socket).read_to_end(&mut bytes);
    assert_eq!(bytes, b"second");
}

/// A handler whose destructor may panic.
struct Explosive(bool);

impl StreamHandler for Explosive {
    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

impl Drop for Explosive {
    fn drop(&mut self) {
        assert!(!self.0, "expected by the test");
    }
}

/// A panic in the middle of a list keeps the rest, which has its events as before (rule 8).
fn streams_that_a_panic_kept_from_release_go_on(build: Build) {
    for is_in_destructor in [false, true] {
        let mut lent = Lent::new(build);
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let explosive = Explosive(is_in_destructor);
        let first = StreamOptions::new().register(ours, explosive, &mut lent.reactor).unwrap();
        let (keys, told) = ([first, lent.key], Rc::new(RefCell::new(false)));
        let fd = counter(0);
        let trigger = fd.try_clone().unwrap();
        let handler = {
            let told = Rc::clone(&told);
            move |mut turn: Turn<'_>| {
                let release = || {
                    let each = |_| assert!(is_in_destructor, "expected by the test");
                    turn.release_streams_with(keys.into_iter(), each);
                };
                *told.borrow_mut() = catch_unwind(AssertUnwindSafe(release)).is_err();
            }
        };
        let one_shot = interest().read().one_shot().with_fd(fd).with_handler(handler);
        one_shot.register_into(&mut lent.reactor).unwrap();
        run_dry(&mut lent.reactor);
        // The stream gets its first bytes in the turn of the release, and before it.
        lent.peer.as_mut().unwrap().write_all(b"first").unwrap();
        await_conditions(&lent.socket, PollFlags::IN);
        rustix::io::write(&trigger, &1_u64.to_ne_bytes()).unwrap();
        while lent.log.borrow().is_empty() || !*told.borrow() {
            lent.reactor.run_once(Duration::from_secs(20)).unwrap();
        }
        lent.peer.as_mut().unwrap().write_all(b"second").unwrap();
        for _ in 0..3 {
            if lent.log.borrow().len() < 2 {
                lent.reactor.run_once(Duration::from_secs(5)).unwrap();
            }
        }
        let expected = [b"first".to_vec(), b"second".to_vec()].map(Call::Data);
        assert_eq!(lent.log.take(), expected, "a panic in the destructor: {is_in_destructor}");
        drop(theirs);
    }
}

scenarios! {
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    bytes_that_come_after_the_last_turn_stay_in_a_lent_socket,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    streams_that_a_panic_kept_from_release_go_on,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    bytes_that_wait_when_a_write_fails_are_delivered_in_order,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    a_reset_is_the_reason_although_a_write_fails_first,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    kept_input_is_delivered_when_blocked_output_fails,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    on_open_precedes_the_bytes_of_a_stream_that_fails_at_once,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    a_lent_stream_that_is_closed_gets_no_bytes,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    a_handler_that_aborts_while_it_gets_the_rest_gets_no_more,
}
