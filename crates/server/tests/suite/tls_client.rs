//! A WebSocket client over TLS, on the reactor of the service under test.

use std::{
    cell::{Cell, RefCell},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    rc::Rc,
    sync::Arc,
};

use windlass::{
    Key, Turn,
    stream::{
        Connector, DisconnectReason, Input, Stream, StreamHandler, StreamOptions, TlsSessionFactory,
    },
};
use windlass_tls::{TlsAcceptor, TlsAcceptorBuilder, TlsConnector, TlsConnectorBuilder};

use crate::fixture::Fixture;

pub(crate) fn certificate(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tls/tests/certificates").join(name)
}

pub(crate) fn acceptor() -> TlsAcceptorBuilder {
    TlsAcceptor::builder()
        .certificate(certificate("localhost.pem"), certificate("localhost.key"))
        .alpn([b"http/1.1"])
}

pub(crate) fn connector() -> TlsConnectorBuilder {
    TlsConnector::builder().roots(certificate("ca.pem")).alpn([b"http/1.1"])
}

/// What a client has seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) received: RefCell<Vec<u8>>,
    pub(crate) is_open: Cell<bool>,
    /// The server's `close_notify` was received.
    pub(crate) has_ended: Cell<bool>,
    pub(crate) closed: Cell<Option<DisconnectReason>>,
}

struct ClientHandler(Rc<Seen>);

impl StreamHandler for ClientHandler {
    fn on_open(&mut self, _: &mut Stream<'_>) {
        self.0.is_open.set(true);
    }

    fn on_data(&mut self, _: &mut Stream<'_>, input: Input<'_>) {
        self.0.received.borrow_mut().extend_from_slice(&input);
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        self.0.has_ended.set(true);
        stream.close();
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        self.0.closed.set(Some(reason));
    }
}

pub(crate) struct TlsClient {
    pub(crate) key: Key,
    pub(crate) seen: Rc<Seen>,
}

impl TlsClient {
    /// Begins to connect.
    pub(crate) fn begin(
        fixture: &mut Fixture,
        address: SocketAddr,
        sessions: Arc<dyn TlsSessionFactory>,
    ) -> Self {
        let seen = Rc::new(Seen::default());
        let handler = ClientHandler(Rc::clone(&seen));
        let connector = Connector::tcp(address).with_tls(sessions);
        let key = connector.connect(handler, &mut fixture.reactor).unwrap();
        Self { key, seen }
    }

    /// Begins TLS on a socket that is connected.
    pub(crate) fn on(
        fixture: &mut Fixture,
        socket: TcpStream,
        sessions: Arc<dyn TlsSessionFactory>,
    ) -> Self {
        let seen = Rc::new(Seen::default());
        let handler = ClientHandler(Rc::clone(&seen));
        let stream = StreamOptions::new().with_fd(socket).with_tls(sessions);
        let key = stream.with_handler(handler).register_into(&mut fixture.reactor).unwrap();
        Self { key, seen }
    }

    /// Connects, and opens a WebSocket.
    #[track_caller]
    pub(crate) fn connect(
        fixture: &mut Fixture,
        address: SocketAddr,
        connector: &TlsConnector,
    ) -> Self {
        let target = Arc::new(connector.to("localhost").unwrap());
        let client = Self::begin(fixture, address, target);
        client.upgrade(fixture, "");
        client.until_received(fixture, "HTTP/1.1 101 Switching Protocols\r\n");
        client.seen.received.borrow_mut().clear();
        client
    }

    /// Sends an upgrade with further lines.
    pub(crate) fn upgrade(&self, fixture: &mut Fixture, lines: &str) {
        let request = format!(
            "GET /chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Version: 13\r\n{lines}\r\n"
        );
        self.send(fixture, request.as_bytes());
    }

    pub(crate) fn send(&self, fixture: &mut Fixture, bytes: &[u8]) {
        fixture.reactor.stream(self.key).unwrap().send(bytes).unwrap();
    }

    /// Sends a text of at most 125 bytes, with a mask of zeros.
    pub(crate) fn send_text(&self, fixture: &mut Fixture, text: &str) {
        let head = [0x81, 0x80 | u8::try_from(text.len()).unwrap(), 0, 0, 0, 0];
        self.send(fixture, &[&head, text.as_bytes()].concat());
    }

    /// Waits until this text is among the received bytes.
    #[track_caller]
    pub(crate) fn until_received(&self, fixture: &mut Fixture, text: &str) {
        let seen = Rc::clone(&self.seen);
        fixture.until(|_| {
            let received = seen.received.borrow();
            let is_there = received.windows(text.len()).any(|part| part == text.as_bytes());
            assert!(is_there || seen.closed.get().is_none(), "{}", received.escape_ascii());
            is_there.then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn until_closed(&self, fixture: &mut Fixture) -> DisconnectReason {
        let seen = Rc::clone(&self.seen);
        fixture.until(|_| seen.closed.get())
    }
}
