//! Publications of one connection that reach receivers at the same server, at another one, or by
//! nats-server alone. The time of each delivery is taken.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use windlass_bench_driver::client::{ServerClock, Window};
use windlass_bench_driver::protocol::{Content, Outcome, ServerInfo};
use windlass_bench_driver::server::{PUBLISHER, TOPIC};
use windlass_bench_driver::{Error, Measured};

use crate::frame_cycle::MessageSpec;
use crate::socket::{self, Poll, RECEIVE_BYTES, ReadResult, Writes};

/// Warm-up of a slice: number of messages, divided by the number in flight.
const WARM_RUNS: u64 = 5;

/// What nats-server sends now and then, and the answer.
const PING: &[u8] = b"PING\r\n";
const PONG: &[u8] = b"PONG\r\n";

/// All connections of a case.
pub(crate) struct FanOutClient {
    poll: Poll,
    publisher: TcpStream,
    receivers: Vec<Receiver>,
    requests: Vec<Vec<u8>>,
    replies: Vec<Vec<u8>>,
    /// The messages that some receivers lack: when each was sent, and how many lack it.
    flight: VecDeque<(Instant, u32)>,
    /// Number of the first of them.
    first: u64,
    outstanding: usize,
    buffer: Vec<u8>,
    clock: ServerClock,
}

struct Receiver {
    socket: TcpStream,
    /// The beginning of a message.
    partial: Vec<u8>,
    /// Number of messages that it has received.
    received: u64,
}

impl Receiver {
    /// Reads what is there. Returns the number of messages.
    fn receive(&mut self, buffer: &mut [u8], replies: &[Vec<u8>]) -> Result<u64, Error> {
        let kept = self.partial.len();
        let ReadResult::Bytes(count) = socket::receive(&self.socket, &mut buffer[kept..])? else {
            return Ok(0);
        };
        buffer[..kept].copy_from_slice(&self.partial);
        self.partial.clear();
        let (mut rest, before) = (&buffer[..kept + count], self.received);
        while !rest.is_empty() {
            let expected = &replies[self.received as usize % replies.len()];
            if let Some(after) = rest.strip_prefix(expected.as_slice()) {
                (rest, self.received) = (after, self.received + 1);
            } else if let Some(after) = rest.strip_prefix(PING) {
                socket::transmit(&self.socket, PONG)?;
                rest = after;
            } else if expected.starts_with(rest) || PING.starts_with(rest) {
                self.partial.extend_from_slice(rest);
                break;
            } else {
                return Err(format!("wrong bytes in message {}", self.received).into());
            }
        }
        Ok(self.received - before)
    }
}

/// Opens a connection to nats-server, with these lines.
fn open_nats(address: SocketAddr, lines: &str) -> Result<TcpStream, Error> {
    let mut socket = socket::connect(address)?;
    let connect = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n";
    socket.write_all(format!("{connect}{lines}PING\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while !answer.ends_with(PONG) {
        match socket.read(&mut piece)? {
            0 => return Err("nats-server closes".into()),
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A message in the protocol of NATS.
fn nats_frame(verb: &str, payload: &[u8]) -> Vec<u8> {
    let mut frame = format!("{verb} {}\r\n", payload.len()).into_bytes();
    frame.extend_from_slice(payload);
    frame.extend_from_slice(b"\r\n");
    frame
}

impl FanOutClient {
    pub(crate) fn connect(
        server: &ServerInfo,
        receivers: usize,
        bytes: usize,
        outstanding: usize,
    ) -> Result<Self, Error> {
        let spec = MessageSpec { content: Content::Binary, bytes, deflate: false };
        let payloads = spec.payloads();
        let is_nats = server.speaks_nats;
        let requests: Result<Vec<_>, Error> = payloads
            .iter()
            .map(|payload| match is_nats {
                true => Ok(nats_frame(&format!("PUB {TOPIC}"), payload)),
                false => spec.request(payload, [1, 2, 3, 4]),
            })
            .collect();
        let replies: Vec<_> = payloads
            .iter()
            .map(|payload| match is_nats {
                true => nats_frame(&format!("MSG {TOPIC} 1"), payload),
                false => spec.reply(payload),
            })
            .collect();
        let poll = Poll::new()?;
        let place = server.receivers.unwrap_or(server.address);
        let mut open = Vec::with_capacity(receivers);
        for number in 0..receivers {
            let socket = match is_nats {
                true => open_nats(place, &format!("SUB {TOPIC} 1\r\n"))?,
                false => socket::open(place, "/", false)?,
            };
            poll.add(&socket, number, Writes::Always)?;
            open.push(Receiver { socket, partial: Vec::new(), received: 0 });
        }
        let publisher = match is_nats {
            true => open_nats(server.address, "")?,
            false => socket::open(server.address, PUBLISHER, false)?,
        };
        // sleep: an upgraded connection may not be subscribed yet, and a node not yet on NATS. No
        // server tells when it is. A message that is too early fails the run.
        std::thread::sleep(Duration::from_millis(300));
        Ok(Self {
            poll,
            publisher,
            receivers: open,
            requests: requests?,
            replies,
            flight: VecDeque::new(),
            first: 0,
            outstanding,
            buffer: vec![0; RECEIVE_BYTES],
            clock: ServerClock::of(server.process)?,
        })
    }

    /// Sends the next messages, in one call.
    fn publish(&mut self, count: usize) -> Result<(), Error> {
        let next = self.first as usize + self.flight.len();
        let kinds = self.requests.len();
        let bytes: Vec<u8> =
            (next..next + count).flat_map(|at| &self.requests[at % kinds]).copied().collect();
        let receivers = u32::try_from(self.receivers.len())?;
        self.flight.extend(std::iter::repeat_n((Instant::now(), receivers), count));
        if socket::transmit(&self.publisher, &bytes)? != bytes.len() {
            return Err("the publisher's messages do not fit into its socket".into());
        }
        Ok(())
    }

    /// Notes the messages that a receiver has got. Returns how many all of them have now.
    fn note(&mut self, numbers: std::ops::Range<u64>, into: &mut Vec<u64>) -> Result<usize, Error> {
        let now = Instant::now();
        for number in numbers {
            let place = usize::try_from(number - self.first)?;
            let flight = self.flight.get_mut(place).ok_or("a message that was not sent")?;
            flight.1 -= 1;
            into.push(now.duration_since(flight.0).as_nanos() as u64);
        }
        let mut ended = 0;
        while self.flight.front().is_some_and(|flight| flight.1 == 0) {
            self.flight.pop_front();
            (self.first, ended) = (self.first + 1, ended + 1);
        }
        Ok(ended)
    }
}

impl Measured for FanOutClient {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let warm = WARM_RUNS * (self.receivers.len() * self.outstanding) as u64;
        let mut window = Window::new(self.clock, warm, rounds);
        let mut latencies = Vec::new();
        let mut seen = 0;
        self.publish(self.outstanding)?;
        while !self.flight.is_empty() {
            for index in 0..self.poll.wait()? {
                let receiver = &mut self.receivers[self.poll.ready(index)];
                let before = receiver.received;
                let got = receiver.receive(&mut self.buffer, &self.replies)?;
                if got == 0 {
                    continue;
                }
                let ended = self.note(before..before + got, &mut latencies)?;
                seen += got;
                // The warm-up is no part of the result.
                if seen < warm {
                    latencies.clear();
                }
                if window.count(got) && ended > 0 {
                    self.publish(ended)?;
                }
            }
        }
        let mut outcome = window.outcome();
        latencies.sort_unstable();
        for (name, share) in [("latency_p50_us", 0.5), ("latency_p99_us", 0.99)] {
            let at = (latencies.len() as f64 * share) as usize;
            if let Some(ns) = latencies.get(at) {
                outcome.gauges.insert(name.to_owned(), *ns as f64 / 1e3);
            }
        }
        Ok(outcome)
    }
}
