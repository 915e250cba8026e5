//! Rule 4: a turn ends with its handler.
use std::{cell::RefCell, rc::Rc};
use windlass::{Reactor, Turn};

fn main() {
    let mut reactor = Reactor::new().unwrap();
    let kept: Rc<RefCell<Option<Turn<'static, Reactor>>>> = Rc::default();
    reactor.defer(move |turn: Turn<'_, Reactor>| *kept.borrow_mut() = Some(turn)).ok();
    let mut outside = None;
    reactor.after_turn(|turn: Turn<'_, Reactor>| outside = Some(turn)).ok();
}
