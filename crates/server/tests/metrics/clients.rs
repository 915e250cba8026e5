//! A server for these tests, and blocking clients that count their bytes.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::mpsc::Receiver,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use windlass_server::{
    CloseCode, Connection, Handler, Message, Options, RunningServer, Server, StatsHandle,
    http::{Accept, Reject, Routes, UpgradeRequest},
};

use crate::{backend::chosen, exposition::Exposition};

/// Echoes at /echo. At /room a message goes to the others, and its sender gets an empty one. At
/// /live the live status is sent, and a message is a topic to subscribe to and to publish to.
pub(crate) struct Paths {
    /// A message `wait` waits for an item of this channel.
    gate: Option<Arc<Mutex<Receiver<()>>>>,
}

impl Handler for Paths {
    type Data = Purpose;

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<Purpose>, Reject> {
        match request.path() {
            "/refused" => Err(Reject::status(403)),
            "/room" => Ok(Accept::new(Purpose::Room)),
            "/live" => Ok(Accept::new(Purpose::Live)),
            _ => Ok(Accept::new(Purpose::Echo)),
        }
    }

    fn on_open(&self, connection: &mut Connection<'_>, purpose: &mut Purpose) {
        match purpose {
            Purpose::Echo => {}
            Purpose::Room => assert!(connection.subscribe("room").unwrap()),
            Purpose::Live => {
                let (first, second) = (connection.watch_status(), connection.watch_status());
                assert!(!second);
                if !first {
                    let _ = connection.send("off");
                }
            }
        }
    }

    fn on_message(
        &self,
        connection: &mut Connection<'_>,
        purpose: &mut Purpose,
        message: Message<'_>,
    ) {
        if message.as_str() == Some("ping me") {
            return connection.ping(b"from the server").unwrap();
        }
        if message.as_str() == Some("panic") {
            // Without the hook, which would print it.
            std::panic::resume_unwind(Box::new("as asked"));
        }
        if message.as_str() == Some("close me") {
            // As other code would close it: not by its own callback.
            let id = connection.id();
            connection.hub().close(id, CloseCode::new(4000), "as asked").unwrap();
            return;
        }
        if let (Some("wait"), Some(gate)) = (message.as_str(), &self.gate) {
            let _ = gate.lock().unwrap().recv();
        }
        match purpose {
            Purpose::Echo => _ = connection.reply_in_place(message),
            Purpose::Room => {
                connection.publish_to_others("room", message.to_out());
                let _ = connection.send("");
            }
            Purpose::Live => {
                let topic = message.as_str().unwrap_or_default();
                let id = connection.id();
                let answers = [
                    usize::from(connection.subscribe(topic) == Ok(true)),
                    usize::from(connection.hub().subscribe(id, topic) == Ok(true)),
                    connection.publish(topic, "by a client"),
                    connection.publish_to_others(topic, "by a client"),
                    connection.hub().publish(topic, "by a client"),
                    usize::from(connection.unsubscribe(topic)),
                    usize::from(connection.hub().unsubscribe(id, topic)),
                ];
                let _ = connection.send(format!("{answers:?}"));
            }
        }
    }
}

/// What a connection is for.
pub(crate) enum Purpose {
    Echo,
    Room,
    Live,
}

/// A running server with its counts.
pub(crate) struct Site {
    pub(crate) running: RunningServer,
    pub(crate) counts: StatsHandle,
    pub(crate) address: SocketAddr,
}

impl Site {
    pub(crate) fn new(workers: usize, configure: impl FnOnce(&mut Options)) -> Self {
        Self::with_gate(workers, None, configure)
    }

    pub(crate) fn with_gate(
        workers: usize,
        gate: Option<Receiver<()>>,
        configure: impl FnOnce(&mut Options),
    ) -> Self {
        let mut options = Options::new();
        options.routes = ["/echo", "/room", "/live", "/refused"]
            .iter()
            .fold(Routes::new(), |routes, path| routes.upgrade(path));
        configure(&mut options);
        let gate = gate.map(|gate| Arc::new(Mutex::new(gate)));
        let running = Server::new(options, move |_| Paths { gate: gate.clone() })
            .workers(workers)
            .backend(chosen())
            .listen("127.0.0.1:0".parse().unwrap())
            .start()
            .unwrap();
        let address = running.addresses()[0].socket_addr().unwrap();
        let counts = running.stats_handle();
        Self { running, counts, address }
    }

    /// Reads the metrics, with the counts of this moment of every worker.
    #[track_caller]
    pub(crate) fn metrics(&self) -> Exposition {
        Exposition::parse(&fresh(|| self.counts.prometheus()))
    }

    /// Reads the metrics until the closure accepts them.
    #[track_caller]
    pub(crate) fn metrics_when(&self, mut there: impl FnMut(&Exposition) -> bool) -> Exposition {
        let begin = Instant::now();
        loop {
            let metrics = self.metrics();
            if there(&metrics) {
                return metrics;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "not in time: {metrics:?}");
        }
    }

    pub(crate) fn end(self) {
        self.running.stop();
        self.running.join().unwrap();
    }
}

/// Calls again if the answer took so long that a worker may not have copied its counts for it. The
/// server waits for a copy for a quarter of a second.
pub(crate) fn fresh<T>(mut ask: impl FnMut() -> T) -> T {
    loop {
        let begin = Instant::now();
        let answer = ask();
        if begin.elapsed() < Duration::from_millis(250) {
            return answer;
        }
    }
}

/// A client that counts the bytes in both directions.
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    pub(crate) written: u64,
    pub(crate) read: u64,
}

impl Client {
    /// Connects without a handshake.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { socket, written: 0, read: 0 }
    }

    /// Opens a WebSocket.
    #[track_caller]
    pub(crate) fn open(address: SocketAddr, path: &str) -> Self {
        Self::try_open(address, path).unwrap_or_else(|head| panic!("{head}"))
    }

    /// Opens a WebSocket, or returns the head of the response.
    pub(crate) fn try_open(address: SocketAddr, path: &str) -> Result<Self, String> {
        let mut client = Self::connect(address);
        let head = client.request(path, "localhost", "");
        if head.starts_with("HTTP/1.1 101 ") { Ok(client) } else { Err(head) }
    }

    /// Sends an upgrade with further header lines. Returns the head of the response.
    pub(crate) fn request(&mut self, path: &str, host: &str, lines: &str) -> String {
        self.write(
            format!(
                "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n\
                 Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{lines}\r\n"
            )
            .as_bytes(),
        );
        self.head()
    }

    /// Returns the head of a response.
    pub(crate) fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.bytes(1)[0]);
        }
        String::from_utf8(head).unwrap()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
        self.written += bytes.len() as u64;
    }

    #[track_caller]
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.socket.read_exact(&mut bytes).unwrap();
        self.read += count as u64;
        bytes
    }

    /// Sends a frame with a masking key of zeros.
    pub(crate) fn send(&mut self, opcode: u8, payload: &[u8]) {
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            len @ 0..126 => frame.push(0x80 | len as u8),
            len @ 126..0x1_0000 => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&(len as u16).to_be_bytes());
            }
            len => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&(len as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(payload);
        self.write(&frame);
    }

    /// Returns the opcode and the payload of the next frame.
    #[track_caller]
    pub(crate) fn next(&mut self) -> (u8, Vec<u8>) {
        let head = self.bytes(2);
        let len = match head[1] {
            126 => u16::from_be_bytes(*self.bytes(2).first_chunk().unwrap()).into(),
            127 => u64::from_be_bytes(*self.bytes(8).first_chunk().unwrap()),
            len => len.into(),
        };
        (head[0] & 0xf, self.bytes(len as usize))
    }

    /// Sends a Close frame, and reads up to the end.
    pub(crate) fn close(mut self, payload: &[u8]) -> Self {
        self.send(8, payload);
        assert_eq!(self.next().0, 8);
        self.read_to_end();
        self
    }

    /// Reads everything that comes before the end, which may be a reset.
    pub(crate) fn read_to_end(&mut self) {
        let mut rest = Vec::new();
        let _ = self.socket.read_to_end(&mut rest);
        self.read += rest.len() as u64;
    }
}
