//! Reactors on a ring, eventfds, and lists of the events that were seen.

use std::{
    cell::RefCell,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};
use windlass::{Backend, Builder, Event, Interest, Key, Reactor, Ready, Subscriber, Turn};

pub(crate) const NOW: Duration = Duration::ZERO;

pub(crate) fn builder() -> Builder {
    Reactor::builder().backend(Backend::Uring)
}

pub(crate) fn counter(count: u32) -> OwnedFd {
    eventfd(count, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

pub(crate) fn fire(fd: impl AsFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

/// The number of the subscriber and the readiness, for each event.
pub(crate) type Log = Rc<RefCell<Vec<(usize, Ready)>>>;

/// Shares an eventfd with the test and records its events. It reads the eventfd if told to.
pub(crate) struct Noting {
    pub(crate) fd: Rc<OwnedFd>,
    pub(crate) interest: Interest,
    pub(crate) who: usize,
    pub(crate) log: Log,
    pub(crate) drains: bool,
}

impl Subscriber for Noting {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn interest(&self) -> Interest {
        self.interest
    }

    fn handle(&mut self, event: Event, _: Turn<'_>) {
        self.log.borrow_mut().push((self.who, event.ready()));
        if self.drains {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }
}

/// Registers a subscriber that drains its eventfd and records its events under a number.
pub(crate) fn noting(
    reactor: &mut Reactor,
    fd: &Rc<OwnedFd>,
    interest: Interest,
    who: usize,
    log: &Log,
) -> Key {
    reactor.add(Noting { fd: fd.clone(), interest, who, log: log.clone(), drains: true }).unwrap()
}

/// Runs turns until one has no events.
pub(crate) fn run_dry(reactor: &mut Reactor) -> usize {
    let mut events = 0;
    for _ in 0..10_000 {
        match reactor.run_once(NOW).unwrap() {
            0 => return events,
            more => events += more,
        }
    }
    panic!("the loop does not come to rest");
}

/// The recorded numbers, in order.
pub(crate) fn heard(log: &Log) -> Vec<usize> {
    let mut heard: Vec<usize> = log.borrow_mut().drain(..).map(|(who, _)| who).collect();
    heard.sort_unstable();
    heard
}
