//! A service on a reactor with a manual clock, and clients on the same thread. Nothing here depends
//! on real time.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    ops::ControlFlow,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use windlass::{Reactor, Turn, stream::Address};
use windlass_server::{
    CloseCode, Closed, Connection, ConnectionId, Handler, Hub, Message, Options, Rejected, Service,
    http::{Accept, Reject, UpgradeRequest},
};
use windlass_ws::{
    Config, Engine, EngineEvent, EngineLimits, Scratch,
    deflate::DeflateConfig,
    handshake::{ClientRequest, HeadLimits},
};

/// Maximum real time that a test waits for an expected event before it fails.
const TIMEOUT: Duration = Duration::from_secs(20);

type OnEvent = Box<dyn Fn(&mut Connection<'_>, &mut ConnData)>;
type OnMessage = Box<dyn Fn(&mut Connection<'_>, &mut ConnData, Message<'_>)>;
type OnClose = Box<dyn Fn(&mut Hub<'_>, &mut ConnData, &Closed<'_>)>;
type OnStart = Box<dyn Fn(&mut Hub<'_>)>;
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
    pub(crate) open: Option<OnEvent>,
    pub(crate) message: Option<OnMessage>,
    pub(crate) ping: Option<OnPing>,
    pub(crate) drain: Option<OnEvent>,
    pub(crate) close: Option<OnClose>,
    pub(crate) events: Rc<RefCell<Vec<String>>>,
    pub(crate) rejected: RejectionLog,
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

    fn on_rejected(&self, rejected: &Rejected<'_>) {
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

/// An event that a client has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientEvent {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
    /// The connection has ended: orderly, or with the kernel's error.
    End(Option<io::ErrorKind>),
}

pub(crate) fn text(text: &str) -> ClientEvent {
    ClientEvent::Text(text.to_owned())
}

fn entropy(bytes: &mut [u8]) {
    // Masking keys only have to differ from each other here.
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at as u8).wrapping_mul(37) ^ 0x5a);
}

/// Accepts longer messages than a server does by default.
fn client_config() -> Config {
    let mut limits = EngineLimits::DEFAULT;
    (limits.frame_max, limits.message_max) = (16 << 20, 16 << 20);
    Config::client(entropy).with_limits(limits)
}

/// A client on a non-blocking socket.
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    engine: Engine,
    scratch: Scratch,
    head: Vec<u8>,
    is_open: bool,
    request: (String, Option<DeflateConfig>),
    received: VecDeque<ClientEvent>,
    /// The client sends no pongs and no Close frames on its own.
    pub(crate) is_mute: bool,
    /// The head of the handshake response.
    pub(crate) response: String,
    /// Number of bytes received after it.
    pub(crate) read_bytes: usize,
    skips_head: bool,
}

const KEY: [u8; 16] = *b"the sample nonce";

impl Client {
    pub(crate) fn begin(address: SocketAddr, path: &str, deflate: Option<&DeflateConfig>) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut request = ClientRequest::new("localhost", path, KEY);
        if let Some(deflate) = deflate {
            request = request.deflate(deflate);
        }
        let mut head = Vec::new();
        request.write(&mut head).unwrap();
        socket.write_all(&head).unwrap();
        Self::of(socket, path, deflate)
    }

    /// Creates a client on a socket whose request was sent in another way.
    pub(crate) fn of(socket: TcpStream, path: &str, deflate: Option<&DeflateConfig>) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            engine: Engine::new(&Arc::new(client_config())),
            scratch: Scratch::new(),
            head: Vec::new(),
            is_open: false,
            request: (path.to_owned(), deflate.copied()),
            received: VecDeque::new(),
            is_mute: false,
            response: String::new(),
            read_bytes: 0,
            skips_head: false,
        }
    }

    fn read(&mut self) -> ControlFlow<ClientEvent, Option<Vec<u8>>> {
        let mut bytes = vec![0; 1 << 16];
        match self.socket.read(&mut bytes) {
            Ok(0) => ControlFlow::Break(ClientEvent::End(None)),
            Ok(count) => {
                bytes.truncate(count);
                ControlFlow::Continue(Some(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ControlFlow::Continue(None),
            Err(error) => ControlFlow::Break(ClientEvent::End(Some(error.kind()))),
        }
    }

    /// Returns whether the handshake is complete.
    pub(crate) fn is_open(&mut self) -> bool {
        if self.is_open {
            return true;
        }
        match self.read() {
            ControlFlow::Continue(Some(bytes)) => self.head.extend_from_slice(&bytes),
            ControlFlow::Continue(None) => {}
            ControlFlow::Break(end) => {
                panic!("{end:?} in the handshake, after {}", self.head.escape_ascii())
            }
        }
        if self.skips_head {
            // The test wrote its own request, with options that this client did not request.
            let end = self.head.windows(4).position(|end| end == b"\r\n\r\n");
            if let Some(end) = end {
                assert!(self.head.starts_with(b"HTTP/1.1 101 "), "{}", self.head.escape_ascii());
                self.is_open = true;
                let rest = self.head.split_off(end + 4);
                self.response = String::from_utf8(core::mem::take(&mut self.head)).unwrap();
                self.take(rest);
            }
            return self.is_open;
        }
        let (path, deflate) = &self.request;
        let mut request = ClientRequest::new("localhost", path, KEY);
        if let Some(deflate) = deflate {
            request = request.deflate(deflate);
        }
        let head = core::mem::take(&mut self.head);
        match request.read_response(&head, &HeadLimits::DEFAULT) {
            Ok(None) => self.head = head,
            Ok(Some((upgraded, used))) => {
                if let (Some(agreement), Some(config)) = (upgraded.deflate, deflate) {
                    self.engine =
                        Engine::with_deflate(&Arc::new(client_config()), &agreement, config);
                }
                self.is_open = true;
                self.response = String::from_utf8(head[..used].to_vec()).unwrap();
                self.take(head[used..].to_vec());
            }
            Err(error) => panic!("{error}: {}", head.escape_ascii()),
        }
        self.is_open
    }

    fn take(&mut self, mut bytes: Vec<u8>) {
        self.read_bytes += bytes.len();
        let mut pass = self.engine.process(&mut bytes, &mut self.scratch);
        while let Some(event) = pass.next() {
            self.received.push_back(match event {
                EngineEvent::Text(text) => ClientEvent::Text(text.to_string()),
                EngineEvent::Binary(bytes) => ClientEvent::Binary(bytes.to_vec()),
                EngineEvent::Ping(payload) => ClientEvent::Ping(payload.to_vec()),
                EngineEvent::Pong(payload) => ClientEvent::Pong(payload.to_vec()),
                EngineEvent::Close(close) => {
                    ClientEvent::Close(close.code.map(CloseCode::get), close.reason.to_owned())
                }
                EngineEvent::Violation(violation) => {
                    panic!("the server has broken the protocol: {violation}")
                }
                _ => continue,
            });
        }
        let outcome = pass.finish();
        let output: Vec<u8> = self.scratch.output(&outcome, &bytes).flatten().copied().collect();
        if !self.is_mute && !output.is_empty() {
            // The server may have closed the connection already.
            let _ = self.socket.write_all(&output);
        }
    }

    /// Accepts any response that switches protocols.
    pub(crate) fn skip_head(&mut self) {
        self.skips_head = true;
    }

    /// Returns the next event, if one has arrived.
    pub(crate) fn poll(&mut self) -> Option<ClientEvent> {
        if let Some(received) = self.received.pop_front() {
            return Some(received);
        }
        match self.read() {
            ControlFlow::Continue(Some(bytes)) => {
                self.take(bytes);
                self.received.pop_front()
            }
            ControlFlow::Continue(None) => None,
            ControlFlow::Break(end) => Some(end),
        }
    }

    /// Encodes a message as a frame.
    pub(crate) fn frame<'m>(
        &mut self,
        message: impl Into<windlass_server::OutMessage<'m>>,
    ) -> Vec<u8> {
        let message = message.into();
        let message = match message.is_text() {
            true => {
                windlass_ws::MessageRef::Text(core::str::from_utf8(message.as_bytes()).unwrap())
            }
            false => windlass_ws::MessageRef::Binary(message.as_bytes()),
        };
        self.engine.send(message, &mut self.scratch).unwrap().to_vec()
    }

    pub(crate) fn send<'m>(&mut self, message: impl Into<windlass_server::OutMessage<'m>>) {
        let frame = self.frame(message);
        self.write(&frame);
    }

    pub(crate) fn ping(&mut self, payload: &[u8]) {
        let frame = self.engine.ping(payload, &mut self.scratch).unwrap().to_vec();
        self.write(&frame);
    }

    pub(crate) fn close(&mut self, code: u16, reason: &str) {
        let frame =
            self.engine.close(CloseCode::new(code), reason, &mut self.scratch).unwrap().to_vec();
        self.write(&frame);
    }

    /// Sends a message as a client that has not read the server's Close frame yet.
    pub(crate) fn send_raw_after_close(&mut self) {
        self.write(&[0x81, 0x81, 0, 0, 0, 0, b'x']);
    }

    /// Answers the server's Close frame with code 1000.
    pub(crate) fn close_back(&mut self) {
        self.write(&[0x88, 0x82, 0, 0, 0, 0, 3, 0xe8]);
    }

    #[track_caller]
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }
}

impl Client {
    /// Returns all bytes up to the end of the connection, once it has ended. For connections before
    /// the upgrade.
    pub(crate) fn raw_end(&mut self) -> Option<String> {
        loop {
            match self.read() {
                ControlFlow::Continue(Some(bytes)) => self.head.extend_from_slice(&bytes),
                ControlFlow::Continue(None) => return None,
                ControlFlow::Break(_) => {
                    return Some(String::from_utf8_lossy(&self.head).into_owned());
                }
            }
        }
    }
}

impl Client {
    /// Returns all bytes received so far, as text.
    pub(crate) fn raw_so_far(&mut self) -> String {
        while let ControlFlow::Continue(Some(bytes)) = self.read() {
            self.head.extend_from_slice(&bytes);
        }
        String::from_utf8_lossy(&self.head).into_owned()
    }

    /// Marks the connection as open without a handshake.
    pub(crate) fn open_at_once(&mut self) {
        self.is_open = true;
    }
}
