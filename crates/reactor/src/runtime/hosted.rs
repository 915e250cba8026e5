//! Reactors of a simulation: their wake, and those that the simulation runs itself.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    sync::{Arc, mpsc::Sender},
    time::Duration,
};

use rustix::io::Errno;
use windlass_sim::{ActorId, HostId};

use super::workers::StopAll;
use crate::{
    Backend, BuildError, NextTurn, Reactor, Stop, TurnDriver,
    backend::ActiveBackend,
    kernel::pending_work,
    stream::{RunningWorkers, Worker, Workers},
    world::{AtHost, Next, Program, Results, World},
};

/// The stop handle of a reactor with this backend. Its latch has a descriptor, unless the backend
/// is a simulation.
pub(super) fn with_stop(mut backend: ActiveBackend) -> Result<(ActiveBackend, Stop), Errno> {
    let stop = match backend.sim_mut() {
        None => Stop::new()?,
        Some(sim) => {
            let stop = Stop::simulated(sim.bell());
            sim.set_latch(Arc::clone(stop.latch()));
            stop
        }
    };
    Ok((backend, stop))
}

/// How the run of a reactor has ended.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Also if it was dropped without a result.
    pub(crate) has_ended: Cell<bool>,
    pub(crate) result: RefCell<Option<io::Result<()>>>,
}

/// A reactor, with what drives it, that a simulation runs until it ends.
pub trait Guest: 'static {
    /// Its reactor.
    fn reactor(&mut self) -> &mut Reactor;
    /// Runs a turn, by [`Reactor::turn_in_world`].
    ///
    /// # Errors
    /// Those of [`Reactor::run_once`], which end the run.
    fn turn(&mut self) -> io::Result<Next>;
}

/// A reactor that runs until a stop, as by [`Reactor::run_with`].
pub(crate) struct Driven {
    pub(crate) reactor: Reactor,
    pub(crate) driver: Option<Box<dyn TurnDriver>>,
}

impl Guest for Driven {
    fn reactor(&mut self) -> &mut Reactor {
        &mut self.reactor
    }

    fn turn(&mut self) -> io::Result<Next> {
        match &mut self.driver {
            Some(driver) => self.reactor.turn_in_world(Some(&mut **driver)),
            None => self.reactor.turn_in_world(None),
        }
    }
}

/// The program of a guest.
pub(crate) struct Hosted {
    guest: Box<dyn Guest>,
    outcome: Rc<Outcome>,
}

impl Hosted {
    pub(crate) fn new(guest: impl Guest) -> Self {
        Self { guest: Box::new(guest), outcome: Rc::default() }
    }

    /// Enters the world, which runs it from now on. Returns its host and its actor there.
    ///
    /// # Panics
    /// If the reactor does not belong to this world.
    pub(crate) fn enter(&mut self, world: &Rc<World>) -> (HostId, ActorId) {
        match self.guest.reactor().kernel.sim_mut() {
            Some(sim) if Rc::ptr_eq(sim.world(), world) => sim.enter(),
            _ => panic!("the reactor does not belong to this simulation"),
        }
    }

    pub(crate) fn outcome(&self) -> Rc<Outcome> {
        Rc::clone(&self.outcome)
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.outcome.has_ended.set(true);
    }
}

impl Program for Hosted {
    fn step(&mut self) -> Next {
        let result = match self.guest.turn() {
            Ok(Next::Ends) => Ok(()),
            Ok(next) => return next,
            Err(error) => Err(error),
        };
        *self.outcome.result.borrow_mut() = Some(result);
        Next::Ends
    }
}

/// A worker of a simulation. Its end stops the other workers.
struct HostedWorker {
    hosted: Hosted,
    results: Sender<io::Result<()>>,
    _stop_all: StopAll,
}

impl Program for HostedWorker {
    fn step(&mut self) -> Next {
        let next = self.hosted.step();
        if let Some(result) = self.hosted.outcome.result.take() {
            // The owner may be gone.
            let _ = self.results.send(result);
        }
        next
    }
}

/// Starts workers as programs of a world.
pub(super) fn start_workers(
    workers: &Workers,
    world: &Rc<World>,
    set_up: impl Fn(Worker) -> io::Result<Reactor>,
) -> io::Result<RunningWorkers> {
    let mut reactors = Vec::new();
    let mut running = RunningWorkers::new();
    for index in 0..workers.count {
        let reactor = set_up(Worker { index, count: workers.count, cpu: None })?;
        if reactor.backend() != Backend::Sim {
            return Err(BuildError::NoSimulation.into());
        }
        running.add(reactor.stop_handle(), &reactor.stats());
        reactors.push(reactor);
    }
    let everyone: Arc<[Stop]> = running.stops.clone().into();
    let (sender, results) = Results::new(world);
    running.results = Some(results);
    for reactor in reactors {
        let mut hosted = Hosted::new(Driven { reactor, driver: None });
        let (host, actor) = hosted.enter(world);
        let (results, stop_all) = (sender.clone(), StopAll(Arc::clone(&everyone)));
        let worker = HostedWorker { hosted, results, _stop_all: stop_all };
        world.add(host, actor, Box::new(worker));
    }
    Ok(running)
}

impl Reactor {
    /// Things without a reactor are made at its host from now on, until the value is dropped.
    #[inline]
    pub(super) fn at_host(&self) -> Option<AtHost> {
        self.kernel.sim().map(|sim| AtHost::new(sim.host()))
    }

    /// Runs a turn without a wait, and asks the driver what follows. `Ends` after a stop.
    ///
    /// # Errors
    /// Those of [`run_once`](Self::run_once).
    #[doc(hidden)]
    pub fn turn_in_world(&mut self, driver: Option<&mut dyn TurnDriver>) -> io::Result<Next> {
        if self.stop.take() {
            return Ok(Next::Ends);
        }
        self.run_once(Duration::ZERO)?;
        let next = driver.map_or(NextTurn::Wait, |driver| self.ask_after_turn(driver));
        Ok(self.next_turn_in_world(next))
    }

    /// When the reactor must run again, unless something wakes it before. As for a reactor that is
    /// embedded, the latch sleeps from here on, or there is work.
    fn next_turn_in_world(&mut self, next: NextTurn) -> Next {
        // An error comes with the next wait.
        let has_events = self.kernel.settle_for_host().unwrap_or(true);
        let is_woken = self.kernel.has(pending_work::REMOTE) && !self.stop.latch().sleep();
        let has_work = self.kernel.has(pending_work::WORK) || next == NextTurn::Again;
        if is_woken || has_events || has_work || self.stop.is_asked() {
            return Next::Soon;
        }
        let timer = if self.timing.has_waiting() { self.timing.until_next_timer() } else { None };
        let until = match next {
            NextTurn::Until(moment) => Some(self.timing.until(moment)),
            _ => None,
        };
        match timer.into_iter().chain(until).min() {
            None => Next::Waits,
            Some(Duration::ZERO) => Next::Soon,
            Some(left) => Next::After(left),
        }
    }
}
