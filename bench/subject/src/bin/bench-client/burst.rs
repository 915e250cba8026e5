//! Messages that arrive all at once, at a server that works on each before it answers. The first
//! connection may send several of them.
//!
//! The server is stopped (SIGSTOP) while the client sends. So all messages have arrived when it
//! continues, and the latency of an answer is counted from that moment.

use std::net::TcpStream;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use windlass_bench_driver::client::{ServerClock, Window};
use windlass_bench_driver::protocol::{Content, Outcome, ServerInfo};
use windlass_bench_driver::{Error, Measured};

use crate::frame_cycle::{CyclePosition, FrameCycle, MessageSpec};
use crate::socket::{self, Poll, RECEIVE_BYTES, ReadResult, Writes};

const SPEC: MessageSpec = MessageSpec { content: Content::Binary, bytes: 20, deflate: false };

/// All connections of a case.
pub(crate) struct BurstClient {
    poll: Poll,
    connections: Vec<(TcpStream, CyclePosition)>,
    requests: FrameCycle,
    replies: FrameCycle,
    /// Number of messages of the first connection.
    burst: usize,
    /// The next request of the first connection, and that of all others.
    next: [usize; 2],
    server: u32,
    clock: ServerClock,
    buffer: Vec<u8>,
    /// The latencies of the measured answers in microseconds.
    latencies_us: Vec<f64>,
}

impl BurstClient {
    pub(crate) fn connect(
        server: &ServerInfo,
        burst: usize,
        connections: usize,
    ) -> Result<Self, Error> {
        let payloads = SPEC.payloads();
        let requests: Result<Vec<_>, _> =
            payloads.iter().map(|payload| SPEC.request(payload, [5, 6, 7, 8])).collect();
        let replies: Vec<_> = payloads.iter().map(|payload| SPEC.reply(payload)).collect();
        let poll = Poll::new()?;
        let mut open = Vec::with_capacity(connections);
        for number in 0..connections {
            let socket = socket::open(server.address, "/", false)?;
            poll.add(&socket, number, Writes::Always)?;
            open.push((socket, CyclePosition::default()));
        }
        Ok(Self {
            poll,
            connections: open,
            requests: FrameCycle::new(&requests?, burst),
            replies: FrameCycle::new(&replies, 1),
            burst,
            next: [0; 2],
            server: server.process,
            clock: ServerClock::of(server.process)?,
            buffer: vec![0; RECEIVE_BYTES],
            latencies_us: Vec::new(),
        })
    }

    /// Number of messages that arrive at once.
    fn at_once(&self) -> u64 {
        (self.connections.len() - 1 + self.burst) as u64
    }

    /// Sends the messages of each connection, and waits for all answers.
    fn burst(&mut self) -> Result<(), Error> {
        let stopped = Stopped::stop(self.server)?;
        for (number, (socket, _)) in self.connections.iter().enumerate() {
            let count = if number == 0 { self.burst } else { 1 };
            let request = self.requests.run(self.next[number.min(1)], count);
            if socket::transmit(socket, self.requests.bytes(request.clone()))? != request.len() {
                return Err("a message does not fit into its socket".into());
            }
        }
        for (next, count) in self.next.iter_mut().zip([self.burst, 1]) {
            *next = self.requests.after(*next, count);
        }
        let begun = Instant::now();
        drop(stopped);
        let mut lacking = self.at_once();
        while lacking > 0 {
            for index in 0..self.poll.wait()? {
                let number = self.poll.ready(index);
                let (socket, position) = &mut self.connections[number];
                let ReadResult::Bytes(count) = socket::receive(&*socket, &mut self.buffer)? else {
                    continue;
                };
                let ended = position.advance(&self.replies, &self.buffer[..count]);
                let ended = ended.ok_or_else(|| format!("wrong bytes for connection {number}"))?;
                let latency_us = begun.elapsed().as_nanos() as f64 / 1e3;
                // The question is how late the others are.
                if number > 0 || self.burst == 1 {
                    self.latencies_us.extend((0..ended).map(|_| latency_us));
                }
                lacking =
                    lacking.checked_sub(ended).ok_or("more answers than messages have come")?;
            }
        }
        Ok(())
    }
}

impl Measured for BurstClient {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let in_burst = self.at_once();
        let mut window = Window::new(self.clock, in_burst, rounds);
        self.burst()?;
        self.latencies_us.clear();
        while window.count(in_burst) {
            self.burst()?;
        }
        let mut outcome = window.outcome();
        put_percentiles(&mut outcome, &mut self.latencies_us);
        Ok(outcome)
    }
}

/// Adds the percentiles of latencies, of which there is at least one.
pub(crate) fn put_percentiles(outcome: &mut Outcome, latencies_us: &mut [f64]) {
    latencies_us.sort_by(f64::total_cmp);
    let last = latencies_us.len() - 1;
    for (name, per_mille) in
        [("latency_p50_us", 500), ("latency_p99_us", 990), ("latency_p999_us", 999)]
    {
        outcome.gauges.insert(name.to_owned(), latencies_us[last * per_mille / 1000]);
    }
}

/// A stopped process, which continues when this is dropped.
struct Stopped(Pid);

impl Stopped {
    /// Stops a process, and waits until it has stopped.
    fn stop(process: u32) -> Result<Self, Error> {
        let pid = Pid::from_raw(i32::try_from(process)?).ok_or("no process has number zero")?;
        kill_process(pid, Signal::STOP)?;
        let stopped = Self(pid);
        let path = format!("/proc/{process}/stat");
        // The signal is on its way to another processor. Only a parent can wait for its effect.
        while !is_stopped(&std::fs::read_to_string(&path)?) {
            std::thread::yield_now();
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // This fails if the process has ended, and then its connections fail.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Returns whether a line of /proc/PID/stat is that of a stopped process. The state follows the
/// name, which stands in parentheses and may contain any characters.
fn is_stopped(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
}

#[cfg(test)]
mod tests {
    use super::is_stopped;

    #[test]
    fn the_state_follows_the_name() {
        assert!(is_stopped("7 (server) T 1 7"));
        assert!(!is_stopped("7 (server) S 1 7"));
        assert!(!is_stopped("7 (a) T b) R 1 7"));
    }
}
