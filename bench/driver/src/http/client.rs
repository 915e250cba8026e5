//! The client on another processor: an epoll loop that does not sleep, the same for all
//! implementations.
//!
//! 1. It connects, and exchanges [`WARM_MESSAGES`] on each connection.
//! 2. The clocks run while it exchanges the measured requests.
//! 3. It closes the connections. The server sees the end of each.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread::JoinHandle;

use super::PACE;
use super::message::{REQUEST, Received};
use crate::clock;
use crate::epoll::Epoll;
use crate::measured::Error;
use crate::tasks::WARM_MESSAGES;
use crate::threads;

/// The share of the rounds of a paced slice in which the rate is measured.
const RATE_SHARE: u64 = 3;

/// How requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// The next one as soon as the response has arrived.
    FullSpeed,
    /// At 70 % of the rate of the first third.
    Own,
    /// At this rate.
    PerSecond(u64),
}

/// What the client has measured.
#[derive(Debug)]
pub(super) struct ClientResult {
    /// The time and the number of the measured requests.
    pub(super) ns: u64,
    pub(super) requests: u64,
    pub(super) latencies_ns: Vec<u64>,
    /// The processor time of the rest of the process meanwhile.
    pub(super) server_cpu_ns: u64,
    /// The rate at full speed, if it was measured before.
    pub(super) rate: Option<f64>,
    /// The rate at which the measured requests were due.
    pub(super) due_per_s: Option<f64>,
}

/// Starts the client. At least `rounds` requests are measured.
pub(super) fn start(
    address: SocketAddr,
    connections: usize,
    rounds: u64,
    pace: Pace,
) -> JoinHandle<Result<ClientResult, String>> {
    threads::opposite(move || {
        let mut client = Client::connect(address, connections)?;
        client.at_full_speed(WARM_MESSAGES * connections as u64)?;
        match pace {
            Pace::FullSpeed => client.at_full_speed(rounds),
            Pace::PerSecond(rate) => client.at_rate(rounds, rate as f64),
            Pace::Own => {
                let quick = client.at_full_speed((rounds / RATE_SHARE).max(connections as u64))?;
                let rate = quick.requests as f64 * 1e9 / quick.ns.max(1) as f64;
                let paced = client.at_rate(rounds, rate * PACE)?;
                Ok(ClientResult { rate: Some(rate), ..paced })
            }
        }
    })
}

struct Connection {
    socket: TcpStream,
    received: Received,
    /// The moment from which the latency of the request in flight counts.
    since_ns: u64,
    is_busy: bool,
}

struct Client {
    epoll: Epoll,
    connections: Vec<Connection>,
}

impl Client {
    fn connect(address: SocketAddr, count: usize) -> Result<Self, Error> {
        let mut client = Self { epoll: Epoll::new()?, connections: Vec::with_capacity(count) };
        for number in 0..count {
            let socket = TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            client.epoll.watch(socket.as_fd(), number as u64)?;
            let received = Received::default();
            client.connections.push(Connection { socket, received, since_ns: 0, is_busy: false });
        }
        Ok(client)
    }

    /// Keeps one request in flight on each connection.
    fn at_full_speed(&mut self, requests: u64) -> Result<ClientResult, Error> {
        let mut run = Run::start(requests);
        let mut left = requests;
        for connection in &mut self.connections {
            if left > 0 {
                connection.send(clock::now_ns())?;
                left -= 1;
            }
        }
        while !run.is_complete() {
            for number in self.epoll.ready()? {
                let connection = &mut self.connections[number as usize];
                if let Some(now) = connection.receive(&mut run)?
                    && left > 0
                {
                    connection.send(now)?;
                    left -= 1;
                }
            }
        }
        Ok(run.end())
    }

    /// Requests are due at this rate on the connections in turn. One that is due while an earlier
    /// one of its connection is in flight waits for its response.
    fn at_rate(&mut self, requests: u64, per_s: f64) -> Result<ClientResult, Error> {
        let count = self.connections.len() as u64;
        let requests = requests.next_multiple_of(count);
        let mut run = Run::start(requests);
        let origin = clock::now_ns();
        let due_ns = |index: u64| origin + (index as f64 * 1e9 / per_s) as u64;
        // The number of requests that are due, and those that each connection has begun.
        let mut due = 0;
        let mut begun = vec![0; self.connections.len()];
        while !run.is_complete() {
            for number in self.epoll.ready()? {
                self.connections[number as usize].receive(&mut run)?;
            }
            let now = clock::now_ns();
            while due < requests && due_ns(due) <= now {
                due += 1;
            }
            for (place, connection) in self.connections.iter_mut().enumerate() {
                let index = begun[place] * count + place as u64;
                if !connection.is_busy && index < due {
                    connection.send(due_ns(index))?;
                    begun[place] += 1;
                }
            }
        }
        Ok(ClientResult { due_per_s: Some(per_s), ..run.end() })
    }
}

impl Connection {
    fn send(&mut self, since_ns: u64) -> Result<(), Error> {
        (self.since_ns, self.is_busy) = (since_ns, true);
        if self.socket.write(REQUEST)? != REQUEST.len() {
            return Err("a request was sent in parts".into());
        }
        Ok(())
    }

    /// Returns the time if a response is complete.
    fn receive(&mut self, run: &mut Run) -> Result<Option<u64>, Error> {
        let count = match self.socket.read(self.received.room()) {
            Ok(0) => return Err("the server has closed a connection".into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !self.received.take_response(count)? {
            return Ok(None);
        }
        if !self.is_busy {
            return Err("a response came to no request".into());
        }
        self.is_busy = false;
        let now = clock::now_ns();
        run.latencies_ns.push(now.saturating_sub(self.since_ns));
        Ok(Some(now))
    }
}

/// The clocks of a number of requests.
struct Run {
    requests: u64,
    began_ns: u64,
    server_cpu_ns: u64,
    latencies_ns: Vec<u64>,
}

impl Run {
    fn start(requests: u64) -> Self {
        let latencies_ns = Vec::with_capacity(requests as usize);
        Self { requests, latencies_ns, server_cpu_ns: others_cpu_ns(), began_ns: clock::now_ns() }
    }

    fn is_complete(&self) -> bool {
        self.latencies_ns.len() as u64 >= self.requests
    }

    fn end(self) -> ClientResult {
        ClientResult {
            ns: clock::now_ns() - self.began_ns,
            requests: self.requests,
            latencies_ns: self.latencies_ns,
            server_cpu_ns: others_cpu_ns().saturating_sub(self.server_cpu_ns),
            rate: None,
            due_per_s: None,
        }
    }
}

/// The processor time of the process without the calling thread.
fn others_cpu_ns() -> u64 {
    clock::process_cpu_ns().saturating_sub(clock::thread_cpu_ns())
}

#[cfg(test)]
mod tests {
    use super::super::message::RESPONSE;
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    /// A server with a thread for each connection.
    fn serve(listener: &TcpListener, connections: usize, response: &'static [u8]) {
        for _ in 0..connections {
            let (mut socket, _) = listener.accept().unwrap();
            std::thread::spawn(move || {
                let mut received = Received::default();
                while let Ok(count @ 1..) = socket.read(received.room()) {
                    if received.take_request(count).unwrap() {
                        let _ = socket.write_all(response);
                    }
                }
            });
        }
    }

    fn run(pace: Pace, response: &'static [u8]) -> Result<ClientResult, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = start(listener.local_addr().unwrap(), 3, 20, pace);
        serve(&listener, 3, response);
        threads::join(client)
    }

    #[test]
    fn every_request_is_measured_once() {
        let result = run(Pace::FullSpeed, RESPONSE).unwrap();
        assert_eq!((result.requests, result.latencies_ns.len(), result.rate), (20, 20, None));
        assert!(result.latencies_ns.iter().all(|&ns| ns <= result.ns));
    }

    #[test]
    fn paced_requests_take_longer_than_those_at_full_speed() {
        let result = run(Pace::Own, RESPONSE).unwrap();
        // The next multiple of the number of connections.
        assert_eq!((result.requests, result.latencies_ns.len()), (21, 21));
        let at_rate = 20.0 * 1e9 / (result.rate.unwrap() * PACE);
        assert!(result.ns as f64 >= at_rate, "{result:?}");
    }

    #[test]
    fn a_given_rate_is_kept() {
        let result = run(Pace::PerSecond(2_000), RESPONSE).unwrap();
        assert_eq!((result.requests, result.due_per_s, result.rate), (21, Some(2_000.0), None));
        // The last of 21 requests is due 10 ms after the first.
        assert!(result.ns >= 10_000_000, "{result:?}");
    }

    #[test]
    fn another_response_fails() {
        let other = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, Earth!";
        let error = run(Pace::FullSpeed, other).unwrap_err();
        assert_eq!(error.to_string(), "another body came");
    }
}
