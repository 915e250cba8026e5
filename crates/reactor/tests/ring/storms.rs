//! Descriptor numbers that are closed and reused while the requests for the old file are being
//! cancelled.

use std::{
    cell::{Cell, RefCell},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
};

use windlass::{Event, Interest, Key, Reactor, Subscriber, Turn, interest};

use crate::tools::{NOW, builder, counter, fire};

/// The number of turns.
const ROUNDS: u64 = 100_000;

/// State that all subscribers of the test share.
#[derive(Default)]
struct World {
    /// The round of the subscriber that is registered.
    alive: Cell<Option<u64>>,
    events: Cell<u64>,
    wrong: RefCell<Option<String>>,
}

/// A subscriber that lives for at most one turn.
struct Mayfly {
    fd: OwnedFd,
    round: u64,
    interest: Interest,
    world: Rc<World>,
}

impl Subscriber for Mayfly {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn interest(&self) -> Interest {
        self.interest
    }

    fn handle(&mut self, _: Event, _: Turn<'_>) {
        self.world.events.set(self.world.events.get() + 1);
        let is_ready = rustix::io::read(&self.fd, &mut [0; 8]).is_ok();
        if self.world.alive.get() != Some(self.round) || !is_ready {
            *self.world.wrong.borrow_mut() = Some(format!(
                "{} fired, {:?} is alive; ready: {is_ready}",
                self.round,
                self.world.alive.get()
            ));
        }
    }
}

const MANNERS: [Interest; 3] =
    [interest().read(), interest().read().edge_triggered(), interest().read().one_shot()];

/// The next subscriber, on a new file with always the same number. It is ready in every other
/// round.
fn mayfly(world: &Rc<World>, round: u64) -> Mayfly {
    let interest = MANNERS[usize::try_from(round % 3).unwrap()];
    world.alive.set(Some(round));
    Mayfly { fd: counter(u32::from(round % 2 == 0)), round, interest, world: world.clone() }
}

pub(crate) fn numbers_that_come_again_and_again() {
    let mut reactor: Reactor = builder().build().unwrap();
    let world = Rc::new(World::default());
    let storm = Rc::new(counter(1));
    let (theirs, last) = (world.clone(), Rc::new(Cell::new(None::<Key>)));
    let round = Cell::new(0u64);
    let handler = move |mut turn: Turn<'_>| {
        // In every other turn the remaining subscriber may fire.
        if turn.stats().turns % 2 == 0 {
            return;
        }
        if let Some(key) = last.take() {
            turn.delete(key).unwrap();
        }
        // Add, modify, delete, close, and the same number again. Requests queued for the first file
        // must not reach the second.
        round.set(round.get() + 2);
        let first = mayfly(&theirs, round.get());
        let manner = MANNERS[usize::try_from(round.get() / 3 % 3).unwrap()];
        let key = turn.add(first).unwrap();
        turn.modify(key, manner).unwrap();
        turn.delete(key).unwrap();
        last.set(Some(turn.add(mayfly(&theirs, round.get() + 1 + round.get() % 4 / 2)).unwrap()));
    };
    interest()
        .read()
        .with_fd(CloneFd(storm.clone()))
        .with_handler(handler)
        .register_into(&mut reactor)
        .unwrap();
    for _ in 0..2 * ROUNDS {
        reactor.run_once(NOW).unwrap();
        if let Some(wrong) = world.wrong.borrow().as_deref() {
            panic!("{wrong}");
        }
    }
    assert!(world.events.get() > ROUNDS / 4, "{} events", world.events.get());
    fire(&*storm);
}

/// A descriptor with several owners.
struct CloneFd(Rc<OwnedFd>);

impl AsFd for CloneFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
