use core::ops::Deref;

use super::*;
use crate::time::index_wheel::IndexWheel;
use proptest::prelude::*;

impl IndexWheel {
    fn insert_next(&mut self, index: u32, deadline: u64) {
        self.make_node(index);
        self.wheel.insert_next(&mut self.nodes, index, deadline);
    }

    /// As the timers do it.
    fn reset(&mut self, index: u32, deadline: u64) {
        if !self.wheel.reset_in_place(self.nodes.node_mut(index), deadline) {
            self.remove(index);
            self.insert(index, deadline);
        }
    }

    fn contains(&self, index: u32) -> bool {
        self.nodes.node(index).is_waiting()
    }

    fn advance(&mut self, now: u64) {
        self.wheel.advance(&mut self.nodes, now);
    }
}

/// For the fields of the wheel.
impl Deref for IndexWheel {
    type Target = Wheel;

    fn deref(&self) -> &Wheel {
        &self.wheel
    }
}

#[test]
fn what_is_due_comes_by_deadline_then_by_insertion() {
    let mut wheel = IndexWheel::new();
    for (index, deadline) in [(0, 500), (1, 100), (2, 1 << 40), (3, 100), (4, u64::MAX), (5, 0)] {
        wheel.insert(index, deadline);
    }
    assert_eq!(wheel.next_deadline(), Some(0));
    let mut fired = Vec::new();
    while let Some(due) = wheel.pop_due(500) {
        fired.push(due);
    }
    assert_eq!(fired, [(5, 0), (1, 100), (3, 100), (0, 500)]);
    assert_eq!(wheel.next_deadline(), Some(1 << 40));
    assert_eq!(wheel.pop_due(u64::MAX), Some((2, 1 << 40)));
    assert_eq!(wheel.pop_due(u64::MAX), Some((4, u64::MAX)));
    assert_eq!((wheel.pop_due(u64::MAX), wheel.len()), (None, 0));
}

#[test]
fn an_equal_deadline_inserted_when_the_first_has_moved_down_comes_second() {
    let mut wheel = IndexWheel::new();
    wheel.insert(0, 1_000_000);
    wheel.insert(1, 999_990);
    assert_eq!(wheel.pop_due(999_995), Some((1, 999_990)));
    assert_eq!(wheel.pop_due(999_995), None);
    wheel.insert(2, 1_000_000);
    assert_eq!(wheel.pop_due(2_000_000), Some((0, 1_000_000)));
    assert_eq!(wheel.pop_due(2_000_000), Some((2, 1_000_000)));
}

#[test]
fn removing_twice_or_what_was_never_in_does_nothing() {
    let mut wheel = IndexWheel::new();
    wheel.insert(3, 10);
    assert!(!wheel.remove(7));
    assert!(wheel.remove(3));
    assert!(!wheel.remove(3));
    assert_eq!((wheel.next_deadline(), wheel.len()), (None, 0));
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    /// Inserts as a periodic timer is, which may become the front.
    InsertNext(u64),
    /// Takes the next entry if it is due, and inserts it as a periodic timer is.
    Beat(u64),
    /// Inserts at a time that has passed.
    InsertLate(u64),
    Remove(usize),
    /// Removes an entry and inserts it again with the same deadline.
    Again(usize),
    /// Resets an entry to a deadline after now.
    Reset(usize, u64),
    /// Resets an entry to this much after or before its own deadline.
    Shift(usize, i64),
    Advance(u64),
    /// Takes some of the due entries.
    Pop(usize),
}

fn op() -> impl Strategy<Value = Op> {
    // Distances of every magnitude, to use every level.
    let distance =
        (0u32..63, any::<u64>()).prop_map(|(bits, x)| x & ((1u64 << bits) | ((1u64 << bits) - 1)));
    // Near ones, so that many are due together.
    let near = 0u64..20_000;
    prop_oneof![
        4 => distance.clone().prop_map(Op::Insert),
        20 => near.clone().prop_map(Op::Insert),
        4 => any::<u64>().prop_map(Op::InsertLate),
        4 => (0u64..100).prop_map(Op::InsertNext),
        8 => (0u64..100).prop_map(Op::Beat),
        3 => any::<usize>().prop_map(Op::Remove),
        2 => any::<usize>().prop_map(Op::Again),
        2 => (any::<usize>(), distance.clone()).prop_map(|(pick, d)| Op::Reset(pick, d)),
        6 => (any::<usize>(), near.clone()).prop_map(|(pick, d)| Op::Reset(pick, d)),
        6 => (any::<usize>(), -3i64..100).prop_map(|(pick, d)| Op::Shift(pick, d)),
        1 => distance.prop_map(Op::Advance),
        2 => near.prop_map(Op::Advance),
        6 => (0usize..40).prop_map(Op::Pop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Compares with a sorted list: the same entries in the same order, and no missed wake-up.
    #[test]
    fn agrees_with_a_sorted_list(ops in prop::collection::vec(op(), 1..400)) {
        let mut wheel = IndexWheel::new();
        let mut model: Vec<(u64, u32)> = Vec::new();
        let (mut now, mut next_index) = (0u64, 0u32);
        let add = |wheel: &mut IndexWheel, model: &mut Vec<(u64, u32)>, index, deadline| {
            let deadline = u64::max(deadline, wheel.elapsed);
            wheel.insert(index, deadline);
            let at = model.partition_point(|(d, _)| *d <= deadline);
            model.insert(at, (deadline, index));
        };
        let beat = |wheel: &mut IndexWheel, model: &mut Vec<(u64, u32)>, index, deadline| {
            let deadline = u64::max(deadline, wheel.elapsed);
            wheel.insert_next(index, deadline);
            let at = model.partition_point(|(d, _)| *d <= deadline);
            model.insert(at, (deadline, index));
        };
        for op in ops {
            match op {
                Op::Insert(distance) => {
                    add(&mut wheel, &mut model, next_index, now.saturating_add(distance));
                    next_index += 1;
                }
                Op::InsertNext(distance) => {
                    beat(&mut wheel, &mut model, next_index, now.saturating_add(distance));
                    next_index += 1;
                }
                Op::Beat(distance) => {
                    let due = model.first().copied().filter(|(first, _)| *first <= now);
                    let expected = due.map(|(deadline, index)| (index, deadline));
                    prop_assert_eq!(wheel.pop_due(now), expected);
                    if let Some((_, index)) = due {
                        model.remove(0);
                        beat(&mut wheel, &mut model, index, now.saturating_add(distance));
                        let is_due = model.first().is_some_and(|(first, _)| *first <= now);
                        prop_assert!(!wheel.wheel.is_quiet(now) || !is_due);
                    }
                }
                Op::InsertLate(pick) => {
                    let late = (now - wheel.elapsed).saturating_add(1000);
                    add(&mut wheel, &mut model, next_index, now.saturating_sub(pick % late));
                    next_index += 1;
                }
                Op::Remove(pick) if !model.is_empty() => {
                    let (_, index) = model.remove(pick % model.len());
                    prop_assert!(wheel.remove(index));
                }
                Op::Again(pick) if !model.is_empty() => {
                    let (deadline, index) = model.remove(pick % model.len());
                    prop_assert!(wheel.remove(index));
                    add(&mut wheel, &mut model, index, deadline);
                }
                Op::Reset(pick, _) | Op::Shift(pick, _) if !model.is_empty() => {
                    let (old, index) = model.remove(pick % model.len());
                    let deadline = match op {
                        Op::Reset(_, distance) => now.saturating_add(distance),
                        Op::Shift(_, by) => old.saturating_add_signed(by),
                        _ => unreachable!("the other operations are above"),
                    };
                    let deadline = deadline.max(wheel.elapsed);
                    wheel.reset(index, deadline);
                    prop_assert!(wheel.contains(index));
                    let at = model.partition_point(|(d, _)| *d <= deadline);
                    model.insert(at, (deadline, index));
                }
                Op::Remove(_) | Op::Again(_) | Op::Reset(..) | Op::Shift(..) => {}
                Op::Advance(distance) => {
                    now = now.saturating_add(distance);
                    wheel.advance(now);
                    let is_due = model.first().is_some_and(|(first, _)| *first <= now);
                    prop_assert_eq!(
                        wheel.next_deadline().is_some_and(|next| next <= now), is_due
                    );
                }
                Op::Pop(count) => {
                    for _ in 0..count {
                        let due = model.first().copied().filter(|(first, _)| *first <= now);
                        prop_assert_eq!(
                            wheel.pop_due(now), due.map(|(deadline, index)| (index, deadline))
                        );
                        if due.is_none() {
                            break;
                        }
                        model.remove(0);
                    }
                }
            }
            prop_assert_eq!(wheel.len(), model.len());
            let first = model.first().map_or(u64::MAX, |(deadline, _)| *deadline);
            prop_assert!(wheel.elapsed <= first.min(now));
            match (wheel.next_deadline(), model.first()) {
                (Some(bound), Some((first, _))) => prop_assert!(bound <= *first),
                (bound, first) => prop_assert_eq!(bound.is_some(), first.is_some()),
            }
        }
        for (deadline, index) in model {
            prop_assert_eq!(wheel.pop_due(u64::MAX), Some((index, deadline)));
        }
        prop_assert_eq!((wheel.pop_due(u64::MAX), wheel.len()), (None, 0));
    }
}

#[test]
fn a_later_deadline_does_not_move_an_entry_and_counts_as_an_insertion() {
    let mut wheel = IndexWheel::new();
    for index in 0..4 {
        wheel.insert(index, 5000);
    }
    let holders: Vec<Holder> = wheel.nodes.0.iter().map(|node| node.holder).collect();
    wheel.reset(1, 9_000_000);
    wheel.reset(0, 5000);
    wheel.reset(2, 5000);
    assert_eq!(holders, wheel.nodes.0.iter().map(|node| node.holder).collect::<Vec<_>>());
    wheel.insert(4, 9_000_000);
    wheel.reset(3, 4999);
    assert_eq!(wheel.pop_due(5000), Some((3, 4999)));
    assert_eq!(wheel.pop_due(5000), Some((0, 5000)));
    assert_eq!(wheel.pop_due(5000), Some((2, 5000)));
    assert_eq!((wheel.pop_due(5000), wheel.len()), (None, 2));
    assert_eq!(wheel.next_deadline(), Some(9_000_000));
    assert_eq!(wheel.pop_due(u64::MAX), Some((1, 9_000_000)));
    assert_eq!(wheel.pop_due(u64::MAX), Some((4, 9_000_000)));
}

/// Entries that were reset in place leave slots of every level, all in the same order.
#[test]
fn many_equal_deadlines_fire_in_the_order_of_their_resets() {
    for span in [1u64, 70, 5000, 300_000, 1 << 30] {
        let mut wheel = IndexWheel::new();
        let count: u32 = if cfg!(miri) { 40 } else { 500 };
        for index in 0..count {
            wheel.insert(index, span + 1 + u64::from(index) % 2);
        }
        let order: Vec<u32> = (0..count).map(|i| i * 7 % count).collect();
        for index in &order {
            wheel.reset(*index, 2 * span + 2);
        }
        assert_eq!(wheel.pop_due(2 * span + 1), None);
        let fired: Vec<u32> =
            core::iter::from_fn(|| wheel.pop_due(2 * span + 2)).map(|(i, _)| i).collect();
        assert!(fired == order, "{span}");
    }
}

#[test]
fn a_large_slot_is_sorted_once_and_equal_deadlines_keep_their_order() {
    let mut wheel = IndexWheel::new();
    let count: u32 = if cfg!(miri) { 300 } else { 20_000 };
    let deadline = |index: u32| 1 << 20 | u64::from(index.wrapping_mul(2_654_435_761) >> 19);
    let mut model: Vec<(u64, u32)> = (0..count).map(|index| (deadline(index), index)).collect();
    for (deadline, index) in &model {
        wheel.insert(*index, *deadline);
    }
    model.sort_unstable();
    let mut fired = Vec::new();
    while let Some((index, deadline)) = wheel.pop_due(2 << 20) {
        fired.push((deadline, index));
    }
    assert!(fired == model);
}

/// The front is before all others, whatever is inserted, reset or removed.
#[test]
fn the_front_gives_way_to_an_earlier_entry_and_keeps_its_number() {
    let mut wheel = IndexWheel::new();
    wheel.insert(0, 50);
    wheel.insert_next(1, 50);
    assert_eq!(wheel.front, NONE, "an entry with the same deadline was inserted before it");
    wheel.insert_next(2, 40);
    wheel.insert(3, 40);
    assert_eq!((wheel.front, wheel.next_deadline(), wheel.len()), (2, Some(40), 4));
    wheel.insert_next(4, 30);
    assert_eq!((wheel.front, wheel.next_deadline()), (4, Some(30)));
    wheel.reset(0, 29);
    assert_eq!((wheel.front, wheel.next_deadline(), wheel.len()), (NONE, Some(29), 5));
    assert!(wheel.remove(4));
    wheel.insert_next(4, 3);
    assert!(wheel.remove(4));
    assert_eq!((wheel.front, wheel.len()), (NONE, 4));
    let fired: Vec<_> = core::iter::from_fn(|| wheel.pop_due(50)).collect();
    assert_eq!(fired, [(0, 29), (2, 40), (3, 40), (1, 50)]);
    wheel.insert_next(5, 60);
    wheel.reset(5, 70);
    assert_eq!((wheel.front, wheel.pop_due(69), wheel.pop_due(70)), (NONE, None, Some((5, 70))));
}

/// A periodic timer that is the next one again does not touch the slots.
#[test]
fn an_entry_that_is_always_the_next_stays_out_of_the_slots() {
    let mut wheel = IndexWheel::new();
    wheel.insert(0, 1);
    wheel.insert(1, 1_000_000);
    for now in 1..100 {
        assert_eq!(wheel.pop_due(now), Some((0, now)));
        wheel.insert_next(0, now + 1);
        assert_eq!((wheel.front, wheel.linked), (0, 1));
        assert!(wheel.wheel.is_quiet(now) && !wheel.wheel.is_quiet(now + 1));
        assert_eq!(wheel.elapsed, now, "what is inserted later is placed close to now");
    }
}
