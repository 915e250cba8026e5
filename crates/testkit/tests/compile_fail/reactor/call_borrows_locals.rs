//! A queued call may outlive its caller, because a caller returns when its timeout expires.
use std::time::Duration;
use windlass::{Reactor, Turn};

fn main() {
    let mut reactor = Reactor::new().unwrap();
    let remote = reactor.remote();
    let mut count = 0;
    remote.call_timeout(Duration::ZERO, |_: Turn<'_>| count += 1).ok();
    let text = String::from("text");
    remote.try_post(|_: Turn<'_>| drop(text.len())).ok();
}
