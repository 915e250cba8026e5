//! The progress watch: which registrations keep the loop from sleeping without progress.
//!
//! 1. A *streak* is a run of turns in each of which a registration's handler was called and made no
//!    progress, and no turn could sleep. A gap, progress or an idle wait ends it.
//! 2. Progress is what the handler calls: it registers, changes or deletes something, sends on a
//!    stream, pauses or resumes a group, starts or moves a timer, defers a closure, or says so
//!    ([`Turn::made_progress`](crate::Turn::made_progress)).
//! 3. A streak is found when it has reached both limits, and again when it has reached twice as
//!    much, four times as much, and so on. It is reported at the end of the turn.
//! 4. A registration that is silenced has the mask of an empty interest in the kernel, until a
//!    timer ends the silence or its interest is changed. A streak of [`RETRY_TURNS`] turns after it
//!    is found again at once.
//! 5. Only descriptors of the user are watched. Streams and listeners read by themselves.

use crate::{
    Key,
    api::{interest::ERR, key::KeyKind, progress::Remedy},
    cell::CellFlags,
    kernel::{Kernel, pending_work},
    util::arena::reserve,
};

/// The first silence of a registration.
const SILENCE_MIN_NS: u64 = 10_000_000;

/// The turns after a silence in which a handler must make progress, or must not be called.
const RETRY_TURNS: u64 = 2;

/// When a streak is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreakLimits {
    /// At least one.
    pub(crate) turns: u64,
    pub(crate) span_ns: u64,
    pub(crate) remedy: Remedy,
}

/// A registration that has made no progress for as long as the limits say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundStreak {
    pub(crate) key: Key,
    pub(crate) turns: u64,
    pub(crate) span_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Streak {
    /// [`Key::UNREGISTERED`] if there is none.
    key: Key,
    first_turn: u64,
    last_turn: u64,
    since_ns: u64,
    /// How often it was found.
    found: u32,
    /// The last silence, if the streak follows one.
    silenced_ns: u64,
    is_demoted: bool,
}

impl Streak {
    const NONE: Self = Self {
        key: Key::UNREGISTERED,
        first_turn: 0,
        last_turn: 0,
        since_ns: 0,
        found: 0,
        silenced_ns: 0,
        is_demoted: false,
    };
}

/// The streaks of a reactor that watches the progress.
#[derive(Debug)]
pub(crate) struct ProgressTable {
    limits: StreakLimits,
    /// By the index of the registration.
    streaks: Vec<Streak>,
    /// At most one for each registration.
    found: Vec<FoundStreak>,
    /// The turn's time.
    now_ns: u64,
    /// The last turn that could sleep.
    idle_turn: u64,
    /// Streams were to be served already when the handler was called.
    had_streams: bool,
    /// At least as many registrations as are demoted.
    demoted: usize,
}

impl ProgressTable {
    pub(crate) const fn new(limits: StreakLimits) -> Self {
        Self {
            limits,
            streaks: Vec::new(),
            found: Vec::new(),
            now_ns: 0,
            idle_turn: 0,
            had_streams: false,
            demoted: 0,
        }
    }

    /// The handler of a registration has returned.
    fn judge(&mut self, key: Key, turn: u64, has_progressed: bool) {
        let Some((index, _)) = key.parts(KeyKind::Descriptor) else { return };
        let len = index as usize + 1;
        if self.streaks.len() < len {
            let missing = len - self.streaks.len();
            reserve(&mut self.streaks, missing);
            self.streaks.resize(len, Streak::NONE);
        }
        let streak = &mut self.streaks[index as usize];
        let was_demoted = streak.is_demoted;
        let goes_on =
            streak.key == key && streak.last_turn + 1 >= turn && streak.last_turn >= self.idle_turn;
        if !goes_on || has_progressed {
            *streak = Streak { key, first_turn: turn, since_ns: self.now_ns, ..Streak::NONE };
            self.demoted -= usize::from(was_demoted);
        }
        if has_progressed {
            streak.key = Key::UNREGISTERED;
            return;
        }
        streak.last_turn = turn;
        let turns = turn - streak.first_turn + 1;
        let span_ns = self.now_ns.saturating_sub(streak.since_ns);
        let due = |limit: u64| limit.saturating_mul(1 << streak.found.min(63));
        let is_found = match streak.silenced_ns {
            0 => turns >= due(self.limits.turns) && span_ns >= due(self.limits.span_ns),
            // The first turn is the one that ended the silence.
            _ => turns > RETRY_TURNS,
        };
        if is_found {
            streak.found += 1;
            if self.limits.remedy == Remedy::Demote && !streak.is_demoted {
                streak.is_demoted = true;
                self.demoted += 1;
            }
            self.found.push(FoundStreak { key, turns, span_ns });
        }
    }

    fn streak(&mut self, key: Key) -> Option<&mut Streak> {
        let (index, _) = key.parts(KeyKind::Descriptor)?;
        self.streaks.get_mut(index as usize).filter(|streak| streak.key == key)
    }
}

/// The kernel's mask of a registration that is silenced.
fn silent_mask() -> u32 {
    crate::interest().kernel_mask()
}

impl Kernel {
    /// The running handler has done something that counts as progress.
    #[inline]
    pub(crate) fn note_progress(&mut self) {
        self.has_progressed = true;
    }

    /// Before the events of this turn there was nothing to do, so the loop could sleep.
    pub(crate) fn note_idle(&mut self, turn: u64) {
        if let Some(progress) = &mut self.progress {
            progress.idle_turn = turn;
        }
    }

    /// The turn's events are dispatched at this time.
    pub(crate) fn set_progress_time(&mut self, now_ns: u64) {
        if let Some(progress) = &mut self.progress {
            progress.now_ns = now_ns;
        }
    }

    /// A handler is called.
    pub(super) fn begin_watch(&mut self) {
        self.has_progressed = false;
        let had_streams = self.has(pending_work::STREAMS);
        // Set again if the handler sends on a stream.
        self.clear(pending_work::STREAMS);
        if let Some(progress) = &mut self.progress {
            progress.had_streams = had_streams;
        }
    }

    /// The handler has returned. `key` is that of its cell, which may be deleted.
    pub(super) fn end_watch(&mut self, key: Key) {
        let has_progressed = self.has_progressed || self.has(pending_work::STREAMS);
        let is_watched = self.registry.get(key).is_some();
        let Some(progress) = &mut self.progress else { return };
        if is_watched {
            progress.judge(key, self.counters.turns, has_progressed);
        }
        if progress.had_streams {
            self.note(pending_work::STREAMS);
        }
    }

    /// The next registration that is to be reported. One that was deleted is left out.
    pub(crate) fn take_found(&mut self) -> Option<FoundStreak> {
        let progress = self.progress.as_mut()?;
        while let Some(found) = progress.found.pop() {
            if self.registry.get(found.key).is_some() {
                return Some(found);
            }
        }
        None
    }

    /// How long a registration was silenced last, and for how long it is to be silenced now. `None`
    /// if it is not to be.
    pub(crate) fn next_silence(&mut self, key: Key) -> Option<(u64, u64)> {
        let cell = self.registry.get(key)?;
        let is_absent = cell.is_paused() || cell.has_flag(CellFlags::ABSENT);
        let progress = self.progress.as_mut()?;
        let Remedy::BackOff(longest) = progress.limits.remedy else { return None };
        let last = progress.streak(key)?.silenced_ns;
        let longest_ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        let next = last.saturating_mul(2).max(SILENCE_MIN_NS).min(longest_ns);
        (next > 0 && !is_absent && !cell.interest().has_one_shot()).then_some((last, next))
    }

    /// Silences a registration. False if the kernel does not.
    pub(crate) fn silence(&mut self, key: Key, span_ns: u64) -> bool {
        self.flush();
        let Some(cell) = self.registry.get(key) else { return false };
        if self.rearm_in_kernel(cell, silent_mask()).is_err() {
            return false;
        }
        if let Some(streak) = self.progress.as_mut().and_then(|progress| progress.streak(key)) {
            streak.silenced_ns = span_ns;
        }
        true
    }

    /// Ends a silence, unless the interest was changed in it. If the kernel rejects that, the
    /// registration gets an error event.
    pub(crate) fn end_silence(&mut self, key: Key) {
        let Some(cell) = self.registry.get(key) else { return };
        // The end of a pause sets the mask.
        if cell.is_paused() || cell.armed_mask() != silent_mask() {
            return;
        }
        if self.rearm_in_kernel(cell, cell.interest().kernel_mask()).is_err() {
            self.raise(cell, ERR);
        }
        let turn = self.counters.turns;
        let Some(progress) = &mut self.progress else { return };
        let now_ns = progress.now_ns;
        if let Some(streak) = progress.streak(key) {
            (streak.first_turn, streak.last_turn, streak.since_ns) = (turn, turn, now_ns);
        }
    }

    /// Moves the events of demoted registrations behind the others.
    pub(super) fn put_demoted_last(&mut self, key_of: impl Fn(u64) -> Key) {
        let Some(progress) = self.progress.as_mut().filter(|progress| progress.demoted > 0) else {
            return;
        };
        self.batch.sort_waiting(|address| {
            progress.streak(key_of(address)).is_some_and(|streak| streak.is_demoted)
        });
    }
}
