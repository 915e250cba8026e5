//! Proofs of concept: panics where the reactor aborts, miscounts or keeps half of something.
#![allow(missing_docs, reason = "proofs of concept")]
use rustix::event::{EventfdFlags, eventfd};
use std::{
    cell::{Cell, RefCell},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    process::Command,
    rc::Rc,
    time::{Duration, Instant},
};
use windlass::*;

fn ready() -> OwnedFd {
    eventfd(1, EventfdFlags::NONBLOCK).unwrap()
}
fn panics<T>(f: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

/// Runs `f` in a process of its own, for it may abort.
fn in_child(name: &str, f: impl FnOnce()) {
    if cfg!(miri) || std::env::var("POC_CHILD").is_ok_and(|n| n == name) {
        f();
        return;
    }
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env("POC_CHILD", name)
        .output()
        .unwrap();
    assert!(out.status.success(), "{name}: {:?}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
}

/// F1: batch of 5; the first panics, then a before_wait hook panics: `counters.events -= batch.len()` underflows in a drop.
#[test]
fn f1_hook_panics_over_a_kept_batch() {
    in_child("f1_hook_panics_over_a_kept_batch", || {
        let mut r = Reactor::new().unwrap();
        let n = Rc::new(Cell::new(0));
        for _ in 0..5 {
            let n = n.clone();
            interest()
                .read()
                .with_fd(ready())
                .with_handler(move |fd: &mut OwnedFd| {
                    rustix::io::read(fd, &mut [0; 8]).unwrap();
                    n.set(n.get() + 1);
                    if n.get() == 1 {
                        panic!("first")
                    }
                })
                .register_into(&mut r)
                .unwrap();
        }
        assert!(panics(|| r.run_once(None)));
        let hook = r.before_wait(|_: Turn<'_, _>| panic!("hook")).unwrap();
        for _ in 0..3 {
            assert!(panics(|| r.run_once(None)));
        }
        r.remove_hook(hook).unwrap();
        assert_eq!(r.run_once(None).unwrap(), 4);
        assert_eq!((n.get(), r.stats().events), (5, 5));
    });
}

struct Bomb(Rc<Cell<u32>>);
impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
        panic!("bomb");
    }
}

/// F1b: self-delete + handler panic + destructor panic, with others behind it in the batch.
#[test]
fn f1b_self_delete_panics_twice_in_a_batch() {
    in_child("f1b_self_delete_panics_twice_in_a_batch", || {
        let mut r = Reactor::new().unwrap();
        let (n, dropped) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        for _ in 0..4 {
            let n = n.clone();
            let bomb = Bomb(dropped.clone());
            interest()
                .read()
                .with_fd(ready())
                .with_handler(move |fd: &mut OwnedFd, e: Event, mut t: Turn<'_, _>| {
                    let _ = &bomb;
                    rustix::io::read(fd, &mut [0; 8]).unwrap();
                    n.set(n.get() + 1);
                    t.delete(e.key()).unwrap();
                    panic!("handler")
                })
                .register_into(&mut r)
                .unwrap();
        }
        let mut ups = 0;
        for _ in 0..20 {
            ups += u32::from(panics(|| r.run_once(Duration::ZERO)));
        }
        assert_eq!((ups, n.get(), dropped.get(), r.stats().events), (8, 4, 4, 4));
    });
}

/// F2: an embedded reactor with a clock that panics while a handler's panic is under way.
#[test]
fn f2_clock_panics_while_embedded_unwinds() {
    in_child("f2_clock_panics_while_embedded_unwinds", || {
        let armed = Rc::new(Cell::new(false));
        let a = armed.clone();
        let mut r = Reactor::builder()
            .clock(move || {
                assert!(!a.get(), "clock");
                Instant::now()
            })
            .build()
            .unwrap();
        r.after(Duration::from_secs(100), || {}).unwrap();
        let mut e = r.embed().ok().unwrap();
        interest()
            .read()
            .with_fd(ready())
            .with_handler(move |_: &mut OwnedFd| {
                armed.set(true);
                panic!("handler")
            })
            .register_into(&mut e)
            .unwrap();
        assert!(panics(|| e.run_once(Duration::ZERO)));
    });
}

struct Hand {
    fd: OwnedFd,
    _bomb: Bomb,
}
impl Subscriber for Hand {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    fn interest(&self) -> Interest {
        interest().read()
    }
    fn handle(&mut self, _: Event, _: Turn<'_, Reactor>) {}
}

/// F7: a guard in a handler deletes another while the handler's panic is under way; the other's destructor panics.
#[test]
fn f7_cross_delete_while_unwinding() {
    in_child("f7_cross_delete_while_unwinding", || {
        struct Guard<'a>(Turn<'a, Reactor>, Key);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.delete(self.1).unwrap();
            }
        }
        let dropped = Rc::new(Cell::new(0));
        let mut r = Reactor::new().unwrap();
        let quiet = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let victim = r.add(Hand { fd: quiet, _bomb: Bomb(dropped.clone()) }).unwrap();
        interest()
            .read()
            .with_fd(ready())
            .with_handler(move |_: &mut OwnedFd, t: Turn<'_, Reactor>| {
                let _guard = Guard(t, victim);
                panic!("handler");
            })
            .register_into(&mut r)
            .unwrap();
        assert!(panics(|| r.run_once(Duration::ZERO)));
        let _ = panics(|| r.run_once(Duration::ZERO));
        assert_eq!(dropped.get(), 1);
    });
}

/// F7b: the same with a timer.
#[test]
fn f7b_cancel_while_unwinding() {
    in_child("f7b_cancel_while_unwinding", || {
        struct Guard<'a>(Turn<'a, Reactor>, Key);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.cancel(self.1).unwrap();
            }
        }
        let dropped = Rc::new(Cell::new(0));
        let mut r = Reactor::new().unwrap();
        let bomb = Bomb(dropped.clone());
        let victim = r
            .after(Duration::from_secs(100), move || {
                let _ = &bomb;
            })
            .unwrap();
        interest()
            .read()
            .with_fd(ready())
            .with_handler(move |_: &mut OwnedFd, t: Turn<'_, Reactor>| {
                let _guard = Guard(t, victim);
                panic!("handler");
            })
            .register_into(&mut r)
            .unwrap();
        assert!(panics(|| r.run_once(Duration::ZERO)));
        let _ = panics(|| r.run_once(Duration::ZERO));
        assert_eq!(dropped.get(), 1);
    });
}

struct BadFd(OwnedFd);
impl AsFd for BadFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        panic!("as_fd {:?}", self.0)
    }
}

/// F4: a member's `as_fd` panics half-way: "registers all members, or none".
#[test]
fn f4_half_a_group_stays() {
    let mut r = Reactor::new().unwrap();
    let n = Rc::new(Cell::new(0));
    let (a, b) = (n.clone(), n.clone());
    let group = Group::new(())
        .fd(interest().read(), ready(), move |_: &mut ()| a.set(a.get() + 1))
        .after(Duration::ZERO, move |_: &mut ()| b.set(b.get() + 100))
        .fd(interest().read(), BadFd(ready()), |_: &mut ()| {});
    assert!(panics(|| group.register_into(&mut r)));
    r.run_once(Duration::ZERO).unwrap();
    let s = r.stats();
    assert_eq!((s.subscribers, s.timers, n.get()), (0, 0, 0), "members of a group that does not exist");
}

/// F4c: the same with a join: the member outlives its group.
#[test]
fn f4c_half_a_join_outlives_the_group() {
    let mut r = Reactor::new().unwrap();
    let n = Rc::new(Cell::new(0));
    let reg = Group::new(()).after(Duration::from_secs(100), |_: &mut ()| {}).register_into(&mut r).unwrap();
    let (m, k) = (n.clone(), reg.group);
    r.defer(move |mut t: Turn<'_, Reactor>| {
        let m = m.clone();
        let g = t.group(k).unwrap().fd(interest().read(), ready(), move |_: &mut ()| m.set(m.get() + 1)).fd(
            interest().read(),
            BadFd(ready()),
            |_: &mut ()| {},
        );
        let _ = g.register_into(&mut t);
    })
    .unwrap();
    assert!(panics(|| r.run_once(Duration::ZERO)));
    r.delete_group(reg.group).unwrap();
    r.run_once(Duration::ZERO).unwrap();
    r.run_once(Duration::ZERO).unwrap();
    assert_eq!(n.get(), 0, "a member fires after its group was deleted");
}

/// F8: `missed + 1` overflows.
#[test]
fn f8_a_clock_that_leaps_to_the_end() {
    let base = Instant::now();
    let at = Rc::new(Cell::new(Duration::ZERO));
    let a = at.clone();
    let mut r = Reactor::builder().clock(move || base + a.get()).build().unwrap();
    let n = Rc::new(RefCell::new(Vec::new()));
    let m = n.clone();
    let key = r.every(Duration::from_nanos(1), move |t: Tick| m.borrow_mut().push(t.missed)).unwrap();
    r.reset_at(key, base).unwrap();
    at.set(Duration::from_secs(1000 * 366 * 24 * 3600));
    assert!(!panics(|| r.run_once(Duration::ZERO)), "{:?}", n.borrow());
    assert!(!panics(|| {
        r.reset(key, Duration::ZERO).unwrap();
        r.run_once(Duration::ZERO)
    }));
}

/// F9: another reactor's hook key.
#[test]
fn f9_a_hook_key_of_another_reactor() {
    let (mut a, mut b) = (Reactor::new().unwrap(), Reactor::new().unwrap());
    let ka = a.before_wait(|_: Turn<'_, _>| {}).unwrap();
    b.before_wait(|_: Turn<'_, _>| {}).unwrap();
    assert_eq!(b.remove_hook(ka), Err(NotFound));
}

/// F11: a handler's destructor panics in `take_fd`: the descriptor is leaked, neither given back nor closed
/// (a return value is leaked when a local's destructor panics, rust-lang/rust#47949).
#[test]
fn f11_take_fd_leaks_the_descriptor() {
    let mut r = Reactor::new().unwrap();
    let bomb = Bomb(Rc::new(Cell::new(0)));
    let fd = ready();
    let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
    let key = interest()
        .read()
        .with_fd(fd)
        .with_handler(move |_: &mut OwnedFd| {
            let _ = &bomb;
        })
        .register_into(&mut r)
        .unwrap();
    assert!(panics(|| r.take_fd::<OwnedFd>(key)));
    let link = std::fs::read_link(format!("/proc/self/fd/{number}"));
    assert!(!link.is_ok_and(|l| l.to_string_lossy().contains("eventfd")), "descriptor {number} is leaked");
}

/// F11b: `into_subscribers` with a timer whose destructor panics leaks every subscriber.
#[test]
fn f11b_into_subscribers_leaks_all() {
    struct Count(Rc<Cell<u32>>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let mut r = Reactor::new().unwrap();
    let n = Rc::new(Cell::new(0));
    for _ in 0..3 {
        let c = Count(n.clone());
        interest()
            .read()
            .with_fd(ready())
            .with_handler(move |_: &mut OwnedFd| {
                let _ = &c;
            })
            .register_into(&mut r)
            .unwrap();
    }
    let bomb = Bomb(Rc::new(Cell::new(0)));
    r.after(Duration::from_secs(9), move || {
        let _ = &bomb;
    })
    .unwrap();
    assert!(panics(|| r.into_subscribers()));
    assert_eq!(n.get(), 3, "subscribers leaked");
}

/// F12: `EMFILE` while a ghost is ready: every turn returns at once. (Design says "tried again"; this shows the price.)
#[test]
fn f12_a_ghost_without_a_free_descriptor_spins() {
    in_child("f12_a_ghost_without_a_free_descriptor_spins", || {
        let mut r = Reactor::new().unwrap();
        let fd = ready();
        let _dup = rustix::io::dup(&fd).unwrap();
        let slot = Rc::new(RefCell::new(Some(fd)));
        struct Lent(Rc<RefCell<Option<OwnedFd>>>);
        impl AsFd for Lent {
            fn as_fd(&self) -> BorrowedFd<'_> {
                // SAFETY: open at registration, which is when it is asked.
                unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(self.0.borrow().as_ref().unwrap())) }
            }
        }
        let key = interest().read().with_fd(Lent(slot.clone())).with_handler(|_: &mut Lent| {}).register_into(&mut r).unwrap();
        slot.borrow_mut().take();
        r.delete(key).unwrap();
        let mut hog = Vec::new();
        while let Ok(fd) = eventfd(0, EventfdFlags::empty()) {
            hog.push(fd);
        }
        let start = Instant::now();
        let mut turns = 0;
        while start.elapsed() < Duration::from_millis(200) {
            r.run_once(Duration::from_millis(50)).unwrap();
            turns += 1;
        }
        drop(hog);
        r.run_once(Duration::ZERO).unwrap();
        assert_eq!(r.stats().quarantined, 0);
        assert!(turns < 100, "{turns} turns in 200 ms");
    });
}
