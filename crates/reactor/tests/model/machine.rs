//! Runs a program on a real reactor and records what happens.

use std::{
    cell::{Cell, RefCell},
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, eventfd};
use windlass::{Backend, Event, Interest, Key, Reactor, Tick, Turn, interest};

use super::{Act, FILES, Mode, Note, Step, Thing};

/// The payload of a panic that the program asks for. It bypasses the panic hook, which would print
/// thousands of messages.
struct Asked;

/// The state that all handlers share.
struct World {
    files: Vec<OwnedFd>,
    notes: RefCell<Vec<Note>>,
    subscribers: RefCell<Vec<Key>>,
    timers: RefCell<Vec<Key>>,
    deferred: Cell<usize>,
    now: Cell<Instant>,
}

impl World {
    fn note(&self, note: Note) {
        self.notes.borrow_mut().push(note);
    }
}

/// Records its own drop.
struct Mortal(Rc<World>, Thing);

impl Drop for Mortal {
    fn drop(&mut self) {
        self.0.note(Note::Dropped(self.1));
    }
}

pub(crate) struct Machine {
    reactor: Option<Reactor>,
    world: Rc<World>,
    start: Instant,
}

fn interest_of(mode: Mode) -> Interest {
    match mode {
        Mode::Level => interest().read(),
        Mode::Edge => interest().read().edge_triggered(),
        Mode::OneShot => interest().read().one_shot(),
        Mode::Off => interest(),
    }
}

/// The place where an action happens. The owner and a handler make the same calls through different
/// types.
trait Place {
    fn add(&mut self, world: &Rc<World>, file: usize, mode: Mode, acts: Vec<Act>);
    fn modify(&mut self, key: Key, interest: Interest) -> bool;
    fn delete(&mut self, key: Key) -> bool;
    fn start(&mut self, world: &Rc<World>, delay: u64, period: u64, acts: Vec<Act>);
    fn cancel(&mut self, key: Key) -> bool;
    fn reset(&mut self, key: Key, delay: u64) -> bool;
    fn defer(&mut self, world: &Rc<World>, acts: Vec<Act>);
}

macro_rules! place {
    ($type:ty) => {
        impl Place for $type {
            fn add(&mut self, world: &Rc<World>, file: usize, mode: Mode, acts: Vec<Act>) {
                let fd = rustix::io::fcntl_dupfd_cloexec(&world.files[file], 3).unwrap();
                let me = world.subscribers.borrow().len();
                let mortal = Mortal(world.clone(), Thing::Subscriber(me));
                let handler = move |event: Event, mut turn: Turn<'_, Reactor>| {
                    let world = &mortal.0;
                    world.note(Note::Fired(me));
                    perform_all(world, &acts, &mut turn, Some(event.key()));
                };
                let key = interest_of(mode)
                    .with_fd(fd)
                    .with_handler(handler)
                    .register_into(self)
                    .unwrap();
                world.subscribers.borrow_mut().push(key);
            }
            fn modify(&mut self, key: Key, interest: Interest) -> bool {
                self.modify(key, interest).is_ok()
            }
            fn delete(&mut self, key: Key) -> bool {
                self.delete(key).is_ok()
            }
            fn start(&mut self, world: &Rc<World>, delay: u64, period: u64, acts: Vec<Act>) {
                let me = world.timers.borrow().len();
                let mortal = Mortal(world.clone(), Thing::Timer(me));
                let handler = move |tick: Tick, mut turn: Turn<'_, Reactor>| {
                    let world = &mortal.0;
                    world.note(Note::Ticked(me, tick.missed));
                    perform_all(world, &acts, &mut turn, None);
                };
                let key = match period {
                    0 => self.after(Duration::from_nanos(delay), handler).unwrap(),
                    period => self.every(Duration::from_nanos(period), handler).unwrap(),
                };
                world.timers.borrow_mut().push(key);
            }
            fn cancel(&mut self, key: Key) -> bool {
                self.cancel(key).is_ok()
            }
            fn reset(&mut self, key: Key, delay: u64) -> bool {
                self.reset(key, Duration::from_nanos(delay)).is_ok()
            }
            fn defer(&mut self, world: &Rc<World>, acts: Vec<Act>) {
                let me = world.deferred.replace(world.deferred.get() + 1);
                let world = world.clone();
                self.defer(move |mut turn: Turn<'_, Reactor>| {
                    world.note(Note::Deferred(me));
                    perform_all(&world, &acts, &mut turn, None);
                })
                .map_err(drop)
                .unwrap();
            }
        }
    };
}
place!(Reactor);
place!(Turn<'_, Reactor>);

fn perform_all(world: &Rc<World>, acts: &[Act], place: &mut impl Place, own: Option<Key>) {
    for act in acts {
        perform(world, act, place, own);
    }
}

/// Performs one action. `own` is the key of the handler that performs it.
fn perform(world: &Rc<World>, act: &Act, place: &mut impl Place, own: Option<Key>) {
    let nth = |list: &RefCell<Vec<Key>>, who: usize| list.borrow().get(who).copied();
    let nobody = Key::from_bits(u64::MAX);
    let did = match act {
        Act::Add(file, mode, acts) => return place.add(world, *file, *mode, acts.clone()),
        Act::Start(delay, period, acts) => {
            return place.start(world, *delay, *period, acts.clone());
        }
        Act::Defer(acts) => return place.defer(world, acts.clone()),
        Act::Drain(file) => {
            let _ = rustix::io::read(&world.files[*file], &mut [0; 8]);
            return;
        }
        Act::Fire(file) => {
            rustix::io::write(&world.files[*file], &1u64.to_ne_bytes()).unwrap();
            return;
        }
        Act::Panic if own.is_none() => return,
        Act::Panic => resume_unwind(Box::new(Asked)),
        Act::Modify(who, mode) => {
            place.modify(nth(&world.subscribers, *who).unwrap_or(nobody), interest_of(*mode))
        }
        Act::Delete(who) => place.delete(nth(&world.subscribers, *who).unwrap_or(nobody)),
        Act::DeleteSelf => place.delete(own.unwrap_or(nobody)),
        Act::Cancel(who) => place.cancel(nth(&world.timers, *who).unwrap_or(nobody)),
        Act::Reset(who, delay) => place.reset(nth(&world.timers, *who).unwrap_or(nobody), *delay),
    };
    world.note(Note::Did(did));
}

impl Machine {
    pub(crate) fn new(backend: Backend) -> Self {
        let start = Instant::now();
        let world = Rc::new(World {
            files: (0..FILES)
                .map(|_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap())
                .collect(),
            notes: RefCell::default(),
            subscribers: RefCell::default(),
            timers: RefCell::default(),
            deferred: Cell::new(0),
            now: Cell::new(start),
        });
        let clock = world.clone();
        // The model counts in nanoseconds.
        let builder = Reactor::builder().backend(backend).timer_resolution(Duration::from_nanos(1));
        let reactor = builder.clock(move || clock.now.get()).build().unwrap();
        Self { reactor: Some(reactor), world, start }
    }

    pub(crate) fn run(&mut self, step: &Step) {
        let reactor = self.reactor.as_mut().unwrap();
        match step {
            Step::Act(act) => perform(&self.world, act, reactor, None),
            Step::Advance(by) => {
                self.world.now.set(self.world.now.get() + Duration::from_nanos(*by))
            }
            Step::Turn => {
                self.world.note(Note::Turn);
                let outcome =
                    catch_unwind(AssertUnwindSafe(|| reactor.run_once(Duration::ZERO).unwrap()));
                let events = match outcome {
                    Ok(events) => Some(events),
                    Err(load) => {
                        assert!(load.is::<Asked>(), "a panic that nobody asked for");
                        None
                    }
                };
                self.world.note(Note::TurnEnded { events });
            }
        }
        assert!(self.world.now.get() >= self.start);
    }

    /// Drops the reactor and returns the record.
    pub(crate) fn finish(mut self) -> Vec<Note> {
        drop(self.reactor.take());
        self.world.notes.take()
    }
}
