//! A closure whose parameters have no types.
use std::net::TcpListener;
use windlass::{Reactor, interest};

fn main() {
    let mut reactor = Reactor::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let registration = interest().read().with_fd(listener).with_handler(|listener, turn| {});
    registration.register_into(&mut reactor).ok();
}
