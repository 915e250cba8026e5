//! A server under test, which notes its callbacks, and a client by rustls.

use std::{
    cell::RefCell,
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use windlass::{
    Key, Reactor, Turn,
    stream::{DisconnectReason, Input, Listener, Stream, StreamHandler, TlsSessionFactory},
};
use windlass_tls::{TlsAcceptor, TlsAcceptorBuilder};

/// The longest that a test waits for what must come.
const WAIT_MAX: Duration = Duration::from_secs(20);

pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

pub(crate) fn localhost() -> TlsAcceptorBuilder {
    TlsAcceptor::builder().certificate(file("localhost.pem"), file("localhost.key"))
}

/// A callback of the server's or client's handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// ALPN, server name, peer's subject, version.
    Open(Option<Vec<u8>>, Option<String>, Option<String>, Option<&'static str>, bool),
    Data(Vec<u8>),
    End,
    Close(DisconnectReason),
}

#[derive(Clone, Default)]
pub(crate) struct Log(Rc<RefCell<Vec<Said>>>);

impl Log {
    pub(crate) fn take(&self) -> Vec<Said> {
        self.0.take()
    }

    pub(crate) fn closed(&self) -> Option<DisconnectReason> {
        let closed = |said: &Said| match said {
            Said::Close(reason) => Some(*reason),
            _ => None,
        };
        self.0.borrow().iter().find_map(closed)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.borrow().iter().any(|said| matches!(said, Said::Open(..)))
    }

    pub(crate) fn data(&self) -> Vec<u8> {
        let data = |said: &Said| match said {
            Said::Data(bytes) => bytes.clone(),
            _ => Vec::new(),
        };
        self.0.borrow().iter().flat_map(data).collect()
    }
}

/// Notes its callbacks. Sends `greeting`, then its input back if it is asked to.
#[derive(Clone, Default)]
pub(crate) struct Noting {
    pub(crate) log: Log,
    pub(crate) greeting: Vec<u8>,
    pub(crate) echoes: bool,
}

impl StreamHandler for Noting {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let tls = stream.tls().unwrap();
        let said = Said::Open(
            tls.alpn().map(<[u8]>::to_vec),
            tls.server_name().map(Into::into),
            tls.peer_subject().map(Into::into),
            tls.version(),
            tls.is_resumed(),
        );
        self.log.0.borrow_mut().push(said);
        stream.send(&self.greeting).unwrap();
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        self.log.0.borrow_mut().push(Said::Data(input.to_vec()));
        if self.echoes {
            stream.reply(input, ..).unwrap();
        }
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        self.log.0.borrow_mut().push(Said::End);
        stream.close();
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        self.log.0.borrow_mut().push(Said::Close(reason));
    }
}

/// Listens with an echo.
pub(crate) fn serve(
    reactor: &mut Reactor,
    sessions: impl TlsSessionFactory,
    log: &Log,
) -> SocketAddr {
    serve_with(reactor, sessions, log, true)
}

/// Listens with an echo, or with handlers that send nothing.
pub(crate) fn serve_with(
    reactor: &mut Reactor,
    sessions: impl TlsSessionFactory,
    log: &Log,
    echoes: bool,
) -> SocketAddr {
    let handler = Noting { log: log.clone(), greeting: Vec::new(), echoes };
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    listener
        .with_tls(Arc::new(sessions))
        .with_handler(move |_| Some(handler.clone()))
        .register_into(reactor)
        .unwrap();
    address
}

/// Runs turns until it is so.
pub(crate) fn until(reactor: &mut Reactor, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        reactor.run_once(Duration::from_millis(1)).unwrap();
        assert!(begin.elapsed() < WAIT_MAX, "it took too long");
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// The settings of a client that trusts the tests' authority.
pub(crate) fn config(
    certificate: Option<&str>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    match certificate {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let chain = CertificateDer::from_pem_file(file(&format!("{name}.pem"))).unwrap();
            let key = PrivateKeyDer::from_pem_file(file(&format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(vec![chain], key).unwrap()
        }
    }
}

pub(crate) fn both() -> ClientConfig {
    config(None, rustls::ALL_VERSIONS)
}

pub(crate) struct Client {
    pub(crate) tls: ClientConnection,
    pub(crate) socket: TcpStream,
    /// Sends this many bytes at a time.
    pub(crate) step: usize,
    waiting: Vec<u8>,
    pub(crate) received: Vec<u8>,
    pub(crate) error: Option<rustls::Error>,
    /// The server's FIN was received.
    pub(crate) has_ended: bool,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, config: ClientConfig, name: &'static str) -> Self {
        let name = ServerName::try_from(name).unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
        tls.set_buffer_limit(None);
        Self {
            tls,
            socket: connect(address),
            step: usize::MAX,
            waiting: Vec::new(),
            received: Vec::new(),
            error: None,
            has_ended: false,
        }
    }

    /// Sends and receives what it can.
    pub(crate) fn pump(&mut self) {
        self.queue();
        let part = self.waiting.len().min(self.step);
        match self.socket.write(&self.waiting[..part]) {
            Ok(count) => drop(self.waiting.drain(..count)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        while self.error.is_none() && !self.has_ended {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => self.has_ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
            self.error = self.tls.process_new_packets().err();
            let mut bytes = [0; 1 << 16];
            loop {
                match self.tls.reader().read(&mut bytes) {
                    Ok(count) if count > 0 => self.received.extend_from_slice(&bytes[..count]),
                    _ => break,
                }
            }
        }
    }

    /// Adds what the session wants to send to what is sent next.
    pub(crate) fn queue(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.waiting).unwrap();
        }
    }

    /// Gives the session away; the socket stays. [`pump`](Self::pump) must not follow.
    pub(crate) fn forge(&mut self) -> ClientConnection {
        let other = ClientConnection::new(Arc::new(both()), "localhost".try_into().unwrap());
        core::mem::replace(&mut self.tls, other.unwrap())
    }

    /// Adds records of the test's own to what is sent next.
    pub(crate) fn inject(&mut self, records: &[u8]) {
        self.waiting.extend_from_slice(records);
    }

    /// Sends what waits, and reads nothing.
    pub(crate) fn push_socket(&mut self) {
        // It fails once the server has closed the connection.
        let count = self.socket.write(&self.waiting).unwrap_or(0);
        self.waiting.drain(..count);
    }

    /// Sends what waits, and drops what comes.
    pub(crate) fn pump_socket(&mut self) {
        self.push_socket();
        let mut bytes = [0; 4096];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(count) if count > 0 => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                _ => return self.has_ended = true,
            }
        }
    }

    /// Ends the connection from this side.
    pub(crate) fn hang_up(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.waiting.is_empty() && !self.tls.wants_write()
    }

    /// Pumps and runs turns until it is so.
    pub(crate) fn until(&mut self, reactor: &mut Reactor, is_so: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            self.pump();
            reactor.run_once(Duration::from_millis(u64::from(self.is_sent()))).unwrap();
            assert!(begin.elapsed() < WAIT_MAX, "it took too long: {:?}", self.error);
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.tls.writer().write_all(bytes).unwrap();
    }
}

/// Reads from a plain client until the server's end.
pub(crate) fn read_to_end(reactor: &mut Reactor, socket: &mut TcpStream) -> Vec<u8> {
    let (begin, mut all) = (Instant::now(), Vec::new());
    let mut bytes = [0; 4096];
    loop {
        match io::Read::read(socket, &mut bytes) {
            Ok(0) => return all,
            Ok(count) => all.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                reactor.run_once(Duration::from_millis(1)).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        assert!(begin.elapsed() < WAIT_MAX, "it took too long");
    }
}
