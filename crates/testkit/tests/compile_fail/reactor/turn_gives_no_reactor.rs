//! Rule 4: a turn gives no access to the reactor. So a handler can neither move nor replace the
//! reactor, nor wait in it.
use windlass::{Reactor, Turn};

fn by_field(turn: Turn<'_, Reactor>) {
    let _ = turn.reactor;
}

fn by_deref(mut turn: Turn<'_, Reactor>) {
    let _: &mut Reactor = &mut *turn;
}

fn by_wait(mut turn: Turn<'_, Reactor>) {
    let _ = turn.run_once(None);
}

fn by_registrar(mut turn: Turn<'_, Reactor>) {
    windlass::Registrar::with_ops(&mut turn, (), |reactor: &mut Reactor| {
        drop(std::mem::replace(reactor, Reactor::new().unwrap()))
    });
}

fn by_crate_method(mut turn: Turn<'_, Reactor>) {
    let _ = turn.ops();
}

fn main() {}
