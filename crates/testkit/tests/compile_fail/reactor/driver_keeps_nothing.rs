//! Rule 4: a driver keeps no turn, and has no way to the reactor that runs it.
use windlass::{NextTurn, Reactor, Turn, TurnDriver};

struct Keeper<'t>(Option<Turn<'t>>);

impl<'t> TurnDriver for Keeper<'t> {
    fn end_of_turn(&mut self, turn: Turn<'_>) -> NextTurn {
        self.0 = Some(turn);
        NextTurn::Wait
    }
}

fn kept(mut reactor: Reactor) {
    let mut outside = None;
    reactor
        .run_with(&mut |turn: Turn<'_>| {
            outside = Some(turn);
            NextTurn::Wait
        })
        .ok();
}

fn nested(mut reactor: Reactor) {
    reactor.run_with(&mut |_: Turn<'_>| { reactor.run().ok(); NextTurn::Stop }).ok();
}

fn borrowed_by_a_closure(mut reactor: Reactor) {
    let mut count = 0;
    reactor
        .run_with(&mut |mut turn: Turn<'_>| {
            turn.defer(|_| count += 1).ok();
            NextTurn::Stop
        })
        .ok();
}

fn main() {}
