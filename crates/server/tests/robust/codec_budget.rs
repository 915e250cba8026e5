//! The work that one turn of the loop spends on compression, and the order in which connections
//! wait for the next turn. The tests use counts, not times.

use std::{
    cell::{Cell, RefCell},
    io::{ErrorKind, Read as _, Write as _},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{Clock, Reactor, Turn};
use windlass_server::{
    CloseCode, CloseReason, Closed, Connection, ConnectionId, Handler, Hub, Message, Options,
    Prepared, ServerStats, Service, Upgraded,
    http::{Accept, Reject, UpgradeRequest},
};
use windlass_ws::deflate::{Agreement, Codec, CodecPool, DeflateConfig};

use crate::{
    own_process::{is_own_process, peak_of},
    raw_client::{BINARY, CLOSE, COMPRESSED, TEXT, masked},
};

const LEN: usize = 256 << 10;

/// The way in which a connection handles messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Sink,
    Echo,
    /// Publishes them to the room.
    Publish,
    /// Subscribes to the room.
    Listen,
    /// Closes the connection at the first message.
    Bye,
    /// Panics at the first message.
    Panic,
    /// Pauses reading at the first message.
    Pause,
}

/// The connection of each message, in the order of processing.
#[derive(Default)]
struct MessageLog {
    messages: RefCell<Vec<usize>>,
    closed: RefCell<Vec<(usize, CloseReason)>>,
}

struct TestHandler(Rc<MessageLog>);

impl Handler for TestHandler {
    type Data = (usize, Role);

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<Self::Data>, Reject> {
        unreachable!("all are adopted")
    }

    fn on_open(&self, connection: &mut Connection<'_>, (_, role): &mut Self::Data) {
        if *role == Role::Listen {
            connection.subscribe("room").expect("it is open");
        }
    }

    fn on_message(
        &self,
        connection: &mut Connection<'_>,
        (index, role): &mut Self::Data,
        message: Message<'_>,
    ) {
        self.0.messages.borrow_mut().push(*index);
        match role {
            Role::Sink | Role::Listen => {}
            Role::Echo => connection.reply_in_place(message).expect("it is open and reads"),
            Role::Publish => _ = connection.publish_to_others("room", message.to_out()),
            Role::Bye => connection.close(CloseCode::NORMAL, "").expect("it is open"),
            Role::Panic => panic!("this one panics"),
            Role::Pause => {
                *role = Role::Sink;
                connection.pause();
            }
        }
    }

    fn on_close(&self, _: &mut Hub<'_>, (index, _): &mut Self::Data, closed: &Closed<'_>) {
        self.0.closed.borrow_mut().push((*index, closed.reason));
    }
}

#[derive(Clone)]
struct ManualClock(Rc<Cell<Instant>>);

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.0.get()
    }
}

struct Fixture {
    reactor: Reactor,
    service: Service<TestHandler>,
    log: Rc<MessageLog>,
    clock: ManualClock,
    budgets: (u64, u64),
    ids: Vec<ConnectionId>,
}

fn agreement() -> Agreement {
    let mut agreement = Agreement::DEFAULT;
    (agreement.server_no_context_takeover, agreement.client_no_context_takeover) = (true, true);
    agreement
}

impl Fixture {
    fn new(configure: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::new();
        options.deflate = Some(DeflateConfig::DEFAULT);
        (options.ping_interval, options.idle_timeout, options.write_stall_timeout) =
            (None, None, None);
        options.receiver_buffer_max = 64 << 20;
        configure(&mut options);
        let clock = ManualClock(Rc::new(Cell::new(Instant::now())));
        let backend = crate::backend::chosen();
        let mut reactor = Reactor::builder()
            .backend(backend)
            .clock(clock.clone())
            .build()
            .expect("it can be had");
        let log = Rc::new(MessageLog::default());
        let service = Service::new(TestHandler(Rc::clone(&log)), &options, &mut reactor)
            .expect("it can be had");
        let budgets =
            (options.inflate_bytes_per_turn as u64, options.deflate_bytes_per_turn as u64);
        Self { reactor, service, log, clock, budgets, ids: Vec::new() }
    }

    /// Opens a connection with this role, with or without compression.
    fn open(&mut self, role: Role, has_deflate: bool) -> UnixStream {
        let (ours, client) = UnixStream::pair().expect("there are descriptors");
        client.set_nonblocking(true).expect("the option can be set");
        self.adopt(ours, role, has_deflate);
        client
    }

    /// Opens a connection that is reset when the client is dropped: the client has not read a byte
    /// then (`unix_release_sock` in the kernel's `net/unix/af_unix.c`).
    fn open_for_reset(&mut self, role: Role) -> UnixStream {
        let (mut ours, client) = UnixStream::pair().expect("there are descriptors");
        ours.write_all(b"?").expect("the kernel takes it");
        self.adopt(ours, role, true);
        client
    }

    fn adopt(&mut self, ours: UnixStream, role: Role, has_deflate: bool) {
        let upgraded = Upgraded::new((self.ids.len(), role)).deflate(has_deflate.then(agreement));
        let id = self
            .service
            .adopt(ours, Vec::new(), upgraded, &mut self.reactor)
            .expect("there is room");
        self.ids.push(id);
        self.turn();
    }

    /// Calls the closure with a hub, in the next turn.
    fn with_hub(&mut self, run: impl FnOnce(&mut Hub<'_>) + 'static) {
        let (service, mut run) = (self.service.clone(), Some(run));
        // A timer's closure may be called several times, so this one takes the closure out.
        let now = move |mut turn: Turn<'_>| {
            if let Some(run) = run.take() {
                run(&mut service.hub(&mut turn));
            }
        };
        self.reactor.after(Duration::ZERO, now).expect("there is room for a timer");
        self.clock.0.set(self.clock.0.get() + Duration::from_millis(1));
    }

    fn stats(&self) -> ServerStats {
        self.service.stats()
    }

    /// Runs one turn. Returns the numbers of bytes inflated and deflated in it.
    fn turn(&mut self) -> (u64, u64) {
        let before = self.stats();
        self.reactor.run_once(Duration::ZERO).expect("the kernel works");
        let after = self.stats();
        (after.bytes_inflated - before.bytes_inflated, after.bytes_deflated - before.bytes_deflated)
    }

    /// Runs turns until the condition holds. Checks that none exceeds a budget by more than one
    /// message. Returns the number of turns.
    fn until(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) -> usize {
        let (inflate, deflate) = self.budgets;
        for turns in 0..5000 {
            if is_done(self) {
                return turns;
            }
            let (inflated, deflated) = self.turn();
            // The bound is strict, because a message starts only while some of the budget is left.
            assert!(inflated < inflate + LEN as u64, "{inflated} bytes inflated in turn {turns}");
            assert!(deflated < deflate + LEN as u64, "{deflated} bytes deflated in turn {turns}");
        }
        panic!("it does not come; {:?}", self.stats());
    }

    /// Number of messages processed.
    fn seen(&self) -> usize {
        self.log.messages.borrow().len()
    }

    fn of(&self, index: usize) -> usize {
        self.log.messages.borrow().iter().filter(|from| **from == index).count()
    }
}

/// Returns a client's frame with a compressed message.
fn compressed(payload: &[u8]) -> Vec<u8> {
    compressed_from(payload, DeflateConfig::DEFAULT.threshold)
}

fn compressed_from(payload: &[u8], threshold: usize) -> Vec<u8> {
    let mut config = DeflateConfig::DEFAULT;
    config.threshold = threshold;
    let mut codec = Codec::new(false, &agreement(), &config);
    let mut out = Vec::new();
    assert!(codec.compress(&mut CodecPool::new(), payload, &mut out), "it becomes shorter");
    masked(BINARY | COMPRESSED, &out)
}

fn bomb() -> Vec<u8> {
    compressed(&vec![0; LEN])
}

/// Reads what has arrived. The other end may have closed the connection.
fn read(client: &mut UnixStream) -> Vec<u8> {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match client.read(&mut buffer) {
            Ok(0) => return received,
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return received,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
pub(crate) fn a_turn_inflates_its_budget_and_one_message_at_most() {
    const CLIENTS: usize = 12;
    const EACH: usize = 5;
    for budget in [1, 300 << 10, 2 << 20] {
        let mut fixture = Fixture::new(|options| options.inflate_bytes_per_turn = budget);
        let mut clients: Vec<UnixStream> =
            (0..CLIENTS).map(|_| fixture.open(Role::Sink, true)).collect();
        for client in &mut clients {
            client.write_all(&bomb().repeat(EACH)).expect("the kernel takes it");
        }
        let turns = fixture.until(|fixture| fixture.seen() == CLIENTS * EACH);
        let stats = fixture.stats();
        assert_eq!(stats.bytes_inflated, (CLIENTS * EACH * LEN) as u64);
        assert!(
            stats.inflated_per_turn_most < (budget + LEN) as u64
                && stats.inflated_per_turn_most >= LEN as u64
        );
        assert!(stats.codec_waits > 0);
        // No turns are wasted.
        let per_turn = budget.div_ceil(LEN);
        // The queue is served in every second turn.
        assert!(
            turns <= 2 * (CLIENTS * EACH).div_ceil(per_turn) + 4,
            "{turns} turns with {per_turn} messages each"
        );
    }
}

#[test]
pub(crate) fn the_codec_queue_is_served_round_robin() {
    const CLIENTS: usize = 10;
    let mut fixture = Fixture::new(|options| options.inflate_bytes_per_turn = 1);
    let mut clients: Vec<UnixStream> =
        (0..CLIENTS).map(|_| fixture.open(Role::Sink, true)).collect();
    // The first client has many more messages than the others, and sends them first.
    clients[0].write_all(&bomb().repeat(50)).expect("the kernel takes it");
    fixture.turn();
    for client in &mut clients[1..] {
        client.write_all(&bomb().repeat(3)).expect("the kernel takes it");
    }
    fixture.until(|fixture| (1..CLIENTS).all(|index| fixture.of(index) == 3));
    assert!(fixture.of(0) <= 5, "{} messages of the first while the others had 3", fixture.of(0));
    fixture.until(|fixture| fixture.seen() == 50 + 3 * (CLIENTS - 1));
}

#[test]
pub(crate) fn a_turn_deflates_its_budget_and_one_message_at_most() {
    const CLIENTS: usize = 6;
    for budget in [1, 100 << 10, 256 << 10] {
        let mut fixture = Fixture::new(|options| options.deflate_bytes_per_turn = budget);
        let mut clients: Vec<UnixStream> =
            (0..CLIENTS).map(|_| fixture.open(Role::Echo, true)).collect();
        let text = "the quick brown fox ".repeat(1000);
        for client in &mut clients {
            // Messages that arrive uncompressed are compressed in the reply.
            client
                .write_all(&masked(TEXT, text.as_bytes()).repeat(5))
                .expect("the kernel takes it");
        }
        let mut received = vec![Vec::new(); CLIENTS];
        fixture.until(|fixture| {
            for (client, received) in clients.iter_mut().zip(&mut received) {
                received.extend(read(client));
            }
            fixture.seen() == 5 * CLIENTS
        });
        let stats = fixture.stats();
        assert_eq!(stats.bytes_deflated, (5 * CLIENTS * text.len()) as u64);
        assert!(stats.deflated_per_turn_most < (budget + text.len()) as u64);
        fixture.turn();
        for (client, mut received) in clients.iter_mut().zip(received) {
            received.extend(read(client));
            assert_eq!(received[0], TEXT | COMPRESSED);
            let one = received.len() / 5;
            assert!(
                received.chunks(one).all(|frame| frame == &received[..one]),
                "five times the same"
            );
        }
    }
}

#[test]
pub(crate) fn connections_without_compression_do_not_wait() {
    let mut fixture = Fixture::new(|options| options.inflate_bytes_per_turn = 1);
    let mut load_clients: Vec<UnixStream> =
        (0..10).map(|_| fixture.open(Role::Echo, true)).collect();
    let mut light_client = fixture.open(Role::Echo, false);
    for client in &mut load_clients {
        client.write_all(&bomb().repeat(5)).expect("the kernel takes it");
    }
    fixture.turn();
    for round in 0..20_u8 {
        light_client.write_all(&masked(BINARY, &[round; 20])).expect("the kernel takes it");
        fixture.turn();
        // By completion the echo leaves at the beginning of the next wait.
        let mut echo = read(&mut light_client);
        if echo.is_empty() {
            fixture.turn();
            echo = read(&mut light_client);
        }
        assert_eq!(echo, [&[BINARY, 20][..], &[round; 20]].concat());
    }
    assert!(fixture.seen() < 20 + 50, "the others have not been done with by then");
}

#[test]
pub(crate) fn short_messages_of_the_others_do_not_wait_though_they_are_compressed() {
    let mut fixture = Fixture::new(|options| options.inflate_bytes_per_turn = LEN);
    let mut load_clients: Vec<UnixStream> =
        (0..8).map(|_| fixture.open(Role::Sink, true)).collect();
    let mut light_clients: Vec<UnixStream> =
        (0..3).map(|_| fixture.open(Role::Echo, true)).collect();
    let said = b"hello, hello, hello, hello, hello";
    let short = compressed_from(said, 1);
    for client in &mut load_clients {
        client.write_all(&bomb().repeat(40)).expect("the kernel takes it");
    }
    fixture.until(|fixture| fixture.seen() > 30);
    for _ in 0..10 {
        for light_client in &mut light_clients {
            light_client.write_all(&short).expect("the kernel takes it");
        }
        let before = fixture.of(8) + fixture.of(9) + fixture.of(10);
        let turns =
            fixture.until(|fixture| fixture.of(8) + fixture.of(9) + fixture.of(10) == before + 3);
        assert!(turns <= 2, "{turns} turns, while each of the others waits for eight");
    }
    // A connection that uses the codecs heavily is no longer light.
    light_clients[0].write_all(&bomb()).expect("the kernel takes it");
    fixture.until(|fixture| fixture.seen() == 8 * 40 + 31);
}

#[test]
fn a_connection_in_the_codec_queue_holds_one_receive() {
    if !is_own_process("codec_budget::a_connection_in_the_codec_queue_holds_one_receive") {
        return;
    }
    const CLIENTS: usize = 20;
    let mut fixture = Fixture::new(|options| options.inflate_bytes_per_turn = 1);
    let mut clients: Vec<UnixStream> =
        (0..CLIENTS).map(|_| fixture.open(Role::Sink, true)).collect();
    // Little input produces much output here, so the budget limits the work and not the receive
    // size.
    let bytes = compressed(&vec![0; 2000]).repeat(3000);
    let peak = peak_of(|| {
        for _ in 0..30 {
            for client in &mut clients {
                while client.write(&bytes).is_ok() {}
            }
            fixture.turn();
        }
    });
    assert!(fixture.seen() <= 31, "{} messages in 30 turns", fixture.seen());
    // A receive has at most 64 KiB. By completion the kernel may have received more before it was
    // told to stop.
    assert!(peak < CLIENTS * (150 << 10) + (2 << 20), "{peak} bytes");
    assert!(
        clients[0].write(&bytes).is_err(),
        "the kernel's buffer is full, and the peer has to wait"
    );
}

#[test]
pub(crate) fn connections_that_end_in_the_codec_queue_do_not_block_others() {
    let mut fixture = Fixture::new(|options| options.inflate_bytes_per_turn = 1);
    let roles =
        [Role::Sink, Role::Sink, Role::Panic, Role::Bye, Role::Pause, Role::Sink, Role::Sink];
    let mut clients: Vec<UnixStream> =
        roles.iter().map(|role| fixture.open_for_reset(*role)).collect();
    clients[0].write_all(&bomb().repeat(4)).expect("the kernel takes it");
    while fixture.seen() == 0 {
        fixture.turn();
    }
    for client in &mut clients[1..] {
        client.write_all(&bomb().repeat(4)).expect("the kernel takes it");
    }
    // All of them are in the queue now.
    fixture.turn();
    // Two connections in the queue disconnect, including the first one.
    clients.drain(..2).for_each(drop);
    let mut panics = 0;
    for _ in 0..100 {
        panics += u32::from(catch_unwind(AssertUnwindSafe(|| fixture.turn())).is_err());
    }
    assert_eq!(panics, 1);
    assert_eq!(
        (fixture.of(2), fixture.of(3), fixture.of(4)),
        (1, 1, 1),
        "one message, then the panic, the close and the pause"
    );
    assert_eq!((fixture.of(5), fixture.of(6)), (4, 4), "the others are served");
    assert!(fixture.of(0) + fixture.of(1) < 8, "these had something left");
    let paused = fixture.ids[4];
    fixture.with_hub(move |hub| assert!(hub.resume(paused)));
    fixture.until(|fixture| fixture.of(4) == 4);
}

#[test]
pub(crate) fn a_connection_paused_in_the_codec_queue_keeps_its_input() {
    let mut fixture = Fixture::new(|options| options.inflate_bytes_per_turn = 1);
    let mut clients: Vec<UnixStream> = (0..4).map(|_| fixture.open(Role::Sink, true)).collect();
    for client in &mut clients {
        client.write_all(&bomb().repeat(4)).expect("the kernel takes it");
    }
    fixture.until(|fixture| fixture.seen() == 4);
    let id = fixture.ids[1];
    fixture.with_hub(move |hub| assert!(hub.pause(id)));
    fixture.until(|fixture| [0, 2, 3].iter().all(|index| fixture.of(*index) == 4));
    let before = fixture.of(1);
    for _ in 0..10 {
        assert_eq!(fixture.turn(), (0, 0), "nobody is served");
    }
    assert!(before < 4 && fixture.of(1) == before);
    fixture.with_hub(move |hub| assert!(hub.resume(id)));
    fixture.until(|fixture| fixture.of(1) == 4);
}

#[test]
pub(crate) fn input_of_a_closing_connection_waits_for_the_codecs_too() {
    let mut fixture = Fixture::new(|options| options.inflate_bytes_per_turn = 1);
    let mut clients: Vec<UnixStream> = (0..4).map(|_| fixture.open(Role::Bye, true)).collect();
    for client in &mut clients {
        client
            .write_all(&[bomb().repeat(6), masked(CLOSE, &1000_u16.to_be_bytes())].concat())
            .expect("it is taken");
    }
    fixture.until(|fixture| fixture.log.closed.borrow().len() == 4);
    assert_eq!(
        fixture.stats().bytes_inflated,
        4 * 6 * LEN as u64,
        "what comes after is passed over, and counts"
    );
    assert_eq!(fixture.seen(), 4);
    assert!(fixture.log.closed.borrow().iter().all(|(_, reason)| *reason == CloseReason::Local));
}

#[test]
pub(crate) fn drains_and_timeouts_do_not_disturb_the_codec_queue() {
    const CLIENTS: usize = 40;
    let mut fixture = Fixture::new(|options| {
        options.inflate_bytes_per_turn = 1;
        options.idle_timeout = Some(Duration::from_secs(1));
    });
    let mut clients: Vec<UnixStream> =
        (0..CLIENTS).map(|_| fixture.open(Role::Sink, true)).collect();
    for client in &mut clients {
        client.write_all(&bomb().repeat(8)).expect("the kernel takes it");
    }
    fixture.until(|fixture| {
        // Each connection waits longer between two messages than the idle timeout.
        fixture.clock.0.set(fixture.clock.0.get() + Duration::from_millis(100));
        fixture.seen() == 3 * CLIENTS
    });
    assert!(fixture.log.closed.borrow().is_empty());
    let service = fixture.service.clone();
    fixture.with_hub(move |hub| service.drain(Duration::from_secs(1000), &mut hub.turn(), |_| {}));
    for client in &mut clients {
        client.write_all(&masked(CLOSE, &1000_u16.to_be_bytes())).expect("the kernel takes it");
    }
    fixture.until(|fixture| fixture.log.closed.borrow().len() == CLIENTS);
}

#[test]
pub(crate) fn publications_count_and_publishers_wait_when_they_have_spent_the_budget() {
    const EACH: usize = 40;
    let mut fixture = Fixture::new(|options| options.deflate_bytes_per_turn = 64 << 10);
    let mut listener = fixture.open(Role::Listen, true);
    let mut publishers: Vec<UnixStream> =
        (0..12).map(|_| fixture.open(Role::Publish, false)).collect();
    let payload = b"once upon a time there was ".repeat(50);
    for client in &mut publishers {
        client.write_all(&masked(BINARY, &payload).repeat(EACH)).expect("the kernel takes it");
    }
    let mut received = 0;
    fixture.until(|fixture| {
        received += read(&mut listener).len();
        fixture.seen() == 12 * EACH
    });
    fixture.turn();
    received += read(&mut listener).len();
    assert!(received > 0);
    let stats = fixture.stats();
    assert_eq!(stats.bytes_deflated, (12 * EACH * payload.len()) as u64, "once for all receivers");
    // Each publisher sends one message after the budget is spent, and 64 KiB are delivered
    // together.
    let most = (64 << 10) + (64 << 10) + 12 * payload.len() as u64;
    assert!(
        stats.deflated_per_turn_most <= most,
        "{} bytes in a turn",
        stats.deflated_per_turn_most
    );
    // A prepared message is compressed once, and counts once.
    let prepared = Prepared::new(&payload[..]);
    let id = fixture.ids[0];
    fixture.with_hub(move |hub| {
        (0..3).for_each(|_| hub.send_prepared(id, &prepared).expect("it is open"))
    });
    for _ in 0..3 {
        fixture.turn();
    }
    assert_eq!(fixture.stats().bytes_deflated - stats.bytes_deflated, payload.len() as u64);
}
