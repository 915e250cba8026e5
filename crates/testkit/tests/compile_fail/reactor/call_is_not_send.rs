//! A call moves to another thread, and its result moves back.
use std::rc::Rc;
use windlass::{Reactor, Turn};

fn main() {
    let mut reactor = Reactor::new().unwrap();
    let remote = reactor.remote();
    let here = Rc::new(5);
    let shared = here.clone();
    remote.post(move |_: Turn<'_>| drop(shared)).ok();
    remote.call(|_| Rc::new(5)).ok();
    drop(remote.call_async(move |_| drop(here)));
}
