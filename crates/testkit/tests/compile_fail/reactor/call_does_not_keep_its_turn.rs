//! Rule 4: a turn ends with its call. (`tests/rules/threads.rs` asserts that a turn is no valid
//! result and does not move to another thread.)
use std::cell::RefCell;
use windlass::{Reactor, Turn};

thread_local! {
    static KEPT: RefCell<Option<Turn<'static, Reactor>>> = RefCell::default();
}

fn main() {
    let mut reactor = Reactor::new().unwrap();
    let remote = reactor.remote();
    remote.post(|turn: Turn<'_>| KEPT.set(Some(turn))).ok();
    remote.call(|turn: Turn<'_>| KEPT.set(Some(turn))).ok();
}
