//! A timer handler that returns a value.
use std::time::Duration;
use windlass::Reactor;

fn main() {
    let mut reactor = Reactor::new().unwrap();
    reactor.after(Duration::ZERO, || 7).ok();
}
