//! The hand-written loop for the suites `latency` and `tasks`: an epoll set, edge-triggered, with
//! one state for each connection. There are no tasks, so both kinds of echo are the same loop.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tasks::{
    AN_HOUR, Laps, MESSAGE_BYTES, Message, TaskSubject, WARM_MESSAGES, forget_on_close,
};
use windlass_bench_driver::{Error, Unsupported};

use super::eventfd_loop::EventfdLoop;

/// A connection of the set.
struct End {
    socket: TcpStream,
    message: Message,
    /// Number of the message in flight, for the end that begins.
    number: u64,
    begins: bool,
    sent_at: Instant,
}

impl End {
    fn new(socket: TcpStream, begins: bool) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let (message, sent_at) = (Message::default(), Instant::now());
        Ok(Self { socket, message, number: 0, begins, sent_at })
    }

    fn send(&mut self, number: u64) -> io::Result<()> {
        let bytes = self.message.numbered(number);
        let sent = send(&self.socket, bytes, SendFlags::NOSIGNAL)?;
        if sent == MESSAGE_BYTES { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives a message. A read that is not full tells that the socket is empty.
    fn receive(&mut self) -> io::Result<Option<u64>> {
        let (length, _) = recv(&self.socket, self.message.room(), RecvFlags::empty())?;
        self.message.received(length)
    }
}

pub(crate) struct RawTasks {
    case: Case,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    /// The deadlines of the timers that wait, the earliest first.
    timers: VecDeque<Instant>,
}

impl TaskSubject for RawTasks {
    type Loop<const LIVE_TIMERS: usize> = EventfdLoop<LIVE_TIMERS>;

    fn new(_backend: &str, case: &Case) -> Result<Self, Error> {
        let live_timers = match *case {
            Case::PingPong { live_timers, .. }
            | Case::AcceptChurn { live_timers, .. }
            | Case::TurnPerPoll { live_timers } => live_timers,
            Case::TaskSleep { .. } => 0,
            _ => return Err(Unsupported("a loop without tasks has no such case").into()),
        };
        Ok(Self {
            case: case.clone(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(1024),
            timers: (0..live_timers).map(|_| Instant::now() + AN_HOUR).collect(),
        })
    }

    fn run(&mut self, rounds: u64, laps: &Rc<Laps>) -> Result<(), Error> {
        match self.case {
            Case::PingPong { pairs, exact_reads, .. } => {
                self.ping_pong(pairs, exact_reads, rounds, laps)
            }
            Case::AcceptChurn { parallel, .. } => self.churn(parallel as u64, rounds, laps),
            Case::TurnPerPoll { .. } => {
                laps.start();
                for _ in 0..rounds {
                    self.wait(Some(Duration::ZERO))?;
                }
                laps.stop(rounds);
                Ok(())
            }
            Case::TaskSleep { us, .. } => self.sleep(Duration::from_micros(us), rounds, laps),
            _ => Err("no case of a loop without tasks".into()),
        }
    }
}

impl RawTasks {
    /// Waits until an event, for this time, or until the first timer.
    fn wait(&mut self, limit: Option<Duration>) -> Result<(), Error> {
        let limit = limit.or_else(|| {
            let deadline = self.timers.front()?;
            Some(deadline.saturating_duration_since(Instant::now()))
        });
        super::wait::wait(&self.epoll, &mut self.events, limit)
    }

    fn watch(&self, socket: &TcpStream, place: u64) -> Result<(), Error> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(place), flags)?;
        Ok(())
    }

    fn ping_pong(
        &mut self,
        pairs: usize,
        exact_reads: bool,
        rounds: u64,
        laps: &Laps,
    ) -> Result<(), Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut ends = Vec::with_capacity(2 * pairs);
        for _ in 0..pairs {
            let client = TcpStream::connect(listener.local_addr()?)?;
            let (server, _) = listener.accept()?;
            for (socket, begins) in [(client, true), (server, false)] {
                self.watch(&socket, ends.len() as u64)?;
                let mut end = End::new(socket, begins)?;
                if exact_reads {
                    end.message.read_exactly();
                }
                ends.push(end);
            }
        }
        let each = rounds.div_ceil(pairs as u64);
        self.exchange(&mut ends, WARM_MESSAGES, None)?;
        laps.start();
        self.exchange(&mut ends, each, Some(laps))?;
        laps.stop(each * pairs as u64);
        Ok(())
    }

    /// Exchanges this number of messages over each pair.
    fn exchange(&mut self, ends: &mut [End], each: u64, laps: Option<&Laps>) -> Result<(), Error> {
        let mut unfinished = 0;
        for end in ends.iter_mut().filter(|end| end.begins) {
            (end.number, end.sent_at) = (0, Instant::now());
            end.send(0)?;
            unfinished += 1;
        }
        while unfinished > 0 {
            self.wait(None)?;
            for event in &self.events {
                let end = &mut ends[event.data.u64() as usize];
                let number = end.receive()?.ok_or("a connection has ended")?;
                if !end.begins {
                    end.send(number)?;
                    continue;
                }
                if number != end.number {
                    return Err("another message came back".into());
                }
                if let Some(laps) = laps {
                    let now = Instant::now();
                    laps.record_ns((now - end.sent_at).as_nanos() as u64);
                    end.sent_at = now;
                }
                end.number += 1;
                if end.number == each {
                    unfinished -= 1;
                } else {
                    end.send(end.number)?;
                }
            }
        }
        Ok(())
    }

    fn churn(&mut self, parallel: u64, rounds: u64, laps: &Laps) -> Result<(), Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &listener, epoll::EventData::new_u64(u64::MAX), flags)?;
        self.open_and_close(&listener, parallel, 64)?;
        laps.start();
        self.open_and_close(&listener, parallel, rounds)?;
        laps.stop(rounds);
        Ok(())
    }

    fn open_and_close(
        &mut self,
        listener: &TcpListener,
        parallel: u64,
        count: u64,
    ) -> Result<(), Error> {
        // The place of a connection is the number of its descriptor.
        let mut ends: Vec<Option<End>> = Vec::new();
        let address = listener.local_addr()?;
        let (mut opened, mut closed) = (0, 0);
        while opened < parallel.min(count) {
            self.open(&mut ends, address, opened)?;
            opened += 1;
        }
        while closed < count {
            self.wait(None)?;
            let events = std::mem::take(&mut self.events);
            for event in &events {
                let place = event.data.u64();
                if place == u64::MAX {
                    self.accept_all(&mut ends, listener)?;
                    continue;
                }
                let Some(end) = &mut ends[place as usize] else { continue };
                let received = end.receive();
                match received {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                    Err(error) => return Err(error.into()),
                    Ok(Some(number)) if !end.begins => {
                        end.send(number)?;
                        continue;
                    }
                    Ok(Some(number)) if number == end.number => closed += 1,
                    Ok(Some(_)) => return Err("another message came back".into()),
                    Ok(None) => {}
                }
                let begins = end.begins;
                ends[place as usize] = None;
                if begins && opened < count {
                    self.open(&mut ends, address, opened)?;
                    opened += 1;
                }
            }
            self.events = events;
        }
        Ok(())
    }

    fn open(
        &mut self,
        ends: &mut Vec<Option<End>>,
        address: SocketAddr,
        number: u64,
    ) -> Result<(), Error> {
        // The kernel connects over loopback within the call.
        let socket = TcpStream::connect(address)?;
        forget_on_close(socket.as_raw_fd())?;
        let mut end = End { number, ..End::new(socket, true)? };
        end.send(number)?;
        self.keep(ends, end)
    }

    fn accept_all(
        &mut self,
        ends: &mut Vec<Option<End>>,
        listener: &TcpListener,
    ) -> Result<(), Error> {
        loop {
            match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let end = End::new(socket.into(), false)?;
                    self.keep(ends, end)?;
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn keep(&mut self, ends: &mut Vec<Option<End>>, end: End) -> Result<(), Error> {
        let place = end.socket.as_raw_fd() as usize;
        self.watch(&end.socket, place as u64)?;
        if ends.len() <= place {
            ends.resize_with(place + 1, || None);
        }
        ends[place] = Some(end);
        Ok(())
    }

    fn sleep(&mut self, span: Duration, rounds: u64, laps: &Laps) -> Result<(), Error> {
        let mut ns = 0;
        for _ in 0..rounds {
            let started = Instant::now();
            self.wait(Some(span))?;
            let late = started.elapsed().checked_sub(span).ok_or("it woke up early")?;
            ns += late.as_nanos() as u64;
            laps.record_ns(late.as_nanos() as u64);
        }
        laps.set(ns, rounds);
        Ok(())
    }
}
