//! The hand-written loop for the suite `http`: an epoll set, edge-triggered, with one state for
//! each end of a connection.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::epoll;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use windlass_bench_driver::http::{
    ClientPlace, HttpCase, OtherClient, REQUEST, RESPONSE, Received,
};
use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tasks::{AN_HOUR, Laps, TaskSubject, WARM_MESSAGES};
use windlass_bench_driver::{Error, Unsupported};

use super::eventfd_loop::EventfdLoop;

/// An end of a connection.
struct End {
    socket: TcpStream,
    received: Received,
    /// Number of requests that may still be sent, for a client.
    left: u64,
    is_client: bool,
    has_ended: bool,
    sent_at: Instant,
}

impl End {
    fn new(socket: TcpStream, is_client: bool) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let (received, sent_at) = (Received::default(), Instant::now());
        Ok(Self { socket, received, left: 0, is_client, has_ended: false, sent_at })
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = send(&self.socket, bytes, SendFlags::NOSIGNAL)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// A read that is not full tells that the socket is empty.
    fn receive(&mut self) -> io::Result<usize> {
        Ok(recv(&self.socket, self.received.room(), RecvFlags::empty())?.0)
    }

    /// Answers a request. Returns false at the end of the stream.
    fn serve(&mut self) -> io::Result<bool> {
        let count = self.receive()?;
        if count > 0 && self.received.take_request(count)? {
            self.send(RESPONSE)?;
        }
        Ok(count > 0)
    }
}

pub(crate) struct RawHttp {
    case: HttpCase,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    /// The deadline of the timer that waits.
    timer: Option<Instant>,
}

impl TaskSubject for RawHttp {
    type Loop<const LIVE_TIMERS: usize> = EventfdLoop<LIVE_TIMERS>;

    fn new(_backend: &str, case: &Case) -> Result<Self, Error> {
        let Case::Http(case) = case else {
            return Err(Unsupported("no case of the suite `http`").into());
        };
        if matches!(case, HttpCase::IdleKeepAlive { .. }) {
            return Err(Unsupported("its connections are a row of a table").into());
        }
        Ok(Self {
            case: case.clone(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(1024),
            timer: (case.live_timers() > 0).then(|| Instant::now() + AN_HOUR),
        })
    }

    fn run(&mut self, rounds: u64, laps: &Rc<Laps>) -> Result<(), Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        match self.case {
            HttpCase::Requests { client: ClientPlace::SameThread, connections, .. } => {
                self.both(&listener, connections, rounds, laps)
            }
            HttpCase::Requests { connections, .. }
            | HttpCase::PacedRequests { connections, .. } => {
                let client = OtherClient::start(&self.case, listener.local_addr()?, rounds)?;
                self.serve(&listener, connections)?;
                client.finish(laps)
            }
            HttpCase::IdleKeepAlive { .. } | HttpCase::MultiThread { .. } => {
                Err("no case of a loop without tasks, on one thread".into())
            }
        }
    }
}

impl RawHttp {
    fn wait(&mut self) -> Result<(), Error> {
        let limit = self.timer.map(|timer| timer.saturating_duration_since(Instant::now()));
        super::wait::wait(&self.epoll, &mut self.events, limit)
    }

    fn watch(&self, socket: &TcpStream, place: u64) -> Result<(), Error> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(place), flags)?;
        Ok(())
    }

    /// Serves connections until their ends.
    fn serve(&mut self, listener: &TcpListener, connections: usize) -> Result<(), Error> {
        let mut ends = Vec::with_capacity(connections);
        for _ in 0..connections {
            let (socket, _) = listener.accept()?;
            self.watch(&socket, ends.len() as u64)?;
            ends.push(End::new(socket, false)?);
        }
        let mut open = connections;
        while open > 0 {
            self.wait()?;
            for event in &self.events {
                let end = &mut ends[event.data.u64() as usize];
                // The end of a stream may be two edges.
                if !end.has_ended && !end.serve()? {
                    end.has_ended = true;
                    open -= 1;
                }
            }
        }
        Ok(())
    }

    /// Both ends of the connections.
    fn both(
        &mut self,
        listener: &TcpListener,
        connections: usize,
        rounds: u64,
        laps: &Laps,
    ) -> Result<(), Error> {
        let mut ends = Vec::with_capacity(2 * connections);
        for _ in 0..connections {
            let client = TcpStream::connect(listener.local_addr()?)?;
            let (server, _) = listener.accept()?;
            for (socket, is_client) in [(client, true), (server, false)] {
                self.watch(&socket, ends.len() as u64)?;
                ends.push(End::new(socket, is_client)?);
            }
        }
        let each = rounds.div_ceil(connections as u64);
        self.exchange(&mut ends, WARM_MESSAGES, None)?;
        laps.start();
        self.exchange(&mut ends, each, Some(laps))?;
        laps.stop(each * connections as u64);
        Ok(())
    }

    /// Exchanges this number of requests on each connection.
    fn exchange(&mut self, ends: &mut [End], each: u64, laps: Option<&Laps>) -> Result<(), Error> {
        let mut unfinished = 0;
        for end in ends.iter_mut().filter(|end| end.is_client) {
            (end.left, end.sent_at) = (each - 1, Instant::now());
            end.send(REQUEST)?;
            unfinished += 1;
        }
        while unfinished > 0 {
            self.wait()?;
            for event in &self.events {
                let end = &mut ends[event.data.u64() as usize];
                if !end.is_client {
                    if !end.serve()? {
                        return Err("a connection has ended".into());
                    }
                    continue;
                }
                let count = end.receive()?;
                if count == 0 {
                    return Err("a connection has ended".into());
                }
                if !end.received.take_response(count)? {
                    continue;
                }
                if let Some(laps) = laps {
                    let now = Instant::now();
                    laps.record_ns((now - end.sent_at).as_nanos() as u64);
                    end.sent_at = now;
                }
                if end.left == 0 {
                    unfinished -= 1;
                } else {
                    end.left -= 1;
                    end.send(REQUEST)?;
                }
            }
        }
        Ok(())
    }
}
