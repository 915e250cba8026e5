//! A timer's closure of one parameter without a type: it could be the turn or the tick.
//! `after_with` knows that it is the turn.
use std::time::Duration;
use windlass::Reactor;

fn main() {
    let mut reactor = Reactor::new().unwrap();
    reactor.after(Duration::ZERO, |mut turn| turn.stop()).unwrap();
    reactor.after_with(Duration::ZERO, || {}).unwrap();
}
