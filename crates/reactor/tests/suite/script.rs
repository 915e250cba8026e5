//! A stream handler that runs the test's instructions and records its callbacks.

use std::{
    cell::Cell,
    io::{ErrorKind, Read},
    net::TcpStream,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    rc::Rc,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::SendFlags,
};
use windlass::{
    Key, Reactor, Turn,
    stream::{DisconnectReason, Input, Stream, StreamHandler, StreamOptions, Timeout},
};

use crate::bed::{Log, NOW, pair, tcp_pair};

/// A callback and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Open,
    Data(Vec<u8>),
    End,
    Full,
    Drained,
    Timeout(Timeout),
    Notify,
    Close(DisconnectReason),
    Dropped,
}

impl Said {
    pub(crate) fn data(bytes: &[u8]) -> Self {
        Self::Data(bytes.into())
    }
}

type OnData = Box<dyn FnMut(&mut Stream<'_>, Input<'_>)>;
type On = Box<dyn FnMut(&mut Stream<'_>)>;
type OnClose = Box<dyn FnMut(DisconnectReason, Turn<'_>)>;

/// Records every callback, then runs its instruction. Without an instruction for the peer's end, it
/// closes the stream, as most handlers do.
pub(crate) struct Script {
    log: Log<Said>,
    depth: Rc<Cell<u32>>,
    on_open: Option<On>,
    on_data: Option<OnData>,
    on_end: Option<On>,
    on_full: Option<On>,
    on_drained: Option<On>,
    on_timeout: Option<On>,
    on_notify: Option<On>,
    on_close: Option<OnClose>,
}

macro_rules! orders {
    ($($name:ident),*) => { $(
        pub(crate) fn $name(mut self, act: impl FnMut(&mut Stream<'_>) + 'static) -> Self {
            self.$name = Some(Box::new(act));
            self
        }
    )* };
}

impl Script {
    pub(crate) fn new(log: &Log<Said>) -> Self {
        Self::nested(log, &Rc::default())
    }

    /// Counts in `depth` the callbacks that are on the stack.
    pub(crate) fn nested(log: &Log<Said>, depth: &Rc<Cell<u32>>) -> Self {
        Self {
            log: log.clone(),
            depth: Rc::clone(depth),
            on_open: None,
            on_data: None,
            on_end: None,
            on_full: None,
            on_drained: None,
            on_timeout: None,
            on_notify: None,
            on_close: None,
        }
    }

    /// Sends its input back.
    pub(crate) fn echo(log: &Log<Said>) -> Self {
        Self::new(log).on_data(|stream, input| stream.reply(input, ..).unwrap())
    }

    orders!(on_open, on_end, on_full, on_drained, on_timeout, on_notify);

    pub(crate) fn on_data(mut self, act: impl FnMut(&mut Stream<'_>, Input<'_>) + 'static) -> Self {
        self.on_data = Some(Box::new(act));
        self
    }

    pub(crate) fn on_close(
        mut self,
        act: impl FnMut(DisconnectReason, Turn<'_>) + 'static,
    ) -> Self {
        self.on_close = Some(Box::new(act));
        self
    }

    fn enter(&self, said: Said) -> Entered {
        self.log.note(said);
        self.depth.set(self.depth.get() + 1);
        assert_eq!(self.depth.get(), 1, "rule 13: a callback inside another one");
        Entered(Rc::clone(&self.depth))
    }
}

struct Entered(Rc<Cell<u32>>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn run(act: &mut Option<On>, stream: &mut Stream<'_>) {
    if let Some(act) = act {
        act(stream);
    }
}

impl StreamHandler for Script {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let _entered = self.enter(Said::data(&input));
        if let Some(act) = &mut self.on_data {
            act(stream, input);
        }
    }

    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let _entered = self.enter(Said::Open);
        run(&mut self.on_open, stream);
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        let _entered = self.enter(Said::End);
        match &mut self.on_end {
            Some(act) => act(stream),
            None => stream.close(),
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        let _entered = self.enter(Said::Full);
        run(&mut self.on_full, stream);
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        let _entered = self.enter(Said::Drained);
        run(&mut self.on_drained, stream);
    }

    fn on_timeout(&mut self, stream: &mut Stream<'_>, timeout: Timeout) {
        let _entered = self.enter(Said::Timeout(timeout));
        match &mut self.on_timeout {
            Some(act) => act(stream),
            None => stream.abort(),
        }
    }

    fn on_notify(&mut self, stream: &mut Stream<'_>) {
        let _entered = self.enter(Said::Notify);
        run(&mut self.on_notify, stream);
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, turn: Turn<'_>) {
        let _entered = self.enter(Said::Close(reason));
        if let Some(act) = &mut self.on_close {
            act(reason, turn);
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.log.note(Said::Dropped);
    }
}

/// The peer's end of a stream under test.
pub(crate) enum Peer {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Peer {
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        use std::io::Write;
        match self {
            Self::Tcp(peer) => peer.write_all(bytes).unwrap(),
            Self::Unix(peer) => peer.write_all(bytes).unwrap(),
        }
    }

    /// Writes as much as the socket takes: nothing if the other end is gone.
    pub(crate) fn write_some(&mut self, bytes: &[u8]) -> usize {
        use std::io::Write;
        match self {
            Self::Tcp(peer) => peer.write(bytes),
            Self::Unix(peer) => peer.write(bytes),
        }
        .unwrap_or(0)
    }

    /// Like [`finish`](Self::finish), for a connection that may be gone.
    pub(crate) fn finish_quietly(&self) {
        let _ = match self {
            Self::Tcp(peer) => peer.shutdown(std::net::Shutdown::Write),
            Self::Unix(peer) => peer.shutdown(std::net::Shutdown::Write),
        };
    }

    pub(crate) fn finish(&self) {
        match self {
            Self::Tcp(peer) => peer.shutdown(std::net::Shutdown::Write).unwrap(),
            Self::Unix(peer) => peer.shutdown(std::net::Shutdown::Write).unwrap(),
        }
    }

    pub(crate) fn try_read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        match self {
            Self::Tcp(peer) => peer.read(buffer),
            Self::Unix(peer) => peer.read(buffer),
        }
        .map_err(|e| e.kind())
    }

    /// Reads until no more data comes. Also returns whether the end or an error followed.
    pub(crate) fn drain(&mut self) -> (Vec<u8>, Result<usize, ErrorKind>) {
        let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match self.try_read(&mut buffer) {
                Ok(count) if count > 0 => all.extend_from_slice(&buffer[..count]),
                last => return (all, last),
            }
        }
    }

    pub(crate) fn read_all(&mut self) -> Vec<u8> {
        self.drain().0
    }

    /// Closes the socket so that the other end gets a RST.
    pub(crate) fn reset(self) {
        if let Self::Tcp(peer) = &self {
            rustix::net::sockopt::set_socket_linger(peer, Some(NOW)).unwrap();
        }
    }
}

/// For each family, a connected pair: the stream's end and its peer's.
pub(crate) fn both_families() -> [(OwnedFd, Peer); 2] {
    [tcp(), unix()]
}

pub(crate) fn tcp() -> (OwnedFd, Peer) {
    let (ours, theirs) = tcp_pair();
    (ours.into(), Peer::Tcp(theirs))
}

/// A pair of Unix sockets. What one end writes has arrived at the other when the write returns. The
/// kernel may deliver what is sent over TCP later.
pub(crate) fn unix() -> (OwnedFd, Peer) {
    let (ours, theirs) = pair();
    (ours.into(), Peer::Unix(theirs))
}

/// Waits until the socket has one of these conditions, without a change of it.
pub(crate) fn await_conditions(socket: impl AsFd, conditions: PollFlags) {
    let mut polled = [PollFd::new(&socket, conditions)];
    while !polled[0].revents().intersects(conditions) {
        poll(&mut polled, None).unwrap();
    }
}

/// Registers a stream and waits until it is open.
pub(crate) fn open(
    reactor: &mut Reactor,
    options: StreamOptions,
    socket: OwnedFd,
    script: Script,
) -> Key {
    let key = options.register(socket, script, reactor).unwrap();
    turn(reactor);
    key
}

/// Fills the socket of a stream, which does not know of it. Returns the number of bytes.
pub(crate) fn fill(reactor: &mut Reactor, key: Key) -> usize {
    let stream = reactor.stream(key).unwrap();
    let (bytes, mut filled) = (vec![7; 1 << 16], 0);
    while let Ok(count) = rustix::net::send(&stream, &bytes, SendFlags::DONTWAIT) {
        filled += count;
    }
    filled
}

/// Runs one turn that does not wait.
pub(crate) fn turn(reactor: &mut Reactor) -> usize {
    reactor.run_once(NOW).unwrap()
}

/// Runs turns until several in a row had no events. A timer is no event, but its effects are.
pub(crate) fn quiet(reactor: &mut Reactor) {
    for _ in 0..3 {
        crate::bed::run_dry(reactor);
    }
}

/// Runs turns until the log has this many entries.
pub(crate) fn until(reactor: &mut Reactor, log: &Log<Said>, count: usize) {
    while log.len() < count {
        reactor.run_once(None).unwrap();
    }
}

/// Runs turns until the reactor has at most this many subscribers. The end of a TCP connection
/// arrives when the kernel delivers it, which may be after a turn that does not wait.
pub(crate) fn until_subscribers(reactor: &mut Reactor, count: usize) {
    while reactor.stats().subscribers > count {
        reactor.run_once(None).unwrap();
    }
}

/// How many segments with data a TCP socket has sent (`tcpi_data_segs_out`).
pub(crate) fn segments_sent(socket: &impl AsRawFd) -> u32 {
    crate::bed::tcp_info_u32(socket.as_raw_fd(), 156)
}
