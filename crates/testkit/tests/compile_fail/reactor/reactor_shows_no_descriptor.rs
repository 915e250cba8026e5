//! Rule 11: the epoll set carries addresses, so no method returns it. Only an embedded reactor has
//! a public descriptor.
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use windlass::{Embedded, Reactor};

fn allowed(embedded: &Embedded) {
    let _ = embedded.as_fd();
}

fn shown(reactor: &Reactor) {
    let _ = reactor.as_fd();
    let _ = reactor.as_raw_fd();
}

fn given_away(reactor: Reactor) {
    let _ = reactor.into_raw_fd();
}

fn main() {}
