//! A service on its own reactor, with real sockets and a manual clock.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{Clock, Reactor, Turn, stream::ListenerKey};
use windlass_server::{
    CloseCode, CloseReason, Closed, Connection, ConnectionId, Handler, Hub, Message, Options,
    ServerStats, Service,
    http::{Accept, Reject, UpgradeRequest},
};

use crate::raw_client::{Frame, RawClient, upgrade};

/// Maximum real time of one step before the test counts as hung.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Ratio of the length of an answer to that of its question.
pub(crate) const AMPLIFIED: usize = 2000;

/// The message of a handler's panic.
pub(crate) const PANIC: &str = "the handler does not like this message";
const NOW: Duration = Duration::ZERO;

/// A clock that only moves when a test moves it.
#[derive(Clone)]
pub(crate) struct ManualClock(Rc<Cell<Instant>>);

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.0.get()
    }
}

/// Records what happens to connections.
#[derive(Default)]
pub(crate) struct EventLog {
    pub(crate) opened: RefCell<Vec<ConnectionId>>,
    pub(crate) closed: RefCell<Vec<(ConnectionId, CloseReason, Option<u16>)>>,
    pub(crate) messages: Cell<usize>,
    pub(crate) bytes: Cell<usize>,
    /// Number of connections whose data is not dropped yet.
    alive: Cell<usize>,
    /// Number of publications and sends that were rejected.
    pub(crate) refused: Cell<usize>,
}

impl EventLog {
    /// Clears the records.
    pub(crate) fn forget(&self) {
        self.opened.take();
        self.closed.take();
    }

    /// Number of connections whose data is not dropped yet.
    pub(crate) fn alive(&self) -> usize {
        self.alive.get()
    }

    pub(crate) fn closed(&self) -> Vec<CloseReason> {
        self.closed.borrow().iter().map(|&(_, reason, _)| reason).collect()
    }
}

/// The behaviour of a connection, chosen by its path.
pub(crate) enum Role {
    /// `/echo`: sends messages back.
    Echo,
    /// `/room`: publishes each message to all others.
    Room,
    /// `/amplify`: answers a message of up to eight bytes with [`AMPLIFIED`] times as much, and
    /// sends longer ones back.
    Amplify,
    /// `/bye`: joins the room, and is closed by its first message.
    Bye,
    /// `/panic`: panics at the first message.
    Panic,
    /// `/names`: subscribes to the topics that its messages name.
    Names,
    /// Any other path: receives, and sends nothing.
    Sink,
}

pub(crate) struct Data {
    role: Role,
    log: Rc<EventLog>,
}

impl Drop for Data {
    fn drop(&mut self) {
        self.log.alive.set(self.log.alive.get() - 1);
    }
}

pub(crate) struct TestHandler(pub(crate) Rc<EventLog>);

impl Handler for TestHandler {
    type Data = Data;

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<Data>, Reject> {
        let role = match request.path() {
            "/echo" => Role::Echo,
            "/room" => Role::Room,
            "/amplify" => Role::Amplify,
            "/bye" => Role::Bye,
            "/panic" => Role::Panic,
            "/names" => Role::Names,
            "/forbidden" => return Err(Reject::status(403).text("not you")),
            _ => Role::Sink,
        };
        self.0.alive.set(self.0.alive.get() + 1);
        Ok(Accept::new(Data { role, log: Rc::clone(&self.0) }))
    }

    fn on_open(&self, connection: &mut Connection<'_>, data: &mut Data) {
        self.0.opened.borrow_mut().push(connection.id());
        if matches!(data.role, Role::Room | Role::Bye) {
            assert!(connection.subscribe("room").unwrap());
        }
    }

    fn on_message(&self, connection: &mut Connection<'_>, data: &mut Data, message: Message<'_>) {
        self.0.messages.set(self.0.messages.get() + 1);
        self.0.bytes.set(self.0.bytes.get() + message.len());
        match data.role {
            Role::Echo => {
                if connection.reply_in_place(message).is_err() {
                    self.0.refused.set(self.0.refused.get() + 1);
                }
            }
            Role::Room => {
                connection.publish_to_others("room", message.to_out());
            }
            Role::Amplify => {
                let times = if message.len() > 8 { 1 } else { AMPLIFIED };
                if connection.send(&message.as_bytes().repeat(times)[..]).is_err() {
                    self.0.refused.set(self.0.refused.get() + 1);
                }
            }
            Role::Bye => connection.close(CloseCode::NORMAL, "bye").expect("it is open"),
            Role::Names => {
                let names = core::str::from_utf8(message.as_bytes()).expect("text");
                for name in names.split(' ') {
                    let _ = connection.subscribe(name);
                }
            }
            Role::Sink => {}
            Role::Panic => panic!("{PANIC}"),
        }
    }

    fn on_close(&self, _: &mut Hub<'_>, _: &mut Data, closed: &Closed<'_>) {
        self.0.closed.borrow_mut().push((
            closed.id,
            closed.reason,
            closed.code.map(|code| code.get()),
        ));
    }
}

pub(crate) struct Fixture {
    pub(crate) reactor: Reactor,
    pub(crate) service: Service<TestHandler>,
    pub(crate) listener: ListenerKey,
    pub(crate) clock: ManualClock,
    pub(crate) address: SocketAddr,
    pub(crate) log: Rc<EventLog>,
}

/// Options without timeouts. Tests that need one set it.
pub(crate) fn options() -> Options {
    let mut options = Options::new();
    options.ping_interval = None;
    options.idle_timeout = None;
    options.write_stall_timeout = None;
    options
}

impl Fixture {
    pub(crate) fn new(options: &Options) -> Self {
        Self::at(options, ([127, 0, 0, 1], 0).into())
    }

    pub(crate) fn at(options: &Options, address: SocketAddr) -> Self {
        let clock = ManualClock(Rc::new(Cell::new(Instant::now())));
        let reactor = Reactor::builder()
            .backend(crate::backend::chosen())
            .clock(clock.clone())
            .build()
            .expect("a reactor can be had");
        Self::of(options, address, reactor, clock)
    }

    /// Creates a fixture that uses the system's clock.
    pub(crate) fn by_the_systems_clock(options: &Options) -> Self {
        let reactor = Reactor::builder()
            .backend(crate::backend::chosen())
            .build()
            .expect("a reactor can be had");
        Self::of(
            options,
            ([127, 0, 0, 1], 0).into(),
            reactor,
            ManualClock(Rc::new(Cell::new(Instant::now()))),
        )
    }

    fn of(
        options: &Options,
        address: SocketAddr,
        mut reactor: Reactor,
        clock: ManualClock,
    ) -> Self {
        let log = Rc::new(EventLog::default());
        let mut options = options.clone();
        // A small buffer must hold the longest message with its header.
        options.limits.message_max =
            options.limits.message_max.min(options.receiver_buffer_max - 10);
        let service = Service::new(TestHandler(Rc::clone(&log)), &options, &mut reactor)
            .expect("a service can be had");
        let listener = options.listener().tcp(address).expect("there is a free port");
        let address =
            listener.local_addr().expect("it has an address").socket_addr().expect("an IP address");
        let listener = crate::tls::with_tls_if_on(listener);
        let listener = service.listen(listener, &mut reactor).expect("it can be registered");
        Self { reactor, service, listener, clock, address, log }
    }

    /// Runs turns until the closure returns a value.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(start.elapsed() < TIMEOUT, "{what}: it does not come; {:?}", self.stats());
            self.reactor.run_once(Duration::from_millis(1)).expect("the kernel works");
        }
    }

    /// Runs turns until several in a row had nothing to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..3 {
            while self.reactor.run_once(NOW).expect("the kernel works") > 0 {}
        }
    }

    /// Moves the clock, and handles everything that is due then.
    pub(crate) fn advance(&mut self, by: Duration) {
        self.clock.0.set(self.clock.0.get() + by);
        self.settle();
    }

    /// Moves the clock in small steps.
    pub(crate) fn advance_time(&mut self, time: Duration) {
        let step = Duration::from_millis(100);
        let mut passed = Duration::ZERO;
        while passed < time {
            self.advance(step.min(time - passed));
            passed += step;
        }
    }

    pub(crate) fn stats(&self) -> ServerStats {
        self.service.stats()
    }

    /// Connects a client and completes its handshake.
    pub(crate) fn open(&mut self, path: &str) -> RawClient {
        let client = RawClient::connect(self.address);
        self.handshake(client, path)
    }

    /// Completes the handshake.
    pub(crate) fn handshake(&mut self, mut client: RawClient, path: &str) -> RawClient {
        client.send(&upgrade(path, ""));
        let head = self.head(&mut client);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        client
    }

    pub(crate) fn head(&mut self, client: &mut RawClient) -> String {
        self.until("a response", |_| client.head())
    }

    pub(crate) fn frame(&mut self, client: &mut RawClient) -> Frame {
        self.until("a frame", |_| client.frame())
    }

    /// Waits for the end of the connection, before which nothing more may arrive. Returns whether
    /// it was orderly. Drops the client.
    pub(crate) fn closes_in_order(&mut self, mut client: RawClient) -> bool {
        self.until("the end", |_| client.end()).is_ok()
    }

    /// Returns everything that arrives up to the end of the connection, orderly or not. Drops the
    /// client.
    pub(crate) fn read_to_end(&mut self, mut client: RawClient) -> Vec<u8> {
        self.until("the end", |_| client.has_ended().then_some(()));
        client.received().to_vec()
    }

    /// Returns whether the connection ends in order, whatever arrives before. Drops the client.
    pub(crate) fn closes_in_order_after_output(&mut self, mut client: RawClient) -> bool {
        self.until("the end", |_| {
            client.forget();
            client.end()
        })
        .is_ok()
    }

    /// Checks that this connection works. Then everything that was sent before has been processed.
    pub(crate) fn exchange(&mut self, client: &mut RawClient, payload: &[u8]) {
        client.send_frame(crate::raw_client::BINARY, payload);
        let frame = self.frame(client);
        assert!(
            frame == Frame::new(crate::raw_client::BINARY, payload),
            "{} other bytes",
            frame.payload.len()
        );
    }

    /// Calls the closure with a hub, in a turn.
    pub(crate) fn with_hub<T: 'static>(
        &mut self,
        mut run: impl FnMut(&mut Hub<'_>) -> T + 'static,
    ) -> T {
        let (done, service) = (Rc::new(Cell::new(None)), self.service.clone());
        let result = Rc::clone(&done);
        let now = move |mut turn: Turn<'_>| result.set(Some(run(&mut service.hub(&mut turn))));
        self.reactor.after(Duration::ZERO, now).expect("there is room for a timer");
        self.until("a turn", |_| done.take())
    }

    /// Begins a drain. The returned cell is true once it is complete.
    pub(crate) fn drain(&mut self, deadline: Duration) -> Rc<Cell<bool>> {
        let (is_over, service) = (Rc::new(Cell::new(false)), self.service.clone());
        let over = Rc::clone(&is_over);
        let now = move |mut turn: Turn<'_>| {
            let over = Rc::clone(&over);
            service.drain(deadline, &mut turn, move |_| {
                assert!(!over.replace(true), "it is over once")
            });
        };
        self.reactor.after(Duration::ZERO, now).expect("there is room for a timer");
        self.until("the drain begins", |fixture| fixture.service.is_draining().then_some(()));
        is_over
    }

    pub(crate) fn buffered(&mut self, id: ConnectionId) -> usize {
        self.with_hub(move |hub| hub.buffered(id))
    }

    /// Checks that a message from one member of the room reaches another.
    pub(crate) fn exchange_room(&mut self, speaker: &mut RawClient, listener: &mut RawClient) {
        speaker.send_frame(crate::raw_client::TEXT, "do you hear me?");
        assert_eq!(self.frame(listener).text(), "do you hear me?");
    }

    /// Returns the ID of the connection that was opened last.
    pub(crate) fn last_opened(&self) -> ConnectionId {
        *self.log.opened.borrow().last().expect("one was opened")
    }

    /// Waits until the service has this number of connections.
    pub(crate) fn until_connections(&mut self, count: u64) {
        self.until("connections come and go", |fixture| {
            (fixture.stats().connections == count).then_some(())
        });
    }

    /// Checks that no connection is left, that each opened one was closed once, and that its data
    /// was dropped.
    pub(crate) fn expect_empty(&mut self) {
        self.until_connections(0);
        self.settle();
        let mut opened = self.log.opened.borrow().clone();
        let mut closed: Vec<ConnectionId> =
            self.log.closed.borrow().iter().map(|&(id, ..)| id).collect();
        opened.sort_unstable_by_key(|id| id.to_bits());
        closed.sort_unstable_by_key(|id| id.to_bits());
        assert_eq!(opened, closed, "each connection is closed once");
        assert_eq!(self.log.alive.get(), 0, "the data of each is dropped");
        let stats = self.stats();
        assert_eq!((stats.opened, stats.topics), (stats.closed, 0));
    }
}

/// A reproducible pseudo-random generator (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}
