//! Random hostile programs: groups, timers, deletes in every order, panics everywhere, kept batches, replaced descriptors.
//! Checked: every value is dropped once and never used after; a deleted one does not fire; nothing is left at the end.
#![allow(missing_docs, reason = "proofs of concept")]
use rustix::event::{EventfdFlags, eventfd};
use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::Duration,
};
use windlass::*;

#[derive(Default)]
struct World {
    rng: Cell<u64>,
    keys: RefCell<Vec<Key>>,
    timers: RefCell<Vec<Key>>,
    groups: RefCell<Vec<GroupKey<State>>>,
    dead_keys: RefCell<HashSet<u64>>,
    born: Cell<u64>,
    died: Cell<u64>,
    fired: Cell<u64>,
    ticks: Cell<u64>,
    panics: Cell<bool>,
    spare: RefCell<Vec<OwnedFd>>,
}
type W = Rc<World>;
impl World {
    fn rand(&self, n: u64) -> u64 {
        let mut x = self.rng.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.rng.set(x);
        (x >> 11) % n
    }
    fn maybe_panic(&self, one_in: u64) {
        if self.panics.get() && self.rand(one_in) == 0 {
            panic!("fuzz");
        }
    }
    fn pick<T: Copy>(&self, from: &RefCell<Vec<T>>) -> Option<T> {
        let n = from.borrow().len();
        (n > 0).then(|| from.borrow()[self.rand(n as u64) as usize])
    }
}

/// Dropped once; a canary in a box of its own.
struct Token_(W, Box<u64>);
impl Token_ {
    fn new(w: &W) -> Self {
        w.born.set(w.born.get() + 1);
        Self(w.clone(), Box::new(0xfeed))
    }
    fn touch(&mut self) {
        assert_eq!(*self.1, 0xfeed);
        *self.1 = 0xbeef;
        *self.1 = 0xfeed;
    }
}
impl Drop for Token_ {
    fn drop(&mut self) {
        self.touch();
        *self.1 = 0xdead;
        self.0.died.set(self.0.died.get() + 1);
        if !std::thread::panicking() {
            self.0.maybe_panic(9);
        }
    }
}
struct State {
    t: Token_,
    n: u64,
    big: [u64; 5],
}
struct Fd(RefCell<OwnedFd>, i32, Token_);
impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.2.0.maybe_panic(60);
        // SAFETY: the number stays open: `replace` only dup2s over it.
        unsafe { BorrowedFd::borrow_raw(self.1) }
    }
}
fn new_fd(w: &W) -> Fd {
    let fd = eventfd(u32::from(w.rand(3) != 0), EventfdFlags::NONBLOCK).unwrap();
    let n = std::os::fd::AsRawFd::as_raw_fd(&fd);
    Fd(RefCell::new(fd), n, Token_::new(w))
}
/// The file under the number becomes another one, or an earlier one again.
fn replace(w: &W, fd: &Fd) {
    if cfg!(miri) {
        return;
    }
    let mut spare = w.spare.borrow_mut();
    if spare.len() > 6 {
        let i = w.rand(spare.len() as u64) as usize;
        spare.swap_remove(i);
    }
    spare.push(rustix::io::dup(&*fd.0.borrow()).unwrap());
    let i = w.rand(spare.len() as u64) as usize;
    let other = if w.rand(2) == 0 { eventfd(1, EventfdFlags::NONBLOCK).unwrap() } else { rustix::io::dup(&spare[i]).unwrap() };
    rustix::io::dup2(&other, &mut fd.0.borrow_mut()).unwrap();
}
fn some_interest(w: &W) -> Interest {
    // Miri knows edge-triggered epoll only.
    if cfg!(miri) {
        let i = interest().read().edge_triggered();
        return if w.rand(3) == 0 { i.write() } else { i };
    }
    match w.rand(9) {
        0 => interest().read().edge_triggered(),
        1 => interest().read().one_shot(),
        2 => interest().read().exclusive(),
        3 => interest(),
        4 => interest().read().write().edge_triggered(),
        5 => interest().write().one_shot().edge_triggered(),
        _ => interest().read(),
    }
}
fn on_event(w: &W, fd: &mut Fd, tok: &mut Token_, e: Event, t: &mut Turn<'_, Reactor>) {
    tok.touch();
    fd.2.touch();
    w.fired.set(w.fired.get() + 1);
    assert!(!w.dead_keys.borrow().contains(&e.key().to_bits()), "a deleted one fires");
    if cfg!(miri) && w.rand(2) == 0 {
        let _ = rustix::io::write(&*fd.0.borrow(), &1u64.to_ne_bytes());
    } else if w.rand(2) == 0 {
        let _ = rustix::io::read(&*fd.0.borrow(), &mut [0; 8]);
    }
    if w.rand(8) == 0 {
        replace(w, fd);
    }
    if w.rand(4) == 0 {
        del(w, e.key(), |k| t.delete(k));
    }
    act(w, t, 3);
    tok.touch();
    fd.2.touch();
    if e.has_error() && w.rand(2) == 0 {
        del(w, e.key(), |k| t.delete(k));
    }
    w.maybe_panic(8);
}
fn del(w: &W, k: Key, f: impl FnOnce(Key) -> Result<(), NotFound>) {
    w.dead_keys.borrow_mut().insert(k.to_bits());
    let known = w.keys.borrow().contains(&k);
    w.keys.borrow_mut().retain(|x| *x != k);
    let _ = known;
    let _ = f(k);
}
fn make(w: &W) -> impl FnMut(&mut Fd, Event, Turn<'_, Reactor>) + use<> {
    let (w, mut tok) = (w.clone(), Token_::new(w));
    move |fd: &mut Fd, e: Event, mut t: Turn<'_, Reactor>| on_event(&w, fd, &mut tok, e, &mut t)
}
fn make_timer(w: &W) -> impl FnMut(Tick, Turn<'_, Reactor>) + use<> {
    let (w, mut tok) = (w.clone(), Token_::new(w));
    move |tick: Tick, mut t: Turn<'_, Reactor>| {
        tok.touch();
        w.ticks.set(w.ticks.get() + 1);
        match w.rand(6) {
            0 => drop(t.cancel(tick.key)),
            1 => drop(t.reset(tick.key, Duration::from_nanos(w.rand(3000)))),
            _ => {}
        }
        act(&w, &mut t, 2);
        tok.touch();
        w.maybe_panic(8);
    }
}
fn fill(w: &W, mut g: Group<State>) -> Group<State> {
    for _ in 0..1 + w.rand(3) {
        let (w2, mut tok) = (w.clone(), Token_::new(w));
        g = match w.rand(3) {
            0 => g.fd(some_interest(w), new_fd(w), move |s: &mut State, fd: &mut Fd, e: Event, mut t: Turn<'_, Reactor>| {
                s.n += 1;
                let before = s.n;
                s.t.touch();
                on_event(&w2, fd, &mut tok, e, &mut t);
                if w2.rand(3) == 0 {
                    if let Some(k) = w2.pick(&w2.groups) {
                        let _ = t.delete_group(k);
                    }
                }
                s.t.touch();
                s.big[3] = before;
                assert_eq!(s.n, before, "two borrows of the state");
            }),
            k => {
                let h = move |s: &mut State, tick: Tick, mut t: Turn<'_, Reactor>| {
                    s.n += 1;
                    let before = s.n;
                    tok.touch();
                    w2.ticks.set(w2.ticks.get() + 1);
                    if w2.rand(3) == 0 {
                        let _ = t.cancel(tick.key);
                    }
                    act(&w2, &mut t, 3);
                    s.t.touch();
                    assert_eq!(s.n, before, "two borrows of the state");
                    w2.maybe_panic(8);
                };
                let d = Duration::from_nanos(1 + w.rand(5000));
                if k == 1 { g.after(d, h) } else { g.every(d, h) }
            }
        }
    }
    g
}
fn note(w: &W, r: Registered<State>) {
    w.groups.borrow_mut().push(r.group);
    for k in r.members {
        // Either kind; the wrong call is NotFound.
        w.timers.borrow_mut().push(k);
        w.keys.borrow_mut().push(k);
    }
}
fn act(w: &W, t: &mut Turn<'_, Reactor>, times: u64) {
    for _ in 0..w.rand(times) {
        match w.rand(15) {
            0 | 1 => {
                let r = some_interest(w).with_fd(new_fd(w)).with_handler(make(w)).register_into(t);
                if let Ok(k) = r {
                    w.keys.borrow_mut().push(k);
                }
            }
            2 | 3 => {
                if let Some(k) = w.pick(&w.keys) {
                    del(w, k, |k| t.delete(k));
                }
            }
            4 => {
                if let Some(k) = w.pick(&w.keys) {
                    let _ = t.modify(k, some_interest(w));
                }
            }
            5 => {
                if let Some(k) = w.pick(&w.keys) {
                    let _ = t.rearm(k);
                }
            }
            6 => {
                if let Ok(k) = t.after(Duration::from_nanos(w.rand(3000)), make_timer(w)) {
                    w.timers.borrow_mut().push(k);
                }
            }
            7 => {
                if let Ok(k) = t.every(Duration::from_nanos(1 + w.rand(9000)), make_timer(w)) {
                    w.timers.borrow_mut().push(k);
                }
            }
            8 => {
                if let Some(k) = w.pick(&w.timers) {
                    let _ = t.cancel(k);
                }
            }
            9 => {
                if let Some(k) = w.pick(&w.timers) {
                    let _ = t.reset(k, Duration::from_nanos(w.rand(2000)));
                }
            }
            10 => {
                let (w2, mut tok) = (w.clone(), Token_::new(w));
                let _ = t.defer(move |mut t: Turn<'_, Reactor>| {
                    tok.touch();
                    act(&w2, &mut t, 3);
                    w2.maybe_panic(8);
                });
            }
            11 => {
                let g = fill(w, Group::new(State { t: Token_::new(w), n: 0, big: [0; 5] }));
                if let Ok(r) = g.register_into(t) {
                    note(w, r);
                }
            }
            12 => {
                if let Some(k) = w.pick(&w.groups) {
                    if let Ok(g) = t.group(k) {
                        let g = fill(w, g);
                        if w.rand(4) == 0 {
                            let _ = t.delete_group(k);
                        }
                        if let Ok(r) = g.register_into(t) {
                            note(w, r);
                        }
                    }
                }
            }
            13 => {
                if let Some(k) = w.pick(&w.groups) {
                    let _ = t.delete_group(k);
                }
            }
            _ => {
                let _ = t.delete(Key::from_bits(w.rand(u64::MAX)));
            }
        }
    }
}

fn outside(w: &W, r: &mut Reactor) {
    match w.rand(9) {
        0 => {
            if let Some(k) = w.pick(&w.keys) {
                if let Ok(b) = r.take_boxed(k) {
                    w.keys.borrow_mut().retain(|x| *x != k);
                    if w.rand(2) == 0 {
                        if let Ok(k) = r.add(b) {
                            w.keys.borrow_mut().push(k);
                        }
                    }
                }
            }
        }
        1 if std::env::var("NOTAKE").is_err() => {
            if let Some(k) = w.pick(&w.keys) {
                let _ = r.take_fd::<Fd>(k);
            }
        }
        2 => {
            if let Some(k) = w.pick(&w.groups) {
                if let Some(s) = r.group_mut(k) {
                    s.n += 1;
                    s.t.touch();
                }
            }
        }
        3 => {
            if let Some(k) = w.pick(&w.groups) {
                let _ = r.delete_group(k);
            }
        }
        4 => {
            if let Some(k) = w.pick(&w.keys) {
                del(w, k, |k| r.delete(k));
            }
        }
        5 => {
            if let Some(k) = w.pick(&w.keys) {
                let _ = r.modify(k, some_interest(w));
            }
        }
        _ => {
            let w2 = w.clone();
            let _ = r.defer(move |mut t: Turn<'_, _>| act(&w2, &mut t, 8));
        }
    }
}

fn program(seed: u64, panics: bool) -> (u64, u64, u64) {
    let w: W = Rc::new(World::default());
    w.rng.set(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    w.panics.set(panics);
    let mut r = Reactor::builder()
        .events_per_turn(1 + w.rand(7) as usize)
        .timers_per_turn(1 + w.rand(5) as usize)
        .deferred_per_turn(1 + w.rand(5) as usize)
        .subscribers_max(40)
        .timers_max(40)
        .deferred_max(20)
        .quarantine_max(w.rand(6) as usize)
        .watchdog(w.rand(4) == 0)
        .build()
        .unwrap();
    for _ in 0..if cfg!(miri) { 25 } else { 60 } {
        let _ = catch_unwind(AssertUnwindSafe(|| outside(&w, &mut r)));
        let _ = catch_unwind(AssertUnwindSafe(|| r.run_once(Duration::ZERO)));
    }
    let s = r.stats();
    let _ = catch_unwind(AssertUnwindSafe(move || if w_is_odd(seed) || std::env::var("NOSUBS").is_ok() { drop(r) } else { drop(r.into_subscribers()) }));
    assert_eq!(w.born.get(), w.died.get(), "seed {seed}: values lost or dropped twice");
    (w.fired.get(), w.ticks.get(), s.rebuilds)
}
fn w_is_odd(seed: u64) -> bool {
    seed % 2 == 1
}

#[test]
fn hostile_programs() {
    std::panic::set_hook(Box::new(|i| {
        let load = i.payload().downcast_ref::<&str>();
        if load != Some(&"fuzz") && load != Some(&"deferred") {
            eprintln!("{i}");
        }
    }));
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(if cfg!(miri) { 6 } else { 1500 });
    let first: u64 = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let mut sum = (0, 0, 0);
    for seed in first..first + seeds {
        if std::env::var("LOUD").is_ok() {
            eprintln!("seed {seed}");
        }
        let (f, t, b) = program(seed, seed % 3 != 0);
        sum = (sum.0 + f, sum.1 + t, sum.2 + b);
    }
    eprintln!("events {} ticks {} rebuilds {}", sum.0, sum.1, sum.2);
}
