//! Groups that are registered partly, twice, in another reactor or too late.

use std::{
    cell::{Cell, RefCell},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::Duration,
};

use windlass::{
    Event, Group, GroupError, GroupKey, GroupReason, GroupState, GroupStateError, Key, MockReactor,
    Reactor, ReactorOps, Ready, Turn, interest, turn as mocked,
};

use crate::tools::{counter, drain, on_ready, ready, turn, turn_panics};

const LATER: Duration = Duration::from_secs(100);

/// Panics when its descriptor is requested.
struct Rude(OwnedFd);

impl AsFd for Rude {
    fn as_fd(&self) -> BorrowedFd<'_> {
        panic!("{:?} is not told", self.0)
    }
}

/// Regression: the members before the panicking one stayed registered, in a group whose key was
/// lost.
#[test]
fn a_member_that_panics_when_it_is_asked_leaves_no_half_of_a_group() {
    let mut reactor = crate::builder().build().unwrap();
    let (count, seen) = counter();
    let ticks = count.clone();
    let group = Group::new(())
        .fd(interest().read(), ready(), move |_: &mut ()| count.set(count.get() + 1))
        .after(Duration::ZERO, move |_: &mut ()| ticks.set(ticks.get() + 1))
        .fd(interest().read(), Rude(ready()), |_: &mut ()| {});
    assert!(catch_unwind(AssertUnwindSafe(|| group.register_into(&mut reactor))).is_err());
    turn(&mut reactor);
    let stats = reactor.stats();
    assert_eq!((stats.subscribers, stats.timers, seen.get()), (0, 0, 0));
}

/// Regression: a member that had joined stayed after the panic. It outlived its group and fired
/// after the group was deleted.
#[test]
fn a_member_that_panics_when_it_is_asked_leaves_no_half_of_a_join() {
    let mut reactor = crate::builder().build().unwrap();
    let (count, seen) = counter();
    let key =
        Group::new(()).after(LATER, |_: &mut ()| {}).register_into(&mut reactor).unwrap().group;
    let join = move |mut turn: Turn<'_, Reactor>| {
        let group = turn
            .group(key)
            .unwrap()
            .fd(interest().read(), ready(), move |_: &mut ()| count.set(count.get() + 1))
            .fd(interest().read(), Rude(ready()), |_: &mut ()| {});
        let _ = group.register_into(&mut turn);
    };
    reactor.defer(join).unwrap();
    turn_panics(&mut reactor);
    reactor.delete_group(key).unwrap();
    turn(&mut reactor);
    turn(&mut reactor);
    assert_eq!((seen.get(), reactor.stats().subscribers), (0, 0));
}

/// This attack found no bug. Otherwise members of two reactors that share one state could run
/// inside each other.
#[test]
fn a_join_that_is_kept_beyond_its_turn_registers_in_no_other_reactor() {
    let (mut home, mut other) =
        (crate::builder().build().unwrap(), crate::builder().build().unwrap());
    let key = Group::new(String::new())
        .after(LATER, |_: &mut String| {})
        .register_into(&mut home)
        .unwrap()
        .group;
    // Another group takes the same slot in the other reactor.
    Group::new(String::new()).after(LATER, |_: &mut String| {}).register_into(&mut other).unwrap();
    let kept: Rc<RefCell<Option<Group<String>>>> = Rc::default();
    let keep = kept.clone();
    let join = move |mut turn: Turn<'_, Reactor>| {
        let group = turn.group(key).unwrap();
        let group = group
            .fd(interest().read().edge_triggered(), ready(), |state: &mut String| state.push('x'));
        *keep.borrow_mut() = Some(group);
    };
    home.defer(join).unwrap();
    turn(&mut home);
    let refused = kept.take().unwrap().try_register_into(&mut other).unwrap_err();
    assert_eq!(refused.reason, GroupReason::NotFound);
    assert!(other.group_mut(key).is_none());
    // The same in a third reactor, which lives inside a handler. Then the join succeeds in its own
    // reactor.
    let come_home = move |mut turn: Turn<'_, Reactor>| {
        let refused =
            refused.group.try_register_into(&mut crate::builder().build().unwrap()).unwrap_err();
        refused.group.register_into(&mut turn).unwrap();
    };
    home.defer(come_home).unwrap();
    turn(&mut home);
    turn(&mut home);
    assert_eq!(home.group_mut(key).unwrap(), "x");
}

/// This attack found no bug. The state must outlive the handler that deletes its group, and no
/// member may join a deleted group.
#[test]
fn a_running_member_can_join_its_own_group_and_delete_it_and_go_on() {
    let mut reactor = crate::builder().build().unwrap();
    let slot: Rc<Cell<Option<GroupKey<Vec<u8>>>>> = Rc::default();
    let own = slot.clone();
    let handler = move |state: &mut Vec<u8>, _: &mut OwnedFd, mut turn: Turn<'_, Reactor>| {
        let key = own.get().unwrap();
        state[0] += 1;
        let joining =
            turn.group(key).unwrap().after(Duration::ZERO, |state: &mut Vec<u8>| state[1] = 1);
        state[0] += 1;
        joining.register_into(&mut turn).unwrap();
        state[0] += 1;
        turn.delete_group(key).unwrap();
        state[0] += 1;
        state.push(9);
        assert!(turn.group(key).is_err());
        let fresh = Group::new(vec![1]).after(Duration::ZERO, |state: &mut Vec<u8>| state[0] = 1);
        let fresh = fresh.register_into(&mut turn).unwrap();
        turn.delete_group(fresh.group).unwrap();
        assert_eq!(*state, [4, 0, 9]);
    };
    let group = Group::new(vec![0, 0]).fd(interest().read().edge_triggered(), ready(), handler);
    let key = group.register_into(&mut reactor).unwrap().group;
    slot.set(Some(key));
    assert_eq!(turn(&mut reactor), 1);
    assert!(reactor.group_mut(key).is_none());
    assert_eq!((reactor.stats().subscribers, reactor.stats().timers), (0, 0));
}

/// Uses a mock that has the state of a real group. It can build members with the state but cannot
/// run them.
///
/// A running member of the real group borrows the state mutably, so a second path to it would be a
/// second reference. `reactor/group_state_is_not_shown.rs` covers the rest: the erased forms
/// give access to nothing.
fn use_up(key: GroupKey<u32>, state: GroupState, is_taken: bool) {
    let state = RefCell::new(Some(state));
    let mut mock = MockReactor::new();
    // The state is returned once.
    mock.expect_group_state().times(2).returning_st(move |_| state.take());
    mock.expect_add_group().times(1).returning_st(move |group| {
        assert_eq!((group.len(), group.is_empty()), (3, false));
        if is_taken {
            drop(group);
            return Ok((Key::from_bits(1), vec![]));
        }
        Err(GroupError { reason: GroupReason::NotFound, group })
    });
    let mut turn = mocked!(mock);
    let joining = turn
        .group(key)
        .unwrap()
        .fd(interest().read(), ready(), |state: &mut u32| *state += 1)
        .after(Duration::ZERO, |state: &mut u32| *state += 1)
        .every(Duration::from_nanos(1), |state: &mut u32| *state += 1);
    assert!(turn.group(key).is_err());
    match joining.try_register_into(&mut turn) {
        Ok(_) => assert!(is_taken),
        // The group is returned unchanged. It still belongs to the mock, so no reactor accepts it.
        Err(refused) => drop::<Group<u32, MockReactor>>(refused.group),
    }
}

#[test]
fn a_mock_with_a_real_groups_state_never_reaches_it() {
    let mut reactor = crate::builder().build().unwrap();
    let key =
        Group::new(7).after(LATER, |_: &mut u32| {}).register_into(&mut reactor).unwrap().group;
    let stated = |reactor: &mut Reactor| ReactorOps::group_state(reactor, key.key()).unwrap();
    for is_taken in [false, true] {
        let state = stated(&mut reactor);
        use_up(key, state, is_taken);
        let state = stated(&mut reactor);
        let (ran, seen) = counter();
        // Joins the group. The handler then uses the erased form while it also borrows the state
        // itself.
        let kept = Rc::new(Cell::new(Some(state)));
        let handler = move |state: &mut u32, event: Event, mut turn: Turn<'_, Reactor>| {
            let before = *state;
            use_up(key, kept.take().unwrap(), is_taken);
            assert_eq!(*state, before);
            *state += 1;
            ran.set(ran.get() + 1);
            turn.delete(event.key()).unwrap();
        };
        let join = move |mut turn: Turn<'_, Reactor>| {
            let joining = turn.group(key).unwrap().fd(interest().read(), ready(), handler);
            joining.register_into(&mut turn).unwrap();
        };
        reactor.defer(join).unwrap();
        turn(&mut reactor);
        turn(&mut reactor);
        assert_eq!(seen.get(), 1);
    }
    on_ready(&mut reactor, ready(), |_, _| {});
    turn(&mut reactor);
    assert_eq!(reactor.group_mut(key), Some(&mut 9), "by its own members alone");
    // The state lives as long as the erased form, and is still inaccessible.
    let state = stated(&mut reactor);
    drop(reactor);
    use_up(key, state, false);
}

/// `with_group` by a mock: a running member of the real group has the state already, and the mock
/// cannot know.
#[test]
fn a_mock_lends_no_state_of_a_real_group() {
    let mut reactor = crate::builder().build().unwrap();
    let group = Group::new(7).after(LATER, |_: &mut u32| {});
    let key = group.register_into(&mut reactor).unwrap().group;
    let kept = Cell::new(Some(ReactorOps::group_state(&mut reactor, key.key()).unwrap()));
    let (ran, seen) = counter();
    let handler = move |state: &mut u32| {
        let real = kept.take();
        let mut mock = MockReactor::new();
        mock.expect_group_state().times(1).return_once_st(move |_| real);
        let lent = mocked!(mock).with_group(key, |state, _| *state += 1);
        assert_eq!(lent, Err(GroupStateError::Borrowed));
        *state += 1;
        ran.set(ran.get() + 1);
    };
    let join = move |mut turn: Turn<'_, Reactor>| {
        let joining = turn.group(key).unwrap();
        joining
            .fd(interest().read().edge_triggered(), ready(), handler)
            .register_into(&mut turn)
            .unwrap();
    };
    reactor.defer(join).unwrap();
    turn(&mut reactor);
    turn(&mut reactor);
    assert_eq!((seen.get(), reactor.group_mut(key)), (1, Some(&mut 8)));
}

#[test]
fn a_mock_lends_the_state_that_it_is_given() {
    fn on_ready(group: GroupKey<u32>, turn: &mut Turn<'_, impl ReactorOps>) -> u32 {
        turn.with_group(group, |count, mut turn| {
            let nested = turn.with_group(group, |_, _| ());
            assert!(matches!(nested, Ok(()) | Err(GroupStateError::Borrowed)));
            *count
        })
        .unwrap()
    }
    let mut mock = MockReactor::new();
    mock.expect_group_state().times(2).returning_st(|_| Some(GroupState::new(5_u32)));
    assert_eq!(on_ready(GroupKey::from_key(Key::from_bits(1)), &mut mocked!(mock)), 5);
}

/// Handlers of a group that pause it, resume it, kick others and delete others, and panic at once.
/// The resume is the unwinding handler's as well.
#[test]
fn a_group_that_is_paused_by_a_panicking_handler_loses_no_event() {
    const READ: Ready = Ready::empty().read();
    let mut reactor = crate::builder().build().unwrap();
    let (count, seen) = counter();
    let key: Rc<Cell<Option<GroupKey<usize>>>> = Rc::default();
    let keys: Rc<RefCell<Vec<Key>>> = Rc::default();
    let mut group = Group::new(0);
    for place in 0..6 {
        let (key, keys, count) = (key.clone(), keys.clone(), count.clone());
        let handler =
            move |calls: &mut usize, fd: &mut OwnedFd, event: Event, turn: Turn<'_, _>| {
                struct Resumes<'t>(Turn<'t, Reactor>, GroupKey<usize>, bool);
                impl Drop for Resumes<'_> {
                    fn drop(&mut self) {
                        if self.2 {
                            self.0.resume_group(self.1).unwrap();
                            self.0.pause_group(self.1).unwrap();
                        }
                    }
                }
                drain(fd);
                *calls += 1;
                count.set(count.get() + 1);
                let mut guard = Resumes(turn, key.get().unwrap(), place % 2 == 0);
                guard.0.pause_group(guard.1).unwrap();
                let other = keys.borrow().iter().copied().find(|other| *other != event.key());
                if place % 3 == 0 {
                    guard.0.delete(event.key()).unwrap();
                    keys.borrow_mut().retain(|key| *key != event.key());
                } else if let Some(other) = other {
                    guard.0.kick(other, READ).unwrap();
                }
                panic!("handler");
            };
        group = group.fd(interest().read(), ready(), handler);
    }
    let registered = group.register_into(&mut reactor).unwrap();
    key.set(Some(registered.group));
    keys.borrow_mut().extend(&registered.members);
    for calls in 1..=6 {
        assert_eq!(turn_panics(&mut reactor), "handler");
        assert_eq!(seen.get(), calls, "one runs, and pauses the others");
        (0..3).for_each(|_| assert_eq!(turn(&mut reactor), 0));
        if calls < 6 {
            reactor.resume_group(registered.group).unwrap();
        }
    }
    reactor.delete_group(registered.group).unwrap();
    assert_eq!((turn(&mut reactor), reactor.stats().subscribers), (0, 0));
}
