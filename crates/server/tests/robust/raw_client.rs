//! A client on a non-blocking socket that can send anything. Its frame reader is independent of the
//! engine.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

pub(crate) use windlass_testkit::frames::{BINARY, CLOSE, PING, TEXT, masked};

pub(crate) const PONG: u8 = 0x8a;
/// The bit of the first byte that marks a compressed message (RFC 7692 section 6).
pub(crate) const COMPRESSED: u8 = 0x40;

/// A frame as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// FIN bit, reserved bits and opcode.
    pub(crate) first: u8,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn new(first: u8, payload: impl AsRef<[u8]>) -> Self {
        Self { first, payload: payload.as_ref().to_vec() }
    }

    /// Returns the code of a Close frame.
    pub(crate) fn close_code(&self) -> u16 {
        assert_eq!(self.first, CLOSE, "{self:?}");
        u16::from_be_bytes([self.payload[0], self.payload[1]])
    }

    /// Returns the payload of a text frame.
    pub(crate) fn text(&self) -> &str {
        assert_eq!(self.first, TEXT, "{self:?}");
        core::str::from_utf8(&self.payload).expect("text is UTF-8")
    }
}

/// Returns a valid upgrade request with these additional lines.
pub(crate) fn upgrade(path: &str, lines: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{lines}\r\n"
    )
    .into_bytes()
}

/// A client whose calls never block.
#[derive(Debug)]
pub(crate) struct RawClient {
    socket: TcpStream,
    received: Vec<u8>,
    /// Bytes that the kernel has not accepted yet.
    unsent: Vec<u8>,
    end: Option<Result<(), ErrorKind>>,
    has_finished: bool,
}

impl RawClient {
    pub(crate) fn connect(to: SocketAddr) -> Self {
        Self::of(TcpStream::connect(to).expect("the server listens"))
    }

    /// Connects with a small receive buffer, so that the kernel accepts few bytes before the client
    /// reads.
    pub(crate) fn with_small_window(to: SocketAddr) -> Self {
        let socket = socket(to);
        sockopt::set_socket_recv_buffer_size(&socket, 4096).expect("the option can be set");
        rustix::net::connect(&socket, &to).expect("the server listens");
        Self::of(socket.into())
    }

    /// Connects from this address of the loopback network. All of that network belongs to the
    /// machine.
    pub(crate) fn from(last: u8, to: SocketAddr) -> Self {
        let socket = socket(to);
        let source = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 0);
        rustix::net::bind(&socket, &source).expect("the address is the machine's");
        rustix::net::connect(&socket, &to).expect("the server listens");
        Self::of(socket.into())
    }

    fn of(socket: TcpStream) -> Self {
        socket.set_nonblocking(true).expect("the option can be set");
        socket.set_nodelay(true).expect("the option can be set");
        Self { socket, received: Vec::new(), unsent: Vec::new(), end: None, has_finished: false }
    }

    /// Sends bytes. Those that the kernel does not accept now are sent by the next call of any
    /// kind.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
        self.push();
    }

    pub(crate) fn send_frame(&mut self, first: u8, payload: impl AsRef<[u8]>) {
        self.send(&masked(first, payload.as_ref()));
    }

    /// Passes bytes to the kernel. A closed connection is not an error here.
    pub(crate) fn push(&mut self) {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.socket.write(&self.unsent[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if is_gone(&error) => sent = self.unsent.len(),
                Err(error) => panic!("{error}"),
            }
        }
        self.unsent.drain(..sent);
    }

    /// Number of bytes that the kernel has not accepted.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Shuts down the sending side.
    pub(crate) fn finish(&mut self) {
        self.push();
        assert_eq!(self.unsent(), 0, "the kernel has taken all of it");
        self.socket.shutdown(Shutdown::Write).expect("the connection is open");
    }

    /// Like [`finish`](Self::finish), but only the first time.
    pub(crate) fn finish_once(&mut self) {
        if !self.has_finished {
            self.has_finished = true;
            self.finish();
        }
    }

    /// Resets the connection, which discards data in flight (socket(7), `SO_LINGER`).
    pub(crate) fn reset(self) {
        sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO))
            .expect("the option can be set");
    }

    /// Waits for bytes or the end. If bytes are unsent, also waits until the kernel accepts some.
    /// The wait is limited.
    pub(crate) fn wait(&mut self, longest: Duration) {
        let flags =
            if self.unsent.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let longest = Timespec::try_from(longest).expect("it fits");
        poll(&mut [PollFd::new(&self.socket, flags)], Some(&longest)).expect("poll works");
    }

    /// Reads the bytes that have arrived.
    pub(crate) fn read(&mut self) {
        self.push();
        let mut buffer = [0; 16 << 10];
        while self.end.is_none() {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.end = Some(Ok(())),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if is_gone(&error) => self.end = Some(Err(error.kind())),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Returns the bytes that have arrived and were not taken as a head or a frame.
    pub(crate) fn received(&mut self) -> &[u8] {
        self.read();
        &self.received
    }

    /// Returns the head of the next response, if it is complete.
    pub(crate) fn head(&mut self) -> Option<String> {
        self.read();
        let end = self.received.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
        Some(String::from_utf8(self.received.drain(..end).collect()).expect("a head is text"))
    }

    /// Returns this many bytes, if they have arrived.
    pub(crate) fn bytes(&mut self, len: usize) -> Option<Vec<u8>> {
        self.read();
        (self.received.len() >= len).then(|| self.received.drain(..len).collect())
    }

    /// Returns the next frame, if it is complete.
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        self.read();
        let (&[first, second], rest) = self.received.split_first_chunk::<2>()?;
        let (len, head) = match second {
            126 => (u16::from_be_bytes(*rest.first_chunk::<2>()?).into(), 4),
            127 => (
                usize::try_from(u64::from_be_bytes(*rest.first_chunk::<8>()?)).expect("it fits"),
                10,
            ),
            len => (len.into(), 2),
        };
        assert!(second < 128, "a server's frames are not masked");
        let payload = self.received.get(head..head + len)?.to_vec();
        self.received.drain(..head + len);
        Some(Frame { first, payload })
    }

    /// Discards the bytes that have arrived.
    pub(crate) fn forget(&mut self) {
        self.read();
        self.received.clear();
    }

    /// Returns whether the connection has ended, whatever arrived before.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.read();
        self.end.is_some()
    }

    /// Returns how the connection ended, once everything before was taken.
    pub(crate) fn end(&mut self) -> Option<Result<(), ErrorKind>> {
        self.read();
        self.end.filter(|_| self.received.is_empty())
    }
}

fn socket(to: SocketAddr) -> OwnedFd {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .expect("there is a descriptor")
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}
