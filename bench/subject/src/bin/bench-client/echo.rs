//! Messages that a server echoes. Each connection has `depth` of them in flight.

use windlass_bench_driver::client::{ServerClock, Window};
use windlass_bench_driver::protocol::{Outcome, ServerInfo};
use windlass_bench_driver::{Error, Measured};

use crate::frame_cycle::{CyclePosition, FrameCycle, MessageSpec};
use crate::link::{Link, TlsClient};
use crate::socket::{Poll, RECEIVE_BYTES, Writes};

/// Warm-up of a slice: number of messages of each connection, divided by its depth. After an idle
/// gap TCP acknowledges some sixteen segments at once.
const WARM_RUNS: u64 = 24;

/// The same for ten thousand connections. TCP acknowledges all their segments at once, because a
/// longer warm-up would take some seconds.
const WARM_RUNS_OF_MANY: u64 = 2;

/// So many connections are many.
const MANY: usize = 10_000;

/// All connections of a case.
pub(crate) struct EchoClient {
    pub(crate) poll: Poll,
    pub(crate) connections: Vec<Connection>,
    pub(crate) shared: EchoState,
    pub(crate) clock: ServerClock,
    /// The mean length of an answer, if they are compressed.
    compressed_bytes: Option<f64>,
}

/// The state that the connections share.
#[derive(Debug)]
pub(crate) struct EchoState {
    requests: FrameCycle,
    replies: FrameCycle,
    depth: usize,
    buffer: Vec<u8>,
}

pub(crate) struct Connection {
    link: Link,
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
        mut tls: Option<TlsClient>,
    ) -> Result<Self, Error> {
        let payloads = spec.payloads();
        let keys = (1_u32..).map(|number| (number * 0x1234_5679).to_be_bytes());
        let requests: Result<Vec<_>, _> =
            payloads.iter().zip(keys).map(|(p, key)| spec.request(p, key)).collect();
        let requests = requests?;
        let poll = Poll::new()?;
        let mut open = Vec::with_capacity(connections);
        for number in 0..connections {
            let tls = tls.as_mut().map(TlsClient::begin).transpose()?;
            let link = Link::open(server.address, spec.deflate, tls)?;
            poll.add(&link, number, Writes::WhereThereIsRoom)?;
            open.push(Connection {
                link,
                next: 0,
                unsent: 0..0,
                owed: 0,
                position: CyclePosition::default(),
            });
        }
        let replies = if server.echoes_bytes {
            requests.clone()
        } else if spec.deflate {
            learn(&mut open[0].link, spec, &payloads, &requests)?
        } else {
            payloads.iter().map(|payload| spec.reply(payload)).collect()
        };
        let shared = EchoState {
            requests: FrameCycle::new(&requests, depth),
            replies: FrameCycle::new(&replies, 1),
            depth,
            buffer: vec![0; RECEIVE_BYTES],
        };
        let compressed_bytes = spec.deflate.then(|| shared.replies.frame_bytes_mean());
        let clock = ServerClock::of(server.process)?;
        Ok(Self { poll, connections: open, shared, clock, compressed_bytes })
    }

    /// Exchanges messages until enough have been measured, and then waits for those in flight.
    fn run(&mut self, window: &mut Window) -> Result<(), Error> {
        let mut under_way = self.begin()?;
        while under_way > 0 {
            let ready = self.poll.wait()?;
            under_way -= self.exchange(ready, |answered| window.count(answered))?;
        }
        Ok(())
    }

    /// Sends the first messages. Returns how many are in flight.
    pub(crate) fn begin(&mut self) -> Result<u64, Error> {
        let Self { connections, shared, .. } = self;
        connections.iter_mut().try_for_each(|each| each.send(shared.depth, shared))?;
        Ok((connections.len() * shared.depth) as u64)
    }

    /// Receives answers from ready sockets. Sends as many messages again if `goes_on`, which gets
    /// the number of answers. Returns how many fewer are in flight.
    pub(crate) fn exchange(
        &mut self,
        ready: usize,
        mut goes_on: impl FnMut(u64) -> bool,
    ) -> Result<u64, Error> {
        let Self { poll, connections, shared, .. } = self;
        let mut fewer = 0;
        for index in 0..ready {
            let connection = &mut connections[poll.ready(index)];
            if !connection.unsent.is_empty() || connection.link.has_records() {
                connection.send_rest(shared)?;
            }
            let answered = connection.receive(shared)?;
            if answered == 0 {
                continue;
            }
            if goes_on(answered) {
                connection.send(answered as usize, shared)?;
            } else {
                fewer += answered;
            }
        }
        Ok(fewer)
    }
}

impl Measured for EchoClient {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let runs = if self.connections.len() < MANY { WARM_RUNS } else { WARM_RUNS_OF_MANY };
        let warm = runs * (self.connections.len() * self.shared.depth) as u64;
        let mut window = Window::new(self.clock, warm, rounds);
        self.run(&mut window)?;
        let mut outcome = window.outcome();
        let bytes = self.compressed_bytes.map(|bytes| ("answer_bytes_per_message".into(), bytes));
        outcome.gauges.extend(bytes);
        Ok(outcome)
    }
}

impl Connection {
    /// Compares the received bytes. Returns the number of messages that they complete.
    pub(crate) fn receive(&mut self, shared: &mut EchoState) -> Result<u64, Error> {
        let mut answered = 0;
        loop {
            let Some(received) = self.link.receive(&mut shared.buffer)? else {
                return Ok(answered);
            };
            let came = &shared.buffer[..received.count];
            let ended = self.position.advance(&shared.replies, came);
            answered += ended.ok_or_else(|| {
                format!("wrong bytes in the answer to message {}", self.position.frame)
            })?;
            if received.is_drained {
                return Ok(answered);
            }
        }
    }

    /// Sends the next request, all of it at once.
    pub(crate) fn send_one(&mut self, shared: &EchoState) -> Result<(), Error> {
        self.send(1, shared)?;
        if self.unsent.is_empty() {
            Ok(())
        } else {
            Err("a message does not fit its socket".into())
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
        self.unsent.start += self.link.transmit(shared.requests.bytes(self.unsent.clone()))?;
        let owed = std::mem::take(&mut self.owed);
        if owed > 0 { self.send(owed, shared) } else { Ok(()) }
    }
}

/// Receives one echo of each message, checks it, and expects these bytes from then on. Without
/// context takeover the same message is always compressed to the same bytes.
fn learn(
    link: &mut Link,
    spec: MessageSpec,
    payloads: &[Vec<u8>],
    requests: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, Error> {
    let mut replies = Vec::new();
    for (payload, request) in payloads.iter().zip(requests) {
        let frame = link.ask(request)?;
        if !spec.is_reply(&frame, payload)? {
            return Err("an answer is not the message".into());
        }
        replies.push(frame);
    }
    Ok(replies)
}
