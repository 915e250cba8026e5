//! Executors, and futures that tests are made of.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    net::{Ipv4Addr, SocketAddr, TcpStream as StdStream},
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::sockopt,
};
use windlass::Clock;
use windlass_task::{
    Executor,
    net::{TcpListener, TcpStream},
};

use crate::scenarios::Build;

pub(crate) fn executor(build: Build) -> Executor {
    Executor::builder().reactor(build()).build().unwrap()
}

/// Runs a future on an executor of its own.
pub(crate) fn run<F: Future>(build: Build, future: F) -> F::Output {
    executor(build).block_on(future)
}

/// Polls a future at most `count` times, and drops it. `None` if it was not ready.
pub(crate) async fn at_most<F: Future>(count: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        if polls == count {
            return Poll::Ready(None);
        }
        polls += 1;
        let poll = future.as_mut().poll(context).map(Some);
        if poll.is_pending() && polls == count {
            return Poll::Ready(None);
        }
        poll
    })
    .await
}

/// Lets the reactor have two turns: one fetches events, and one runs what was queued meanwhile.
pub(crate) async fn turns() {
    let count = || windlass_task::with_turn(|turn| turn.stats().turns).unwrap();
    let end = count() + 2;
    while count() < end {
        windlass_task::yield_now().await;
    }
}

/// Polls a future once, without a waker.
pub(crate) fn poll_now<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Resets the connection, as a process that ends or a server that rejects. Waits until the kernel
/// has told the other end. The reactor has no turn meanwhile.
pub(crate) fn reset(peer: StdStream, ours: &TcpStream) {
    sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    drop(peer);
    let mut polled = [PollFd::new(ours, PollFlags::HUP)];
    while !polled[0].revents().contains(PollFlags::HUP) {
        poll(&mut polled, None).unwrap();
    }
}

/// Waits for two futures.
pub(crate) async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut one, mut other) = (None, None);
    poll_fn(|context| {
        if one.is_none() {
            if let Poll::Ready(output) = first.as_mut().poll(context) {
                one = Some(output);
            }
        }
        if other.is_none() {
            if let Poll::Ready(output) = second.as_mut().poll(context) {
                other = Some(output);
            }
        }
        if one.is_some() && other.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (one.unwrap(), other.unwrap())
}

/// A connection: the client's end and the server's.
pub(crate) async fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    (client, server)
}

/// An address of this machine by which a connect always waits for an event. By that of the loopback
/// it is mostly ready at once.
pub(crate) fn any(loopback: SocketAddr) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, loopback.port()).into()
}

/// Bytes that repeat late.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| u8::try_from(place % 251).unwrap()).collect()
}

/// A clock that stands still until it is moved.
#[derive(Clone)]
pub(crate) struct HandClock(Rc<Cell<Instant>>);

impl Default for HandClock {
    fn default() -> Self {
        Self(Rc::new(Cell::new(Instant::now())))
    }
}

impl HandClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.set(self.0.get() + by);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Instant {
        self.0.get()
    }
}
