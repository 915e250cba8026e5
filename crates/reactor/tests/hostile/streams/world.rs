//! The expected state of each stream in a random program, and the checks on it.

use std::{
    cell::{Cell, RefCell},
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    rc::Rc,
    time::Duration,
};

use rustix::net::sockopt;
use windlass::{
    Key, Turn,
    stream::{DisconnectReason, Input, ListenerKey, Stream, StreamHandler, Timeout},
};

use super::acts;
use crate::pattern;

/// The payload of the program's own panics.
struct Deliberate;

/// Returns true if the closure panicked with `Deliberate`. Any other panic propagates.
pub(crate) fn survive(run: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(()) => false,
        Err(load) if load.is::<Deliberate>() => true,
        Err(load) => resume_unwind(load),
    }
}

/// The bytes at an offset of the data that a stream sends (`way` 0) or receives. Each stream and
/// each way begins elsewhere in the pattern.
pub(crate) fn bytes(id: usize, way: usize, from: usize, len: usize) -> Vec<u8> {
    pattern::bytes(id * 1_009 + way * 30_011 + from, len)
}

fn check(id: usize, way: usize, from: usize, got: &[u8]) {
    let sent = bytes(id, way, from, got.len());
    let wrong = || sent.iter().zip(got).position(|(sent, got)| sent != got);
    assert!(got == sent, "stream {id}, way {way}: the byte {:?} after {from}", wrong());
}

/// The other end of a stream.
pub(crate) enum Peer {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Peer {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(peer) => peer.read(buffer),
            Self::Unix(peer) => peer.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(peer) => peer.write(bytes),
            Self::Unix(peer) => peer.write(bytes),
        }
    }

    fn finish(&self) {
        // The socket may not be connected any more.
        let _ = match self {
            Self::Tcp(peer) => peer.shutdown(Shutdown::Write),
            Self::Unix(peer) => peer.shutdown(Shutdown::Write),
        };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerSaw {
    Nothing,
    End,
    Error,
}

/// The known state of a stream.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Record {
    pub(crate) key: Option<Key>,
    /// The port of its own end, if the other end is not matched yet.
    pub(crate) port: Option<u16>,
    pub(crate) peer: Option<Peer>,
    /// True if the peer has left. Errors are expected then.
    pub(crate) lost: bool,
    pub(crate) sent: usize,
    peer_got: usize,
    pub(crate) peer_saw: PeerSaw,
    pub(crate) peer_wrote: usize,
    peer_finished: bool,
    got: usize,
    opened: bool,
    pub(crate) closing: bool,
    pub(crate) aborted: bool,
    pub(crate) finished: bool,
    pub(crate) paused: bool,
    ended: bool,
    full: bool,
    /// True if it was told not to linger. Output may be lost then.
    pub(crate) hasty: bool,
    pub(crate) closed: Option<DisconnectReason>,
    panicked: bool,
    dropped: bool,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Tcp(_)) { "Tcp" } else { "Unix" })
    }
}

impl Record {
    pub(crate) fn is_over(&self) -> bool {
        self.closed.is_some() || self.panicked || self.dropped
    }
}

/// The state that all parts of a program share.
pub(crate) struct World {
    random: Cell<u64>,
    passed: Cell<Duration>,
    pub(crate) panics: Cell<bool>,
    pub(crate) records: RefCell<Vec<Record>>,
    pub(crate) listeners: RefCell<Vec<(ListenerKey, std::net::SocketAddr)>>,
    /// Connections to a listener whose closure has not been called for them yet, by port.
    pub(crate) waiting: RefCell<Vec<(u16, TcpStream)>>,
    /// Connections of connectors whose stream is not known yet, by the stream's port.
    pub(crate) accepted: RefCell<Vec<(u16, TcpStream)>>,
    /// The address that connectors connect to.
    pub(crate) sink: std::net::TcpListener,
    is_inside: Cell<bool>,
    pub(crate) calls: Cell<u64>,
    pub(crate) received: Cell<u64>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let sink = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        sink.set_nonblocking(true).unwrap();
        Self {
            random: Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            passed: Cell::default(),
            panics: Cell::default(),
            records: RefCell::default(),
            listeners: RefCell::default(),
            waiting: RefCell::default(),
            accepted: RefCell::default(),
            sink,
            is_inside: Cell::default(),
            calls: Cell::default(),
            received: Cell::default(),
        }
    }

    pub(crate) fn passed(&self) -> Duration {
        self.passed.get()
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.passed.set(self.passed.get() + time);
    }

    pub(crate) fn index(&self, below: usize) -> usize {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        (x >> 16) as usize % below
    }

    pub(crate) fn one_in(&self, count: usize) -> bool {
        self.index(count) == 0
    }

    pub(crate) fn maybe_panic(&self, one_in: usize) {
        if self.panics.get() && self.one_in(one_in) && !std::thread::panicking() {
            // Bypasses the panic hook, which would print each panic.
            resume_unwind(Box::new(Deliberate));
        }
    }

    /// The number of streams so far.
    pub(crate) fn count(&self) -> usize {
        self.records.borrow().len()
    }

    pub(crate) fn with<T>(&self, id: usize, look: impl FnOnce(&mut Record) -> T) -> T {
        look(&mut self.records.borrow_mut()[id])
    }

    /// A handler for a new stream. Its peer has written a prefix for it.
    pub(crate) fn handler(self: &Rc<Self>, peer: Option<Peer>, prefix: usize) -> Handler {
        let mut records = self.records.borrow_mut();
        records.push(Record {
            key: None,
            port: None,
            peer,
            lost: false,
            sent: 0,
            peer_got: 0,
            peer_saw: PeerSaw::Nothing,
            peer_wrote: prefix,
            peer_finished: false,
            got: 0,
            opened: false,
            closing: false,
            aborted: false,
            finished: false,
            paused: false,
            ended: false,
            full: false,
            hasty: false,
            closed: None,
            panicked: false,
            dropped: false,
        });
        Handler { id: records.len() - 1, world: Rc::clone(self) }
    }

    /// The peer's action between two turns.
    pub(crate) fn let_peer_act(&self, id: usize) {
        let mut records = self.records.borrow_mut();
        let record = &mut records[id];
        let Some(peer) = &mut record.peer else { return };
        match self.index(8) {
            0..=2 if !record.peer_finished => {
                let chunk = bytes(
                    id,
                    1,
                    record.peer_wrote,
                    1 + self.index(if self.one_in(5) { 100_000 } else { 300 }),
                );
                // The other end may be gone.
                record.peer_wrote += peer.write(&chunk).unwrap_or(0);
            }
            3..=5 => self.let_peer_read(id, record, 1 + self.index(60_000)),
            6 if self.one_in(12) => {
                peer.finish();
                record.peer_finished = true;
            }
            7 if self.one_in(20) => {
                if let (Peer::Tcp(peer), true) = (&*peer, self.one_in(2)) {
                    sockopt::set_socket_linger(peer, Some(Duration::ZERO)).unwrap();
                }
                record.peer = None;
                record.lost = true;
            }
            _ => {}
        }
    }

    /// Reads until no more data comes, or at most `most` bytes, and compares.
    fn let_peer_read(&self, id: usize, record: &mut Record, most: usize) {
        let mut buffer = vec![0; most];
        let mut sum = 0;
        while record.peer_saw == PeerSaw::Nothing && sum < most {
            let Some(peer) = &mut record.peer else { return };
            match peer.read(&mut buffer[..most - sum]) {
                Ok(0) => {
                    record.peer_saw = PeerSaw::End;
                    let is_orderly = matches!(record.closed, None | Some(DisconnectReason::Closed));
                    if is_orderly && record.opened && !record.aborted && !record.is_over() {
                        assert!(
                            record.closing || record.finished,
                            "stream {id} has ended by itself"
                        );
                        assert_eq!(
                            record.peer_got, record.sent,
                            "stream {id} has ended before its output"
                        );
                    }
                }
                Ok(count) => {
                    check(id, 0, record.peer_got, &buffer[..count]);
                    record.peer_got += count;
                    sum += count;
                    assert!(
                        record.peer_got <= record.sent,
                        "stream {id} has sent more than it was given"
                    );
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => record.peer_saw = PeerSaw::Error,
            }
        }
    }

    /// Lets the peers read everything, and finish the streams that ended.
    pub(crate) fn let_peers_finish(&self) {
        for (id, record) in self.records.borrow_mut().iter_mut().enumerate() {
            self.let_peer_read(id, record, 1 << 20);
            if let (Some(peer), true) = (&record.peer, record.peer_saw != PeerSaw::Nothing) {
                peer.finish();
            }
        }
    }

    /// Checks every stream after all were closed in order and their peers have read to the end.
    pub(crate) fn verdict(&self) {
        for (id, record) in self.records.borrow().iter().enumerate() {
            assert!(record.dropped, "the handler of stream {id}: {record:?}");
            if record.peer.is_some()
                && record.closed == Some(DisconnectReason::Closed)
                && record.opened
            {
                assert!(record.hasty || record.peer_saw == PeerSaw::End, "stream {id}: {record:?}");
                assert!(
                    record.hasty || record.peer_got == record.sent,
                    "stream {id} has lost output: {record:?}"
                );
            }
            assert!(
                record.peer.is_none() || record.peer_saw != PeerSaw::Nothing,
                "stream {id} is open: {record:?}"
            );
        }
    }
}

/// Checks each callback against the known state, and performs a random action.
pub(crate) struct Handler {
    pub(crate) id: usize,
    pub(crate) world: Rc<World>,
}

/// Records that a callback is on the stack.
struct Inside<'w>(&'w World, usize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.is_inside.set(false);
        if std::thread::panicking() {
            self.0.with(self.1, |record| record.panicked = true);
        }
    }
}

impl Handler {
    fn enter(&self) -> Inside<'_> {
        assert!(!self.world.is_inside.replace(true), "rule 13: a callback inside another one");
        self.world.calls.set(self.world.calls.get() + 1);
        self.world.with(self.id, |record| {
            assert!(!record.is_over(), "stream {} is called after its end", self.id);
        });
        Inside(&self.world, self.id)
    }

    /// Handles a callback other than `on_open` and `on_close`, and updates the record.
    fn called(&self, stream: &mut Stream<'_>, what: &str, note: impl FnOnce(&mut Record)) {
        self.world.with(self.id, |record| {
            assert!(record.opened && !record.closing, "{what} of stream {}: {record:?}", self.id);
            assert_eq!(record.key, Some(stream.key()));
            note(record);
        });
    }

    fn act(&self, stream: &mut Stream<'_>) {
        for _ in 0..self.world.index(3) {
            acts::act(&self.world, stream, self.id);
        }
        self.world.maybe_panic(40);
    }
}

impl StreamHandler for Handler {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let _inside = self.enter();
        let port = stream
            .local_addr()
            .ok()
            .and_then(|address| address.socket_addr())
            .map(|address| address.port());
        self.world.with(self.id, |record| {
            assert!(!record.opened && !record.closing, "stream {}: {record:?}", self.id);
            record.opened = true;
            record.key = Some(stream.key());
            record.port = port.filter(|_| record.peer.is_none() && !record.lost);
        });
        self.act(stream);
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, mut input: Input<'_>) {
        let _inside = self.enter();
        assert!(!input.is_empty());
        self.world.received.set(self.world.received.get() + input.len() as u64);
        self.called(stream, "on_data", |record| {
            assert!(!record.paused && !record.ended, "data of stream {}: {record:?}", self.id);
            check(self.id, 1, record.got, &input);
            record.got += input.len();
        });
        self.act(stream);
        if self.world.one_in(2) {
            acts::reply(&self.world, stream, self.id, &mut input);
        } else if self.world.one_in(2) {
            acts::reply_all(&self.world, stream, self.id, input);
        }
        self.act(stream);
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        let _inside = self.enter();
        self.called(stream, "on_end", |record| {
            assert!(
                !record.ended
                    && (record.peer_finished || record.lost || record.peer_saw != PeerSaw::Nothing)
            );
            assert!(
                record.got == record.peer_wrote,
                "the end of stream {} before its data: {record:?}",
                self.id
            );
            record.ended = true;
        });
        self.act(stream);
        if self.world.one_in(2) {
            self.world.with(self.id, |record| record.closing = true);
            stream.close();
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        let _inside = self.enter();
        self.called(stream, "on_full", |record| {
            assert!(!std::mem::replace(&mut record.full, true))
        });
        assert!(stream.is_full());
        self.act(stream);
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        let _inside = self.enter();
        self.called(stream, "on_drained", |record| {
            assert!(std::mem::replace(&mut record.full, false))
        });
        assert!(!stream.is_full());
        self.act(stream);
    }

    fn on_timeout(&mut self, stream: &mut Stream<'_>, timeout: Timeout) {
        let _inside = self.enter();
        self.called(stream, "on_timeout", |record| {
            assert!(
                timeout != Timeout::Idle || !(record.paused || record.ended),
                "{timeout:?}: {record:?}"
            );
        });
        assert!(timeout != Timeout::WriteStall || stream.buffered() > 0);
        self.act(stream);
    }

    fn on_close(&mut self, key: Key, reason: DisconnectReason, mut turn: Turn<'_>) {
        let _inside = self.enter();
        self.world.with(self.id, |record| {
            record.closed = Some(reason);
            let may_be = match reason {
                DisconnectReason::Closed => record.closing || (record.finished && record.ended),
                DisconnectReason::Aborted => record.aborted,
                DisconnectReason::IdleTimeout | DisconnectReason::WriteStall => record.closing,
                DisconnectReason::Error(_) => record.lost,
                DisconnectReason::Connect(_) | DisconnectReason::ConnectTimeout => !record.opened,
                _ => false,
            };
            assert!(may_be, "stream {}: {record:?}", self.id);
            assert!(record.key.is_none_or(|known| known == key), "it is the stream's own");
            assert!(turn.stream(key).is_err(), "the key is stale");
        });
        for _ in 0..self.world.index(3) {
            acts::elsewhere(&self.world, &mut turn);
        }
        self.world.maybe_panic(10);
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        let was = self.world.with(self.id, |record| std::mem::replace(&mut record.dropped, true));
        assert!(
            !was || std::thread::panicking(),
            "the handler of stream {} is dropped twice",
            self.id
        );
        self.world.maybe_panic(20);
    }
}
