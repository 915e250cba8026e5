//! The state of a random program, and the checks on it.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    rc::Rc,
    thread::panicking,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{DupFlags, dup3, fcntl_dupfd_cloexec},
};
use windlass::{GroupKey, HookKey, Interest, Key, Ready, interest};

/// The payload of the program's own panics.
struct Deliberate;

/// Returns true if the closure panicked with `Deliberate`. Any other panic propagates.
pub(crate) fn survive(run: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(()) => false,
        Err(load) if load.is::<Deliberate>() => true,
        Err(load) => resume_unwind(load),
    }
}

/// A group, and whether it has been deleted or paused.
#[derive(Clone)]
pub(crate) struct KnownGroup {
    pub(crate) key: GroupKey<State>,
    pub(crate) is_gone: Rc<Cell<bool>>,
    pub(crate) is_paused: Rc<Cell<bool>>,
}

/// The state that all parts of a program share. The lists contain stale keys. The first two contain
/// members of either kind.
pub(crate) struct World {
    random: Cell<u64>,
    passed_ns: Cell<u64>,
    panics: Cell<bool>,
    pub(crate) keys: RefCell<Vec<Key>>,
    pub(crate) timers: RefCell<Vec<Key>>,
    pub(crate) groups: RefCell<Vec<KnownGroup>>,
    pub(crate) hooks: RefCell<Vec<HookKey>>,
    /// Keys that must not fire any more.
    gone: RefCell<HashSet<Key>>,
    /// Duplicates of files that were replaced.
    spare: RefCell<Vec<OwnedFd>>,
    born: Cell<u64>,
    died: Cell<u64>,
    pub(crate) events: Cell<u64>,
    pub(crate) ticks: Cell<u64>,
    /// The number of rebuilds of the epoll set before the turn.
    pub(crate) rebuilds: Cell<u64>,
    /// True if the last reading of the clock panicked.
    pub(crate) clock_failed: Cell<bool>,
    /// True while an unwinding handler calls the reactor. No destructor may run then.
    pub(crate) must_not_drop: Cell<bool>,
    /// The first violation. It is stored because a panic could be lost on its way out of the
    /// reactor.
    wrong: Cell<Option<&'static str>>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            passed_ns: Cell::default(),
            panics: Cell::default(),
            keys: RefCell::default(),
            timers: RefCell::default(),
            groups: RefCell::default(),
            hooks: RefCell::default(),
            gone: RefCell::default(),
            spare: RefCell::default(),
            born: Cell::default(),
            died: Cell::default(),
            events: Cell::default(),
            ticks: Cell::default(),
            rebuilds: Cell::default(),
            clock_failed: Cell::default(),
            must_not_drop: Cell::default(),
            wrong: Cell::default(),
        }
    }

    /// A number below the limit (xorshift).
    pub(crate) fn below(&self, limit: u64) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        (x >> 11) % limit
    }

    pub(crate) fn index(&self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap()
    }

    pub(crate) fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn nanoseconds(&self, limit: u64) -> Duration {
        Duration::from_nanos(1 + self.below(limit))
    }

    pub(crate) fn pick<T: Clone>(&self, list: &RefCell<Vec<T>>) -> Option<T> {
        let list = list.borrow();
        if list.is_empty() { None } else { Some(list[self.index(list.len())].clone()) }
    }

    pub(crate) fn may_panic(&self, may: bool) {
        self.panics.set(may);
    }

    /// Bypasses the panic hook, which would print each panic.
    pub(crate) fn panic_one_in(&self, times: u64) {
        if self.panics.get() && self.one_in(times) {
            resume_unwind(Box::new(Deliberate));
        }
    }

    pub(crate) fn check(&self, holds: bool, wrong: &'static str) {
        if !holds && self.wrong.get().is_none() {
            self.wrong.set(Some(wrong));
        }
    }

    /// The program's time. It advances with every reading.
    pub(crate) fn passed(&self) -> Duration {
        self.check(!panicking(), "the clock is read while a panic is under way");
        self.clock_failed.set(true);
        self.panic_one_in(100);
        self.clock_failed.set(false);
        self.passed_ns.set(self.passed_ns.get() + self.below(800));
        Duration::from_nanos(self.passed_ns.get())
    }

    /// Ends a registration by its key. From here on it must not fire, unless the call fails.
    pub(crate) fn end<T, E>(
        &self,
        key: Key,
        end: impl FnOnce(Key) -> Result<T, E>,
    ) -> Result<T, E> {
        let is_new = self.gone.borrow_mut().insert(key);
        let outcome = end(key);
        if outcome.is_err() && is_new {
            self.gone.borrow_mut().remove(&key);
        }
        outcome
    }

    pub(crate) fn fires(&self, key: Key) {
        self.check(!self.gone.borrow().contains(&key), "what was deleted fires");
    }

    /// Fails if there was a violation.
    pub(crate) fn verdict(&self) {
        assert_eq!(self.wrong.get(), None);
        assert_eq!(self.born.get(), self.died.get(), "values that were made, and dropped");
    }

    pub(crate) fn some_interest(&self) -> Interest {
        match self.below(9) {
            0 => interest().read().edge_triggered(),
            1 => interest().read().one_shot(),
            2 => interest().read().exclusive(),
            3 => interest(),
            4 => interest().read().write().edge_triggered(),
            5 => interest().write().one_shot().edge_triggered(),
            _ => interest().read(),
        }
    }

    pub(crate) fn some_ready(&self) -> Ready {
        match self.below(4) {
            0 => Ready::empty().error(),
            1 => Ready::empty().write(),
            2 => Ready::empty().read().hangup(),
            _ => Ready::empty().read(),
        }
    }
}

/// A value whose drop is counted. It writes into its box, so a sanitizer detects a use after the
/// drop. The count detects a second drop without a sanitizer.
pub(crate) struct Canary(Rc<World>, Box<u64>);

const ALIVE: u64 = 0xfeed;
const TOUCHED: u64 = 0xbeef;
const DEAD: u64 = 0xdead;

impl Canary {
    pub(crate) fn new(world: &Rc<World>) -> Self {
        world.born.set(world.born.get() + 1);
        Self(world.clone(), Box::new(ALIVE))
    }

    pub(crate) fn world(&self) -> &Rc<World> {
        &self.0
    }

    pub(crate) fn touch(&mut self) {
        self.0.check(*self.1 == ALIVE, "a value is used that was dropped, or in use already");
        *self.1 = TOUCHED;
        *self.1 = ALIVE;
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.touch();
        *self.1 = DEAD;
        self.0.died.set(self.0.died.get() + 1);
        self.0.check(
            !self.0.must_not_drop.get(),
            "a destructor runs in a call of an unwinding handler",
        );
        // If the program drops a local while it unwinds, a panic here would be the program's own
        // mistake.
        if !panicking() {
            self.0.panic_one_in(9);
        }
    }
}

/// A group's state.
pub(crate) struct State {
    pub(crate) canary: Canary,
    pub(crate) is_gone: Rc<Cell<bool>>,
    pub(crate) is_paused: Rc<Cell<bool>>,
    /// Counts the borrows of the state, in memory that the program can write to.
    pub(crate) loans: [u64; 5],
}

impl State {
    pub(crate) fn new(world: &Rc<World>) -> Self {
        Self {
            canary: Canary::new(world),
            is_gone: Rc::default(),
            is_paused: Rc::default(),
            loans: [0; 5],
        }
    }
}

/// An eventfd that its handler replaces by others. It may panic when its number is requested.
pub(crate) struct File {
    fd: OwnedFd,
    pub(crate) canary: Canary,
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.canary.world().panic_one_in(60);
        self.fd.as_fd()
    }
}

fn new_eventfd(count: u32) -> OwnedFd {
    eventfd(count, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

impl File {
    pub(crate) fn new(world: &Rc<World>) -> Self {
        Self { fd: new_eventfd(u32::from(!world.one_in(3))), canary: Canary::new(world) }
    }

    pub(crate) fn drain(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }

    /// Puts another file at the number: a new one, or one from here or elsewhere. The number stays
    /// open throughout, so no other test of the process gets it.
    pub(crate) fn replace(&mut self) {
        if cfg!(miri) {
            return;
        }
        let world = self.canary.world();
        let mut spare = world.spare.borrow_mut();
        if spare.len() > 6 {
            let oldest = world.index(spare.len());
            spare.swap_remove(oldest);
        }
        spare.push(fcntl_dupfd_cloexec(&self.fd, 0).unwrap());
        let other = if world.one_in(2) {
            new_eventfd(1)
        } else {
            fcntl_dupfd_cloexec(&spare[world.index(spare.len())], 0).unwrap()
        };
        dup3(&other, &mut self.fd, DupFlags::CLOEXEC).unwrap();
    }
}
