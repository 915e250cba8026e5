//! Actors, and the loop that decides who goes next.

use rustix::io::Errno;

use crate::choices::Track;
use crate::faults::Fault;
use crate::ids::{ActorId, HostId};
use crate::kernel::state::State;
use crate::schedule::{Schedule, Task};
use crate::slab::Key;
use crate::trace::What;

/// The next step of a simulation's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Run the actor once, without waiting. Then park it, make it ready, or end it.
    Run(ActorId),
    /// The process of the actor has ended: its descriptors are closed. Drop it without running it.
    End(ActorId),
    /// Nothing can run, and no deadline is left.
    Quiet,
    /// The maximum of steps or of time is reached.
    Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for a wake or its deadline.
    Parked,
    /// Is in the queue of the scheduler.
    Runnable,
    /// Was returned by the last step.
    Running,
    /// Is run by others than the scheduler, until it is parked or made ready.
    Suspended,
    Ended,
}

#[derive(Debug)]
pub(super) struct Actor {
    name: Box<str>,
    phase: Phase,
    is_mortal: bool,
    /// It was woken while it ran.
    is_woken: bool,
    deadline_ns: Option<u64>,
    /// The earliest task of the scheduler for a deadline.
    armed_ns: Option<u64>,
    pub(super) sets: Vec<Key>,
    pub(super) queues: Vec<Key>,
}

impl Actor {
    fn stop_running(&mut self) {
        if matches!(self.phase, Phase::Running | Phase::Suspended) {
            self.phase = Phase::Parked;
        }
    }
}

/// All actors.
#[derive(Debug, Default)]
pub(super) struct Actors(Vec<Actor>);

impl Actors {
    pub(super) fn get_mut(&mut self, actor: ActorId) -> Option<&mut Actor> {
        self.0.get_mut(actor.index())
    }

    /// Lets an actor run.
    pub(super) fn run(&mut self, schedule: &mut Schedule, actor: ActorId) {
        let Some(state) = self.get_mut(actor) else { return };
        match state.phase {
            Phase::Parked => {
                state.phase = Phase::Runnable;
                schedule.at(0, Task::Actor(actor));
            }
            Phase::Running | Phase::Suspended => state.is_woken = true,
            Phase::Runnable | Phase::Ended => {}
        }
    }

    pub(super) fn names(&self) -> Vec<Box<str>> {
        self.0.iter().map(|actor| actor.name.clone()).collect()
    }
}

impl State {
    pub(super) fn actor(&mut self, host: HostId, name: &str) -> ActorId {
        let actor = ActorId(u32::try_from(self.actors.0.len()).expect("fewer than 2³² actors"));
        self.actors.0.push(Actor {
            name: format!("{name} on {}", self.network.address(host)).into(),
            phase: Phase::Parked,
            is_mortal: false,
            is_woken: false,
            deadline_ns: None,
            armed_ns: None,
            sets: Vec::new(),
            queues: Vec::new(),
        });
        self.actors.run(&mut self.schedule, actor);
        actor
    }

    pub(super) fn set_mortal(&mut self, actor: ActorId, is_mortal: bool) {
        if let Some(actor) = self.actors.get_mut(actor) {
            actor.is_mortal = is_mortal;
        }
    }

    /// Lets an actor wait, if it has nothing to do.
    pub(super) fn park(&mut self, actor: ActorId, deadline_ns: Option<u64>) {
        let is_due = deadline_ns.is_some_and(|deadline_ns| deadline_ns <= self.now_ns());
        let is_ready = is_due || self.has_events(actor);
        let now_ns = self.now_ns();
        let Some(state) = self.actors.get_mut(actor) else { return };
        state.deadline_ns = deadline_ns;
        let was_woken = std::mem::take(&mut state.is_woken);
        state.stop_running();
        if let Some(deadline_ns) = deadline_ns.filter(|deadline_ns| {
            *deadline_ns > now_ns && state.armed_ns.is_none_or(|armed_ns| *deadline_ns < armed_ns)
        }) {
            state.armed_ns = Some(deadline_ns);
            self.schedule.at(deadline_ns, Task::Deadline(actor));
        }
        if is_ready || was_woken {
            self.actors.run(&mut self.schedule, actor);
        }
        let value = deadline_ns.map_or(-1, |ns| i64::try_from(ns).unwrap_or(i64::MAX));
        self.record(What::Park, None, value);
        if self.current == Some(actor) {
            self.current = None;
        }
    }

    pub(super) fn ready(&mut self, actor: ActorId) {
        if let Some(state) = self.actors.get_mut(actor) {
            state.stop_running();
        }
        self.record(What::Wake, None, i64::from(actor.0));
        self.actors.run(&mut self.schedule, actor);
        if self.current == Some(actor) {
            self.current = None;
        }
    }

    /// The scheduler leaves an actor alone. Wakes are kept for when it is parked.
    pub(super) fn suspend(&mut self, actor: ActorId) {
        if let Some(state) = self.actors.get_mut(actor) {
            if state.phase != Phase::Ended {
                state.phase = Phase::Suspended;
            }
        }
    }

    /// Ends an actor as the end of its process does: its descriptors are closed.
    pub(super) fn end(&mut self, actor: ActorId) {
        let Some(state) = self.actors.get_mut(actor) else { return };
        if state.phase == Phase::Ended {
            return;
        }
        state.phase = Phase::Ended;
        let (sets, queues) = (std::mem::take(&mut state.sets), std::mem::take(&mut state.queues));
        self.record(What::End, None, i64::from(actor.0));
        sets.into_iter().for_each(|set| self.remove_set(set));
        queues.into_iter().for_each(|queue| self.remove_queue(queue));
        let owned = |state: &Self, key: &Key| {
            state.objects.get(*key).is_some_and(|object| object.owner == Some(actor))
        };
        let keys: Vec<Key> = self.objects.keys().filter(|key| owned(self, key)).collect();
        for key in keys {
            // A closed listener takes connections with it, which are no objects yet.
            let _: Result<(), Errno> = self.close(crate::ids::Fd::from_raw(key));
        }
        if self.current == Some(actor) {
            self.current = None;
        }
    }

    /// Whether a wait of the actor would return something.
    fn has_events(&mut self, actor: ActorId) -> bool {
        let Some(state) = self.actors.get_mut(actor) else { return false };
        // They are few, mostly one.
        let (sets, queues) = (state.sets.clone(), state.queues.clone());
        sets.into_iter().any(|set| self.set_is_ready(set))
            || queues.into_iter().any(|queue| {
                self.queues.get(queue).is_some_and(crate::poll::queue::Queue::is_ready)
            })
    }

    /// The next actor to run. Deliveries happen on the way.
    pub(super) fn step(&mut self) -> Step {
        if let Some(actor) = self.current.take() {
            let state = self.actors.get_mut(actor);
            if state.is_some_and(|state| state.phase == Phase::Running) {
                // The driver has not said what becomes of it.
                self.ready(actor);
            }
        }
        loop {
            if self.steps >= self.steps_max {
                return Step::Limit;
            }
            self.steps += 1;
            let woken = self.wakes.take();
            for actor in woken {
                self.record(What::Wake, None, i64::from(actor.0));
                self.actors.run(&mut self.schedule, actor);
            }
            if self.fault(Fault::ExtraRun, None) {
                let index = self.choices.below(Track::Schedule, self.actors.0.len() as u64);
                self.actors.run(&mut self.schedule, ActorId(index as u32));
            }
            let runnable = self.schedule.runnable();
            if runnable == 0 {
                match self.schedule.next_ns() {
                    None => return Step::Quiet,
                    Some(next_ns) if next_ns > self.time_max_ns => return Step::Limit,
                    Some(next_ns) => self.advance(next_ns),
                }
                continue;
            }
            let index = self.choices.below(Track::Schedule, runnable);
            match self.schedule.take(index) {
                Task::Actor(actor) => {
                    if let Some(step) = self.run(actor) {
                        return step;
                    }
                }
                Task::Deadline(actor) => self.deadline(actor),
                task => self.run_task(task),
            }
        }
    }

    /// Moves time.
    fn advance(&mut self, to_ns: u64) {
        let passed_ns = to_ns - self.now_ns();
        self.schedule.advance(to_ns);
        self.wall_ns = self.wall_ns.saturating_add_unsigned(passed_ns);
        if self.fault(Fault::ClockStep, None) {
            let bound = self.faults.clock_step_max_ns;
            let step_ns = self.choices.below(Track::Time, bound.saturating_mul(2));
            self.wall_ns = self.wall_ns.saturating_add_unsigned(step_ns);
            self.wall_ns = self.wall_ns.saturating_sub_unsigned(bound);
            self.record(What::Clock, None, self.wall_ns);
        }
    }

    fn run(&mut self, actor: ActorId) -> Option<Step> {
        let state = self.actors.get_mut(actor)?;
        if state.phase != Phase::Runnable {
            return None;
        }
        let is_mortal = state.is_mortal;
        if self.fault(Fault::Pause, None) {
            let at_ns = self.after_delay();
            self.schedule.at(at_ns, Task::Actor(actor));
            return None;
        }
        if is_mortal && self.fault(Fault::ProcessEnd, None) {
            self.end(actor);
            return Some(Step::End(actor));
        }
        let state = self.actors.get_mut(actor)?;
        state.phase = Phase::Running;
        state.is_woken = false;
        self.current = Some(actor);
        self.record(What::Run, None, i64::from(actor.0));
        Some(Step::Run(actor))
    }

    fn deadline(&mut self, actor: ActorId) {
        let now_ns = self.now_ns();
        let Some(state) = self.actors.get_mut(actor) else { return };
        if state.armed_ns.is_some_and(|armed_ns| armed_ns > now_ns) {
            return;
        }
        state.armed_ns = None;
        match state.deadline_ns {
            Some(deadline_ns) if deadline_ns > now_ns => {
                state.armed_ns = Some(deadline_ns);
                self.schedule.at(deadline_ns, Task::Deadline(actor));
            }
            Some(_) if state.phase == Phase::Parked => {
                self.actors.run(&mut self.schedule, actor);
            }
            _ => {}
        }
    }

    fn run_task(&mut self, task: Task) {
        match task {
            Task::Actor(_) | Task::Deadline(_) => unreachable!("`step` runs them"),
            Task::Deliver(conn, side) => self.deliver(conn, usize::from(side)),
            Task::Handshake(conn) => self.handshake(conn),
            Task::Room(conn, side) => self.tell_of_room(conn, usize::from(side)),
            Task::Unblock(conn, side) => self.unblock(conn, usize::from(side)),
            Task::Datagram(key) => self.deliver_datagram(key),
            Task::Timer(key) => self.expire(crate::ids::Fd::from_raw(key)),
            Task::Entry(set, entry) => self.end_delay(set, entry),
            Task::Completion(queue, request) => self.end_late(queue, request),
            Task::Link(link) => self.link_is_due(link),
        }
        self.retry_requests();
    }
}
