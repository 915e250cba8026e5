//! Streams and listeners: a child's calls on its copy never reach the parent's peers.

use std::{
    cell::{Cell, RefCell},
    io::{ErrorKind, IoSlice, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
};

use rustix::net::sockopt;
use windlass::{
    Backend, Key, Reactor, Turn,
    stream::{
        DisconnectReason, Input, Listener, Peer, Released, ReleasedTls, SharedBytes, Stream,
        StreamHandler, StreamOptions, StreamWriteError, TlsDecrypted, TlsFailure, TlsPhase,
        TlsSession, TlsSessionFactory,
    },
};

use crate::tools::{
    FOR_EVER, NOW, Parent, assert_refused, fork, in_child, leave, next_child_has_id_1, reactor_on,
    reap,
};

/// A handler's action on its input.
type OnData = Box<dyn FnMut(&mut Stream<'_>, Input<'_>)>;

/// Counts its callbacks, and runs the test's action on its input.
struct Scripted {
    opened: Rc<Cell<u32>>,
    closed: Rc<Cell<u32>>,
    on_data: OnData,
}

impl StreamHandler for Scripted {
    fn on_open(&mut self, _: &mut Stream<'_>) {
        self.opened.set(self.opened.get() + 1);
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        (self.on_data)(stream, input);
    }

    fn on_close(&mut self, _: Key, _: DisconnectReason, _: Turn<'_>) {
        self.closed.set(self.closed.get() + 1);
    }
}

const OUTPUT_MAX: usize = 200_000;

/// A reactor with one open stream, and its peer.
struct Connected {
    reactor: Reactor,
    key: Key,
    peer: TcpStream,
    closed: Rc<Cell<u32>>,
}

fn connected(
    backend: Backend,
    on_data: impl FnMut(&mut Stream<'_>, Input<'_>) + 'static,
) -> Connected {
    let mut reactor = reactor_on(backend).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    let (opened, closed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let handler =
        Scripted { opened: opened.clone(), closed: closed.clone(), on_data: Box::new(on_data) };
    let key =
        StreamOptions::new().output_max(OUTPUT_MAX).register(ours, handler, &mut reactor).unwrap();
    while opened.get() == 0 {
        reactor.run_once(FOR_EVER).unwrap();
    }
    // On a ring, a wait arms the receive.
    reactor.run_once(NOW).unwrap();
    Connected { reactor, key, peer, closed }
}

impl Connected {
    /// Checks that the peer has received exactly these bytes and that the stream works.
    fn assert_peer_got(&mut self, expected: &[u8]) {
        self.reactor.stream(self.key).unwrap().send(b"!").unwrap();
        self.reactor.run_once(NOW).unwrap();
        // Both have been sent by now, and a stream keeps their order.
        let mut got = Vec::new();
        while got.last() != Some(&b'!') {
            let mut byte = [0];
            self.peer.read_exact(&mut byte).unwrap();
            got.extend(byte);
        }
        assert_eq!(got, [expected, b"!"].concat());
        self.peer.set_nonblocking(true).unwrap();
        assert_eq!(
            self.peer.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "neither bytes nor an end"
        );
        assert_eq!(self.closed.get(), 0);
        let stream = self.reactor.stream(self.key).unwrap();
        assert_eq!(sockopt::socket_linger(&stream), Ok(None), "its end will be an orderly one");
    }
}

pub(crate) fn a_listener_deleted_by_a_child_accepts_for_the_parent(backend: Backend) {
    let mut parent = Parent::new(backend);
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let (opened, closed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let accept = {
        let opened = opened.clone();
        move |_: &Peer<'_>| {
            Some(Scripted {
                opened: opened.clone(),
                closed: closed.clone(),
                on_data: Box::new(|_, _| {}),
            })
        }
    };
    let key = listener.register(accept, &mut parent.reactor).unwrap();
    parent.reactor.run_once(NOW).unwrap();
    in_child(|| parent.reactor.listener(key).unwrap().delete());
    let _client = TcpStream::connect(address).unwrap();
    while opened.get() == 0 {
        parent.reactor.run_once(FOR_EVER).unwrap();
    }
    parent.assert_works();
}

/// Tries to send with every method. None may succeed.
fn assert_sends_nothing(stream: &mut Stream<'_>) {
    let long = vec![b'l'; 100_000];
    for bytes in [&b"short"[..], &long] {
        assert_eq!(stream.send(bytes), Err(StreamWriteError::Closed));
        let with_fds = stream.send_with_fds(bytes, &[rustix::stdio::stdin()]);
        assert_eq!(with_fds, Err(StreamWriteError::Closed.into()));
        assert_eq!(
            stream.send_vectored(&[IoSlice::new(b"v"), IoSlice::new(bytes)]),
            Err(StreamWriteError::Closed)
        );
        assert_eq!(stream.send_shared(&SharedBytes::new(bytes)), Err(StreamWriteError::Closed));
        assert_eq!(stream.write_shared(&SharedBytes::new(bytes)), Err(StreamWriteError::Closed));
    }
}

pub(crate) fn a_stream_sends_nothing_from_a_child(backend: Backend) {
    let mut parent = connected(backend, |_, _| {});
    in_child(|| {
        let stream = &mut parent.reactor.stream(parent.key).unwrap();
        assert_sends_nothing(stream);
        stream.finish();
        assert_refused(parent.reactor.run_once(NOW));
        parent.reactor.stream(parent.key).unwrap().abort();
        assert_refused(parent.reactor.run_once(NOW));
        assert_refused(parent.reactor.run());
        let own = reactor_on(Backend::Poll).unwrap();
        drop(std::mem::replace(&mut parent.reactor, own));
    });
    parent.assert_peer_got(b"");
}

pub(crate) fn output_that_waits_is_sent_by_the_parent_alone(backend: Backend) {
    let mut parent = connected(backend, |_, _| {});
    parent.reactor.stream(parent.key).unwrap().send(b"once").unwrap();
    in_child(|| {
        assert_refused(parent.reactor.run_once(NOW));
        // Output beyond the maximum would make room by sending what waits.
        let much = vec![b'm'; OUTPUT_MAX];
        assert_eq!(
            parent.reactor.stream(parent.key).unwrap().send(&much),
            Err(StreamWriteError::Closed)
        );
        assert_refused(parent.reactor.run_once(NOW));
    });
    parent.assert_peer_got(b"once");
}

/// Forks in a handler. The child runs its closure there, returns from the turn and ends. Then the
/// parent continues.
fn forked_in_a_handler(
    backend: Backend,
    before: impl Fn(&mut Stream<'_>) + 'static,
    in_the_child: impl Fn(&mut Stream<'_>, Input<'_>) + 'static,
) -> Connected {
    let child: Rc<RefCell<Option<Option<i32>>>> = Rc::default();
    let forked = child.clone();
    let mut parent = connected(backend, move |stream, input| {
        before(stream);
        let pid = fork();
        *forked.borrow_mut() = Some(pid);
        if pid.is_none() {
            in_the_child(stream, input);
        }
    });
    parent.peer.write_all(b"fork").unwrap();
    loop {
        let outcome = catch_unwind(AssertUnwindSafe(|| parent.reactor.run_once(FOR_EVER)));
        match *child.borrow() {
            Some(None) => leave(catch_unwind(AssertUnwindSafe(|| {
                assert_refused(parent.reactor.run_once(NOW))
            }))),
            Some(Some(pid)) => reap(pid),
            None => {
                outcome.unwrap().unwrap();
                continue;
            }
        }
        outcome.unwrap().unwrap();
        return parent;
    }
}

pub(crate) fn a_stream_does_nothing_in_a_child_that_was_forked_in_its_handler(backend: Backend) {
    let mut parent = forked_in_a_handler(
        backend,
        |stream| stream.send(b"once").unwrap(),
        |stream, input| {
            // The input comes after the output that waits, and would be sent with it.
            assert_eq!(stream.reply(input, ..), Err(StreamWriteError::Closed));
            assert_sends_nothing(stream);
        },
    );
    parent.assert_peer_got(b"once");
    let mut parent = forked_in_a_handler(
        backend,
        |_| {},
        |stream, input| assert_eq!(stream.reply(input, ..), Err(StreamWriteError::Closed)),
    );
    parent.assert_peer_got(b"");
    let ends: [fn(&mut Stream<'_>); 4] =
        [|s| s.finish(), |s| s.close(), |s| s.abort(), |s| s.pause()];
    for end in ends {
        let mut parent = forked_in_a_handler(backend, |_| {}, move |stream, _| end(stream));
        parent.assert_peer_got(b"");
    }
}

pub(crate) fn a_handler_that_panics_in_a_child_resets_nothing(backend: Backend) {
    let mut parent = forked_in_a_handler(
        backend,
        |_| {},
        |_, _| {
            // An expected panic, which needs no message.
            std::panic::resume_unwind(Box::new("a panic of the child's"));
        },
    );
    parent.assert_peer_got(b"");
}

/// A session whose records are the plaintext.
#[derive(Debug)]
struct Transparent;

impl TlsSessionFactory for Transparent {
    fn new_session(&self) -> Box<dyn TlsSession> {
        Box::new(Self)
    }
}

impl TlsSession for Transparent {
    fn decrypt(&mut self, input: &mut [u8], _: &mut Vec<u8>) -> TlsDecrypted {
        TlsDecrypted::new(input.len(), input.len(), TlsPhase::Open)
    }

    fn encrypt(&mut self, plaintext: &[u8], records: &mut Vec<u8>) -> Result<(), TlsFailure> {
        records.extend_from_slice(plaintext);
        Ok(())
    }

    fn close_notify(&mut self, _: &mut Vec<u8>) {}
}

/// A stream's session that was released, and what continues it.
struct ReleasedSession {
    socket: Option<OwnedFd>,
    tls: Option<ReleasedTls>,
    opened: Rc<Cell<u32>>,
    closed: Rc<Cell<u32>>,
}

impl ReleasedSession {
    /// Opens a session over one end, and releases it.
    fn new(reactor: &mut Reactor, ours: UnixStream) -> Self {
        let mut own =
            Self { socket: None, tls: None, opened: Rc::default(), closed: Rc::default() };
        let with_tls = StreamOptions::new().with_fd(ours).with_tls(Arc::new(Transparent));
        let key = with_tls.with_handler(own.handler()).register_into(reactor).unwrap();
        while own.opened.get() == 0 {
            reactor.run_once(FOR_EVER).unwrap();
        }
        let Released { socket, tls, .. } = reactor.stream(key).unwrap().release().unwrap();
        (own.socket, own.tls) = (socket, tls);
        own
    }

    fn handler(&self) -> Scripted {
        Scripted {
            opened: self.opened.clone(),
            closed: self.closed.clone(),
            on_data: Box::new(|_, _| {}),
        }
    }

    fn go_on(&mut self, reactor: &mut Reactor, said: &[u8]) {
        let with_fd = StreamOptions::new().with_fd(self.socket.take().unwrap());
        let with_tls = with_fd.with_released_tls(self.tls.take().unwrap());
        let key = with_tls.with_handler(self.handler()).register_into(reactor).unwrap();
        reactor.stream(key).unwrap().send(said).unwrap();
    }

    /// Continues it in a child, where it is closed without a word.
    fn assert_refused(&mut self, backend: Backend) {
        let mut own = reactor_on(backend).unwrap();
        self.go_on(&mut own, b"child");
        while self.closed.get() == 0 {
            own.run_once(FOR_EVER).unwrap();
            assert_eq!(self.opened.get(), 1, "it was open in the parent only");
        }
    }
}

/// Two processes that continue one session would encrypt different records with one number.
pub(crate) fn a_session_released_before_a_fork_goes_on_in_the_parent_alone(backend: Backend) {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let mut reactor = reactor_on(backend).unwrap();
    let mut session = ReleasedSession::new(&mut reactor, ours);
    in_child(|| session.assert_refused(backend));
    session.go_on(&mut reactor, b"parent");
    while session.opened.get() < 2 {
        reactor.run_once(FOR_EVER).unwrap();
    }
    reactor.run_once(NOW).unwrap();
    let mut got = [0; 6];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"parent");
    peer.set_nonblocking(true).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(session.closed.get(), 0);
}

/// The first process of a PID namespace has the ID 1, also that of a namespace within.
pub(crate) fn a_child_with_the_id_of_its_parent_is_another_process(backend: Backend) {
    // A process cannot fork once its first child with ID 1 has ended. LeakSanitizer does at the end
    // of this one, but not at the end of a child.
    in_child(|| {
        if next_child_has_id_1() {
            in_child(|| with_id_1(backend));
        }
    });
}

fn with_id_1(backend: Backend) {
    assert_eq!(std::process::id(), 1);
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let mut reactor = reactor_on(backend).unwrap();
    let mut session = ReleasedSession::new(&mut reactor, ours);
    assert!(next_child_has_id_1());
    in_child(|| {
        assert_eq!(std::process::id(), 1);
        session.assert_refused(backend);
    });
    peer.set_nonblocking(true).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
