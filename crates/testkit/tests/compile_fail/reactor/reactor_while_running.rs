//! Rule 4: no code can access the reactor while it runs, not even through a reference into it.
use windlass::{Group, GroupKey, Reactor};

fn state_across_a_turn(mut reactor: Reactor, group: GroupKey<u64>) {
    let state = reactor.group_mut(group).unwrap();
    reactor.run_once(None).ok();
    *state += 1;
}

fn captured(mut reactor: Reactor) {
    reactor.defer(|_: windlass::Turn<'_, _>| drop(reactor)).ok();
}

fn main() {
    let _ = Group::<u64>::new(1);
}
