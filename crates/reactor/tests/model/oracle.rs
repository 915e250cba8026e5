//! Decides whether the rules allow a record.

use std::collections::{BTreeSet, VecDeque};

use super::{Act, FILES, Mode, Note, Step, Thing};

#[derive(Clone)]
struct Subscriber {
    file: usize,
    mode: Mode,
    alive: bool,
    /// The actions of its handler. A subscriber that deletes itself there is dropped when the
    /// handler has returned.
    acts: Vec<Act>,
    /// True if the kernel has an event for it: an edge that was not reported, or an armed one-shot.
    pending: bool,
}

#[derive(Clone)]
struct Timer {
    deadline: u64,
    order: usize,
    period: u64,
    alive: bool,
    /// True if it is scheduled. False while a one-shot timer runs.
    waits: bool,
    acts: Vec<Act>,
    /// True if it was started or reset in this turn, so it is not due in it.
    fresh: bool,
}

/// The naive model. It has no addresses and no batches, only the live objects and their possible
/// events.
#[derive(Clone, Default)]
pub(crate) struct Oracle {
    counts: [u64; FILES],
    subscribers: Vec<Subscriber>,
    timers: Vec<Timer>,
    deferred: Vec<Vec<Act>>,
    queue: VecDeque<usize>,
    /// Closures that deferred closures have deferred. They run in the next turn.
    later: VecDeque<usize>,
    is_deferring: bool,
    /// Live subscribers whose events are fetched and not yet dispatched.
    fetched: BTreeSet<usize>,
    /// After a panic: the largest number of deleted subscribers with events left in the batch. The
    /// record cannot show them, because they do nothing.
    dead: usize,
    /// Timers that were due when the last turn panicked. They fire before new events. `None` after
    /// a turn without a panic.
    owed: Option<Vec<usize>>,
    now: u64,
    order: usize,
    in_turn: bool,
    dropped: BTreeSet<Thing>,
    notes: VecDeque<Note>,
}

type Verdict = Result<(), String>;

impl Oracle {
    pub(crate) fn judge(program: &[Step], notes: &[Note]) -> Verdict {
        let oracle = Self { notes: notes.iter().cloned().collect(), ..Self::default() };
        oracle.replay(program, 0)
    }

    /// Replays the program from one step on.
    fn replay(mut self, program: &[Step], from: usize) -> Verdict {
        for (place, step) in program.iter().enumerate().skip(from) {
            let outcome = match step {
                Step::Act(act) => self.act(act, None).map(drop),
                Step::Advance(by) => {
                    self.now += by;
                    Ok(())
                }
                // The record does not show whether a panic left entries of deleted subscribers in
                // the batch. The turn dispatches those that are left, or else it fetches. The rules
                // allow the record if they allow it in one of the two cases.
                Step::Turn if self.fetched.is_empty() && self.dead > 0 => {
                    let none_left = Self { dead: 0, ..self.clone() };
                    if none_left.replay(program, place).is_ok() {
                        return Ok(());
                    }
                    self.turn()
                }
                Step::Turn => self.turn(),
            };
            outcome.map_err(|e| format!("step {place}: {e}"))?;
        }
        self.end()
    }

    /// Returns the next entry that is not a drop. Drops before it are counted.
    fn next(&mut self) -> Option<Note> {
        while let Some(note) = self.notes.pop_front() {
            match note {
                Note::Dropped(thing) => {
                    assert!(self.dropped.insert(thing), "{thing:?} destroyed twice")
                }
                other => return Some(other),
            }
        }
        None
    }

    fn did(&mut self, expected: bool) -> Verdict {
        match self.next() {
            Some(Note::Did(did)) if did == expected => Ok(()),
            other => Err(format!("expected an act with outcome {expected}, got {other:?}")),
        }
    }

    fn readable(&self, file: usize) -> bool {
        self.counts[file] > 0
    }

    /// Replays one action. Returns false if it panics.
    fn act(&mut self, act: &Act, own: Option<usize>) -> Result<bool, String> {
        match act {
            Act::Add(file, mode, acts) => {
                let pending = self.readable(*file) || *mode == Mode::OneShot;
                self.subscribers.push(Subscriber {
                    file: *file,
                    mode: *mode,
                    alive: true,
                    acts: acts.clone(),
                    pending,
                });
            }
            Act::Modify(who, mode) => {
                let readable = self.subscribers.get(*who).is_some_and(|s| self.readable(s.file));
                let known = self.subscribers.get_mut(*who).filter(|s| s.alive);
                let found = known.is_some();
                if let Some(subscriber) = known {
                    subscriber.mode = *mode;
                    subscriber.pending = readable || *mode == Mode::OneShot;
                }
                self.did(found)?;
            }
            Act::Delete(who) => {
                let found = self.kill(*who);
                self.did(found)?;
                // A handler that deletes another subscriber drops it at once.
                if found && own != Some(*who) && !self.dropped.contains(&Thing::Subscriber(*who)) {
                    return Err(format!("subscriber {who} was deleted and not destroyed"));
                }
            }
            Act::DeleteSelf => {
                let found = own.is_some_and(|own| self.kill(own));
                self.did(found)?;
            }
            Act::Start(delay, period, acts) => {
                let first = if *period > 0 { *period } else { *delay };
                self.order += 1;
                let (deadline, order) = (self.now + first, self.order);
                let fresh = self.in_turn;
                let timer = Timer {
                    deadline,
                    order,
                    period: *period,
                    alive: true,
                    waits: true,
                    acts: acts.clone(),
                    fresh,
                };
                self.timers.push(self.at_the_earliest(timer));
            }
            Act::Cancel(who) => {
                let found = self.timers.get_mut(*who).is_some_and(|t| std::mem::take(&mut t.alive));
                if let Some(timer) = self.timers.get_mut(*who) {
                    timer.waits = false;
                }
                self.did(found)?;
            }
            Act::Reset(who, delay) => {
                let found = self.timers.get(*who).is_some_and(|t| t.alive);
                if found {
                    self.order += 1;
                    let timer = self.timers[*who].clone();
                    let (deadline, order, fresh) = (self.now + delay, self.order, self.in_turn);
                    self.timers[*who] = self.at_the_earliest(Timer {
                        deadline,
                        order,
                        waits: true,
                        fresh,
                        ..timer
                    });
                }
                self.did(found)?;
            }
            Act::Defer(acts) => {
                let queue = if self.is_deferring { &mut self.later } else { &mut self.queue };
                queue.push_back(self.deferred.len());
                self.deferred.push(acts.clone());
            }
            Act::Drain(file) => self.counts[*file] = 0,
            Act::Fire(file) => {
                self.counts[*file] += 1;
                for subscriber in
                    self.subscribers.iter_mut().filter(|s| s.file == *file && s.mode == Mode::Edge)
                {
                    subscriber.pending = true;
                }
            }
            Act::Panic => return Ok(own.is_none()),
        }
        Ok(true)
    }

    /// Rule 9: a timer started in a turn is due in the next one at the earliest.
    fn at_the_earliest(&self, mut timer: Timer) -> Timer {
        if self.in_turn {
            timer.deadline = timer.deadline.max(self.now + 1);
        }
        timer
    }

    fn kill(&mut self, who: usize) -> bool {
        self.dead += usize::from(self.fetched.remove(&who));
        self.subscribers.get_mut(who).is_some_and(|s| std::mem::take(&mut s.alive))
    }

    /// Replays a handler's actions. Returns false if one panics.
    fn acts(&mut self, acts: &[Act], own: Option<usize>) -> Result<bool, String> {
        for act in acts {
            if !self.act(act, own)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fetch(&mut self) {
        for who in 0..self.subscribers.len() {
            let readable = self.readable(self.subscribers[who].file);
            let subscriber = &mut self.subscribers[who];
            if !subscriber.alive {
                continue;
            }
            let reported = match subscriber.mode {
                Mode::Off => false,
                Mode::Level => readable,
                Mode::Edge | Mode::OneShot => readable && subscriber.pending,
            };
            // A one-shot stays armed until it is reported. An edge that is gone is forgotten.
            if reported || subscriber.mode == Mode::Edge {
                subscriber.pending = false;
            }
            if reported {
                self.fetched.insert(who);
            }
        }
    }

    fn turn(&mut self) -> Verdict {
        match self.next() {
            Some(Note::Turn) => {}
            other => return Err(format!("expected a turn, got {other:?}")),
        }
        self.in_turn = true;
        self.queue.append(&mut self.later);
        for timer in &mut self.timers {
            timer.fresh = false;
        }
        let kept = !self.fetched.is_empty() || self.dead > 0;
        // Kept events are dispatched before the timers that were due.
        let owed = self.owed.take().filter(|_| !kept);
        let (mut has_fired, mut has_ticked) = (false, false);
        if !kept {
            self.fetch();
        }
        let least = self.fetched.len();
        let most = least + self.dead;
        loop {
            match self.next() {
                Some(Note::Fired(who)) => {
                    if !self.fetched.remove(&who) {
                        return Err(format!("subscriber {who} fired out of turn"));
                    }
                    has_fired = true;
                    let is_owed = owed.iter().flatten().any(|timer| self.is_due(*timer));
                    if is_owed || has_ticked && self.due().is_some() {
                        return Err(format!(
                            "subscriber {who} fired before timer {:?}",
                            self.due()
                        ));
                    }
                    let acts = self.subscribers[who].acts.clone();
                    if !self.acts(&acts, Some(who))? {
                        return self.panicked();
                    }
                }
                Some(Note::Ticked(who, missed)) => {
                    // After a panic, timers that were due may fire first.
                    if !self.fetched.is_empty() && (has_fired || owed.is_none()) {
                        return Err(format!("timer {who} fired before {:?}", self.fetched));
                    }
                    has_ticked = true;
                    self.tick(who, missed)?;
                }
                Some(Note::Deferred(which)) => {
                    if self.queue.pop_front() != Some(which) {
                        return Err(format!("closure {which} ran out of order"));
                    }
                    let acts = self.deferred[which].clone();
                    self.is_deferring = true;
                    self.acts(&acts, None)?;
                    self.is_deferring = false;
                }
                Some(Note::TurnEnded { events }) => {
                    if !self.queue.is_empty() {
                        return Err(format!("{:?} did not run", self.queue));
                    }
                    if self.due().is_some() {
                        return Err(format!("timer {:?} was due", self.due()));
                    }
                    if !self.fetched.is_empty() {
                        return Err(format!("{:?} did not fire", self.fetched));
                    }
                    (self.in_turn, self.dead) = (false, 0);
                    let told = events.is_some_and(|events| (least..=most).contains(&events));
                    return if told {
                        Ok(())
                    } else {
                        Err(format!("{events:?} events of {least} to {most}"))
                    };
                }
                other => return Err(format!("unexpected {other:?}")),
            }
        }
    }

    /// The turn has ended by a panic. The fetched events are kept.
    fn panicked(&mut self) -> Verdict {
        self.in_turn = false;
        self.owed = Some((0..self.timers.len()).filter(|timer| self.is_due(*timer)).collect());
        match self.next() {
            Some(Note::TurnEnded { events: None }) => Ok(()),
            other => Err(format!("expected the turn to end by a panic, got {other:?}")),
        }
    }

    fn is_due(&self, who: usize) -> bool {
        let timer = &self.timers[who];
        timer.alive && timer.waits && !timer.fresh && timer.deadline <= self.now
    }

    /// The timer that must fire next in this turn.
    fn due(&self) -> Option<usize> {
        let due = (0..self.timers.len()).filter(|who| self.is_due(*who));
        due.min_by_key(|who| (self.timers[*who].deadline, self.timers[*who].order))
    }

    fn tick(&mut self, who: usize, missed: u64) -> Verdict {
        if self.due() != Some(who) {
            return Err(format!("timer {who} fired, {:?} was due", self.due()));
        }
        self.order += 1;
        let (now, order) = (self.now, self.order);
        let timer = &mut self.timers[who];
        let expected = (now - timer.deadline).checked_div(timer.period);
        match expected {
            Some(beats) => {
                timer.deadline += timer.period * (beats + 1);
                timer.order = order;
            }
            None => timer.waits = false,
        }
        let expected = expected.unwrap_or(0);
        if missed != expected {
            return Err(format!("timer {who} says {missed} missed beats of {expected}"));
        }
        let acts = timer.acts.clone();
        self.acts(&acts, None)?;
        let timer = &mut self.timers[who];
        timer.alive &= timer.waits;
        Ok(())
    }

    /// After the reactor was dropped: checks that everything was dropped exactly once.
    fn end(mut self) -> Verdict {
        if let Some(note) = self.next() {
            return Err(format!("left over: {note:?}"));
        }
        let subscribers = (0..self.subscribers.len()).map(Thing::Subscriber);
        let all: BTreeSet<Thing> =
            subscribers.chain((0..self.timers.len()).map(Thing::Timer)).collect();
        if self.dropped == all {
            Ok(())
        } else {
            Err(format!("destroyed {:?} of {all:?}", self.dropped))
        }
    }
}
