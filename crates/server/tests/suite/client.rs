//! A client of the fixture, on a non-blocking socket.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    ops::ControlFlow,
    sync::Arc,
};

use windlass_ws::{
    CloseCode, Config, Engine, EngineEvent, EngineLimits, Scratch,
    deflate::DeflateConfig,
    handshake::{ClientRequest, HeadLimits},
};

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
    /// Bytes that the kernel has not accepted yet.
    unsent: Vec<u8>,
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
            unsent: Vec::new(),
        }
    }

    fn read(&mut self) -> ControlFlow<ClientEvent, Option<Vec<u8>>> {
        self.push();
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

    /// Sends bytes. Those that the kernel does not accept now are sent when the client reads.
    #[track_caller]
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
        self.push();
    }

    #[track_caller]
    fn push(&mut self) {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
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
