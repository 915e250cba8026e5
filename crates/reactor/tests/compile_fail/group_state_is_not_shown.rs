//! An erased group shows neither its state nor its members: a mock that is given one cannot run
//! them.
use windlass::{ErasedGroup, Group, GroupState, MockReactor, Reactor};

fn state(state: &GroupState) {
    let _ = state.typed::<u32>();
    let _ = &state.0;
}

fn members(group: ErasedGroup<MockReactor>) {
    for _ in group.members {}
}

fn of_a_mock(group: Group<u32, MockReactor>, reactor: &mut Reactor) {
    let _ = group.register_into(reactor);
}

fn main() {}
