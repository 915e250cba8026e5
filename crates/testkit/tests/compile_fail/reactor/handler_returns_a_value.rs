//! A handler that returns a value.
use std::net::TcpListener;
use windlass::{Event, Reactor, interest};

fn on_ready(_: &mut TcpListener, event: Event) -> bool {
    event.has_read()
}

fn main() {
    let mut reactor = Reactor::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    interest().read().with_fd(listener).with_handler(on_ready).register_into(&mut reactor).ok();
}
