//! A reactor inside another event loop.
//!
//! It shows:
//! - `Reactor::embed` makes the reactor one descriptor that is readable when anything is due: an
//!   event, a timer, or remaining work. The host watches it level-triggered, and then calls
//!   `run_once` with a timeout of zero.
//! - The host never computes a timeout for the reactor. Timers wake it through the same descriptor.
//! - `with` lends the reactor to register and delete. `register_into` also takes the embedded
//!   reactor.
//!
//! The host is a hand-written epoll loop, like that of a C program or of another runtime.
//!
//! Run it with `cargo run --example nested`, and its tests with `cargo test --example nested`.

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd as _, OwnedFd},
    rc::Rc,
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    event::{EventfdFlags, epoll, eventfd},
};
use windlass::{Embedded, Tick, interest};

/// The values of `epoll_event.data` in the host's set.
const GUEST: u64 = 1;
const DOORBELL: u64 = 2;

/// An event loop that uses one descriptor and one call of windlass.
struct Host {
    epoll: OwnedFd,
    guest: Embedded,
    doorbell: OwnedFd,
    log: Log,
}

/// The events, in order.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<&'static str>>>);

impl Log {
    fn say(&self, what: &'static str) {
        println!("{what}");
        self.0.borrow_mut().push(what);
    }

    fn count(&self, what: &str) -> usize {
        self.0.borrow().iter().filter(|said| **said == what).count()
    }
}

impl Host {
    fn new(guest: Embedded, log: Log) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, guest.as_fd(), epoll::EventData::new_u64(GUEST), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &doorbell, epoll::EventData::new_u64(DOORBELL), epoll::EventFlags::IN)?;
        Ok(Self { epoll, guest, doorbell, log })
    }

    /// Runs one round of the host's loop.
    fn round(&mut self) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(8);
        epoll::wait(&self.epoll, spare_capacity(&mut events), None)?;
        for event in events {
            match event.data.u64() {
                GUEST => {
                    self.guest.run_once(Duration::ZERO)?;
                }
                _ => {
                    rustix::io::read(&self.doorbell, &mut [0; 8])?;
                    self.log.say("host: doorbell");
                }
            }
        }
        Ok(())
    }
}

/// An embedded reactor with a timer that writes to the host's eventfd, and with a descriptor of its
/// own that the timer makes ready.
fn start(host: &mut Host) -> io::Result<()> {
    let wire = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let (other_end, doorbell) = (wire.try_clone()?, host.doorbell.try_clone()?);
    let log = host.log.clone();
    interest()
        .read()
        .with_fd(wire)
        .with_handler(move |wire: &mut OwnedFd| {
            rustix::io::read(&*wire, &mut [0; 8]).expect("it is readable");
            log.say("guest: wire");
        })
        .register_into(&mut host.guest)?;
    let log = host.log.clone();
    let ring = move |_: Tick| {
        log.say("guest: tick");
        for wire in [&other_end, &doorbell] {
            rustix::io::write(wire, &1u64.to_ne_bytes()).expect("its counter is far from full");
        }
    };
    host.guest.with(|reactor| reactor.every(Duration::from_millis(5), ring))?;
    Ok(())
}

fn main() -> io::Result<()> {
    let log = Log::default();
    let mut host = Host::new(windlass_examples::builder()?.build()?.embed()?, log.clone())?;
    start(&mut host)?;
    while log.count("guest: tick") < 3 {
        host.round()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        let guest = windlass_examples::builder().unwrap().build().unwrap().embed().unwrap();
        Host::new(guest, Log::default()).unwrap()
    }

    #[test]
    fn timers_and_descriptors_of_the_guest_wake_the_host() {
        let mut host = host();
        start(&mut host).unwrap();
        let log = host.log.clone();
        // The host waits without a timeout, so only the reactor's descriptor can have woken it.
        while log.count("guest: wire") < 3 || log.count("host: doorbell") < 3 {
            host.round().unwrap();
        }
        assert_eq!(log.0.borrow()[0], "guest: tick");
        assert!(log.count("guest: tick") >= 3);
    }

    #[test]
    fn a_closure_deferred_from_outside_wakes_the_host() {
        let mut host = host();
        let log = host.log.clone();
        let said = log.clone();
        host.guest.with(|reactor| reactor.defer(move |_| said.say("guest: deferred"))).unwrap();
        host.round().unwrap();
        assert_eq!(*log.0.borrow(), ["guest: deferred"]);
    }

    #[test]
    fn a_guest_with_nothing_due_leaves_the_host_alone() {
        let mut host = host();
        rustix::io::write(&host.doorbell, &1u64.to_ne_bytes()).unwrap();
        host.round().unwrap();
        assert_eq!(host.guest.with(|reactor| reactor.stats().turns), 0);
        assert_eq!(*host.log.0.borrow(), ["host: doorbell"]);
    }
}
