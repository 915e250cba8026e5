//! Attacks that do no harm: they pass, under Miri and AddressSanitizer too.
#![allow(missing_docs, reason = "proofs of concept")]
use rustix::event::{EventfdFlags, eventfd};
use std::{
    cell::{Cell, RefCell},
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::Duration,
};
use windlass::*;

fn ready() -> OwnedFd {
    eventfd(1, EventfdFlags::NONBLOCK).unwrap()
}

/// A joining group kept beyond the turn, tried on another reactor, and after its own group is gone.
#[test]
fn a_kept_join_registers_nowhere_else() {
    let (mut a, mut b) = (Reactor::new().unwrap(), Reactor::new().unwrap());
    let kept: Rc<RefCell<Option<Group<String>>>> = Rc::default();
    let k2 = kept.clone();
    let reg = Group::new(String::from("s")).after(Duration::from_secs(9), |_: &mut String| {}).register_into(&mut a).unwrap();
    let _other = Group::new(String::from("t")).after(Duration::from_secs(9), |_: &mut String| {}).register_into(&mut b).unwrap();
    let key = reg.group;
    a.defer(move |mut t: Turn<'_, Reactor>| {
        *k2.borrow_mut() = Some(t.group(key).unwrap().fd(interest().read().edge_triggered(), ready(), |s: &mut String| s.push('x')));
    })
    .unwrap();
    a.run_once(Duration::ZERO).unwrap();
    let g = kept.take().unwrap();
    let e = g.register_into(&mut b).unwrap_err();
    assert_eq!(e.reason, GroupReason::NotFound);
    assert!(b.group_mut(key).is_none());
    let mut g = Some(e.group);
    let (g2, hit) = (Rc::new(RefCell::new(g.take())), Rc::new(Cell::new(0)));
    let h2 = hit.clone();
    // Inside a handler of the very group, from a nested reactor.
    a.defer(move |mut t: Turn<'_, Reactor>| {
        let nested = g2.take().unwrap();
        let mut inner = Reactor::new().unwrap();
        let e = nested.register_into(&mut inner).unwrap_err();
        e.group.register_into(&mut t).unwrap();
        h2.set(1);
    })
    .unwrap();
    a.run_once(Duration::ZERO).unwrap();
    a.run_once(Duration::ZERO).unwrap();
    assert_eq!((hit.get(), a.group_mut(key).unwrap().as_str()), (1, "sx"));
    drop(a);
}

/// Joins the running group, reads its state's key, deletes it, and goes on using the state.
#[test]
fn joins_and_deletes_the_group_of_the_running_member() {
    let mut r = Reactor::new().unwrap();
    let slot: Rc<Cell<Option<GroupKey<Vec<u8>>>>> = Rc::default();
    let s = slot.clone();
    let reg = Group::new(vec![0u8; 9])
        .fd(interest().read().edge_triggered(), ready(), move |state: &mut Vec<u8>, _: &mut OwnedFd, mut t: Turn<'_, Reactor>| {
            state[0] = 1;
            let key = s.get().unwrap();
            let g = t.group(key).unwrap().after(Duration::ZERO, |s: &mut Vec<u8>| s[1] = 1);
            state[0] += 1;
            g.register_into(&mut t).unwrap();
            state[0] += 1;
            t.delete_group(key).unwrap();
            state[0] += 1;
            state.push(9);
            assert!(t.group(key).is_err());
            let n = Group::new(vec![1u8]).after(Duration::ZERO, |s: &mut Vec<u8>| s[0] = 1).register_into(&mut t).unwrap();
            t.delete_group(n.group).unwrap();
            assert_eq!((state[0], state[9]), (4, 9));
        })
        .register_into(&mut r)
        .unwrap();
    slot.set(Some(reg.group));
    assert_eq!(r.run_once(Duration::ZERO).unwrap(), 1);
    assert!(r.group_mut(reg.group).is_none());
    let s = r.stats();
    assert_eq!((s.subscribers, s.timers), (0, 0));
}

/// Reactors swapped and dropped around kept batches, with takes and deletions between.
#[test]
fn kept_batches_survive_swaps_and_takes() {
    let (mut a, mut b) = (Reactor::new().unwrap(), Reactor::new().unwrap());
    let mut keys = Vec::new();
    for i in 0..6 {
        keys.push(
            interest()
                .edge_triggered()
                .read()
                .with_fd(ready())
                .with_handler(move |_: &mut OwnedFd| if i >= 0 { panic!("all") })
                .register_into(&mut a)
                .unwrap(),
        );
    }
    assert!(catch_unwind(AssertUnwindSafe(|| a.run_once(None))).is_err());
    core::mem::swap(&mut a, &mut b);
    drop(b.take_fd::<OwnedFd>(keys[1]).unwrap());
    drop(b.take_boxed(keys[2]).unwrap());
    b.delete(keys[3]).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| b.run_once(None))).is_err());
    let left = b.into_subscribers();
    assert_eq!(left.len(), 3);
    for (_, s) in left {
        a.add(s).unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| a.run_once(None))).is_err());
}

/// The state of a real group inside a mock: nobody can run its members.
#[test]
#[cfg(not(miri))]
fn a_groups_state_in_a_mock() {
    let mut r = Reactor::new().unwrap();
    let reg = Group::new(7u32).after(Duration::from_secs(9), |_: &mut u32| {}).register_into(&mut r).unwrap();
    let state = RefCell::new(ReactorOps::group_state(&mut r, reg.group.key()));
    let mut mock = MockReactor::new();
    mock.expect_group_state().returning_st(move |_| state.take());
    mock.expect_add_group().returning(|g| Err(GroupError { reason: GroupReason::NotFound, group: g }));
    let mut t = turn!(mock);
    let g = t.group(reg.group).unwrap().fd(interest().read().edge_triggered(), ready(), |s: &mut u32| *s += 1);
    let e = g.register_into(&mut t).unwrap_err();
    drop(e);
    assert_eq!(r.group_mut(reg.group), Some(&mut 7));
}
