//! Messages that a server echoes over HTTP/2 (RFC 8441): each connection has several WebSockets.
//!
//! The client has the least that a case needs. Its requests use no table of headers, and its
//! messages are short, so a server with the usual windows never stops it. Its own windows hold more
//! than a slice brings, and are opened again between slices. A server that finds them violated, or
//! ends a stream, fails the case.

use std::net::{SocketAddr, TcpStream};

use windlass_bench_driver::client::{ServerClock, Window};
use windlass_bench_driver::protocol::{Content, Outcome, ServerInfo};
use windlass_bench_driver::{Error, Measured};

use crate::frame_cycle::{CyclePosition, FrameCycle, MessageSpec};
use crate::socket::{self, Poll, RECEIVE_BYTES, ReadResult, Writes};

/// Warm-up of a slice, as in `echo`.
const WARM_RUNS: u64 = 24;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame's header (RFC 9113 section 4.1).
const HEADER_LEN: usize = 9;
/// Maximum length of a frame's payload, of both sides.
const PAYLOAD_MAX: usize = 16 << 10;
/// The largest window, and the one at the beginning.
const WINDOW_MAX: u32 = (1 << 31) - 1;
const WINDOW_FIRST: u32 = 65_535;

// Types and flags of frames (RFC 9113 section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// All connections of a case.
pub(crate) struct Http2Client {
    poll: Poll,
    connections: Vec<Connection>,
    shared: EchoState,
    clock: ServerClock,
}

struct EchoState {
    requests: FrameCycle,
    replies: FrameCycle,
    depth: usize,
    buffer: Vec<u8>,
}

struct Connection {
    socket: TcpStream,
    has_settings: bool,
    streams: Vec<Stream>,
    /// The beginning of a frame.
    partial: Vec<u8>,
    /// What the kernel has not taken yet.
    out: Vec<u8>,
}

/// A WebSocket.
#[derive(Clone, Default)]
struct Stream {
    is_open: bool,
    next: usize,
    position: CyclePosition,
    /// Received bytes for which the window is not open again.
    received: u32,
}

impl Http2Client {
    pub(crate) fn connect(
        server: &ServerInfo,
        bytes: usize,
        connections: usize,
        streams: usize,
        depth: usize,
    ) -> Result<Self, Error> {
        let spec = MessageSpec { content: Content::Binary, bytes, deflate: false };
        let payloads = spec.payloads();
        let requests: Result<Vec<_>, _> = payloads
            .iter()
            .map(|payload| spec.request(payload, [0x12, 0x34, 0x56, 0x79]))
            .collect();
        let replies: Vec<_> = payloads.iter().map(|payload| spec.reply(payload)).collect();
        let mut shared = EchoState {
            requests: FrameCycle::new(&requests?, depth),
            replies: FrameCycle::new(&replies, 1),
            depth,
            buffer: vec![0; RECEIVE_BYTES],
        };
        if shared.requests.run(0, depth).len() > PAYLOAD_MAX {
            return Err("the messages in flight must fit into a frame".into());
        }
        let poll = Poll::new()?;
        let mut open = Vec::with_capacity(connections);
        for number in 0..connections {
            let connection = Connection::open(server.address, streams, &mut shared)?;
            poll.add(&connection.socket, number, Writes::WhereThereIsRoom)?;
            open.push(connection);
        }
        Ok(Self { poll, connections: open, shared, clock: ServerClock::of(server.process)? })
    }

    /// Exchanges messages until enough have been measured, and then waits for those in flight.
    fn run(&mut self, window: &mut Window) -> Result<(), Error> {
        let Self { poll, connections, shared, .. } = self;
        let mut under_way = 0;
        for connection in connections.iter_mut() {
            under_way += (connection.streams.len() * shared.depth) as u64;
            connection.begin(shared)?;
        }
        let mut goes_on = |answered: u64| {
            let goes_on = window.count(answered);
            under_way -= if goes_on { 0 } else { answered };
            (goes_on, under_way)
        };
        loop {
            for index in 0..poll.wait()? {
                let connection = &mut connections[poll.ready(index)];
                while !connection.receive(shared, &mut |answered| goes_on(answered).0)? {}
                connection.flush()?;
                if goes_on(0).1 == 0 {
                    return Ok(());
                }
            }
        }
    }
}

impl Measured for Http2Client {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let streams: usize = self.connections.iter().map(|it| it.streams.len()).sum();
        let warm = WARM_RUNS * (streams * self.shared.depth) as u64;
        let mut window = Window::new(self.clock, warm, rounds);
        self.run(&mut window)?;
        Ok(window.outcome())
    }
}

impl Connection {
    /// Opens a connection with this many WebSockets.
    fn open(address: SocketAddr, streams: usize, shared: &mut EchoState) -> Result<Self, Error> {
        let mut connection = Self {
            socket: socket::connect(address)?,
            has_settings: false,
            streams: vec![Stream::default(); streams],
            partial: Vec::new(),
            out: PREFACE.to_vec(),
        };
        // SETTINGS_INITIAL_WINDOW_SIZE.
        let window = [&[0, 4][..], &WINDOW_MAX.to_be_bytes()].concat();
        connection.push_at(SETTINGS, 0, 0, &window);
        connection.push_window(0, WINDOW_MAX - WINDOW_FIRST);
        connection.flush()?;
        let mut none = |_: u64| false;
        // A client must know that the server accepts WebSockets (RFC 8441 section 3).
        while !connection.has_settings {
            connection.receive(shared, &mut none)?;
        }
        let headers = request(&address.to_string());
        (0..streams).for_each(|stream| connection.push(HEADERS, END_HEADERS, stream, &headers));
        connection.flush()?;
        while !connection.streams.iter().all(|stream| stream.is_open) {
            connection.receive(shared, &mut none)?;
        }
        connection.flush()?;
        connection.socket.set_nonblocking(true)?;
        Ok(connection)
    }

    /// Opens the windows again, and sends the first messages of a slice.
    fn begin(&mut self, shared: &EchoState) -> Result<(), Error> {
        let received: u32 = self.streams.iter().map(|stream| stream.received).sum();
        if received > 0 {
            self.push_window(0, received);
        }
        for number in 0..self.streams.len() {
            let received = std::mem::take(&mut self.streams[number].received);
            if received > 0 {
                self.push_window(stream_id(number), received);
            }
            self.ask(number, shared.depth, shared);
        }
        self.flush()
    }

    /// Queues the next messages of a WebSocket.
    fn ask(&mut self, number: usize, count: usize, shared: &EchoState) {
        let stream = &mut self.streams[number];
        let run = shared.requests.run(stream.next, count);
        stream.next = shared.requests.after(stream.next, count);
        self.push(DATA, 0, number, shared.requests.bytes(run));
    }

    /// Reads once, and takes all complete frames. `goes_on` gets the number of messages that one
    /// completes, and returns whether as many are to be sent. Returns whether nothing more came.
    fn receive(
        &mut self,
        shared: &mut EchoState,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool, Error> {
        let mut buffer = std::mem::take(&mut shared.buffer);
        let kept = self.partial.len();
        buffer[..kept].copy_from_slice(&self.partial);
        let read = socket::receive(&self.socket, &mut buffer[kept..])?;
        let ReadResult::Bytes(count) = read else {
            shared.buffer = buffer;
            return Ok(true);
        };
        let mut bytes = &buffer[..kept + count];
        while let Some((frame, rest)) = split(bytes) {
            self.take(frame, shared, goes_on)?;
            bytes = rest;
        }
        self.partial.clear();
        self.partial.extend_from_slice(bytes);
        let is_drained = kept + count < buffer.len();
        shared.buffer = buffer;
        Ok(is_drained)
    }

    fn take(
        &mut self,
        frame: Frame<'_>,
        shared: &EchoState,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), Error> {
        let Frame { kind, flags, id, payload } = frame;
        let number = (id / 2) as usize;
        match (kind, flags) {
            (DATA, 0) => {
                let stream = self.streams.get_mut(number).ok_or("no such stream")?;
                stream.received += payload.len() as u32;
                let answered = stream.position.advance(&shared.replies, payload);
                let answered = answered.ok_or_else(|| {
                    format!("wrong bytes in the answer to message {}", stream.position.frame)
                })?;
                if answered > 0 && goes_on(answered) {
                    self.ask(number, answered as usize, shared);
                }
            }
            (HEADERS, END_HEADERS) => {
                let stream = self.streams.get_mut(number).ok_or("no such stream")?;
                // The status 200, perhaps behind the size of the table (RFC 7541 section 6.3).
                let status = payload.iter().find(|byte| **byte & 0xe0 != 0x20);
                if stream.is_open || status != Some(&0x88) {
                    return Err(format!("no upgrade as asked for: {payload:02x?}").into());
                }
                stream.is_open = true;
            }
            (SETTINGS, 0) => {
                self.has_settings = true;
                self.push_at(SETTINGS, ACK, 0, &[]);
            }
            (PING, 0) => self.push_at(PING, ACK, 0, payload),
            (SETTINGS | PING, ACK) | (WINDOW_UPDATE, _) => {}
            _ => return Err(format!("a frame of type {kind} with {flags:#x} came").into()),
        }
        Ok(())
    }

    /// Queues a frame of a WebSocket.
    fn push(&mut self, kind: u8, flags: u8, number: usize, payload: &[u8]) {
        self.push_at(kind, flags, stream_id(number), payload);
    }

    fn push_at(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        self.out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        self.out.extend_from_slice(&[kind, flags]);
        self.out.extend_from_slice(&id.to_be_bytes());
        self.out.extend_from_slice(payload);
    }

    fn push_window(&mut self, id: u32, more: u32) {
        self.push_at(WINDOW_UPDATE, 0, id, &more.to_be_bytes());
    }

    fn flush(&mut self) -> Result<(), Error> {
        if !self.out.is_empty() {
            let sent = socket::transmit(&self.socket, &self.out)?;
            self.out.drain(..sent);
        }
        Ok(())
    }
}

/// The streams of a client have odd numbers.
fn stream_id(number: usize) -> u32 {
    2 * number as u32 + 1
}

/// A frame of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame<'a> {
    kind: u8,
    flags: u8,
    id: u32,
    payload: &'a [u8],
}

/// Splits the first frame off, once it is complete.
fn split(bytes: &[u8]) -> Option<(Frame<'_>, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let [l0, l1, l2, kind, flags, id @ ..] = *header;
    let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
    let (payload, rest) = rest.split_at_checked(length)?;
    Some((Frame { kind, flags, id: u32::from_be_bytes(id), payload }, rest))
}

/// The headers of an extended CONNECT (RFC 8441 section 5), none of which enters the table of
/// headers (RFC 7541 section 6.2.2).
fn request(authority: &str) -> Vec<u8> {
    fn text(text: &str) -> Vec<u8> {
        [&[text.len() as u8], text.as_bytes()].concat()
    }
    let protocol = [text(":protocol"), text("websocket")].concat();
    let version = [text("sec-websocket-version"), text("13")].concat();
    // Names and fields of the static table: `:method` 2, `:scheme: http` 6, `:path: /` 4,
    // `:authority` 1.
    [
        &[2][..],
        &text("CONNECT"),
        &[0],
        &protocol,
        &[0x86, 0x84, 1],
        &text(authority),
        &[0],
        &version,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_when_it_is_complete() {
        let bytes = b"\0\0\x02\0\0\0\0\0\x05hi\0\0\0\x04\x01\0\0\0\0";
        for len in 0..11 {
            assert_eq!(split(&bytes[..len]), None);
        }
        let (frame, rest) = split(bytes).unwrap();
        assert_eq!(frame, Frame { kind: DATA, flags: 0, id: 5, payload: b"hi" });
        let (frame, rest) = split(rest).unwrap();
        assert_eq!(frame, Frame { kind: SETTINGS, flags: ACK, id: 0, payload: b"" });
        assert!(rest.is_empty());
    }
}
