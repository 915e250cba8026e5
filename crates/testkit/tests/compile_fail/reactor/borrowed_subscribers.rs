//! Rule 4: subscribers, timers, hooks and deferred closures are `'static`.
use std::{os::fd::OwnedFd, time::Duration};
use windlass::{Reactor, Turn, interest};

fn subscriber(reactor: &mut Reactor, fd: OwnedFd) {
    let mut count = 0;
    interest().read().with_fd(fd).with_handler(|| count += 1).register_into(reactor).ok();
}

fn timer(reactor: &mut Reactor) {
    let mut count = 0;
    reactor.after(Duration::ZERO, || count += 1).ok();
}

fn deferred(reactor: &mut Reactor) {
    let mut count = 0;
    reactor.defer(|_: Turn<'_, Reactor>| count += 1).ok();
}

fn hook(reactor: &mut Reactor) {
    let mut count = 0;
    reactor.before_wait(|_| count += 1).ok();
}

fn main() {}
