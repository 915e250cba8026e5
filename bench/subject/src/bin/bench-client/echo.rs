//! Messages that a server echoes. Each connection has `depth` of them in flight.

use std::net::TcpStream;

use windlass_bench_driver::protocol::{Outcome, ServerInfo};
use windlass_bench_driver::{Error, Measured};

use crate::clocks::{ServerClock, Window};
use crate::frame_cycle::{CyclePosition, FrameCycle, MessageSpec, split};
use crate::socket::{self, Poll, RECEIVE_BYTES, ReadResult, Writes};

/// Warm-up of a slice: number of messages of each connection, divided by its depth. After an idle
/// gap TCP acknowledges some sixteen segments at once.
const WARM_RUNS: u64 = 24;

/// All connections of a case.
pub(crate) struct EchoClient {
    poll: Poll,
    connections: Vec<Connection>,
    shared: EchoState,
    clock: ServerClock,
}

/// The state that the connections share.
#[derive(Debug)]
struct EchoState {
    requests: FrameCycle,
    replies: FrameCycle,
    depth: usize,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    /// The next request to send.
    next: usize,
    /// The part of the requests that the kernel has not taken yet.
    unsent: std::ops::Range<usize>,
    /// Number of requests to send after that.
    owed: usize,
    position: CyclePosition,
}

impl EchoClient {
    pub(crate) fn connect(
        server: &ServerInfo,
        spec: MessageSpec,
        connections: usize,
        depth: usize,
    ) -> Result<Self, Error> {
        let payloads = spec.payloads();
        let keys = (1_u32..).map(|number| (number * 0x1234_5679).to_be_bytes());
        let requests: Result<Vec<_>, _> =
            payloads.iter().zip(keys).map(|(p, key)| spec.request(p, key)).collect();
        let requests = requests?;
        let poll = Poll::new()?;
        let mut open = Vec::with_capacity(connections);
        for number in 0..connections {
            let socket = socket::open(server.address, "/", spec.deflate)?;
            poll.add(&socket, number, Writes::WhereThereIsRoom)?;
            open.push(Connection {
                socket,
                next: 0,
                unsent: 0..0,
                owed: 0,
                position: CyclePosition::default(),
            });
        }
        let replies = if spec.deflate {
            learn(&open[0].socket, spec, &payloads, &requests)?
        } else {
            payloads.iter().map(|payload| spec.reply(payload)).collect()
        };
        let shared = EchoState {
            requests: FrameCycle::new(&requests, depth),
            replies: FrameCycle::new(&replies, 1),
            depth,
            buffer: vec![0; RECEIVE_BYTES],
        };
        Ok(Self { poll, connections: open, shared, clock: ServerClock::of(server.process)? })
    }

    /// Exchanges messages until enough have been measured, and then waits for those in flight.
    fn run(&mut self, window: &mut Window) -> Result<(), Error> {
        let Self { poll, connections, shared, .. } = self;
        for connection in connections.iter_mut() {
            connection.send(shared.depth, shared)?;
        }
        let mut under_way = (connections.len() * shared.depth) as u64;
        while under_way > 0 {
            for index in 0..poll.wait()? {
                let connection = &mut connections[poll.ready(index)];
                if !connection.unsent.is_empty() {
                    connection.send_rest(shared)?;
                }
                let answered = connection.receive(shared)?;
                if answered == 0 {
                    continue;
                }
                under_way -= answered;
                if window.count(answered) {
                    under_way += answered;
                    connection.send(answered as usize, shared)?;
                }
            }
        }
        Ok(())
    }
}

impl Measured for EchoClient {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let warm = WARM_RUNS * (self.connections.len() * self.shared.depth) as u64;
        let mut window = Window::new(self.clock, warm, rounds);
        self.run(&mut window)?;
        Ok(window.outcome())
    }
}

impl Connection {
    /// Compares the received bytes. Returns the number of messages that they complete.
    fn receive(&mut self, shared: &mut EchoState) -> Result<u64, Error> {
        let mut answered = 0;
        loop {
            let ReadResult::Bytes(count) = socket::receive(&self.socket, &mut shared.buffer)?
            else {
                return Ok(answered);
            };
            let ended = self.position.advance(&shared.replies, &shared.buffer[..count]);
            answered += ended.ok_or_else(|| {
                format!("wrong bytes in the answer to message {}", self.position.frame)
            })?;
            if count < shared.buffer.len() {
                return Ok(answered);
            }
        }
    }

    /// Sends the next requests, after the waiting ones.
    fn send(&mut self, count: usize, shared: &EchoState) -> Result<(), Error> {
        if !self.unsent.is_empty() {
            self.owed += count;
            return Ok(());
        }
        self.unsent = shared.requests.run(self.next, count);
        self.next = shared.requests.after(self.next, count);
        self.send_rest(shared)
    }

    fn send_rest(&mut self, shared: &EchoState) -> Result<(), Error> {
        self.unsent.start +=
            socket::transmit(&self.socket, shared.requests.bytes(self.unsent.clone()))?;
        let owed = std::mem::take(&mut self.owed);
        if owed > 0 { self.send(owed, shared) } else { Ok(()) }
    }
}

/// Receives one echo of each message, checks it, and expects these bytes from then on. Without
/// context takeover the same message is always compressed to the same bytes.
fn learn(
    socket: &TcpStream,
    spec: MessageSpec,
    payloads: &[Vec<u8>],
    requests: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, Error> {
    let mut replies = Vec::new();
    for (payload, request) in payloads.iter().zip(requests) {
        let frame = ask(socket, request)?;
        if !spec.is_reply(&frame, payload)? {
            return Err("an answer is not the message".into());
        }
        replies.push(frame);
    }
    Ok(replies)
}

/// Sends a request, and waits for the complete frame that answers it.
pub(crate) fn ask(socket: &TcpStream, request: &[u8]) -> Result<Vec<u8>, Error> {
    use std::io::{Read, Write};
    socket.set_nonblocking(false)?;
    let mut stream = socket;
    stream.write_all(request)?;
    let mut frame = Vec::new();
    let mut piece = vec![0; RECEIVE_BYTES];
    while split(&frame).is_none_or(|(start, length)| frame.len() < start + length) {
        match stream.read(&mut piece)? {
            0 => return Err("closed instead of an answer".into()),
            count => frame.extend_from_slice(&piece[..count]),
        }
    }
    socket.set_nonblocking(true)?;
    Ok(frame)
}
