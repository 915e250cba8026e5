//! Random hostile programs: groups, timers, hooks, deletions in every order, panics at every point,
//! replaced descriptors.
//!
//! The tests check these properties, and the sanitizers check memory:
//!
//! - Every value is dropped once and not used afterwards.
//! - A deleted registration does not fire.
//! - A group's state has one borrower at a time.
//! - No panic propagates except those that the program put in.
//! - An outer loop is woken when there is work.
//!
//! A program is generated from a seed and has its own clock, so a failing seed fails again. Only
//! the descriptor numbers depend on other tests. With `--test-threads=1` they are the same each
//! time.
//!
//! - `WINDLASS_HOSTILE_SEEDS`: the number of programs for each test;
//! - `WINDLASS_HOSTILE_FIRST`: the seed of the first program;
//! - `WINDLASS_HOSTILE_SHOW`: if set, each seed is printed before it runs. This helps with failures
//!   that end the process.

mod acts;
mod world;

use std::{
    io::Write,
    ops::AddAssign,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{Backend, Embedded, ProgressWatch, Reactor};

use self::{
    acts::between_turns,
    world::{World, survive},
};
use crate::{Build, embedding::is_readable};

const STEPS: u32 = if cfg!(miri) { 25 } else { 60 };

/// The settings of a program's run.
#[derive(Clone, Copy)]
struct Mode {
    panics: bool,
    embedded: bool,
}

/// Counts of what happened in a program, so that a test can check that the program did something.
#[derive(Default)]
struct Counts {
    events: u64,
    ticks: u64,
    panics: u64,
    rebuilds: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.ticks += other.ticks;
        self.panics += other.panics;
        self.rebuilds += other.rebuilds;
    }
}

/// The reactor, embedded in another loop or not.
enum Host {
    Plain(Reactor),
    Embedded(Embedded),
}

impl Host {
    fn with<T>(&mut self, run: impl FnOnce(&mut Reactor) -> T) -> T {
        match self {
            Self::Plain(reactor) => run(reactor),
            Self::Embedded(guest) => guest.with(run),
        }
    }

    fn between_turns(&mut self, world: &Rc<World>) {
        self.with(|reactor| {
            world.rebuilds.set(reactor.stats().rebuilds);
            between_turns(world, reactor);
        });
    }

    fn run_once(&mut self, world: &World) {
        match self {
            Self::Plain(reactor) => {
                reactor.run_once(Duration::ZERO).unwrap();
            }
            Self::Embedded(guest) => {
                // The wake may be missing in two cases. A hook added work before the wait, or the
                // clock panicked between the work and the wake.
                let may_be_late = !world.hooks.borrow().is_empty() || world.clock_failed.take();
                let is_woken = is_readable(&*guest) || may_be_late;
                let count = guest.run_once(Duration::ZERO).unwrap();
                if count > 0 && !is_woken {
                    // A new set reports edges again, and no event wakes the reactor to create one.
                    let rebuilds = guest.with(|reactor| reactor.stats().rebuilds);
                    world.check(
                        rebuilds > world.rebuilds.get(),
                        "there were events, and the host was not woken",
                    );
                }
            }
        }
    }

    fn into_reactor(self) -> Reactor {
        match self {
            Self::Plain(reactor) => reactor,
            Self::Embedded(guest) => guest.into_reactor(),
        }
    }
}

fn host(build: Build, world: &Rc<World>, mode: Mode) -> Host {
    let (start, time) = (Instant::now(), world.clone());
    let mut builder = build();
    if world.one_in(3) {
        let watch = ProgressWatch::new(1, acts::on_no_progress(world)).at_least(Duration::ZERO);
        builder = builder.progress_watch(match world.below(3) {
            0 => watch,
            1 => watch.back_off(Duration::from_nanos(3000)),
            _ => watch.demote(),
        });
    }
    let reactor = builder
        .events_per_turn(1 + world.index(7))
        .timers_per_turn(1 + world.index(5))
        .deferred_per_turn(1 + world.index(5))
        .subscribers_max(40)
        .timers_max(40)
        .deferred_max(20)
        .quarantine_max(world.index(6))
        .watchdog(world.one_in(4))
        .clock(move || start + time.passed())
        .build()
        .unwrap();
    if mode.embedded { Host::Embedded(reactor.embed().unwrap()) } else { Host::Plain(reactor) }
}

fn program(build: Build, seed: u64, mode: Mode) -> Counts {
    let world = Rc::new(World::new(seed));
    let mut host = host(build, &world, mode);
    world.may_panic(mode.panics);
    let mut panics = 0;
    for _ in 0..STEPS {
        panics += u64::from(survive(|| host.between_turns(&world)));
        for _ in 0..2 {
            panics += u64::from(survive(|| host.run_once(&world)));
        }
    }
    world.may_panic(false);
    let rebuilds = host.with(|reactor| reactor.stats().rebuilds);
    world.may_panic(mode.panics);
    let reactor = host.into_reactor();
    if world.one_in(2) {
        survive(|| drop(reactor));
    } else {
        survive(|| drop(reactor.into_subscribers()));
    }
    world.verdict();
    Counts { events: world.events.get(), ticks: world.ticks.get(), panics, rebuilds }
}

/// Prints the seed if its program fails.
pub(crate) struct Named(pub(crate) u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "the program that failed: WINDLASS_HOSTILE_FIRST={} WINDLASS_HOSTILE_SEEDS=1",
                self.0
            );
        }
    }
}

pub(crate) fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

fn run(build: Build, mode: Mode, seeds: u64) {
    let first = setting("WINDLASS_HOSTILE_FIRST").unwrap_or(1);
    let count = setting("WINDLASS_HOSTILE_SEEDS").unwrap_or(if cfg!(miri) { 3 } else { seeds });
    let shows = std::env::var_os("WINDLASS_HOSTILE_SHOW").is_some();
    let mut sum = Counts::default();
    for seed in first..first + count {
        if shows {
            // Bypasses the capture of the test harness, which would lose the line if the process
            // ends.
            std::io::stderr().write_all(format!("seed {seed}\n").as_bytes()).unwrap();
        }
        let named = Named(seed);
        sum += program(build, seed, mode);
        drop(named);
    }
    println!(
        "{} events, {} ticks, {} panics, {} rebuilds",
        sum.events, sum.ticks, sum.panics, sum.rebuilds
    );
    // A single program may lack events of one kind.
    let is_idle = sum.events == 0 || sum.ticks == 0 || (sum.panics > 0) != mode.panics;
    // The other backends have no stale entries.
    let is_epoll = build().build().unwrap().backend() == Backend::Epoll;
    let is_still = (sum.rebuilds > 0) != is_epoll && !cfg!(miri);
    assert!(count < 20 && !cfg!(miri) || !is_idle && !is_still, "the programs do nothing");
}

fn a_random_program_is_cleared_away_to_the_last_value(build: Build) {
    run(build, Mode { panics: false, embedded: false }, 300);
}

fn a_random_program_that_panics_everywhere_is_cleared_away_to_the_last_value(build: Build) {
    run(build, Mode { panics: true, embedded: false }, 900);
}

fn a_random_program_in_another_loop_is_cleared_away_to_the_last_value(build: Build) {
    run(build, Mode { panics: true, embedded: true }, 300);
}

scenarios! {
    a_random_program_is_cleared_away_to_the_last_value,
    a_random_program_that_panics_everywhere_is_cleared_away_to_the_last_value,
    #[cfg_attr(miri, ignore = "Miri knows no timerfd")]
    a_random_program_in_another_loop_is_cleared_away_to_the_last_value
        except [poll "a wait of poll(2) has no descriptor"],
}
