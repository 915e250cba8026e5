//! A timer closure whose one parameter has no type: it could be the turn or the tick. `after_with`
//! accepts only the turn.
use std::time::Duration;
use windlass::Reactor;

fn main() {
    let mut reactor = Reactor::new().unwrap();
    reactor.after(Duration::ZERO, |mut turn| turn.stop()).unwrap();
    reactor.after_with(Duration::ZERO, || {}).unwrap();
}
