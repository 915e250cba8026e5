//! TLS connections that are opened, upgraded and closed by the client, and a flood of handshakes
//! that it gives up.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use windlass_bench_driver::client::{ServerClock, Window};
use windlass_bench_driver::protocol::{Content, Outcome, ServerInfo};
use windlass_bench_driver::tls::TlsHandshake;
use windlass_bench_driver::{Error, Measured};

use crate::frame_cycle::MessageSpec;
use crate::link::{Link, TlsClient, TlsEnd};
use crate::socket::{self, Poll, RECEIVE_BYTES, ReadResult, Writes, is_upgraded};
use crate::upgrade::connect;

/// Number of connections of the warm-up, or that of the measurement if it is less.
const WARM: u64 = 50;

pub(crate) struct TlsUpgradeClient {
    poll: Poll,
    address: SocketAddr,
    request: Vec<u8>,
    handshake: TlsHandshake,
    tls: TlsClient,
    slots: Vec<Option<Opening>>,
    begun: u32,
    buffer: Vec<u8>,
    clock: ServerClock,
}

/// A connection in flight, with the received part of its response.
struct Opening {
    socket: TcpStream,
    tls: TlsEnd,
    has_asked: bool,
    answer: Vec<u8>,
}

impl TlsUpgradeClient {
    pub(crate) fn new(
        server: &ServerInfo,
        handshake: TlsHandshake,
        parallel: usize,
    ) -> Result<Self, Error> {
        Ok(Self {
            poll: Poll::new()?,
            address: server.address,
            request: socket::request(server.address, "/", false),
            handshake,
            tls: TlsClient::new()?,
            slots: std::iter::repeat_with(|| None).take(parallel).collect(),
            begun: 0,
            buffer: vec![0; RECEIVE_BYTES],
            clock: ServerClock::of(server.process)?,
        })
    }

    fn begin(&mut self, number: usize) -> Result<(), Error> {
        self.begun = self.begun.wrapping_add(1);
        let socket = connect(self.address, self.begun)?;
        let mut tls = match self.handshake {
            TlsHandshake::Full => self.tls.begin()?,
            _ => self.tls.resume(number)?,
        };
        if !tls.flush(&socket)? {
            return Err("a request does not fit into a new socket".into());
        }
        self.poll.add(&socket, number, Writes::Always)?;
        self.slots[number] = Some(Opening { socket, tls, has_asked: false, answer: Vec::new() });
        Ok(())
    }

    /// Reads what came. Returns true when the connection is upgraded.
    fn receive(&mut self, number: usize) -> Result<bool, Error> {
        let opening = self.slots[number].as_mut().ok_or("nobody was asked")?;
        let Some(received) = opening.tls.receive(&opening.socket, &mut self.buffer)? else {
            return Ok(false);
        };
        if opening.tls.is_open() && !opening.has_asked {
            opening.has_asked = true;
            opening.tls.seal(&self.request)?;
            opening.tls.flush(&opening.socket)?;
        }
        opening.answer.extend_from_slice(&self.buffer[..received.count]);
        Ok(is_upgraded(&opening.answer, false)?.is_some())
    }

    fn run(&mut self, window: &mut Window) -> Result<(), Error> {
        let mut under_way = self.slots.len();
        (0..under_way).try_for_each(|number| self.begin(number))?;
        while under_way > 0 {
            for index in 0..self.poll.wait()? {
                let number = self.poll.ready(index);
                if !self.receive(number)? {
                    continue;
                }
                // Closing the socket removes it from the poll.
                self.slots[number] = None;
                if window.count(1) { self.begin(number)? } else { under_way -= 1 }
            }
        }
        Ok(())
    }
}

impl Measured for TlsUpgradeClient {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        if self.handshake == TlsHandshake::Resumed && self.begun == 0 {
            // The first connections have nothing to resume.
            self.run(&mut Window::new(self.clock, 1, 1))?;
        }
        let (begun, resumed) = (self.begun, self.tls.resumed());
        let mut window = Window::new(self.clock, WARM.min(rounds), rounds);
        self.run(&mut window)?;
        let expected = match self.handshake {
            TlsHandshake::Resumed => u64::from(self.begun - begun),
            _ => 0,
        };
        if self.tls.resumed() - resumed != expected {
            return Err("a handshake was not of the kind that is measured".into());
        }
        Ok(window.outcome())
    }
}

const SPEC: MessageSpec = MessageSpec { content: Content::Binary, bytes: 20, deflate: false };

/// The pause between an answer and the next message of a connection.
const PAUSE: Duration = Duration::from_micros(500);

/// Open connections beside a flood of handshakes.
pub(crate) struct FloodClient {
    poll: Poll,
    address: SocketAddr,
    links: Vec<Patient>,
    flood: Vec<Option<TcpStream>>,
    /// A ClientHello, which all handshakes of the flood begin with. The server cannot know that it
    /// is the same one, and this client saves its part of the cryptography.
    hello: Vec<u8>,
    begun: u32,
    /// Handshakes that the server has answered.
    answered: u64,
    request: Vec<u8>,
    reply: Vec<u8>,
    buffer: Vec<u8>,
    latencies_us: Vec<f64>,
    clock: ServerClock,
}

/// An open connection, which sends a message now and then.
struct Patient {
    link: Link,
    /// When its message was sent, if an answer is awaited.
    sent: Option<Instant>,
    /// When it may send the next one.
    next: Instant,
    answer: Vec<u8>,
}

impl FloodClient {
    pub(crate) fn connect(
        server: &ServerInfo,
        connections: usize,
        handshakes: usize,
    ) -> Result<Self, Error> {
        let (mut tls, poll) = (TlsClient::new()?, Poll::new()?);
        let hello = tls.begin()?.records().to_vec();
        let mut links = Vec::new();
        for number in 0..connections {
            let link = Link::open(server.address, false, Some(tls.begin()?))?;
            poll.add(&link, number, Writes::Always)?;
            links.push(Patient { link, sent: None, next: Instant::now(), answer: Vec::new() });
        }
        let payload = &SPEC.payloads()[0];
        Ok(Self {
            poll,
            address: server.address,
            links,
            flood: std::iter::repeat_with(|| None).take(handshakes).collect(),
            hello,
            begun: 0,
            answered: 0,
            request: SPEC.request(payload, [4, 3, 2, 1])?,
            reply: SPEC.reply(payload),
            buffer: vec![0; RECEIVE_BYTES],
            latencies_us: Vec::new(),
            clock: ServerClock::of(server.process)?,
        })
    }

    fn begin(&mut self, number: usize) -> Result<(), Error> {
        self.begun = self.begun.wrapping_add(1);
        let socket = connect(self.address, self.begun)?;
        if socket::transmit(&socket, &self.hello)? != self.hello.len() {
            return Err("a request does not fit into a new socket".into());
        }
        self.poll.add(&socket, self.links.len() + number, Writes::Always)?;
        self.flood[number] = Some(socket);
        Ok(())
    }

    /// Sends the messages whose pauses are over.
    fn send_due(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        for patient in self.links.iter_mut().filter(|one| one.sent.is_none() && one.next <= now) {
            patient.link.transmit(&self.request)?;
            patient.sent = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns true if the answer is complete.
    fn answer(&mut self, number: usize) -> Result<bool, Error> {
        let patient = &mut self.links[number];
        let Some(received) = patient.link.receive(&mut self.buffer)? else { return Ok(false) };
        patient.answer.extend_from_slice(&self.buffer[..received.count]);
        if patient.answer.len() < self.reply.len() {
            return Ok(false);
        }
        let sent = patient.sent.take().ok_or("an answer came although none was due")?;
        if patient.answer != self.reply {
            return Err("an answer is not the message".into());
        }
        patient.answer.clear();
        let now = Instant::now();
        patient.next = now + PAUSE;
        self.latencies_us.push((now - sent).as_nanos() as f64 / 1e3);
        Ok(true)
    }
}

impl Measured for FloodClient {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let mut window = Window::new(self.clock, self.links.len() as u64, rounds);
        self.latencies_us.clear();
        let (begun, answered) = (Instant::now(), self.answered);
        (0..self.flood.len()).try_for_each(|number| self.begin(number))?;
        let mut goes_on = true;
        while goes_on || self.links.iter().any(|link| link.sent.is_some()) {
            if goes_on {
                self.send_due()?;
            }
            for index in 0..self.poll.wait()? {
                let number = self.poll.ready(index);
                if number < self.links.len() {
                    if self.answer(number)? {
                        goes_on &= window.count(1);
                    }
                    continue;
                }
                let number = number - self.links.len();
                let Some(socket) = &self.flood[number] else { continue };
                if let ReadResult::Bytes(_) = socket::receive(socket, &mut self.buffer)? {
                    self.answered += 1;
                    self.begin(number)?;
                }
            }
        }
        let elapsed = begun.elapsed().as_secs_f64();
        self.flood.fill_with(|| None);
        let mut outcome = window.outcome();
        self.latencies_us.sort_by(f64::total_cmp);
        let last = self.latencies_us.len() - 1;
        for (name, per_cent) in [("latency_p50_us", 50), ("latency_p99_us", 99)] {
            outcome.gauges.insert(name.to_owned(), self.latencies_us[last * per_cent / 100]);
        }
        let per_s = (self.answered - answered) as f64 / elapsed;
        outcome.gauges.insert("handshakes_per_s".to_owned(), per_s);
        Ok(outcome)
    }
}
