//! The actions of a random program, in its handlers and between turns.

use std::rc::Rc;

use windlass::{Event, Group, GroupKey, Key, NoProgress, Reactor, Registered, Tick, Turn};

use super::world::{Canary, File, KnownGroup, State, World};

type T<'t> = Turn<'t, Reactor>;

const PAUSED: &str = "a member of a paused group fires";

/// When its handler unwinds, this continues to delete. No destructor may run then.
struct Unwinding<'t, 'r> {
    world: &'t World,
    turn: &'t mut T<'r>,
}

impl Drop for Unwinding<'_, '_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        self.world.must_not_drop.set(true);
        if let Some(key) = self.world.pick(&self.world.keys) {
            let _ = self.world.end(key, |key| self.turn.delete(key));
        }
        if let Some(key) = self.world.pick(&self.world.timers) {
            let _ = self.world.end(key, |key| self.turn.cancel(key));
        }
        if self.world.one_in(3) {
            delete_some_group(self.world, self.turn);
        }
        self.world.must_not_drop.set(false);
    }
}

fn delete_some_group(world: &World, turn: &mut T<'_>) {
    if let Some(group) = world.pick(&world.groups) {
        group.is_gone.set(true);
        let _ = turn.delete_group(group.key);
    }
}

fn on_event(
    world: &Rc<World>,
    file: &mut File,
    canary: &mut Canary,
    event: Event,
    turn: &mut T<'_>,
) {
    let unwinding = Unwinding { world, turn };
    canary.touch();
    file.canary.touch();
    world.events.set(world.events.get() + 1);
    world.fires(event.key());
    if world.one_in(2) {
        file.drain();
    }
    if world.one_in(8) {
        file.replace();
    }
    if world.one_in(4) {
        let _ = world.end(event.key(), |key| unwinding.turn.delete(key));
    }
    act(world, unwinding.turn, 3);
    canary.touch();
    file.canary.touch();
    if event.has_error() && world.one_in(2) {
        let _ = world.end(event.key(), |key| unwinding.turn.delete(key));
    }
    world.panic_one_in(8);
}

fn on_tick(world: &Rc<World>, canary: &mut Canary, tick: Tick, turn: &mut T<'_>) {
    let unwinding = Unwinding { world, turn };
    canary.touch();
    world.ticks.set(world.ticks.get() + 1);
    world.fires(tick.key);
    match world.below(6) {
        0 => drop(world.end(tick.key, |key| unwinding.turn.cancel(key))),
        1 => drop(unwinding.turn.reset(tick.key, world.nanoseconds(3000))),
        _ => {}
    }
    act(world, unwinding.turn, 3);
    canary.touch();
    world.panic_one_in(8);
}

/// The callback of a progress watch.
pub(super) fn on_no_progress(world: &Rc<World>) -> impl FnMut(NoProgress, T<'_>) + use<> {
    let (world, mut canary) = (world.clone(), Canary::new(world));
    move |stuck: NoProgress, mut turn: T<'_>| {
        let unwinding = Unwinding { world: &world, turn: &mut turn };
        canary.touch();
        world.fires(stuck.key);
        if world.one_in(4) {
            let _ = world.end(stuck.key, |key| unwinding.turn.delete(key));
        }
        act(&world, unwinding.turn, 3);
        canary.touch();
        world.panic_one_in(8);
    }
}

fn file_handler(world: &Rc<World>) -> impl FnMut(&mut File, Event, T<'_>) + use<> {
    let (world, mut canary) = (world.clone(), Canary::new(world));
    move |file: &mut File, event: Event, mut turn: T<'_>| {
        on_event(&world, file, &mut canary, event, &mut turn)
    }
}

fn timer_handler(world: &Rc<World>) -> impl FnMut(Tick, T<'_>) + use<> {
    let (world, mut canary) = (world.clone(), Canary::new(world));
    move |tick: Tick, mut turn: T<'_>| on_tick(&world, &mut canary, tick, &mut turn)
}

/// Marks a group's state as lent to one of its handlers.
fn lend(world: &World, state: &mut State, run: impl FnOnce()) {
    world.check(!state.is_gone.get(), "a member of a deleted group fires");
    state.canary.touch();
    state.loans[3] += 1;
    let loan = state.loans[3];
    run();
    state.canary.touch();
    world.check(state.loans[3] == loan, "a state is lent twice at once");
}

fn fill(world: &Rc<World>, mut group: Group<State>) -> Group<State> {
    for _ in 0..=world.below(3) {
        let (own, mut canary) = (world.clone(), Canary::new(world));
        let kind = world.below(3);
        if kind == 0 {
            let handler =
                move |state: &mut State, file: &mut File, event: Event, mut turn: T<'_>| {
                    own.check(!state.is_paused.get(), PAUSED);
                    lend(&own, state, || {
                        on_event(&own, file, &mut canary, event, &mut turn);
                        if own.one_in(3) {
                            delete_some_group(&own, &mut turn);
                        }
                    });
                };
            group = group.fd(world.some_interest(), File::new(world), handler);
        } else {
            let handler = move |state: &mut State, tick: Tick, mut turn: T<'_>| {
                own.check(!state.is_paused.get(), PAUSED);
                lend(&own, state, || on_tick(&own, &mut canary, tick, &mut turn));
            };
            let delay = world.nanoseconds(5000);
            group =
                if kind == 1 { group.after(delay, handler) } else { group.every(delay, handler) };
        }
    }
    group
}

fn note(
    world: &World,
    registered: Registered<State>,
    known: impl FnOnce(GroupKey<State>) -> KnownGroup,
) {
    world.groups.borrow_mut().push(known(registered.group));
    // Keys of either kind. A call for the wrong kind must find nothing.
    world.timers.borrow_mut().extend(&registered.members);
    world.keys.borrow_mut().extend(registered.members);
}

/// Performs fewer than `limit` actions.
pub(crate) fn act(world: &Rc<World>, turn: &mut T<'_>, limit: u64) {
    for _ in 0..world.below(limit) {
        match world.below(15) {
            0..=5 => act_on_subscribers(world, turn),
            6..=9 => act_on_timers(world, turn),
            10..=12 => act_on_groups(world, turn),
            13 => {
                let (own, mut canary) = (world.clone(), Canary::new(world));
                let closure = move |mut turn: T<'_>| {
                    canary.touch();
                    act(&own, &mut turn, 3);
                    own.panic_one_in(8);
                };
                let _ = turn.defer(closure);
            }
            _ => drop(turn.delete(Key::from_bits(world.below(u64::MAX)))),
        }
    }
}

fn act_on_subscribers(world: &Rc<World>, turn: &mut T<'_>) {
    let some = world.pick(&world.keys);
    match (world.below(7), some) {
        (0 | 1, _) | (_, None) => {
            let added =
                world.some_interest().with_fd(File::new(world)).with_handler(file_handler(world));
            if let Ok(key) = added.register_into(turn) {
                world.keys.borrow_mut().push(key);
            }
        }
        (2 | 3, Some(key)) => drop(world.end(key, |key| turn.delete(key))),
        (4, Some(key)) => drop(turn.modify(key, world.some_interest())),
        (5, Some(key)) => drop(turn.rearm(key)),
        (_, Some(key)) => drop(turn.kick(key, world.some_ready())),
    }
}

fn act_on_timers(world: &Rc<World>, turn: &mut T<'_>) {
    let some = world.pick(&world.timers);
    let started = match (world.below(4), some) {
        (0, _) | (_, None) => turn.after(world.nanoseconds(3000), timer_handler(world)).ok(),
        (1, _) => turn.every(world.nanoseconds(9000), timer_handler(world)).ok(),
        (2, Some(key)) => {
            let _ = world.end(key, |key| turn.cancel(key));
            None
        }
        (_, Some(key)) => {
            let _ = turn.reset(key, world.nanoseconds(2000));
            None
        }
    };
    world.timers.borrow_mut().extend(started);
}

fn act_on_groups(world: &Rc<World>, turn: &mut T<'_>) {
    let some = world.pick(&world.groups);
    match (world.below(6), some) {
        (0 | 1, _) | (_, None) => {
            let state = State::new(world);
            let (is_gone, is_paused) = (state.is_gone.clone(), state.is_paused.clone());
            if let Ok(registered) = fill(world, Group::new(state)).register_into(turn) {
                note(world, registered, |key| KnownGroup { key, is_gone, is_paused });
            }
        }
        (2, Some(known)) => {
            let Ok(group) = turn.group(known.key) else { return };
            let group = fill(world, group);
            // Possibly a member of the running group itself.
            if world.one_in(4) {
                delete_some_group(world, turn);
            }
            if let Ok(registered) = group.register_into(turn) {
                note(world, registered, |key| KnownGroup { key, ..known });
            }
        }
        (3, Some(_)) => delete_some_group(world, turn),
        (4, Some(known)) => {
            if turn.pause_group(known.key).is_ok() {
                known.is_paused.set(true);
            }
        }
        (_, Some(known)) => {
            // Also if the clock panics: the group stays paused then, which is not checked.
            known.is_paused.set(false);
            let _ = turn.resume_group(known.key);
        }
    }
}

/// The owner's actions between two turns.
pub(crate) fn between_turns(world: &Rc<World>, reactor: &mut Reactor) {
    match world.below(12) {
        0 => take_one(world, reactor),
        1 => {
            if let Some(key) = world.pick(&world.keys) {
                let _ = world.end(key, |key| reactor.take_fd::<File>(key));
            }
        }
        2 => {
            if let Some(state) =
                world.pick(&world.groups).and_then(|group| reactor.group_mut(group.key))
            {
                lend(world, state, || {});
            }
        }
        3 => {
            if let Some(group) = world.pick(&world.groups) {
                group.is_gone.set(true);
                let _ = reactor.delete_group(group.key);
            }
        }
        4 => {
            if let Some(key) = world.pick(&world.keys) {
                let _ = world.end(key, |key| reactor.delete(key));
            }
        }
        5 => {
            if let Some(key) = world.pick(&world.keys) {
                let _ = reactor.modify(key, world.some_interest());
                let _ = reactor.kick(key, world.some_ready());
            }
        }
        6 => change_hooks(world, reactor),
        7 => {
            if let Some(known) = world.pick(&world.groups) {
                known.is_paused.set(false);
                let _ = reactor.resume_group(known.key);
            }
        }
        _ => {
            let own = world.clone();
            let _ = reactor.defer(move |mut turn: T<'_>| act(&own, &mut turn, 8));
        }
    }
}

/// Takes a subscriber out, and registers it again or drops it.
fn take_one(world: &World, reactor: &mut Reactor) {
    let Some(key) = world.pick(&world.keys) else { return };
    let Ok(subscriber) = world.end(key, |key| reactor.take_boxed(key)) else { return };
    if world.one_in(2) {
        if let Ok(key) = reactor.add(subscriber) {
            world.keys.borrow_mut().push(key);
        }
    }
}

/// Adds a hook that acts and may panic, or removes one.
fn change_hooks(world: &Rc<World>, reactor: &mut Reactor) {
    if world.hooks.borrow().len() < 2 && world.one_in(2) {
        let (own, mut canary) = (world.clone(), Canary::new(world));
        let hook = move |mut turn: T<'_>| {
            canary.touch();
            act(&own, &mut turn, 2);
            own.panic_one_in(6);
        };
        let added =
            if world.one_in(2) { reactor.before_wait(hook) } else { reactor.after_turn(hook) };
        world.hooks.borrow_mut().extend(added);
    } else {
        let hook = world.hooks.borrow_mut().pop();
        if let Some(key) = hook {
            reactor.remove_hook(key).unwrap();
        }
    }
}
