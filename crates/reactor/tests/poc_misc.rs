//! Proofs of concept: embedding, exclusive, allocations.
#![allow(missing_docs, reason = "proofs of concept")]
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    time::Duration,
};
use windlass::*;

struct Counting;
thread_local! { static ALLOCS: Cell<usize> = const { Cell::new(0) }; }
// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        ALLOCS.set(ALLOCS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(l) }
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, l) }
    }
}
#[global_allocator]
static A: Counting = Counting;

fn ready() -> OwnedFd {
    eventfd(1, EventfdFlags::NONBLOCK).unwrap()
}
fn readable(fd: &impl AsFd) -> bool {
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&zero)).unwrap() == 1
}

/// F3: the embedded reactor is replaced, the old one lives on elsewhere with a ready descriptor: the host spins.
#[test]
fn f3_a_replaced_reactor_still_wakes_the_host() {
    let mut e = Reactor::new().unwrap().embed().ok().unwrap();
    let mut other = Reactor::new().unwrap();
    e.with(|r| core::mem::swap(r, &mut other));
    interest().read().with_fd(ready()).with_handler(|_: &mut OwnedFd| {}).register_into(&mut other).unwrap();
    for _ in 0..5 {
        e.run_once(Duration::ZERO).unwrap();
    }
    assert!(!readable(&e), "the host is woken for a reactor that is not there any more, for ever");
}

/// F3b: and put back.
#[test]
fn f3b_a_reactor_that_comes_back() {
    let mut e = Reactor::new().unwrap().embed().ok().unwrap();
    let mut other = Reactor::new().unwrap();
    e.with(|r| core::mem::swap(r, &mut other));
    e.run_once(Duration::ZERO).unwrap();
    e.with(|r| core::mem::swap(r, &mut other));
    for i in 0..5 {
        e.run_once(Duration::ZERO).unwrap_or_else(|e| panic!("turn {i}: {e}"));
    }
    e.with(|r| r.defer(|_: Turn<'_, _>| {}).ok().unwrap());
    assert!(readable(&e), "deferred work wakes nobody");
}

/// F5: rule 12.
#[test]
fn f5_merged_modify_allocates_every_turn() {
    let mut r = Reactor::new().unwrap();
    let mut w = false;
    interest()
        .read()
        .with_fd(ready())
        .with_handler(move |_: &mut OwnedFd, e: Event, mut t: Turn<'_, _>| {
            w = !w;
            t.modify(e.key(), if w { interest().read().priority() } else { interest().read() }).unwrap();
        })
        .register_into(&mut r)
        .unwrap();
    for _ in 0..10 {
        r.run_once(None).unwrap();
    }
    let before = ALLOCS.get();
    for _ in 0..100 {
        r.run_once(None).unwrap();
    }
    assert_eq!(ALLOCS.get() - before, 0);
}

/// F6: an exclusive modify whose DEL succeeds and whose ADD fails (EPOLLEXCLUSIVE on an epoll set is EINVAL): the
/// registration is silently gone, though "the old interest stays in force".
#[test]
fn f6_exclusive_modify_fails_half_way() {
    let mut r = Reactor::new().unwrap();
    let mut guest = Reactor::new().unwrap().embed().ok().unwrap();
    guest.with(|g| g.defer(|_: Turn<'_, _>| {}).ok().unwrap());
    let n = Rc::new(Cell::new(0));
    let m = n.clone();
    let key = interest()
        .read()
        .with_fd(guest)
        .with_handler(move |_: &mut Embedded| m.set(m.get() + 1))
        .register_into(&mut r)
        .unwrap();
    r.run_once(Duration::ZERO).unwrap();
    assert_eq!(n.get(), 1);
    assert!(r.modify(key, interest().read().exclusive()).is_err());
    r.run_once(Duration::ZERO).unwrap();
    assert_eq!(n.get(), 2, "neither the old interest nor an error event");
}

/// Deleting the members of a group one by one is quadratic.
#[test]
fn f10_group_of_many_timers() {
    let mut r = Reactor::new().unwrap();
    let build = |n: usize| (0..n).fold(Group::new(()), |g, _| g.after(Duration::from_secs(100), |_: &mut ()| {}));
    for n in [1000usize, 4000, 16_000] {
        let reg = build(n).register_into(&mut r).unwrap();
        let start = std::time::Instant::now();
        for key in reg.members {
            r.cancel(key).unwrap();
        }
        println!("{n}: {:?} each", start.elapsed() / n as u32);
    }
}
