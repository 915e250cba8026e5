//! A service on a reactor with a manual clock, and clients on the same thread. Nothing here depends
//! on real time.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{Reactor, Turn, stream::Address};
use windlass_server::{
    CloseCode, Closed, Connection, ConnectionId, Handler, Hub, Limit, Message, Options, Rejected,
    Service, UpgradeDecision, UpgradeTicket,
    http::{Accept, Reject, UpgradeRequest},
};
use windlass_ws::deflate::DeflateConfig;

pub(crate) use crate::client::{Client, ClientEvent, text};

/// Maximum real time that a test waits for an expected event before it fails.
const TIMEOUT: Duration = Duration::from_secs(20);

type OnEvent = Box<dyn Fn(&mut Connection<'_>, &mut ConnData)>;
type OnMessage = Box<dyn Fn(&mut Connection<'_>, &mut ConnData, Message<'_>)>;
type OnClose = Box<dyn Fn(&mut Hub<'_>, &mut ConnData, &Closed<'_>)>;
type OnStart = Box<dyn Fn(&mut Hub<'_>)>;
type Decide = Box<
    dyn Fn(
        &UpgradeRequest<'_>,
        UpgradeTicket<'_, ConnData>,
    ) -> Result<UpgradeDecision<ConnData>, Reject>,
>;
type OnUpgrade = Box<dyn Fn(&UpgradeRequest<'_>) -> Result<Accept<ConnData>, Reject>>;

/// The data of a test's connections.
#[derive(Default)]
pub(crate) struct ConnData {
    pub(crate) path: String,
    /// Called when the data is dropped.
    pub(crate) on_drop: Option<Box<dyn FnOnce()>>,
}

impl Drop for ConnData {
    fn drop(&mut self) {
        if let Some(on_drop) = self.on_drop.take() {
            on_drop();
        }
    }
}

/// Address, status and reason of each rejected client.
pub(crate) type RejectionLog = Rc<RefCell<Vec<(Address, Option<u16>, String)>>>;

/// A handler made of closures. It records its calls.
#[derive(Default)]
pub(crate) struct TestHandler {
    pub(crate) start: Option<OnStart>,
    pub(crate) upgrade: Option<OnUpgrade>,
    pub(crate) decide: Option<Decide>,
    pub(crate) open: Option<OnEvent>,
    pub(crate) message: Option<OnMessage>,
    pub(crate) ping: Option<OnPing>,
    pub(crate) drain: Option<OnEvent>,
    pub(crate) close: Option<OnClose>,
    pub(crate) events: Rc<RefCell<Vec<String>>>,
    pub(crate) rejected: RejectionLog,
    /// The limit of each rejected client.
    pub(crate) limits: Rc<RefCell<Vec<Option<Limit>>>>,
    /// The IDs of all opened connections, in order.
    pub(crate) ids: Rc<RefCell<Vec<ConnectionId>>>,
}

type OnPing = Box<dyn Fn(&mut Connection<'_>, &mut ConnData, &[u8])>;

impl TestHandler {
    pub(crate) fn echo() -> Self {
        Self::on_message(|connection, _, message| _ = connection.reply_in_place(message))
    }

    pub(crate) fn on_message(
        act: impl Fn(&mut Connection<'_>, &mut ConnData, Message<'_>) + 'static,
    ) -> Self {
        Self { message: Some(Box::new(act)), ..Self::default() }
    }

    pub(crate) fn on_start(mut self, act: impl Fn(&mut Hub<'_>) + 'static) -> Self {
        self.start = Some(Box::new(act));
        self
    }

    pub(crate) fn on_open(
        mut self,
        act: impl Fn(&mut Connection<'_>, &mut ConnData) + 'static,
    ) -> Self {
        self.open = Some(Box::new(act));
        self
    }

    pub(crate) fn on_drain(
        mut self,
        act: impl Fn(&mut Connection<'_>, &mut ConnData) + 'static,
    ) -> Self {
        self.drain = Some(Box::new(act));
        self
    }

    pub(crate) fn on_close(
        mut self,
        act: impl Fn(&mut Hub<'_>, &mut ConnData, &Closed<'_>) + 'static,
    ) -> Self {
        self.close = Some(Box::new(act));
        self
    }

    pub(crate) fn on_upgrade(
        mut self,
        act: impl Fn(&UpgradeRequest<'_>) -> Result<Accept<ConnData>, Reject> + 'static,
    ) -> Self {
        self.upgrade = Some(Box::new(act));
        self
    }

    fn record(&self, what: impl Into<String>) {
        self.events.borrow_mut().push(what.into());
    }
}

impl Handler for TestHandler {
    type Data = ConnData;

    fn on_start(&self, hub: &mut Hub<'_>) {
        if let Some(act) = &self.start {
            self.record("start");
            act(hub);
        }
    }

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<ConnData>, Reject> {
        match &self.upgrade {
            Some(act) => act(request),
            None => Ok(Accept::new(ConnData { path: request.path().to_owned(), on_drop: None })),
        }
    }

    fn decide_upgrade(
        &self,
        request: &UpgradeRequest<'_>,
        ticket: UpgradeTicket<'_, ConnData>,
    ) -> Result<UpgradeDecision<ConnData>, Reject> {
        match &self.decide {
            Some(act) => act(request, ticket),
            None => self.on_upgrade(request).map(UpgradeDecision::Accept),
        }
    }

    fn on_rejected(&self, rejected: &Rejected<'_>) {
        self.limits.borrow_mut().push(rejected.limit);
        self.rejected.borrow_mut().push((
            rejected.peer.clone(),
            rejected.status,
            rejected.reason.to_owned(),
        ));
    }

    fn on_open(&self, connection: &mut Connection<'_>, data: &mut ConnData) {
        self.record(format!("open {}", data.path));
        self.ids.borrow_mut().push(connection.id());
        if let Some(act) = &self.open {
            act(connection, data);
        }
    }

    fn on_message(
        &self,
        connection: &mut Connection<'_>,
        data: &mut ConnData,
        message: Message<'_>,
    ) {
        if let Some(act) = &self.message {
            act(connection, data, message);
        }
    }

    fn on_ping(&self, connection: &mut Connection<'_>, data: &mut ConnData, payload: &[u8]) {
        self.record(format!("ping {}", payload.escape_ascii()));
        if let Some(act) = &self.ping {
            act(connection, data, payload);
        }
    }

    fn on_pong(&self, _: &mut Connection<'_>, _: &mut ConnData, payload: &[u8]) {
        self.record(format!("pong {}", payload.escape_ascii()));
    }

    fn on_drain(&self, connection: &mut Connection<'_>, data: &mut ConnData) {
        self.record("drain");
        match &self.drain {
            Some(act) => act(connection, data),
            None => _ = connection.close(CloseCode::GOING_AWAY, ""),
        }
    }

    fn on_close(&self, hub: &mut Hub<'_>, data: &mut ConnData, closed: &Closed<'_>) {
        let code = closed.code.map_or(String::new(), |code| format!(" {code} {:?}", closed.text));
        self.record(format!("close {} {:?}{code}", data.path, closed.reason));
        if let Some(act) = &self.close {
            act(hub, data, closed);
        }
    }
}

/// A service with its reactor, listener and clock.
pub(crate) struct Fixture {
    pub(crate) reactor: Reactor,
    pub(crate) service: Service<TestHandler>,
    pub(crate) address: SocketAddr,
    pub(crate) events: Rc<RefCell<Vec<String>>>,
    ids: Rc<RefCell<Vec<ConnectionId>>>,
    clock: Rc<Cell<Instant>>,
}

impl Fixture {
    pub(crate) fn new(handler: TestHandler) -> Self {
        Self::with(handler, |_| {})
    }

    pub(crate) fn with(handler: TestHandler, configure: impl FnOnce(&mut Options)) -> Self {
        let clock = Rc::new(Cell::new(Instant::now()));
        let time = Rc::clone(&clock);
        let mut reactor = Reactor::builder()
            .backend(crate::backend::chosen())
            .clock(move || time.get())
            .build()
            .unwrap();
        let mut options = Options::new();
        configure(&mut options);
        // A small buffer must hold the longest message with its header.
        options.limits.message_max =
            options.limits.message_max.min(options.receiver_buffer_max - 10);
        let (events, ids) = (Rc::clone(&handler.events), Rc::clone(&handler.ids));
        let listener = options.listener().tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap().socket_addr().unwrap();
        let service = Service::new(handler, &options, &mut reactor).unwrap();
        service.listen(listener, &mut reactor).unwrap();
        Self { reactor, service, address, events, ids, clock }
    }

    /// Moves the clock without running a turn.
    pub(crate) fn move_clock(&self, by: Duration) {
        self.clock.set(self.clock.get() + by);
    }

    /// Advances the clock in small steps with a turn after each, so that every timer fires in time.
    pub(crate) fn advance_time(&mut self, time: Duration) {
        let step = Duration::from_millis(40);
        let mut left = time;
        while left > Duration::ZERO {
            let step = left.min(step);
            self.clock.set(self.clock.get() + step);
            left -= step;
            self.turn();
        }
    }

    /// Advances the clock in one step, as if the loop had been blocked.
    pub(crate) fn jump_clock(&mut self, time: Duration) {
        self.clock.set(self.clock.get() + time);
    }

    /// Sets the clock back.
    pub(crate) fn turn_clock_back(&mut self, time: Duration) {
        self.clock.set(self.clock.get() - time);
    }

    pub(crate) fn turn(&mut self) {
        self.reactor.run_once(Duration::ZERO).unwrap();
    }

    /// Runs turns until the closure returns a value.
    #[track_caller]
    pub(crate) fn until<T>(&mut self, mut there: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            self.turn();
            if let Some(there) = there(self) {
                return there;
            }
            assert!(
                begin.elapsed() < TIMEOUT,
                "it did not come in time; notes: {:?}",
                self.events.borrow()
            );
        }
    }

    /// Runs turns until the service has received this many more bytes.
    #[track_caller]
    pub(crate) fn until_received(&mut self, bytes: usize) {
        let end = self.service.stats().wire_received + bytes as u64;
        self.until(|fixture| (fixture.service.stats().wire_received == end).then_some(()));
    }

    /// Runs enough turns for all pending events to be handled.
    pub(crate) fn settle(&mut self) {
        for _ in 0..8 {
            self.turn();
        }
    }

    /// Calls the closure with a hub, in a turn.
    pub(crate) fn with_hub<T: 'static>(
        &mut self,
        act: impl FnOnce(&mut Hub<'_>) -> T + 'static,
    ) -> T {
        let service = self.service.clone();
        let result = Rc::new(RefCell::new(None));
        let place = Rc::clone(&result);
        let deferred = move |mut turn: Turn<'_>| {
            let done = act(&mut service.hub(&mut turn));
            *place.borrow_mut() = Some(done);
        };
        assert!(self.reactor.defer(deferred).is_ok());
        self.turn();
        let done = result.borrow_mut().take();
        done.expect("deferred closures run in the turn")
    }

    /// Connects a client and completes its handshake.
    #[track_caller]
    pub(crate) fn connect(&mut self, path: &str) -> Client {
        self.connect_with(path, None)
    }

    #[track_caller]
    pub(crate) fn connect_with(&mut self, path: &str, deflate: Option<&DeflateConfig>) -> Client {
        let mut client = Client::begin(self.address, path, deflate);
        self.until(|_| client.is_open().then_some(()));
        client
    }

    /// Returns the IDs of all opened connections, in order.
    pub(crate) fn ids(&self) -> Vec<ConnectionId> {
        self.ids.borrow().clone()
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.events.borrow().clone()
    }

    #[track_caller]
    pub(crate) fn until_event(&mut self, note: &str) {
        self.until(|fixture| {
            fixture.events.borrow().iter().any(|noted| noted == note).then_some(())
        });
    }

    /// Returns the next event of a client.
    #[track_caller]
    pub(crate) fn next_event(&mut self, client: &mut Client) -> ClientEvent {
        self.until(|_| client.poll())
    }

    /// Checks that nothing is on its way to a client.
    #[track_caller]
    pub(crate) fn expect_nothing(&mut self, client: &mut Client) {
        self.settle();
        assert_eq!(client.poll(), None);
    }
}
