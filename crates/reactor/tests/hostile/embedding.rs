//! Attacks on a reactor inside another loop.

use std::{
    cell::Cell,
    io::Read,
    os::{fd::AsFd, unix::net::UnixStream},
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass::{
    Embedded, Turn, interest,
    stream::{Input, Stream, StreamHandler, StreamOptions, Timeout},
};

use crate::{
    child::survives,
    tools::{counter, on_ready, ready, turn},
};

pub(crate) fn is_readable(fd: impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&at_once)).unwrap() == 1
}

fn embedded() -> Embedded {
    crate::builder().build().unwrap().embed().unwrap()
}

/// Regression: arming the timer descriptor read the clock during unwinding. A panic there met the
/// handler's panic and aborted.
#[test]
#[cfg_attr(miri, ignore = "Miri knows no timerfd")]
fn no_clock_of_the_owners_is_read_while_an_embedded_reactor_unwinds() {
    survives("embedding::no_clock_of_the_owners_is_read_while_an_embedded_reactor_unwinds", || {
        let armed = Rc::new(Cell::new(false));
        let is_armed = armed.clone();
        let clock = move || {
            assert!(!is_armed.get(), "the clock panics");
            Instant::now()
        };
        let mut reactor = crate::builder().clock(clock).build().unwrap();
        reactor.after(Duration::from_secs(100), || {}).unwrap();
        let (arm, fuse) = (armed.clone(), ready());
        on_ready(&mut reactor, fuse, move |_, _| {
            arm.set(true);
            panic!("handler");
        });
        let mut guest = reactor.embed().unwrap();
        let run = std::panic::AssertUnwindSafe(|| guest.run_once(Duration::ZERO));
        let load = std::panic::catch_unwind(run).unwrap_err();
        assert_eq!(crate::tools::message(&*load), "handler");
        armed.set(false);
    });
}

/// Regression: the timer was armed before the host was woken. If the clock panicked there, the host
/// never learned of the work.
#[test]
#[cfg_attr(miri, ignore = "Miri knows no timerfd")]
fn a_clock_that_panics_on_the_way_out_does_not_cost_the_host_its_wake() {
    let panics = Rc::new(Cell::new(false));
    let is_panicking = panics.clone();
    let clock = move || {
        assert!(!is_panicking.get(), "the clock panics");
        Instant::now()
    };
    let mut reactor = crate::builder().clock(clock).build().unwrap();
    reactor.after(Duration::from_secs(100), || {}).unwrap();
    let mut guest = reactor.embed().unwrap();
    assert!(!is_readable(&guest));
    let defer = |guest: &mut Embedded| {
        guest.with(|reactor| {
            reactor.defer(|_: Turn<'_, _>| {}).unwrap();
            panics.set(true);
        });
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| defer(&mut guest))).is_err());
    panics.set(false);
    assert!(is_readable(&guest));
    assert_eq!(guest.run_once(Duration::ZERO).unwrap(), 0);
    assert!(!is_readable(&guest));
}

/// Regression: the old reactor's set stayed in the outer one. Its descriptors kept waking a host
/// that could not handle them.
#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll sets in epoll sets")]
fn a_reactor_that_was_swapped_out_of_an_embedded_one_does_not_wake_the_host() {
    let mut guest = embedded();
    let mut other = crate::builder().build().unwrap();
    guest.with(|inner| std::mem::swap(inner, &mut other));
    on_ready(&mut other, ready(), |_, _| {});
    guest.run_once(Duration::ZERO).unwrap();
    assert!(!is_readable(&guest));
    assert_eq!(turn(&mut other), 1);
}

/// Regression: adding its set a second time failed in every turn, and so did all later steps.
#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll sets in epoll sets")]
fn a_reactor_that_is_swapped_out_and_back_wakes_the_host_as_before() {
    let mut guest = embedded();
    let mut other = crate::builder().build().unwrap();
    for _ in 0..2 {
        guest.with(|inner| std::mem::swap(inner, &mut other));
        guest.run_once(Duration::ZERO).unwrap();
    }
    assert!(!is_readable(&guest));
    guest.with(|inner| inner.defer(|_: Turn<'_, _>| {}).unwrap());
    assert!(is_readable(&guest), "there is a closure to run");
    guest.run_once(Duration::ZERO).unwrap();
    assert!(!is_readable(&guest));
    guest.with(|inner| on_ready(inner, ready(), |_, _| {}));
    assert!(is_readable(&guest), "and a descriptor");
}

/// Regression: EPOLLEXCLUSIVE cannot be set by EPOLL_CTL_MOD, so the entry is deleted and added.
/// The kernel rejects that for an epoll set, and the registration was lost without an error.
#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll sets in epoll sets")]
fn a_change_to_exclusive_that_the_kernel_refuses_leaves_the_old_interest() {
    // A ring does not reject it.
    let mut reactor =
        windlass::Reactor::builder().backend(windlass::Backend::Epoll).build().unwrap();
    let mut guest = embedded();
    guest.with(|inner| inner.defer(|_: Turn<'_, _>| {}).unwrap());
    let (count, seen) = counter();
    let handler = move |_: &mut Embedded| count.set(count.get() + 1);
    let key =
        interest().read().with_fd(guest).with_handler(handler).register_into(&mut reactor).unwrap();
    turn(&mut reactor);
    assert_eq!(seen.get(), 1);
    assert!(reactor.modify(key, interest().read().exclusive()).is_err());
    turn(&mut reactor);
    assert_eq!(seen.get(), 2);
}

/// Ignores all input and reports its timeout.
struct Told(Rc<Cell<u32>>);

impl StreamHandler for Told {
    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}

    fn on_timeout(&mut self, _: &mut Stream<'_>, _: Timeout) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no timerfd")]
fn the_host_is_woken_for_whatever_a_stream_has_to_do() {
    let mut guest = embedded();
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let told = Rc::new(Cell::new(0));
    let options = StreamOptions::new().idle_timeout(Some(Duration::from_millis(20)));
    let key = options.register(ours, Told(told.clone()), &mut guest).unwrap();
    assert!(is_readable(&guest), "it is to open");
    let rest = |guest: &mut Embedded| {
        let mut turns = 0;
        while is_readable(&*guest) {
            guest.run_once(Duration::ZERO).unwrap();
            turns += 1;
            assert!(turns < 20, "it comes to rest");
        }
    };
    rest(&mut guest);
    guest.with(|reactor| reactor.stream(key).unwrap().send(b"hello").unwrap());
    assert!(is_readable(&guest), "what others have sent is to go out");
    rest(&mut guest);
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    for firings in 1..3 {
        // This loop needs no limit, because the timer descriptor wakes the host.
        while told.get() < firings {
            poll(&mut [PollFd::new(&guest, PollFlags::IN)], None).unwrap();
            guest.run_once(Duration::ZERO).unwrap();
        }
    }
    guest.with(|reactor| reactor.stream(key).unwrap().abort());
    assert!(is_readable(&guest), "it is to close");
    rest(&mut guest);
    assert_eq!(peer.read(&mut got).unwrap(), 0);
}
