//! Random programs of many threads against one remote. An oracle knows the allowed outcomes of each
//! call.
//!
//! The oracle checks these properties:
//!
//! - Each closure runs at most once and is dropped once.
//! - A closure that was returned has not run and never runs. A closure that was answered has run.
//! - The closures that one thread has queued run in its order.
//! - The number of live closures never exceeds the bound of the queue plus the number of threads.
//! - No panic propagates except those that the program put in.
//! - Every call returns, even if the reactor is dropped in the middle.
//!
//! The seed determines what each thread does, but not how the threads interleave. The environment
//! variables are those of `program`.

use std::{
    future::Future,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread, ThreadId},
    time::Duration,
};

use windlass::{CallError, PostReason, Remote, RemoteAddError, Turn, interest};

use crate::{Build, program::setting, tools::ready};

/// The payload of the program's own panics.
struct Deliberate;

fn panic_now() {
    if !thread::panicking() {
        // Bypasses the panic hook, which would print each panic.
        resume_unwind(Box::new(Deliberate));
    }
}

fn survive(run: impl FnOnce()) {
    match catch_unwind(AssertUnwindSafe(run)) {
        Err(load) if !load.is::<Deliberate>() => resume_unwind(load),
        _ => {}
    }
}

/// The state that all threads of a program share.
struct World {
    own: ThreadId,
    alive: AtomicUsize,
    alive_max: AtomicUsize,
    /// For each thread: one more than the number of its closure that ran last.
    last: Vec<AtomicUsize>,
    is_wrong: AtomicBool,
}

impl World {
    fn check(&self, holds: bool, wrong: &str) {
        if !holds && !self.is_wrong.swap(true, SeqCst) {
            eprintln!("wrong: {wrong}");
        }
    }
}

/// A pseudo-random generator (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn index(&mut self, limit: u64) -> usize {
        usize::try_from(self.below(limit)).unwrap()
    }
}

/// The history of one closure.
#[derive(Default)]
struct Record {
    runs: AtomicUsize,
    drops: AtomicUsize,
}

/// The value that a closure owns.
struct Ticket {
    world: Arc<World>,
    record: Arc<Record>,
    thread: usize,
    number: usize,
    /// True if it waits only in the queue, and not for an event.
    is_queued: bool,
    /// Three panics: when it runs, when it is dropped on the loop's thread, when its result is
    /// dropped there.
    panics: [bool; 3],
}

impl Ticket {
    fn new(
        world: &Arc<World>,
        thread: usize,
        number: usize,
        random: &mut Random,
        is_queued: bool,
    ) -> (Self, Arc<Record>) {
        let record = Arc::new(Record::default());
        if is_queued {
            let alive = world.alive.fetch_add(1, SeqCst) + 1;
            world.alive_max.fetch_max(alive, SeqCst);
        }
        // A value whose drop panics during a panic aborts the process. That is a rule of Rust, so
        // the program never does both.
        let which = random.below(12);
        let panics = [which == 0, which == 1, which == 2];
        (
            Self {
                world: world.clone(),
                record: record.clone(),
                thread,
                number,
                is_queued,
                panics,
            },
            record,
        )
    }

    fn run(&self) -> Outcome {
        self.world.check(thread::current().id() == self.world.own, "it runs on another thread");
        self.record.runs.fetch_add(1, SeqCst);
        if self.is_queued {
            let before = self.world.last[self.thread].swap(self.number + 1, SeqCst);
            self.world.check(before <= self.number, "it runs before its turn");
        }
        if self.panics[0] {
            panic_now();
        }
        Outcome(self.world.clone(), self.panics[2])
    }

    fn closure(self) -> impl FnOnce(Turn<'_>) -> Outcome + Send {
        move |_: Turn<'_>| {
            let outcome = self.run();
            // Dropped here and not at the end. A panic there would leak the return value
            // (rust-lang/rust#47949).
            drop(self);
            outcome
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.record.drops.fetch_add(1, SeqCst);
        if self.is_queued {
            self.world.alive.fetch_sub(1, SeqCst);
        }
        if self.panics[1] && thread::current().id() == self.world.own {
            panic_now();
        }
    }
}

/// The result of a closure.
struct Outcome(Arc<World>, bool);

impl Drop for Outcome {
    fn drop(&mut self) {
        if self.1 && thread::current().id() == self.0.own {
            panic_now();
        }
    }
}

struct Parked(Thread, AtomicBool, bool);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.1.store(true, SeqCst);
        self.0.unpark();
        if self.2 {
            panic_now();
        }
    }
}

/// Polls a future until it is ready, or at most `polls` times.
fn poll_until<F: Future>(future: F, polls: usize, rude: bool) -> Option<F::Output> {
    let parked = Arc::new(Parked(thread::current(), AtomicBool::new(false), rude));
    let waker = Waker::from(parked.clone());
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        while polls > 3 && !parked.1.swap(false, SeqCst) {
            thread::park();
        }
    }
    None
}

/// What an answer says about the closure.
enum Told {
    Ran,
    NotRun,
    Perhaps,
}

fn told<T, F>(answer: Result<T, CallError<F>>) -> Told {
    match answer {
        Ok(_) | Err(CallError::Panicked(_)) => Told::Ran,
        Err(CallError::Closed(_) | CallError::TimedOut(Some(_))) => Told::NotRun,
        Err(CallError::TimedOut(None)) => Told::Perhaps,
        Err(other) => panic!("{other:?}"),
    }
}

/// One action of a thread.
fn act(
    remote: &Remote,
    world: &Arc<World>,
    thread: usize,
    number: usize,
    random: &mut Random,
) -> (Told, Arc<Record>) {
    let kind = random.below(6);
    let (ticket, record) = Ticket::new(world, thread, number, random, kind < 5);
    let closure = ticket.closure();
    let told = match kind {
        0 => match remote.try_post(|turn: Turn<'_>| drop(closure(turn))) {
            Ok(()) => Told::Perhaps,
            Err(refused) => {
                world.check(refused.reason != PostReason::WouldDeadlock, "this is another thread");
                Told::NotRun
            }
        },
        1 => remote
            .post(|turn: Turn<'_>| drop(closure(turn)))
            .map_or(Told::NotRun, |()| Told::Perhaps),
        2 => told(remote.call(closure)),
        3 => told(remote.call_timeout(Duration::from_nanos(random.below(60_000)), closure)),
        4 => {
            let polls = if random.one_in(2) { random.index(4) } else { usize::MAX };
            poll_until(remote.call_async(closure), polls, random.one_in(3))
                .map_or(Told::Perhaps, told)
        }
        _ => {
            // Deleted by its own first event, because the eventfd is ready already.
            let mut closure = Some(closure);
            let handler = move |_: &mut OwnedFd, event: windlass::Event, mut turn: Turn<'_>| {
                turn.delete(event.key()).unwrap();
                closure.take().unwrap()(turn);
            };
            let added =
                interest().read().with_fd(ready()).with_handler(handler).register_remotely(remote);
            match added {
                Ok(_) | Err(RemoteAddError::Refused(_)) => Told::Perhaps,
                Err(RemoteAddError::Closed(_)) => Told::NotRun,
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    (told, record)
}

fn client(
    remote: &Remote,
    world: &Arc<World>,
    thread: usize,
    mut random: Random,
    acts: usize,
) -> Vec<(Told, Arc<Record>)> {
    (0..acts).map(|number| act(remote, world, thread, number, &mut random)).collect()
}

fn program(build: Build, seed: u64) -> usize {
    const ACTS: usize = if cfg!(miri) { 4 } else { 24 };
    let mut random = Random::new(seed);
    let threads = 1 + random.index(5);
    let room = 1 + random.index(4);
    let builder = build().remote_max(room).calls_per_turn(1 + random.index(4));
    let mut reactor = builder.events_per_turn(1 + random.index(3)).build().unwrap();
    let remote = reactor.remote();
    let world = Arc::new(World {
        own: thread::current().id(),
        alive: AtomicUsize::new(0),
        alive_max: AtomicUsize::new(0),
        last: (0..threads).map(|_| AtomicUsize::new(0)).collect(),
        is_wrong: AtomicBool::new(false),
    });
    let left = Arc::new(AtomicUsize::new(threads));
    let clients: Vec<_> = (0..threads)
        .map(|thread| {
            let (remote, world, left) = (remote.clone(), world.clone(), left.clone());
            let random = Random::new(seed * 31 + thread as u64);
            thread::spawn(move || {
                let said = client(&remote, &world, thread, random, ACTS);
                if left.fetch_sub(1, SeqCst) == 1 {
                    remote.stop();
                }
                said
            })
        })
        .collect();
    // Half of the programs end in the middle, some of those by a panic.
    let turns = if random.one_in(2) { usize::MAX } else { random.index(60) };
    let unwinds = random.one_in(3);
    survive(move || {
        let mut reactor = reactor;
        for _ in 0..turns {
            if reactor.stop_requested() {
                break;
            }
            survive(|| _ = reactor.run_once(None).unwrap());
        }
        if unwinds {
            panic_now();
        }
    });
    let mut count = 0;
    for client in clients {
        for (told, record) in client.join().unwrap() {
            let (runs, drops) = (record.runs.load(SeqCst), record.drops.load(SeqCst));
            let is_right = match told {
                Told::Ran => runs == 1,
                Told::NotRun => runs == 0,
                Told::Perhaps => runs <= 1,
            };
            assert!(is_right && drops == 1, "it ran {runs} times and was dropped {drops} times");
            count += runs;
        }
    }
    assert!(!world.is_wrong.load(SeqCst));
    assert_eq!(world.alive.load(SeqCst), 0);
    let alive_max = world.alive_max.load(SeqCst);
    assert!(
        alive_max <= room + threads,
        "{alive_max} were alive at once, of {threads} threads and with room for {room}"
    );
    assert_eq!(remote.try_post(|_: Turn<'_>| {}).unwrap_err().reason, PostReason::Closed);
    drop(remote);
    assert_eq!(Arc::strong_count(&world), 1, "nothing that was queued is left");
    count
}

fn every_call_of_many_threads_comes_to_exactly_one_end(build: Build) {
    let first = setting("WINDLASS_HOSTILE_FIRST").unwrap_or(1);
    let count = setting("WINDLASS_HOSTILE_SEEDS").unwrap_or(if cfg!(miri) { 2 } else { 400 });
    let mut ran = 0;
    for seed in first..first + count {
        let named = crate::program::Named(seed);
        ran += program(build, seed);
        drop(named);
    }
    assert!(ran > 0, "the programs do nothing");
}

scenarios! {
    every_call_of_many_threads_comes_to_exactly_one_end,
}
