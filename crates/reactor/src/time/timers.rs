//! The table of timers, which schedules them and takes out those that are due.

use crate::{
    Key,
    api::{
        inline_call::InlineTimer,
        key::{KeyKind, MAX_INDEX},
        ops::ReactorOps,
    },
    cell::{NO_GROUP, OWN_TIMER, PAUSED},
    time::wheel::{Node, Nodes, Wheel},
    util::{
        arena::{Arena, reserve_one},
        prefetch::prefetch,
    },
};

/// The default resolution: a microsecond.
pub(crate) const DEFAULT_TICK_NS: u64 = 1000;

/// What a reset of a timer needs: its generation, which the arena stores before it, and this. Its
/// note in the arena is its group, with the mark [`PAUSED`] while that is paused: the wheel then
/// holds the timer.
#[repr(C)]
struct TimerEntry {
    /// When it is due, not rounded. The next deadline of a periodic timer is computed from it.
    deadline_ns: u64,
    node: Node,
}

/// What a firing needs in addition.
struct Calling<R: ReactorOps> {
    /// `None` while the handler runs, because the dispatcher owns it then, and without a timer.
    call: Option<InlineTimer<R>>,
    /// Zero for a timer that fires once.
    period_ns: u64,
}

/// Timers by index, in two arrays. A reset touches only the first one, whose pages are few.
struct Table<R: ReactorOps> {
    entries: Arena<TimerEntry>,
    /// At least as long as the first one.
    calling: Vec<Calling<R>>,
}

impl<R: ReactorOps> Table<R> {
    /// Stores what belongs to an entry at an index that the second array does not have.
    fn push_calling(&mut self, index: u32, calling: Calling<R>) {
        // The arena leaves out indices without generations.
        while self.calling.len() < index as usize {
            reserve_one(&mut self.calling);
            self.calling.push(Calling { call: None, period_ns: 0 });
        }
        reserve_one(&mut self.calling);
        self.calling.push(calling);
    }
}

/// What is in the wheel has an entry.
impl<R: ReactorOps> Nodes for Table<R> {
    #[inline]
    fn find(&self, index: u32) -> Option<&Node> {
        self.entries.at(index).map(|entry| &entry.node)
    }

    #[inline]
    fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.entries.at_mut(index).expect("what is in the wheel has an entry").node
    }

    #[inline]
    fn prefetch(&self, index: u32) {
        self.entries.prefetch(index);
        if let Some(calling) = self.calling.get(index as usize) {
            prefetch(calling);
        }
    }
}

/// A due timer, taken out to be fired.
pub(crate) struct Due<R: ReactorOps> {
    pub(crate) key: Key,
    pub(crate) call: InlineTimer<R>,
    pub(crate) deadline_ns: u64,
    pub(crate) missed: u64,
}

/// A removed timer.
pub(crate) struct Ended<R: ReactorOps> {
    /// `None` if the timer is running, because the dispatcher owns its handler.
    pub(crate) call: Option<InlineTimer<R>>,
    pub(crate) group: u32,
}

/// The timers of a reactor. Times are nanoseconds since the reactor's epoch.
///
/// The wheel counts in ticks, whose length is the resolution. Deadlines are rounded up to a tick
/// and the current time is rounded down. So no timer fires early.
pub(crate) struct Timers<R: ReactorOps> {
    table: Table<R>,
    wheel: Wheel,
    tick_ns: u64,
    /// Nothing is due before this time. Zero if the wheel must be asked.
    bound_ns: u64,
}

impl<R: ReactorOps> Timers<R> {
    /// `tick_ns` is at least 1.
    pub(crate) const fn new(tick_ns: u64) -> Self {
        let table = Table { entries: Arena::new(), calling: Vec::new() };
        Self { table, wheel: Wheel::new(), tick_ns, bound_ns: 0 }
    }

    /// The first tick that is not before a time.
    fn tick_from(&self, ns: u64) -> u64 {
        // A division by a constant is a multiplication.
        if self.tick_ns == DEFAULT_TICK_NS {
            ns.div_ceil(DEFAULT_TICK_NS)
        } else {
            ns.div_ceil(self.tick_ns)
        }
    }

    /// The last tick that is not after a time.
    fn tick_until(&self, ns: u64) -> u64 {
        if self.tick_ns == DEFAULT_TICK_NS { ns / DEFAULT_TICK_NS } else { ns / self.tick_ns }
    }

    /// The start of the tick that a time is in.
    pub(crate) fn rounded_down(&self, ns: u64) -> u64 {
        self.time_of(self.tick_until(ns))
    }

    fn time_of(&self, tick: u64) -> u64 {
        tick.saturating_mul(self.tick_ns)
    }

    /// The number of timers with a key.
    pub(crate) fn len(&self) -> usize {
        self.table.entries.len()
    }

    /// The number of timers in the wheel.
    pub(crate) fn waiting(&self) -> usize {
        self.wheel.len()
    }

    pub(crate) fn start(
        &mut self,
        call: InlineTimer<R>,
        deadline_ns: u64,
        period_ns: u64,
        group: u32,
    ) -> Key {
        let (index, generation) = self.table.entries.next(MAX_INDEX);
        self.table.entries.insert_noted(TimerEntry { deadline_ns, node: Node::ABSENT }, group);
        let calling = Calling { call: Some(call), period_ns };
        match self.table.calling.get_mut(index as usize) {
            Some(free) => *free = calling,
            None => self.table.push_calling(index, calling),
        }
        let tick = self.tick_from(deadline_ns);
        self.wheel.insert(&mut self.table, index, tick);
        self.bound_ns = self.bound_ns.min(self.time_of(tick));
        Key::new(KeyKind::Timer, (index, generation))
    }

    /// The index of a timer, for [`reset_at`](Self::reset_at).
    #[inline]
    pub(crate) fn find(&self, key: Key) -> Option<u32> {
        let (index, generation) = key.parts(KeyKind::Timer)?;
        self.table.entries.get(index, generation).map(|_| index)
    }

    /// Moves the next firing. False if the key does not name a timer.
    pub(crate) fn reset(&mut self, key: Key, deadline_ns: u64) -> bool {
        self.find(key).map(|index| self.reset_at(index, deadline_ns)).is_some()
    }

    /// Moves the next firing of the timer at an index.
    pub(crate) fn reset_at(&mut self, index: u32, deadline_ns: u64) {
        let tick = self.tick_from(deadline_ns);
        self.bound_ns = self.bound_ns.min(self.time_of(tick));
        let entry = self.table.entries.at_mut(index).expect("the index is that of a timer");
        entry.deadline_ns = deadline_ns;
        if !self.wheel.reset_in_place(&mut entry.node, tick) {
            self.move_to(index, tick);
        }
    }

    // Apart, so that a reset in place saves fewer registers.
    #[inline(never)]
    fn move_to(&mut self, index: u32, tick: u64) {
        if self.table.entries.note_at(index) & PAUSED != 0 {
            return self.wheel.hold(&mut self.table, index);
        }
        self.wheel.remove(&mut self.table, index);
        self.wheel.insert(&mut self.table, index, tick);
    }

    /// Keeps a timer from firing until it is resumed.
    pub(crate) fn pause(&mut self, key: Key) {
        let Some(index) = self.find(key) else { return };
        self.table.entries.set_note(index, self.table.entries.note_at(index) | PAUSED);
        // A timer that fires once, and whose handler runs, does not wait.
        if self.table.node(index).is_waiting() {
            self.wheel.hold(&mut self.table, index);
        }
    }

    /// Lets a paused timer fire again, not before a time.
    pub(crate) fn resume(&mut self, key: Key, earliest_ns: u64) {
        let Some(index) = self.find(key) else { return };
        let note = self.table.entries.note_at(index);
        self.table.entries.set_note(index, note & !PAUSED);
        if note & PAUSED == 0 || !self.table.node(index).is_waiting() {
            return;
        }
        let entry = self.table.entries.at_mut(index).expect("found above");
        entry.deadline_ns = entry.deadline_ns.max(earliest_ns);
        let deadline_ns = entry.deadline_ns;
        let tick = self.tick_from(deadline_ns);
        self.bound_ns = self.bound_ns.min(self.time_of(tick));
        self.wheel.release(&mut self.table, index, tick);
    }

    /// Removes a timer of the user. Its key is stale afterwards.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Ended<R>> {
        let (index, generation) = key.parts(KeyKind::Timer)?;
        let note = self.table.entries.note(index, generation)?;
        // The key was made up.
        if note == OWN_TIMER { None } else { self.end(index, generation, note) }
    }

    /// The same, also for a timer of the reactor's own.
    pub(crate) fn remove_any(&mut self, key: Key) -> Option<Ended<R>> {
        let (index, generation) = key.parts(KeyKind::Timer)?;
        let note = self.table.entries.note(index, generation)?;
        self.end(index, generation, note)
    }

    #[inline]
    fn end(&mut self, index: u32, generation: u32, note: u32) -> Option<Ended<R>> {
        self.wheel.remove(&mut self.table, index);
        self.table.entries.remove(index, generation)?;
        let call = self.table.calling[index as usize].call.take();
        Some(Ended { call, group: note & !PAUSED })
    }

    /// Whether the timer at an index is one of the reactor's own.
    #[inline]
    pub(crate) fn is_own(&self, index: u32) -> bool {
        self.table.entries.note_at(index) == OWN_TIMER
    }

    /// The next deadline, or an instant after `now` before which nothing is due. Advances the wheel
    /// to `now`, so that the past deadline of a cancelled timer is forgotten.
    pub(crate) fn next_deadline_after_advance(&mut self, now_ns: u64) -> Option<u64> {
        let now = self.tick_until(now_ns);
        self.wheel.advance(&mut self.table, now);
        let next = self.next_deadline();
        self.bound_ns = next.unwrap_or(0);
        next
    }

    /// Whether a periodic timer is the next one, and known to be due after `now_ns`.
    pub(crate) fn is_quiet(&mut self, now_ns: u64) -> bool {
        let now = self.tick_until(now_ns);
        self.wheel.is_quiet(now)
    }

    /// The wheel has no more due timers.
    pub(crate) fn none_left(&mut self) {
        self.bound_ns = self.next_deadline().unwrap_or(0);
    }

    /// A time before which nothing is due, without a look at the wheel. Zero if the wheel must be
    /// asked.
    #[inline]
    pub(crate) fn bound_ns(&self) -> u64 {
        self.bound_ns
    }

    /// A time before which nothing is due.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.wheel.next_deadline().map(|tick| self.time_of(tick))
    }

    /// False if no timer is due at `now_ns`. May be true if a cancelled timer was due.
    pub(crate) fn may_be_due(&self, now_ns: u64) -> bool {
        self.next_deadline().is_some_and(|next| next <= now_ns)
    }

    /// Takes the next due timer. A periodic timer is rescheduled before it fires, so a panic of its
    /// handler changes nothing (rule 3).
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<Due<R>> {
        let now = self.tick_until(now_ns);
        let (index, tick) = self.wheel.pop_due(&mut self.table, now)?;
        // A deadline before the wheel's time counts as the wheel's time.
        let earliest_ns = self.time_of(tick).saturating_sub(self.tick_ns - 1);
        let generation = self.table.entries.generation(index);
        let entry = self.table.entries.at_mut(index).expect("what is in the wheel has an entry");
        let calling = &mut self.table.calling[index as usize];
        let call =
            calling.call.take().expect("a timer that runs is not in the wheel before it is reset");
        let deadline_ns = entry.deadline_ns.max(earliest_ns);
        let (period_ns, late_ns) = (calling.period_ns, now_ns.saturating_sub(deadline_ns));
        // A division takes long, and is rarely needed.
        let missed =
            if late_ns < period_ns { 0 } else { late_ns.checked_div(period_ns).unwrap_or(0) };
        // A period of zero marks a timer that fires once.
        if period_ns > 0 {
            let beats = period_ns.saturating_mul(missed.saturating_add(1));
            entry.deadline_ns = deadline_ns.saturating_add(beats);
            let deadline_ns = entry.deadline_ns;
            let tick = self.tick_from(deadline_ns);
            self.wheel.insert_next(&mut self.table, index, tick);
            self.bound_ns = self.bound_ns.min(self.time_of(tick));
        }
        Some(Due { key: Key::new(KeyKind::Timer, (index, generation)), call, deadline_ns, missed })
    }

    /// Returns the handler to a fired timer that is scheduled again. Otherwise removes the timer:
    /// its key is stale, and the result is for the caller to drop.
    // Its only caller passes the closure on, which a call of its own would copy.
    #[inline(always)]
    pub(crate) fn settle(&mut self, key: Key, call: InlineTimer<R>) -> Option<Ended<R>> {
        let (index, generation) = key.parts(KeyKind::Timer)?;
        let Some(entry) = self.table.entries.get_mut(index, generation) else {
            // The timer cancelled itself. Its group was updated at that time.
            return Some(Ended { call: Some(call), group: NO_GROUP });
        };
        if entry.node.is_waiting() {
            self.table.calling[index as usize].call = Some(call);
            return None;
        }
        let mut ended = self.remove_any(key)?;
        ended.call = Some(call);
        Some(ended)
    }

    /// Removes an arbitrary timer, when the reactor is dropped or taken apart.
    pub(crate) fn pop(&mut self) -> Option<Option<InlineTimer<R>>> {
        self.table.entries.pop().map(|(index, ..)| self.table.calling[index as usize].call.take())
    }

    /// Names a timer, or takes its name away. False if there is no such timer.
    pub(crate) fn set_name(&mut self, key: Key, name: Option<Box<str>>) -> bool {
        key.parts(KeyKind::Timer).is_some_and(|place| self.table.entries.set_name(place, name))
    }

    /// The keys of the user's timers, with their groups and names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, u32, Option<&str>)> {
        let entries = &self.table.entries;
        entries.iter().filter_map(|(index, generation, _)| {
            let group = entries.note_at(index) & !PAUSED;
            let key = Key::new(KeyKind::Timer, (index, generation));
            (group != OWN_TIMER).then(|| (key, group, entries.name(index)))
        })
    }

    /// Sets the group that the timer belongs to.
    pub(crate) fn set_group(&mut self, key: Key, group: u32) {
        if let Some((index, generation)) = key.parts(KeyKind::Timer) {
            if self.table.entries.get(index, generation).is_some() {
                self.table.entries.set_note(index, group);
            }
        }
    }
}
