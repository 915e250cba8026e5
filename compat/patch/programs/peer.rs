//! The other end of a program: frames on a blocking socket. No implementation of WebSockets is in
//! it, because two are compared.

#![allow(dead_code, reason = "each program uses a part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use base64::Engine as _;
use sha1::{Digest as _, Sha1};

pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
/// No frame may have it: RFC 6455 section 5.2.
pub const RESERVED: u8 = 3;

/// A key and what a server answers to it: RFC 6455 section 1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

const MASK: [u8; 4] = [1, 2, 3, 4];

/// One end of a connection.
pub struct Peer<S> {
    stream: S,
    is_client: bool,
}

impl Peer<TcpStream> {
    /// Connects to a server, and asks for a WebSocket.
    pub fn connect(address: SocketAddr, path: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        let mut peer = Self { stream, is_client: true };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
        );
        peer.put(request.as_bytes());
        let head = peer.head().expect("the server answers");
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert_eq!(header(&head, "sec-websocket-accept"), Some(ACCEPT));
        peer
    }
}

impl<S: Read + Write> Peer<S> {
    pub fn server(stream: S) -> Self {
        Self { stream, is_client: false }
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the stream is open");
    }

    /// Reads the head of a request or of a response, unless the stream has ended.
    pub fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.bytes(1)?[0]);
        }
        Some(String::from_utf8(head).expect("heads are ASCII here"))
    }

    /// Reads a request, and upgrades.
    pub fn upgrade(&mut self) {
        let head = self.head().expect("a request");
        self.answer(&head);
    }

    /// Upgrades after the head of a request.
    pub fn answer(&mut self, head: &str) {
        let key = header(head, "sec-websocket-key").expect("a key");
        let hash = Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
        let accept = base64::prelude::BASE64_STANDARD.encode(hash);
        let protocol = header(head, "sec-websocket-protocol").map_or(String::new(), |protocols| {
            let first = protocols.split(',').next().unwrap_or_default();
            format!("Sec-WebSocket-Protocol: {}\r\n", first.trim())
        });
        let response = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\n{protocol}\r\n"
        );
        self.put(response.as_bytes());
    }

    /// Reads a request, and refuses it.
    pub fn refuse(&mut self) {
        self.head().expect("a request");
        self.put(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    }

    /// Writes a whole frame.
    pub fn write(&mut self, opcode: u8, payload: &[u8]) {
        let mask_bit = if self.is_client { 0x80 } else { 0 };
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            length @ ..126 => frame.push(mask_bit | length as u8),
            length @ ..0x1_0000 => {
                frame.push(mask_bit | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(mask_bit | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        if self.is_client {
            frame.extend(MASK);
        }
        let mask = if self.is_client { MASK } else { [0; 4] };
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.put(&frame);
    }

    /// Reads a frame, unless the stream has ended.
    pub fn read(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = self.bytes(2)?;
        let length = match head[1] & 0x7f {
            126 => u64::from(u16::from_be_bytes(self.bytes(2)?.try_into().ok()?)),
            127 => u64::from_be_bytes(self.bytes(8)?.try_into().ok()?),
            short => u64::from(short),
        };
        assert_eq!(head[1] & 0x80 == 0, self.is_client, "clients mask, and servers do not");
        let mask = if self.is_client { vec![0; 4] } else { self.bytes(4)? };
        let payload = self.bytes(length as usize)?;
        let payload = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
        Some((head[0] & 0x0f, payload.collect()))
    }

    /// Echoes data until a Close frame, and answers that. Returns what came.
    pub fn echo(&mut self) -> String {
        let mut came = Vec::new();
        while let Some((opcode, payload)) = self.read() {
            came.push(format!("{opcode}: {} bytes", payload.len()));
            match opcode {
                TEXT | BINARY => self.write(opcode, &payload),
                CLOSE => {
                    self.write(CLOSE, &payload);
                    came.push(format!("Close {:?}", code(&payload)));
                    break;
                }
                _ => {}
            }
        }
        came.join("; ")
    }

    /// Reads the rest of a request that has this head, and answers it with JSON.
    pub fn answer_json(&mut self, head: &str, json: &str) {
        let length = header(head, "content-length").map_or(0, |it| it.parse().expect("a length"));
        self.bytes(length).expect("a whole body");
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:";
        self.put(format!("{head} {}\r\n\r\n{json}", json.len()).as_bytes());
    }

    fn bytes(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).is_ok().then_some(bytes)
    }
}

/// The code in the payload of a Close frame.
pub fn code(payload: &[u8]) -> Option<u16> {
    payload.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// The payload of a Close frame.
pub fn close(code: u16, reason: &str) -> Vec<u8> {
    [&code.to_be_bytes(), reason.as_bytes()].concat()
}

/// The value of a header.
pub fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// The server's side of one connection, and the report of what it saw.
pub type Script = fn(&mut Peer<TcpStream>) -> String;

/// Serves one connection for each script, one after another, and returns what each reported.
pub fn serve<const N: usize>(scripts: [Script; N]) -> (SocketAddr, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let address = listener.local_addr().expect("it is bound");
    let serve = move || {
        let run = |script: Script| {
            let (stream, _) = listener.accept().expect("a client connects");
            script(&mut Peer::server(stream))
        };
        scripts.map(run).into()
    };
    (address, std::thread::spawn(serve))
}

/// The scripts for every client: an echo until it closes, a Close frame, an error, and a refusal.
pub fn scripts() -> [Script; 4] {
    [
        |peer| {
            peer.upgrade();
            peer.echo()
        },
        |peer| {
            peer.upgrade();
            peer.write(CLOSE, &close(4000, "bye"));
            format!("{:?}", peer.read().map(|(opcode, payload)| (opcode, code(&payload))))
        },
        |peer| {
            peer.upgrade();
            peer.write(RESERVED, b"");
            // Until the other side has read it.
            while peer.read().is_some() {}
            String::new()
        },
        |peer| {
            peer.refuse();
            String::new()
        },
    ]
}

/// Serves every connection in a thread of its own, until the program ends.
pub fn serve_all(
    serve: impl Fn(&mut Peer<TcpStream>, SocketAddr) + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.expect("a client connects"), serve.clone());
            std::thread::spawn(move || serve(&mut Peer::server(stream), address));
        }
    });
    address
}

/// Prints what the scripts reported.
pub fn report(peer: JoinHandle<Vec<String>>) {
    for line in peer.join().expect("the peer does not panic") {
        println!("the peer: {line}");
    }
}
