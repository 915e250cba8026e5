//! Messages of one connection that a server sends to all others. A message is in flight until all
//! receivers have it.

use std::collections::VecDeque;
use std::net::TcpStream;

use windlass_bench_driver::client::{ServerClock, Window};
use windlass_bench_driver::protocol::{Content, Outcome, ServerInfo};
use windlass_bench_driver::server::PUBLISHER;
use windlass_bench_driver::{Error, Measured};

use crate::frame_cycle::{CyclePosition, FrameCycle, MessageSpec};
use crate::socket::{self, Poll, RECEIVE_BYTES, ReadResult, Writes};

/// Warm-up of a slice: number of messages, divided by the number in flight.
const WARM_RUNS: u64 = 24;

/// All connections of a case.
pub(crate) struct PublishClient {
    poll: Poll,
    publisher: TcpStream,
    receivers: Vec<Receiver>,
    requests: FrameCycle,
    replies: FrameCycle,
    next: usize,
    flight: Flight,
    outstanding: usize,
    buffer: Vec<u8>,
    clock: ServerClock,
}

#[derive(Debug)]
struct Receiver {
    socket: TcpStream,
    position: CyclePosition,
    /// Number of messages that it has received.
    received: u64,
}

/// The messages that some receivers have not received.
#[derive(Debug, Default)]
struct Flight {
    /// Number of the first one.
    first: u64,
    /// Number of receivers that lack each message.
    lacking: VecDeque<u32>,
}

impl Flight {
    fn begin(&mut self, count: usize, receivers: usize) {
        self.lacking.extend(std::iter::repeat_n(receivers as u32, count));
    }

    /// Notes that a receiver has received these messages. Returns the number of messages that all
    /// receivers have now; `None` for a message that was never sent.
    fn got(&mut self, numbers: std::ops::Range<u64>) -> Option<usize> {
        for number in numbers {
            *self.lacking.get_mut((number - self.first) as usize)? -= 1;
        }
        let mut ended = 0;
        while self.lacking.front() == Some(&0) {
            self.lacking.pop_front();
            self.first += 1;
            ended += 1;
        }
        Some(ended)
    }
}

impl PublishClient {
    pub(crate) fn connect(
        server: &ServerInfo,
        receivers: usize,
        bytes: usize,
        outstanding: usize,
    ) -> Result<Self, Error> {
        let spec = MessageSpec { content: Content::Binary, bytes, deflate: false };
        let payloads = spec.payloads();
        let requests: Result<Vec<_>, _> =
            payloads.iter().map(|p| spec.request(p, [1, 2, 3, 4])).collect();
        let replies: Vec<_> = payloads.iter().map(|payload| spec.reply(payload)).collect();
        if outstanding * replies[0].len() >= RECEIVE_BYTES {
            return Err("so much cannot be under way".into());
        }
        let poll = Poll::new()?;
        let mut open = Vec::with_capacity(receivers);
        for number in 0..receivers {
            let socket = socket::open(server.address, "/", false)?;
            poll.add(&socket, number, Writes::Always)?;
            open.push(Receiver { socket, position: CyclePosition::default(), received: 0 });
        }
        let mut publish = Self {
            poll,
            publisher: socket::open(server.address, PUBLISHER, false)?,
            receivers: open,
            requests: FrameCycle::new(&requests?, outstanding),
            replies: FrameCycle::new(&replies, 1),
            next: 0,
            flight: Flight::default(),
            outstanding,
            buffer: vec![0; RECEIVE_BYTES],
            clock: ServerClock::of(server.process)?,
        };
        // sleep: an upgraded connection may not be subscribed yet, and no server tells when it is.
        // A message that is too early does not reach all receivers, and fails the run.
        std::thread::sleep(std::time::Duration::from_millis(100));
        publish.run(&mut Window::new(publish.clock, 0, 0))?;
        Ok(publish)
    }

    fn run(&mut self, window: &mut Window) -> Result<(), Error> {
        self.publish(self.outstanding)?;
        while !self.flight.lacking.is_empty() {
            for index in 0..self.poll.wait()? {
                let number = self.poll.ready(index);
                let receiver = &mut self.receivers[number];
                // The messages in flight fit into the buffer, so one read takes all bytes.
                let ReadResult::Bytes(count) = socket::receive(&receiver.socket, &mut self.buffer)?
                else {
                    continue;
                };
                let got = receiver.position.advance(&self.replies, &self.buffer[..count]);
                let got = got.ok_or_else(|| format!("wrong bytes for receiver {number}"))?;
                let numbers = receiver.received..receiver.received + got;
                receiver.received = numbers.end;
                let ended =
                    self.flight.got(numbers).ok_or("a message that was not sent has come")?;
                if window.count(got) && ended > 0 {
                    self.publish(ended)?;
                }
            }
        }
        Ok(())
    }

    /// Sends the next messages. The socket has space for them, because the server has read all
    /// earlier ones.
    fn publish(&mut self, count: usize) -> Result<(), Error> {
        self.flight.begin(count, self.receivers.len());
        let run = self.requests.run(self.next, count);
        self.next = self.requests.after(self.next, count);
        if socket::transmit(&self.publisher, self.requests.bytes(run.clone()))? != run.len() {
            return Err("the publisher's messages do not fit into its socket".into());
        }
        Ok(())
    }
}

impl Measured for PublishClient {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let warm = WARM_RUNS * (self.receivers.len() * self.outstanding) as u64;
        let mut window = Window::new(self.clock, warm, rounds);
        self.run(&mut window)?;
        Ok(window.outcome())
    }
}

#[cfg(test)]
mod tests {
    use super::Flight;

    #[test]
    fn a_message_ends_when_all_have_it() {
        let mut flight = Flight::default();
        flight.begin(3, 2);
        assert_eq!(flight.got(0..2), Some(0));
        assert_eq!(flight.got(0..1), Some(1));
        assert_eq!(flight.got(1..3), Some(1));
        assert_eq!(flight.got(2..3), Some(1));
        assert_eq!(flight.got(3..4), None);
    }
}
