//! An erased group gives access neither to its state nor to its members. So a mock that receives
//! one cannot run them.
use windlass::{ErasedGroup, Group, GroupState, MockReactor, Reactor};

fn state(state: &GroupState) {
    let _ = state.typed::<u32>();
    let _ = &state.shared;
}

fn members(group: ErasedGroup<MockReactor>) {
    for _ in group.members {}
}

fn of_a_mock(group: Group<u32, MockReactor>, reactor: &mut Reactor) {
    let _ = group.register_into(reactor);
}

fn main() {}
