//! A timer's handler that returns something.
use std::time::Duration;
use windlass::Reactor;

fn main() {
    let mut reactor = Reactor::new().unwrap();
    reactor.after(Duration::ZERO, || 7).ok();
}
